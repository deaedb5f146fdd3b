//! Reading of log files, which containers may still write to.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;

use drakkar_apiserver::{LogOptions, LogStream};
use futures::StreamExt as _;
use futures::stream;
use rustix::fs::inotify::WatchFlags;
use tokio::sync::watch;
use tokio::task::spawn_blocking;

use crate::inotify::{self, Subscription};
use crate::kubelet::containers::{Containers, is_running};
use crate::runner::ContainerInfo;

/// The most that is read at once.
const PIECE: usize = 64 << 10;

/// A log that is read.
struct Log {
    file: Arc<File>,
    offset: u64,
    /// The bytes that the reader still wants.
    left: u64,
    follow: Option<Follow>,
}

/// What is needed to go on until the container has exited.
struct Follow {
    containers: Arc<dyn Containers>,
    run: ContainerInfo,
    written: Subscription,
    changes: watch::Receiver<u64>,
}

/// Reads the log of a run of a container.
pub(super) async fn read(
    containers: Arc<dyn Containers>,
    run: &ContainerInfo,
    options: &LogOptions,
) -> io::Result<LogStream> {
    let path = containers.log_file(&run.id)?;
    let follow = match path.parent().filter(|_| options.follow) {
        // Before the first read, so that nothing that is written later is missed.
        Some(directory) => {
            let written = inotify::subscribe()?;
            written.watch(directory, WatchFlags::MODIFY)?;
            let changes = containers.subscribe();
            Some(Follow { containers, run: run.clone(), written, changes })
        }
        None => None,
    };
    let tail = options.tail_lines;
    let (file, offset) = blocking(move || {
        let file = File::open(path)?;
        let offset = tail.map_or(Ok(0), |lines| tail_offset(&file, lines))?;
        Ok((Arc::new(file), offset))
    })
    .await?;
    let log = Log { file, offset, left: options.limit_bytes.unwrap_or(u64::MAX), follow };
    let pieces = stream::unfold(Some(log), |log| async {
        let mut log = log?;
        match log.next().await {
            Ok(Some(piece)) => Some((Ok(piece.into()), Some(log))),
            Ok(None) => None,
            Err(error) => Some((Err(error), None)),
        }
    });
    Ok(pieces.boxed())
}

impl Log {
    /// Returns what follows; `None` at the end.
    async fn next(&mut self) -> io::Result<Option<Vec<u8>>> {
        loop {
            let wanted = usize::try_from(self.left).unwrap_or(PIECE).min(PIECE);
            if wanted == 0 {
                return Ok(None);
            }
            // Asked before the read: what a container writes before it exits is read.
            let goes_on = self.follow.as_mut().is_some_and(Follow::goes_on);
            let (file, offset) = (Arc::clone(&self.file), self.offset);
            let piece = blocking(move || read_at(&file, offset, wanted)).await?;
            if !piece.is_empty() {
                self.offset += piece.len() as u64;
                self.left -= piece.len() as u64;
                return Ok(Some(piece));
            }
            match &mut self.follow {
                Some(follow) if goes_on => follow.wait().await?,
                _ => return Ok(None),
            }
        }
    }
}

impl Follow {
    fn goes_on(&mut self) -> bool {
        self.changes.borrow_and_update();
        self.containers.list(&self.run.pod_uid).iter().any(|info| info.id == self.run.id && is_running(info))
    }

    /// Waits until something was written, or a container has changed.
    async fn wait(&mut self) -> io::Result<()> {
        tokio::select! {
            events = self.written.next() => events.map(drop),
            changed = self.changes.changed() => changed.map_err(io::Error::other),
        }
    }
}

fn read_at(file: &File, offset: u64, length: usize) -> io::Result<Vec<u8>> {
    let mut piece = vec![0; length];
    let length = file.read_at(&mut piece, offset)?;
    piece.truncate(length);
    Ok(piece)
}

/// Returns where the last lines of a file begin.
fn tail_offset(file: &File, lines: u64) -> io::Result<u64> {
    let end = file.metadata()?.len();
    if lines == 0 {
        return Ok(end);
    }
    let mut found = 0;
    let mut start = end;
    while start > 0 {
        let length = start.min(PIECE as u64);
        start -= length;
        let piece = read_at(file, start, usize::try_from(length).unwrap_or(PIECE))?;
        for (index, _) in piece.iter().enumerate().rev().filter(|(_, byte)| **byte == b'\n') {
            let line = start + index as u64 + 1;
            // The end of the last line begins no other.
            if line == end {
                continue;
            }
            found += 1;
            if found == lines {
                return Ok(line);
            }
        }
    }
    Ok(0)
}

async fn blocking<T: Send + 'static>(read: impl FnOnce() -> io::Result<T> + Send + 'static) -> io::Result<T> {
    spawn_blocking(read).await.map_err(io::Error::other)?
}
