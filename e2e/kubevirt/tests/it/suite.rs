//! Cases that both sides answer: how KubeVirt is asked, what we answer, and how the two are compared.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use drakkar_e2e_kubevirt::Program;
use drakkar_kubevirt::Behaviour;
use serde_json::{Map, Value};
use tempfile::TempDir;

/// How one kind of case is answered by both sides.
#[derive(Clone, Copy)]
pub struct Suite {
    /// The name of the file with the recorded answers.
    pub name: &'static str,
    /// Whether only the full program can answer.
    pub full: bool,
    /// The cases that are kept as data: their ids and inputs.
    pub cases: fn() -> Vec<(String, Value)>,
    /// The question for KubeVirt, without `id` and `root`.
    pub question: fn(&Value) -> Value,
    /// Our answer in a behaviour. The directory has the files of the case.
    pub ours: fn(&Value, &Path, Behaviour) -> Value,
    /// KubeVirt's answer in the form of ours.
    pub theirs: fn(&Value) -> Value,
}

/// How long a case with a difference is reduced.
const REDUCTION_LIMIT: Duration = Duration::from_secs(60);

/// Where the files of claims are in a container, below its root directory.
const BASE: &str = "var/run/kubernetes.io/dra-device-attributes";

/// KubeVirt's answers by the id of the case.
pub type Answers = BTreeMap<String, Value>;

/// The name under which recorded answers have the directory with the files of a case.
const ROOT: &str = "$ROOT";

impl Suite {
    /// Asks KubeVirt all questions in one run.
    pub fn ask(&self, program: &Program, cases: &[(String, Value)]) -> Answers {
        let placed: Vec<TempDir> = cases.iter().map(|(_, input)| place(input)).collect();
        let questions: Vec<Value> = cases
            .iter()
            .zip(&placed)
            .map(|((id, input), root)| {
                let mut question = (self.question)(input);
                question["id"] = id.as_str().into();
                question["root"] = root.path().join(BASE).to_str().unwrap().into();
                if input.get("sysfs").is_some() {
                    question["sysfs"] = root.path().join("sys").to_str().unwrap().into();
                }
                question
            })
            .collect();
        let answers = program.ask(&questions).unwrap_or_else(|error| panic!("{}: {error}", self.name));
        answers
            .into_iter()
            .zip(&placed)
            .map(|(mut answer, root)| {
                replace(&mut answer, root.path().to_str().unwrap(), ROOT);
                let Some(Value::String(id)) = answer.as_object_mut().unwrap().remove("id") else { panic!("no id") };
                (id, answer)
            })
            .collect()
    }

    /// Compares our answers as released KubeVirt with KubeVirt's, and describes each difference.
    pub fn differences(&self, cases: &[(String, Value)], answers: &Answers) -> Vec<String> {
        let describe = |(id, input): &(String, Value)| {
            let Some(answer) = answers.get(id) else {
                return Some(format!("{id}: no recorded answer: run `cargo xtask kubevirt --bless`"));
            };
            let ours = self.answer(input, Behaviour::Strict);
            let theirs = (self.theirs)(answer);
            if ours == theirs {
                return None;
            }
            Some(format!("{id}: {input}\n  ours:     {ours}\n  KubeVirt: {theirs}\n  in full:  {answer}"))
        };
        cases.iter().filter_map(describe).collect()
    }

    /// Returns our answer.
    pub fn answer(&self, input: &Value, behaviour: Behaviour) -> Value {
        let root = place(input);
        (self.ours)(input, root.path(), behaviour)
    }

    /// Compares both sides on inputs that nobody wrote by hand, and panics with the smallest input that differs. There must
    /// be at least `distinct` different answers, else the inputs show nothing.
    pub fn compare_generated(&self, program: &Program, inputs: Vec<Value>, distinct: usize) {
        let answered = |inputs: Vec<Value>| {
            let number = |(index, input): (usize, Value)| (index.to_string(), input);
            let cases: Vec<(String, Value)> = inputs.into_iter().enumerate().map(number).collect();
            let answers = self.ask(program, &cases);
            (cases, answers)
        };
        let differing = |cases: Vec<(String, Value)>, answers: &Answers| {
            cases.into_iter().find_map(|case| {
                let differences = self.differences(std::slice::from_ref(&case), answers);
                Some((case.1, differences.into_iter().next()?))
            })
        };
        let (cases, answers) = answered(inputs);
        let different: BTreeSet<String> = answers.values().map(|answer| (self.theirs)(answer).to_string()).collect();
        assert!(different.len() >= distinct, "{}: only {} different answers", self.name, different.len());
        let Some(mut found) = differing(cases, &answers) else { return };
        // Each round removes something. The full program starts slowly, hence the time limit.
        let deadline = Instant::now() + REDUCTION_LIMIT;
        while Instant::now() < deadline {
            let (cases, answers) = answered(smaller(&found.0));
            match differing(cases, &answers) {
                Some(smaller) => found = smaller,
                None => break,
            }
        }
        panic!("{}: the two sides differ for {}", self.name, found.1);
    }
}

/// Panics if there are differences.
#[track_caller]
pub fn assert_none(name: &str, differences: &[String]) {
    let mut text = String::new();
    for difference in differences {
        writeln!(text, "{difference}").unwrap();
    }
    assert!(differences.is_empty(), "{name}: {} differences\n{text}", differences.len());
}

/// Writes the files of a case below a new root directory. `files` maps paths to contents, and a path that ends with `/` to a
/// directory; `sysfs` is the same below `sys`.
fn place(input: &Value) -> TempDir {
    let root = tempfile::tempdir().unwrap();
    for (member, directory) in [("files", BASE), ("sysfs", "sys")] {
        for (path, content) in input.get(member).and_then(Value::as_object).into_iter().flatten() {
            let target = root.path().join(directory).join(path);
            if path.ends_with('/') {
                fs::create_dir_all(target).unwrap();
                continue;
            }
            fs::create_dir_all(target.parent().unwrap()).unwrap();
            match content {
                Value::String(text) => fs::write(target, text).unwrap(),
                // A list is a stream of documents.
                Value::Array(documents) => {
                    let stream: Vec<String> = documents.iter().map(Value::to_string).collect();
                    fs::write(target, stream.join("\n")).unwrap();
                }
                document => fs::write(target, document.to_string()).unwrap(),
            }
        }
    }
    root
}

/// Replaces a part of every text.
fn replace(value: &mut Value, from: &str, to: &str) {
    match value {
        Value::String(text) => *text = text.replace(from, to),
        Value::Array(values) => values.iter_mut().for_each(|value| replace(value, from, to)),
        Value::Object(members) => members.values_mut().for_each(|value| replace(value, from, to)),
        _ => {}
    }
}

/// Members without which an input is no longer one.
const KEPT: &[&str] = &[
    "apiVersion",
    "architecture",
    "claim",
    "configuration",
    "devices",
    "domain",
    "guest",
    "kind",
    "memory",
    "metadata",
    "name",
    "namespace",
    "request",
    "spec",
    "vmi",
];

/// Every value that results from removing one element of a list or one member of an object.
fn smaller(value: &Value) -> Vec<Value> {
    match value {
        Value::Array(elements) => {
            let removed = (0..elements.len()).map(|index| {
                let mut rest = elements.clone();
                rest.remove(index);
                rest
            });
            let shrunk = elements.iter().enumerate().flat_map(|(index, element)| {
                smaller(element).into_iter().map(move |element| {
                    let mut rest = elements.clone();
                    rest[index] = element;
                    rest
                })
            });
            removed.chain(shrunk).map(Value::Array).collect()
        }
        Value::Object(members) => {
            let removed = members.keys().filter(|key| !KEPT.contains(&key.as_str())).map(|key| {
                let mut rest = members.clone();
                rest.remove(key);
                rest
            });
            let shrunk = members.iter().flat_map(|(key, member)| {
                smaller(member).into_iter().map(move |member| {
                    let mut rest: Map<String, Value> = members.clone();
                    rest.insert(key.clone(), member);
                    rest
                })
            });
            removed.chain(shrunk).map(Value::Object).collect()
        }
        _ => Vec::new(),
    }
}
