//! `cargo xtask book`: the docs as a book with search, in target/book. Fails if a link leads nowhere.
//!
//! The pages stay where they are, with links that work in the repository. The book is made from a copy that has the same layout: the pages
//! that docs/SUMMARY.md lists, and every page and file that is reached from them by links.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Component, Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::programs::top;

/// The release of mdBook. It is installed into target/tools, unless it is installed already.
const MDBOOK: &str = "0.5.4";

/// Writes the book, and checks its links.
pub(crate) fn run() -> Result<()> {
    let top = top();
    let paths = drakkar_e2e::ClusterPaths::of_checkout()?;
    let target = paths.cache().parent().context("the target directory")?.to_owned();
    let source = target.join("book-source");
    let output = target.join("book");
    let mdbook = mdbook(&target)?;
    copy(&top, &source)?;
    let mut build = Command::new(mdbook);
    build.arg("build").arg("--dest-dir").arg(&output).arg(&source);
    let status = build.status().with_context(|| format!("start {build:?}"))?;
    ensure!(status.success(), "{build:?}: {status}");
    let broken = broken_links(&output)?;
    ensure!(broken.is_empty(), "links of the book that lead nowhere:\n{}", broken.join("\n"));
    println!("{}", output.join("index.html").display());
    Ok(())
}

/// Returns the path of mdBook, which is installed if it is missing.
fn mdbook(target: &Path) -> Result<PathBuf> {
    let root = target.join("tools");
    let own = root.join("bin/mdbook");
    let is_right = |program: &Path| {
        let output = Command::new(program).arg("--version").output();
        output.is_ok_and(|output| String::from_utf8_lossy(&output.stdout).trim().ends_with(MDBOOK))
    };
    if let Some(installed) = [Path::new("mdbook"), &own].into_iter().find(|program| is_right(program)) {
        return Ok(installed.to_owned());
    }
    let mut install = crate::e2e::cargo_command(&["install", "--locked", "--force", "--root"]);
    install.arg(&root).arg(format!("mdbook@{MDBOOK}")).args(["--no-default-features", "--features", "search"]);
    let status = install.status().context("install mdBook")?;
    ensure!(status.success(), "{install:?}: {status}");
    Ok(own)
}

/// Copies the pages of the book and what they link to. All paths are relative to the repository, as in the copy.
fn copy(top: &Path, source: &Path) -> Result<()> {
    if source.exists() {
        fs::remove_dir_all(source).with_context(|| format!("remove {}", source.display()))?;
    }
    let summary = fs::read_to_string(top.join("docs/SUMMARY.md")).context("read docs/SUMMARY.md")?;
    let listed: BTreeSet<PathBuf> =
        links(&summary).filter_map(|link| resolve(Path::new("docs/SUMMARY.md"), link)).collect();
    let mut files = BTreeSet::new();
    let mut others = Vec::new();
    let mut waiting: Vec<PathBuf> = listed.iter().cloned().collect();
    while let Some(file) = waiting.pop() {
        if !top.join(&file).is_file() || !files.insert(file.clone()) {
            continue;
        }
        if file.extension().is_none_or(|kind| kind != "md") {
            continue;
        }
        let text = fs::read_to_string(top.join(&file)).with_context(|| format!("read {}", file.display()))?;
        waiting.extend(links(&text).filter_map(|link| resolve(&file, link)));
        if !listed.contains(&file) {
            others.push((file, title(&text).to_owned()));
        }
    }
    others.sort();
    let pages_directory = source.join("src");
    for file in &files {
        let copy = pages_directory.join(file);
        let directory = copy.parent().context("the directory of a page")?;
        fs::create_dir_all(directory).with_context(|| format!("make {}", directory.display()))?;
        fs::copy(top.join(file), &copy).with_context(|| format!("copy {}", file.display()))?;
    }
    fs::copy(top.join("docs/book.toml"), source.join("book.toml")).context("copy docs/book.toml")?;
    let mut summary = rooted(&summary);
    summary.push_str("\n# Further pages\n\n");
    for (page, title) in others {
        summary.push_str(&format!("- [{title}]({})\n", page.display()));
    }
    fs::write(pages_directory.join("SUMMARY.md"), summary).context("write SUMMARY.md")
}

/// Returns the first heading of a page.
fn title(text: &str) -> &str {
    text.lines().find_map(|line| line.strip_prefix("# ")).unwrap_or("Untitled")
}

/// Returns the summary with links that are relative to the repository.
fn rooted(summary: &str) -> String {
    let mut parts = summary.split("](");
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (link, rest) = part.split_once(')').unwrap_or((part, ""));
        let path = resolve(Path::new("docs/SUMMARY.md"), link).unwrap_or_else(|| link.into());
        text.push_str(&format!("]({}){rest}", path.display()));
    }
    text
}

/// Returns the targets of a page's links and pictures in Markdown.
fn links(text: &str) -> impl Iterator<Item = &str> {
    text.split("](").skip(1).filter_map(|rest| rest.split([')', ' ']).next())
}

/// Returns the file that a link of a page means, relative to the repository. `None` if it is elsewhere.
fn resolve(page: &Path, link: &str) -> Option<PathBuf> {
    let path = link.split('#').next().filter(|path| !path.is_empty() && !path.contains("://"))?;
    let mut resolved = page.parent()?.to_owned();
    for part in Path::new(path).components() {
        match part {
            Component::Normal(name) => resolved.push(name),
            Component::ParentDir if resolved.pop() => {}
            Component::CurDir => {}
            _ => return None,
        }
    }
    Some(resolved)
}

/// Returns the links in the book's pages to files or anchors that do not exist.
fn broken_links(book: &Path) -> Result<Vec<String>> {
    let mut pages = BTreeMap::new();
    collect_pages(book, book, &mut pages)?;
    ensure!(pages.len() > 10, "the book has {} pages", pages.len());
    let mut broken = Vec::new();
    for (page, text) in &pages {
        for link in attributes(text, "href").chain(attributes(text, "src")) {
            let Some((path, anchor)) = local(link) else { continue };
            let file = if path.is_empty() { Some(page.clone()) } else { resolve(page, path) };
            let is_there = file.as_ref().is_some_and(|file| book.join(file).is_file());
            let has_anchor = anchor.is_empty()
                || file
                    .and_then(|file| pages.get(&file))
                    .is_none_or(|text| attributes(text, "id").any(|id| id == anchor));
            if !is_there || !has_anchor {
                broken.push(format!("{}: {link}", page.display()));
            }
        }
    }
    Ok(broken)
}

/// Reads all pages of a book, except for the one that is made of all others for printing.
fn collect_pages(book: &Path, directory: &Path, pages: &mut BTreeMap<PathBuf, String>) -> Result<()> {
    for entry in fs::read_dir(directory).with_context(|| format!("list {}", directory.display()))? {
        let path = entry.context("read a directory")?.path();
        let name = path.strip_prefix(book).context("a path of the book")?.to_owned();
        if path.is_dir() {
            collect_pages(book, &path, pages)?;
        } else if path.extension().is_some_and(|kind| kind == "html")
            && !["print.html", "toc.html", "404.html"].iter().any(|other| name == Path::new(other))
        {
            let text = fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
            pages.insert(name, text);
        }
    }
    Ok(())
}

/// Returns the path and the anchor of a link within the book.
fn local(link: &str) -> Option<(&str, &str)> {
    let is_elsewhere = link.contains("://") || link.starts_with("data:") || link.starts_with("mailto:");
    (!is_elsewhere).then(|| link.split_once('#').unwrap_or((link, "")))
}

/// Returns the values of an attribute in HTML.
fn attributes<'a>(html: &'a str, name: &str) -> impl Iterator<Item = &'a str> {
    let start = format!(" {name}=\"");
    let mut rest = html;
    std::iter::from_fn(move || {
        let (_, after) = rest.split_once(&start)?;
        let (value, after) = after.split_once('"')?;
        rest = after;
        Some(value)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_files_of_the_repository() {
        let text = "[a](b.md#c) and ![d](../pictures/e.svg \"f\"), [g](https://example.com/h)";
        let found: Vec<_> = links(text).filter_map(|link| resolve(Path::new("docs/page.md"), link)).collect();
        assert_eq!(found, [Path::new("docs/b.md"), Path::new("pictures/e.svg")]);
        assert_eq!(resolve(Path::new("docs/page.md"), "../../outside.md"), None);
        assert_eq!(resolve(Path::new("docs/page.md"), "#anchor"), None);
    }

    #[test]
    fn the_summary_of_the_book_is_relative_to_the_repository() {
        let summary = "- [One](one.md)\n- [Map](../ARCHITECTURE.md)\n";
        assert_eq!(rooted(summary), "- [One](docs/one.md)\n- [Map](ARCHITECTURE.md)\n");
    }

    #[test]
    fn a_link_to_a_missing_page_or_anchor_is_found() {
        let book = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| fs::write(book.path().join(name), text).unwrap();
        for number in 0..12 {
            write(&format!("page-{number}.html"), "<h1 id=\"top\">x</h1>");
        }
        write(
            "links.html",
            "<a href=\"page-1.html#top\"> <a href=\"page-1.html#gone\"> <img src=\"gone.png\"> <a href=\"#here\"> <p id=\"here\">",
        );
        let broken = broken_links(book.path()).unwrap();
        assert_eq!(broken, ["links.html: page-1.html#gone", "links.html: gone.png"]);
    }
}
