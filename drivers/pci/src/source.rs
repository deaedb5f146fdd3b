//! Where devices come from: this host, or a simulated one.

use std::path::{Path, PathBuf};

use drakkar_sysfs::simulation::{Description, Simulation};
use drakkar_sysfs::{Roots, Sysfs, UeventError, UeventSocket};

use crate::events::Events;

/// Where devices come from.
#[derive(Debug, Clone)]
pub enum Source {
    /// A real kernel, with its file systems in these directories.
    Host(Roots),
    /// A simulated kernel.
    Simulated {
        /// A YAML file that describes its devices.
        file: PathBuf,
        /// The directory of its file systems. What an earlier process left there goes on.
        directory: PathBuf,
    },
    /// A simulated kernel of this process.
    Simulation(Simulation),
}

/// A source that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    /// The events of the kernel cannot be followed.
    #[error(transparent)]
    Events(#[from] UeventError),
    /// The description of a simulated host could not be read.
    #[error("read {}: {source}", .path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The error of the system call.
        source: std::io::Error,
    },
    /// The description of a simulated host is not valid.
    #[error("{}: {source}", .path.display())]
    Description {
        /// The file.
        path: PathBuf,
        /// The error.
        source: Box<serde_saphyr::Error>,
    },
    /// The simulated host could not be built.
    #[error("build the simulated host in {}: {source}", .path.display())]
    Build {
        /// The directory.
        path: PathBuf,
        /// The error of the system call.
        source: std::io::Error,
    },
}

impl Source {
    /// Opens the source: its devices, and the events about them from now on.
    pub fn open(self) -> Result<(Sysfs, Events), SourceError> {
        match self {
            Self::Host(roots) => Ok((Sysfs::at(roots), Events::Kernel(UeventSocket::open()?))),
            Self::Simulated { file, directory } => Self::Simulation(simulation(&file, &directory)?).open(),
            Self::Simulation(simulation) => {
                let events = Events::Simulated(simulation.uevents());
                Ok((simulation.sysfs(), events))
            }
        }
    }

    /// Opens the source for one look at its devices.
    pub fn sysfs(self) -> Result<Sysfs, SourceError> {
        match self {
            Self::Host(roots) => Ok(Sysfs::at(roots)),
            Self::Simulated { file, directory } => Ok(simulation(&file, &directory)?.sysfs()),
            Self::Simulation(simulation) => Ok(simulation.sysfs()),
        }
    }
}

/// Opens the simulated kernel that a file describes.
fn simulation(file: &Path, directory: &Path) -> Result<Simulation, SourceError> {
    let text = std::fs::read_to_string(file).map_err(|source| SourceError::Read { path: file.to_owned(), source })?;
    let description: Description = serde_saphyr::from_str(&text)
        .map_err(|source| SourceError::Description { path: file.to_owned(), source: Box::new(source) })?;
    Simulation::open(directory, &description)
        .map_err(|source| SourceError::Build { path: directory.to_owned(), source })
}
