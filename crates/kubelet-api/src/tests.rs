//! The bytes and names that a kubelet knows, written down from the contract and not from the `.proto` files.

use prost::Message;
use tonic::server::NamedService;

use super::*;

fn text(text: &str) -> String {
    text.to_owned()
}

fn name_of<S: NamedService>() -> &'static str {
    S::NAME
}

#[test]
fn services_have_the_names_that_a_kubelet_calls() {
    use dra_v1::dra_plugin_server::DraPluginServer as V1;
    use dra_v1beta1::dra_plugin_server::DraPluginServer as V1beta1;
    use health_v1::dra_resource_health_server::DraResourceHealthServer as HealthV1;
    use health_v1alpha1::dra_resource_health_server::DraResourceHealthServer as HealthV1alpha1;
    use registration::registration_server::RegistrationServer;
    assert_eq!(name_of::<RegistrationServer<()>>(), "pluginregistration.Registration");
    assert_eq!(name_of::<V1<()>>(), "k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin");
    assert_eq!(name_of::<V1beta1<()>>(), "k8s.io.kubelet.pkg.apis.dra.v1beta1.DRAPlugin");
    assert_eq!(name_of::<HealthV1<()>>(), "v1.DRAResourceHealth");
    assert_eq!(name_of::<HealthV1alpha1<()>>(), "v1alpha1.DRAResourceHealth");
}

/// A field that holds one letter is its number times eight plus two, the length 1, and the letter.
#[test]
fn registration_messages_have_the_kubelets_field_numbers() {
    let info = registration::PluginInfo {
        r#type: text("t"),
        name: text("n"),
        endpoint: text("e"),
        supported_versions: vec![text("a"), text("b")],
    };
    assert_eq!(info.encode_to_vec(), b"\x0a\x01t\x12\x01n\x1a\x01e\x22\x01a\x22\x01b");
    let status = registration::RegistrationStatus { plugin_registered: true, error: text("e") };
    assert_eq!(status.encode_to_vec(), b"\x08\x01\x12\x01e");
}

/// v1beta1 is v1 without share ids; an empty share id is not the same as none.
#[test]
fn dra_messages_have_the_kubelets_field_numbers() {
    macro_rules! check {
        ($version:ident $(, $share:ident)?) => {{
            use $version::*;
            let claim = Claim { namespace: text("s"), uid: text("u"), name: text("n") };
            let claim_bytes = b"\x0a\x09\x0a\x01s\x12\x01u\x1a\x01n";
            assert_eq!(NodePrepareResourcesRequest { claims: vec![claim.clone()] }.encode_to_vec(), claim_bytes);
            assert_eq!(NodeUnprepareResourcesRequest { claims: vec![claim] }.encode_to_vec(), claim_bytes);

            let device = Device {
                request_names: vec![text("r")],
                pool_name: text("p"),
                device_name: text("d"),
                cdi_device_ids: vec![text("c")],
                $($share: None,)?
            };
            assert_eq!(device.encode_to_vec(), b"\x0a\x01r\x12\x01p\x1a\x01d\x22\x01c");
            let prepared = NodePrepareResourceResponse { devices: vec![Device::default()], error: text("e") };
            assert_eq!(prepared.encode_to_vec(), b"\x0a\x00\x12\x01e");
            let response = NodePrepareResourcesResponse { claims: [(text("u"), prepared)].into() };
            assert_eq!(response.encode_to_vec(), b"\x0a\x0a\x0a\x01u\x12\x05\x0a\x00\x12\x01e");

            let unprepared = NodeUnprepareResourceResponse { error: text("e") };
            let response = NodeUnprepareResourcesResponse { claims: [(text("u"), unprepared)].into() };
            assert_eq!(response.encode_to_vec(), b"\x0a\x08\x0a\x01u\x12\x03\x0a\x01e");
        }};
    }
    check!(dra_v1, share_id);
    check!(dra_v1beta1);
    let share = |share_id: Option<&str>| {
        dra_v1::Device { share_id: share_id.map(text), ..dra_v1::Device::default() }.encode_to_vec()
    };
    assert_eq!(share(None), b"");
    assert_eq!(share(Some("")), b"\x2a\x00");
    assert_eq!(share(Some("s")), b"\x2a\x01s");
}

#[test]
fn health_messages_have_the_kubelets_field_numbers() {
    macro_rules! check {
        ($version:ident) => {{
            use $version::*;
            let health = DeviceHealth {
                device: Some(DeviceIdentifier { pool_name: text("p"), device_name: text("d") }),
                health: HealthStatus::Unhealthy.into(),
                last_updated_time: 3,
                health_check_timeout_seconds: 4,
                message: text("m"),
            };
            let bytes = b"\x0a\x11\x0a\x06\x0a\x01p\x12\x01d\x10\x02\x18\x03\x20\x04\x2a\x01m";
            assert_eq!(NodeWatchResourcesResponse { devices: vec![health] }.encode_to_vec(), bytes);
            assert_eq!([HealthStatus::Unknown, HealthStatus::Healthy].map(i32::from), [0, 1]);
        }};
    }
    check!(health_v1);
    check!(health_v1alpha1);
}
