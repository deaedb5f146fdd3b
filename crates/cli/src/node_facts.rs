//! What is true on a node, gathered once for `drakkar doctor`, `drakkar node` and `drakkar inspect`: files, sockets, the
//! kubelet's checkpoint, the runtime's configuration and the API server's answers.
//!
//! Gathering judges nothing and changes nothing. What is missing or cannot be read is a fact like any other. Texts from files and
//! servers are kept as they are: who prints them escapes them.

pub(crate) mod api;
pub(crate) mod cdi;
pub(crate) mod claims;
pub(crate) mod host;
mod http;
pub(crate) mod runtime;
pub(crate) mod sockets;

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use drakkar_kubelet_api::checkpoint::{self, ClaimState};
use drakkar_metadata::name::DriverName;
use drakkar_metadata::path::HOST_SUBDIR;
use drakkar_plugin::node_files::{is_dra_socket, is_registration_socket};
use rustix::fs::FileType;

use self::api::{Answer, Api, ApiReader, MAX_CLAIMS};
use self::cdi::CdiDirectory;
use self::claims::DriverFiles;
use self::host::{Directory, Host};
pub(crate) use self::http::HttpAnswer;
use self::runtime::Runtime;
use self::sockets::{Registration, Socket};
use crate::args::operate::{ApiOptions, DoctorOptions, HostOptions};
use crate::exit::{Code, Failure};

/// The largest checkpoint of a kubelet that is read.
const MAX_CHECKPOINT: u64 = 64 * 1024 * 1024;

/// The files of a node.
#[derive(Debug)]
pub(crate) struct NodeFiles {
    host: Host,
    pub(crate) kubelet_dir: PathBuf,
    /// The kubelet's directory of plugins, or why it cannot be read.
    pub(crate) plugins: Result<Directory, io::Error>,
    /// The kubelet's claims, or why they are not known.
    pub(crate) checkpoint: Checkpoint,
    pub(crate) drivers: Vec<DriverFacts>,
    pub(crate) cdi: Vec<CdiDirectory>,
}

/// The kubelet's checkpoint of claims.
#[derive(Debug)]
pub(crate) enum Checkpoint {
    /// The kubelet has had no claim yet, or is not one with DRA.
    Missing,
    /// This process may not read it, which says nothing about the checkpoint.
    Denied(String),
    Unreadable(String),
    Read(Vec<ClaimState>),
}

impl Checkpoint {
    pub(crate) fn claims(&self) -> &[ClaimState] {
        match self {
            Self::Read(claims) => claims,
            Self::Missing | Self::Denied(_) | Self::Unreadable(_) => &[],
        }
    }

    pub(crate) fn claim(&self, uid: &str) -> Option<&ClaimState> {
        self.claims().iter().find(|claim| claim.claim_uid == uid)
    }
}

/// What a driver has on the node.
#[derive(Debug)]
pub(crate) struct DriverFacts {
    pub(crate) name: DriverName,
    /// The driver's directory on the host.
    pub(crate) path: PathBuf,
    /// The directory itself, or why it cannot be opened.
    pub(crate) directory: Result<Directory, io::Error>,
    pub(crate) files: DriverFiles,
}

impl NodeFiles {
    /// Reads the files. `named` are drivers that are known from elsewhere.
    pub(crate) fn read(options: &HostOptions, named: impl IntoIterator<Item = DriverName>) -> Result<Self, Failure> {
        let host = Host::open(&options.host_root).map_err(|error| {
            Failure::new(Code::Usage, format!("host root {}: {error}", options.host_root.display()))
        })?;
        let plugins = host.directory(&options.kubelet_dir.join("plugins"));
        let checkpoint = read_checkpoint(&host, &options.kubelet_dir);
        let mut names: BTreeSet<DriverName> = options.drivers.iter().cloned().collect();
        if names.is_empty() {
            names.extend(named);
            names.extend(plugins.iter().flat_map(drivers_in));
        }
        let drivers = names.into_iter().map(|name| {
            let path = options.kubelet_dir.join("plugins").join(name.as_str());
            let directory = match &plugins {
                Ok(plugins) => plugins.open(name.as_str()),
                Err(error) => Err(error.kind().into()),
            };
            let files = directory.as_ref().map(claims::read).unwrap_or_default();
            DriverFacts { name, path, directory, files }
        });
        Ok(Self {
            kubelet_dir: options.kubelet_dir.clone(),
            checkpoint,
            drivers: drivers.collect(),
            cdi: options.cdi_dirs.iter().map(|path| cdi::read(&host, path)).collect(),
            plugins,
            host,
        })
    }
}

/// Returns the drivers that have records or DRA sockets. Other plugins of a kubelet have neither.
fn drivers_in(plugins: &Directory) -> Vec<DriverName> {
    let is_driver = |name: &str| {
        let Ok(directory) = plugins.open(name) else { return false };
        directory.entries().is_ok_and(|entries| {
            entries.iter().any(|entry| {
                entry.name == HOST_SUBDIR || (entry.status.kind == FileType::Socket && is_dra_socket(&entry.name))
            })
        })
    };
    let entries = plugins.entries().unwrap_or_default();
    let found = entries.into_iter().filter(|entry| is_driver(&entry.name));
    found.filter_map(|entry| entry.name.parse().ok()).collect()
}

fn read_checkpoint(host: &Host, kubelet_dir: &Path) -> Checkpoint {
    match host.read(&kubelet_dir.join(checkpoint::FILE), MAX_CHECKPOINT) {
        Ok(bytes) => match checkpoint::decode(&bytes) {
            Ok(claims) => Checkpoint::Read(claims),
            Err(error) => Checkpoint::Unreadable(error.to_string()),
        },
        Err(error) if error.kind() == io::ErrorKind::NotFound => Checkpoint::Missing,
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Checkpoint::Denied(error.to_string()),
        Err(error) => Checkpoint::Unreadable(error.to_string()),
    }
}

/// All that `drakkar doctor` checks.
#[derive(Debug)]
pub(crate) struct Facts {
    pub(crate) now: SystemTime,
    pub(crate) node: NodeFiles,
    pub(crate) node_name: String,
    /// The sockets in the kubelet's registry, or why they cannot be listed.
    pub(crate) registry: Result<Vec<Registration>, io::Error>,
    pub(crate) endpoints: Vec<DriverEndpoints>,
    pub(crate) disks: Vec<Disk>,
    pub(crate) runtime: Runtime,
    pub(crate) nri: NriFacts,
    pub(crate) api: Api,
    pub(crate) kubelet_healthz: HttpAnswer,
    /// The answer of the driver's `/readyz`, if its endpoint is given.
    pub(crate) readyz: Option<(String, HttpAnswer)>,
}

/// The sockets that the kubelet calls.
#[derive(Debug)]
pub(crate) struct DriverEndpoints {
    pub(crate) driver: DriverName,
    /// Those that running instances have announced.
    pub(crate) announced: Vec<Socket>,
    /// The others in the driver's directory.
    pub(crate) others: Vec<Socket>,
}

/// A directory that is written to, and the space there.
#[derive(Debug)]
pub(crate) struct Disk {
    pub(crate) path: PathBuf,
    /// The bytes that are free for users other than root.
    pub(crate) free_bytes: u64,
    /// The inodes that are free; `None` if the file system has no fixed number.
    pub(crate) free_inodes: Option<u64>,
    /// Why this process cannot write there; `None` if it can.
    pub(crate) not_writable: Option<io::Error>,
}

/// The NRI socket.
#[derive(Debug)]
pub(crate) struct NriFacts {
    /// Whether the user says that a driver needs it.
    pub(crate) is_needed: bool,
    pub(crate) socket: Socket,
}

impl Facts {
    /// Returns the registration sockets of a driver, by their name or by the answer of their process.
    pub(crate) fn registrations_of<'a>(&'a self, driver: &'a DriverName) -> impl Iterator<Item = &'a Registration> {
        self.registry.iter().flatten().filter(move |found| match &found.info {
            Some(Ok(info)) => info.name == driver.as_str(),
            _ => is_registration_socket(&found.name, driver),
        })
    }

    /// Returns the release of the container runtime, as the node's status names it.
    pub(crate) fn runtime_release(&self) -> Option<&str> {
        let node = self.api.facts()?.node.got()?.as_ref()?;
        node.pointer("/status/nodeInfo/containerRuntimeVersion")?.as_str()
    }
}

/// Gathers all facts.
pub(crate) async fn gather(options: &DoctorOptions) -> Result<Facts, Failure> {
    let host = Host::open(&options.host.host_root).map_err(|error| {
        Failure::new(Code::Usage, format!("host root {}: {error}", options.host.host_root.display()))
    })?;
    let registry = match host.directory(&options.host.kubelet_dir.join("plugins_registry")) {
        Ok(directory) => sockets::registrations(&directory).await,
        Err(error) => Err(error),
    };
    let registered = registry.iter().flatten().filter_map(|found| found.info.as_ref()?.as_ref().ok());
    let registered = registered.filter(|info| info.r#type == "DRAPlugin");
    let named: Vec<DriverName> = registered.filter_map(|info| info.name.parse().ok()).collect();
    let node = NodeFiles::read(&options.host, named)?;
    let node_name = node_name(&options.api, &options.host, &host);
    let runtime = runtime::read(&host, options.containerd_config.as_deref());
    let configured = match &runtime {
        Runtime::Known(config) => config.nri_socket.clone(),
        Runtime::Unknown(_) | Runtime::Invalid { .. } => PathBuf::from(runtime::DEFAULT_NRI_SOCKET),
    };
    let nri_socket = options.nri_socket.clone().unwrap_or(configured);
    let mut facts = Facts {
        now: SystemTime::now(),
        endpoints: Vec::new(),
        disks: disks(&node),
        nri: NriFacts { is_needed: options.nri_socket.is_some(), socket: sockets::probe(&host, &nri_socket).await },
        api: api(&options.api, &node, &node_name).await,
        kubelet_healthz: http::get(&options.kubelet_healthz, "/healthz").await,
        readyz: None,
        runtime,
        registry,
        node_name,
        node,
    };
    if let Some(address) = &options.http_endpoint {
        facts.readyz = Some((address.clone(), http::get(address, "/readyz?verbose").await));
    }
    for driver in &facts.node.drivers {
        let found = endpoints(&host, driver, &facts).await;
        facts.endpoints.push(found);
    }
    Ok(facts)
}

async fn endpoints(host: &Host, driver: &DriverFacts, facts: &Facts) -> DriverEndpoints {
    let infos = facts.registrations_of(&driver.name).filter_map(|found| found.info.as_ref()?.as_ref().ok());
    let paths: BTreeSet<PathBuf> =
        infos.map(|info| PathBuf::from(&info.endpoint)).filter(|path| path.is_absolute()).collect();
    let mut found = DriverEndpoints { driver: driver.name.clone(), announced: Vec::new(), others: Vec::new() };
    for path in &paths {
        found.announced.push(sockets::probe(host, path).await);
    }
    let Ok(directory) = &driver.directory else { return found };
    for entry in directory.entries().unwrap_or_default() {
        let is_other = entry.status.kind == FileType::Socket
            && is_dra_socket(&entry.name)
            && !paths.iter().any(|path| path.file_name().is_some_and(|name| name == entry.name.as_str()));
        if is_other {
            found.others.push(sockets::probe_in(directory, &entry.name).await);
        }
    }
    found
}

fn disks(node: &NodeFiles) -> Vec<Disk> {
    let drivers = node.drivers.iter().filter_map(|driver| driver.directory.as_ref().ok());
    let cdi = node.cdi.iter().filter_map(|directory| node.host.directory(&directory.path).ok());
    let disk = |directory: &Directory| {
        let space = directory.space().ok()?;
        let access = rustix::fs::access(directory.through(), rustix::fs::Access::WRITE_OK);
        Some(Disk {
            path: directory.path().to_owned(),
            free_bytes: space.f_bavail.saturating_mul(space.f_frsize),
            free_inodes: (space.f_files > 0).then_some(space.f_favail),
            not_writable: access.err().map(io::Error::from),
        })
    };
    let mut disks: Vec<Disk> = drivers.filter_map(disk).collect();
    disks.extend(cdi.filter_map(|directory| disk(&directory)));
    disks
}

/// Returns the name of the node: as given, or that of the host.
fn node_name(options: &ApiOptions, host_options: &HostOptions, host: &Host) -> String {
    if let Some(name) = options.node_name.as_ref().filter(|name| !name.is_empty()) {
        return name.clone();
    }
    let of_host = match host_options.host_root == Path::new("/") {
        true => rustix::system::uname().nodename().to_string_lossy().into_owned(),
        false => host
            .read(Path::new("/etc/hostname"), 1024)
            .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
            .unwrap_or_default(),
    };
    of_host.trim().to_lowercase()
}

async fn api(options: &ApiOptions, node: &NodeFiles, node_name: &str) -> Api {
    let (reader, mut facts) = match connect(options).await {
        Ok(connected) => connected,
        Err(state) => return state,
    };
    (facts.node, facts.kubelet_gates) = reader.node(node_name).await;
    facts.classes = reader.classes().await;
    let mut slices = Vec::new();
    for driver in &node.drivers {
        match reader.slices(driver.name.as_str()).await {
            Answer::Got(found) => slices.extend(found),
            failed => facts.slices = failed,
        }
    }
    facts.slices = facts.slices.map(|_| slices);
    let records = node.drivers.iter().flat_map(|driver| &driver.files.claims);
    let claims = records.filter_map(|claim| claim.record.as_ref().ok()).map(|record| &record.claim);
    let keys: BTreeSet<(String, String)> =
        claims.map(|claim| (claim.namespace.to_string(), claim.name.to_string())).collect();
    for key in keys.into_iter().take(MAX_CLAIMS) {
        let answer = reader.claim(&key.0, &key.1).await;
        facts.claims.insert(key, answer);
    }
    Api::Up(Box::new(facts))
}

/// Connects to the API server, unless it is not to be asked.
pub(crate) async fn connect(options: &ApiOptions) -> Result<(ApiReader, api::ApiFacts), Api> {
    if options.no_api {
        return Err(Api::Off("--no-api".to_owned()));
    }
    ApiReader::connect(options.kubeconfig.as_deref()).await.map_err(|failure| match failure {
        // Unless one is named there need not be any, on a node for example.
        api::ApiFailure::Config(message) if options.kubeconfig.is_none() && !is_named() => Api::Off(message),
        failure => Api::Failed(failure),
    })
}

/// Whether the environment names a kubeconfig.
fn is_named() -> bool {
    std::env::var_os("KUBECONFIG").is_some_and(|path| !path.is_empty())
}
