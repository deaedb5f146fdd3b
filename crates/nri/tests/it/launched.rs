//! A plugin that the runtime launches: its connection is descriptor 3, and its name is in the environment.
//!
//! The plugin is this test binary, run again with the environment that a runtime gives to a plugin.

use std::os::fd::OwnedFd;
use std::process::{Command, Stdio};

use drakkar_nri::{DESCRIPTOR_VARIABLE, Events, INDEX_VARIABLE, NAME_VARIABLE, Plugin, StartError};
use tokio::net::UnixStream;

use crate::plugin::Recorder;
use crate::runtime::{Peer, configure, patiently};

/// The plugin, in a process of its own. Does nothing when it is run as a test.
#[tokio::test]
async fn plugin_process() {
    if std::env::var_os(DESCRIPTOR_VARIABLE).is_none() {
        return;
    }
    let (recorder, mut log) = Recorder::new();
    let plugin = Plugin::new("other", 99).events(Events::POD_LIFECYCLE).socket("/nonexistent");
    let handle = match plugin.start(recorder) {
        Ok(handle) => handle,
        Err(error @ StartError::Descriptor { .. }) => panic!("{error}"),
        Err(error) => panic!("another error: {error}"),
    };
    handle.ended().await;
    while let Ok(line) = log.try_recv() {
        println!("{line}");
    }
}

/// Runs the plugin with a file as its descriptor 3.
fn launch(descriptor: impl Into<Stdio>) -> Command {
    let test = std::env::current_exe().unwrap();
    let mut command = Command::new("/bin/sh");
    // Descriptors other than the first three are not passed on by the standard library, but by a shell.
    command.args(["-c", r#"exec "$0" "$@" 3<&0 </dev/null"#]).arg(test);
    command.args(["--exact", "launched::plugin_process", "--nocapture"]);
    command.env_clear().env(NAME_VARIABLE, "logger").env(INDEX_VARIABLE, "07").env(DESCRIPTOR_VARIABLE, "3");
    command.stdin(descriptor).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

#[tokio::test]
async fn a_launched_plugin_uses_its_descriptor_and_ends_with_it() {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let theirs = OwnedFd::from(theirs.into_std().unwrap());
    let child = launch(Stdio::from(theirs)).spawn().unwrap();
    let mut peer = Peer::new(ours);
    let register = peer.register().await;
    assert_eq!((&*register.plugin_name, &*register.plugin_idx), ("logger", "07"));
    let mut request = configure();
    request.config = "level: debug".to_owned();
    assert_eq!(peer.configure(&request).await, 7);
    peer.synchronize(Vec::new()).await;
    assert_eq!(peer.run("train").await, Ok(()));
    drop(peer);
    let output = patiently(tokio::task::spawn_blocking(|| child.wait_with_output())).await.unwrap().unwrap();
    let output_text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{output_text}");
    assert!(output_text.contains(r#"configure containerd v2.3.4 "level: debug" 0x0007"#), "{output_text}");
    assert!(output_text.contains("run train"), "{output_text}");
}

#[tokio::test]
async fn a_descriptor_that_is_no_socket_is_an_error() {
    let mut command = launch(Stdio::null());
    let output = tokio::task::spawn_blocking(move || command.output()).await.unwrap().unwrap();
    assert!(!output.status.success());
    let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(text.contains(r#"the connection in NRI_PLUGIN_SOCKET="3""#), "{text}");
}
