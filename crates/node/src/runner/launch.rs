//! Starts containers from their specs. All of it blocks, and runs on the thread that starts containers.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use std::time::SystemTime;

use drakkar_cdi::Mount;
use rustix::thread::LinkNameSpaceType;
use sha2::{Digest as _, Sha256};

use super::HostPath;
use super::cdi::{Cache, Edits};
use super::containers::{Backend, Container, Containers, ExecContext};
use super::error::Error;
use super::guard::Guard;
use super::isolation::Isolation;
use super::mount_options::MountOptions;
use super::namespaces::{self, Namespaces};
use super::native::{self, Extras, Failure, Program};
use super::oci::{OciContainer, Watch};
use super::root::{InvalidPath, MountPoints};
use super::spawn::Spawned;
use super::spec::{ContainerId, ContainerInfo, ContainerSpec, Exit, State};

/// The default `PATH`.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// What is needed to start containers.
#[derive(Debug)]
pub(super) struct Launcher {
    pub cdi: Cache,
    /// The runner's directory.
    pub directory: PathBuf,
    /// Where every container, in its own mount namespace, mounts its root, and the upper directories of its overlays.
    pub root: PathBuf,
    pub scratch: PathBuf,
    pub isolation: Isolation,
    /// Why the isolation is not a better one.
    pub isolation_notes: String,
    pub containers: Arc<Containers>,
    /// For isolations that need one.
    pub guard: Option<Arc<Guard>>,
}

/// A container to start, with everything resolved.
#[derive(Debug)]
pub(super) struct Launch {
    pub id: ContainerId,
    pub spec: ContainerSpec,
    pub edits: Edits,
    /// The edits that are ignored.
    pub notes: Vec<String>,
    pub extras: Extras,
}

/// Returns the path of a container's log.
pub(super) fn log(directory: &Path) -> PathBuf {
    directory.join("log")
}

impl Launcher {
    /// Returns the container's edits, and which of them are ignored.
    pub(super) fn resolve(&self, spec: &ContainerSpec) -> Result<(Edits, Vec<String>), Error> {
        let container = name(spec);
        let mut edits = Edits::default();
        edits.set_env("PATH", PATH);
        edits.set_env("HOSTNAME", &spec.pod_name);
        for (name, value) in &spec.env {
            edits.set_env(name, value);
        }
        for host_path in &spec.host_paths {
            edits.add_mount(mount(host_path).map_err(|invalid| path_error(&container, invalid))?);
        }
        let injected = self.cdi.inject(&spec.cdi_devices, &mut edits);
        injected.map_err(|source| Error::Inject { container, source })?;
        let notes = self.notes(&edits);
        Ok((edits, notes))
    }

    /// Returns which edits are ignored.
    pub(super) fn notes(&self, edits: &Edits) -> Vec<String> {
        let oci = matches!(self.isolation, Isolation::Oci(_));
        let mut notes = Vec::new();
        if !oci {
            notes.extend(edits.hooks.iter().map(|hook| format!("hook {} {} is not run", hook.hook_name, hook.path)));
            let limited = edits.device_nodes.iter().filter(|node| node.permissions != "rwm");
            notes.extend(limited.map(|node| {
                format!("permissions {:?} of device node {} are not enforced", node.permissions, node.path)
            }));
            for mount in &edits.mounts {
                let ignored = MountOptions::parse(&mount.options).ignored.join(",");
                if !ignored.is_empty() {
                    notes.push(format!("mount at {}: options {ignored} have no effect", mount.container_path));
                }
            }
        }
        if self.isolation == Isolation::UserNamespace && !edits.additional_gids.is_empty() {
            notes.push(format!("groups {:?} are not available in a user namespace", edits.additional_gids));
        }
        let moved = edits.net_devices.iter();
        notes.extend(moved.map(|device| format!("network interface {} is not moved", device.host_interface_name)));
        if edits.intel_rdt.is_some() {
            notes.push("intelRdt has no effect".to_owned());
        }
        notes
    }

    /// Applies CDI devices to edits that were resolved before.
    pub(super) fn inject(&self, spec: &ContainerSpec, devices: &[String], edits: &mut Edits) -> Result<(), Error> {
        self.cdi.inject(devices, edits).map_err(|source| Error::Inject { container: name(spec), source })
    }

    /// Starts a container and adds it to the list.
    pub(super) fn start(&self, spec: &ContainerSpec) -> Result<ContainerId, Error> {
        let container = name(spec);
        if spec.command.is_empty() {
            return Err(Error::NoCommand { container });
        }
        let (edits, notes) = self.resolve(spec)?;
        let (id, extras) = (new_id(spec), Extras::default());
        self.launch(&Launch { id, spec: spec.clone(), edits, notes, extras })
    }

    /// Starts a container whose edits are resolved, and adds it to the list.
    pub(super) fn launch(&self, launch: &Launch) -> Result<ContainerId, Error> {
        let Launch { id, spec, edits, notes, .. } = launch;
        let container = name(spec);
        let Some(program_name) = spec.command.first() else { return Err(Error::NoCommand { container }) };
        if self.isolation == Isolation::ShowOnly {
            return Err(Error::ShowOnly {
                container,
                reason: self.isolation_notes.clone(),
                edits: Box::new(edits.clone()),
            });
        }
        for note in notes {
            tracing::warn!(%container, note, "an edit of a CDI device is ignored");
        }
        let working_dir = spec.working_dir.as_deref().map_or(Ok("/"), |path| text("working directory", path));
        let working_dir = working_dir.map_err(|invalid| path_error(&container, invalid))?;
        let directory = self.directory.join(id.as_str());
        let failed = |action| {
            let path = directory.clone();
            move |source: io::Error| Error::State { action, path, source }
        };
        fs::create_dir(&directory).map_err(failed("create directory"))?;
        let output =
            OpenOptions::new().create_new(true).append(true).open(log(&directory)).map_err(failed("write in"))?;
        let groups = &edits.additional_gids;
        let program = Program { command: &spec.command, env: &edits.env, working_dir, groups };
        let outcome = match &self.isolation {
            Isolation::Oci(runtime) => self.start_oci(runtime, id, &directory, &program, launch, output),
            isolation => {
                let user_namespace = *isolation == Isolation::UserNamespace;
                self.start_native(user_namespace, &program, launch, output)
            }
        };
        let (process, backend, start_error) = match outcome {
            Ok((process, backend)) => (Some(process), backend, None),
            Err(failure) => {
                let error = explain(&container, program_name, failure);
                if !error.is_start_error() {
                    fs::remove_dir_all(&directory).map_err(failed("remove"))?;
                    return Err(error);
                }
                (None, Backend::native(None), Some(error))
            }
        };
        self.record(launch, directory, working_dir, process, backend, start_error)
    }

    /// Adds a container that was created, and whose start was refused, to the list. Returns the error.
    pub(super) fn add_failed(&self, launch: &Launch, reason: String) -> Error {
        let error = Error::Refused { container: name(&launch.spec), reason };
        let directory = self.directory.join(launch.id.as_str());
        if let Err(source) = fs::create_dir(&directory).and_then(|()| File::create_new(log(&directory)).map(drop)) {
            return Error::State { action: "create directory", path: directory, source };
        }
        match self.record(launch, directory, "/", None, Backend::native(None), Some(error)) {
            Err(error) => error,
            Ok(id) => Error::Unknown(id),
        }
    }

    /// Adds a container to the list, and returns its id or why it did not start.
    fn record(
        &self,
        launch: &Launch,
        directory: PathBuf,
        working_dir: &str,
        process: Option<std::process::Child>,
        backend: Backend,
        start_error: Option<Error>,
    ) -> Result<ContainerId, Error> {
        let Launch { id, spec, edits, notes, .. } = launch;
        let started = SystemTime::now();
        let state = match (&process, &start_error) {
            (Some(process), _) => State::Running { pid: process.id() },
            (None, error) => {
                State::Exited(Exit::not_started(error.as_ref().map(ToString::to_string).unwrap_or_default()))
            }
        };
        let finished = process.is_none().then_some(started);
        let notes = notes.clone();
        let info = ContainerInfo { finished, notes, ..ContainerInfo::new(id.clone(), spec, state, started) };
        let exec_context = Arc::new(ExecContext {
            groups: edits.additional_gids.clone(),
            env: edits.env.clone(),
            working_dir: working_dir.to_owned(),
            backend,
            killed_for: AtomicI32::new(0),
        });
        self.containers.add(Container { info, directory, exec_context }, process)?;
        start_error.map_or_else(|| Ok(id.clone()), Err)
    }

    fn start_native(&self, user_namespace: bool, program: &Program<'_>, launch: &Launch, output: File) -> Outcome {
        let mount_points = MountPoints { root: &self.root, scratch: &self.scratch };
        let Launch { spec, edits, extras, .. } = launch;
        let spawned = native::start(user_namespace, &spec.pod_name, program, edits, extras, &mount_points, output)?;
        let set = namespaces::Set { user: user_namespace, network: extras.pod.is_some() };
        let mut namespaces = Namespaces::new(set, spawned.namespaces);
        if let (Some(guard), Some(namespaces)) = (&self.guard, &mut namespaces) {
            let guarded =
                namespaces.get(LinkNameSpaceType::Mount).map_or(Ok(None), |mounts| guard.watch(mounts).map(Some));
            match guarded {
                Ok(guarded) => guarded.into_iter().for_each(|guarded| namespaces.guard_with(guarded)),
                Err(error) => {
                    tracing::warn!(%error, "guarding a container failed, its processes may outlive this process");
                }
            }
        }
        Ok((spawned.child, Backend::native(namespaces)))
    }

    fn start_oci(
        &self,
        runtime: &Path,
        id: &ContainerId,
        directory: &Path,
        program: &Program<'_>,
        launch: &Launch,
        output: File,
    ) -> Outcome {
        let Launch { spec, edits, extras, .. } = launch;
        let failed = |action: &'static str| move |error| Failure::Setup(action.to_owned(), error);
        let container = OciContainer {
            runtime: runtime.to_owned(),
            state: self.directory.join("oci"),
            bundle: directory.join("bundle"),
            id: id.to_string(),
        };
        container.write_bundle(program, &spec.pod_name, edits, extras).map_err(failed("write a bundle"))?;
        let watch = Watch::new(&container.bundle).map_err(failed("watch the bundle"))?;
        let mut command = container.run();
        command.stderr(output.try_clone().map_err(Failure::Program)?).stdout(output);
        let Spawned { mut child, .. } = native::run_plain(command)?;
        let Err(message) = container.started(&watch, &child) else { return Ok((child, Backend::Oci(container))) };
        let ended = child.kill().and_then(|()| child.wait().map(drop)).and_then(|()| container.delete());
        if let Err(error) = ended {
            tracing::error!(container = %id, %error, "cleaning up a container that did not start failed");
        }
        Err(Failure::Setup(format!("{} run", runtime.display()), io::Error::other(message)))
    }
}

type Outcome = Result<(std::process::Child, Backend), Failure>;

fn name(spec: &ContainerSpec) -> String {
    format!("{}/{}/{}", spec.namespace, spec.pod_name, spec.name)
}

pub(super) fn explain(container: &str, program: &str, failure: Failure) -> Error {
    let container = container.to_owned();
    match failure {
        Failure::Path(invalid) => path_error(&container, invalid),
        Failure::Setup(action, source) => Error::Setup { container, action, source },
        Failure::Program(source) => Error::Program { container, program: program.to_owned(), source },
    }
}

fn path_error(container: &str, invalid: InvalidPath) -> Error {
    let InvalidPath { what, path, problem } = invalid;
    Error::Path { container: container.to_owned(), what, path, problem }
}

fn text<'a>(what: &'static str, path: &'a Path) -> Result<&'a str, InvalidPath> {
    let invalid = || InvalidPath { what, path: path.display().to_string(), problem: "must be UTF-8" };
    path.to_str().ok_or_else(invalid)
}

fn mount(path: &HostPath) -> Result<Mount, InvalidPath> {
    let options = if path.read_only { ["rbind", "ro"] } else { ["rbind", "rw"] };
    Ok(Mount {
        host_path: text("mount of", &path.host)?.to_owned(),
        container_path: text("mount at", &path.container)?.to_owned(),
        options: options.map(str::to_owned).to_vec(),
        fs_type: String::new(),
    })
}

/// Returns an id that is unique in this process, and very likely unique everywhere.
pub(super) fn new_id(spec: &ContainerSpec) -> ContainerId {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let mut hash = Sha256::new();
    hash.update(format!("{}/{}/{:?}", spec.pod_uid, spec.name, SystemTime::now()));
    hash.update(COUNT.fetch_add(1, Ordering::Relaxed).to_ne_bytes());
    hash.update(std::process::id().to_ne_bytes());
    ContainerId(hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}
