//! Tests of what is refused, and that the error names the mount or device.

use rstest::rstest;

use super::*;

async fn refused(bench: &Bench, devices: &[&str]) -> Error {
    bench.runner().start(container("true", devices)).await.unwrap_err()
}

#[tokio::test]
async fn a_missing_device_fails_the_creation_and_leaves_nothing_behind() {
    let bench = Bench::new(Isolation::Auto);
    let known = bench.device("x", json!({ "env": ["A=1"] }));
    let error = refused(&bench, &["example.com/x=9", &known, "example.com/y=0"]).await;
    let text = "container default/pod/main: CDI device injection failed: \
        unresolvable CDI devices example.com/x=9, example.com/y=0";
    assert_eq!(error.to_string(), text);
    assert!(!error.is_start_error());
    assert!(bench.runner().all().is_empty());
    let state = fs::read_dir(bench.path("state")).unwrap().next().unwrap().unwrap().path();
    let mut remaining: Vec<_> = fs::read_dir(state).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    remaining.sort_unstable();
    assert_eq!(remaining, ["root", "scratch"]);
}

#[tokio::test]
async fn a_device_in_two_files_is_unresolvable_and_the_error_names_the_files() {
    let bench = Bench::new(Isolation::Auto);
    let device = json!([{ "name": "0", "containerEdits": { "env": ["A=1"] } }]);
    bench.spec("one.json", "x", device.clone(), json!({}));
    bench.spec("two.json", "x", device, json!({}));
    let error = refused(&bench, &["example.com/x=0"]).await.to_string();
    assert!(error.contains("unresolvable CDI devices example.com/x=0") && error.contains("one.json"), "{error}");
}

#[rstest]
#[case(Isolation::Root)]
#[case(Isolation::UserNamespace)]
#[tokio::test]
async fn a_mount_whose_source_is_missing_fails_the_start_as_containerd_does(#[case] isolation: Isolation) {
    if skipped(&isolation) {
        return;
    }
    let bench = Bench::new(isolation);
    let missing = bench.text("missing");
    let device = bench.device("x", json!({ "mounts": [bind(&missing, "/x")] }));
    let error = refused(&bench, &[&device]).await;
    let text = format!("container default/pod/main: mount {missing} at /x: No such file or directory (os error 2)");
    assert_eq!(error.to_string(), text);
    assert!(error.is_start_error());
    let [info] = &bench.runner().all()[..] else { panic!("not in the list") };
    let State::Exited(exit) = &info.state else { panic!("runs") };
    assert_eq!((exit.code, exit.reason.as_str(), exit.message.as_str()), (128, "StartError", text.as_str()));
    // A missing program fails the start, too.
    let mut spec = container("", &[]);
    spec.command = strings(&["no-such-program"]);
    let error = bench.runner().start(spec).await.unwrap_err();
    assert!(error.to_string().contains("run \"no-such-program\": No such file"), "{error}");
    assert!(error.is_start_error());
}

#[tokio::test]
async fn a_mount_without_bind_is_a_file_system_of_no_type() {
    let bench = Bench::new(Isolation::Auto);
    let file = bench.write("file", "");
    let mount = json!({ "hostPath": file, "containerPath": "/x", "options": ["ro"] });
    let device = bench.device("x", json!({ "mounts": [mount] }));
    let error = refused(&bench, &[&device]).await.to_string();
    assert!(error.contains("of type \"\" at /x"), "{error}");
}

#[rstest]
#[case("/a/../../etc", "must not have '..'")]
#[case("relative", "must be absolute")]
#[case("/", "must not be the root directory")]
#[case("/proc/self/x", "must not be in /proc")]
#[tokio::test]
async fn paths_that_lead_elsewhere_are_refused(#[case] path: &str, #[case] problem: &str) {
    let bench = Bench::new(Isolation::Auto);
    let file = bench.write("file", "");
    let device = bench.device("x", json!({ "mounts": [bind(&file, path)] }));
    let error = refused(&bench, &[&device]).await;
    assert!(error.to_string().ends_with(&format!("mount at {path:?}: {problem}")), "{error}");
    assert!(!error.is_start_error());
}

/// A mounted directory of the host has symbolic links that lead out of it: mounts and directories "below" such a link must
/// be created in the container.
#[rstest]
#[case(Isolation::Root)]
#[case(Isolation::UserNamespace)]
#[tokio::test]
async fn links_in_mounted_directories_do_not_lead_out_of_the_container(#[case] isolation: Isolation) {
    if skipped(&isolation) {
        return;
    }
    let bench = Bench::new(isolation);
    fs::create_dir_all(bench.path("outside")).unwrap();
    fs::create_dir_all(bench.path("tree")).unwrap();
    for (name, to) in
        [("absolute", bench.path("outside")), ("up", "../../../../../../../..".into()), ("tmp", "/tmp".into())]
    {
        std::os::unix::fs::symlink(to, bench.path("tree").join(name)).unwrap();
    }
    let file = bench.write("file", "mounted");
    let tree = json!({ "hostPath": bench.text("tree"), "containerPath": "/tree", "options": ["rbind", "rw"] });
    let at = |path: &str| json!({ "mounts": [tree, bind(&file, path)] });

    let device = bench.device("a", at("/tree/tmp/made/here"));
    assert_eq!(bench.script("cat /tmp/made/here", &[&device]).await, "mounted");
    let device = bench.device("b", at("/tree/up/made-in-root"));
    assert_eq!(bench.script("cat /made-in-root", &[&device]).await, "mounted");
    assert!(!Path::new("/made-in-root").exists());
    // The directory does not exist in the container, and the link is not replaced.
    let device = bench.device("c", at("/tree/absolute/planted"));
    let error = refused(&bench, &[&device]).await;
    assert!(error.to_string().contains("create directory /tree/absolute"), "{error}");
    // Nothing is created in the host's directories, although they are mounted writable.
    let device = bench.device("d", at("/tree/planted"));
    let error = refused(&bench, &[&device]).await;
    assert!(error.to_string().contains("at /tree/planted: Read-only file system"), "{error}");
    assert_eq!(fs::read_dir(bench.path("outside")).unwrap().count(), 0);
    assert_eq!(fs::read_dir(bench.path("tree")).unwrap().count(), 3);
}

#[tokio::test]
async fn a_container_that_is_not_run_is_shown() {
    let bench = Bench::new(Isolation::ShowOnly);
    let device = bench.device(
        "x",
        json!({
            "env": ["A=1"],
            "mounts": [bind("/host/file", "/x")],
            "deviceNodes": [{ "path": "/dev/x", "hostPath": "/dev/null", "permissions": "rw" }],
            "hooks": [{ "hookName": "createContainer", "path": "/bin/hook", "args": ["hook", "now"] }],
            "additionalGids": [44],
            "intelRdt": { "closID": "fast" },
        }),
    );
    let text = refused(&bench, &[&device]).await.to_string();
    let shown = "container default/pod/main: not run: containers are configured not to run; it would have\n\
        env     PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin\n\
        env     HOSTNAME=pod\n\
        env     A=1\n\
        device  /dev/x c 1:3 rw from /dev/null\n\
        mount   /host/file at /x (ro,bind)\n\
        hook    createContainer: /bin/hook now\n\
        group   44\n\
        rdt     fast\n";
    assert_eq!(text, shown);
    let (_, notes) = bench.runner().resolve(&container("true", &[&device])).unwrap();
    let expected = [
        "hook createContainer /bin/hook is not run",
        "permissions \"rw\" of device node /dev/x are not enforced",
        "intelRdt has no effect",
    ];
    assert_eq!(notes, expected);
}

#[tokio::test]
async fn a_missing_command_and_a_missing_container_are_errors() {
    let bench = Bench::new(Isolation::Auto);
    let error = bench.runner().start(ContainerSpec::default()).await.unwrap_err();
    assert!(matches!(error, Error::NoCommand { .. }), "{error}");
    let unknown = ContainerId("0".repeat(64));
    assert!(matches!(bench.runner().wait(&unknown).await, Err(Error::Unknown(_))));
    assert!(matches!(bench.runner().stop(&unknown, Duration::ZERO).await, Err(Error::Unknown(_))));
    assert_eq!(bench.runner().logs(&unknown).unwrap_err().kind(), io::ErrorKind::NotFound);
}
