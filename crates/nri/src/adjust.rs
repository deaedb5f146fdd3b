//! What a plugin answers: adjustments to a container that is about to be created, updates of other containers, evictions.
//!
//! Nothing is changed that was not named. Two plugins that set the same thing conflict, and the container is not created,
//! unless the later one also removes it in the same answer (`remove_…` and then the new value).

mod container;
mod resources;
mod update;

use drakkar_nri_api::v1alpha1::{ContainerEviction, CreateContainerResponse, UpdateContainerResponse};

pub use container::ContainerAdjustment;
pub use resources::Resources;
pub use update::ContainerUpdate;

/// The answer to [`Event::CreateContainer`](crate::Event::CreateContainer). Changes nothing by default.
///
/// ```
/// use drakkar_nri::{Adjustments, ContainerAdjustment};
///
/// let answer: Adjustments = ContainerAdjustment::new().env("NIC", "eth1").into();
/// ```
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Adjustments {
    /// Changes to the container.
    pub container: ContainerAdjustment,
    /// Changes to other containers.
    pub others: Updates,
}

impl Adjustments {
    /// Adds an update of another container.
    #[must_use]
    pub fn update(mut self, update: ContainerUpdate) -> Self {
        self.others = self.others.update(update);
        self
    }

    /// Adds an eviction. See [`Updates::evict`].
    #[must_use]
    pub fn evict(mut self, container_id: impl Into<String>, reason: impl Into<String>) -> Self {
        self.others = self.others.evict(container_id, reason);
        self
    }
}

impl From<ContainerAdjustment> for Adjustments {
    fn from(container: ContainerAdjustment) -> Self {
        Self { container, others: Updates::default() }
    }
}

impl From<Adjustments> for CreateContainerResponse {
    fn from(adjustments: Adjustments) -> Self {
        let UpdateContainerResponse { update, evict } = adjustments.others.into();
        Self { adjust: adjustments.container.into_message(), update, evict }
    }
}

/// Changes to containers that exist. Changes nothing by default.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Updates {
    /// New resources.
    pub updates: Vec<ContainerUpdate>,
    /// Containers to stop, with the reason for people.
    pub evictions: Vec<(String, String)>,
}

impl Updates {
    /// Adds an update.
    #[must_use]
    pub fn update(mut self, update: ContainerUpdate) -> Self {
        self.updates.push(update);
        self
    }

    /// Adds an eviction: a request to stop a container. containerd and CRI-O accept it and do nothing, up to NRI 0.12.
    #[must_use]
    pub fn evict(mut self, container_id: impl Into<String>, reason: impl Into<String>) -> Self {
        self.evictions.push((container_id.into(), reason.into()));
        self
    }
}

impl From<ContainerUpdate> for Updates {
    fn from(update: ContainerUpdate) -> Self {
        Self::default().update(update)
    }
}

impl From<Updates> for UpdateContainerResponse {
    fn from(updates: Updates) -> Self {
        Self {
            update: updates.updates.into_iter().map(Into::into).collect(),
            evict: updates
                .evictions
                .into_iter()
                .map(|(container_id, reason)| ContainerEviction { container_id, reason })
                .collect(),
        }
    }
}

/// The key that removes what has the key.
fn removal(key: &str) -> String {
    format!("-{key}")
}
