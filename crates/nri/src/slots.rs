//! Limits on handlers that run at once, over all connections of a plugin.
//!
//! A runtime sends one event at a time, so only handlers that were abandoned add up.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::status::{Code, Status};

/// Handlers that run at once.
const MAX_HANDLERS: usize = 64;
/// Handlers of `Configure` and `Synchronize` that run at once.
const MAX_HANDSHAKES: usize = 8;
/// The encoded requests of the handlers that run at once, together.
const MAX_BYTES: usize = 16 << 20;

/// The room for handlers.
#[derive(Debug)]
pub(crate) struct Slots {
    events: Arc<Semaphore>,
    handshakes: Arc<Semaphore>,
    bytes: Arc<Semaphore>,
}

/// The room that a handler takes, until it is dropped.
#[derive(Debug)]
pub(crate) struct Slot {
    _handler: OwnedSemaphorePermit,
    _bytes: Option<OwnedSemaphorePermit>,
}

impl Slots {
    pub(crate) fn new() -> Self {
        Self {
            events: Arc::new(Semaphore::new(MAX_HANDLERS)),
            handshakes: Arc::new(Semaphore::new(MAX_HANDSHAKES)),
            bytes: Arc::new(Semaphore::new(MAX_BYTES)),
        }
    }

    /// Takes room for an event whose request has a size, or says that there is none.
    pub(crate) fn take_event(&self, size: usize) -> Result<Slot, Status> {
        let handler = take(&self.events, 1, MAX_HANDLERS)?;
        let size = u32::try_from(size).unwrap_or(u32::MAX);
        let bytes = take(&self.bytes, size, MAX_BYTES)?;
        Ok(Slot { _handler: handler, _bytes: Some(bytes) })
    }

    /// Takes room for a call of the handshake. There is room of its own for these: a plugin that cannot connect is worse than
    /// one that refuses events, since pods start without it.
    pub(crate) fn take_handshake(&self) -> Result<Slot, Status> {
        Ok(Slot { _handler: take(&self.handshakes, 1, MAX_HANDSHAKES)?, _bytes: None })
    }
}

fn take(room: &Arc<Semaphore>, count: u32, of: usize) -> Result<OwnedSemaphorePermit, Status> {
    room.clone().try_acquire_many_owned(count).map_err(|_none| {
        let text = format!("the plugin is busy with calls that the runtime no longer waits for (limit {of})");
        tracing::warn!(reason = text, "call refused");
        Status::new(Code::RESOURCE_EXHAUSTED, text)
    })
}
