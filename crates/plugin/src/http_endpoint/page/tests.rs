//! The page of a driver that has something to tell, and one that has too much.

use std::time::{Duration, UNIX_EPOCH};

use drakkar_metadata::name::DriverName;
use drakkar_slices::Overview;
use serde_json::json;
use tokio::sync::watch;

use super::*;
use crate::Claim;
use crate::http_endpoint::{HttpDetails, RuntimeProbe};
use crate::ledger::{ClaimFiles, DeviceLedger};
use crate::metrics::Metrics;
use crate::recent_errors::RecentErrors;
use crate::registration::RegistrationStatus;
use crate::store::{Delivery, PreparedRequest, Settings, Store, SystemFiles};

const DRIVER: &str = "gpu.example.com";

/// The sources of a page.
struct Fixture {
    pages: Pages,
    _registration: watch::Sender<RegistrationStatus>,
    _directory: tempfile::TempDir,
}

fn fixture() -> Fixture {
    let directory = tempfile::tempdir().unwrap();
    let settings = Settings {
        driver: DRIVER.parse().unwrap(),
        plugin_directory: directory.path().to_owned(),
        cdi_directory: directory.path().join("cdi"),
        versions: drakkar_metadata::Versions::default(),
        layouts: vec![drakkar_metadata::path::Layout::Kep],
        boot: "boot".into(),
        exclusive: true,
    };
    std::fs::create_dir(&settings.cdi_directory).unwrap();
    let driver = DriverName::new(DRIVER).unwrap();
    let registration = watch::Sender::new(RegistrationStatus::Registered);
    let pages = Pages {
        metrics: Metrics::new(&driver),
        driver,
        version: "1.2.3".to_owned(),
        registration: registration.subscribe(),
        fatal: watch::channel(None).1,
        not_ready: watch::channel(None).1,
        runtime: RuntimeProbe::new(tokio::runtime::Handle::current()),
        calls: None,
        publishing: Overview::default(),
        status: vec![("API server".to_owned(), "https://10.0.0.1".to_owned())],
        node: Some("node-1".to_owned()),
        ledger: std::sync::Arc::new(DeviceLedger::default()),
        store: std::sync::Arc::new(Store::open(SystemFiles, settings).unwrap()),
        health: None,
        recent: RecentErrors::default(),
        flags: std::collections::BTreeMap::new(),
        details: HttpDetails::default(),
    };
    Fixture { pages, _registration: registration, _directory: directory }
}

fn claim(name: &str, devices: &[String], pods: &[&str]) -> Claim {
    let results: Vec<_> = devices
        .iter()
        .map(|device| json!({"request": "gpu", "driver": DRIVER, "pool": "node-1", "device": device}))
        .collect();
    let pods: Vec<_> = pods.iter().map(|pod| json!({"resource": "pods", "name": pod, "uid": "u"})).collect();
    let uid = format!("uid-{}", &name[..name.len().min(30)]);
    let object = json!({
        "metadata": {"namespace": "default", "name": name, "uid": uid}, "spec": {},
        "status": {"allocation": {"devices": {"results": results}}, "reservedFor": pods},
    });
    Claim::from_object(DRIVER, serde_json::from_value(object).unwrap()).unwrap()
}

impl Fixture {
    fn prepare(&self, claim: &Claim) {
        let reservation = self.pages.ledger.reserve(claim, false).unwrap();
        reservation.mark_driver_called();
        reservation.commit(ClaimFiles::None);
    }

    fn page(&self) -> String {
        self.pages.overview(UNIX_EPOCH + Duration::from_secs(4_000_000_000))
    }
}

/// Returns the text of a page without its markup, with single spaces.
fn text_of(html: &str) -> String {
    let body = html.split_once("</style>").unwrap().1;
    let text: String =
        body.split('<').map(|part| part.split_once('>').map_or("", |(_, text)| text)).collect::<Vec<_>>().join(" ");
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[tokio::test]
async fn the_page_of_a_driver_that_has_done_nothing_yet_says_so() {
    let text = text_of(&fixture().page());
    for expected in [
        "gpu.example.com on node node-1 version 1.2.3, up ",
        "Checks ok servers ok registration ok publishing ok driver",
        "Last errors None since the start.",
        "Claims 0 with devices No claim has devices here.",
        "The driver has published nothing.",
        "API server https://10.0.0.1",
        "As of 2096-10-02T07:06:40Z",
    ] {
        assert!(text.contains(expected), "{expected} in {text}");
    }
}

#[tokio::test]
async fn the_page_names_claims_pods_devices_files_and_errors() {
    let fixture = fixture();
    let train = claim("train", &["gpu-0".to_owned(), "gpu-1".to_owned()], &["worker-0"]);
    let request = |name: &str, delivery| PreparedRequest {
        request: name.parse().unwrap(),
        references: vec![drakkar_metadata::Request { name: name.to_owned(), devices: vec![] }],
        delivery,
    };
    let requests = vec![request("gpu", Delivery::Now), request("net", Delivery::Later)];
    fixture.pages.store.prepare(train.reference(), None, requests, &[], vec![]).unwrap();
    fixture.prepare(&train);
    fixture.pages.ledger.reserve(&claim("stuck", &["gpu-2".to_owned()], &[]), true).unwrap().mark_driver_called();
    for _ in 0..3 {
        fixture.pages.recent.add("prepare", Some("default/stuck".to_owned()), &"the GPU does not answer");
    }
    let text = text_of(&fixture.page());
    assert!(text.contains("Claims 2 with devices"), "{text}");
    assert!(text.contains("default/stuck not prepared unknown node-1/gpu-2 none "), "{text}");
    let train = "default/train worker-0 node-1/gpu-0 node-1/gpu-1 gpu: generation 1 net: not written yet ";
    assert!(text.contains(train), "{text}");
    assert!(text.contains("3 times since "), "{text}");
    assert!(text.contains(" prepare default/stuck the GPU does not answer"), "{text}");
}

/// Names and errors are input of others.
#[tokio::test]
async fn nothing_that_others_write_becomes_markup() {
    let fixture = fixture();
    let hostile = "\"><script>alert(1)</script><img src=x onerror='y'>";
    fixture.prepare(&claim("train", &[hostile.to_owned()], &[hostile]));
    fixture.pages.recent.add("prepare", Some(hostile.to_owned()), &hostile);
    let html = fixture.page();
    for forbidden in ["<script", "<img", "onerror='"] {
        assert!(!html.contains(forbidden), "{forbidden} in {html}");
    }
    assert!(html.contains("&quot;&gt;&lt;script&gt;alert(1)&lt;/script&gt;&lt;img src=x onerror=&#39;y&#39;&gt;"));
}

/// The page stays small, whatever the node has, and says what is missing.
#[tokio::test]
async fn a_page_with_a_thousand_claims_is_limited_and_says_what_is_left_out() {
    let fixture = fixture();
    for index in 0..1000 {
        let devices: Vec<String> = (0..20).map(|device| format!("gpu-{index}-{device}")).collect();
        fixture.prepare(&claim(&format!("claim-{index}"), &devices, &["pod"]));
    }
    let html = fixture.page();
    assert!(html.len() < MAX_BYTES, "{} bytes", html.len());
    let text = text_of(&html);
    assert!(text.contains("Claims 1000 with devices"));
    assert!(text.contains("default/claim-999 ") && !text.contains("default/claim-799 "));
    assert!(text.contains("… and 800 more claims"), "{text}");
    assert!(text.contains("node-1/gpu-999-15 … and 4 more"), "{text}");

    // The longest names that the API allows, and errors of any length.
    let long = "x".repeat(253);
    for index in 0..1000 {
        let devices: Vec<String> = (0..32).map(|device| format!("{device}{}", "d".repeat(60))).collect();
        let name = format!("{index}{}", &long[4..]);
        fixture.prepare(&claim(&name, &devices, &[&long, &long, &long, &long, &long]));
    }
    for index in 0..100 {
        fixture.pages.recent.add("prepare", Some(long.clone()), &format!("{index}{}", "<".repeat(100_000)));
    }
    let html = fixture.page();
    assert!(html.len() < MAX_BYTES + 32 * 1024, "{} bytes", html.len());
    assert!(text_of(&html).contains(" more claims"));
    assert!(html.ends_with("</html>\n"));
}
