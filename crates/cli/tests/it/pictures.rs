//! The pictures in docs/pictures show what the command prints, with and without colour, in a terminal of 80 columns.
//!
//! `cargo xtask pictures` writes them. What differs between two runs of the demo is not compared.

use std::path::{Path, PathBuf};

use crate::support::drakkar;
use crate::terminal_svg::{lines_of, render, render_recording};

/// A picture: the name of its file, the arguments of the command, and whether it has colours.
const PICTURES: [(&str, &str, bool); 4] = [
    ("help.svg", "--help", true),
    ("help-plain.svg", "--help", false),
    ("demo.svg", "demo", true),
    ("demo-plain.svg", "demo", false),
];

fn path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/pictures").join(name)
}

/// Returns what the command prints in a terminal of 80 columns.
fn output(arguments: &str, has_colour: bool) -> String {
    let command = drakkar().args(arguments.split(' ')).env("COLUMNS", "80").env("TMPDIR", "/tmp");
    let command = if has_colour { command.env_remove("NO_COLOR").env("CLICOLOR_FORCE", "1") } else { command };
    let assert = command.assert().success();
    format!("$ drakkar {arguments}\n{}", String::from_utf8(assert.get_output().stdout.clone()).unwrap())
}

/// Checks a picture, or writes it.
fn check(name: &str, compare: impl Fn(&str, &str)) {
    let (_, arguments, has_colour) = PICTURES.into_iter().find(|(picture, ..)| *picture == name).unwrap();
    let output = output(arguments, has_colour);
    // The demo with colours is a recording, which the README shows.
    let today = if name == "demo.svg" { render_recording(&output) } else { render(&output) };
    if std::env::var_os("DRAKKAR_WRITE_PICTURES").is_some() {
        std::fs::create_dir_all(path("")).unwrap();
        return std::fs::write(path(name), today).unwrap();
    }
    let stored = std::fs::read_to_string(path(name)).unwrap();
    compare(&stored, &today);
    assert_eq!(stored.contains("class=\"c"), has_colour, "{name}");
}

#[test]
fn the_pictures_of_the_help_are_what_it_prints() {
    for name in ["help.svg", "help-plain.svg"] {
        check(name, |stored, today| assert_eq!(stored, today, "{name} is old: run `cargo xtask pictures`"));
    }
}

#[test]
fn the_pictures_of_the_demo_are_what_it_prints_but_for_times_and_names() {
    for name in ["demo.svg", "demo-plain.svg"] {
        check(name, |stored, today| {
            assert_eq!(stable(stored), stable(today), "{name} is old: run `cargo xtask pictures`");
        });
    }
}

/// Returns the lines of a picture that are the same in every run.
fn stable(picture: &str) -> Vec<String> {
    let mut lines = Vec::new();
    let mut is_isolation = false;
    for line in lines_of(picture) {
        // How containers are isolated depends on the user and on the kernel.
        is_isolation = line.starts_with("Container") || is_isolation && !line.is_empty();
        // Whether the network driver has written its file is a race, which the demo shows.
        let is_racy = line.contains("lastTransitionTime") || line.trim_start().starts_with("net    eth ");
        if is_isolation || is_racy {
            continue;
        }
        let words = line.split(' ').map(|word| match word.strip_prefix("trainer-gpus-") {
            Some(_) => "trainer-gpus-#",
            None => word,
        });
        let line = words.collect::<Vec<_>>().join(" ");
        // The time of a step.
        let step = line.strip_suffix(" ms").and_then(|line| line.rsplit_once(' '));
        lines.push(step.map_or(line.clone(), |(title, _)| title.trim_end().to_owned()));
    }
    lines
}
