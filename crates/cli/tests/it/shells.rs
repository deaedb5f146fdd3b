//! `eval "$(drakkar env)"` in the shells of containers.

use std::process::{Command as Process, Output};

use snapbox::cmd::cargo_bin;

use crate::support::Container;

/// The shells; those that are not installed are left out, but for the first.
const SHELLS: [&[&str]; 7] =
    [&["sh"], &["bash"], &["bash", "--posix"], &["dash"], &["busybox", "ash"], &["zsh"], &["mksh"]];

fn run(container: &Container, shell: &[&str], script: &str) -> Option<Output> {
    let drakkar = cargo_bin!("drakkar");
    let mut command = Process::new(shell[0]);
    command.args(&shell[1..]).args(["-c", &script.replace("drakkar", drakkar.to_str().unwrap())]);
    match command.env("DRAKKAR_ROOT", container.root()).output() {
        Ok(output) => Some(output),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound && shell != ["sh"] => None,
        Err(error) => panic!("{shell:?}: {error}"),
    }
}

#[track_caller]
fn assert_ends(container: &Container, script: &str, code: i32, printed: &str) {
    for shell in SHELLS {
        let Some(output) = run(container, shell, script) else {
            println!("skipped: {shell:?} is not installed");
            continue;
        };
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{shell:?}: {script}\n{errors}");
        assert_eq!(String::from_utf8_lossy(&output.stdout), printed, "{shell:?}: {script}\n{errors}");
    }
}

#[test]
fn a_shell_with_errexit_stops_after_a_failure() {
    let empty = Container::new();
    assert_ends(&empty, "set -e; eval \"$(drakkar env)\"; echo on", 3, "");
    // A usage error, and a root that does not exist.
    assert_ends(&empty, "set -e; eval \"$(drakkar env ../x)\"; echo on", 2, "");
    assert_ends(&empty, "set -e; eval \"$(drakkar env --root /no/such/root)\"; echo on", 3, "");
}

#[test]
fn a_shell_without_errexit_can_test_the_result() {
    let empty = Container::new();
    assert_ends(&empty, "eval \"$(drakkar env)\" || exit; echo on", 3, "");
    assert_ends(&empty, "if eval \"$(drakkar env)\"; then echo on; else echo failed; fi", 0, "failed\n");
    assert_ends(&empty, "variables=$(drakkar env) || exit; eval \"$variables\"; echo on", 3, "");
}

#[test]
fn a_file_of_variables_that_could_not_be_read_fails_the_shell_that_reads_it() {
    let empty = Container::new();
    let file = empty.root().join("gpu.sh");
    let script = format!("drakkar env > {0} || true; set -e; . {0}; echo on", file.display());
    assert_ends(&empty, &script, 3, "");
}

#[test]
fn a_shell_goes_on_after_a_success() {
    let container = Container::with_gpus();
    assert_ends(&container, "set -e; eval \"$(drakkar env)\" || exit; echo $DRA_DEVICES_GPU_COUNT", 0, "2\n");
    assert_ends(&Container::new(), "set -e; eval \"$(drakkar env --optional)\"; echo on", 0, "on\n");
}
