//! The page of a driver in a real browser: nothing is wider than a phone, and the pictures in the documentation are of it.
//!
//! Without Chromium these tests say so and pass; with `DRAKKAR_REQUIRE_CHROMIUM` it has to be there. With
//! `DRAKKAR_WRITE_SCREENSHOTS` the pictures in docs/pictures are written (`cargo xtask screenshots`).

mod browser;

use std::path::Path;

use drakkar_node::{ClaimSpec, Container, Node, Pod, assert_eventually};
use drakkar_plugin::{
    BoxError, Claim, ClaimRef, Device, DeviceMetadata, DraPlugin, DriverResources, Helper, Pool, PublishedDevice,
};

use self::browser::{Browser, Scheme};
use crate::support::{DRIVER, plugin};

/// A driver that prepares every claim but one.
struct Gpus;

impl DraPlugin for Gpus {
    async fn prepare(&self, claim: &Claim) -> Result<Vec<Device>, BoxError> {
        if claim.reference().name.as_str() == "broken" {
            return Err("GPU 0000:65:00.0 does not answer: is it in use on the host?".into());
        }
        let metadata = DeviceMetadata::default().attribute("model", "A100");
        let device = |result| Device { metadata: Some(metadata.clone()), ..Device::from(result) };
        Ok(claim.results().map(device).collect())
    }

    async fn unprepare(&self, _: &ClaimRef) -> Result<(), BoxError> {
        Ok(())
    }
}

/// Starts a driver with eight GPUs, three pods with claims, and one whose claim cannot be prepared.
async fn start_driver(node: &Node) -> Helper {
    let builder = plugin(node).device_metadata(true).version("1.4.0").http_endpoint("127.0.0.1:0".parse().unwrap());
    let helper = builder
        .start_with(|handles| {
            let gpus = (0..8).map(|index| PublishedDevice::new(format!("gpu-{index}")));
            let pool = gpus.fold(Pool::default(), Pool::device);
            let node = handles.node_name().ok_or("no node")?.to_owned();
            handles.publish_resources(DriverResources::default().pool(node, pool))?;
            Ok(Gpus)
        })
        .await
        .unwrap();
    node.create(drakkar_node::device_class(DRIVER)).await.unwrap();
    node.wait_registered(DRIVER).await.unwrap();
    for (name, gpus) in [("train", 2), ("notebook", 1), ("inference", 4), ("broken", 1)] {
        node.create(ClaimSpec::default().request("gpu", DRIVER, gpus).claim(name)).await.unwrap();
        let main = Container::new("main", ["sleep", "infinity"]).claim("gpus");
        let pod = node.create_pod(Pod::new(&format!("{name}-0")).claim("gpus", name).container(main)).await.unwrap();
        if name != "broken" {
            pod.running().await.unwrap();
        }
    }
    helper
}

#[tokio::test(flavor = "multi_thread")]
async fn the_page_fits_a_phone_and_a_desk_in_light_and_dark() {
    let Some(mut browser) = Browser::start() else { return };
    let node = Node::start().await.unwrap();
    let helper = start_driver(&node).await;
    let url = format!("http://{}/", helper.http_address().unwrap());
    let is_written = std::env::var_os("DRAKKAR_WRITE_SCREENSHOTS").is_some();
    let pictures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/pictures");
    assert_eventually!(browser.open(&url, 1280, Scheme::Light).text.contains("does not answer"));
    for (name, width, scheme) in [
        ("desktop-light", 1280, Scheme::Light),
        ("desktop-dark", 1280, Scheme::Dark),
        ("phone-light", 360, Scheme::Light),
        ("phone-dark", 360, Scheme::Dark),
    ] {
        let page = browser.open(&url, width, scheme);
        // A phone makes the viewport wider if the content is.
        assert_eq!((page.viewport, page.content), (width, width), "{name}: too wide: {}", page.widest);
        for expected in ["default/train", "train-0", "generation 1", "not prepared", "gpu-7"] {
            assert!(page.text.contains(expected), "{name}: {expected} in {}", page.text);
        }
        let is_dark = scheme == Scheme::Dark;
        assert_eq!(page.background < 128, is_dark, "{name}: brightness {}", page.background);
        if is_written {
            let picture = browser.screenshot(width, page.height);
            assert!(picture.len() < 150_000, "{name}: {} bytes", picture.len());
            std::fs::write(pictures.join(format!("page-{name}.webp")), picture).unwrap();
        }
    }
    drop(browser);
    helper.stop().await.unwrap();
}
