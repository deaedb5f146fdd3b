//! What the kernel reports of a host: interfaces, addresses and routes over netlink, PCI functions and RDMA devices over uevents.

use std::io;

use drakkar_driver_kit::readable::register_readable;
use drakkar_netlink::{Event, Monitor, Namespace};
use drakkar_sysfs::{DeviceEvent, Uevent, UeventError, UeventSocket};
use tokio::io::unix::AsyncFd;

/// The most uevents that are handled at once. A device that comes with a thousand virtual functions sends thousands.
const BATCH: usize = 4096;

/// The events of a host. Open them before the first scan, so that nothing is missed in between.
#[derive(Debug)]
pub struct Events {
    monitor: Monitor,
    uevents: UeventSocket,
}

/// Events that cannot be followed.
#[derive(Debug, thiserror::Error)]
pub enum EventsError {
    /// Netlink failed.
    #[error(transparent)]
    Netlink(#[from] drakkar_netlink::Error),
    /// The uevents failed.
    #[error(transparent)]
    Uevents(#[from] UeventError),
    /// The runtime cannot wait for a socket.
    #[error("wait for events: {0}")]
    Wait(#[from] io::Error),
}

/// What the kernel has reported.
#[derive(Debug, Default)]
pub struct HostChanges {
    /// About interfaces, addresses and routes.
    pub network: Vec<Event>,
    /// About PCI functions and RDMA devices.
    pub devices: Vec<Uevent>,
}

impl HostChanges {
    /// Events were lost.
    pub fn overrun() -> Self {
        Self { network: vec![Event::Overrun], devices: Vec::new() }
    }
}

impl Events {
    /// Follows a network namespace. Uevents are those of the namespace of the calling thread.
    pub fn open(namespace: &Namespace) -> Result<Self, EventsError> {
        Ok(Self { monitor: Monitor::open(namespace)?, uevents: UeventSocket::open()? })
    }

    /// Makes the events ready for the runtime, which must be running.
    pub fn into_stream(self) -> Result<EventStream, EventsError> {
        Ok(EventStream { monitor: register_readable(self.monitor)?, uevents: register_readable(self.uevents)? })
    }
}

/// Events that the runtime can wait for.
#[derive(Debug)]
pub struct EventStream {
    monitor: AsyncFd<Monitor>,
    uevents: AsyncFd<UeventSocket>,
}

impl EventStream {
    /// Waits for events, and returns those that are there. The wait can be given up at any time, and nothing is missed.
    pub async fn next(&mut self) -> Result<HostChanges, EventsError> {
        loop {
            let changes = tokio::select! {
                ready = self.monitor.readable_mut() => {
                    let mut ready = ready?;
                    let network = ready.get_inner_mut().receive()?;
                    if network.is_empty() {
                        ready.clear_ready();
                    }
                    HostChanges { network, ..HostChanges::default() }
                }
                ready = self.uevents.readable() => {
                    let mut ready = ready?;
                    let devices = ready.get_inner().receive_all(BATCH)?;
                    if devices.is_empty() {
                        ready.clear_ready();
                    }
                    let devices = devices.into_iter().filter(is_of_interest).collect();
                    HostChanges { devices, ..HostChanges::default() }
                }
            };
            if !changes.network.is_empty() || !changes.devices.is_empty() {
                return Ok(changes);
            }
        }
    }
}

/// Returns whether an event is about something that the inventory has. Of interfaces netlink says more.
fn is_of_interest(event: &Uevent) -> bool {
    match event {
        Uevent::Overflow => true,
        Uevent::Device(DeviceEvent { subsystem, .. }) => matches!(subsystem.as_str(), "pci" | "infiniband"),
    }
}
