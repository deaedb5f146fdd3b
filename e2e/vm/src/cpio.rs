//! The kernel's archive format (`newc`) for initial file systems. All files belong to root and have no time.

use std::fmt::Write;

/// An archive that is being written.
#[derive(Debug, Default)]
pub(crate) struct Archive {
    bytes: Vec<u8>,
    inode: u32,
}

impl Archive {
    /// Adds a directory. Its parents must have been added.
    pub(crate) fn directory(&mut self, path: &str) {
        self.entry(path, 0o040_755, &[]);
    }

    /// Adds a file.
    pub(crate) fn file(&mut self, path: &str, executable: bool, content: &[u8]) {
        self.entry(path, if executable { 0o100_755 } else { 0o100_644 }, content);
    }

    /// Adds a symbolic link.
    pub(crate) fn link(&mut self, path: &str, target: &str) {
        self.entry(path, 0o120_777, target.as_bytes());
    }

    /// The finished archive.
    pub(crate) fn finish(mut self) -> Vec<u8> {
        self.entry("TRAILER!!!", 0, &[]);
        self.bytes
    }

    fn entry(&mut self, path: &str, mode: u32, content: &[u8]) {
        self.inode += 1;
        let length = |bytes: usize| u32::try_from(bytes).unwrap_or(u32::MAX);
        let mut header = String::from("070701");
        // Inode, mode, owner, group, links, time, size, device (two), special device (two), length of the name, check sum.
        let links = 1;
        let fields = [self.inode, mode, 0, 0, links, 0, length(content.len()), 0, 0, 0, 0, length(path.len() + 1), 0];
        for field in fields {
            // Writing to a string cannot fail.
            let _ = write!(header, "{field:08x}");
        }
        self.bytes.extend(header.bytes());
        self.bytes.extend(path.bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend(content);
        self.pad();
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn busybox_unpacks_it() {
        let mut archive = Archive::default();
        archive.directory("a");
        archive.file("a/b", true, b"content");
        archive.link("c", "a/b");
        let directory = tempfile::tempdir().unwrap();
        let mut cpio = Command::new("busybox");
        let cpio = cpio.args(["cpio", "-i"]).current_dir(directory.path()).stdin(Stdio::piped()).stderr(Stdio::null());
        let Ok(mut cpio) = cpio.spawn() else {
            println!("cannot run: no busybox on this host");
            return;
        };
        cpio.stdin.take().unwrap().write_all(&archive.finish()).unwrap();
        assert!(cpio.wait().unwrap().success());
        assert_eq!(std::fs::read(directory.path().join("c")).unwrap(), b"content");
    }
}
