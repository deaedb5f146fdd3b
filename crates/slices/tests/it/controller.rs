//! The code of the example `slice_controller`, from its first slice to its last.

/// The example itself.
#[path = "../../examples/slice_controller.rs"]
#[allow(dead_code, unreachable_pub)]
mod slice_controller;

use std::time::Duration;

use drakkar_apiserver::{ApiServer, Config, Identity, Policy, Rule, Subject};
use drakkar_client::DraClient;
use drakkar_slices::PublishStatus;
use k8s_openapi::api::resource::v1::ResourceSlice;
use kube::api::{Api, DeleteParams, ListParams};
use tokio::time::timeout;

use self::slice_controller::{Controller, DRIVER, RACK_LABEL};

const TIMEOUT: Duration = Duration::from_secs(30);

/// A cluster in which a controller has no permissions but those of the README.
struct Cluster {
    server: ApiServer,
    slices: Api<ResourceSlice>,
}

impl Cluster {
    async fn start() -> Self {
        let readme = include_str!("../../README.md");
        let rule = r#"{apiGroups: ["resource.k8s.io"], resources: ["resourceslices"], verbs: ["list", "watch", "create", "update", "delete"]}"#;
        assert!(readme.contains(rule), "the README has the rule that is tested here");
        let server = ApiServer::start(Config::default()).await.unwrap();
        let verbs = ["list", "watch", "create", "update", "delete"];
        let admins = Subject::Group("system:masters".to_owned());
        let controller = Subject::ServiceAccount { namespace: "fabric".to_owned(), name: "controller".to_owned() };
        let policy = Policy::empty().allow(admins, Rule::new(["*"], ["*"]));
        server.set_policy(policy.allow(controller, Rule::new(["resourceslices"], verbs)));
        let slices = Api::all(server.admin());
        Self { server, slices }
    }

    fn controller(&self, rack: &str) -> Controller {
        let identity = Identity::ServiceAccount { namespace: "fabric".to_owned(), name: "controller".to_owned() };
        Controller::start(DraClient::new(self.server.client(&identity).unwrap()), rack)
    }

    async fn slices(&self) -> Vec<ResourceSlice> {
        self.slices.list(&ListParams::default()).await.unwrap().items
    }

    /// Waits for a state of the slices.
    async fn until(&self, what: &str, is_reached: impl Fn(&[ResourceSlice]) -> bool) -> Vec<ResourceSlice> {
        let reached = async {
            loop {
                let slices = self.slices().await;
                if is_reached(&slices) {
                    return slices;
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        timeout(TIMEOUT, reached).await.unwrap_or_else(|_| panic!("{what}"))
    }
}

fn names(slice: &ResourceSlice) -> Vec<&str> {
    slice.spec.devices.iter().flatten().map(|device| device.name.as_str()).collect()
}

fn name_of(slice: &ResourceSlice) -> &str {
    slice.metadata.name.as_deref().unwrap()
}

#[tokio::test]
async fn devices_are_published_for_the_nodes_of_a_rack_and_removed_at_the_end() {
    let cluster = Cluster::start().await;
    let mut controller = cluster.controller("rack-7");
    controller.add("accelerator-0", "80Gi").unwrap();
    controller.add("accelerator-1", "80Gi").unwrap();
    controller.published().await.unwrap();
    let slices = cluster.slices().await;
    let [slice] = slices.as_slice() else { panic!("{slices:#?}") };
    assert_eq!((slice.spec.driver.as_str(), slice.spec.pool.name.as_str()), (DRIVER, "rack-7"));
    assert_eq!((slice.spec.pool.generation, slice.spec.pool.resource_slice_count), (1, 1));
    assert_eq!(names(slice), ["accelerator-0", "accelerator-1"]);
    assert_eq!((&slice.spec.node_name, &slice.metadata.owner_references), (&None, &None), "they belong to no node");
    let terms = &slice.spec.node_selector.as_ref().unwrap().node_selector_terms;
    let requirement = &terms[0].match_expressions.as_ref().unwrap()[0];
    assert_eq!((requirement.key.as_str(), requirement.operator.as_str()), (RACK_LABEL, "In"));
    assert_eq!(requirement.values.as_deref(), Some(&["rack-7".to_owned()][..]));

    controller.add("accelerator-2", "141Gi").unwrap();
    controller.remove("accelerator-0").unwrap();
    controller.published().await.unwrap();
    let slices = cluster.slices().await;
    assert_eq!(slices.iter().flat_map(names).collect::<Vec<_>>(), ["accelerator-1", "accelerator-2"]);
    assert_eq!(name_of(&slices[0]), name_of(slice), "updated in place");

    controller.remove_all().await.unwrap();
    assert_eq!(cluster.slices().await.len(), 0);
}

#[tokio::test]
async fn slices_that_somebody_deletes_are_repaired_with_a_new_generation() {
    let cluster = Cluster::start().await;
    let mut controller = cluster.controller("rack-7");
    controller.add("accelerator-0", "80Gi").unwrap();
    controller.published().await.unwrap();
    let deleted = cluster.slices().await.remove(0);
    let _ = cluster.slices.delete(name_of(&deleted), &DeleteParams::default()).await.unwrap();
    let is_repaired = |slices: &[ResourceSlice]| slices.len() == 1 && slices[0].metadata.uid != deleted.metadata.uid;
    let repaired = cluster.until("the slice is repaired", is_repaired).await;
    assert_eq!(names(&repaired[0]), ["accelerator-0"]);
    assert!(repaired[0].spec.pool.generation > deleted.spec.pool.generation);
    controller.remove_all().await.unwrap();
}

/// More devices than one slice can have: the scheduler must not see a mix of old and new slices.
#[tokio::test]
async fn a_change_of_several_slices_is_a_new_generation() {
    let cluster = Cluster::start().await;
    let mut controller = cluster.controller("rack-7");
    for number in 0..128 {
        controller.add(&format!("accelerator-{number:03}"), "80Gi").unwrap();
    }
    controller.published().await.unwrap();
    assert_eq!(cluster.slices().await.len(), 1);
    controller.add("accelerator-128", "80Gi").unwrap();
    controller.published().await.unwrap();
    let slices = cluster.slices().await;
    assert_eq!(slices.iter().flat_map(names).count(), 129);
    let pools: Vec<_> =
        slices.iter().map(|slice| (slice.spec.pool.generation, slice.spec.pool.resource_slice_count)).collect();
    assert_eq!(pools, [(2, 2), (2, 2)]);
    controller.remove_all().await.unwrap();
    assert_eq!(cluster.slices().await.len(), 0);
}

#[tokio::test]
async fn controllers_of_two_racks_leave_each_other_alone() {
    let cluster = Cluster::start().await;
    let mut seven = cluster.controller("rack-7");
    let mut eight = cluster.controller("rack-8");
    seven.add("accelerator-0", "80Gi").unwrap();
    eight.add("accelerator-0", "80Gi").unwrap();
    seven.published().await.unwrap();
    eight.published().await.unwrap();
    assert_eq!(cluster.slices().await.len(), 2);
    seven.remove_all().await.unwrap();
    let slices = cluster.slices().await;
    assert_eq!(slices.iter().map(|slice| slice.spec.pool.name.as_str()).collect::<Vec<_>>(), ["rack-8"]);
}

/// A restart drops the publisher, and another one continues.
#[tokio::test]
async fn slices_outlive_a_controller_that_does_not_remove_them() {
    let cluster = Cluster::start().await;
    let mut first = cluster.controller("rack-7");
    first.add("accelerator-0", "80Gi").unwrap();
    first.published().await.unwrap();
    let before = cluster.slices().await.remove(0);
    let handle = first.handle();
    drop(first);
    assert_eq!(*handle.status().borrow(), PublishStatus::Stopped);

    let mut second = cluster.controller("rack-7");
    cluster.server.clear_requests();
    second.add("accelerator-0", "80Gi").unwrap();
    second.published().await.unwrap();
    let after = cluster.slices().await.remove(0);
    assert_eq!(after.metadata.resource_version, before.metadata.resource_version, "nothing had to be written");
}

#[tokio::test]
async fn the_status_has_the_reason_why_a_device_is_not_published() {
    let cluster = Cluster::start().await;
    let mut controller = cluster.controller("rack-7");
    controller.add("accelerator-0", "much").unwrap();
    let mut status = controller.handle().status();
    let failing = timeout(TIMEOUT, status.wait_for(|status| matches!(status, PublishStatus::Failing(_)))).await;
    let PublishStatus::Failing(reason) = failing.unwrap().unwrap().clone() else { unreachable!() };
    assert!(
        reason.starts_with("pool rack-7: devices[0].capacity[memory].value: \"much\" is not a quantity"),
        "{reason}"
    );
    controller.add("accelerator-0", "80Gi").unwrap();
    controller.published().await.unwrap();
    assert_eq!(cluster.slices().await.len(), 1);
}
