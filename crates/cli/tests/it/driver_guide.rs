//! The first sections of docs/driver-authors.md, followed word by word in an empty directory: the page's blocks are the input.
//!
//! | block | what the test does |
//! |---|---|
//! | `console` | runs each command after `$ `; lines of output must be printed, `…` is anything |
//! | `toml` | replaces the end of `Cargo.toml`, from `[dependencies]` on |
//! | after `<!-- file: NAME -->` | writes the file |
//! | after `<!-- append: NAME -->` | appends to the file |
//!
//! The directory `drakkar` beside the project is this repository. The test puts its path into `Cargo.toml` instead of a link beside
//! the project, because cargo compiles a package again if it has another path.

use std::fs;
use std::path::Path;

use tempfile::TempDir;

use crate::project::{Project, repository};

/// A block of the page: the line before it, its language and its lines.
struct Block {
    before: String,
    language: String,
    text: String,
}

/// Returns the blocks of the sections that lead from an empty directory to a driver on the demo's node.
fn blocks() -> Vec<Block> {
    let page = fs::read_to_string(repository().join("docs/driver-authors.md")).unwrap();
    let path = page.split("\n## Start\n").nth(1).unwrap().split("\n## Run it\n").next().unwrap();
    let mut blocks = Vec::new();
    let mut before = "";
    let mut lines = path.lines();
    while let Some(line) = lines.next() {
        if let Some(language) = line.strip_prefix("```") {
            let text = lines.by_ref().take_while(|line| *line != "```").flat_map(|line| [line, "\n"]).collect();
            blocks.push(Block { before: before.to_owned(), language: language.to_owned(), text });
        }
        before = line;
    }
    blocks
}

/// Writes what a block without commands says into the project.
fn write(project: &Path, block: &Block) {
    let marked =
        |what: &str| block.before.strip_prefix(&format!("<!-- {what}: ")).and_then(|rest| rest.strip_suffix(" -->"));
    if let Some(name) = marked("file") {
        fs::write(project.join(name), &block.text).unwrap();
    } else if let Some(name) = marked("append") {
        let content = fs::read_to_string(project.join(name)).unwrap();
        fs::write(project.join(name), format!("{content}\n{}", block.text)).unwrap();
    } else if block.language == "toml" {
        let manifest = fs::read_to_string(project.join("Cargo.toml")).unwrap();
        let package = manifest.split("[dependencies]").next().unwrap();
        let source = repository();
        let dependencies = block.text.replace("../drakkar/", &format!("{}/", source.display()));
        fs::write(project.join("Cargo.toml"), format!("{package}{dependencies}")).unwrap();
    }
}

/// Every block of these sections is of a kind that the test knows, in the order that leads to a driver.
#[test]
fn the_path_of_the_guide_has_all_its_steps() {
    let kinds: Vec<(String, String)> = blocks().into_iter().map(|block| (block.language, block.before)).collect();
    let kind = |language: &str, before: &str| (language.to_owned(), before.to_owned());
    let expected = [
        kind("text", ""),
        kind("console", ""),
        kind("toml", ""),
        kind("rust,no_run", "<!-- file: src/main.rs -->"),
        kind("rust", "<!-- append: src/main.rs -->"),
        kind("console", ""),
        kind("console", ""),
    ];
    assert_eq!(kinds, expected);
}

#[test]
#[ignore = "builds a project: cargo xtask test drakkar it -- --ignored word_by_word generated_project"]
fn the_guide_followed_word_by_word_leads_to_a_driver_that_works() {
    let directory = TempDir::new().unwrap();
    let mut project: Option<Project> = None;
    for block in blocks() {
        if block.language != "console" {
            if let Some(project) = &project {
                write(project.path(), &block);
            }
            continue;
        }
        let mut lines = block.text.lines();
        let command = lines.next().unwrap().strip_prefix("$ ").unwrap();
        let output = match (&project, command.strip_suffix(" && cd gpu-driver")) {
            (None, Some(create)) => {
                let status =
                    std::process::Command::new("sh").args(["-c", create]).current_dir(directory.path()).status();
                assert!(status.unwrap().success(), "{create}");
                project = Some(Project::at(directory.path().join("gpu-driver")));
                continue;
            }
            (Some(project), None) => project.run(command),
            _ => panic!("the project is created first, and once: {command}"),
        };
        println!("$ {command}\n{output}");
        for wanted in lines.filter(|line| *line != "…") {
            assert!(
                output.lines().any(|line| line.trim().starts_with(wanted)),
                "{command}: {wanted:?} is not in:\n{output}"
            );
        }
    }
}
