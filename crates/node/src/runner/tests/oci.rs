//! Tests of an OCI runtime, where one works.

use super::*;

/// Creates a runner with `runc` or `crun`; prints why if there is none.
async fn bench() -> Option<Bench> {
    let directories = ["/usr/bin", "/usr/sbin", "/usr/local/bin", "/usr/local/sbin"];
    let candidates =
        directories.iter().flat_map(|directory| ["runc", "crun"].map(|name| Path::new(directory).join(name)));
    let Some(runtime) = candidates.into_iter().find(|path| path.exists()) else {
        println!("skipped: neither runc nor crun is installed");
        return None;
    };
    if !is_root() {
        println!("skipped: {} needs root", runtime.display());
        return None;
    }
    let bench = Bench::new(Isolation::Oci(runtime));
    match bench.runner().start(container("true", &[])).await {
        Ok(id) => {
            bench.runner().wait(&id).await.unwrap();
            bench.runner().remove(&id).unwrap();
            Some(bench)
        }
        Err(error) => {
            println!("skipped: the runtime does not work here: {error}");
            None
        }
    }
}

#[tokio::test]
async fn a_runtime_applies_cdi_edits_and_runs_hooks() {
    let Some(bench) = bench().await else { return };
    let file = bench.write("file", "mounted");
    let trace = bench.text("hook-was-here");
    let device = bench.device(
        "x",
        json!({
            "env": ["X=1"],
            "mounts": [bind(&file, "/var/run/x/file")],
            "deviceNodes": [{ "path": "/dev/x", "hostPath": "/dev/null" }],
            "hooks": [{ "hookName": "createRuntime", "path": "/bin/touch", "args": ["touch", trace] }],
            "additionalGids": [42],
        }),
    );
    let script = "cat /run/x/file; echo $X; test -c /dev/x && echo > /dev/x; id -G; (echo > /run/x/file) 2>/dev/null || \
        echo refused; exit 5";
    let (exit, output) = bench.run(container(script, &[&device])).await;
    assert_eq!(output, "mounted1\n0 42\nrefused\n");
    assert_eq!(exit.code, 5);
    assert!(Path::new(&trace).exists());
    assert!(bench.runner().all()[0].notes.is_empty());
}

#[tokio::test]
async fn containers_of_a_runtime_can_be_stopped_entered_and_leave_nothing_behind() {
    let Some(mut bench) = bench().await else { return };
    let script = "trap 'exit 3' TERM; echo up; while :; do sleep 0.01; done";
    let id = bench.runner().start(container(script, &[])).await.unwrap();
    bench.until_logged(&id, "up").await;
    let output = bench.runner().exec(&id, &strings(&["sh", "-c", "echo $HOSTNAME; exit 4"])).await.unwrap();
    assert_eq!((output.stdout.as_slice(), output.status.code()), (&b"pod\n"[..], Some(4)));
    assert_eq!(bench.runner().stop(&id, Duration::from_secs(600)).await.unwrap().code, 3);
    let stubborn = bench.runner().start(container("trap '' TERM; echo up; sleep 1000", &[])).await.unwrap();
    bench.until_logged(&stubborn, "up").await;
    assert_eq!(bench.runner().stop(&stubborn, Duration::from_millis(20)).await.unwrap().code, 137);
    bench.runner().start(container("exec sleep 1000", &[])).await.unwrap();
    bench.runner = None;
    assert!(!mounts_of_host().contains(bench.directory.path().to_str().unwrap()));
    assert!(!bench.path("state").exists());
}

#[tokio::test]
async fn the_runtimes_message_about_a_missing_source_is_the_error() {
    let Some(bench) = bench().await else { return };
    let missing = bench.text("missing");
    let device = bench.device("x", json!({ "mounts": [bind(&missing, "/x")] }));
    let error = bench.runner().start(container("true", &[&device])).await.unwrap_err();
    assert!(error.to_string().contains(&missing), "{error}");
    assert!(error.is_start_error());
    let State::Exited(exit) = bench.runner().all()[0].state.clone() else { panic!("runs") };
    assert_eq!(exit.code, 128);
}
