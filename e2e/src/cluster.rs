//! A cluster of one node: up, down, and what tests ask of it.

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
use crate::error::{Doing, Error, Result};
use crate::image::Image;
use crate::kubelet::Kubelet;
use crate::machine;
use crate::namespaces::{self, Namespaces, ended, see};
use crate::place::Place;
use crate::process::Process;
use crate::run::{output, run, wait_until};

/// How long a component may take until it answers, on a machine that does other things too.
const PATIENCE: Duration = Duration::from_secs(120);

/// A cluster that is up. Dropping it changes nothing: [`Cluster::down`] takes it down.
#[derive(Clone, Debug)]
pub struct Cluster {
    place: Place,
    namespaces: Namespaces,
}

impl Cluster {
    /// The image of busybox that pods may use; its commands are in `/bin`.
    pub const BUSYBOX_IMAGE: &'static str = "localhost/busybox:e2e";

    /// Brings a cluster up and returns when pods can run on it. One that is up already, with the same options and all
    /// of its components, is left as it is; anything else that is left of one is taken down first.
    ///
    /// # Errors
    ///
    /// Something is missing on the machine or does not come up. What did come up stays until [`Cluster::down`], with
    /// its logs.
    pub fn up(place: Place, options: Options) -> Result<Self> {
        if let Some(reason) = machine::unfit()? {
            return Err(Error::Missing { what: reason, remedy: "the cluster cannot be had here".to_owned() });
        }
        let _lock = lock(&place)?;
        if let Some(namespaces) = Namespaces::of(&place)? {
            let cluster = Self { place: place.clone(), namespaces };
            if recorded(&place, "options")? == describe(options) && cluster.is_whole()? {
                cluster.wait_until_ready()?;
                return Ok(cluster);
            }
        }
        take_down(&place)?;
        binaries::build(&place, options.kubelet)?;
        place.create()?;
        record(&place, "options", &describe(options))?;
        // What is enabled is known before it is: whatever happens then, it can be disabled again.
        let controllers = cgroup::to_enable()?;
        record(&place, "controllers", &controllers.join(" "))?;
        cgroup::create(&place.cgroup(), &controllers)?;
        certificates::create(&place, NODE)?;
        config::write(&place, options)?;

        let namespaces = Namespaces::create(&place, NODE)?;
        let cluster = Self { place, namespaces };
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

    /// The cluster that is up in this place.
    ///
    /// # Errors
    ///
    /// None is.
    pub fn attach(place: Place) -> Result<Self> {
        match Namespaces::of(&place)? {
            Some(namespaces) => Ok(Self { place, namespaces }),
            None => Err(Error::NotUp(place.state().to_path_buf())),
        }
    }

    /// Takes down whatever is left of a cluster in this place, whether it is up, half up or dead.
    ///
    /// # Errors
    ///
    /// Something cannot be ended or removed. It can be called again.
    pub fn down(place: &Place) -> Result<()> {
        let _lock = lock(place)?;
        take_down(place)
    }

    /// The kubeconfig of an administrator.
    pub fn kubeconfig(&self) -> PathBuf {
        self.place.kubeconfig("admin")
    }

    /// The name of the node.
    pub fn node(&self) -> &'static str {
        NODE
    }

    /// kubectl, as an administrator.
    pub fn kubectl(&self) -> Command {
        let mut command = Command::new(self.place.bin().join("kubectl"));
        command.env("KUBECONFIG", self.kubeconfig()).env("KUBECACHEDIR", self.place.state().join("kubectl-cache"));
        command
    }

    /// A command that runs in the node, as root there: with its mounts, its network and its processes.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        self.namespaces.command(program)
    }

    /// Starts a program in the node that goes on by itself; its log is named after `name`. To set its environment, let
    /// `env` start it.
    ///
    /// # Errors
    ///
    /// It cannot be started, or ends at once.
    pub fn spawn(&self, name: &str, command_line: &[String]) -> Result<Daemon> {
        let log = self.place.log(name);
        Ok(Daemon::new(self.namespaces.start(command_line, &log)?, log))
    }

    /// ctr, in the namespace that the kubelet's containers are in.
    pub fn ctr(&self) -> Command {
        let mut command = self.command("ctr");
        command.args(["--address", config::CONTAINERD_SOCKET, "--namespace", "k8s.io"]);
        command
    }

    /// Where a file of the node, such as `/var/lib/kubelet/plugins`, is for who is not in it. What is mounted in the
    /// node is not seen there.
    pub fn path(&self, of_node: impl AsRef<Path>) -> PathBuf {
        self.place.of_node(of_node.as_ref())
    }

    /// The kubelet's directory, `/var/lib/kubelet` in the node, for who is not in it.
    pub fn kubelet_root(&self) -> PathBuf {
        self.path("/var/lib/kubelet")
    }

    /// The directory of CDI specs that drivers write to, `/var/run/cdi` in the node, for who is not in it.
    pub fn cdi_directory(&self) -> PathBuf {
        self.path("/var/run/cdi")
    }

    /// containerd's socket, for who is not in the node. Where the path is too long for a socket, use [`Cluster::ctr`].
    pub fn containerd_socket(&self) -> PathBuf {
        self.path(config::CONTAINERD_SOCKET)
    }

    /// A component's log.
    pub fn log(&self, component: Component) -> PathBuf {
        self.place.log(component.name())
    }

    /// Puts the images of a tar file into containerd, where pods find them.
    ///
    /// # Errors
    ///
    /// The file cannot be read, or containerd refuses it.
    pub fn import(&self, tar: &Path) -> Result<()> {
        // The node may not see the file by its path.
        let file = File::open(tar).doing(|| format!("open {}", tar.display()))?;
        let imported = self.ctr().args(["images", "import", "-"]).stdin(file).output();
        let imported = imported.doing(|| "run `ctr images import`".to_owned())?;
        if imported.status.success() {
            return Ok(());
        }
        Err(Error::Command {
            command: format!("ctr images import {}", tar.display()),
            status: imported.status.to_string(),
            output: String::from_utf8_lossy(&imported.stderr).into_owned(),
        })
    }

    /// Whether a component's process runs.
    ///
    /// # Errors
    ///
    /// The machine does not tell.
    pub fn is_running(&self, component: Component) -> Result<bool> {
        match self.recorded(component)? {
            Some(process) => process.is_alive(),
            None => Ok(false),
        }
    }

    /// Starts a component that was stopped or killed, as it was, and returns when it answers.
    ///
    /// # Errors
    ///
    /// It does not start, or does not answer in time.
    pub fn start(&self, component: Component) -> Result<()> {
        if !self.is_running(component)? {
            self.launch(component)?;
        }
        self.wait_for(component)
    }

    /// Asks a component to end, and returns when it has. Containers go on.
    ///
    /// # Errors
    ///
    /// It does not end.
    pub fn stop(&self, component: Component) -> Result<()> {
        self.recorded(component)?.map_or(Ok(()), |process| process.stop())
    }

    /// Kills a component, as a crash would, and returns when it is gone. Containers go on.
    ///
    /// # Errors
    ///
    /// It does not end.
    pub fn kill(&self, component: Component) -> Result<()> {
        self.recorded(component)?.map_or(Ok(()), |process| process.kill())
    }

    /// Waits until pods can run: the node is ready and has no taints, and pods can have a service account.
    fn wait_until_ready(&self) -> Result<()> {
        let log = see(&self.log(Component::Kubelet));
        self.wait_while_whole("a node that is ready", &log, || {
            let template = "{.status.conditions[?(@.type=='Ready')].status}{.spec.taints}";
            let node = self.asked(&["get", "node", NODE, "--output", &format!("jsonpath={template}")])?;
            Ok(node.as_deref() == Some("True"))
        })?;
        let log = see(&self.log(Component::ControllerManager));
        self.wait_while_whole("the default service account", &log, || {
            Ok(self.asked(&["get", "serviceaccount", "default"])?.is_some())
        })?;
        self.wait_for(Component::Kubelet)
    }

    fn wait_for(&self, component: Component) -> Result<()> {
        let log = see(&self.log(component));
        wait_until(&format!("an answer of {component}"), PATIENCE, &log, || {
            if !self.is_running(component)? {
                return Err(ended(component.name(), &self.log(component)));
            }
            match component {
                // They are asked by nobody but others here; what they do shows whether they work.
                Component::Etcd | Component::ControllerManager | Component::Scheduler => Ok(true),
                Component::Containerd => Ok(output(self.ctr().arg("version"))?.status.success()),
                Component::ApiServer => Ok(self.asked(&["get", "--raw", "/readyz"])?.is_some()),
                Component::Kubelet => {
                    Ok(self.asked(&["get", "--raw", &format!("/api/v1/nodes/{NODE}/proxy/healthz")])?.is_some())
                }
            }
        })
    }

    fn wait_while_whole(&self, what: &str, see: &str, mut condition: impl FnMut() -> Result<bool>) -> Result<()> {
        wait_until(what, PATIENCE, see, || {
            for component in Component::ALL {
                if !self.is_running(component)? {
                    return Err(ended(component.name(), &self.log(component)));
                }
            }
            condition()
        })
    }

    /// What kubectl says; nothing when it fails, which it does until things are there.
    fn asked(&self, arguments: &[&str]) -> Result<Option<String>> {
        let output = output(self.kubectl().args(arguments).arg("--request-timeout=5s"))?;
        Ok(output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned()))
    }

    fn launch(&self, component: Component) -> Result<()> {
        let path = self.place.command_line(component.name());
        let line = fs::read_to_string(&path).doing(|| format!("read {}", path.display()))?;
        let line: Vec<String> = line.lines().map(str::to_owned).collect();
        let process = self.namespaces.start(&line, &self.log(component))?;
        process.record(&self.place.record(component.name()))
    }

    fn import_own_images(&self) -> Result<()> {
        let images = [
            ("pause.tar", Image::new(PAUSE_IMAGE, self.place.bin().join("init"))?),
            ("busybox.tar", Image::busybox(Self::BUSYBOX_IMAGE)?),
        ];
        for (file, image) in images {
            let path = self.place.state().join(file);
            image.write(&path)?;
            self.import(&path)?;
        }
        Ok(())
    }

    fn is_whole(&self) -> Result<bool> {
        for component in Component::ALL {
            if !self.is_running(component)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn recorded(&self, component: Component) -> Result<Option<Process>> {
        Process::recorded(&self.place.record(component.name()))
    }
}

/// Order matters: with the processes go the mounts, and with these what keeps files from being removed.
fn take_down(place: &Place) -> Result<()> {
    if let Some(namespaces) = Namespaces::of(place)? {
        namespaces.destroy()?;
    }
    namespaces::disconnect(place)?;
    cgroup::remove(&place.cgroup(), &recorded(place, "controllers")?)?;
    place.remove()
}

/// One command at a time; the others wait.
fn lock(place: &Place) -> Result<File> {
    let path = place.cache().join("lock");
    fs::create_dir_all(place.cache()).doing(|| format!("make {}", place.cache().display()))?;
    let file = File::create(&path).doing(|| format!("make {}", path.display()))?;
    file.lock().doing(|| format!("lock {}", path.display()))?;
    Ok(file)
}

fn describe(options: Options) -> String {
    format!("{options:?}\n")
}

/// Remembers something about the cluster in its directory.
fn record(place: &Place, name: &str, value: &str) -> Result<()> {
    let path = place.state().join(name);
    fs::write(&path, value).doing(|| format!("write {}", path.display()))
}

/// What is remembered; nothing when it never came to that.
fn recorded(place: &Place, name: &str) -> Result<String> {
    let path = place.state().join(name);
    match fs::read_to_string(&path) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(String::new()),
        read => read.doing(|| format!("read {}", path.display())),
    }
}

/// Each component's name and what it says its version is; the kernel counts too.
///
/// # Errors
///
/// A program is not there or does not say.
pub fn versions(place: &Place, kubelet: Kubelet) -> Result<Vec<(&'static str, String)>> {
    let mut versions = binaries::versions(place, kubelet)?;
    let busybox = run(Command::new(machine::busybox()?).arg("--help"))?;
    versions.push(("busybox", busybox.lines().next().unwrap_or_default().to_owned()));
    versions.push(("kernel", format!("Linux {}", machine::kernel()?)));
    Ok(versions)
}
