//! Publishing, waiting for it, and reading slices.

use drakkar_plugin::{DriverResources, Helper, PublishStatus};
use k8s_openapi::api::resource::v1::ResourceSlice;

use crate::support::in_time;

/// Publishes resources, and waits until the API server stores them.
pub async fn publish(helper: &Helper, resources: DriverResources) {
    helper.handles().publish_resources(resources).unwrap();
    published(helper).await;
}

/// Waits until the API server stores what was published last.
pub async fn published(helper: &Helper) {
    status(helper, |status| *status == PublishStatus::Published).await;
}

/// Waits for a status.
pub async fn status(helper: &Helper, is_expected: impl FnMut(&PublishStatus) -> bool) -> PublishStatus {
    let mut status = helper.handles().publisher().status();
    in_time(status.wait_for(is_expected)).await.unwrap().clone()
}

/// Returns the names of a slice's devices.
pub fn names(slice: &ResourceSlice) -> Vec<&str> {
    slice.spec.devices.iter().flatten().map(|device| device.name.as_str()).collect()
}

/// Returns the generation and the number of slices that a slice has of its pool.
pub fn pool(slice: &ResourceSlice) -> (i64, i64) {
    (slice.spec.pool.generation, slice.spec.pool.resource_slice_count)
}
