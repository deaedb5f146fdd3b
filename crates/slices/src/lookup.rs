//! What a driver published of a device, for those who prepare it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use drakkar_metadata::DeviceAttribute;
use serde::Deserialize;
use tokio::sync::watch;
use tokio::time::timeout;

use super::wanted::Devices;

/// How long a prepare waits for the driver to publish for the first time: it may be asked before it knows its devices.
const PATIENCE: Duration = Duration::from_secs(10);

/// The devices of each pool, once something was published.
pub(super) type Index = Option<BTreeMap<String, Arc<Devices>>>;

/// What the driver published of its devices.
#[derive(Debug, Clone)]
pub struct PublishedAttributes(pub(super) watch::Receiver<Index>);

/// Why attributes of devices cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum LookupError {
    /// The driver has not published anything in time.
    #[error(
        "the attributes of its devices are to be those that the driver published, but it has published nothing within {} s",
        PATIENCE.as_secs()
    )]
    NothingPublished,
    /// What was published cannot be read again.
    #[error("read what the driver published of device {pool}/{device}: {source}")]
    Read {
        /// The device's pool.
        pool: String,
        /// The device.
        device: String,
        /// Why it cannot be read.
        source: serde_json::Error,
    },
}

#[derive(Deserialize)]
struct Published {
    #[serde(default)]
    attributes: BTreeMap<String, DeviceAttribute>,
}

impl PublishedAttributes {
    /// The attributes that were published of a device; none if the device was not published.
    pub async fn get(
        &self,
        pool: &str,
        device: &str,
    ) -> Result<Option<BTreeMap<String, DeviceAttribute>>, LookupError> {
        let mut index = self.0.clone();
        let published = timeout(PATIENCE, index.wait_for(Option::is_some)).await;
        let Ok(Ok(index)) = published else { return Err(LookupError::NothingPublished) };
        let devices = index.as_ref().and_then(|pools| pools.get(pool)).cloned();
        drop(index);
        let Some(item) = devices.as_ref().and_then(|devices| devices.get(device)) else { return Ok(None) };
        match serde_json::from_str::<Published>(item.json.get()) {
            Ok(published) => Ok(Some(published.attributes)),
            Err(source) => Err(LookupError::Read { pool: pool.to_owned(), device: device.to_owned(), source }),
        }
    }
}
