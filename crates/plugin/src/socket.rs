//! The unix sockets of a driver's instance: what they are called, and the files that they are.
//!
//! An instance has two: the *registration* socket in the kubelet's registry directory, by which the kubelet finds it, and
//! the *DRA* socket in the driver's own directory, by which the kubelet uses it. This module owns both names and both
//! files; nothing else creates, probes or removes a socket.
//!
//! Promises:
//! - A name fits the kernel's limit, or there is an error that says what to change ([`name`]).
//! - A socket that can be seen under its name has somebody who listens, or its process is dead. The kubelet dials as soon
//!   as it sees a socket, and other instances take a socket that refuses connections for dead, so a socket is bound and
//!   listens under a dot name first, which everybody ignores, and is then renamed into place ([`mod@file`]).
//! - What is in the way is only removed if it is a socket that refuses connections. A live socket, and a file of another
//!   kind, are errors that name the path.
//! - A socket's file is removed with its [`SocketFile`], unless another file has taken its name meanwhile.

mod file;
mod name;
mod stale;
#[cfg(test)]
pub(crate) mod watch;

pub(crate) use file::{SocketError, SocketFile, ensure_not_live, listen};
pub(crate) use name::{PodUid, SocketNameError, dra_socket, registration_socket};
pub(crate) use stale::{Sweep, sweep_plugin_directory, sweep_registry};
