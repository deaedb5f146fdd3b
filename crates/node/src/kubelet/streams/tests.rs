//! Logs of and programs in real containers, as the API server asks for them.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use drakkar_apiserver::Kubelet as _;
use futures::StreamExt as _;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::*;
use crate::runner::{Config, ContainerId, ContainerSpec, Runner};

struct Bench {
    streams: Streams,
    runner: Arc<Runner>,
    _directory: TempDir,
}

fn bench() -> Bench {
    let directory = tempfile::tempdir().unwrap();
    let config = Config::new([directory.path().join("cdi")], directory.path().join("state"));
    let runner = Arc::new(Runner::new(config).unwrap());
    Bench { streams: Streams::new(runner.clone()), runner, _directory: directory }
}

fn main_container() -> ContainerRef {
    let text = str::to_owned;
    ContainerRef { namespace: text("default"), pod: text("p"), pod_uid: text("uid"), container: text("main") }
}

impl Bench {
    async fn run(&self, script: &str) -> ContainerId {
        let spec = ContainerSpec {
            pod_uid: "uid".into(),
            pod_name: "p".into(),
            namespace: "default".into(),
            name: "main".into(),
            command: vec!["sh".into(), "-c".into(), script.into()],
            ..ContainerSpec::default()
        };
        self.runner.start(spec).await.unwrap()
    }

    async fn logs(&self, options: LogOptions) -> Result<String, KubeletError> {
        let mut log = self.streams.logs(main_container(), options).await?;
        let mut text = Vec::new();
        while let Some(piece) = log.next().await {
            text.extend_from_slice(&piece.unwrap());
        }
        Ok(String::from_utf8(text).unwrap())
    }

    async fn exec(&self, script: &str, stdin: bool, tty: bool) -> ExecSession {
        let command = ["sh", "-c", script].map(str::to_owned).to_vec();
        let options = ExecOptions { command, stdin, stdout: true, stderr: !tty, tty };
        self.streams.exec(main_container(), options).await.unwrap()
    }
}

async fn read(from: Option<Box<dyn tokio::io::AsyncRead + Send + Unpin>>) -> String {
    let mut text = String::new();
    from.unwrap().read_to_string(&mut text).await.unwrap();
    text
}

#[tokio::test]
async fn logs_are_whole_or_their_last_lines() {
    let bench = bench();
    let error = bench.logs(LogOptions::default()).await.unwrap_err();
    assert_eq!(error.to_string(), r#"container "main" in pod "p" is waiting to start: ContainerCreating"#);
    let id = bench.run("seq 1 30000").await;
    bench.runner.wait(&id).await.unwrap();
    let all = bench.logs(LogOptions::default()).await.unwrap();
    assert_eq!((all.lines().count(), all.lines().last()), (30_000, Some("30000")));
    for (lines, wanted) in [(0, ""), (1, "30000\n"), (3, "29998\n29999\n30000\n"), (40_000, all.as_str())] {
        let tail = bench.logs(LogOptions { tail_lines: Some(lines), ..LogOptions::default() }).await.unwrap();
        assert!(tail == wanted, "the last {lines} lines: {} bytes", tail.len());
    }
    // More lines than fit into what is read at once.
    let tail = bench.logs(LogOptions { tail_lines: Some(25_000), ..LogOptions::default() }).await.unwrap();
    assert_eq!(tail.lines().next(), Some("5001"));
    let start = bench.logs(LogOptions { limit_bytes: Some(5), ..LogOptions::default() }).await.unwrap();
    assert_eq!(start, "1\n2\n3");
}

#[tokio::test]
async fn logs_of_the_run_before_a_restart_are_kept() {
    let bench = bench();
    let id = bench.run("echo first").await;
    bench.runner.wait(&id).await.unwrap();
    let previous = LogOptions { previous: true, ..LogOptions::default() };
    let error = bench.logs(previous.clone()).await.unwrap_err();
    assert_eq!(error.to_string(), r#"previous terminated container "main" in pod "p" not found"#);
    let id = bench.run("echo second").await;
    bench.runner.wait(&id).await.unwrap();
    assert_eq!(bench.logs(LogOptions::default()).await.unwrap(), "second\n");
    assert_eq!(bench.logs(previous).await.unwrap(), "first\n");
}

#[tokio::test]
async fn logs_are_followed_until_the_container_exits() {
    let bench = bench();
    let gate = bench._directory.path().join("gate");
    rustix::fs::mkfifoat(rustix::fs::CWD, &gate, rustix::fs::Mode::from_raw_mode(0o600)).unwrap();
    let mut spec = ContainerSpec {
        pod_uid: "uid".into(),
        name: "main".into(),
        command: ["sh", "-c", "echo before; read line < /gate; echo $line; exit 3"].map(str::to_owned).to_vec(),
        ..ContainerSpec::default()
    };
    let host = crate::runner::HostPath { host: gate.clone(), container: "/gate".into(), read_only: false };
    spec.host_paths.push(host);
    bench.runner.start(spec).await.unwrap();
    let follow = LogOptions { follow: true, ..LogOptions::default() };
    let mut log = bench.streams.logs(main_container(), follow).await.unwrap();
    assert_eq!(log.next().await.unwrap().unwrap(), "before\n");
    tokio::task::spawn_blocking(move || std::fs::write(gate, "after\n").unwrap()).await.unwrap();
    assert_eq!(log.next().await.unwrap().unwrap(), "after\n");
    assert!(log.next().await.is_none());
}

#[tokio::test]
async fn a_program_has_input_output_errors_and_an_exit_code() {
    let bench = bench();
    let error = bench.streams.exec(main_container(), ExecOptions::default()).await.unwrap_err();
    assert_eq!(error.to_string(), r#"container not found ("main")"#);
    bench.run("sleep 1000").await;
    let mut session = bench.exec("tr a-z A-Z; echo failed >&2; exit 7", true, false).await;
    let mut input = session.stdin.take().unwrap();
    // More than a pipe holds: input and output flow at the same time.
    let text = "some words\n".repeat(20_000);
    let sent = text.clone();
    let writer = tokio::spawn(async move {
        input.write_all(sent.as_bytes()).await.unwrap();
    });
    let (output, errors) = tokio::join!(read(session.stdout.take()), read(session.stderr.take()));
    writer.await.unwrap();
    assert!(output == text.to_uppercase(), "{} bytes", output.len());
    assert_eq!((errors.as_str(), session.exit.await.unwrap()), ("failed\n", 7));
    // Without input, a program that reads finds the end at once.
    let mut session = bench.exec("cat; echo end", false, false).await;
    assert_eq!((read(session.stdout.take()).await.as_str(), session.exit.await.unwrap()), ("end\n", 0));
}

#[tokio::test]
async fn a_program_has_a_terminal_of_the_size_that_is_set() {
    let bench = bench();
    bench.run("sleep 1000").await;
    let mut session = bench.exec("read line; stty size; test -t 0 && echo $TERM", true, true).await;
    session.resize.as_ref().unwrap()(100, 30);
    let mut input = session.stdin.take().unwrap();
    input.write_all(b"go\n").await.unwrap();
    let mut output = session.stdout.take().unwrap();
    let mut text = Vec::new();
    let mut piece = [0; 1024];
    // The end of a terminal is an error to read, unlike that of a pipe.
    while let Ok(length) = output.read(&mut piece).await {
        if length == 0 {
            break;
        }
        text.extend_from_slice(&piece[..length]);
    }
    let text = String::from_utf8(text).unwrap();
    assert_eq!(text, "go\r\n30 100\r\nxterm\r\n");
    assert_eq!(session.exit.await.unwrap(), 0);
}

#[tokio::test]
async fn a_program_ends_with_its_session() {
    let bench = bench();
    bench.run("sleep 1000").await;
    let mut session = bench.exec("echo $$; exec sleep 1000", false, false).await;
    let mut output = session.stdout.take().unwrap();
    let mut first = [0; 64];
    assert!(output.read(&mut first).await.unwrap() > 0);
    drop(session);
    // The other end of its output is closed when it is gone.
    assert_eq!(output.read(&mut first).await.unwrap(), 0);
}
