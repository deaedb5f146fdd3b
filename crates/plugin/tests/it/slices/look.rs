//! Publishing and waiting for it, and what is said in a slice.

use drakkar_plugin::{DriverResources, Helper, PublishStatus};
use k8s_openapi::api::resource::v1::ResourceSlice;

use crate::support::in_time;

/// Publishes, and waits until it is done.
pub async fn publish(helper: &Helper, resources: DriverResources) {
    helper.publish_resources(resources).unwrap();
    published(helper).await;
}

/// Waits until what was published last is what the API server has.
pub async fn published(helper: &Helper) {
    status(helper, |status| *status == PublishStatus::Published).await;
}

/// Waits for a status.
pub async fn status(helper: &Helper, is_so: impl FnMut(&PublishStatus) -> bool) -> PublishStatus {
    let mut status = helper.handles().publisher().status();
    in_time(status.wait_for(is_so)).await.unwrap().clone()
}

/// The names of a slice's devices.
pub fn names(slice: &ResourceSlice) -> Vec<&str> {
    slice.spec.devices.iter().flatten().map(|device| device.name.as_str()).collect()
}

/// Generation and number of slices, as a slice says it.
pub fn pool(slice: &ResourceSlice) -> (i64, i64) {
    (slice.spec.pool.generation, slice.spec.pool.resource_slice_count)
}
