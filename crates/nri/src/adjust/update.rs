//! A change to a container that exists.

use drakkar_nri_api::v1alpha1::{self, LinuxContainerUpdate};

use super::Resources;

/// New resources for a container that exists.
///
/// ```
/// use drakkar_nri::{ContainerUpdate, Resources};
///
/// let update = ContainerUpdate::new("3f2c", Resources::new().cpu_set("4-7")).ignore_failure();
/// assert_eq!(update.container_id(), "3f2c");
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct ContainerUpdate(v1alpha1::ContainerUpdate);

impl ContainerUpdate {
    /// An update of the container with an id.
    pub fn new(container_id: impl Into<String>, resources: Resources) -> Self {
        Self(v1alpha1::ContainerUpdate {
            container_id: container_id.into(),
            linux: Some(LinuxContainerUpdate { resources: Some(resources.into()) }),
            ignore_failure: false,
        })
    }

    /// Lets the event succeed even if this update fails.
    #[must_use]
    pub fn ignore_failure(mut self) -> Self {
        self.0.ignore_failure = true;
        self
    }

    /// Returns the id of the container.
    pub fn container_id(&self) -> &str {
        &self.0.container_id
    }

    /// Returns the message.
    pub fn as_message(&self) -> &v1alpha1::ContainerUpdate {
        &self.0
    }
}

impl From<v1alpha1::ContainerUpdate> for ContainerUpdate {
    fn from(update: v1alpha1::ContainerUpdate) -> Self {
        Self(update)
    }
}

impl From<ContainerUpdate> for v1alpha1::ContainerUpdate {
    fn from(update: ContainerUpdate) -> Self {
        update.0
    }
}
