//! Tests of the rules against recorded responses of a kube-apiserver.

mod access;
mod formats;
mod real_server;
mod recorded;
