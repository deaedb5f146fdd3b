//! The program of a test on its way into the machine: without debug information, and with the libraries of the host that it is
//! linked with. So it can be an ordinary build, which shares its dependencies with all others.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::error::{IoContext, Result};
use crate::release::Release;
use crate::run::run;

/// The name of the program in the shared directory.
pub(crate) const PROGRAM: &str = "program";

/// The directory in the shared directory with libraries, which init copies to the same paths in the machine.
const LIBRARIES: &str = "libraries";

/// Copies a program and its libraries into the shared directory.
pub(crate) fn install(release: &Release, program: &Path, shared: &Path) -> Result<()> {
    // With symbols, the program of a debug build is ten times as large.
    run(release.command("usr/bin/strip").arg("-o").arg(shared.join(PROGRAM)).arg(program))?;
    for library in libraries(program)? {
        let copy = shared.join(LIBRARIES).join(library.strip_prefix("/").unwrap_or(&library));
        let directory = copy.parent().unwrap_or(shared);
        fs::create_dir_all(directory).with_context(|| format!("create {}", directory.display()))?;
        fs::copy(&library, &copy).with_context(|| format!("copy {}", library.display()))?;
    }
    Ok(())
}

/// The interpreter and the libraries of a program; none if it is static, which ldd says by failing.
fn libraries(program: &Path) -> Result<Vec<PathBuf>> {
    let output = Command::new("ldd").arg(program).stdin(Stdio::null()).output();
    let output = output.with_context(|| format!("run `ldd {}`", program.display()))?;
    let found = if output.status.success() { parse(&String::from_utf8_lossy(&output.stdout)) } else { Vec::new() };
    Ok(found)
}

/// The paths in lines like `libc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x…)` and `/lib64/ld-linux-x86-64.so.2 (0x…)`. Other
/// lines are about what the kernel provides.
fn parse(text: &str) -> Vec<PathBuf> {
    let paths = text.lines().filter_map(|line| line.split_whitespace().find(|word| word.starts_with('/')));
    paths.map(PathBuf::from).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_libraries_and_the_interpreter_of_a_program() {
        let text = "\tlinux-vdso.so.1 (0x00007ffd)\n\tlibc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x00007f1)\n\
                    \t/lib64/ld-linux-x86-64.so.2 (0x00007f2)\n";
        let expected = ["/lib/x86_64-linux-gnu/libc.so.6", "/lib64/ld-linux-x86-64.so.2"].map(PathBuf::from);
        assert_eq!(parse(text), expected);
        assert!(parse("\tstatically linked\n").is_empty());
    }
}
