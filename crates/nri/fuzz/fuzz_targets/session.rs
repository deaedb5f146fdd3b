//! Any bytes as all that a runtime sends.
//!
//! No panic and no hang: the plugin ends soon after the connection does.

#![no_main]

use std::io::Write as _;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use drakkar_nri::{Adjustments, BoxError, Call, Container, Events, NriPlugin, Plugin, PodSandbox};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| any_bytes(bytes));

struct Nothing;

impl NriPlugin for Nothing {
    async fn run_pod_sandbox(&self, _: &Call, _: &PodSandbox) -> Result<(), BoxError> {
        Ok(())
    }

    async fn create_container(&self, _: &Call, _: &PodSandbox, _: &Container) -> Result<Adjustments, BoxError> {
        Ok(Adjustments::default())
    }
}

fn any_bytes(bytes: &[u8]) {
    // What fits into the socket's buffer, since nobody reads meanwhile.
    let bytes = &bytes[..bytes.len().min(64 << 10)];
    let tokio = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    tokio.block_on(async {
        let (mut ours, theirs) = UnixStream::pair().expect("a socket pair");
        ours.write_all(bytes).expect("it fits");
        ours.shutdown(Shutdown::Write).expect("it is connected");
        let plugin = Plugin::new("fuzz", 1).events(Events::ALL);
        let handle = plugin.start_on(theirs, Arc::new(Nothing)).expect("it starts");
        tokio::time::timeout(Duration::from_secs(20), handle.ended()).await.expect("it ends");
        tokio::time::timeout(Duration::from_secs(20), handle.stop()).await.expect("it stops");
    });
}
