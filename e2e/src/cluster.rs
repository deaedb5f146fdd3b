//! The single-node cluster: bringing it up and down, and the API that tests use.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::binaries;
use crate::certificates;
use crate::cgroup;
use crate::component::Component;
use crate::config::{self, NODE, Options, PAUSE_IMAGE};
use crate::daemon::Daemon;
use crate::error::{Error, IoContext, Result};
use crate::host;
use crate::image::Image;
use crate::kubelet::Kubelet;
use crate::namespaces::{self, Namespaces, exited, log_hint};
use crate::paths::ClusterPaths;
use crate::process::Process;
use crate::run::{output, run, wait_until};

/// How long a component may take to become ready. Generous, since the host may be busy.
const READY_TIMEOUT: Duration = Duration::from_secs(120);

/// A running cluster. Dropping it does not stop it: [`Cluster::down`] does.
#[derive(Clone, Debug)]
pub struct Cluster {
    paths: ClusterPaths,
    namespaces: Namespaces,
}

impl Cluster {
    /// The busybox image for pods, with its applets in `/bin`.
    pub const BUSYBOX_IMAGE: &'static str = "localhost/busybox:e2e";

    /// Brings a cluster up and returns when pods can run on it. A complete cluster with the same options is reused;
    /// anything else that an earlier cluster left is removed first.
    ///
    /// # Errors
    ///
    /// The host lacks something, or a component does not become ready. What has been started stays, with its logs, until
    /// [`Cluster::down`].
    pub fn up(paths: ClusterPaths, options: Options) -> Result<Self> {
        if let Some(reason) = host::unsupported_reason()? {
            return Err(Error::Missing { what: reason, remedy: "the cluster cannot run on this host".to_owned() });
        }
        let _lock = lock(&paths)?;
        if let Some(namespaces) = Namespaces::of(&paths)? {
            let cluster = Self { paths: paths.clone(), namespaces };
            if recorded(&paths, "options")? == describe(options) && cluster.is_complete()? {
                cluster.wait_until_ready()?;
                return Ok(cluster);
            }
        }
        take_down(&paths)?;
        binaries::build(&paths, options.kubelet)?;
        paths.create()?;
        record(&paths, "options", &describe(options))?;
        // Recorded before they are enabled, so that `down` can disable them after a crash at any point.
        let controllers = cgroup::controllers_to_enable()?;
        record(&paths, "controllers", &controllers.join(" "))?;
        cgroup::create(&paths.cgroup(), &controllers)?;
        certificates::create(&paths, NODE)?;
        config::write(&paths, options)?;

        let namespaces = Namespaces::create(&paths, NODE)?;
        let cluster = Self { paths, namespaces };
        for component in [Component::Etcd, Component::Containerd, Component::ApiServer] {
            cluster.launch(component)?;
        }
        cluster.wait_for(Component::Containerd)?;
        cluster.import_own_images()?;
        cluster.wait_for(Component::ApiServer)?;
        for component in [Component::ControllerManager, Component::Scheduler, Component::Kubelet] {
            cluster.launch(component)?;
        }
        cluster.wait_until_ready()?;
        Ok(cluster)
    }

    /// Attaches to the running cluster with these paths.
    ///
    /// # Errors
    ///
    /// No cluster is running there.
    pub fn attach(paths: ClusterPaths) -> Result<Self> {
        match Namespaces::of(&paths)? {
            Some(namespaces) => Ok(Self { paths, namespaces }),
            None => Err(Error::NotUp(paths.state().to_path_buf())),
        }
    }

    /// Stops and removes the cluster with these paths, whether it runs, is incomplete or has crashed.
    ///
    /// # Errors
    ///
    /// Something cannot be stopped or removed. The call can be repeated.
    pub fn down(paths: &ClusterPaths) -> Result<()> {
        let _lock = lock(paths)?;
        take_down(paths)
    }

    /// The path of the administrator's kubeconfig.
    pub fn kubeconfig(&self) -> PathBuf {
        self.paths.kubeconfig("admin")
    }

    /// The name of the node.
    pub fn node(&self) -> &'static str {
        NODE
    }

    /// A `kubectl` command with the administrator's kubeconfig.
    pub fn kubectl(&self) -> Command {
        let mut command = Command::new(self.paths.bin().join("kubectl"));
        command.env("KUBECONFIG", self.kubeconfig()).env("KUBECACHEDIR", self.paths.state().join("kubectl-cache"));
        command
    }

    /// A `helm` command with the administrator's kubeconfig. [`build_helm`](crate::build_helm) must have built it.
    pub fn helm(&self) -> Command {
        let mut command = helm_command(&self.paths);
        command.env("KUBECONFIG", self.kubeconfig());
        command
    }

    /// A command that runs in the node as root: with its mounts, its network and its processes.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        self.namespaces.command(program)
    }

    /// Starts a program in the background in the node. Its log is named after `name`. To set its environment, start it
    /// with `env`.
    ///
    /// # Errors
    ///
    /// The program cannot be started, or exits at once.
    pub fn spawn(&self, name: &str, command_line: &[String]) -> Result<Daemon> {
        let log = self.paths.log(name);
        Ok(Daemon::new(self.namespaces.start(command_line, &log)?, log))
    }

    /// A `ctr` command in the containerd namespace of the kubelet's containers.
    pub fn ctr(&self) -> Command {
        let mut command = self.command("ctr");
        command.args(["--address", config::CONTAINERD_SOCKET, "--namespace", "k8s.io"]);
        command
    }

    /// Returns the path on the host of a path in the node, such as `/var/lib/kubelet/plugins`. Mounts made in the node are
    /// not visible there.
    pub fn host_path(&self, in_node: impl AsRef<Path>) -> PathBuf {
        self.paths.host_path(in_node.as_ref())
    }

    /// The path on the host of the kubelet's directory, `/var/lib/kubelet` in the node.
    pub fn kubelet_root(&self) -> PathBuf {
        self.host_path("/var/lib/kubelet")
    }

    /// The path on the host of the CDI spec directory, `/var/run/cdi` in the node.
    pub fn cdi_directory(&self) -> PathBuf {
        self.host_path("/var/run/cdi")
    }

    /// The path on the host of containerd's socket. If it is too long for a socket address, use [`Cluster::ctr`].
    pub fn containerd_socket(&self) -> PathBuf {
        self.host_path(config::CONTAINERD_SOCKET)
    }

    /// The path of a component's log.
    pub fn log(&self, component: Component) -> PathBuf {
        self.paths.log(component.name())
    }

    /// Imports the images of a tar file into containerd.
    ///
    /// # Errors
    ///
    /// The file cannot be read, or containerd rejects it.
    pub fn import(&self, tar: &Path) -> Result<()> {
        // Piped in, since the path may not exist in the node.
        let file = File::open(tar).with_context(|| format!("open {}", tar.display()))?;
        let imported = self.ctr().args(["images", "import", "-"]).stdin(file).output();
        let imported = imported.with_context(|| "run `ctr images import`".to_owned())?;
        if imported.status.success() {
            return Ok(());
        }
        Err(Error::Command {
            command: format!("ctr images import {}", tar.display()),
            status: imported.status.to_string(),
            output: String::from_utf8_lossy(&imported.stderr).into_owned(),
        })
    }

    /// Whether a component's process is running.
    ///
    /// # Errors
    ///
    /// The process cannot be looked up.
    pub fn is_running(&self, component: Component) -> Result<bool> {
        match self.recorded(component)? {
            Some(process) => process.is_alive(),
            None => Ok(false),
        }
    }

    /// Starts a stopped or killed component with its original command line, and returns when it is ready.
    ///
    /// # Errors
    ///
    /// It does not start, or is not ready in time.
    pub fn start(&self, component: Component) -> Result<()> {
        if !self.is_running(component)? {
            self.launch(component)?;
        }
        self.wait_for(component)
    }

    /// Stops a component with SIGTERM, and returns when it has exited. Containers keep running.
    ///
    /// # Errors
    ///
    /// It does not exit in time.
    pub fn stop(&self, component: Component) -> Result<()> {
        self.recorded(component)?.map_or(Ok(()), |process| process.stop())
    }

    /// Kills a component with SIGKILL, as a crash would, and returns when it has exited. Containers keep running.
    ///
    /// # Errors
    ///
    /// It does not exit in time.
    pub fn kill(&self, component: Component) -> Result<()> {
        self.recorded(component)?.map_or(Ok(()), |process| process.kill())
    }

    /// Waits until pods can run: the node is ready and untainted, and the default service account exists.
    fn wait_until_ready(&self) -> Result<()> {
        let log = log_hint(&self.log(Component::Kubelet));
        self.wait_while_complete("node readiness", &log, || {
            let template = "{.status.conditions[?(@.type=='Ready')].status}{.spec.taints}";
            let node = self.kubectl_output(&["get", "node", NODE, "--output", &format!("jsonpath={template}")])?;
            Ok(node.as_deref() == Some("True"))
        })?;
        let log = log_hint(&self.log(Component::ControllerManager));
        self.wait_while_complete("the default service account", &log, || {
            Ok(self.kubectl_output(&["get", "serviceaccount", "default"])?.is_some())
        })?;
        self.wait_for(Component::Kubelet)
    }

    fn wait_for(&self, component: Component) -> Result<()> {
        let log = log_hint(&self.log(component));
        wait_until(&format!("{component} readiness"), READY_TIMEOUT, &log, || {
            if !self.is_running(component)? {
                return Err(exited(component.name(), &self.log(component)));
            }
            match component {
                // Not probed: readiness of the node shows that these work.
                Component::Etcd | Component::ControllerManager | Component::Scheduler => Ok(true),
                Component::Containerd => Ok(output(self.ctr().arg("version"))?.status.success()),
                Component::ApiServer => Ok(self.kubectl_output(&["get", "--raw", "/readyz"])?.is_some()),
                Component::Kubelet => Ok(self
                    .kubectl_output(&["get", "--raw", &format!("/api/v1/nodes/{NODE}/proxy/healthz")])?
                    .is_some()),
            }
        })
    }

    /// Waits until a condition holds; fails at once if a component exits.
    fn wait_while_complete(&self, what: &str, hint: &str, mut condition: impl FnMut() -> Result<bool>) -> Result<()> {
        wait_until(what, READY_TIMEOUT, hint, || {
            for component in Component::ALL {
                if !self.is_running(component)? {
                    return Err(exited(component.name(), &self.log(component)));
                }
            }
            condition()
        })
    }

    /// What kubectl prints; `None` if it fails, which it does until the API server is ready and the object exists.
    fn kubectl_output(&self, arguments: &[&str]) -> Result<Option<String>> {
        let output = output(self.kubectl().args(arguments).arg("--request-timeout=5s"))?;
        Ok(output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned()))
    }

    fn launch(&self, component: Component) -> Result<()> {
        let path = self.paths.command_line(component.name());
        let line = fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
        let line: Vec<String> = line.lines().map(str::to_owned).collect();
        let process = self.namespaces.start(&line, &self.log(component))?;
        process.record(&self.paths.process_record(component.name()))
    }

    fn import_own_images(&self) -> Result<()> {
        let images = [
            ("pause.tar", Image::new(PAUSE_IMAGE, self.paths.bin().join("init"))?),
            ("busybox.tar", Image::busybox(Self::BUSYBOX_IMAGE)?),
        ];
        for (file, image) in images {
            let path = self.paths.state().join(file);
            image.write(&path)?;
            self.import(&path)?;
        }
        Ok(())
    }

    fn is_complete(&self) -> Result<bool> {
        for component in Component::ALL {
            if !self.is_running(component)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn recorded(&self, component: Component) -> Result<Option<Process>> {
        Process::recorded(&self.paths.process_record(component.name()))
    }
}

/// A `helm` command that reads and writes no configuration of the user's. [`build_helm`](crate::build_helm) must have built it.
pub fn helm_command(paths: &ClusterPaths) -> Command {
    let mut command = Command::new(paths.bin().join("helm"));
    for (variable, directory) in
        [("HELM_CACHE_HOME", "cache"), ("HELM_CONFIG_HOME", "config"), ("HELM_DATA_HOME", "data")]
    {
        command.env(variable, paths.cache().join("helm").join(directory));
    }
    command
}

/// Removes everything. The processes go first: their mounts go with them, and mounted files cannot be removed.
fn take_down(paths: &ClusterPaths) -> Result<()> {
    if let Some(namespaces) = Namespaces::of(paths)? {
        namespaces.destroy()?;
    }
    namespaces::disconnect(paths)?;
    cgroup::remove(&paths.cgroup(), &recorded(paths, "controllers")?)?;
    paths.remove()
}

/// Takes the lock that serializes `up` and `down`; blocks until it is free.
fn lock(paths: &ClusterPaths) -> Result<File> {
    let path = paths.cache().join("lock");
    fs::create_dir_all(paths.cache()).with_context(|| format!("create {}", paths.cache().display()))?;
    let file = File::create(&path).with_context(|| format!("create {}", path.display()))?;
    file.lock().with_context(|| format!("lock {}", path.display()))?;
    Ok(file)
}

fn describe(options: Options) -> String {
    format!("{options:?}\n")
}

/// Writes a value to a file in the state directory.
fn record(paths: &ClusterPaths, name: &str, value: &str) -> Result<()> {
    let path = paths.state().join(name);
    fs::write(&path, value).with_context(|| format!("write {}", path.display()))
}

/// Reads a value from the state directory; empty if it was never written.
fn recorded(paths: &ClusterPaths, name: &str) -> Result<String> {
    let path = paths.state().join(name);
    match fs::read_to_string(&path) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(String::new()),
        read => read.with_context(|| format!("read {}", path.display())),
    }
}

/// Returns the name and version of each component, of busybox and of the kernel.
///
/// # Errors
///
/// A program cannot be run.
pub fn versions(paths: &ClusterPaths, kubelet: Kubelet) -> Result<Vec<(&'static str, String)>> {
    let mut versions = binaries::versions(paths, kubelet)?;
    let busybox = run(Command::new(host::busybox()?).arg("--help"))?;
    versions.push(("busybox", busybox.lines().next().unwrap_or_default().to_owned()));
    versions.push(("kernel", format!("Linux {}", host::kernel()?)));
    Ok(versions)
}
