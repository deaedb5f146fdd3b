//! Tests of prepare and unprepare in the usual case.

use crate::support::{Kubelet, Node, TestClaim, TestDriver, cdi_devices};

const UID: &str = "1234-claim-uid";

#[tokio::test]
async fn a_prepared_claim_has_devices_a_file_and_a_spec_and_an_unprepared_one_has_none() {
    let node = Node::default();
    let driver = TestDriver::default();
    let helper = node.start(&driver).await;
    let kubelet = Kubelet::of(&helper).await;
    let claim = node.claim(TestClaim::new("my-claim", UID).device("gpu", "gpu-0"));

    let devices = kubelet.prepare_one(&claim).await.unwrap();

    assert_eq!(devices.len(), 1);
    assert_eq!(devices[0].request_names, ["gpu"]);
    assert_eq!((devices[0].pool_name.as_str(), devices[0].device_name.as_str()), ("node-1", "gpu-0"));
    assert_eq!(cdi_devices(&devices), ["gpu.example.com/gpu=gpu-0", "gpu.example.com/metadata=1234-claim-uid_gpu"]);
    let metadata = node.metadata(&claim, "gpu");
    assert_eq!(metadata["requests"][0]["devices"][0]["name"], "gpu-0");
    assert!(node.cdi_directory().join("gpu.example.com_metadata_1234-claim-uid_gpu.json").exists());

    kubelet.unprepare_one(&claim).await.unwrap();

    assert_eq!(node.files(), ["plugins/gpu.example.com/dra-device-metadata"]);
    assert_eq!(driver.take_calls(), ["prepare my-claim", "unprepare my-claim"]);
    helper.stop().await.unwrap();
}
