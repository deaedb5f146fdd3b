//! Tests of starts, exits, signals, logs and exec, and that nothing remains.

use futures::FutureExt as _;
use rstest::rstest;

use super::*;

#[rstest]
#[case(Isolation::Root)]
#[case(Isolation::UserNamespace)]
#[tokio::test]
async fn a_program_runs_to_its_exit_and_its_output_and_exit_code_are_kept(#[case] isolation: Isolation) {
    if skipped(&isolation) {
        return;
    }
    let bench = Bench::new(isolation.clone());
    assert_eq!(bench.runner().isolation(), &isolation);
    let (exit, output) = bench.run(container("echo out; echo err >&2; exit 7", &[])).await;
    assert_eq!((exit.code, exit.signal, exit.reason.as_str()), (7, None, "Error"));
    assert_eq!(output, "out\nerr\n");
    let id = bench.runner().start(container("exec sleep 1000", &[])).await.unwrap();
    let exit = bench.runner().kill(&id).await.unwrap();
    assert_eq!((exit.code, exit.signal), (137, Some(9)));
    let list = bench.runner().list("uid-1");
    assert_eq!(list.len(), 2);
    assert!(list.iter().all(|info| info.finished.unwrap() >= info.started && info.name == "main"));
    assert!(bench.runner().list("uid-2").is_empty());
    bench.runner().remove(&list[0].id).unwrap();
    bench.runner().remove(&list[0].id).unwrap();
    assert_eq!(bench.runner().list("uid-1").len(), 1);
    assert!(bench.runner().logs(&list[0].id).is_err());
}

#[rstest]
#[case(Isolation::Root)]
#[case(Isolation::UserNamespace)]
#[tokio::test]
async fn a_program_that_handles_sigterm_gets_its_grace_period_and_others_are_killed(#[case] isolation: Isolation) {
    if skipped(&isolation) {
        return;
    }
    let bench = Bench::new(isolation);
    let runner = bench.runner();
    let handles =
        runner.start(container("trap 'echo bye; exit 3' TERM; echo up; while :; do sleep 0.01; done", &[])).await;
    let handles = handles.unwrap();
    bench.until_logged(&handles, "up").await;
    assert_eq!(runner.stop(&handles, Duration::from_secs(600)).await.unwrap().code, 3);
    assert!(bench.log(&handles).ends_with("bye\n"));

    let ignores = runner.start(container("trap '' TERM; echo up; while :; do sleep 1; done", &[])).await.unwrap();
    bench.until_logged(&ignores, "up").await;
    assert!(matches!(runner.remove(&ignores), Err(Error::StillRunning(_))));
    let exit = runner.stop(&ignores, Duration::from_millis(50)).await.unwrap();
    assert_eq!((exit.code, exit.signal), (137, Some(9)));
    // Stopping it again succeeds.
    assert_eq!(runner.stop(&ignores, Duration::ZERO).await.unwrap(), exit);
}

/// The kernel drops signals to the first process of a pid namespace that it does not handle. Nevertheless a container that is
/// a mere `sleep` ends at once, with the exit code of the signal.
#[rstest]
#[case(Isolation::Root)]
#[case(Isolation::UserNamespace)]
#[tokio::test]
async fn a_program_without_a_handler_for_sigterm_ends_by_it(#[case] isolation: Isolation) {
    if skipped(&isolation) {
        return;
    }
    let bench = Bench::new(isolation);
    let time = unique_time();
    let script = format!("sleep {time} & echo up; wait");
    let id = bench.runner().start(container(&script, &[])).await.unwrap();
    bench.until_logged(&id, "up").await;
    // An hour: the container does not end because the grace period has passed.
    let exit = bench.runner().stop(&id, Duration::from_secs(3600)).await.unwrap();
    assert_eq!((exit.code, exit.signal), (143, Some(15)));
    assert_eq!(sleepers(&time), 0);
}

#[test]
fn a_runner_can_be_shared_by_threads() {
    fn shared<T: Send + Sync>() {}
    shared::<Runner>();
}

#[tokio::test]
async fn many_can_wait_for_one_exit_and_subscribers_see_changes() {
    let bench = Bench::new(Isolation::Auto);
    let runner = bench.runner();
    let mut changes = runner.subscribe();
    let id = runner.start(container("exec sleep 1000", &[])).await.unwrap();
    changes.changed().await.unwrap();
    changes.borrow_and_update();
    let State::Running { pid } = runner.info(&id).unwrap().state else { panic!("not running") };
    assert!(alive(pid));
    let (a, b, killed) = tokio::join!(runner.wait(&id), runner.wait(&id), runner.kill(&id));
    assert_eq!(a.unwrap(), b.unwrap());
    assert_eq!(killed.unwrap().signal, Some(9));
    assert!(changes.has_changed().unwrap());
    // Reaped: there is not even a zombie.
    assert!(!alive(pid));
}

#[rstest]
#[case(Isolation::Root)]
#[case(Isolation::UserNamespace)]
#[tokio::test]
async fn exec_sees_what_the_container_sees(#[case] isolation: Isolation) {
    if skipped(&isolation) {
        return;
    }
    let bench = Bench::new(isolation);
    let file = bench.write("file", "of the host");
    let device = bench.device("x", json!({ "mounts": [bind(&file, "/var/run/x/file")], "env": ["X=1"] }));
    let mut spec = container("echo inside > /tmp/mine; echo up; exec sleep 1000", &[&device]);
    spec.working_dir = Some("/srv/here".into());
    let id = bench.runner().start(spec).await.unwrap();
    bench.until_logged(&id, "up").await;
    let script = "cat /run/x/file; cat /tmp/mine; pwd; echo $X; echo oops >&2; id -u; exit 4";
    let output = bench.runner().exec(&id, &strings(&["sh", "-c", script])).await.unwrap();
    assert_eq!(String::from_utf8(output.stdout).unwrap(), "of the hostinside\n/srv/here\n1\n0\n");
    assert_eq!(String::from_utf8(output.stderr).unwrap(), "oops\n");
    assert_eq!(output.status.code(), Some(4));

    let error = bench.runner().exec(&id, &strings(&["no-such-program"])).await.unwrap_err();
    assert!(error.to_string().contains("run \"no-such-program\": No such file"), "{error}");
    // Dropping the future kills the program.
    let time = unique_time();
    let long = strings(&["sleep", &time]);
    tokio::select! {
        ended = bench.runner().exec(&id, &long) => panic!("{ended:?}"),
        () = eventually(|| sleepers(&time) == 1) => {}
    }
    eventually(|| sleepers(&time) == 0).await;
    // The program ends with the container, too.
    let command = strings(&["sleep", "1000"]);
    let (output, _) = tokio::join!(bench.runner().exec(&id, &command), bench.runner().kill(&id));
    assert!(!output.is_ok_and(|output| output.status.success()));
    let error = bench.runner().exec(&id, &strings(&["true"])).await.unwrap_err();
    assert!(matches!(error, Error::NotRunning(_)), "{error}");
}

#[rstest]
#[case(Isolation::Root)]
#[case(Isolation::UserNamespace)]
#[tokio::test]
async fn a_daemon_that_left_its_group_ends_with_its_container(#[case] isolation: Isolation) {
    if skipped(&isolation) {
        return;
    }
    let bench = Bench::new(isolation);
    let daemon = unique_time();
    let child = unique_time();
    let script = format!("mkfifo /tmp/end; setsid sleep {daemon} & sleep {child} & read line < /tmp/end");
    let id = bench.runner().start(container(&script, &[])).await.unwrap();
    eventually(|| sleepers(&daemon) == 1 && sleepers(&child) == 1).await;
    let end = strings(&["sh", "-c", "until test -p /tmp/end; do sleep 0.01; done; echo > /tmp/end"]);
    bench.runner().exec(&id, &end).await.unwrap();
    assert_eq!(bench.runner().wait(&id).await.unwrap().code, 0);
    assert_eq!((sleepers(&daemon), sleepers(&child)), (0, 0));
}

#[rstest]
#[case(Isolation::Root)]
#[case(Isolation::UserNamespace)]
#[tokio::test]
async fn nothing_remains_of_a_runner(#[case] isolation: Isolation) {
    if skipped(&isolation) {
        return;
    }
    let before = mounts_of_host();
    let mut bench = Bench::new(isolation);
    let mut pids = Vec::new();
    for _ in 0..3 {
        let id = bench.runner().start(container("trap '' TERM; while :; do sleep 1; done", &[])).await.unwrap();
        let State::Running { pid } = bench.runner().info(&id).unwrap().state else { panic!("not running") };
        pids.push(pid);
    }
    bench.runner = None;
    assert!(!pids.into_iter().any(alive));
    let own = bench.directory.path().to_str().unwrap();
    assert!(!mounts_of_host().contains(own), "before:\n{before}\nafter:\n{}", mounts_of_host());
    let remaining: Vec<_> =
        fs::read_dir(bench.directory.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(remaining, ["cdi"]);
}

#[tokio::test]
async fn a_start_continues_if_its_future_is_dropped_and_the_container_is_in_the_list() {
    let bench = Bench::new(Isolation::Auto);
    let mut start = Box::pin(bench.runner().start(container("exec sleep 1000", &[])));
    assert!(start.as_mut().now_or_never().is_none());
    drop(start);
    eventually(|| bench.runner().all().len() == 1).await;
}

/// A container starts in a few milliseconds, which the test prints. The limit is for slow and loaded machines.
#[rstest]
#[case(Isolation::Root)]
#[case(Isolation::UserNamespace)]
#[tokio::test]
async fn a_start_takes_milliseconds(#[case] isolation: Isolation) {
    const ROUNDS: u32 = 20;
    if skipped(&isolation) {
        return;
    }
    let bench = Bench::new(isolation.clone());
    let file = bench.write("file", "");
    let device = bench.device("x", json!({ "mounts": [bind(&file, "/x")] }));
    let mut total = Duration::ZERO;
    let mut fastest = Duration::MAX;
    for _ in 0..ROUNDS {
        let started = Instant::now();
        let id = bench.runner().start(container("exit 0", &[&device])).await.unwrap();
        total += started.elapsed();
        fastest = fastest.min(started.elapsed());
        bench.runner().wait(&id).await.unwrap();
    }
    println!("isolation {isolation}: a start takes {:?}, the fastest {fastest:?}", total / ROUNDS);
    assert!(fastest < Duration::from_millis(200));
}

/// As root, this test runs itself again as an unprivileged user.
#[tokio::test]
async fn a_user_without_privileges_can_run_containers() {
    const NAME: &str = "runner::tests::life::a_user_without_privileges_can_run_containers";
    if !is_root() {
        let bench = Bench::new(Isolation::Auto);
        if *bench.runner().isolation() == Isolation::ShowOnly {
            println!("skipped: {}", bench.runner().isolation_notes().join("; "));
            return;
        }
        let file = bench.write("file", "readable");
        let device = bench.device(
            "x",
            json!({
                "mounts": [bind(&file, "/etc/not-on-the-host/file")],
                "deviceNodes": [{ "path": "/dev/x", "hostPath": "/dev/null" }],
            }),
        );
        let output = bench
            .script(
                "id -u; cat /etc/not-on-the-host/file; echo > /dev/x; test -c /dev/x; setsid sleep 1000 & echo $!",
                &[&device],
            )
            .await;
        let pid = output.strip_prefix("0\nreadable").unwrap().trim().parse().unwrap();
        assert!(dead(&pid));
        return;
    }
    let Ok(program) = std::env::current_exe() else { return };
    let mut command = std::process::Command::new("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(program).args([
        "--exact",
        NAME,
        "--nocapture",
    ]);
    match command.output() {
        Ok(output) => {
            let text = String::from_utf8_lossy(&output.stdout);
            assert!(
                output.status.success() && text.contains("1 passed"),
                "{text}{}",
                String::from_utf8_lossy(&output.stderr)
            );
            println!("{text}");
        }
        Err(error) => println!("skipped: setpriv: {error}"),
    }
}

/// Reports whether a process is gone, or is a zombie that its new parent has not reaped yet.
fn dead(pid: &u32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/stat")).map_or(true, |stat| stat.contains(") Z "))
}

/// The environment variable that makes the test binary the process that is killed.
const VICTIM: &str = "DRAKKAR_TEST_RUNNER_VICTIM";

#[tokio::test]
async fn containers_die_with_the_process_however_it_ends() {
    const NAME: &str = "runner::tests::life::containers_die_with_the_process_however_it_ends";
    if let Ok(file) = std::env::var(VICTIM) {
        let bench = Bench::new(Isolation::Auto);
        let times = fs::read_to_string(&file).unwrap();
        let (daemon, child) = times.split_once(' ').unwrap();
        let script = format!("trap '' TERM; setsid sleep {daemon} & sleep {child} & wait");
        bench.runner().start(container(&script, &[])).await.unwrap();
        return std::future::pending().await;
    }
    let directory = tempfile::tempdir().unwrap();
    let daemon = unique_time();
    let child = unique_time();
    let file = directory.path().join("times");
    fs::write(&file, format!("{daemon} {child}")).unwrap();
    let mut victim = std::process::Command::new(std::env::current_exe().unwrap());
    victim.args(["--exact", NAME]).env(VICTIM, &file).env("TMPDIR", directory.path());
    let mut victim = victim.stdout(std::process::Stdio::null()).spawn().unwrap();
    eventually(|| sleepers(&daemon) == 1 && sleepers(&child) == 1).await;
    victim.kill().unwrap();
    victim.wait().unwrap();
    eventually(|| sleepers(&daemon) == 0 && sleepers(&child) == 0).await;
}
