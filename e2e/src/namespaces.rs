//! The node's Linux namespaces: pid, mount, network, IPC and UTS.
//!
//! They make teardown reliable. Pid 1 of the node is a program that only reaps its children; when it is killed, the kernel
//! kills every other process of the node, containers included, and mounts and interfaces go with the last of them.
//! Host-wide sysctls that the kubelet writes are bind-mounted files of the cluster; the others are per namespace. On the
//! host itself there are only the state directory, one network interface and the cgroups, all of which are removed. Kernel
//! modules that were loaded for the cluster stay loaded.

use std::fs;
use std::net::Ipv4Addr;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use crate::error::{Error, IoContext, Result};
use crate::paths::{ClusterPaths, SERVICE_ADDRESS};
use crate::process::Process;
use crate::run::{output, run, tail, wait_until};

/// The script that sets up the namespaces from within. The arguments are the state directory, the directory of programs,
/// the node's name and the service address.
const SETUP: &str = r#"
set -eu
state=$1 bin=$2 name=$3 service=$4
# This is still the host's /proc, so this is the pid on the host. The record has the format of process.rs, and is written
# first: even if the program that started this dies, the node can be stopped.
read -r pid rest </proc/self/stat
read -r boot </proc/sys/kernel/random/boot_id
started=$(set -- $rest; shift 20; echo "$1")
echo "$pid $started $boot" >"$state/process/init.new"
mv "$state/process/init.new" "$state/process/init"
mount -t proc -o nosuid,nodev,noexec proc /proc

# /sys shows the interfaces of the network namespace in which it was mounted, so it is mounted again.
mount --rbind /sys/fs/cgroup "$state/hold"
mount -t sysfs -o nosuid,nodev,noexec sysfs /sys
mount --rbind "$state/hold" /sys/fs/cgroup
umount -R "$state/hold"

# Host-wide sysctls that the kubelet writes: it writes to copies.
for setting in vm/overcommit_memory vm/panic_on_oom kernel/panic kernel/panic_on_oops \
    kernel/keys/root_maxkeys kernel/keys/root_maxbytes; do
    [ -e "/proc/sys/$setting" ] || continue
    file=$state/sysctl/$(echo "$setting" | tr / .)
    cat "/proc/sys/$setting" >"$file"
    mount --bind "$file" "/proc/sys/$setting"
done

for own in etc run var/lib var/log; do
    mount --bind "$state/root/$own" "/$own"
done
# For volumes with mount propagation between containers and the node.
mount --make-rshared /

echo "$name" >/proc/sys/kernel/hostname
ip link set lo up
ip address add "$service/32" dev lo
: >"$state/process/ready"
# The argument identifies the process without its record: see `find_unrecorded`.
exec "$bin/init" "$state"
"#;

/// The script that starts a program in the background and prints its pid in the node. The first argument is its log.
const START: &str = r#"log=$1; shift; setsid "$@" >>"$log" 2>&1 </dev/null & echo $!"#;

/// The node's namespaces, identified by their pid 1.
#[derive(Clone, Debug)]
pub(crate) struct Namespaces {
    init: Process,
    bin: PathBuf,
}

impl Namespaces {
    /// Creates the namespaces, connected to the host by a veth pair.
    pub(crate) fn create(paths: &ClusterPaths, name: &str) -> Result<Self> {
        let log = paths.log("init");
        let file = fs::File::create(&log).with_context(|| format!("create {}", log.display()))?;
        let errors = file.try_clone().with_context(|| format!("share {}", log.display()))?;
        let mut unshare = Command::new("unshare")
            .args(["--mount", "--pid", "--net", "--ipc", "--uts", "--fork", "--propagation", "private"])
            .args(["/bin/sh", "-c", SETUP, "setup"])
            .args([paths.state(), &paths.bin()])
            .args([name, &SERVICE_ADDRESS.to_string()])
            .stdin(Stdio::null())
            .stdout(file)
            .stderr(errors)
            .current_dir("/")
            // Ctrl-C in the terminal must not reach the node.
            .process_group(0)
            .spawn()
            .with_context(|| "run `unshare`".to_owned())?;

        let ready_file = paths.process_record("ready");
        let ready = wait_until("the node's namespaces", Duration::from_secs(20), &log_hint(&log), || {
            if ready_file.exists() {
                return Ok(true);
            }
            match unshare.try_wait().with_context(|| "wait for `unshare`".to_owned())? {
                Some(_) => Err(exited("the setup of namespaces", &log)),
                None => Ok(false),
            }
        });
        // `unshare` exits with the node, and this process has to reap it.
        thread::spawn(move || unshare.wait());
        ready?;

        let namespaces = Self::of(paths)?.ok_or_else(|| exited("the node's first process", &log))?;
        namespaces.connect(paths)?;
        Ok(namespaces)
    }

    /// Returns the namespaces of a running cluster, or `None`.
    pub(crate) fn of(paths: &ClusterPaths) -> Result<Option<Self>> {
        let init = match Process::recorded(&paths.process_record("init"))? {
            Some(init) if init.is_alive()? => Some(init),
            _ => find_unrecorded(paths)?,
        };
        Ok(init.map(|init| Self { init, bin: paths.bin() }))
    }

    /// Kills every process in the namespaces, and so destroys them.
    pub(crate) fn destroy(&self) -> Result<()> {
        self.init.kill()
    }

    /// A command that runs in the namespaces, with the environment of the node's programs.
    pub(crate) fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new("nsenter");
        command
            .arg(format!("--target={}", self.init.pid()))
            .args(["--mount", "--pid", "--net", "--ipc", "--uts", "--"])
            .arg(program)
            .current_dir("/")
            .env_clear()
            .env("HOME", "/root")
            // All components are Go programs. Less frequent garbage collection costs memory, of which there is enough, and
            // saves processor time, which they share with the tests.
            .env("GOGC", "400")
            .env(
                "PATH",
                format!("{}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", self.bin.display()),
            );
        command
    }

    /// Starts a program that outlives this process. Its parent is pid 1 of the node.
    pub(crate) fn start(&self, command_line: &[String], log: &Path) -> Result<Process> {
        let printed = run(self.command("/bin/sh").args(["-c", START, "start"]).arg(log).args(command_line))?;
        match self.find(printed.trim())? {
            Some(process) => Ok(process),
            None => Err(exited(command_line.first().map_or("a program", String::as_str), log)),
        }
    }

    /// Finds the process that has this pid in the node.
    fn find(&self, pid_in_node: &str) -> Result<Option<Process>> {
        let namespace = |pid: i32| fs::read_link(format!("/proc/{pid}/ns/pid")).ok();
        let ours = namespace(self.init.pid());
        for pid in pids()? {
            // A process that has exited meanwhile is not the one.
            let Ok(status) = fs::read_to_string(format!("/proc/{pid}/status")) else { continue };
            if innermost_pid(&status) == Some(pid_in_node) && ours.is_some() && namespace(pid) == ours {
                return Process::of_pid(pid);
            }
        }
        Ok(None)
    }

    fn connect(&self, paths: &ClusterPaths) -> Result<()> {
        let (host, node) = paths.link();
        let interface = paths.interface();
        let addresses = output(Command::new("ip").args(["-4", "-o", "address"]))?;
        if String::from_utf8_lossy(&addresses.stdout).contains(&format!(" {host}/")) {
            return Err(Error::Missing {
                what: format!("the address {host}, which the link to the node needs, is in use"),
                remedy: "set DRAKKAR_E2E_DIR to another directory, from which another address is derived".to_owned(),
            });
        }
        let init = self.init.pid().to_string();
        let ip = |arguments: &[&str]| run(Command::new("ip").args(arguments));
        let with_prefix = |address: Ipv4Addr| format!("{address}/30");
        ip(&["link", "add", &interface, "type", "veth", "peer", "name", "eth0", "netns", &init])?;
        ip(&["address", "add", &with_prefix(host), "dev", &interface])?;
        ip(&["link", "set", &interface, "up"])?;
        run(self.command("ip").args(["address", "add", &with_prefix(node), "dev", "eth0"]))?;
        run(self.command("ip").args(["link", "set", "eth0", "up"]))?;
        Ok(())
    }
}

/// Removes the host's end of the veth pair. The kernel does so too, but only some time after the node has stopped.
pub(crate) fn disconnect(paths: &ClusterPaths) -> Result<()> {
    let interface = paths.interface();
    if !Path::new("/sys/class/net").join(&interface).exists() {
        return Ok(());
    }
    match run(Command::new("ip").args(["link", "delete", &interface])) {
        // The kernel has removed it meanwhile.
        Err(_) if !Path::new("/sys/class/net").join(&interface).exists() => Ok(()),
        result => result.map(drop),
    }
}

/// Finds a node whose record is gone, as after `cargo clean`: pid 1 of a namespace with the command line of this cluster's
/// init.
fn find_unrecorded(paths: &ClusterPaths) -> Result<Option<Process>> {
    let line = format!("{}\0{}\0", paths.bin().join("init").display(), paths.state().display());
    for pid in pids()? {
        // A process that has exited meanwhile is not the one.
        let read = |name: &str| fs::read_to_string(format!("/proc/{pid}/{name}")).unwrap_or_default();
        if read("cmdline") == line && innermost_pid(&read("status")) == Some("1") {
            return Process::of_pid(pid);
        }
    }
    Ok(None)
}

/// The pids of all processes on the host.
fn pids() -> Result<Vec<i32>> {
    let mut pids = Vec::new();
    for entry in fs::read_dir("/proc").with_context(|| "read /proc".to_owned())? {
        let name = entry.with_context(|| "read /proc".to_owned())?.file_name();
        pids.extend(name.to_str().and_then(|name| name.parse::<i32>().ok()));
    }
    Ok(pids)
}

/// A process's pid in its innermost pid namespace, from `/proc/PID/status`.
fn innermost_pid(status: &str) -> Option<&str> {
    status.lines().find_map(|line| line.strip_prefix("NSpid:"))?.split_whitespace().last()
}

/// A hint that names a log.
pub(crate) fn log_hint(log: &Path) -> String {
    format!("see {}", log.display())
}

/// The error for a program that has exited, with the end of its log.
pub(crate) fn exited(component: &str, log: &Path) -> Error {
    let text = fs::read_to_string(log).unwrap_or_else(|error| format!("cannot read its log: {error}"));
    Error::Exited { component: component.to_owned(), log: format!("{}\n({})", tail(&text, 12), log.display()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_innermost_pid_is_the_last_one() {
        assert_eq!(innermost_pid("Name:\tkubelet\nNSpid:\t4711\t23\nNSpgid:\t1\n"), Some("23"));
        assert_eq!(innermost_pid("Name:\tkubelet\n"), None);
    }
}
