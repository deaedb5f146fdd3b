//! Following a configuration file.
//!
//! The directory of the file is watched with inotify, not the file: an editor replaces the file by renaming, and the kubelet
//! replaces a config map by renaming the link `..data` beside it. A file is complete when it is renamed into place or closed after
//! writing, and only then is it read; there is no delay. Events that come together are one reading, and a file whose content has
//! not changed is no change.

use std::ffi::{CStr, OsString};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::inotify::{self, CreateFlags, Reader, WatchFlags};
use rustix::io::Errno;
use serde::de::DeserializeOwned;
use tokio::io::unix::AsyncFd;
use tokio::task::{JoinHandle, spawn_blocking};

use super::{ConfigError, parse, read};
use crate::readable::register_readable;

/// A configuration file that is followed.
#[derive(Debug)]
pub struct ConfigFile<C> {
    path: PathBuf,
    text: Option<String>,
    /// A reading that is under way. It outlives a wait that is given up, so that there is never a second one beside it.
    reading: Option<JoinHandle<Reading<C>>>,
    watch: AsyncFd<OwnedFd>,
}

/// A change of the file: the new configuration, or why it cannot be used.
pub type ConfigChange<C> = Result<Arc<C>, ConfigError>;

/// What a reading has found: the same text as before, or another one and whether it is valid.
type Reading<C> = Result<Option<(String, ConfigChange<C>)>, ConfigError>;

impl<C: DeserializeOwned + Send + Sync + 'static> ConfigFile<C> {
    /// Reads a file and starts to follow it. Nothing that happens after the reading is missed.
    pub fn open(path: &Path) -> Result<(Self, Arc<C>), ConfigError> {
        let failed = |source| ConfigError::Read { path: path.to_owned(), source };
        let watch = watch(path).map_err(failed)?;
        let text = read(path)?;
        let config = Arc::new(parse(&text)?);
        Ok((Self { path: path.to_owned(), text: Some(text), reading: None, watch }, config))
    }

    /// Waits for the next change. An error is a file that is invalid, or one that cannot be read: whoever asks keeps what it has.
    /// The wait can be given up at any time, and nothing is missed.
    pub async fn changed(&mut self) -> ConfigChange<C> {
        loop {
            if self.reading.is_none() {
                let waited = self.events().await;
                waited.map_err(|source| ConfigError::Read { path: self.path.clone(), source })?;
            }
            // Nothing is awaited between the events and the start of the reading: a wait that is given up here loses neither.
            let path = self.path.clone();
            let known = self.text.clone();
            let reading =
                self.reading.get_or_insert_with(|| spawn_blocking(move || read_change(&path, known.as_deref())));
            let outcome = reading.await;
            self.reading = None;
            match outcome {
                Ok(Ok(None)) => {}
                Ok(Ok(Some((text, change)))) => {
                    self.text = Some(text);
                    return change;
                }
                // The link is being replaced, or the file is gone. A file that comes back is read again.
                Ok(Err(error)) => {
                    if self.text.take().is_some() {
                        return Err(error);
                    }
                }
                Err(source) => return Err(ConfigError::Task { path: self.path.clone(), source }),
            }
        }
    }

    /// Waits until something has happened to the file or to the link that leads to it, and takes all events that are there.
    async fn events(&self) -> io::Result<()> {
        let file = self.path.file_name().map(OsString::from).unwrap_or_default();
        loop {
            let mut ready = self.watch.readable().await?;
            let mut buffer = [MaybeUninit::uninit(); 4096];
            let mut events = Reader::new(ready.get_inner(), &mut buffer);
            let mut is_ours = false;
            let outcome = loop {
                match events.next() {
                    Ok(event) => {
                        let name = event.file_name().map(CStr::to_bytes);
                        // Without a name it is about the directory itself, or events were lost.
                        is_ours |= name.is_none_or(|name| name == file.as_encoded_bytes() || name.starts_with(b".."));
                    }
                    Err(Errno::AGAIN) => break Ok(()),
                    Err(Errno::INTR) => {}
                    Err(errno) => break Err(errno),
                }
            };
            outcome?;
            ready.clear_ready();
            if is_ours {
                return Ok(());
            }
        }
    }
}

/// Reads the file, and parses it if its text is not the known one. Both take their time, and a parser can panic: neither belongs
/// on a thread of the runtime.
fn read_change<C: DeserializeOwned>(path: &Path, known: Option<&str>) -> Reading<C> {
    let text = read(path)?;
    if known == Some(text.as_str()) {
        return Ok(None);
    }
    let change = parse(&text).map(Arc::new);
    Ok(Some((text, change)))
}

fn watch(path: &Path) -> io::Result<AsyncFd<OwnedFd>> {
    let directory = match path.parent() {
        Some(directory) if directory != Path::new("") => directory,
        _ => Path::new("."),
    };
    let file = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC)?;
    let flags = WatchFlags::CLOSE_WRITE | WatchFlags::MOVED_TO | WatchFlags::CREATE | WatchFlags::DELETE;
    inotify::add_watch(&file, directory, flags | WatchFlags::MOVED_FROM | WatchFlags::ONLYDIR)?;
    register_readable(file)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::time::Duration;

    use super::*;

    const LIMIT: Duration = Duration::from_secs(60);

    #[derive(Debug, serde::Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Config {
        name: String,
    }

    fn yaml(name: &str) -> String {
        format!("name: {name}\n")
    }

    fn name(config: &Config) -> &str {
        &config.name
    }

    fn open(path: &Path) -> (ConfigFile<Config>, Arc<Config>) {
        ConfigFile::open(path).unwrap()
    }

    async fn changed(file: &mut ConfigFile<Config>) -> ConfigChange<Config> {
        tokio::time::timeout(LIMIT, file.changed()).await.expect("a change")
    }

    #[tokio::test]
    async fn a_config_map_is_replaced_by_a_link() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("config.yaml");
        let version = |name: &str| {
            let version = directory.path().join(format!("..{name}"));
            fs::create_dir(&version).unwrap();
            fs::write(version.join("config.yaml"), yaml(name)).unwrap();
            symlink(format!("..{name}"), directory.path().join("..data_tmp")).unwrap();
            fs::rename(directory.path().join("..data_tmp"), directory.path().join("..data")).unwrap();
        };
        version("one");
        symlink("..data/config.yaml", &path).unwrap();
        let (mut file, config) = open(&path);
        assert_eq!(name(&config), "one");
        version("two");
        assert_eq!(name(&changed(&mut file).await.unwrap()), "two");
    }

    #[tokio::test]
    async fn a_wait_that_is_given_up_misses_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("config.yaml");
        fs::write(&path, yaml("one")).unwrap();
        let (mut file, _) = open(&path);
        fs::write(&path, yaml("two")).unwrap();
        // Given up at the first await that is not ready, again and again, as in a loop with other work.
        let deadline = std::time::Instant::now() + LIMIT;
        let config = loop {
            let given_up = std::pin::pin!(file.changed());
            match futures_poll_once(given_up).await {
                Some(config) => break config.unwrap(),
                None => assert!(std::time::Instant::now() < deadline, "the change was lost"),
            }
            tokio::task::yield_now().await;
        };
        assert_eq!(name(&config), "two");
    }

    /// Polls a future for a short time and returns its output if it has one then.
    async fn futures_poll_once<T>(future: std::pin::Pin<&mut impl Future<Output = T>>) -> Option<T> {
        tokio::select! {
            biased;
            output = future => Some(output),
            () = tokio::task::yield_now() => None,
        }
    }

    #[tokio::test]
    async fn waits_that_are_given_up_share_one_reading() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("config.yaml");
        fs::write(&path, yaml("one")).unwrap();
        let (mut file, _) = open(&path);
        let (sender, receiver) = std::sync::mpsc::channel();
        // A reading that hangs until it is released.
        file.reading = Some(spawn_blocking(move || receiver.recv().unwrap()));
        let id = file.reading.as_ref().unwrap().id();
        for _ in 0..10 {
            assert!(futures_poll_once(std::pin::pin!(file.changed())).await.is_none());
            assert_eq!(file.reading.as_ref().unwrap().id(), id);
        }
        sender.send(read_change(&path, None)).unwrap();
        assert_eq!(name(&changed(&mut file).await.unwrap()), "one");
    }

    #[tokio::test]
    async fn a_parser_that_panics_is_an_error_and_the_next_valid_file_a_change() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("config.yaml");
        fs::write(&path, yaml("one")).unwrap();
        let (mut file, _) = open(&path);
        file.reading = Some(spawn_blocking(|| panic!("a defect of the parser")));
        let error = changed(&mut file).await.unwrap_err();
        assert!(error.to_string().contains("a defect of the parser"), "{error}");
        fs::write(&path, yaml("two")).unwrap();
        assert_eq!(name(&changed(&mut file).await.unwrap()), "two");
    }

    #[tokio::test]
    async fn a_file_that_becomes_a_pipe_is_an_error_and_the_next_valid_file_a_change() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("config.yaml");
        fs::write(&path, yaml("one")).unwrap();
        let (mut file, _) = open(&path);
        let pipe = directory.path().join("pipe");
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
        fs::rename(&pipe, &path).unwrap();
        let error = changed(&mut file).await.unwrap_err();
        assert!(error.to_string().contains("not a regular file"), "{error}");
        let new = directory.path().join("new");
        fs::write(&new, yaml("two")).unwrap();
        fs::rename(new, &path).unwrap();
        assert_eq!(name(&changed(&mut file).await.unwrap()), "two");
    }

    #[tokio::test]
    async fn an_invalid_file_is_an_error_and_the_next_valid_one_a_change() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("config.yaml");
        fs::write(&path, yaml("one")).unwrap();
        let (mut file, _) = open(&path);
        let replace = |text: String| {
            let new = directory.path().join("new");
            fs::write(&new, text).unwrap();
            fs::rename(new, &path).unwrap();
        };
        replace("kind: Nothing".to_owned());
        let error = changed(&mut file).await.unwrap_err();
        assert!(error.to_string().contains("unknown field `kind`"), "{error}");
        replace(yaml("two"));
        assert_eq!(name(&changed(&mut file).await.unwrap()), "two");
        fs::remove_file(&path).unwrap();
        assert!(matches!(changed(&mut file).await, Err(ConfigError::Read { .. })));
        replace(yaml("three"));
        assert_eq!(name(&changed(&mut file).await.unwrap()), "three");
    }
}
