//! The libraries that a program needs in an image, from its ELF header and, if it is dynamically linked, from `ldd`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::error::{Error, IoContext, Result};
use crate::run::run;

/// A program for an image, with its dependencies.
#[derive(Debug)]
pub(crate) struct Program {
    pub(crate) content: Vec<u8>,
    /// The architecture's OCI name.
    pub(crate) architecture: &'static str,
    /// The loader and the libraries, at the paths at which the program expects them.
    pub(crate) libraries: Vec<PathBuf>,
}

impl Program {
    pub(crate) fn read(path: &Path) -> Result<Self> {
        let content = fs::read(path).with_context(|| format!("read {}", path.display()))?;
        let rejected = |reason: &str| Error::Program { path: path.to_path_buf(), reason: reason.to_owned() };
        let header = Header::parse(&content).map_err(rejected)?;
        let libraries = if header.is_dynamic { libraries(path)? } else { Vec::new() };
        Ok(Self { content, architecture: header.architecture, libraries })
    }
}

/// Returns the libraries that the loader would load. `ldd` executes the loader, so it is only for trusted programs.
fn libraries(path: &Path) -> Result<Vec<PathBuf>> {
    let printed = run(Command::new("ldd").arg(path))?;
    parse_ldd(&printed).map_err(|reason| Error::Program { path: path.to_path_buf(), reason })
}

/// Parses the output of `ldd`: lines are `NAME => PATH (ADDRESS)`, `PATH (ADDRESS)` for the loader, and `NAME (ADDRESS)`
/// for the vDSO.
fn parse_ldd(printed: &str) -> Result<Vec<PathBuf>, String> {
    let mut paths = Vec::new();
    for line in printed.lines().map(str::trim).filter(|line| !line.is_empty()) {
        if line.ends_with("not found") {
            return Err(format!("a library is missing: {line}"));
        }
        let found = line.split_once("=> ").map_or(line, |(_, found)| found);
        let found = found.split(" (").next().unwrap_or_default();
        if found.starts_with('/') {
            paths.push(PathBuf::from(found));
        }
    }
    Ok(paths)
}

#[derive(Debug, PartialEq, Eq)]
struct Header {
    architecture: &'static str,
    is_dynamic: bool,
}

impl Header {
    /// Parses a 64-bit little-endian header, with the layout of elf(5).
    fn parse(content: &[u8]) -> Result<Self, &'static str> {
        const INTERPRETER: u32 = 3;
        const TRUNCATED: &str = "the ELF header is truncated";
        if content.get(..6) != Some(b"\x7fELF\x02\x01") {
            return Err("not a program: expected a 64-bit little-endian ELF file");
        }
        let bytes = |at: usize, count: usize| content.get(at..at.saturating_add(count)).ok_or(TRUNCATED);
        let number = |at: usize, count: usize| {
            Ok(bytes(at, count)?.iter().rev().fold(0_u64, |sum, byte| sum << 8 | u64::from(*byte)))
        };
        let architecture = match number(18, 2)? {
            62 => "amd64",
            183 => "arm64",
            _ => return Err("the architecture is neither amd64 nor arm64"),
        };
        let table = number(32, 8)?;
        let size = number(54, 2)?;
        let count = number(56, 2)?;
        let mut is_dynamic = false;
        for index in 0..count {
            let at = usize::try_from(table.saturating_add(index * size)).map_err(|_too_large| TRUNCATED)?;
            is_dynamic |= number(at, 4)? == u64::from(INTERPRETER);
        }
        Ok(Self { architecture, is_dynamic })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_test_is_a_dynamic_program_with_a_loader() {
        let program = Program::read(&std::env::current_exe().unwrap()).unwrap();
        assert!(program.libraries.iter().any(|path| path.to_string_lossy().contains("ld-linux")), "{program:.200?}");
        assert!(program.libraries.iter().all(|path| path.exists()));
    }

    #[test]
    fn a_header_without_an_interpreter_is_static() {
        let mut elf = vec![0_u8; 64 + 56];
        elf[..6].copy_from_slice(b"\x7fELF\x02\x01");
        elf[18] = 183;
        elf[32] = 64;
        elf[54] = 56;
        elf[56] = 1;
        elf[64] = 1;
        assert_eq!(Header::parse(&elf), Ok(Header { architecture: "arm64", is_dynamic: false }));
        elf[64] = 3;
        assert_eq!(Header::parse(&elf), Ok(Header { architecture: "arm64", is_dynamic: true }));
        assert_eq!(Header::parse(&elf[..64]), Err("the ELF header is truncated"));
    }

    #[test]
    fn a_script_is_not_a_program() {
        assert!(Header::parse(b"#!/bin/sh\n").is_err());
    }

    #[test]
    fn libraries_are_taken_from_ldd_and_a_missing_one_is_an_error() {
        let printed = "\tlinux-vdso.so.1 (0x1)\n\tlibc.so.6 => /lib/libc.so.6 (0x2)\n\t/lib64/ld.so.2 (0x3)\n";
        assert_eq!(parse_ldd(printed).unwrap(), ["/lib/libc.so.6", "/lib64/ld.so.2"].map(PathBuf::from));
        let error = parse_ldd("\tlibgone.so.1 => not found\n").unwrap_err();
        assert!(error.contains("libgone.so.1"), "{error}");
    }
}
