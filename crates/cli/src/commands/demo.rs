//! `drakkar demo`: a node in one process, drivers in others, and a pod that gets devices from them.
//!
//! Everything is real but the hardware and the cluster: the drivers are processes on the framework that anybody's driver
//! is on, the kubelet calls them over their sockets, and the containers are processes with mounts of their own. What is
//! shown of a container was run in it.

mod own;
mod pod;
mod samples;
mod show;
mod shown;

use std::path::PathBuf;

use drakkar_node::{Isolation, Node, NodeError, Runner};
use tokio::signal::unix::{Signal, SignalKind, signal};

use self::show::{Steps, say};
use crate::args::DemoOptions;
use crate::exit::{Code, Failure};

/// Where a container finds this command.
const COMMAND_IN_CONTAINER: &str = "/drakkar";

pub(crate) fn run(options: &DemoOptions) -> Result<(), Failure> {
    runtime()?.block_on(async {
        // A signal ends the demo where it is: what runs goes with the node.
        let mut interrupted = Signals::new()?;
        tokio::select! {
            told = from_start_to_end(options) => told,
            () = interrupted.any() => Ok(()),
        }
    })
}

async fn from_start_to_end(options: &DemoOptions) -> Result<(), Failure> {
    let mut steps = Steps::default();
    let node = start(options, &mut steps).await?;
    tell(&node, options, &mut steps).await?;
    Ok(node.stop().await?)
}

/// The signals that end a program politely.
struct Signals([Signal; 3]);

impl Signals {
    fn new() -> Result<Self, Failure> {
        let [interrupt, terminate, hangup] =
            [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()].map(signal);
        Ok(Self([interrupt?, terminate?, hangup?]))
    }

    async fn any(&mut self) {
        let [interrupt, terminate, hangup] = &mut self.0;
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
            _ = hangup.recv() => {}
        }
    }
}

/// A sample driver, as a process of its own.
pub(crate) use self::samples::drive;

fn runtime() -> Result<tokio::runtime::Runtime, Failure> {
    // Two threads: API server, scheduler and kubelet do not wait for each other.
    Ok(tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?)
}

async fn start(options: &DemoOptions, steps: &mut Steps) -> Result<Node, Failure> {
    let isolation = match options.runtime.as_deref() {
        None => Isolation::Auto,
        Some("none") => Isolation::ShowOnly,
        Some(runtime) => Isolation::Oci(find_runtime(runtime)?),
    };
    let node = Node::builder().name("worker-0").isolation(isolation).start().await?;
    steps.step("A node: API server, scheduler, kubelet, container runner")?;
    tell_isolation(node.runner())?;
    for note in node.runner().isolation_notes() {
        say(&format!("({note})"))?;
    }
    say("")?;
    Ok(node)
}

/// What containers are kept apart by, in lines of at most 80 columns, and what that is not.
fn tell_isolation(runner: &Runner) -> Result<(), Failure> {
    let means = runner.isolation_summary();
    let (first, rest) = means.split_once("), ").map_or((means.as_str(), ""), |(first, rest)| (first, rest));
    if rest.is_empty() {
        return say(&format!("Containers are kept apart by: {first}."));
    }
    say(&format!("Containers are kept apart by: {first}),"))?;
    let processes = if *runner.isolation() == Isolation::UserNamespace { ", processes" } else { "" };
    say(&format!("{rest}. Network{processes} and programs are the host's:"))?;
    say("it is not a sandbox for code that you do not trust.")
}

async fn tell(node: &Node, options: &DemoOptions, steps: &mut Steps) -> Result<(), Failure> {
    match &options.driver {
        Some(command) => own::tell(node, command, options.keep, steps).await,
        None => samples::tell(node, options.keep, steps).await,
    }
}

/// An OCI runtime, by its path or by its name.
fn find_runtime(name: &str) -> Result<PathBuf, Failure> {
    if name.contains('/') {
        return Ok(PathBuf::from(name));
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).map(|directory| directory.join(name)).find(|file| file.is_file());
    found.ok_or_else(|| {
        Failure::new(Code::NotFound, format!("there is no {name} in PATH: install it, or leave --runtime out"))
    })
}

/// Tells how to look around, and waits for the user to end it.
async fn keep(node: &Node, pod: &drakkar_node::PodHandle<'_>, container: &str) -> Result<(), Failure> {
    let kubeconfig = node.write_admin_kubeconfig()?;
    say("It goes on running. In another terminal:")?;
    say("")?;
    let directory = node.directory().display().to_string();
    say(&format!("  export KUBECONFIG={}", kubeconfig.display()))?;
    say("  kubectl get pods,resourceclaims,resourceslices")?;
    say(&format!("  find {directory} -name '*.json'"))?;
    if let Some(pid) = pod.process(container) {
        say(&format!("  drakkar --root /proc/{pid}/root list"))?;
        let others = if *node.runner().isolation() == Isolation::Root { "-p" } else { "-U --preserve-credentials" };
        say(&format!("  nsenter -t {pid} -m {others} {COMMAND_IN_CONTAINER} list"))?;
    }
    say("")?;
    say("Ctrl-C ends it, and nothing is left behind.")?;
    std::future::pending().await
}

impl From<NodeError> for Failure {
    fn from(error: NodeError) -> Self {
        Self::new(Code::Refused, format!("the demo did not go as it should: {error}"))
    }
}
