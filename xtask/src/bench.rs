//! `cargo xtask bench`: builds the drivers and runs the comparison with Kubernetes' Go framework.
//!
//! Rows "on the disk" are measured on an ext4 with a journal, as nodes have it, in a file that is mounted for the run. That needs
//! root; without it, or with `--disk`, they are measured wherever the directory for temporary files or the named one is.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::e2e::cargo_command;

/// The path of the plot, relative to the top of the repository.
const PLOT: &str = "docs/performance.svg";
/// The size of the file system, of which little is used.
const DISK_SIZE: u64 = 1 << 30;

/// Builds both drivers and measures them. The arguments are passed to `drakkar-bench`.
pub(crate) fn run(arguments: &[&str]) -> Result<()> {
    let top = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    // All binaries, in release mode: `cargo run` below builds only `drakkar-bench`.
    run_in(&top, &mut cargo_command(&["build", "--release", "-p", "drakkar-bench", "--bins"]))?;
    let disk = if arguments.contains(&"--disk") { None } else { JournaledDisk::mount() };
    let measure = ["run", "--release", "-p", "drakkar-bench", "--bin", "drakkar-bench", "--", "--plot", PLOT];
    let mut command = cargo_command(&measure);
    if let Some(disk) = &disk {
        command.arg("--disk").arg(disk.mount_point());
    }
    run_in(&top, command.args(arguments))
}

/// An ext4 with a journal in a file, unmounted when it is dropped.
struct JournaledDisk(tempfile::TempDir);

impl JournaledDisk {
    /// Makes and mounts the file system. Says why if that is not possible.
    fn mount() -> Option<Self> {
        match Self::try_mount() {
            Ok(disk) => Some(disk),
            Err(error) => {
                eprintln!("rows \"on the disk\" are measured in the directory for temporary files: {error:#}");
                None
            }
        }
    }

    fn try_mount() -> Result<Self> {
        let directory = tempfile::tempdir().context("make a directory")?;
        let image = directory.path().join("image");
        std::fs::File::create(&image).and_then(|file| file.set_len(DISK_SIZE)).context("make a file")?;
        let disk = Self(directory);
        std::fs::create_dir(disk.mount_point()).context("make a directory")?;
        let quiet = ["-q", "-F", "-O", "has_journal"];
        run_in(disk.0.path(), Command::new("mkfs.ext4").args(quiet).arg(&image))?;
        run_in(disk.0.path(), Command::new("mount").args(["-o", "loop"]).arg(&image).arg(disk.mount_point()))?;
        Ok(disk)
    }

    fn mount_point(&self) -> PathBuf {
        self.0.path().join("mounted")
    }
}

impl Drop for JournaledDisk {
    fn drop(&mut self) {
        // Also if it was never mounted, which is then the error.
        if let Ok(output) = Command::new("umount").arg(self.mount_point()).output()
            && !output.status.success()
        {
            eprintln!("{}", String::from_utf8_lossy(&output.stderr).trim());
        }
    }
}

fn run_in(directory: &Path, command: &mut Command) -> Result<()> {
    let shown = format!("{command:?}");
    let status = command.current_dir(directory).status().with_context(|| format!("start {shown}"))?;
    ensure!(status.success(), "{shown}: {status}");
    Ok(())
}
