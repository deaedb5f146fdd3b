//! The files of procfs as text.

use std::io::{self, Read};
use std::path::Path;

/// The limit for a file: a node with thousands of pods has as many mounts, and a router as many routes.
const MAX_FILE: u64 = 32 * 1024 * 1024;

/// Reads a file. `None` if it does not exist, as that of a feature that the kernel does not have.
pub(super) fn read(path: &Path) -> io::Result<Option<String>> {
    let file = match std::fs::File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let mut bytes = Vec::new();
    file.take(MAX_FILE + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MAX_FILE {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, format!("has more than {MAX_FILE} bytes")));
    }
    Ok(Some(String::from_utf8_lossy(&bytes).into_owned()))
}

/// Undoes the kernel's escapes of spaces and the like: `\040` is a space.
pub(super) fn unescape(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let digits = after.get(..3).filter(|digits| digits.iter().all(|digit| (b'0'..=b'7').contains(digit)));
        match digits.filter(|_| *first == b'\\') {
            Some(digits) => {
                let value = digits.iter().fold(0u16, |value, digit| value * 8 + u16::from(digit - b'0'));
                bytes.push(value.to_le_bytes()[0]);
                rest = &after[3..];
            }
            None => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}
