//! Hostile files: the command prints safe output in bounded memory, and still shows valid files beside them.

use std::path::Path;
use std::process::{Command as Process, Output};

use drakkar_metadata::{Versions, encode};
use snapbox::cmd::cargo_bin;

use crate::support::{Container, claim, device, metadata};

/// Returns the command with a limit of 64 MB of allocated memory. The size of the program, which is large in an unoptimized
/// build, does not count.
pub(crate) fn limited(root: &Path, arguments: &[&str]) -> Process {
    let mut process = Process::new("sh");
    process.args(["-c", "ulimit -d 65536 && exec \"$0\" \"$@\""]).arg(cargo_bin!("drakkar")).args(arguments);
    process.env("DRAKKAR_ROOT", root).env("NO_COLOR", "1").env_remove("RUST_BACKTRACE");
    process
}

pub(crate) fn describe(output: &Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(&bytes[..bytes.len().min(2000)]).into_owned();
    format!("{}\n{}\n{}", output.status, text(&output.stdout), text(&output.stderr))
}

fn with_good_claim() -> Container {
    let container = Container::new();
    let good = metadata("zz", "good-uid", "r", vec![device("a.example.com", "good")]);
    container.write(&claim("zz", "r", "a.example.com"), encode(&good, &Versions::default()));
    container
}

#[test]
fn a_long_name_is_truncated_in_a_table_and_hides_no_valid_claim() {
    let container = with_good_claim();
    let name = "n".repeat(100_000);
    let mut bad = metadata("c", "u", "r", vec![device("a.example.com", &name)]);
    bad.requests[0].devices[0].attributes.insert("k".repeat(70_000), "v".repeat(70_000).as_str().into());
    container.write(&claim("c", "r", "a.example.com"), encode(&bad, &Versions::default()));

    let listed = container.drakkar(["list"]).output().unwrap();
    assert!(listed.status.success(), "{}", describe(&listed));
    let listed = String::from_utf8(listed.stdout).unwrap();
    assert!(listed.lines().all(|line| line.chars().count() < 600), "{} bytes", listed.len());
    assert!(listed.contains("nnn…"), "{listed}");
    assert!(
        listed.lines().any(|line| line.split_whitespace().eq(["zz", "r", "a.example.com", "good", "0", "attributes"])),
        "{listed}"
    );

    let read = container.drakkar(["read", "c/r"]).output().unwrap();
    assert!(read.status.success(), "{}", describe(&read));
    assert!(String::from_utf8(read.stdout).unwrap().lines().all(|line| line.chars().count() < 1000));

    // Scripts get the whole name.
    container.drakkar(["get", "c/r", "name"]).assert().success().stdout_eq(format!("{name}\n"));
}

#[test]
fn memory_is_bounded_for_any_content() {
    let container = with_good_claim();
    let long = "n".repeat(60_000);
    for file in 0..3 {
        let mut devices = vec![device("a.example.com", &long)];
        devices.extend((0..4_000).map(|_| device("", "")));
        devices[0].attributes.extend((0..2_000).map(|number| (format!("a{number}"), number.into())));
        let request = "r".repeat(if file == 0 { 60_000 } else { 1 });
        let bad = metadata("c", &format!("u{file}"), &request, devices);
        container.write(&claim(&format!("c{file}"), "r", "a.example.com"), encode(&bad, &Versions::default()));
    }
    let runs: [&[&str]; 9] = [
        &["list"],
        &["list", "-o", "json"],
        &["list", "-o", "yaml"],
        &["read", "c1/r"],
        &["read", "c1/r", "-o", "yaml"],
        &["env"],
        &["env", "c1/r"],
        &["exec", "--request", "c1/r", "--", "true"],
        &["wait", "c1/r", "--for", "x", "--for", "y", "--timeout", "100ms"],
    ];
    for arguments in runs {
        let output = limited(container.root(), arguments).output().unwrap();
        assert!(matches!(output.status.code(), Some(0..=5 | 126)), "{arguments:?}: {}", describe(&output));
        if arguments[0] == "list" {
            assert!(String::from_utf8_lossy(&output.stdout).contains("good"), "{arguments:?}: {}", describe(&output));
        }
    }
}

/// Elements of a list take little space in a file and much in memory.
#[test]
fn memory_is_bounded_for_long_lists() {
    for element in ["\"\"", "1", "true"] {
        let container = with_good_claim();
        let elements = vec![element; 250_000].join(",");
        let kind = match element {
            "1" => "ints",
            "true" => "bools",
            _ => "strings",
        };
        for driver in 0..3 {
            let content = format!(
                r#"{{"kind":"DeviceMetadata","apiVersion":"metadata.resource.k8s.io/v1alpha1","metadata":{{"uid":"u"}},"requests":[{{"name":"r","devices":[{{"driver":"d","pool":"p","name":"n","attributes":{{"a":{{"{kind}":[{elements}]}}}}}}]}}]}}"#
            );
            container.write(&claim("c", "r", &format!("d{driver}.example.com")), content);
        }
        for arguments in [
            &["list"][..],
            &["list", "-o", "yaml"],
            &["read", "c/r"],
            &["read", "c/r", "-o", "json"],
            &["read", "c/r", "-o", "yaml"],
            &["get", "c/r", "a"],
            &["env"],
        ] {
            let output = limited(container.root(), arguments).output().unwrap();
            assert!(matches!(output.status.code(), Some(0..=5)), "{element} {arguments:?}: {}", describe(&output));
        }
    }
}

#[test]
fn a_value_with_a_control_character_is_refused_without_raw() {
    for evil in ["a\nforged", "a\u{1b}[2J", "a\u{9b}0m", "a\rb", "a\u{2028}b"] {
        let container = Container::new();
        let mut bad = metadata("c", "u", "r", vec![device("a.example.com", "d")]);
        bad.requests[0].devices[0].attributes.insert("x".into(), evil.into());
        container.write(&claim("c", "r", "a.example.com"), encode(&bad, &Versions::default()));
        let refused = container.drakkar(["get", "c/r", "x"]).output().unwrap();
        assert_eq!((refused.status.code(), refused.stdout.len()), (Some(5), 0), "{}", describe(&refused));
        let message = String::from_utf8(refused.stderr).unwrap();
        assert!(message.contains("--raw"), "{message}");
        assert!(!message.trim_end().contains(|c: char| c.is_control() && c != '\n'), "{message:?}");
        let raw = container.drakkar(["get", "c/r", "x", "--raw"]).output().unwrap();
        assert_eq!(String::from_utf8(raw.stdout).unwrap(), format!("{evil}\n"));
    }
}

/// Shells differ in their expansions.
#[test]
fn every_shell_gets_back_exactly_what_the_driver_wrote() {
    let values = [
        "=ls",
        "==",
        "a=b",
        "a:=ls",
        "~",
        "~root",
        "a:~",
        "%1",
        "^x",
        "{a,b}",
        "a,b",
        "!!",
        "#x",
        "[a]",
        "*",
        "?",
        "@(x)",
        "+1",
        "-n",
        "$'x'",
        "a b",
        "'",
        "\\",
        "$(touch owned)",
        "`touch owned`",
        "\u{e9}",
        "a\nb",
        "\u{200b}",
    ];
    let container = Container::new();
    let mut odd = metadata("c", "u", "r", vec![device("a.example.com", "d")]);
    odd.requests[0].devices[0].attributes =
        values.iter().enumerate().map(|(number, value)| (format!("v{number}"), (*value).into())).collect();
    container.write(&claim("c", "r", "a.example.com"), encode(&odd, &Versions::default()));
    let mut script = String::from_utf8(container.drakkar(["env"]).output().unwrap().stdout).unwrap();
    for number in 0..values.len() {
        script.push_str(&format!("printf '%s\\0' \"$DRA_C_R_0_ATTR_V{number}\"\n"));
    }
    let mut tried = 0;
    for shell in ["sh", "bash", "dash", "zsh", "ksh"] {
        let arguments: &[&str] = if shell == "zsh" { &["-f", "-c"] } else { &["-c"] };
        let Ok(output) = Process::new(shell).args(arguments).arg(&script).current_dir(container.root()).output() else {
            println!("skipped: {shell} is not installed");
            continue;
        };
        let got = String::from_utf8(output.stdout.clone()).unwrap();
        let got: Vec<&str> = got.split_terminator('\0').collect();
        assert_eq!(got, values, "{shell}: {}", describe(&output));
        tried += 1;
    }
    assert!(tried > 0);
    assert!(!container.root().join("owned").exists());
}
