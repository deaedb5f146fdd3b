//! Bytes that no runtime sends: the connection ends or the call fails, within limits.

use drakkar_nri::api::OptionalString;
use drakkar_nri::{ConnectionError, State};
use proptest::prelude::*;
use rstest::rstest;

use crate::plugin::{start, wait_for};
use crate::runtime::{Peer, Runtime, frame};

#[tokio::test]
async fn an_oversized_message_is_skipped_and_answered_with_code_8() {
    let runtime = Runtime::new();
    let (handle, _recorder, _log) = start(&runtime);
    let mut peer = runtime.accept_and_synchronize().await;
    let error = peer.call::<()>("RunPodSandbox", &OptionalString { value: "x".repeat(4 << 20) }).await.unwrap_err();
    assert_eq!(error.code, 8);
    assert_eq!(handle.counters().oversized, 1);
    assert_eq!(peer.run("train").await, Ok(()), "the connection is still there");
}

#[tokio::test]
async fn the_largest_message_is_read() {
    let runtime = Runtime::new();
    let (_handle, _recorder, _log) = start(&runtime);
    let mut peer = runtime.accept_and_synchronize().await;
    // A name that is nearly 4 MiB long, in an event.
    let mut pod = crate::runtime::pod("train");
    pod.id = "x".repeat((4 << 20) - 200);
    let request = drakkar_nri::api::RunPodSandboxRequest { pod: Some(pod) };
    assert_eq!(peer.call("RunPodSandbox", &request).await, Ok(()));
}

#[tokio::test]
async fn a_frame_that_is_longer_than_any_message_ends_the_connection() {
    let runtime = Runtime::new();
    let (handle, _recorder, _log) = start(&runtime);
    let mut peer = runtime.accept_and_synchronize().await;
    wait_for(&handle, State::is_synchronized).await;
    peer.write_bytes(&[0, 0, 0, 1, 0x7f, 0, 0, 0]).await;
    peer.closed().await;
    let state = wait_for(&handle, |state| !state.is_synchronized()).await;
    let State::Disconnected { error: Some(error), .. } = state else { panic!("{state:?}") };
    assert!(matches!(&*error, ConnectionError::Frame(_)), "{error}");
}

#[tokio::test]
async fn frames_of_other_connections_are_ignored() {
    let runtime = Runtime::new();
    let (_handle, _recorder, _log) = start(&runtime);
    let mut peer = runtime.accept_and_synchronize().await;
    peer.write_bytes(&frame(0, b"reserved")).await;
    peer.write_bytes(&frame(3, &[7; 100_000])).await;
    peer.write_bytes(&frame(1, b"")).await;
    assert_eq!(peer.run("train").await, Ok(()));
}

#[rstest]
#[case::repeated(1)]
#[case::even(100)]
#[case::zero(0)]
#[tokio::test]
async fn a_stream_that_is_not_odd_and_new_is_refused(#[case] stream: u32) {
    let runtime = Runtime::new();
    let (_handle, _recorder, _log) = start(&runtime);
    let mut peer = runtime.accept_and_synchronize().await;
    peer.write(1, stream, 1, b"").await;
    assert_eq!(peer.result::<()>(stream).await.unwrap_err().code, 3);
}

#[tokio::test]
async fn a_request_that_is_no_message_is_refused() {
    let runtime = Runtime::new();
    let (_handle, _recorder, _log) = start(&runtime);
    let mut peer = runtime.accept_and_synchronize().await;
    peer.write(1, 1001, 1, b"\xff\xff\xff").await;
    assert_eq!(peer.result::<()>(1001).await.unwrap_err().code, 3);
    // Part of a stream, and messages that nobody waits for.
    peer.write(1, 1003, 3, b"").await;
    assert_eq!(peer.result::<()>(1003).await.unwrap_err().code, 3);
    peer.write(1, 1005, 2, b"").await;
    peer.write(1, 1007, 77, b"").await;
    peer.write(2, 999, 2, b"").await;
    peer.write(2, 999, 1, b"").await;
    peer.write(1, 1009, 1, b"").await;
    assert_eq!(peer.result::<()>(1009).await.unwrap_err().code, 12);
}

/// The connection ends, and not the plugin, and no memory is filled.
#[tokio::test]
async fn a_runtime_that_calls_and_never_reads_is_left() {
    let runtime = Runtime::new();
    let (handle, _recorder, _log) = start(&runtime);
    let mut peer = runtime.accept_and_synchronize().await;
    wait_for(&handle, State::is_synchronized).await;
    let request = frame(1, &[0, 0, 0, 0, 0, 0, 0, 2, 1, 0]).repeat(1000);
    for _ in 0..100 {
        // Fails once the plugin has hung up.
        peer.write_bytes(&request).await;
    }
    let state = wait_for(&handle, |state| !state.is_synchronized()).await;
    let State::Disconnected { error: Some(error), .. } = state else { panic!("{state:?}") };
    assert!(matches!(&*error, ConnectionError::Backlog), "{error}");
    runtime.accept_and_synchronize().await;
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Whatever arrives, the plugin ends the connection or goes on, and then connects again.
    #[test]
    fn random_bytes_do_no_harm(bytes in prop::collection::vec(any::<u8>(), 0..2000), in_frames in any::<bool>()) {
        let tokio = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        tokio.block_on(async {
            let runtime = Runtime::new();
            let (handle, _recorder, _log) = start(&runtime);
            let mut peer: Peer = runtime.accept_and_synchronize().await;
            if in_frames {
                for piece in bytes.chunks(100) {
                    let connection = u32::from(piece[0] % 4);
                    peer.write_bytes(&frame(connection, piece)).await;
                }
            } else {
                peer.write_bytes(&bytes).await;
            }
            drop(peer);
            let mut peer = runtime.accept_and_synchronize().await;
            assert_eq!(peer.run("train").await, Ok(()));
            handle.stop().await;
        });
    }
}
