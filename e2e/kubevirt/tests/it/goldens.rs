//! Recorded answers of KubeVirt: ours are compared with them on every machine, and with Go they are checked to be what
//! KubeVirt answers.

use std::fs;
use std::path::PathBuf;

use drakkar_e2e_kubevirt::KUBEVIRT_VERSION;
use serde_json::{Value, json};

use crate::suite::{Answers, Suite, assert_none};
use crate::suites::SUITES;
use crate::support::repository;

fn path(suite: &Suite) -> PathBuf {
    repository("crates/kubevirt/testdata/goldens").join(format!("{}.json", suite.name))
}

/// Reads what KubeVirt answered.
pub fn read(suite: &Suite) -> Answers {
    let path = path(suite);
    let text = fs::read_to_string(&path).unwrap_or_else(|error| {
        panic!("{}: {error}: record KubeVirt's answers with `cargo xtask kubevirt --bless`", path.display())
    });
    let golden: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(golden["kubevirt"], KUBEVIRT_VERSION, "{}: recorded from another release", path.display());
    serde_json::from_value(golden["answers"].clone()).unwrap()
}

fn write(suite: &Suite, answers: &Answers) {
    let path = path(suite);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    let golden = json!({"kubevirt": KUBEVIRT_VERSION, "answers": answers});
    fs::write(&path, format!("{}\n", serde_json::to_string_pretty(&golden).unwrap())).unwrap();
}

/// Needs no Go: every case has a recorded answer, and ours equals it.
#[test]
fn ours_equal_what_kubevirt_answered() {
    let bless = std::env::var_os("DRAKKAR_BLESS").is_some();
    for suite in SUITES.iter().filter(|_| !bless) {
        let cases = (suite.cases)();
        assert!(!cases.is_empty(), "{}: no cases", suite.name);
        assert_none(suite.name, &suite.differences(&cases, &read(suite)));
    }
}

#[cfg(feature = "go")]
mod go {
    use super::*;
    use crate::suites::UNLIKE;
    use crate::support;
    use drakkar_e2e_kubevirt::Program;

    /// Asks KubeVirt the cases of suites. Its answers must be the recorded ones, or are recorded now.
    fn check(program: &Program, wanted: impl Fn(&Suite) -> bool) {
        let bless = std::env::var_os("DRAKKAR_BLESS").is_some();
        for suite in SUITES.iter().chain(UNLIKE).filter(|suite| wanted(suite)) {
            let cases = (suite.cases)();
            let answers = suite.ask(program, &cases);
            if bless {
                write(suite, &answers);
            } else {
                let recorded = read(suite);
                let changed = |(id, answer): (&String, &Value)| {
                    let before = recorded.get(id);
                    let theirs = |answer| (suite.theirs)(answer);
                    (before.map(theirs) != Some(theirs(answer))).then(|| format!("{id}: {before:?} became {answer}"))
                };
                assert_none(suite.name, &answers.iter().filter_map(changed).collect::<Vec<_>>());
                let known = |id: &&String| !answers.contains_key(*id);
                assert_eq!(recorded.keys().find(known), None, "{}: recorded, but no case", suite.name);
            }
            if UNLIKE.iter().all(|unlike| unlike.name != suite.name) {
                assert_none(suite.name, &suite.differences(&cases, &answers));
            }
        }
    }

    #[test]
    fn the_light_program_answers_as_recorded() {
        if let Some(program) = support::light() {
            check(program, |suite| !suite.full);
        }
    }

    #[cfg(feature = "full")]
    #[test]
    fn the_full_program_answers_as_recorded() {
        if let Some(program) = support::full() {
            check(program, |suite| suite.full);
        }
    }
}
