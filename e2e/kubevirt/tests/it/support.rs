//! The Go programs, and where the data of tests is.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use drakkar_e2e_kubevirt::{Program, ProgramError};

/// Returns a file or directory of this repository.
pub fn repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}

/// Returns the light program. If it is unavailable, the test prints the reason and is skipped.
pub fn light() -> Option<&'static Program> {
    static PROGRAM: OnceLock<Result<Program, String>> = OnceLock::new();
    built(&PROGRAM, Program::light)
}

/// Returns the full program. If it is unavailable, the test prints the reason and is skipped.
pub fn full() -> Option<&'static Program> {
    static PROGRAM: OnceLock<Result<Program, String>> = OnceLock::new();
    built(&PROGRAM, Program::full)
}

fn built(
    program: &'static OnceLock<Result<Program, String>>,
    build: fn(&Path) -> Result<Program, ProgramError>,
) -> Option<&'static Program> {
    let built = program.get_or_init(|| match build(Path::new(env!("CARGO_TARGET_TMPDIR"))) {
        Ok(program) => Ok(program),
        Err(ProgramError::Unavailable(reason)) => Err(reason),
        Err(error) => panic!("{error}"),
    });
    if let Err(reason) = built {
        assert!(std::env::var_os("DRAKKAR_BLESS").is_none(), "cannot record KubeVirt's answers: {reason}");
        let name = std::thread::current().name().unwrap_or_default().to_owned();
        // Directly, since the test harness hides the captured output of tests that pass.
        std::io::stderr().write_all(format!("{name}: skipped: {reason}\n").as_bytes()).unwrap();
    }
    built.as_ref().ok()
}
