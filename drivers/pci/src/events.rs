//! Where events about devices come from: the kernel's netlink socket, or the channel of a simulated kernel.

use std::sync::mpsc as std_mpsc;

use drakkar_driver_kit::readable::register_readable;
use drakkar_sysfs::{Uevent, UeventError, UeventSocket};
use tokio::io::unix::AsyncFd;
use tokio::sync::mpsc;

/// The most events that are handled at once. A device that comes with a thousand virtual functions sends thousands.
const BATCH: usize = 4096;

/// A source of events. Open it before the first scan, so that nothing is missed in between.
#[derive(Debug)]
pub enum Events {
    /// The kernel's socket.
    Kernel(UeventSocket),
    /// The channel of a simulated kernel.
    Simulated(std_mpsc::Receiver<Uevent>),
}

impl Events {
    /// Makes the source ready for the runtime, which must be running.
    pub(crate) fn into_stream(self) -> Result<EventStream, UeventError> {
        match self {
            Self::Kernel(socket) => {
                register_readable(socket).map(EventStream::Kernel).map_err(|source| UeventError::Open { source })
            }
            Self::Simulated(events) => {
                let (sender, receiver) = mpsc::unbounded_channel();
                // The channel of the standard library can only be waited for by a thread, which ends with either side.
                std::thread::Builder::new()
                    .name("simulated-uevents".to_owned())
                    .spawn(move || events.into_iter().try_for_each(|event| sender.send(event)))
                    .map_err(|source| UeventError::Open { source })?;
                Ok(EventStream::Simulated(receiver))
            }
        }
    }
}

/// A source of events that the runtime can wait for.
#[derive(Debug)]
pub(crate) enum EventStream {
    Kernel(AsyncFd<UeventSocket>),
    Simulated(mpsc::UnboundedReceiver<Uevent>),
}

impl EventStream {
    /// Waits for events, and returns all that are there. Empty: the simulated kernel is gone.
    pub(crate) async fn next(&mut self) -> Result<Vec<Uevent>, UeventError> {
        match self {
            Self::Kernel(socket) => loop {
                let mut ready = socket.readable().await.map_err(|source| UeventError::Receive { source })?;
                let events = ready.get_inner().receive_all(BATCH)?;
                if events.is_empty() {
                    ready.clear_ready();
                } else {
                    return Ok(events);
                }
            },
            Self::Simulated(receiver) => {
                let mut events = Vec::new();
                receiver.recv_many(&mut events, BATCH).await;
                Ok(events)
            }
        }
    }
}
