//! Tests of isolation from the host: namespaces, capabilities, system calls, kernel files.

use rstest::rstest;

use super::*;

/// The most capabilities of processes in a container, as the kernel prints them: chown, `dac_override`, fowner, fsetid, kill,
/// setgid, setuid, setpcap, `net_bind_service`, `sys_chroot` and setfcap.
const CAPABILITIES: u64 = 0x8004_05fb;

/// Returns a namespace of this process, as in `/proc/PID/ns`.
fn namespace(kind: &str) -> String {
    fs::read_link(format!("/proc/self/ns/{kind}")).unwrap().to_str().unwrap().to_owned()
}

#[rstest]
#[case(Isolation::Root, &["mnt", "pid", "ipc", "uts", "cgroup"])]
#[case(Isolation::UserNamespace, &["user", "mnt", "ipc", "uts", "cgroup"])]
#[tokio::test]
async fn a_container_has_namespaces_of_its_own(#[case] isolation: Isolation, #[case] own: &[&str]) {
    if skipped(&isolation) {
        return;
    }
    let bench = Bench::new(isolation);
    let id = bench.runner().start(container("echo up; exec sleep 1000", &[])).await.unwrap();
    bench.until_logged(&id, "up").await;
    let list = strings(&["sh", "-c", "for n in user mnt pid ipc uts cgroup net; do readlink /proc/self/ns/$n; done"]);
    let first = bench.script("for n in user mnt pid ipc uts cgroup net; do readlink /proc/self/ns/$n; done", &[]).await;
    let inside = String::from_utf8(bench.runner().exec(&id, &list).await.unwrap().stdout).unwrap();
    for kind in ["user", "mnt", "pid", "ipc", "uts", "cgroup", "net"] {
        let of = |text: &str| text.lines().find(|line| line.starts_with(&format!("{kind}:"))).unwrap().to_owned();
        let is_own = own.contains(&kind);
        assert_eq!(of(&first) != namespace(kind), is_own, "{kind}: {first}");
        assert_eq!(of(&inside) != namespace(kind), is_own, "{kind} of a program inside: {inside}");
        assert_eq!(of(&inside) != of(&first), is_own, "{kind}: two containers: {inside}{first}");
    }
}

#[rstest]
#[case(Isolation::Root)]
#[case(Isolation::UserNamespace)]
#[tokio::test]
async fn a_container_has_few_capabilities_and_cannot_gain_more(#[case] isolation: Isolation) {
    if skipped(&isolation) {
        return;
    }
    let bench = Bench::new(isolation);
    let id = bench.runner().start(container("cat /proc/self/status; echo up; exec sleep 1000", &[])).await.unwrap();
    bench.until_logged(&id, "up").await;
    let status = strings(&["cat", "/proc/self/status"]);
    let inside = String::from_utf8(bench.runner().exec(&id, &status).await.unwrap().stdout).unwrap();
    for status in [bench.log(&id), inside] {
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_else(|| panic!("{status}"));
            line.trim_start_matches(':').trim().to_owned()
        };
        let capabilities = |name| u64::from_str_radix(&field(name), 16).unwrap();
        for set in ["CapPrm", "CapEff", "CapBnd"] {
            assert_eq!(capabilities(set) & !CAPABILITIES, 0, "{set}: {status}");
        }
        assert_eq!(capabilities("CapInh") | capabilities("CapAmb"), 0, "{status}");
        assert_eq!(field("NoNewPrivs"), "1");
        if Path::new("/proc/sys/kernel/seccomp/actions_avail").exists() {
            assert_eq!(field("Seccomp"), "2", "system calls are filtered");
        } else {
            println!("skipped: this kernel does not filter system calls");
        }
    }
}

#[tokio::test]
async fn a_container_of_root_sees_only_its_own_processes_and_has_its_pods_host_name() {
    if skipped(&Isolation::Root) {
        return;
    }
    let bench = Bench::new(Isolation::Root);
    let script = "echo $$; tr '\\0' ' ' < /proc/1/cmdline; echo; ls /proc | grep -c '^[0-9]'; uname -n; echo ready-$$; sleep 1000";
    let id = bench.runner().start(container(script, &[])).await.unwrap();
    bench.until_logged(&id, "ready-1").await;
    let log = bench.log(&id);
    let lines: Vec<&str> = log.lines().collect();
    assert_eq!(lines[0], "1", "{log}");
    assert!(lines[1].starts_with("sh -c echo $$"), "{log}");
    // The shell, `ls` and `grep`.
    assert_eq!(lines[2], "3", "{log}");
    assert_eq!(lines[3], "pod", "{log}");
    let output = bench.runner().exec(&id, &strings(&["cat", "/proc/1/comm"])).await.unwrap();
    assert_eq!(String::from_utf8(output.stdout).unwrap(), "sh\n", "the program is in the container's pid namespace");
    assert_ne!(rustix::system::uname().nodename().to_bytes(), b"pod");
}

#[rstest]
#[case(Isolation::Root)]
#[case(Isolation::UserNamespace)]
#[tokio::test]
async fn a_container_cannot_change_mounts_namespaces_or_kernel_settings(#[case] isolation: Isolation) {
    if skipped(&isolation) {
        return;
    }
    let bench = Bench::new(isolation);
    // Harmless if it succeeds: settings are only set to their current values.
    let script = "try() { \"$@\" >/dev/null 2>&1 && echo \"could: $*\"; }; \
        try mount -t tmpfs none /tmp; try umount /proc; try unshare --mount true; try unshare --user true; \
        try unshare --user --map-root-user --mount true; try mknod /tmp/disk b 8 0; try hostname $(uname -n); \
        try sh -c 'v=$(cat /proc/sys/vm/swappiness); echo $v > /proc/sys/vm/swappiness'; try sh -c 'echo h > /proc/sysrq-trigger'; \
        try sh -c 'head -c 1 /proc/kcore | grep -q .'; \
        try sh -c 'touch /proc/sys/kernel/core_pattern'; \
        sh -c 'sleep 0 & wait' && echo processes; seq 300000 | sort -n --parallel=2 | tail -n 1";
    let output = bench.script(script, &[]).await;
    // Processes and threads can be created.
    assert_eq!(output, "processes\n300000\n");
}
