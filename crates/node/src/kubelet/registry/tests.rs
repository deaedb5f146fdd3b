//! Tests of the registry watch.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::fs;
use std::os::unix::net::UnixListener;

use tempfile::TempDir;
use tokio_util::task::AbortOnDropHandle;

use super::*;
use crate::kubelet::testing::eventually;

struct Watched {
    directory: TempDir,
    sockets: Sockets,
    _task: AbortOnDropHandle<io::Result<()>>,
}

fn watch(prepare: impl FnOnce(&Path)) -> Watched {
    let directory = tempfile::tempdir().unwrap();
    let registry = directory.path().join("plugins_registry");
    prepare(&registry);
    let watcher = Watcher::new(&registry).unwrap();
    let sockets = watcher.sockets();
    Watched { directory, sockets, _task: AbortOnDropHandle::new(tokio::spawn(watcher.run())) }
}

impl Watched {
    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join("plugins_registry").join(name)
    }

    /// Leaves a socket that no server listens on.
    fn socket(&self, name: &str) {
        drop(UnixListener::bind(self.path(name)).unwrap());
    }

    fn names(&self) -> Vec<String> {
        let registry = self.path("");
        let relative = |path: &PathBuf| path.strip_prefix(&registry).unwrap().to_str().unwrap().to_owned();
        let mut names: Vec<String> = self.sockets.snapshot().keys().map(relative).collect();
        names.sort();
        names
    }

    async fn wait_for(&self, names: &[&str]) {
        eventually(&format!("sockets {names:?}"), || (self.names() == names).then_some(())).await;
    }

    /// Waits until all earlier events have been handled.
    async fn sync(&self) {
        self.socket("zz-sync.sock");
        eventually("the last event", || self.names().contains(&"zz-sync.sock".to_owned()).then_some(())).await;
        fs::remove_file(self.path("zz-sync.sock")).unwrap();
        eventually("its removal", || (!self.names().contains(&"zz-sync.sock".to_owned())).then_some(())).await;
    }
}

#[tokio::test]
async fn the_registry_is_created_readable_for_all_and_existing_sockets_are_found() {
    use std::os::unix::fs::PermissionsExt as _;
    let watched = watch(|_| {});
    assert_eq!(fs::metadata(watched.path("")).unwrap().permissions().mode() & 0o777, 0o755);
    let watched = watch(|registry| {
        fs::create_dir_all(registry.join("deep/er")).unwrap();
        for name in ["a.sock", "deep/er/b.sock", ".hidden.sock"] {
            drop(UnixListener::bind(registry.join(name)).unwrap());
        }
        fs::write(registry.join("file"), "").unwrap();
    });
    watched.wait_for(&["a.sock", "deep/er/b.sock"]).await;
}

#[tokio::test]
async fn sockets_come_and_go_and_other_files_and_dot_names_are_ignored() {
    let watched = watch(|_| {});
    fs::write(watched.path("file.sock"), "").unwrap();
    watched.socket(".staged");
    watched.socket("a.sock");
    watched.wait_for(&["a.sock"]).await;
    fs::remove_file(watched.path("a.sock")).unwrap();
    watched.wait_for(&[]).await;
}

#[tokio::test]
async fn a_rename_into_the_registry_is_a_new_socket_and_a_rename_out_of_it_is_ignored() {
    let watched = watch(|_| {});
    watched.socket(".staged");
    fs::rename(watched.path(".staged"), watched.path("a.sock")).unwrap();
    watched.wait_for(&["a.sock"]).await;
    fs::rename(watched.path("a.sock"), watched.directory.path().join("elsewhere.sock")).unwrap();
    watched.sync().await;
    assert_eq!(watched.names(), ["a.sock"]);
}

#[tokio::test]
async fn a_socket_that_is_created_again_has_another_version() {
    let watched = watch(|_| {});
    watched.socket("a.sock");
    watched.wait_for(&["a.sock"]).await;
    let version = || watched.sockets.snapshot().get(&watched.path("a.sock")).copied();
    let first = version().unwrap();
    // Once removed and created, once replaced by a rename.
    fs::remove_file(watched.path("a.sock")).unwrap();
    watched.socket("a.sock");
    let second = eventually("a new version", || version().filter(|version| *version != first)).await;
    watched.socket(".staged");
    fs::rename(watched.path(".staged"), watched.path("a.sock")).unwrap();
    eventually("a newer version", || version().filter(|version| *version > second)).await;
}

#[tokio::test]
async fn new_directories_are_watched_unless_their_name_starts_with_a_dot() {
    let watched = watch(|_| {});
    fs::create_dir(watched.path(".hidden")).unwrap();
    fs::create_dir(watched.path("deep")).unwrap();
    watched.sync().await;
    watched.socket(".hidden/a.sock");
    watched.socket("deep/b.sock");
    watched.wait_for(&["deep/b.sock"]).await;
    fs::remove_file(watched.path("deep/b.sock")).unwrap();
    watched.wait_for(&[]).await;
}
