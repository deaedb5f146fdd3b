//! `drakkar demo`: metadata files written as drivers write them, and read as a container reads them.
//!
//! The files are real, in a temporary directory that stands for a container's root, each in both layouts as two
//! mounts of one file would be. Everything that reads them is this command itself, started again with `--root`.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use drakkar_metadata::path::ContainerFile;
use drakkar_metadata::{
    Device, DeviceAttribute, DeviceMetadata, NetworkDeviceData, ObjectMeta, Request, Versions, encode,
};

use crate::exit::{Code, Failure};
use crate::output::{print, style};

/// How long the setting up of a network takes here.
const NETWORK_SETUP: Duration = Duration::from_millis(300);

pub(crate) fn run(keep: bool) -> Result<(), Failure> {
    let directory = tempfile::Builder::new().prefix("drakkar-demo-").tempdir()?;
    let container = Container { root: directory.path().to_owned(), command: std::env::current_exe()? };

    say("A pod has two claims: `gpus`, made from a template, and `net`, which it names.")?;
    say("The GPU driver knows its devices when the claim is prepared, and writes its")?;
    say("file; the network driver does not yet, and leaves an empty one.\n")?;
    let gpus = Mounted::new(&container, &gpu_files()?)?;
    let net = Mounted::new(&container, &net_files()?)?;
    gpus.update(&encode(&gpu_metadata(), &Versions::default()))?;

    container.show(&["list"])?;
    container.show(&["get", "gpus/gpu", "pciBusID"])?;
    container.show(&["read", "gpus/gpu"])?;

    say("The program in the container waits for its address. Meanwhile the network is")?;
    say("set up, and its driver writes the file in place: a running container sees it.\n")?;
    let wait = ["wait", "net/eth", "--for", "ips"];
    container.title(&wait)?;
    let mut waiting = container.command(&wait).stdin(Stdio::null()).spawn()?;
    std::thread::sleep(NETWORK_SETUP);
    net.update(&encode(&net_metadata(), &Versions::default()))?;
    let updated = Instant::now();
    container.finish(waiting.wait()?)?;
    let (setup, woken) = (NETWORK_SETUP.as_millis(), updated.elapsed().as_micros());
    say(&format!("(waited {setup} ms for the network; returned {woken} µs after the update)\n"))?;

    container.show(&["get", "net/eth", "ips"])?;
    container.show(&["env", "net/eth"])?;
    container.show_in(net.directory(), &["validate", "net.example.com-metadata.json"])?;

    if keep {
        let kept = directory.keep();
        say(&format!("The files are in {}. Look around with", kept.display()))?;
        say(&format!("  drakkar --root {} list", kept.display()))?;
    } else {
        directory.close()?;
        say("Nothing is left behind; `drakkar demo --keep` leaves the files to look around.")?;
    }
    Ok(())
}

/// A directory that stands for the root of a container.
struct Container {
    root: PathBuf,
    command: PathBuf,
}

impl Container {
    /// Runs this command in the container.
    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.command);
        command.env_remove("DRAKKAR_ROOT").arg("--root").arg(&self.root).args(arguments);
        command
    }

    fn show(&self, arguments: &[&str]) -> Result<(), Failure> {
        self.show_in(&self.root, arguments)
    }

    fn show_in(&self, directory: &Path, arguments: &[&str]) -> Result<(), Failure> {
        self.title(arguments)?;
        self.finish(self.command(arguments).current_dir(directory).status()?)?;
        say("")
    }

    fn title(&self, arguments: &[&str]) -> Result<(), Failure> {
        let green = style::COMMAND;
        say(&format!("{green}$ drakkar {}{green:#}", arguments.join(" ")))
    }

    fn finish(&self, status: std::process::ExitStatus) -> Result<(), Failure> {
        if status.success() {
            return Ok(());
        }
        Err(Failure::new(Code::Invalid, format!("the demo's own command failed: {status}")))
    }
}

/// One file in both layouts, as two mounts of one file are.
struct Mounted {
    paths: Vec<PathBuf>,
}

impl Mounted {
    fn new(container: &Container, files: &[ContainerFile; 2]) -> Result<Self, Failure> {
        let below = |path: &Path| container.root.join(path.strip_prefix("/").unwrap_or(path));
        let paths: Vec<PathBuf> = files.iter().map(|file| below(&file.path())).collect();
        for path in &paths {
            if let Some(parent) = path.parent() {
                fs::create_dir_all(parent)?;
            }
        }
        let [first, rest @ ..] = &paths[..] else { return Ok(Self { paths }) };
        File::create_new(first)?;
        for path in rest {
            fs::hard_link(first, path)?;
        }
        Ok(Self { paths })
    }

    fn path(&self) -> &Path {
        &self.paths[0]
    }

    fn directory(&self) -> &Path {
        self.path().parent().unwrap_or(Path::new("/"))
    }

    /// Writes in place, so that whoever has the file mounted sees it, under the lock that readers respect.
    fn update(&self, content: &[u8]) -> Result<(), Failure> {
        let file = File::options().write(true).open(self.path())?;
        file.lock()?;
        file.write_all_at(content, 0)?;
        Ok(file.unlock()?)
    }
}

fn gpu_files() -> Result<[ContainerFile; 2], Failure> {
    let (request, driver) = (name("gpu")?, name("gpu.example.com")?);
    let claim = name("trainer-gpus-x7x2k")?;
    let kep = ContainerFile::Kep { claim, request: name("gpu")?, driver: name("gpu.example.com")? };
    Ok([ContainerFile::Template { pod_claim: name("gpus")?, request, driver }, kep])
}

fn net_files() -> Result<[ContainerFile; 2], Failure> {
    let (claim, request, driver) = (name("net")?, name("eth")?, name("net.example.com")?);
    let kep = ContainerFile::Kep { claim: name("net")?, request: name("eth")?, driver: name("net.example.com")? };
    Ok([ContainerFile::Claim { claim, request, driver }, kep])
}

fn name<T: std::str::FromStr<Err = drakkar_metadata::name::NameError>>(text: &str) -> Result<T, Failure> {
    text.parse().map_err(|error: drakkar_metadata::name::NameError| Failure::new(Code::Invalid, error.to_string()))
}

fn gpu_metadata() -> DeviceMetadata {
    let gpu = |index: i64, address: &str| Device {
        driver: "gpu.example.com".into(),
        pool: "worker-0".into(),
        name: format!("gpu-{index}"),
        attributes: [
            ("resource.kubernetes.io/pciBusID".into(), address.into()),
            ("index".into(), index.into()),
            ("model".into(), "LATEST-GPU-MODEL".into()),
            ("driverVersion".into(), DeviceAttribute::version("1.0.0")),
        ]
        .into(),
        network_data: None,
    };
    DeviceMetadata {
        metadata: ObjectMeta {
            name: "trainer-gpus-x7x2k".into(),
            namespace: "default".into(),
            uid: "3f0c6a50-9c5c-4b52-8f0b-4f4c1f0d7f11".into(),
            generation: 1,
            ..ObjectMeta::default()
        },
        pod_claim_name: Some("gpus".into()),
        requests: vec![Request { name: "gpu".into(), devices: vec![gpu(0, "0000:03:00.0"), gpu(1, "0000:04:00.0")] }],
    }
}

fn net_metadata() -> DeviceMetadata {
    DeviceMetadata {
        metadata: ObjectMeta {
            name: "net".into(),
            namespace: "default".into(),
            uid: "b7a5f1de-52a5-4a5e-8e0a-6f0f2f8f5a22".into(),
            generation: 1,
            ..ObjectMeta::default()
        },
        pod_claim_name: None,
        requests: vec![Request {
            name: "eth".into(),
            devices: vec![Device {
                driver: "net.example.com".into(),
                pool: "worker-0".into(),
                name: "eth1".into(),
                attributes: [("mtu".into(), 9000_i64.into())].into(),
                network_data: Some(NetworkDeviceData {
                    interface_name: "net1".into(),
                    ips: vec!["10.9.0.5/24".into(), "fd00:9::5/64".into()],
                    hardware_address: "02:00:00:00:00:05".into(),
                }),
            }],
        }],
    }
}

fn say(line: &str) -> Result<(), Failure> {
    Ok(print(&format!("{line}\n"))?)
}
