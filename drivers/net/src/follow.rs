//! The task that follows the events of a host and the configuration of the driver.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use drakkar_driver_kit::config::watch::{ConfigChange, ConfigFile};

use crate::config::Config;
use crate::events::{EventStream, HostChanges};
use crate::interfaces::Interfaces;

/// The pause after a failure of the events or of reading the host.
const PAUSE: Duration = Duration::from_secs(1);

/// What keeps the interfaces up to date.
#[derive(Debug)]
pub struct Following {
    /// The interfaces.
    pub interfaces: Arc<Interfaces>,
    /// The events of the host.
    pub events: EventStream,
    /// The configuration file.
    pub file: ConfigFile<Config>,
}

impl Following {
    /// Follows events and configuration, for [`Background`](drakkar_driver_kit::background::Background). `reloaded` is called with
    /// whether a new configuration was valid.
    pub async fn run(mut self, reloaded: impl Fn(bool) + Send) -> Infallible {
        loop {
            tokio::select! {
                changes = self.events.next() => match changes {
                    Ok(changes) => self.apply(changes).await,
                    Err(error) => {
                        tracing::error!(%error, "events of the kernel lost, reading everything again");
                        tokio::time::sleep(PAUSE).await;
                        self.apply(HostChanges::overrun()).await;
                    }
                },
                change = self.file.changed() => {
                    reloaded(change.is_ok());
                    self.configure(change).await;
                }
            }
        }
    }

    async fn apply(&self, changes: HostChanges) {
        let interfaces = self.interfaces.clone();
        let applied = tokio::task::spawn_blocking(move || interfaces.apply(&changes)).await;
        let error = match applied {
            Ok(Ok(())) => return,
            Ok(Err(error)) => error.to_string(),
            Err(error) => error.to_string(),
        };
        tracing::error!(error, "events not handled, reading everything again");
        tokio::time::sleep(PAUSE).await;
        let interfaces = self.interfaces.clone();
        match tokio::task::spawn_blocking(move || interfaces.resync()).await {
            Ok(Ok(())) => {}
            // The next event reads everything again.
            Ok(Err(error)) => tracing::error!(%error, "interfaces not read"),
            Err(error) => tracing::error!(%error, "keeping interfaces up to date failed"),
        }
    }

    /// Takes over a new configuration, or says why the old one stays.
    async fn configure(&self, change: ConfigChange<Config>) {
        match change {
            Ok(config) => {
                tracing::info!(rules = config.devices.len(), "configuration replaced");
                let interfaces = self.interfaces.clone();
                if let Err(error) = tokio::task::spawn_blocking(move || interfaces.set_config(config)).await {
                    tracing::error!(%error, "keeping interfaces up to date failed");
                }
            }
            Err(error) => tracing::error!(%error, "new configuration refused, the old one stays in use"),
        }
    }
}
