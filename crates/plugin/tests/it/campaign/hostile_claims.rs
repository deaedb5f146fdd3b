//! Hostile claims: names, annotations, results and parameters of any kind, next to a valid claim.
//!
//! The API server would refuse most of them. But a driver that relies on that writes where it should not as soon as another
//! program has a bug.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use drakkar_node::kubelet::ClaimId;
use serde_json::{Value, json};

use super::Campaign;
use crate::support::{DRIVER, Kubelet, Node, Random, TestClaim, TestDriver, in_time};

/// Texts that are dangerous in a path, a log, a JSON file or a shell.
const TEXTS: &[&str] = &[
    "",
    ".",
    "..",
    "/",
    "../../../etc/passwd",
    "/etc/passwd",
    "a/../../b",
    "gpu/..",
    "gpu/a/b",
    "gpu\0",
    "gpu\n{\"kind\":\"DeviceMetadata\"}",
    "\u{1b}[2J\u{202e}",
    "%2e%2e%2f",
    "gpu\\..\\..",
    "GPU",
    "-rf",
    "$(reboot)",
    "`reboot`",
    "\u{feff}gpu",
    "gpu.example.com",
    "dra-device-metadata",
    "metadata.json",
    ".claim.json",
    "gpu",
    "gpu-0",
    "node-1",
    "default_train",
    "a_b",
];

/// The number of different claim names, small enough that some claims share one.
const NAMES: usize = 40;

/// Generates hostile claims.
struct Attack {
    random: Random,
}

impl Attack {
    fn one_of<'a>(&mut self, texts: &[&'a str]) -> &'a str {
        texts[self.random.below(texts.len())]
    }

    fn text(&mut self) -> String {
        match self.random.below(8) {
            0 => "x".repeat(1 + self.random.below(70_000)),
            1 => {
                (0..self.random.below(40)).map(|_| char::from(u8::try_from(self.random.below(256)).unwrap())).collect()
            }
            _ => self.one_of(TEXTS).to_owned(),
        }
    }

    /// Returns a JSON value of any type, for a field with a certain type.
    fn value(&mut self, depth: usize) -> Value {
        match self.random.below(if depth == 0 { 5 } else { 7 }) {
            0 => Value::Null,
            1 => json!(self.random.below(2) == 0),
            2 => json!(i64::MIN + i64::try_from(self.random.below(1000)).unwrap()),
            3 => json!(f64::MAX),
            4 => json!(self.text()),
            5 => (0..self.random.below(4)).map(|_| self.value(depth - 1)).collect(),
            _ => (0..self.random.below(4)).map(|_| (self.text(), self.value(depth - 1))).collect(),
        }
    }

    /// Returns an allocation result in which some, all or none of the fields are valid.
    fn result(&mut self) -> Value {
        let device = format!("gpu-{}", self.random.below(NAMES));
        let mut result = json!({"request": "gpu", "driver": DRIVER, "pool": "node-1", "device": device});
        for field in ["request", "driver", "pool", "device", "shareID", "adminAccess"] {
            match self.random.below(20) {
                0 => result[field] = json!(self.text()),
                1 => result[field] = self.value(2),
                _ => {}
            }
        }
        result
    }

    /// Returns a claim in which anything may be wrong.
    fn claim(&mut self) -> (ClaimId, Value) {
        let name = match self.random.below(4) {
            0 => self.text(),
            _ => format!("hostile-{}", self.random.below(NAMES)),
        };
        let namespace = if self.random.below(6) == 0 { self.text() } else { "default".to_owned() };
        let uid = if self.random.below(6) == 0 { self.text() } else { format!("uid-{}", self.random.below(5_000)) };
        let results: Vec<Value> = (0..self.random.below(4)).map(|_| self.result()).collect();
        let mut object = json!({
            "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
            "metadata": {"name": name, "namespace": namespace, "uid": uid},
            "spec": {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpus"}}]}},
            "status": {"allocation": {"devices": {"results": results}}},
        });
        if self.random.below(2) == 0 {
            object["metadata"]["annotations"] = json!({"resource.kubernetes.io/pod-claim-name": self.text()});
        }
        if self.random.below(4) == 0 {
            object["status"]["allocation"]["devices"]["config"] = json!([{"source": self.text(), "requests": [self.text()], "opaque": {"driver": DRIVER, "parameters": self.value(4)}}]);
        }
        if self.random.below(5) == 0 {
            let paths = [
                "/spec",
                "/spec/devices/requests",
                "/status/allocation",
                "/metadata/annotations",
                "/status/allocation/devices",
            ];
            let path = self.one_of(&paths);
            let value = self.value(3);
            if let Some(field) = object.pointer_mut(path) {
                *field = value;
            }
        }
        (ClaimId { namespace, name, uid }, object)
    }
}

/// Collects everything below a directory without following links.
fn tree(directory: &Path, found: &mut BTreeSet<PathBuf>) {
    let Ok(entries) = std::fs::read_dir(directory) else { return };
    for entry in entries.map(Result::unwrap) {
        if entry.file_type().unwrap().is_dir() {
            tree(&entry.path(), found);
        }
        found.insert(entry.path());
    }
}

/// Each claim gets a response, the valid claim is prepared, nothing is written outside of the driver's directories, and no files
/// are left once all claims are unprepared.
#[tokio::test]
async fn hostile_claims_affect_no_other_claim_and_leave_no_files() {
    let campaign = Campaign::new("hostile_claims");
    // The node's directory is in another one, in which files that escape from it would be found.
    let around = tempfile::tempdir().unwrap();
    let node = Node { root: tempfile::tempdir_in(around.path()).unwrap(), ..Node::default() };
    std::fs::create_dir_all(node.root.path().join("plugins_registry")).unwrap();
    let driver = TestDriver::default();
    let helper = node.start(&driver).await;
    let kubelet = Kubelet::of(&helper).await;
    let good =
        node.claim(TestClaim::new("good", "uid-of-good").device("gpu", "gpu-of-good").made_from_template("gpus"));
    let everything = |node: &Node| {
        let mut found = BTreeSet::new();
        tree(around.path(), &mut found);
        let inside = [node.plugin_directory(), node.cdi_directory()];
        found.retain(|path| !inside.iter().any(|directory| path.starts_with(directory)));
        found
    };
    let outside = everything(&node);
    let mut attack = Attack { random: Random(campaign.seed) };
    let mut calls = 0;
    let mut claims = 0;
    let mut prepared = 0;
    while campaign.has_next(calls, 60) {
        let hostile: Vec<(ClaimId, Value)> = (0..4).map(|_| attack.claim()).collect();
        for (id, object) in &hostile {
            // The server returns the object for the requested name, whatever name the object has.
            node.api.put_at(&id.namespace, &id.name, object);
        }
        let ids: Vec<ClaimId> = hostile.into_iter().map(|(id, _)| id).chain([ClaimId::from(&good)]).collect();

        let responses = in_time(kubelet.0.prepare(ids.clone())).await.unwrap();

        let uids: BTreeSet<&str> = ids.iter().map(|id| id.uid.as_str()).collect();
        assert_eq!(responses.keys().map(String::as_str).collect::<BTreeSet<_>>(), uids, "one response for each claim");
        assert!(responses[good.uid()].is_ok(), "seed {}: {:?}", campaign.seed, responses[good.uid()]);
        assert!(node.metadata_file(&good, "gpu").exists());
        assert_eq!(everything(&node), outside, "seed {}: something was written elsewhere", campaign.seed);
        prepared += responses.values().filter(|response| response.is_ok()).count() - 1;
        let unprepared = in_time(kubelet.0.unprepare(ids)).await.unwrap();
        assert!(unprepared[good.uid()].is_ok());
        // The directory of all claims stays.
        let root = format!("plugins/{DRIVER}/dra-device-metadata");
        assert_eq!(node.files(), [root], "seed {}: left after all were unprepared", campaign.seed);
        calls += 1;
        claims += 4;
    }
    // If no claim were valid enough to be prepared, the campaign would test nothing.
    assert!(prepared > 0, "seed {}: not one of {claims} claims was prepared", campaign.seed);
    helper.stop().await.unwrap();
    campaign.report(&format!("{calls} calls with {claims} hostile claims, {prepared} of them prepared"));
}
