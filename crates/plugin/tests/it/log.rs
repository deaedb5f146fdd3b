//! Tests of the log.

use std::io;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use tracing_subscriber::fmt::MakeWriter;

use crate::support::{Kubelet, Node, TIMEOUT, TestClaim, TestDriver};

/// A log in memory.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    /// Returns the log of this process. It is global, so it also has the events of other tests: a subscriber for one thread alone
    /// misses events whose callsite another thread has registered first.
    fn global() -> Self {
        static LOG: OnceLock<Log> = OnceLock::new();
        let log = LOG.get_or_init(|| {
            let log = Self::default();
            let subscriber = tracing_subscriber::fmt().with_writer(log.clone()).with_ansi(false).finish();
            tracing::subscriber::set_global_default(subscriber).unwrap();
            log
        });
        log.clone()
    }

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
    let log = Log::global();
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

/// The driver blocks until the warning about it is in the log, on the only thread of the runtime.
#[tokio::test]
async fn a_driver_that_blocks_in_prepare_is_warned_about_by_name() {
    let log = Log::global();
    let is_warned = move || {
        let text = log.text();
        text.lines().any(|line| line.contains("driver code blocks a thread") && line.contains("call=\"prepare\""))
    };
    let driver = TestDriver::preparing(move |claim| {
        let deadline = Instant::now() + TIMEOUT;
        while !is_warned() {
            assert!(Instant::now() < deadline, "no warning");
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(claim.results().map(drakkar_plugin::Device::from).collect())
    });
    let node = Node::default();
    let claim = node.claim(TestClaim::new("train", "uid-of-train").device("gpu", "gpu-0"));
    let helper = node.start(&driver).await;
    Kubelet::of(&helper).await.prepare_one(&claim).await.unwrap();
    helper.stop().await.unwrap();
}
