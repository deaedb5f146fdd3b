//! `drakkar demo`: an embedded node, drivers in processes of their own, and a pod with their devices.
//!
//! Everything but the hardware and the cluster is real: the drivers are processes that use the framework, the kubelet
//! calls them over their sockets, and the containers are processes with their own mounts. The output of a command in a
//! container comes from running it there.

mod cleanup;
mod driver_log;
mod dry_run;
mod edits;
mod own_driver;
mod pod;
mod print;
mod samples;
mod waiting;

use std::path::PathBuf;

use drakkar_node::{Isolation, Node, NodeError, Runner};
use tokio::signal::unix::{Signal, SignalKind, signal};

use self::cleanup::Cleanup;
pub(crate) use self::cleanup::clean_up;
use self::print::{Progress, print_line};
pub(crate) use self::samples::run_sample_driver;
use crate::args::DemoOptions;
use crate::exit::{Code, Failure};

/// The path of this command in a container.
const COMMAND_IN_CONTAINER: &str = "/drakkar";

pub(crate) fn run(options: &DemoOptions) -> Result<(), Failure> {
    runtime()?.block_on(async {
        // Dropping the node ends its processes and removes its files.
        let mut signals = Signals::new()?;
        tokio::select! {
            result = run_to_end(options) => result,
            // As a shell reports a program that a signal has ended.
            signal = signals.any() => Err(Failure::silent(128 + signal)),
        }
    })
}

async fn run_to_end(options: &DemoOptions) -> Result<(), Failure> {
    let mut progress = Progress::default();
    // Dropped after the node, which leaves nothing if it ends in order.
    let _cleanup;
    let node = start(options, &mut progress).await?;
    _cleanup = Cleanup::start(node.directory())?;
    match &options.driver {
        Some(command) => own_driver::run(&node, command, options.keep, &mut progress).await?,
        None => samples::run(&node, options.keep, &mut progress).await?,
    }
    Ok(node.stop().await?)
}

/// The signals that end the demo.
struct Signals([Signal; 3]);

impl Signals {
    fn new() -> Result<Self, Failure> {
        let [interrupt, terminate, hangup] =
            [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()].map(signal);
        Ok(Self([interrupt?, terminate?, hangup?]))
    }

    /// Waits for a signal and returns its number.
    async fn any(&mut self) -> u8 {
        let [interrupt, terminate, hangup] = &mut self.0;
        tokio::select! {
            _ = interrupt.recv() => 2,
            _ = terminate.recv() => 15,
            _ = hangup.recv() => 1,
        }
    }
}

fn runtime() -> Result<tokio::runtime::Runtime, Failure> {
    // Two threads, so that API server, scheduler and kubelet do not block each other.
    Ok(tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?)
}

async fn start(options: &DemoOptions, progress: &mut Progress) -> Result<Node, Failure> {
    let isolation = match options.runtime.as_deref() {
        None => Isolation::Auto,
        Some("none") => Isolation::ShowOnly,
        Some(runtime) => Isolation::Oci(find_runtime(runtime)?),
    };
    let node = Node::builder().name("worker-0").isolation(isolation).start().await?;
    progress.complete("A node: API server, scheduler, kubelet, container runner")?;
    print_isolation(node.runner())?;
    // The choice of the user needs no reason.
    let notes = if options.runtime.is_none() { node.runner().isolation_notes() } else { &[] };
    notes.iter().try_for_each(|note| print_line(&format!("({note})")))?;
    print_line("")?;
    Ok(node)
}

/// Prints how containers are isolated, and what is not isolated, in lines of at most 80 columns.
fn print_isolation(runner: &Runner) -> Result<(), Failure> {
    if *runner.isolation() == Isolation::ShowOnly {
        return print_line("Containers do not run: the demo shows what each would get.");
    }
    let means = runner.isolation_summary();
    let (first, rest) = means.split_once("), ").map_or((means.as_str(), ""), |(first, rest)| (first, rest));
    if rest.is_empty() {
        return print_line(&format!("Container isolation: {first}."));
    }
    print_line(&format!("Container isolation: {first}),"))?;
    let processes = if *runner.isolation() == Isolation::UserNamespace { ", processes" } else { "" };
    print_line(&format!("{rest}. Network{processes} and programs are the host's:"))?;
    print_line("this is not a sandbox for untrusted code.")
}

/// Finds an OCI runtime by its path, or by its name in `PATH`.
fn find_runtime(name: &str) -> Result<PathBuf, Failure> {
    if name.contains('/') {
        return Ok(PathBuf::from(name));
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).map(|directory| directory.join(name)).find(|file| file.is_file());
    found.ok_or_else(|| Failure::new(Code::NotFound, format!("{name} is not in PATH: install it, or omit --runtime")))
}

/// Prints commands to explore the node, and waits until a signal ends the demo.
async fn keep(node: &Node, pod: &drakkar_node::PodHandle<'_>, container: &str) -> Result<(), Failure> {
    let kubeconfig = node.write_admin_kubeconfig()?;
    print_line("The node keeps running. In another terminal:")?;
    print_line("")?;
    let directory = node.directory().display().to_string();
    print_line(&format!("  export KUBECONFIG={}", kubeconfig.display()))?;
    print_line("  kubectl get pods,resourceclaims,resourceslices")?;
    print_line(&format!("  kubectl describe pod {}", pod.name()))?;
    print_line(&format!("  kubectl exec -it {} -c {container} -- sh", pod.name()))?;
    print_line(&format!("  find {directory} -name '*.json'"))?;
    if let Some(pid) = pod.process(container) {
        print_line(&format!("  drakkar --root /proc/{pid}/root list"))?;
        let namespaces = if *node.runner().isolation() == Isolation::Root { "-p" } else { "-U --preserve-credentials" };
        print_line(&format!("  nsenter -t {pid} -m {namespaces} {COMMAND_IN_CONTAINER} list"))?;
    }
    print_line("")?;
    print_line("Ctrl-C ends it and removes everything.")?;
    std::future::pending().await
}

impl From<NodeError> for Failure {
    fn from(error: NodeError) -> Self {
        Self::new(Code::System, format!("the demo failed: {error}"))
    }
}
