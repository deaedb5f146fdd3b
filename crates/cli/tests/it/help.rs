//! Help texts, usage errors, completions and man pages.

use std::process::{Command as Process, Stdio};

use snapbox::cmd::cargo_bin;
use snapbox::str;
use tempfile::TempDir;

use crate::support::{Container, drakkar};

const COMMANDS: [&str; 19] = [
    "list",
    "read",
    "get",
    "env",
    "exec",
    "wait",
    "watch",
    "validate",
    "convert",
    "schema",
    "kubevirt",
    "net",
    "new",
    "doctor",
    "node",
    "inspect",
    "demo",
    "completions",
    "man",
];

const KUBEVIRT: [&str; 9] =
    ["explain", "claims", "validate", "render", "resolve", "domain-xml", "check", "webhook", "hook"];

const GROUPS: [&str; 4] = ["kubevirt", "net", "new", "node"];

/// Returns every command that does something: all but the groups.
fn commands() -> impl Iterator<Item = Vec<&'static str>> {
    let top = COMMANDS.into_iter().filter(|command| !GROUPS.contains(command)).map(|command| vec![command]);
    top.chain(KUBEVIRT.map(|command| vec!["kubevirt", command])).chain([
        vec!["net", "validate"],
        vec!["new", "driver"],
        vec!["node", "claims"],
        vec!["node", "devices"],
    ])
}

fn help_of(arguments: &[&str]) -> String {
    let output = drakkar().args(arguments).arg("--help").env("COLUMNS", "80").output().unwrap();
    assert!(output.status.success());
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn help_has_examples_and_exit_codes() {
    let help = help_of(&[]);
    for wanted in COMMANDS.iter().copied().chain(["Examples:", "Exit codes:", "drakkar get my-claim/gpu pciBusID"]) {
        assert!(help.contains(wanted), "{wanted} is not in:\n{help}");
    }
    for command in commands() {
        let help = help_of(&command);
        assert!(help.contains("Examples:\n  "), "{command:?}:\n{help}");
    }
    let group = help_of(&["kubevirt"]);
    for command in KUBEVIRT {
        assert!(group.contains(&format!("\n  {command} ")), "{command} is not in:\n{group}");
    }
}

#[test]
fn help_fits_eighty_columns() {
    for command in commands().chain(GROUPS.map(|group| vec![group])) {
        let help = help_of(&command);
        for line in help.lines() {
            assert!(line.chars().count() <= 80, "{command:?}: {line}");
        }
        // A sentence that clap wraps leaves a short line at the margin.
        let is_text = |line: &&str| line.starts_with(|c: char| c.is_alphabetic());
        for line in help.split_once("Options:").unwrap().1.lines().filter(is_text) {
            assert!(line.len() >= 25 || line.ends_with([':', '.']), "{command:?}: {line:?}");
        }
    }
}

#[test]
fn an_empty_root_variable_is_ignored() {
    let output = drakkar().args(["list"]).env("DRAKKAR_ROOT", "").output().unwrap();
    assert_ne!(output.status.code(), Some(2), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn every_example_in_the_help_is_a_valid_command_line() {
    let mut checked = 0;
    let directory = TempDir::new().unwrap();
    for command in commands() {
        for line in help_of(&command).lines().filter_map(|line| line.strip_prefix("  drakkar ")) {
            // Only drakkar's own arguments: up to a pipe, a redirection or the explanation. It must not write into the
            // system's directories.
            let end = ["  ", " |", " >", " &&"].iter().filter_map(|mark| line.find(mark)).min().unwrap_or(line.len());
            let line = line[..end].replace("/usr/local/share/man/man1", directory.path().to_str().unwrap());
            // `demo --keep` and services would not end, the driver in the example does not exist, `new` writes here, and the
            // commands about nodes look at this machine.
            let is_not_run = matches!(
                command[..],
                ["demo" | "doctor" | "inspect"] | ["kubevirt", "webhook" | "hook"] | ["new", "driver"] | ["node", _]
            );
            let only_parse = is_not_run.then_some("--help");
            let output = drakkar()
                .args(line.split_whitespace().chain(only_parse))
                .env("DRAKKAR_ROOT", "/nonexistent")
                .stdin("")
                .output()
                .unwrap();
            assert_ne!(output.status.code(), Some(2), "{line}: {}", String::from_utf8_lossy(&output.stderr));
            checked += 1;
        }
    }
    assert!(checked >= 15, "only {checked} examples found");
}

#[test]
fn usage_errors_name_the_mistake() {
    drakkar().args(["lst"]).assert().code(2).stderr_eq(str![[r#"
error: unrecognized subcommand 'lst'

  tip: a similar subcommand exists: 'list'
...
"#]]);
    for (argument, problem) in [
        ("a/b/c/d", "is not CLAIM/REQUEST, for example my-claim/gpu"),
        ("../x", r#"claim name "..": must be lower-case letters"#),
        ("claim/..", r#"request name "..": must be lower-case letters"#),
        ("claim/", r#"request name "": must not be empty"#),
        ("Claim/gpu", r#"claim name "Claim": must be lower-case letters"#),
        ("claim/g\u{1b}pu", r#"request name "g\u{1b}pu": must be lower-case letters"#),
    ] {
        let output = drakkar().args(["read", argument]).output().unwrap();
        let message = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{argument}: {message}");
        assert!(message.contains(problem), "{argument}: {message}");
    }
    let long = format!("{}/gpu", "x".repeat(300));
    let output = drakkar().args(["read", &long]).output().unwrap();
    assert!(String::from_utf8(output.stderr).unwrap().contains("must be no more than 253 bytes, has 300"));
    assert_eq!(output.status.code(), Some(2));
}

/// As `kubectl` and `cargo` do, and whatever the environment is.
#[test]
fn a_command_that_is_missing_is_help_and_no_error() {
    for arguments in [&[][..], &["--root", "/proc/1/root"]] {
        for root in ["", "/nonexistent"] {
            let assert = drakkar().args(arguments).env("DRAKKAR_ROOT", root).assert().success().stderr_eq("");
            let help = String::from_utf8_lossy(&assert.get_output().stdout).into_owned();
            assert!(help.starts_with("Read the metadata of this container's Kubernetes DRA devices\n"), "{help}");
            assert!(
                help.contains("\n  list ") && !help.contains("sample-driver") && !help.contains("cleanup"),
                "{help}"
            );
        }
    }
    for group in GROUPS {
        let assert = drakkar().arg(group).env("DRAKKAR_ROOT", "/nonexistent").assert().success();
        let help = String::from_utf8_lossy(&assert.get_output().stdout).into_owned();
        let command = match group {
            "new" => "driver",
            "node" => "claims",
            _ => "validate",
        };
        assert!(help.contains(&format!("Usage: drakkar {group} ")), "{help}");
        assert!(help.contains(&format!("\n  {command} ")), "{help}");
    }
    drakkar().args(["wait"]).assert().code(2);
}

#[test]
fn root_is_in_the_help_of_the_commands_that_read_below_it() {
    for command in commands() {
        let has_root = help_of(&command).contains("--root");
        let reads = match command[..] {
            ["kubevirt", name] => ["explain", "resolve", "domain-xml", "check", "hook"].contains(&name),
            [name] => !["schema", "doctor", "inspect", "demo", "completions", "man"].contains(&name),
            _ => false,
        };
        assert_eq!(has_root, reads, "{command:?}");
    }
    drakkar().args(["schema", "--root", "/x", "v1beta1"]).assert().code(2).stdout_eq("").stderr_eq(str![[r#"
error: --root has no meaning for `drakkar schema`
...
"#]]);
    drakkar().args(["schema", "v1beta1"]).env("DRAKKAR_ROOT", "/nonexistent").assert().success();
}

#[test]
fn a_missing_root_is_named() {
    drakkar().args(["--root", "/no/such/root", "list"]).assert().code(3).stderr_eq(str![[r#"
drakkar: /no/such/root: No such file or directory (os error 2)

"#]]);
}

#[test]
fn a_broken_pipe_is_not_an_error() {
    let container = Container::with_gpus();
    let mut child = Process::new(cargo_bin!("drakkar"))
        .args(["schema", "v1beta1"])
        .env("DRAKKAR_ROOT", container.root())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert!(output.stderr.is_empty(), "{output:?}");
}

#[test]
fn completions_are_generated_for_every_shell() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let output = drakkar().args(["completions", shell]).output().unwrap();
        let script = String::from_utf8(output.stdout).unwrap();
        for wanted in ["validate", "timeout"] {
            assert!(script.contains(wanted), "{shell}: no {wanted}");
        }
    }
    let script = drakkar().args(["completions", "bash"]).output().unwrap().stdout;
    let Ok(mut bash) = Process::new("bash").arg("-n").stdin(Stdio::piped()).spawn() else {
        return println!("skipped: bash is not installed");
    };
    std::io::Write::write_all(&mut bash.stdin.take().unwrap(), &script).unwrap();
    assert!(bash.wait().unwrap().success());
}

#[test]
fn there_is_a_man_page_for_every_command() {
    let directory = TempDir::new().unwrap();
    drakkar().args(["man", "--dir"]).arg(directory.path()).assert().success();
    for command in COMMANDS {
        let page = std::fs::read_to_string(directory.path().join(format!("drakkar-{command}.1"))).unwrap();
        assert!(page.contains(".SH SYNOPSIS"), "{command}");
    }
    let page = std::fs::read_to_string(directory.path().join("drakkar.1")).unwrap();
    assert!(page.contains("Exit codes"), "{page}");
    assert_eq!(std::fs::read_dir(&directory).unwrap().count(), COMMANDS.len() + 1);
    let output = drakkar().args(["man", "get"]).output().unwrap();
    assert_eq!(output.stdout, std::fs::read(directory.path().join("drakkar-get.1")).unwrap());
    drakkar().args(["man", "nope"]).assert().code(2);
}
