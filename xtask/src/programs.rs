//! The test programs of the workspace, as `cargo test --workspace` builds them, and `cargo xtask test`, which runs one of them.
//!
//! `cargo test -p NAME` unifies the features of dependencies differently and builds most of them again. These programs share the
//! one build of `cargo test --workspace`.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::e2e::cargo_command;

/// A test program.
#[derive(Debug, Clone)]
pub(crate) struct TestProgram {
    path: PathBuf,
    /// The directory of its package, where cargo runs it.
    directory: PathBuf,
}

/// The build that all tests and programs share.
const BUILD: [&str; 5] = ["build", "--workspace", "--bins", "--tests", "--message-format=json-render-diagnostics"];

/// Builds the tests and programs of the workspace, and returns the test program `target` of a package.
pub(crate) fn test_program(package: &str, target: &str, features: Option<&str>) -> Result<TestProgram> {
    let mut build = cargo_command(&BUILD);
    build.args(features.map(|features| ["--features", features]).into_iter().flatten());
    let output = build.current_dir(top()).stderr(Stdio::inherit()).output().context("run cargo")?;
    ensure!(output.status.success(), "{build:?}: {}", output.status);
    let messages = String::from_utf8(output.stdout).context("decode cargo's messages")?;
    find(&messages, package, target)?.with_context(|| format!("package `{package}` has no test program `{target}`"))
}

/// Writes the pictures in docs/pictures: the test that compares them with the command's output does it.
pub(crate) fn write_pictures() -> Result<()> {
    let mut command = test_program("drakkar", "it", None)?.command(&["pictures::"]);
    let status = command.env("DRAKKAR_WRITE_PICTURES", "1").status().context("run the tests of pictures")?;
    ensure!(status.success(), "{command:?}: {status}");
    Ok(())
}

/// Writes the pictures of a driver's page in docs/pictures: the test that measures the page in a browser does it.
pub(crate) fn write_screenshots() -> Result<()> {
    let mut command = test_program("drakkar-plugin", "node", None)?.command(&["screenshots::"]);
    command.env("DRAKKAR_WRITE_SCREENSHOTS", "1").env("DRAKKAR_REQUIRE_CHROMIUM", "1");
    let status = command.status().context("run the tests of screenshots")?;
    ensure!(status.success(), "{command:?}: {status}");
    Ok(())
}

/// Finds a test program in cargo's messages.
fn find(messages: &str, package: &str, target: &str) -> Result<Option<TestProgram>> {
    for line in messages.lines() {
        let message: Value = serde_json::from_str(line).with_context(|| format!("decode cargo's message: {line}"))?;
        let is_test = message["target"]["kind"][0] == "test" && message["profile"]["test"] == true;
        if is_test && message["target"]["name"] == target && package_name(&message["package_id"]) == Some(package) {
            let path = |value: &Value| value.as_str().map(PathBuf::from).context("a path in cargo's message");
            let manifest = path(&message["manifest_path"])?;
            let directory = manifest.parent().context("the directory of a manifest")?.to_owned();
            return Ok(Some(TestProgram { path: path(&message["executable"])?, directory }));
        }
    }
    Ok(None)
}

/// Returns the name in a package ID: `URL#NAME@VERSION`, or `URL#VERSION` if the directory has the same name.
fn package_name(id: &Value) -> Option<&str> {
    let (url, rest) = id.as_str()?.rsplit_once('#')?;
    Some(rest.split_once('@').map_or_else(|| url.rsplit('/').next().unwrap_or_default(), |(name, _)| name))
}

impl TestProgram {
    /// A command that runs the program as `cargo test` does.
    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.path);
        command.args(arguments).current_dir(&self.directory).env("CARGO_MANIFEST_DIR", &self.directory);
        command
    }

    /// Runs the program. Fails if a test fails, or if the filter selects none.
    pub(crate) fn run(&self, arguments: &[&str]) -> Result<()> {
        let list = self.list(arguments)?;
        ensure!(!list.trim().is_empty(), "no test of {} matches {arguments:?}", self.path.display());
        let status = self.command(arguments).status().with_context(|| format!("run {}", self.path.display()))?;
        ensure!(status.success(), "{} {}: {status}", self.path.display(), arguments.join(" "));
        Ok(())
    }

    /// Returns the tests that arguments select, one on each line.
    pub(crate) fn list(&self, arguments: &[&str]) -> Result<String> {
        let mut list = self.command(arguments);
        let output = list.args(["--list", "--format", "terse"]).stderr(Stdio::inherit()).output();
        let output = output.with_context(|| format!("run {}", self.path.display()))?;
        ensure!(output.status.success(), "{} cannot list its tests: {}", self.path.display(), output.status);
        String::from_utf8(output.stdout).context("decode the list of tests")
    }
}

/// `cargo xtask test PACKAGE TARGET [--features FEATURES] [-- ARGUMENTS…]`.
pub(crate) fn test(arguments: &[&str]) -> Result<()> {
    let split = arguments.iter().position(|argument| *argument == "--").unwrap_or(arguments.len());
    let (own, rest) = arguments.split_at(split);
    let (package, target, features) = match *own {
        [package, target] => (package, target, None),
        [package, target, "--features", features] => (package, target, Some(features)),
        _ => bail!("usage: cargo xtask test PACKAGE TARGET [--features FEATURES] [-- ARGUMENTS…]"),
    };
    test_program(package, target, features)?.run(rest.get(1..).unwrap_or_default())
}

/// Returns the directory of the repository.
pub(crate) fn top() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_test_program_is_found_by_package_and_target() {
        let message = |id: &str, name: &str, kind: &str| {
            serde_json::json!({
                "reason": "compiler-artifact", "package_id": id, "manifest_path": "/src/a/Cargo.toml",
                "target": {"kind": [kind], "name": name}, "profile": {"test": true}, "executable": format!("/t/{kind}-{name}"),
            })
            .to_string()
        };
        let messages = [
            message("path+file:///src/a#drakkar-a@0.1.0", "it", "lib"),
            message("path+file:///src/b#drakkar-b@0.1.0", "it", "test"),
            message("path+file:///src/a#drakkar-a@0.1.0", "it", "test"),
            message("path+file:///src/xtask#0.1.0", "node", "test"),
        ];
        let messages = messages.join("\n");
        let found = find(&messages, "drakkar-a", "it").unwrap().unwrap();
        assert_eq!((found.path, found.directory), ("/t/test-it".into(), "/src/a".into()));
        assert!(find(&messages, "xtask", "node").unwrap().is_some());
        assert!(find(&messages, "drakkar-a", "node").unwrap().is_none());
    }
}
