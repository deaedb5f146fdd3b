//! The unix sockets of a driver instance: their names and their files.
//!
//! An instance has two: the *registration* socket in the kubelet's registry directory, where the kubelet discovers the
//! driver, and the *DRA* socket in the driver's own directory, where the kubelet calls it. This module owns both names and
//! both files; nothing else creates, probes or removes a socket.
//!
//! Promises:
//! - A path fits the kernel's limit, or the error says what to change ([`name`]).
//! - A socket that is visible under its name is listening, or its process is dead. The kubelet dials as soon as it sees a
//!   socket, and other instances take a socket that refuses connections for stale. So a socket is bound and listens under
//!   a name with a leading dot, which the kubelet ignores, and is then renamed into place ([`mod@file`]).
//! - An existing file is removed only if it is a socket that refuses connections. A live socket, and a file of another
//!   kind, are errors that name the path.
//! - A socket's file is removed with its [`SocketFile`], unless another file has replaced it.

mod file;
mod name;
mod stale;
#[cfg(test)]
pub(crate) mod watch;

pub(crate) use file::{SocketError, SocketFile, ensure_not_live, listen};
pub(crate) use name::{PodUid, SocketNameError, dra_socket, registration_socket};
pub(crate) use stale::{Sweep, is_dra_socket, is_registration_socket, sweep_plugin_directory, sweep_registry};
