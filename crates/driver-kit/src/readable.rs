//! Waiting for file descriptors: inotify, netlink.

use std::io;
use std::os::fd::AsRawFd;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Registers a file descriptor with the runtime for reading. The owner must keep its descriptor for as long as it lives.
#[allow(
    deprecated,
    reason = "its replacement is unsafe, for types whose descriptor can change; the types used here own theirs"
)]
pub fn register_readable<T: AsRawFd>(owner: T) -> io::Result<AsyncFd<T>> {
    AsyncFd::with_interest(owner, Interest::READABLE)
}
