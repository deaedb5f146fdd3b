//! Lookup of the attributes that were published for a device.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use drakkar_metadata::DeviceAttribute;
use tokio::sync::watch;
use tokio::time::timeout;

use super::desired::DesiredPool;
use super::device_json;

/// The time limit of the wait for the first publish: a kubelet may prepare a claim before the driver knows its devices.
const FIRST_PUBLISH_TIMEOUT: Duration = Duration::from_secs(10);

/// The devices of each pool; `None` before the first publish.
pub(super) type Index = Option<BTreeMap<String, Arc<DesiredPool>>>;

/// A handle to look up published attributes with. It answers from memory, also while the API server is not available.
#[derive(Debug, Clone)]
pub struct PublishedAttributes(pub(super) watch::Receiver<Index>);

/// Why the published attributes of a device are not available.
#[derive(Debug, thiserror::Error)]
pub enum LookupError {
    /// Nothing was published in time.
    #[error(
        "the attributes of its devices are to be those that the driver published, but it has published nothing within {} s",
        FIRST_PUBLISH_TIMEOUT.as_secs()
    )]
    NothingPublished,
    /// The published device cannot be decoded.
    #[error("read the published attributes of device {pool}/{device}: {source}")]
    Read {
        /// The device's pool.
        pool: String,
        /// The device.
        device: String,
        /// The cause.
        source: serde_json::Error,
    },
}

impl PublishedAttributes {
    /// Returns the published attributes of a device, or `None` if the device is not published. Waits for the first publish.
    pub async fn get(
        &self,
        pool: &str,
        device: &str,
    ) -> Result<Option<BTreeMap<String, DeviceAttribute>>, LookupError> {
        let mut index = self.0.clone();
        let published = timeout(FIRST_PUBLISH_TIMEOUT, index.wait_for(Option::is_some)).await;
        let Ok(Ok(index)) = published else { return Err(LookupError::NothingPublished) };
        let published = index.as_ref().and_then(|pools| pools.get(pool)).cloned();
        drop(index);
        let Some((slice, number)) = published.as_ref().and_then(|pool| pool.get(device)) else { return Ok(None) };
        match device_json::read_attributes(slice.text(number)) {
            Ok(attributes) => Ok(Some(attributes)),
            Err(source) => Err(LookupError::Read { pool: pool.to_owned(), device: device.to_owned(), source }),
        }
    }
}
