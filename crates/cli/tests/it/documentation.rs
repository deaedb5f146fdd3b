//! Runs every snippet of docs/workloads.md, in a container as the page describes it, and compares the output.
//!
//! Paths in a snippet that start with `/var/run/` are prefixed with the test's root, and `drakkar` is in `PATH` with
//! `DRAKKAR_ROOT` set. A snippet's expected output is the `text` block that follows it.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command as Process, Output};

use drakkar_metadata::{Versions, encode};
use snapbox::cmd::cargo_bin;

use crate::support::{Container, gpus};

struct Snippet {
    language: String,
    code: String,
    /// The `text` block that follows it.
    expected: Option<String>,
    line: usize,
}

fn page() -> String {
    fs::read_to_string(repository().join("docs/workloads.md")).unwrap()
}

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn snippets() -> Vec<Snippet> {
    let mut snippets: Vec<Snippet> = Vec::new();
    let page = page();
    let mut lines = page.lines().enumerate();
    while let Some((number, line)) = lines.next() {
        let Some(language) = line.strip_prefix("```") else { continue };
        let block: Vec<&str> = lines.by_ref().map(|(_, line)| line).take_while(|line| *line != "```").collect();
        let code = format!("{}\n", block.join("\n"));
        match snippets.last_mut() {
            Some(previous) if language == "text" => previous.expected = Some(code),
            _ => snippets.push(Snippet { language: language.to_owned(), code, expected: None, line: number + 1 }),
        }
    }
    snippets
}

/// Returns the snippets of a language with their expected output, which each must have.
fn with_output(language: &str) -> Vec<(Snippet, String)> {
    let of_language = snippets().into_iter().filter(|snippet| snippet.language == language);
    of_language
        .map(|mut snippet| {
            let expected = snippet.expected.take();
            let line = snippet.line;
            (snippet, expected.unwrap_or_else(|| panic!("the snippet at line {line} has no output")))
        })
        .collect()
}

fn inside(container: &Container, code: &str) -> String {
    code.replace("/var/run/", &format!("{}/var/run/", container.root().display()))
}

fn in_pod(container: &Container, program: impl AsRef<std::ffi::OsStr>) -> Process {
    let mut path = OsString::from(cargo_bin!("drakkar").parent().unwrap());
    path.push(":");
    path.push(std::env::var_os("PATH").unwrap_or_default());
    let mut process = Process::new(program);
    process.env("PATH", path).env("DRAKKAR_ROOT", container.root()).env("NO_COLOR", "1").current_dir(container.root());
    process
}

fn assert_prints(snippet: &Snippet, output: &Output, expected: &str) {
    let shown = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "the snippet at line {} failed:\n{shown}{errors}", snippet.line);
    assert_eq!(shown, expected, "the snippet at line {} printed something else\n{errors}", snippet.line);
}

fn is_missing(program: &str) -> bool {
    let missing = Process::new(program).arg("--version").output().is_err();
    if missing {
        println!("skipped: {program} is not installed");
    }
    missing
}

#[test]
fn the_page_has_snippets_in_these_languages_only() {
    let mut languages: Vec<String> = snippets().into_iter().map(|snippet| snippet.language).collect();
    languages.sort();
    languages.dedup();
    // `console` and `dockerfile` show how to build: .ci/run runs the former, and tests have no container engine.
    assert_eq!(languages, ["c", "console", "dockerfile", "json", "python", "rust", "sh", "yaml"]);
}

#[test]
fn the_shell_snippets_print_the_documented_output() {
    let no_jq = is_missing("jq");
    let container = Container::with_gpus();
    let snippets = with_output("sh");
    assert!(snippets.len() >= 5);
    for (snippet, expected) in snippets {
        if snippet.code.contains("jq ") && no_jq {
            continue;
        }
        let output = in_pod(&container, "sh").arg("-euc").arg(inside(&container, &snippet.code)).output().unwrap();
        assert_prints(&snippet, &output, &expected);
    }
}

#[test]
fn the_python_snippet_prints_the_documented_output() {
    if is_missing("python3") {
        return;
    }
    for versions in ["v1alpha1", "v1beta1,v1alpha1"] {
        let container = Container::with_gpus();
        let file = crate::support::template("devices", "gpu", "gpu.example.com");
        container.write(&file, encode(&gpus(), &versions.parse::<Versions>().unwrap()));
        for (snippet, expected) in with_output("python") {
            let output =
                in_pod(&container, "python3").arg("-c").arg(inside(&container, &snippet.code)).output().unwrap();
            assert_prints(&snippet, &output, &expected);
        }
    }
}

/// The functions of the snippet, with a claim that the pod names, and with each error.
#[test]
fn the_python_snippet_tells_permanent_errors_from_timeouts() {
    if is_missing("python3") {
        return;
    }
    let container = Container::with_gpus();
    let direct = crate::support::claim("train", "gpu", "gpu.example.com");
    container.write(&direct, encode(&gpus(), &Versions::default()));
    container.write(&crate::support::claim("train", "later", "gpu.example.com"), "");
    let unknown = br#"{"apiVersion": "metadata.resource.k8s.io/v9", "kind": "DeviceMetadata"}"#;
    container.write(&crate::support::claim("train", "new", "gpu.example.com"), unknown);
    let snippets = with_output("python");
    let functions = snippets[0].0.code.split("\n\nfor device in").next().unwrap();
    let script = format!(
        "{functions}\n\nprint(len(devices('train', 'gpu')))\nfor request in ['later', 'new', 'absent']:\n    \
         try:\n        devices('train', request, timeout=0)\n    except Exception as error:\n        \
         print(type(error).__name__)\n"
    );
    let output = in_pod(&container, "python3").arg("-c").arg(inside(&container, &script)).output().unwrap();
    assert_prints(&snippets[0].0, &output, "2\nTimeoutError\nValueError\nLookupError\n");
}

#[test]
fn the_rust_snippet_is_the_example_and_prints_the_documented_output() {
    let container = Container::with_gpus();
    let snippets = with_output("rust");
    let [(snippet, expected)] = &snippets[..] else { panic!("one snippet in Rust") };
    let example = fs::read_to_string(repository().join("crates/metadata/examples/pod.rs")).unwrap();
    assert_eq!(snippet.code, example);
    let output = match built_example("pod") {
        Some(program) => in_pod(&container, program.to_str().unwrap()).output().unwrap(),
        None => in_pod(&container, env!("CARGO"))
            .args(["run", "--quiet", "--offline", "--package", "drakkar-metadata", "--example", "pod"])
            .current_dir(repository())
            .output()
            .unwrap(),
    };
    assert_prints(snippet, &output, expected);
}

/// Returns an example of `drakkar-metadata` that a build of the whole workspace has made, if it is not older than its
/// source. `cargo run --example` would build it and its crate again, with other features.
fn built_example(name: &str) -> Option<PathBuf> {
    let test = std::env::current_exe().ok()?;
    let program = test.ancestors().nth(2)?.join("examples").join(name);
    let source = repository().join(format!("crates/metadata/examples/{name}.rs"));
    let modified = |path: &Path| fs::metadata(path).and_then(|file| file.modified()).ok();
    (modified(&program)? >= modified(&source)?).then_some(program)
}

#[test]
fn the_c_snippet_prints_the_documented_output() {
    if is_missing("cc") {
        return;
    }
    let container = Container::with_gpus();
    for (snippet, expected) in with_output("c") {
        fs::write(container.root().join("train.c"), &snippet.code).unwrap();
        let compiled = in_pod(&container, "cc")
            .args(["-Wall", "-Wextra", "-Werror", "-std=c99", "-o", "train", "train.c"])
            .status()
            .unwrap();
        assert!(compiled.success());
        let output = in_pod(&container, "drakkar").args(["exec", "--", "./train"]).output().unwrap();
        assert_prints(&snippet, &output, &expected);
    }
}

#[test]
fn the_documented_file_is_the_one_that_drivers_write() {
    let shown = snippets().into_iter().find(|snippet| snippet.language == "json").unwrap();
    assert_eq!(shown.code.as_bytes(), encode(&gpus(), &Versions::default()));
}

#[test]
fn the_documented_pod_has_the_names_of_the_snippets() {
    let shown = snippets().into_iter().find(|snippet| snippet.language == "yaml").unwrap();
    let documents: Vec<serde_json::Value> = serde_saphyr::from_multiple(&shown.code).unwrap();
    let [template, pod] = &documents[..] else { panic!("a template and a pod") };
    let requests = template["spec"]["spec"]["devices"]["requests"].as_array().unwrap();
    let claims = pod["spec"]["resourceClaims"].as_array().unwrap();
    assert_eq!(claims[0]["resourceClaimTemplateName"], template["metadata"]["name"]);
    assert_eq!(claims[0]["name"], gpus().pod_claim_name.unwrap());
    for container in pod["spec"]["containers"].as_array().unwrap() {
        for reference in container["resources"]["claims"].as_array().unwrap() {
            assert_eq!(reference["name"], claims[0]["name"]);
            assert!(requests.iter().any(|request| request["name"] == reference["request"]), "{reference}");
        }
    }
    assert_eq!(requests[0]["name"], gpus().requests[0].name);
}
