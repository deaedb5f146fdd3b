//! The namespaces that the node lives in: processes, mounts, network, IPC and host name of its own.
//!
//! They make taking down certain. Process 1 of the node is a program that only waits; when it is killed, the kernel
//! ends every other process of the node, containers included, and with the last of them go mounts and interfaces. What
//! the kubelet sets in `/proc/sys` are files of the cluster where a setting is the whole machine's, and the node's own
//! otherwise. On the machine there are the cluster's directory, one interface and the cgroups, all of which are
//! removed. Only modules that the kernel loaded for it, where it has any, stay loaded.

use std::fs;
use std::net::Ipv4Addr;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use crate::error::{Doing, Error, Result};
use crate::place::{Place, SERVICE_ADDRESS};
use crate::process::Process;
use crate::run::{output, run, tail, wait_until};

/// What sets up the namespaces from within. The arguments are the cluster's directory, the directory of programs, the
/// node's name and the service address.
const SETUP: &str = r#"
set -eu
state=$1 bin=$2 name=$3 service=$4
# This is still the machine's /proc, and tells the pid that the machine knows. The record is as in process.rs, and comes
# first: whatever becomes of the one who started this, it can be ended.
read -r pid rest </proc/self/stat
read -r boot </proc/sys/kernel/random/boot_id
started=$(set -- $rest; shift 20; echo "$1")
echo "$pid $started $boot" >"$state/process/init.new"
mv "$state/process/init.new" "$state/process/init"
mount -t proc -o nosuid,nodev,noexec proc /proc

# The interfaces in /sys are those of the network namespace in which it is mounted.
mount --rbind /sys/fs/cgroup "$state/hold"
mount -t sysfs -o nosuid,nodev,noexec sysfs /sys
mount --rbind "$state/hold" /sys/fs/cgroup
umount -R "$state/hold"

# Settings of the whole machine that the kubelet writes.
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
# Volumes that containers share with the node.
mount --make-rshared /

echo "$name" >/proc/sys/kernel/hostname
ip link set lo up
ip address add "$service/32" dev lo
: >"$state/process/ready"
# The argument is for those who look for it: see `find_lost`.
exec "$bin/init" "$state"
"#;

/// Starts a program of the node in the background and prints its pid there. The first argument is its log.
const START: &str = r#"log=$1; shift; setsid "$@" >>"$log" 2>&1 </dev/null & echo $!"#;

/// The namespaces, by their process 1.
#[derive(Clone, Debug)]
pub(crate) struct Namespaces {
    init: Process,
    bin: PathBuf,
}

impl Namespaces {
    /// Makes them, connected to the machine by a link of two addresses.
    pub(crate) fn create(place: &Place, name: &str) -> Result<Self> {
        let log = place.log("init");
        let file = fs::File::create(&log).doing(|| format!("make {}", log.display()))?;
        let errors = file.try_clone().doing(|| format!("share {}", log.display()))?;
        let mut unshare = Command::new("unshare")
            .args(["--mount", "--pid", "--net", "--ipc", "--uts", "--fork", "--propagation", "private"])
            .args(["/bin/sh", "-c", SETUP, "setup"])
            .args([place.state(), &place.bin()])
            .args([name, &SERVICE_ADDRESS.to_string()])
            .stdin(Stdio::null())
            .stdout(file)
            .stderr(errors)
            .current_dir("/")
            // Ctrl-C on a terminal is for who waits there, not for the node.
            .process_group(0)
            .spawn()
            .doing(|| "run `unshare`".to_owned())?;

        let set_up = place.record("ready");
        let ready = wait_until("the node's namespaces", Duration::from_secs(20), &see(&log), || {
            if set_up.exists() {
                return Ok(true);
            }
            match unshare.try_wait().doing(|| "wait for `unshare`".to_owned())? {
                Some(_) => Err(ended("the setup of namespaces", &log)),
                None => Ok(false),
            }
        });
        // It ends with the node, and whoever started it has to reap it.
        thread::spawn(move || unshare.wait());
        ready?;

        let namespaces = Self::of(place)?.ok_or_else(|| ended("the node's first process", &log))?;
        namespaces.connect(place)?;
        Ok(namespaces)
    }

    /// Those of a cluster that is up; nothing when it is not.
    pub(crate) fn of(place: &Place) -> Result<Option<Self>> {
        let init = match Process::recorded(&place.record("init"))? {
            Some(init) if init.is_alive()? => Some(init),
            _ => find_lost(place)?,
        };
        Ok(init.map(|init| Self { init, bin: place.bin() }))
    }

    /// Ends every process in them, and with them the namespaces.
    pub(crate) fn destroy(&self) -> Result<()> {
        self.init.kill()
    }

    /// A command that runs in them, with the environment of the node's programs.
    pub(crate) fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new("nsenter");
        command
            .arg(format!("--target={}", self.init.pid()))
            .args(["--mount", "--pid", "--net", "--ipc", "--uts", "--"])
            .arg(program)
            .current_dir("/")
            .env_clear()
            .env("HOME", "/root")
            // All of them are in Go. Collecting garbage less often costs memory, which is there, and saves time of the
            // few cores that they share with the tests.
            .env("GOGC", "400")
            .env(
                "PATH",
                format!("{}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", self.bin.display()),
            );
        command
    }

    /// Starts a program that goes on when this command ends. Its parent is process 1 of the node.
    pub(crate) fn start(&self, command_line: &[String], log: &Path) -> Result<Process> {
        let printed = run(self.command("/bin/sh").args(["-c", START, "start"]).arg(log).args(command_line))?;
        let inner = printed.trim();
        match self.find(inner)? {
            Some(process) => Ok(process),
            None => Err(ended(command_line.first().map_or("a program", String::as_str), log)),
        }
    }

    /// The process that has this pid in the node.
    fn find(&self, inner: &str) -> Result<Option<Process>> {
        let link = |pid: i32| fs::read_link(format!("/proc/{pid}/ns/pid")).ok();
        let ours = link(self.init.pid());
        for pid in pids()? {
            // One that ends while it is looked at is not the one.
            let Ok(status) = fs::read_to_string(format!("/proc/{pid}/status")) else { continue };
            if innermost_pid(&status) == Some(inner) && ours.is_some() && link(pid) == ours {
                return Process::of_pid(pid);
            }
        }
        Ok(None)
    }

    fn connect(&self, place: &Place) -> Result<()> {
        let (machine, node) = place.link();
        let interface = place.interface();
        let taken = output(Command::new("ip").args(["-4", "-o", "address"]))?;
        if String::from_utf8_lossy(&taken.stdout).contains(&format!(" {machine}/")) {
            return Err(Error::Missing {
                what: format!("the address {machine}, which the link to the node needs, is in use"),
                remedy: "set DRAKKAR_E2E_DIR to another directory, which gives another address".to_owned(),
            });
        }
        let init = self.init.pid().to_string();
        let ip = |arguments: &[&str]| run(Command::new("ip").args(arguments));
        let with_prefix = |address: Ipv4Addr| format!("{address}/30");
        ip(&["link", "add", &interface, "type", "veth", "peer", "name", "eth0", "netns", &init])?;
        ip(&["address", "add", &with_prefix(machine), "dev", &interface])?;
        ip(&["link", "set", &interface, "up"])?;
        run(self.command("ip").args(["address", "add", &with_prefix(node), "dev", "eth0"]))?;
        run(self.command("ip").args(["link", "set", "eth0", "up"]))?;
        Ok(())
    }
}

/// Removes the machine's end of the link. The kernel would do so too, but some time after the node has ended.
pub(crate) fn disconnect(place: &Place) -> Result<()> {
    let interface = place.interface();
    if !Path::new("/sys/class/net").join(&interface).exists() {
        return Ok(());
    }
    match run(Command::new("ip").args(["link", "delete", &interface])) {
        // The kernel was faster.
        Err(_) if !Path::new("/sys/class/net").join(&interface).exists() => Ok(()),
        result => result.map(drop),
    }
}

/// A node whose record is gone, as after `cargo clean`: process 1 of a namespace, with this very command line.
fn find_lost(place: &Place) -> Result<Option<Process>> {
    let line = format!("{}\0{}\0", place.bin().join("init").display(), place.state().display());
    for pid in pids()? {
        // One that ends while it is looked at says nothing, and is not the one.
        let read = |name: &str| fs::read_to_string(format!("/proc/{pid}/{name}")).unwrap_or_default();
        if read("cmdline") == line && innermost_pid(&read("status")) == Some("1") {
            return Process::of_pid(pid);
        }
    }
    Ok(None)
}

/// All processes of the machine.
fn pids() -> Result<Vec<i32>> {
    let mut pids = Vec::new();
    for entry in fs::read_dir("/proc").doing(|| "read /proc".to_owned())? {
        let name = entry.doing(|| "read /proc".to_owned())?.file_name();
        pids.extend(name.to_str().and_then(|name| name.parse::<i32>().ok()));
    }
    Ok(pids)
}

/// The last of the pids that a process has in its namespaces.
fn innermost_pid(status: &str) -> Option<&str> {
    status.lines().find_map(|line| line.strip_prefix("NSpid:"))?.split_whitespace().last()
}

/// Where to look when something does not come up.
pub(crate) fn see(log: &Path) -> String {
    format!("see {}", log.display())
}

/// The error for a program that is no more.
pub(crate) fn ended(component: &str, log: &Path) -> Error {
    let text = fs::read_to_string(log).unwrap_or_else(|error| format!("its log cannot be read: {error}"));
    Error::Ended { component: component.to_owned(), log: format!("{}\n({})", tail(&text, 12), log.display()) }
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
