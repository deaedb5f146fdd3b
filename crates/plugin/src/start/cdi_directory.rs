//! The check of the directory of CDI specs at the start.
//!
//! A spec that the container runtime does not read shows much later, when a pod's container cannot be created. So a start makes
//! sure that specs can be written, says when it had to make the directory, and looks whether the runtime watches it. The last is
//! seen in `/proc` of the runtime's process, which a driver in a pod without `hostPID` does not have: then nothing is said.

use std::io;
use std::path::Path;

use rustix::fs::{Access, access};

use super::StartError;
use crate::store::{DIRECTORY_MODE, make_directories};

/// The directories that container runtimes read unless they are configured otherwise.
const USUAL: [&str; 4] = ["/var/run/cdi", "/run/cdi", "/etc/cdi", crate::DEFAULT_CDI_DIRECTORY];
/// The names of the processes of container runtimes.
const RUNTIMES: [&str; 3] = ["containerd", "crio", "dockerd"];

/// What is done about a directory that is missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum IfMissing {
    /// It is made, since the framework writes specs to it.
    Make,
    /// A warning: the driver may write specs of its own to it.
    Warn,
}

/// Checks the directory, and makes it if it is missing and needed.
pub(super) fn check(path: &Path, if_missing: IfMissing) -> Result<(), StartError> {
    let unusable = |source| StartError::Directory {
        what: "the directory of CDI specs",
        path: path.to_owned(),
        source,
        remedy: "set --cdi-dir to the directory from which the container runtime reads CDI specs, and mount it, writable, \
                 into the driver's container",
    };
    let is_new = match std::fs::metadata(path) {
        Ok(found) if found.is_dir() => false,
        Ok(_) => return Err(unusable(io::ErrorKind::NotADirectory.into())),
        Err(error) if error.kind() == io::ErrorKind::NotFound && if_missing == IfMissing::Warn => {
            tracing::warn!(directory = %path.display(), "directory of CDI specs does not exist");
            return Ok(());
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            make_directories(path, DIRECTORY_MODE).map_err(unusable)?;
            true
        }
        Err(error) => return Err(unusable(error)),
    };
    access(path, Access::WRITE_OK | Access::EXEC_OK).map_err(|errno| unusable(errno.into()))?;
    let directory = path.display();
    if !is_new {
        if let Some(runtime) = unwatched_by(path, Path::new("/proc")) {
            tracing::warn!(
                %directory,
                runtime,
                "container runtime does not watch the directory of CDI specs, pods with claims may fail; set --cdi-dir, or \
                 the runtime's CDI directories"
            );
        }
    } else if USUAL.iter().any(|usual| path == Path::new(usual)) {
        tracing::info!(%directory, "directory of CDI specs made");
    } else {
        tracing::warn!(
            %directory,
            "directory of CDI specs did not exist and was made; pods with claims fail unless the container runtime reads it"
        );
    }
    Ok(())
}

/// Returns the name of a container runtime that does not watch a directory. `None` if one does, and if that cannot be seen.
fn unwatched_by(directory: &Path, proc: &Path) -> Option<String> {
    let stat = rustix::fs::stat(directory).ok()?;
    // As the kernel prints them: the device in its own encoding.
    let device = (u64::from(rustix::fs::major(stat.st_dev)) << 20) | u64::from(rustix::fs::minor(stat.st_dev));
    let watch = format!("ino:{:x} sdev:{device:x} ", stat.st_ino);
    let mut runtimes = Vec::new();
    for process in std::fs::read_dir(proc).ok()?.flatten() {
        let Ok(name) = std::fs::read_to_string(process.path().join("comm")) else { continue };
        if !RUNTIMES.contains(&name.trim()) {
            continue;
        }
        let mut descriptors = std::fs::read_dir(process.path().join("fdinfo")).ok()?.flatten();
        if descriptors.any(|info| std::fs::read_to_string(info.path()).is_ok_and(|info| info.contains(&watch))) {
            return None;
        }
        runtimes.push(name.trim().to_owned());
    }
    runtimes.pop()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use rustix::fs::inotify;

    use super::*;

    /// Makes a process with this name and the file descriptors of this one.
    fn process(proc: &Path, name: &str) {
        let process = proc.join("4711");
        std::fs::create_dir_all(process.join("fdinfo")).unwrap();
        std::fs::write(process.join("comm"), format!("{name}\n")).unwrap();
        for info in std::fs::read_dir("/proc/self/fdinfo").unwrap().flatten() {
            // That of the listing itself is gone.
            if let Ok(text) = std::fs::read(info.path()) {
                std::fs::write(process.join("fdinfo").join(info.file_name()), text).unwrap();
            }
        }
    }

    /// The kernel's own words are copied from a real watch of this process.
    #[test]
    fn a_runtime_that_does_not_watch_the_directory_is_named() {
        let root = tempfile::tempdir().unwrap();
        let cdi = root.path().join("cdi");
        let proc = root.path().join("proc");
        std::fs::create_dir(&cdi).unwrap();
        std::fs::create_dir(&proc).unwrap();
        assert_eq!(unwatched_by(&cdi, &proc), None, "no runtime is seen");
        process(&proc, "containerd");
        assert_eq!(unwatched_by(&cdi, &proc).as_deref(), Some("containerd"));
        process(&proc, "bash");
        assert_eq!(unwatched_by(&cdi, &proc), None, "other processes need not watch it");

        let watcher = inotify::init(inotify::CreateFlags::CLOEXEC).unwrap();
        inotify::add_watch(&watcher, &cdi, inotify::WatchFlags::CREATE).unwrap();
        process(&proc, "containerd");
        assert_eq!(unwatched_by(&cdi, &proc), None, "it is watched");
        assert_eq!(unwatched_by(root.path(), &proc).as_deref(), Some("containerd"), "another directory is not");
    }

    #[test]
    fn a_directory_that_cannot_be_used_is_an_error_with_the_remedy() {
        let root = tempfile::tempdir().unwrap();
        let file = root.path().join("file");
        std::fs::write(&file, "").unwrap();
        for path in [&file, &file.join("below")] {
            let error = check(path, IfMissing::Make).unwrap_err().to_string();
            let expected = format!("the directory of CDI specs {}: not a directory", path.display());
            assert!(error.to_lowercase().starts_with(&expected.to_lowercase()), "{error}");
            assert!(error.contains("; set --cdi-dir to the directory from which"), "{error}");
        }
        // Not even root writes to procfs or makes directories there.
        let error = check(Path::new("/proc/drakkar-cdi"), IfMissing::Make).unwrap_err().to_string();
        assert!(error.starts_with("the directory of CDI specs /proc/drakkar-cdi: "), "{error}");

        let missing = root.path().join("a/b");
        check(&missing, IfMissing::Warn).unwrap();
        assert!(!missing.exists(), "nobody needs it");
        check(&missing, IfMissing::Make).unwrap();
        assert_eq!(std::fs::metadata(&missing).unwrap().permissions().mode() & 0o777, 0o755);
        check(&missing, IfMissing::Warn).unwrap();
    }
}
