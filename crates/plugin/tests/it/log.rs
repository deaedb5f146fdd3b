//! Tests of the log.

use std::io;
use std::sync::{Arc, Mutex};

use tracing_subscriber::fmt::MakeWriter;

use crate::support::{Kubelet, Node, TestClaim, TestDriver};

/// A log in memory.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }
}

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Log {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}

/// A user controls the parameters of a claim, and a driver's error may quote them: they must not forge log lines or control a
/// terminal.
#[tokio::test]
async fn an_error_that_quotes_a_tenants_text_stays_one_line_of_the_log() {
    const FORGED: &str =
        "bad mode \"x\n2026-01-01T00:00:00Z  INFO drakkar_plugin: all is well\u{1b}[2J\u{9b}31m\u{202e}\r\"";
    let log = Log::default();
    let subscriber = tracing_subscriber::fmt().with_writer(log.clone()).with_ansi(false).finish();
    // Global, so it also receives events of other tests: a subscriber for this thread alone misses events whose callsite another
    // thread has registered first.
    tracing::subscriber::set_global_default(subscriber).unwrap();
    let drivers = [
        TestDriver::preparing(|_| Err(FORGED.into())),
        TestDriver::preparing(|_| Err(io::Error::other(FORGED).into())),
        TestDriver::preparing(|_| panic!("{FORGED}")),
    ];
    for driver in drivers {
        let node = Node::default();
        let claim = node.claim(TestClaim::new("train", "uid-of-train").device("gpu", "gpu-0"));
        let helper = node.start(&driver).await;
        let kubelet = Kubelet::of(&helper).await;

        let error = kubelet.prepare_one(&claim).await.unwrap_err();

        assert!(error.contains("bad mode") && !error.contains(char::is_control), "{error:?}");
        helper.stop().await.unwrap();
    }
    let text = log.text();
    let quoting: Vec<&str> = text.split('\n').filter(|line| line.contains("all is well")).collect();
    assert!(quoting.len() >= 3, "{text}");
    for line in quoting {
        assert!(line.contains("failed") && line.contains("bad mode"), "not a line of the framework: {line:?}");
        assert!(!line.contains(char::is_control) && !line.contains('\u{202e}'), "{line:?}");
    }
}
