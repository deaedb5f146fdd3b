//! A real cluster of one node, up and down, and images for it.

use std::env;
use std::ffi::OsStr;
use std::path::PathBuf;
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use drakkar_e2e::{Cluster, Footprint, Image, Options, Place, run};

/// Brings the cluster up, and says what is in it and how to use it.
pub(crate) fn up(all_dra_gates: bool) -> Result<()> {
    let place = Place::of_checkout()?;
    // What is built is not part of how long it takes to be ready.
    drakkar_e2e::build(&place)?;
    let begin = Instant::now();
    let cluster = Cluster::up(place, Options { all_dra_gates })
        .context("bring the cluster up (`cargo xtask e2e down` removes what is there of it)")?;
    let took = begin.elapsed();
    versions()?;
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
    drakkar_e2e::build(&place)?;
    for (name, version) in drakkar_e2e::versions(&place)? {
        println!("{name:24} {version}");
    }
    Ok(())
}

/// Runs a pod on the cluster, and fails when that leaves anything on the machine.
pub(crate) fn check() -> Result<()> {
    without_a_trace(|| {
        let cluster = Cluster::attach(Place::of_checkout()?)?;
        let image = format!("--image={}", Cluster::BUSYBOX_IMAGE);
        run(cluster.kubectl().args(["run", "probe", &image, "--", "sleep", "1000000"]))?;
        print!("{}", run(cluster.kubectl().args(["wait", "--for=condition=Ready", "pod/probe", "--timeout=60s"]))?);
        Ok(())
    })
}

/// Runs the tests, and fails when they leave anything on the machine.
pub(crate) fn all() -> Result<()> {
    without_a_trace(|| test(&[]))
}

/// Brings the cluster up, does something with it and takes it down, and fails when the machine is then not as before. If what
/// is done fails, the cluster stays to be looked at.
fn without_a_trace(work: impl FnOnce() -> Result<()>) -> Result<()> {
    let place = Place::of_checkout()?;
    Cluster::down(&place)?;
    let before = Footprint::take(&place)?;
    up(false)?;
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

/// What the tests are run as: those that can share the cluster side by side, the others one after the other.
const TESTS: [(&str, &[&str]); 3] = [
    ("side by side", &["--skip", "disruption::", "--skip", "node::", "--skip", "load::", "--test-threads", "4"]),
    ("parts of the node end and come back", &["disruption::", "node::", "--test-threads", "1"]),
    ("many pods at once", &["load::", "--test-threads", "1", "--nocapture"]),
];

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
        return cargo(&[&it, filter, &["--test-threads", "1", "--nocapture"]].concat());
    }
    for (what, arguments) in TESTS {
        println!("\n-- {what}");
        cargo(&[&it, arguments].concat())?;
    }
    println!("\n-- slices and device status, by the tests that otherwise have the embedded API server");
    let upwards = ["test", "--package", "drakkar-plugin", "--test", "it", "--", "slices::", "status::"];
    cargo_with(&upwards, &[("DRAKKAR_KUBECONFIG", cluster.kubeconfig().as_os_str())])
}

/// Prints why the cluster cannot be brought up on this machine, in a line; nothing if it can.
pub(crate) fn unfit() -> Result<()> {
    if let Some(reason) = drakkar_e2e::unfit()? {
        println!("{reason}");
    }
    Ok(())
}

fn cargo(arguments: &[&str]) -> Result<()> {
    cargo_with(arguments, &[])
}

fn cargo_with(arguments: &[&str], variables: &[(&str, &OsStr)]) -> Result<()> {
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    // What cargo told this program of its own package would have others build anew.
    for (name, _) in env::vars_os() {
        let is_own = |name: &str| name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_");
        if name.to_str().is_some_and(is_own) {
            command.env_remove(name);
        }
    }
    let status = command.args(arguments).envs(variables.iter().copied()).status().context("run cargo")?;
    if !status.success() {
        bail!("`cargo {}`: {status}", arguments.join(" "));
    }
    Ok(())
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
    use super::image;

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
}
