//! Tests of what a container sees.

use rstest::rstest;

use super::*;

#[rstest]
#[case(Isolation::Root)]
#[case(Isolation::UserNamespace)]
#[tokio::test]
async fn two_containers_see_only_their_own_mounts_and_cannot_write_to_them(#[case] isolation: Isolation) {
    if skipped(&isolation) {
        return;
    }
    let bench = Bench::new(isolation);
    let a = bench.write("a", "file a");
    let b = bench.write("b", "file b");
    let a = bench.device("a", json!({ "mounts": [bind(&a, "/var/run/dra/a/metadata.json")] }));
    let b = bench.device("b", json!({ "mounts": [bind(&b, "/run/dra/b/metadata.json")] }));
    let script = "cd /run/dra; find * | sort | tr '\\n' ' '; cat */*; \
        (echo x > */metadata.json) 2>/dev/null || echo ' refused'; rm */metadata.json 2>/dev/null || echo stays";
    assert_eq!(bench.script(script, &[&a]).await, "a a/metadata.json file a refused\nstays\n");
    assert_eq!(bench.script(script, &[&b]).await, "b b/metadata.json file b refused\nstays\n");
    assert_eq!(fs::read_to_string(bench.path("a")).unwrap(), "file a");
    let script = "cat /var/run/dra/a/metadata.json /var/run/dra/b/metadata.json";
    assert_eq!(bench.script(script, &[&a, &b]).await, "file afile b");
}

#[rstest]
#[case(Isolation::Root)]
#[case(Isolation::UserNamespace)]
#[tokio::test]
async fn a_file_that_is_updated_in_place_changes_in_the_running_container(#[case] isolation: Isolation) {
    if skipped(&isolation) {
        return;
    }
    let bench = Bench::new(isolation);
    let file = bench.write("file", "one\n");
    let device = bench.device("x", json!({ "mounts": [bind(&file, "/x")] }));
    let script = "cat /x; while ! grep -q two /x; do sleep 0.01; done; cat /x; while :; do sleep 1; done";
    let id = bench.runner().start(container(script, &[&device])).await.unwrap();
    bench.until_logged(&id, "one").await;
    bench.write("file", "two\n");
    bench.until_logged(&id, "two").await;
    // A file that replaces it is not the mounted one.
    bench.write("new", "three\n");
    fs::rename(bench.path("new"), bench.path("file")).unwrap();
    let output = bench.runner().exec(&id, &strings(&["cat", "/x"])).await.unwrap();
    assert_eq!(output.stdout, b"two\n");
}

#[rstest]
#[case(Isolation::Root)]
#[case(Isolation::UserNamespace)]
#[tokio::test]
async fn the_environment_has_only_variables_of_pod_and_devices(#[case] isolation: Isolation) {
    if skipped(&isolation) {
        return;
    }
    let bench = Bench::new(isolation);
    let device = bench.device("x", json!({ "env": ["MINE=device", "EMPTY=", "EQUALS=a=b"] }));
    let mut spec = container("", &[&device]);
    spec.command = strings(&["env"]);
    spec.env = vec![("MINE".into(), "pod".into()), ("OTHER".into(), "pod".into())];
    let (exit, output) = bench.run(spec).await;
    assert_eq!(exit.code, 0);
    let path = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
    let mut lines: Vec<&str> = output.lines().collect();
    lines.sort_unstable();
    assert_eq!(lines, ["EMPTY=", "EQUALS=a=b", "HOSTNAME=pod", "MINE=device", "OTHER=pod", path]);
}

#[rstest]
#[case(Isolation::Root)]
#[case(Isolation::UserNamespace)]
#[tokio::test]
async fn device_nodes_exist_and_work(#[case] isolation: Isolation) {
    if skipped(&isolation) {
        return;
    }
    let bench = Bench::new(isolation.clone());
    let device = bench.device(
        "x",
        json!({ "deviceNodes": [
            { "path": "/dev/example/zero", "hostPath": "/dev/zero", "permissions": "r" },
            { "path": "/dev/example/pipe", "type": "p", "fileMode": 0o600 },
            { "path": "/dev/full", "hostPath": "/dev/null" },
        ]}),
    );
    let script = "test -p /dev/example/pipe && head -c 3 /dev/example/zero | od -An -tx1 && echo x > /dev/full && \
        echo x > /dev/null && stat -c '%t:%T' /dev/example/zero && stat -c %a /dev/example/pipe";
    assert_eq!(bench.script(script, &[&device]).await, " 00 00 00\n1:5\n600\n");
    let notes = bench.runner().all()[0].notes.clone();
    assert_eq!(notes, ["permissions \"r\" of device node /dev/example/zero are not enforced"]);
    if isolation == Isolation::Root {
        let device = bench.device(
            "y",
            json!({ "deviceNodes": [
            // Not on the host: the numbers are sufficient.
            { "path": "/dev/y", "type": "c", "major": 1, "minor": 3, "fileMode": 0o640, "uid": 7, "gid": 8 }
        ], "additionalGids": [0, 42, 43] }),
        );
        let output = bench.script("stat -c '%t:%T %a %u:%g' /dev/y; id -G", &[&device]).await;
        assert_eq!(output, "1:3 640 7:8\n0 42 43\n");
    }
}

#[rstest]
#[case(Isolation::Root)]
#[case(Isolation::UserNamespace)]
#[tokio::test]
async fn the_root_is_new_and_the_hosts_directories_are_read_only(#[case] isolation: Isolation) {
    if skipped(&isolation) {
        return;
    }
    let bench = Bench::new(isolation);
    let host = bench.text("cdi");
    // Files without close-on-exec, such as other code of the process may have.
    let _inheritable = rustix::pipe::pipe().unwrap();
    let script = format!(
        "for d in /usr /etc /opt /usr/lib; do touch $d/drakkar-was-here 2>/dev/null && echo wrote to $d; done; \
         ls -A /tmp /run /var/tmp /; test -e {host} && echo sees the host; \
         touch /tmp/a /run/b /var/c /d && echo wrote; readlink /var/run; ls /proc/self/fd | wc -l; cat; umask"
    );
    let output = bench.script(&script, &[]).await;
    for name in ["usr", "etc", "proc", "dev", "tmp", "run", "var"] {
        assert!(output.lines().any(|line| line == name), "{output}");
    }
    assert!(!output.contains("wrote to") && !output.contains("sees the host"), "{output}");
    // 0, 1, 2 and the listed directory.
    assert!(output.ends_with("wrote\n../run\n4\n0022\n"), "{output}");
    assert!(output.starts_with("/:\n") && output.contains("/run:\n\n/tmp:\n\n/var/tmp:\n"), "{output}");
}

#[rstest]
#[case(Isolation::Root)]
#[case(Isolation::UserNamespace)]
#[tokio::test]
async fn the_target_of_a_mount_may_be_missing_in_a_directory_of_the_host(#[case] isolation: Isolation) {
    if skipped(&isolation) {
        return;
    }
    let bench = Bench::new(isolation);
    let file = bench.write("file", "mounted");
    let device = bench.device(
        "x",
        json!({
            "mounts": [bind(&file, "/etc/drakkar-test/file"), bind(&file, "/lib/drakkar-test.so")],
        }),
    );
    let script = "cat /etc/drakkar-test/file /usr/lib/drakkar-test.so; test -e /etc/passwd";
    assert_eq!(bench.script(script, &[&device]).await, "mountedmounted");
    assert!(!Path::new("/etc/drakkar-test").exists() && !Path::new("/usr/lib/drakkar-test.so").exists());
    // An existing file is hidden by the mount.
    let device = bench.device("y", json!({ "mounts": [bind(&file, "/etc/passwd")] }));
    assert_eq!(bench.script("cat /etc/passwd", &[&device]).await, "mounted");
}

#[rstest]
#[case(Isolation::Root)]
#[case(Isolation::UserNamespace)]
#[tokio::test]
async fn a_later_mount_replaces_one_at_the_same_path_and_deeper_ones_come_later(#[case] isolation: Isolation) {
    if skipped(&isolation) {
        return;
    }
    let bench = Bench::new(isolation);
    let a = bench.write("a", "a");
    let b = bench.write("b", "b");
    fs::create_dir_all(bench.path("tree/sub")).unwrap();
    bench.write("tree/sub/file", "in the tree");
    let device = bench.device(
        "x",
        json!({ "mounts": [
            bind(&a, "/data/sub/file"),
            { "hostPath": bench.text("tree"), "containerPath": "/data", "options": ["rbind", "rw"] },
            bind(&b, "/data/sub/file"),
            { "hostPath": "tmpfs", "containerPath": "/mem", "type": "tmpfs", "options": ["nosuid", "size=64k"] },
        ]}),
    );
    let mut spec = container("cat /data/sub/file; touch /data/new; stat -f -c %T /mem; cat /host", &[&device]);
    spec.host_paths = vec![
        HostPath { host: bench.path("b"), container: "/data".into(), read_only: true },
        HostPath { host: bench.path("a"), container: "/host".into(), read_only: true },
    ];
    let (_, output) = bench.run(spec).await;
    assert_eq!(output, "btmpfs\na");
    assert!(bench.path("tree/new").exists());
}

#[tokio::test]
async fn read_only_applies_to_submounts_only_with_rro() {
    let is_mount = mounts_of_host().lines().any(|line| line.contains(" /dev/shm "));
    if !is_root() || !is_mount {
        println!("skipped: needs root and a mount at /dev/shm");
        return;
    }
    let bench = Bench::new(Isolation::Root);
    let file = tempfile::NamedTempFile::new_in("/dev/shm").unwrap();
    let name = file.path().file_name().unwrap().to_str().unwrap();
    let script = format!("(echo x >> /x/shm/{name}) 2>/dev/null && echo wrote; touch /x/x 2>/dev/null || echo refused");
    for (option, expected) in [("ro", "wrote\nrefused\n"), ("rro", "refused\n")] {
        let mount = json!({ "hostPath": "/dev", "containerPath": "/x", "options": ["rbind", option] });
        let device = bench.device("x", json!({ "mounts": [mount] }));
        assert_eq!(bench.script(&script, &[&device]).await, expected, "{option}");
    }
}
