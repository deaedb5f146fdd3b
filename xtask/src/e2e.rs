//! A real cluster of one node, up and down, and images for it.

use std::env;
use std::io::{self, Read};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use drakkar_e2e::{Cluster, Footprint, Image, Kubelet, Options, Place, run};

/// How the cluster shall differ from an ordinary one.
pub(crate) fn options(arguments: &[&str]) -> Result<Options> {
    let mut options = Options::default();
    let mut arguments = arguments.iter();
    while let Some(argument) = arguments.next() {
        match *argument {
            "--all-dra-gates" => options.all_dra_gates = true,
            "--kubelet" => options.kubelet = kubelet(arguments.next().context("e2e: `--kubelet` needs a release")?)?,
            other => bail!("e2e: what is `{other}`?"),
        }
    }
    Ok(options)
}

/// The older kubelet of a release.
fn kubelet(release: &str) -> Result<Kubelet> {
    let found = Kubelet::OLDER.into_iter().find(|kubelet| kubelet.release() == Some(release));
    found.with_context(|| {
        let releases: Vec<_> = Kubelet::OLDER.into_iter().filter_map(Kubelet::release).collect();
        format!("e2e: there is no older kubelet of `{release}`, only of {}", releases.join(" and "))
    })
}

/// Brings the cluster up, and says what is in it and how to use it.
pub(crate) fn up(options: Options) -> Result<()> {
    let place = Place::of_checkout()?;
    // What is built is not part of how long it takes to be ready.
    drakkar_e2e::build(&place, options.kubelet)?;
    let begin = Instant::now();
    let cluster = Cluster::up(place.clone(), options)
        .context("bring the cluster up (`cargo xtask e2e down` removes what is there of it)")?;
    let took = begin.elapsed();
    print_versions(&place, options.kubelet)?;
    println!("\nnode {} is ready after {:.1} s", cluster.node(), took.as_secs_f32());
    println!("export KUBECONFIG={}", cluster.kubeconfig().display());
    println!("kubectl is {}", cluster.kubectl().get_program().to_string_lossy());
    Ok(())
}

/// Takes the cluster down, whatever state it is in.
pub(crate) fn down() -> Result<()> {
    let begin = Instant::now();
    Cluster::down(&Place::of_checkout()?)?;
    println!("the cluster is down after {:.1} s", begin.elapsed().as_secs_f32());
    Ok(())
}

/// Prints the version of each component, which is built for that where it is not there.
pub(crate) fn versions() -> Result<()> {
    let place = Place::of_checkout()?;
    drakkar_e2e::build(&place, Kubelet::SameRelease)?;
    print_versions(&place, Kubelet::SameRelease)
}

fn print_versions(place: &Place, kubelet: Kubelet) -> Result<()> {
    for (name, version) in drakkar_e2e::versions(place, kubelet)? {
        println!("{name:24} {version}");
    }
    Ok(())
}

/// Runs a pod on the cluster, and fails when that leaves anything on the machine.
pub(crate) fn check() -> Result<()> {
    without_a_trace(Options::default(), || {
        let cluster = Cluster::attach(Place::of_checkout()?)?;
        let image = format!("--image={}", Cluster::BUSYBOX_IMAGE);
        run(cluster.kubectl().args(["run", "probe", &image, "--", "sleep", "1000000"]))?;
        print!("{}", run(cluster.kubectl().args(["wait", "--for=condition=Ready", "pod/probe", "--timeout=60s"]))?);
        Ok(())
    })
}

/// Runs the tests, and fails when they leave anything on the machine.
pub(crate) fn all() -> Result<()> {
    without_a_trace(Options::default(), || test(&[]))
}

/// Brings the cluster up, does something with it and takes it down, and fails when the machine is then not as before. If what
/// is done fails, the cluster stays to be looked at.
fn without_a_trace(options: Options, work: impl FnOnce() -> Result<()>) -> Result<()> {
    let place = Place::of_checkout()?;
    Cluster::down(&place)?;
    let before = Footprint::take(&place)?;
    up(options)?;
    if Footprint::take(&place)?.since(&before).is_empty() {
        bail!("the cluster is up and nothing of it is seen on this machine, so nothing would be that it leaves");
    }
    work().context("the cluster is still up: `cargo xtask e2e down` takes it down")?;
    down()?;
    let left = Footprint::take(&place)?.since(&before);
    if !left.is_empty() {
        bail!("the cluster left traces on this machine:\n{}", left.join("\n"));
    }
    println!("the machine is as it was before");
    Ok(())
}

/// The driver of the tests, as its pods name it.
const DRIVER_IMAGE: &str = "localhost/e2e-driver:e2e";

/// Tests that can share the cluster.
const SIDE_BY_SIDE: [&str; 8] =
    ["--skip", "disruption::", "--skip", "node::", "--skip", "load::", "--test-threads", "6"];

/// Tests that end parts of the node, but for the API server.
const DISRUPTION: [&str; 5] = ["disruption::", "--skip", API_SERVER, "--test-threads", "1"];

/// The test that ends the API server, beside those of `node`, which end everything.
const API_SERVER: &str = "disruption::the_api_server_is_away_for_a_minute";

/// The tests of slices and device status that otherwise have the embedded API server. They have nodes and namespaces of
/// their own, and need nothing but the API server.
const UPWARDS: [&str; 5] = ["test", "--package", "drakkar-plugin", "--test", "it"];

/// Runs the tests on the cluster that is up. `filter` chooses some by name.
pub(crate) fn test(filter: &[&str]) -> Result<()> {
    let place = Place::of_checkout()?;
    let cluster = Cluster::attach(place.clone())?;
    // Always both packages, or cargo builds what they share for each of them again.
    const PACKAGES: [&str; 4] = ["--package", "drakkar-e2e", "--package", "drakkar-e2e-driver"];
    cargo(&[&["build", "--bins", "--tests"], &PACKAGES[..]].concat())?;
    let tar = place.cache().join("e2e-driver.tar");
    let target = place.cache().parent().context("the target directory")?;
    Image::new(DRIVER_IMAGE, target.join("debug/e2e-driver"))?.write(&tar)?;
    cluster.import(&tar)?;
    let it = [&["test"], &PACKAGES[..], &["--test", "it", "--", "--ignored"]].concat();
    if !filter.is_empty() {
        every_name_is_a_tests(&it, filter)?;
        return cargo(&[&it, filter, &["--test-threads", "1", "--nocapture"]].concat());
    }
    cargo(&[&UPWARDS[..], &["--no-run"]].concat())?;
    part("side by side", || cargo(&[&it[..], &SIDE_BY_SIDE].concat()))?;
    // Both wait more than they work, so they do it at the same time. What the second prints is shown when the first is done.
    let mut upwards = cargo_command(&[&UPWARDS[..], &["--", "slices::", "status::", "--test-threads", "4"]].concat());
    upwards.env("DRAKKAR_KUBECONFIG", cluster.kubeconfig());
    let upwards = thread::spawn(move || together(upwards));
    let disruption = part("parts of the node end and come back", || cargo(&[&it[..], &DISRUPTION].concat()));
    part("slices and device status, meanwhile", || {
        let Ok(ran) = upwards.join() else { bail!("the thread that ran them panicked") };
        let (printed, succeeded) = ran?;
        print!("{printed}");
        if succeeded { Ok(()) } else { bail!("the tests of slices and device status failed") }
    })?;
    disruption?;
    part("the API server ends and comes back, and then everything", || {
        cargo(&[&it[..], &[API_SERVER, "node::", "--test-threads", "1"]].concat())
    })?;
    part("many pods at once", || cargo(&[&it[..], &["load::", "--test-threads", "1", "--nocapture"]].concat()))
}

/// Runs a part of the tests under a headline, and says how long it took.
fn part(what: &str, run: impl FnOnce() -> Result<()>) -> Result<()> {
    println!("\n-- {what}");
    let begin = Instant::now();
    run()?;
    println!("-- done after {:.0} s", begin.elapsed().as_secs_f32());
    Ok(())
}

/// Runs a command to its end; gives all that it printed, in order, and whether it succeeded.
fn together(mut command: Command) -> Result<(String, bool)> {
    let (mut reader, writer) = io::pipe().context("make a pipe")?;
    let errors = writer.try_clone().context("share a pipe")?;
    let mut child = command.stdin(Stdio::null()).stdout(writer).stderr(errors).spawn().context("run cargo")?;
    // It has the ends to write to, and the reader would wait for them.
    drop(command);
    let mut printed = Vec::new();
    reader.read_to_end(&mut printed).context("read what cargo prints")?;
    let succeeded = child.wait().context("wait for cargo")?.success();
    Ok((String::from_utf8_lossy(&printed).into_owned(), succeeded))
}

/// A name that no test has would be a test that passes.
fn every_name_is_a_tests(it: &[&str], filter: &[&str]) -> Result<()> {
    let output = cargo_command(&[it, &["--list", "--format", "terse"]].concat()).stderr(Stdio::inherit()).output();
    let output = output.context("run cargo")?;
    if !output.status.success() {
        bail!("the tests cannot be listed: {}", output.status);
    }
    let list = String::from_utf8(output.stdout).context("the list of tests")?;
    // Options for the tests may follow.
    for name in filter.iter().take_while(|name| !name.starts_with('-')) {
        if !list.lines().any(|line| line.contains(name)) {
            bail!("no test has `{name}` in its name; these there are:\n{list}");
        }
    }
    Ok(())
}

/// The tests that are for every kubelet, in the order of their names.
const FOR_EVERY_KUBELET: [&str; 5] = [
    "disruption::the_driver_is_killed",
    "disruption::the_kubelet_restarts",
    "kubelets::",
    "metadata::a_claim_of_a_template_is_found_by_the_name_that_the_pod_has_for_it",
    "metadata::a_file_is_at_both_paths_is_right_and_read_only",
];

/// Here a driver's next instance starts before the last one ends. A kubelet before 1.33 knows drivers by their names
/// alone: when the last instance goes, it forgets the next.
const TWO_INSTANCES: &str = "disruption::the_drivers_pod_is_replaced";

/// The same with a kubelet of an older release, and the tests that are for it.
pub(crate) fn older(release: &str) -> Result<()> {
    let kubelet = kubelet(release)?;
    let mut tests = FOR_EVERY_KUBELET.to_vec();
    if kubelet != Kubelet::V1_32 {
        tests.push(TWO_INSTANCES);
    }
    without_a_trace(Options { kubelet, ..Options::default() }, || {
        let cluster = Cluster::attach(Place::of_checkout()?)?;
        let version = "--output=jsonpath={.status.nodeInfo.kubeletVersion}";
        let version = run(cluster.kubectl().args(["get", "node", cluster.node(), version]))?;
        if !version.starts_with(&format!("v{release}.")) {
            bail!("the node has a kubelet {version}");
        }
        test(&tests)
    })
}

/// Prints why the cluster cannot be brought up on this machine, in a line; nothing if it can.
pub(crate) fn unfit() -> Result<()> {
    if let Some(reason) = drakkar_e2e::unfit()? {
        println!("{reason}");
    }
    Ok(())
}

fn cargo(arguments: &[&str]) -> Result<()> {
    let status = cargo_command(arguments).status().context("run cargo")?;
    if !status.success() {
        bail!("`cargo {}`: {status}", arguments.join(" "));
    }
    Ok(())
}

/// Cargo, as if it had been called by hand.
pub(crate) fn cargo_command(arguments: &[&str]) -> Command {
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    // What cargo told this program of its own package would have others build anew.
    for (name, _) in env::vars_os() {
        let is_own = |name: &str| name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_");
        if name.to_str().is_some_and(is_own) {
            command.env_remove(name);
        }
    }
    // Tests run in the directory of their package, where a relative path would lead elsewhere.
    command.envs(drakkar_e2e::directories()).args(arguments);
    command
}

/// Writes an image of a program.
pub(crate) fn image(arguments: &[&str]) -> Result<()> {
    let (mut binary, mut name, mut output, mut busybox) = (None, None, None, false);
    let mut arguments = arguments.iter();
    while let Some(argument) = arguments.next() {
        let target = match *argument {
            "--binary" => &mut binary,
            "--name" => &mut name,
            "--output" => &mut output,
            "--busybox" => {
                busybox = true;
                continue;
            }
            other => bail!("image: what is `{other}`?"),
        };
        *target = Some(*arguments.next().with_context(|| format!("image: `{argument}` needs a value"))?);
    }
    let binary = PathBuf::from(binary.context("image: which program? `--binary PATH`")?);
    let name = name.context("image: under which name? `--name localhost/NAME:TAG`")?;
    let output = PathBuf::from(output.context("image: to which file? `--output FILE.tar`")?);
    let mut image = Image::new(name, &binary)?;
    if busybox {
        image = image.with_busybox()?;
    }
    image.write(&output)?;
    let shown = env::current_dir().map_or_else(|_| output.clone(), |here| here.join(&output));
    println!("{}", shown.display());
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::{Kubelet, image, options, together};

    #[test]
    fn an_older_kubelet_is_chosen_by_its_release() {
        let chosen = options(&["--kubelet", "1.32", "--all-dra-gates"]).unwrap();
        assert!(chosen.kubelet == Kubelet::V1_32 && chosen.all_dra_gates);
        assert_eq!(options(&[]).unwrap().kubelet, Kubelet::SameRelease);
        for (arguments, told) in [
            (&["--kubelet"][..], "needs a release"),
            (&["--kubelet", "1.31"], "only of 1.34 and 1.32"),
            (&["--gates"], "what is `--gates`?"),
        ] {
            let error = options(arguments).unwrap_err().to_string();
            assert!(error.contains(told), "{error}");
        }
    }

    #[test]
    fn what_an_image_lacks_is_told() {
        for (arguments, told) in [
            (&["--binary"][..], "`--binary` needs a value"),
            (&["--binary", "a", "--output", "b"], "under which name"),
            (&["--shell"], "what is `--shell`?"),
        ] {
            let error = image(arguments).unwrap_err().to_string();
            assert!(error.contains(told), "{error}");
        }
    }

    #[test]
    fn what_a_command_prints_is_kept_in_order() {
        let mut command = Command::new("sh");
        command.args(["-c", "echo one; echo two >&2; echo three; exit 3"]);
        assert_eq!(together(command).unwrap(), ("one\ntwo\nthree\n".to_owned(), false));
    }
}
