//! A cargo project of a user, built offline with the versions of this repository's lock file.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Returns the root of the repository.
pub(crate) fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap().to_owned()
}

/// The directory of a project.
pub(crate) struct Project(PathBuf);

impl Project {
    /// Uses a project that exists. All projects of tests share one target directory, so that only the first takes long.
    pub(crate) fn at(path: PathBuf) -> Self {
        // target/PROFILE/deps/it-HASH
        let target = std::env::current_exe().unwrap().ancestors().nth(3).unwrap().join("projects");
        fs::create_dir_all(&target).unwrap();
        std::os::unix::fs::symlink(target, path.join("target")).unwrap();
        // The versions that are certainly on this machine.
        fs::copy(repository().join("Cargo.lock"), path.join("Cargo.lock")).unwrap();
        Self(path)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    /// Runs a command line in the project, with this `drakkar`; returns its output, or fails the test.
    pub(crate) fn run(&self, command: &str) -> String {
        let mut path = OsString::from(snapbox::cmd::cargo_bin!("drakkar").parent().unwrap());
        path.push(":");
        path.push(std::env::var_os("PATH").unwrap_or_default());
        let mut shell = Command::new("sh");
        shell.args(["-c", command]).current_dir(&self.0).env("PATH", path);
        shell.env("CARGO_NET_OFFLINE", "true").env("CARGO_TERM_COLOR", "never").env("NO_COLOR", "1");
        // As in this repository: less to write and to link, and the same for all projects.
        shell.env("CARGO_PROFILE_DEV_DEBUG", "line-tables-only");
        shell.env_remove("CARGO_TARGET_DIR").env_remove("RUSTFLAGS").env("COLUMNS", "80");
        let output = shell.output().unwrap();
        let text = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
        assert!(output.status.success(), "{command}: {}\n{text}", output.status);
        text
    }
}
