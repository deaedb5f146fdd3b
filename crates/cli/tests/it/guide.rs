//! Runs the commands of a guide and compares their output with the page. Tests of other crates include this file too.
//!
//! A `console` block has one command, after `$ `, and its output; a block without output is not run. A YAML block that starts with
//! `# NAME` is the file of that name, and so is a block after a line `<!-- file: NAME -->`.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A page of `docs`, and how its commands are run.
pub(crate) struct Guide {
    /// The name of the page.
    pub(crate) page: &'static str,
    /// The program that the page is about. The others come from the system.
    pub(crate) program: PathBuf,
    /// The directory in which the commands run, and the page's files are written.
    pub(crate) directory: PathBuf,
    /// The root of the container that the page describes. Output shows paths as in the container.
    pub(crate) container: Option<PathBuf>,
}

impl Guide {
    /// Runs all commands with output that are wanted, and returns their number. A page can have commands of two programs, of which
    /// a test has one.
    pub(crate) fn check(&self, is_wanted: impl Fn(&str) -> bool) -> usize {
        let mut path = OsString::from(self.program.parent().unwrap());
        path.push(":");
        path.push(std::env::var_os("PATH").unwrap_or_default());
        let mut checked = 0;
        for block in self.blocks() {
            if let Some(name) = block.file_name() {
                fs::write(self.directory.join(name), format!("{}\n", block.lines.join("\n"))).unwrap();
            }
            let [command, expected @ ..] = &block.lines[..] else { continue };
            if block.language != "console" || expected.is_empty() {
                continue;
            }
            let command = command.strip_prefix("$ ").unwrap();
            if !is_wanted(command) {
                continue;
            }
            let mut process = Command::new("sh");
            process.args(["-c", command]).current_dir(&self.directory);
            process.env("PATH", &path).env("NO_COLOR", "1").env("COLUMNS", "80");
            if let Some(root) = &self.container {
                process.env("DRAKKAR_ROOT", root);
            }
            let output = process.output().unwrap();
            // In the order in which a terminal shows them: a command here prints to one of them only, or fails last.
            let printed = [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap());
            let mut text = if printed[0].is_empty() { printed[1].clone() } else { printed[0].clone() };
            if let Some(root) = &self.container {
                text = text.replace(root.to_str().unwrap(), "");
            }
            let expected = format!("{}\n", expected.join("\n"));
            assert_eq!(text, expected, "{}: {command} printed something else\n{}", self.page, printed[1]);
            checked += 1;
        }
        checked
    }

    /// Checks that the files that the page links to exist, and returns their number.
    pub(crate) fn check_links(&self) -> usize {
        let page = self.text();
        let links = page.split("](").skip(1).filter_map(|rest| rest.split([')', '#']).next());
        let files: Vec<&str> = links.filter(|link| !link.is_empty() && !link.starts_with("http")).collect();
        for file in &files {
            assert!(repository().join("docs").join(file).exists(), "{}: {file} does not exist", self.page);
        }
        files.len()
    }

    fn text(&self) -> String {
        fs::read_to_string(repository().join("docs").join(self.page)).unwrap()
    }

    fn blocks(&self) -> Vec<Block> {
        let page = self.text();
        let mut lines = page.lines();
        let mut before = "";
        let mut blocks = Vec::new();
        while let Some(line) = lines.next() {
            if let Some(language) = line.strip_prefix("```") {
                let block = lines.by_ref().take_while(|line| *line != "```").map(str::to_owned).collect();
                blocks.push(Block { language: language.to_owned(), before: before.to_owned(), lines: block });
            }
            before = line;
        }
        blocks
    }
}

/// A block of a page, its language, and the line before it.
struct Block {
    language: String,
    before: String,
    lines: Vec<String>,
}

impl Block {
    /// Returns the name of the file that the block is, if it is one.
    fn file_name(&self) -> Option<&str> {
        let by_comment =
            self.lines.first().and_then(|line| line.strip_prefix("# ")).filter(|_| self.language == "yaml");
        let by_marker = self.before.strip_prefix("<!-- file: ").and_then(|rest| rest.strip_suffix(" -->"));
        by_marker.or(by_comment.filter(|name| name.ends_with(".yaml") && !name.contains([' ', '/'])))
    }
}

/// Returns the root of the repository.
pub(crate) fn repository() -> PathBuf {
    let of_crate = Path::new(env!("CARGO_MANIFEST_DIR"));
    of_crate.ancestors().nth(2).unwrap().to_owned()
}
