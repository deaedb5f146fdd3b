//! `cargo xtask e2e`: the real single-node cluster and its tests.

use std::env;
use std::io::{self, Read};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use drakkar_e2e::{Cluster, ClusterPaths, HostSnapshot, Image, Kubelet, Options, build_helm, run};

use crate::programs::test_program;

/// Parses the options of `e2e up`.
pub(crate) fn options(arguments: &[&str]) -> Result<Options> {
    let mut options = Options::default();
    let mut arguments = arguments.iter();
    while let Some(argument) = arguments.next() {
        match *argument {
            "--all-dra-gates" => options.all_dra_gates = true,
            "--kubelet" => options.kubelet = kubelet(arguments.next().context("e2e: `--kubelet` needs a release")?)?,
            other => bail!("e2e: unknown argument `{other}`"),
        }
    }
    Ok(options)
}

/// Returns the older kubelet of a release.
fn kubelet(release: &str) -> Result<Kubelet> {
    let found = Kubelet::OLDER.into_iter().find(|kubelet| kubelet.release() == Some(release));
    found.with_context(|| {
        let releases: Vec<_> = Kubelet::OLDER.into_iter().filter_map(Kubelet::release).collect();
        format!("e2e: no older kubelet of release `{release}`, only of {}", releases.join(" and "))
    })
}

/// Brings the cluster up, and prints its components' versions and how to use it.
pub(crate) fn up(options: Options) -> Result<()> {
    let paths = ClusterPaths::of_checkout()?;
    // Built before the clock starts: the printed time is that of the start alone.
    drakkar_e2e::build(&paths, options.kubelet)?;
    let begin = Instant::now();
    let cluster = Cluster::up(paths.clone(), options)
        .context("bring the cluster up (`cargo xtask e2e down` removes what has been started)")?;
    let took = begin.elapsed();
    print_versions(&paths, options.kubelet)?;
    println!("\nnode {} is ready after {:.1} s", cluster.node(), took.as_secs_f32());
    println!("export KUBECONFIG={}", cluster.kubeconfig().display());
    println!("kubectl is {}", cluster.kubectl().get_program().to_string_lossy());
    Ok(())
}

/// Stops and removes the cluster, whatever state it is in.
pub(crate) fn down() -> Result<()> {
    let begin = Instant::now();
    Cluster::down(&ClusterPaths::of_checkout()?)?;
    println!("the cluster is down after {:.1} s", begin.elapsed().as_secs_f32());
    Ok(())
}

/// Prints the version of each component; builds those that are missing.
pub(crate) fn versions() -> Result<()> {
    let paths = ClusterPaths::of_checkout()?;
    drakkar_e2e::build(&paths, Kubelet::SameRelease)?;
    print_versions(&paths, Kubelet::SameRelease)
}

fn print_versions(paths: &ClusterPaths, kubelet: Kubelet) -> Result<()> {
    for (name, version) in drakkar_e2e::versions(paths, kubelet)? {
        println!("{name:24} {version}");
    }
    Ok(())
}

/// Brings the cluster up, runs a pod and takes it down; fails if that leaves anything on the host.
pub(crate) fn check() -> Result<()> {
    with_clean_host(Options::default(), || {
        let cluster = Cluster::attach(ClusterPaths::of_checkout()?)?;
        let image = format!("--image={}", Cluster::BUSYBOX_IMAGE);
        run(cluster.kubectl().args(["run", "probe", &image, "--", "sleep", "1000000"]))?;
        print!("{}", run(cluster.kubectl().args(["wait", "--for=condition=Ready", "pod/probe", "--timeout=60s"]))?);
        Ok(())
    })
}

/// Brings the cluster up, runs all tests and takes it down; fails if that leaves anything on the host.
pub(crate) fn all() -> Result<()> {
    with_clean_host(Options::default(), || test(&[]))
}

/// Brings the cluster up, does the work and takes it down; fails if the host is then not as before. If the work fails, the
/// cluster stays up for debugging.
fn with_clean_host(options: Options, work: impl FnOnce() -> Result<()>) -> Result<()> {
    let paths = ClusterPaths::of_checkout()?;
    Cluster::down(&paths)?;
    let before = HostSnapshot::take(&paths)?;
    up(options)?;
    if HostSnapshot::take(&paths)?.changes_since(&before).is_empty() {
        bail!("the snapshot of the host does not show the running cluster, so it would not show leftovers either");
    }
    work().context("the cluster is still up: `cargo xtask e2e down` takes it down")?;
    down()?;
    let leftovers = HostSnapshot::take(&paths)?.changes_since(&before);
    if !leftovers.is_empty() {
        bail!("the cluster left the host changed:\n{}", leftovers.join("\n"));
    }
    println!("the host is as it was before");
    Ok(())
}

/// Brings the cluster up, runs the soak and takes it down; fails if that leaves anything on the host.
pub(crate) fn soak(minutes: &str) -> Result<()> {
    with_clean_host(Options::default(), || {
        let mut command = test_program("drakkar-e2e", "it", None)?.command(&["--ignored", "soak::", "--nocapture"]);
        cluster_with_images(&IMAGES, "debug")?;
        let status = command.env(crate::soak::MINUTES, minutes).status().context("run the soak")?;
        if status.success() { Ok(()) } else { bail!("the soak: {status}") }
    })
}

/// Brings the cluster up, measures how long pods with metadata and without take to start, and takes it down. Fails if that leaves
/// anything on the host.
pub(crate) fn start_times() -> Result<()> {
    let status = cargo_command(&["build", "--release", "--package", "drakkar-e2e-driver"]).status();
    if !status.context("build the driver")?.success() {
        bail!("the driver cannot be built");
    }
    with_clean_host(Options::default(), || {
        let it = test_program("drakkar-e2e", "it", None)?;
        cluster_with_images(&["e2e-driver"], "release")?;
        it.run(&["--ignored", "pod_start::", "--nocapture"])
    })
}

/// The programs that tests run in pods, as images.
const IMAGES: [&str; 4] = ["e2e-driver", "drakkar-net", "drakkar-pci", "drakkar"];

/// The tests that run in parallel on the cluster.
const PARALLEL: [&str; 16] = [
    "--skip",
    "chart::",
    "--skip",
    "disruption::",
    "--skip",
    "network::",
    "--skip",
    "node::",
    "--skip",
    "load::",
    "--skip",
    "pod_start::",
    "--skip",
    "soak::",
    "--test-threads",
    "6",
];

/// The tests that stop components of the node, except for the API server.
const DISRUPTION: [&str; 5] = ["disruption::", "--skip", API_SERVER_OUTAGE, "--test-threads", "1"];

/// The test that stops the API server. It runs with the tests of `node`, which stop everything.
const API_SERVER_OUTAGE: &str = "disruption::the_api_server_is_unavailable_for_a_minute";

/// The tests of `drakkar-plugin` about slices and device status, which otherwise run on the embedded API server. They create their
/// own nodes and namespaces, and need nothing but the API server.
const API_TESTS: [&str; 4] = ["slices::", "status::", "--test-threads", "4"];

/// Returns the running cluster with the images of programs that were just built, in a directory of the target directory.
fn cluster_with_images(programs: &[&str], directory: &str) -> Result<Cluster> {
    let paths = ClusterPaths::of_checkout()?;
    let cluster = Cluster::attach(paths.clone())?;
    let target = paths.cache().parent().context("the target directory")?;
    for program in programs {
        let tar = paths.cache().join(format!("{program}.tar"));
        let image = Image::new(format!("localhost/{program}:e2e"), target.join(directory).join(program))?;
        image.with_busybox()?.write(&tar)?;
        cluster.import(&tar)?;
    }
    Ok(cluster)
}

/// Runs the tests on the running cluster; with a filter only those whose names match.
pub(crate) fn test(filter: &[&str]) -> Result<()> {
    let it = test_program("drakkar-e2e", "it", None)?;
    let cluster = cluster_with_images(&IMAGES, "debug")?;
    build_helm(&ClusterPaths::of_checkout()?)?;
    let run_tests = |arguments: &[&str]| it.run(&[&["--ignored"], arguments].concat());
    if !filter.is_empty() {
        check_filter(&it.list(&["--ignored"])?, filter)?;
        return run_tests(&[filter, &["--test-threads", "1", "--nocapture"]].concat());
    }
    section("tests in parallel", || run_tests(&PARALLEL))?;
    // Both mostly wait, so they run at the same time. The output of the second is printed when the first is done.
    let mut api_tests = test_program("drakkar-plugin", "it", None)?.command(&API_TESTS);
    api_tests.env("DRAKKAR_KUBECONFIG", cluster.kubeconfig());
    let api_tests = thread::spawn(move || run_captured(api_tests));
    let disruption = section("restarts of components", || run_tests(&DISRUPTION));
    section("slices and device status, at the same time", || {
        let Ok(finished) = api_tests.join() else { bail!("the thread that ran the tests panicked") };
        let (output, succeeded) = finished?;
        print!("{output}");
        if succeeded { Ok(()) } else { bail!("the tests of slices and device status failed") }
    })?;
    disruption?;
    section("network interfaces", || run_tests(&["network::", "--test-threads", "1", "--nocapture"]))?;
    section("the Helm chart", || run_tests(&["chart::", "--test-threads", "1", "--nocapture"]))?;
    section("restarts of the API server and of the whole node", || {
        run_tests(&[API_SERVER_OUTAGE, "node::", "--test-threads", "1"])
    })?;
    section("load", || run_tests(&["load::", "--test-threads", "1", "--nocapture"]))
}

/// Runs a part of the tests under a heading, and prints how long it took.
fn section(title: &str, run: impl FnOnce() -> Result<()>) -> Result<()> {
    println!("\n-- {title}");
    let begin = Instant::now();
    run()?;
    println!("-- done after {:.0} s", begin.elapsed().as_secs_f32());
    Ok(())
}

/// Runs a command; returns its interleaved standard output and standard error, and whether it succeeded.
pub(crate) fn run_captured(mut command: Command) -> Result<(String, bool)> {
    let (mut reader, writer) = io::pipe().context("create a pipe")?;
    let errors = writer.try_clone().context("clone a pipe")?;
    let mut child = command.stdin(Stdio::null()).stdout(writer).stderr(errors).spawn().context("run the tests")?;
    // `command` owns the write ends; the reader gets EOF only when all of them are closed.
    drop(command);
    let mut printed = Vec::new();
    reader.read_to_end(&mut printed).context("read the tests' output")?;
    let succeeded = child.wait().context("wait for the tests")?.success();
    Ok((String::from_utf8_lossy(&printed).into_owned(), succeeded))
}

/// Fails if a name of the filter matches no test: running no tests would count as success.
pub(crate) fn check_filter(list: &str, filter: &[&str]) -> Result<()> {
    // Options of the test harness can follow.
    for name in filter.iter().take_while(|name| !name.starts_with('-')) {
        if !list.lines().any(|line| line.contains(name)) {
            bail!("no test matches `{name}`; the tests are:\n{list}");
        }
    }
    Ok(())
}

/// The tests that run with every kubelet release.
const FOR_EVERY_KUBELET: [&str; 5] = [
    "disruption::the_driver_is_killed",
    "disruption::the_kubelet_restarts",
    "kubelets::",
    "metadata::a_claim_from_a_template_is_found_by_the_pods_name_for_it",
    "metadata::a_file_is_at_both_paths_correct_and_read_only",
];

/// The test in which a driver's next instance starts before the last one stops. A kubelet before 1.33 identifies drivers by
/// name only, so it drops the new instance when the old one unregisters.
const TWO_INSTANCES: &str = "disruption::the_drivers_pod_is_replaced";

/// Brings the cluster up with a kubelet of an older release, runs the tests that support it and takes it down.
pub(crate) fn older(release: &str) -> Result<()> {
    let kubelet = kubelet(release)?;
    let mut tests = FOR_EVERY_KUBELET.to_vec();
    if kubelet != Kubelet::V1_32 {
        tests.push(TWO_INSTANCES);
    }
    with_clean_host(Options { kubelet, ..Options::default() }, || {
        let cluster = Cluster::attach(ClusterPaths::of_checkout()?)?;
        let version = "--output=jsonpath={.status.nodeInfo.kubeletVersion}";
        let version = run(cluster.kubectl().args(["get", "node", cluster.node(), version]))?;
        if !version.starts_with(&format!("v{release}.")) {
            bail!("the node's kubelet is {version}, not v{release}");
        }
        test(&tests)
    })
}

/// Prints why the cluster cannot run on this host, on one line; nothing if it can.
pub(crate) fn unfit() -> Result<()> {
    if let Some(reason) = drakkar_e2e::unsupported_reason()? {
        println!("{reason}");
    }
    Ok(())
}

/// A cargo command with the environment that it has when you call it from a shell.
pub(crate) fn cargo_command(arguments: &[&str]) -> Command {
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    // Variables that cargo set for xtask's own package would invalidate the builds of others.
    for (name, _) in env::vars_os() {
        let is_own = |name: &str| name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_");
        if name.to_str().is_some_and(is_own) {
            command.env_remove(name);
        }
    }
    // Tests run in the directory of their package, so relative paths in the environment are made absolute.
    command.envs(drakkar_e2e::directory_variables()).args(arguments);
    command
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::{Kubelet, options, run_captured};

    #[test]
    fn an_older_kubelet_is_chosen_by_its_release() {
        let chosen = options(&["--kubelet", "1.32", "--all-dra-gates"]).unwrap();
        assert!(chosen.kubelet == Kubelet::V1_32 && chosen.all_dra_gates);
        assert_eq!(options(&[]).unwrap().kubelet, Kubelet::SameRelease);
        for (arguments, expected) in [
            (&["--kubelet"][..], "needs a release"),
            (&["--kubelet", "1.31"], "only of 1.34 and 1.32"),
            (&["--gates"], "unknown argument `--gates`"),
        ] {
            let error = options(arguments).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn captured_output_keeps_its_order() {
        let mut command = Command::new("sh");
        command.args(["-c", "echo one; echo two >&2; echo three; exit 3"]);
        assert_eq!(run_captured(command).unwrap(), ("one\ntwo\nthree\n".to_owned(), false));
    }
}
