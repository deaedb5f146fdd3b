//! Following files that Kubernetes mounts, such as those of a secret or a `ConfigMap`.
//!
//! Kubernetes replaces such files by renaming a symbolic link beside them, so their directories are watched and not the
//! files. A directory that cannot be watched is looked at again every minute.

use std::collections::BTreeSet;
use std::io;
use std::mem::MaybeUninit;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustix::fd::OwnedFd;
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};
use rustix::io::Errno;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio_util::sync::CancellationToken;

/// How often the files are read again where they cannot be watched.
const UNWATCHED_INTERVAL: Duration = Duration::from_secs(60);

/// Calls `reread` once at the start, and after each change in the directories of some files, until the token is cancelled.
///
/// `reread` may block: it runs on a thread for such work. One call ends before the next begins, and a change during a
/// call leads to another one.
pub async fn follow_files(files: &[PathBuf], reread: impl Fn() + Send + Sync + 'static, stop: CancellationToken) {
    let reread: Reread = Arc::new(reread);
    let directories: BTreeSet<&Path> = files.iter().map(|file| directory(file)).collect();
    loop {
        let changed = async {
            match Watch::new(&directories) {
                Ok(watch) => {
                    // What was replaced before the watch existed.
                    call(&reread).await;
                    watch.until_broken(&reread).await
                }
                Err(error) => error,
            }
        };
        let broken = tokio::select! {
            () = stop.cancelled() => return,
            broken = changed => broken,
        };
        let seconds = UNWATCHED_INTERVAL.as_secs();
        tracing::warn!(error = %broken, "directory cannot be watched, reading its files again in {seconds} s");
        let later = async {
            tokio::time::sleep(UNWATCHED_INTERVAL).await;
            call(&reread).await;
        };
        tokio::select! {
            () = stop.cancelled() => return,
            () = later => {}
        }
    }
}

type Reread = Arc<dyn Fn() + Send + Sync>;

fn directory(file: &Path) -> &Path {
    match file.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    }
}

async fn call(reread: &Reread) {
    let reread = reread.clone();
    if let Err(error) = tokio::task::spawn_blocking(move || reread()).await {
        tracing::error!(%error, "reading files again failed");
    }
}

struct Watch(AsyncFd<OwnedFd>);

impl Watch {
    fn new(directories: &BTreeSet<&Path>) -> io::Result<Self> {
        let inotify = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC)?;
        let changes = WatchFlags::CLOSE_WRITE
            | WatchFlags::MOVED_TO
            | WatchFlags::CREATE
            | WatchFlags::DELETE_SELF
            | WatchFlags::MOVE_SELF
            | WatchFlags::ONLYDIR;
        for directory in directories {
            inotify::add_watch(&inotify, *directory, changes)
                .map_err(|errno| io::Error::other(format!("watch {}: {errno}", directory.display())))?;
        }
        Ok(Self(register(inotify)?))
    }

    /// Calls after each change, until the watch is no longer of use.
    async fn until_broken(self, reread: &Reread) -> io::Error {
        loop {
            let mut ready = match self.0.readable().await {
                Ok(ready) => ready,
                Err(error) => return error,
            };
            let drained = drain(self.0.get_ref());
            ready.clear_ready();
            drop(ready);
            call(reread).await;
            if let Err(error) = drained {
                return error;
            }
        }
    }
}

/// Registers a descriptor with the runtime. Its owner must not replace or close it, which an [`OwnedFd`] does not.
#[expect(deprecated, reason = "the successor is unsafe, which this crate forbids")]
fn register(owner: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    AsyncFd::with_interest(owner, Interest::READABLE)
}

/// Takes all events from the queue. An error tells that a directory is gone.
fn drain(inotify: &OwnedFd) -> io::Result<()> {
    let mut buffer = [MaybeUninit::uninit(); 4096];
    let mut reader = Reader::new(inotify, &mut buffer);
    let mut gone = Ok(());
    loop {
        match reader.next() {
            Ok(event) if event.events().intersects(ReadFlags::IGNORED | ReadFlags::MOVE_SELF) => {
                gone = Err(io::Error::new(io::ErrorKind::NotFound, "the directory was removed or renamed"));
            }
            Ok(_) | Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => return gone,
            Err(errno) => return Err(errno.into()),
        }
    }
}
