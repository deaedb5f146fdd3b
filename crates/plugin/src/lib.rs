//! The kubelet-plugin framework of Drakkar: write a DRA driver in Rust.
//!
//! It is being built, room by room. Here today, with their tests, but not yet joined to something that a driver can
//! start: the wire messages of the kubelet ([`proto`]), sockets that are never stolen and never left behind
//! ([`socket`]), servers that drain and survive a driver's panic ([`server`]), registration with unmodified kubelets
//! ([`registration`]), and the metadata of prepared claims on disk, safe against a crash between any two system calls
//! ([`store`]). The driver's trait, claim retrieval, health and `start` come next.
#![allow(
    dead_code,
    unused_imports,
    rustdoc::private_intra_doc_links,
    reason = "the rooms are used by their tests only, until `start` joins them"
)]

mod proto;
mod registration;
mod server;
mod socket;
mod store;
