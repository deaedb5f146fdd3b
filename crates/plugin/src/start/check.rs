//! The checks of a configuration, and the opening of what it names on disk.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use drakkar_cdi::Vendor;
use drakkar_metadata::Versions;
use drakkar_metadata::name::DriverName;
use rustix::fs::{Access, access};

use super::StartError;
use super::cdi_directory::{self, IfMissing};
use super::error::{lock_error, socket_error};
use crate::builder::{DEFAULT_CDI_DIRECTORY, PluginBuilder};
use crate::disk::Medium;
use crate::lock::Locks;
use crate::registration::SupportedServices;
use crate::server::StartError as ServeError;
use crate::socket::{PodUid, dra_socket, ensure_not_live};
use crate::store::{PLUGIN_DIRECTORY_MODE, Settings, Store, SystemFiles, make_directories};

/// A configuration without contradictions.
pub(super) struct Checked {
    pub(super) driver: DriverName,
    pub(super) pod_uid: Option<PodUid>,
    pub(super) registry_directory: PathBuf,
    pub(super) lock_file: PathBuf,
    pub(super) store: Settings,
    registers: bool,
    serves: bool,
    /// Whether the directory of CDI specs is checked, and made: for the framework's specs, or those of a driver that was given a
    /// directory for them.
    checks_cdi: Option<IfMissing>,
}

/// What a driver has open on disk.
pub(super) struct Opened {
    pub(super) store: Arc<Store<SystemFiles>>,
    pub(super) locks: Locks,
    pub(super) medium: Medium,
}

impl PluginBuilder {
    /// Checks what can be checked without the disk.
    pub(super) fn check(&self) -> Result<Checked, StartError> {
        let driver = DriverName::new(self.driver.as_str()).map_err(StartError::DriverName)?;
        if self.metadata {
            Vendor::try_from(&driver).map_err(|source| StartError::CdiVendor { driver: driver.clone(), source })?;
            if self.layouts.is_empty() {
                return Err(StartError::NoLayout);
            }
        }
        SupportedServices::new(self.services)?;
        let versions = Versions::new(self.versions.iter().copied()).map_err(StartError::Versions)?;
        let pod_uid = self.pod_uid.as_deref().map(|uid| {
            let invalid = |_| StartError::PodUid { uid: uid.to_owned() };
            PodUid::new(uid).map_err(invalid)
        });
        let in_kubelet_root = |name: &str| self.kubelet_root.join(name);
        let plugin_directory =
            self.plugin_directory.clone().unwrap_or_else(|| in_kubelet_root("plugins").join(driver.as_str()));
        Ok(Checked {
            pod_uid: pod_uid.transpose()?,
            registry_directory: self.registry_directory.clone().unwrap_or_else(|| in_kubelet_root("plugins_registry")),
            lock_file: self.lock_directory.as_ref().unwrap_or(&plugin_directory).join(crate::lock::FILE),
            registers: self.services.registration,
            serves: self.services.dra_socket,
            checks_cdi: if !self.services.dra_socket {
                None
            } else if self.metadata {
                Some(IfMissing::Make)
            } else {
                (self.cdi_directory != Path::new(DEFAULT_CDI_DIRECTORY)).then_some(IfMissing::Warn)
            },
            store: Settings {
                driver: driver.clone(),
                plugin_directory,
                cdi_directory: self.cdi_directory.clone(),
                versions,
                layouts: self.layouts.clone(),
                boot: "".into(),
                exclusive: self.pod_uid.is_none(),
            },
            driver,
        })
    }
}

impl Checked {
    /// Checks the directories, and opens what is on disk.
    pub(super) async fn open(&self) -> Result<Opened, StartError> {
        let mut settings = self.store.clone();
        let registry = self.registers.then(|| self.registry_directory.clone());
        let checks_cdi = self.checks_cdi;
        let lock_file = self.pod_uid.is_some().then(|| self.lock_file.clone());
        // Instances of a rolling update have sockets of their own.
        let dra_socket = if self.serves && self.pod_uid.is_none() {
            let path = dra_socket(&settings.plugin_directory, None).map_err(ServeError::Name);
            Some(path.map_err(socket_error)?)
        } else {
            None
        };
        let opened = tokio::task::spawn_blocking(move || {
            if let Some(path) = registry {
                is_writable_directory(&path).map_err(|source| StartError::Directory {
                    what: "the kubelet's registry directory",
                    path,
                    source,
                    remedy: "is --kubelet-root-dir the kubelet's directory, and mounted into the driver's container \
                             under the same path?",
                })?;
            }
            let plugin_directory = settings.plugin_directory.clone();
            let unusable = |source| StartError::Directory {
                what: "the driver's directory",
                path: plugin_directory.clone(),
                source,
                remedy: "mount it into the driver's container under the path that it has on the host",
            };
            make_directories(&plugin_directory, PLUGIN_DIRECTORY_MODE).map_err(unusable)?;
            is_writable_directory(&plugin_directory).map_err(unusable)?;
            if let Some(if_missing) = checks_cdi {
                cdi_directory::check(&settings.cdi_directory, if_missing)?;
            }
            settings.boot = boot_id()?.into();
            if let Some(socket) = dra_socket {
                // Recovery is next, and must not touch files of a process that still serves.
                ensure_not_live(&socket).map_err(|error| socket_error(error.into()))?;
            }
            let locks = match lock_file {
                Some(path) => Locks::shared(&path).map_err(|error| lock_error(path, error))?,
                None => Locks::in_process(),
            };
            let medium = Medium::of([plugin_directory.as_path(), &settings.cdi_directory]);
            let store = Store::open(SystemFiles, settings).map_err(|error| unusable(io::Error::other(error)))?;
            Ok(Opened { store: Arc::new(store), locks, medium })
        });
        opened.await.map_err(StartError::Task)?
    }
}

fn is_writable_directory(path: &Path) -> io::Result<()> {
    if !std::fs::metadata(path)?.is_dir() {
        return Err(io::ErrorKind::NotADirectory.into());
    }
    Ok(access(path, Access::WRITE_OK | Access::EXEC_OK)?)
}

/// Returns the kernel's identifier of the current boot.
fn boot_id() -> Result<String, StartError> {
    const PATH: &str = "/proc/sys/kernel/random/boot_id";
    std::fs::read_to_string(PATH).map(|id| id.trim().to_owned()).map_err(|source| StartError::Directory {
        what: "the boot id",
        path: PATH.into(),
        source,
        remedy: "mount /proc",
    })
}
