//! `drakkar new driver`: the project of a driver, from templates that are part of the command.
//!
//! The templates are the project `gpu-driver` with the driver `gpu.example.com`. The tests of `drakkar-plugin` compile and run
//! them as they are; here the names are replaced.

use std::fs;
use std::io;
use std::path::{Component, Path, PathBuf};

use drakkar_metadata::name::DriverName;

use crate::args::new::{NewCommand, NewDriver};
use crate::exit::{Code, Failure};
use crate::output::print_bytes;

/// The names in the templates.
const DRIVER: &str = "gpu.example.com";
const PACKAGE: &str = "gpu-driver";
const DRAKKAR: &str = "DRAKKAR";

/// The files of a driver's project: path and template.
const FILES: [(&str, &str); 11] = [
    ("Cargo.toml", include_str!("../../templates/driver/Cargo.toml.in")),
    ("src/main.rs", include_str!("../../templates/driver/src/main.rs")),
    ("src/driver.rs", include_str!("../../templates/driver/src/driver.rs")),
    ("src/tests.rs", include_str!("../../templates/driver/src/tests.rs")),
    ("deploy/driver.yaml", include_str!("../../templates/driver/deploy/driver.yaml")),
    ("deploy/pod.yaml", include_str!("../../templates/driver/deploy/pod.yaml")),
    ("Containerfile", include_str!("../../templates/driver/Containerfile")),
    (".github/workflows/ci.yml", include_str!("../../templates/driver/.github/workflows/ci.yml")),
    ("README.md", include_str!("../../templates/driver/README.md")),
    ("rustfmt.toml", include_str!("../../templates/driver/rustfmt.toml")),
    (".gitignore", include_str!("../../templates/driver/.gitignore")),
];

pub(crate) fn run(command: NewCommand) -> Result<(), Failure> {
    match command {
        NewCommand::Driver(options) => driver(options),
    }
}

fn driver(options: NewDriver) -> Result<(), Failure> {
    let package = package_of(&options.name);
    let path = options.path.unwrap_or_else(|| PathBuf::from(&package));
    let source = match options.drakkar_path {
        Some(path) => find_source(&path, false)?,
        None => find_source(&std::env::current_dir()?, true)?,
    };
    make_directory(&path)?;
    let drakkar = path_from(&path.canonicalize().map_err(named(&path))?, &source);
    let drakkar = drakkar.to_str().filter(|text| !text.contains(['"', '\\']) && !text.contains(char::is_control));
    let drakkar = drakkar.ok_or_else(|| {
        Failure::new(Code::Usage, format!("{}: cargo cannot depend on a path like this", source.display()))
    })?;
    for (name, template) in FILES {
        let file = path.join(name);
        let content =
            template.replace(PACKAGE, &package).replace(DRIVER, options.name.as_str()).replace(DRAKKAR, drakkar);
        if let Some(parent) = file.parent() {
            fs::create_dir_all(parent).map_err(named(parent))?;
        }
        fs::write(&file, content).map_err(named(&file))?;
    }
    let names: String = FILES.iter().map(|(name, _)| format!("  {name}\n")).collect();
    let report = format!(
        "\
Created {path} with the DRA driver {driver}:
{names}
Next, the tests of the driver and a look at it, both on an embedded node:
  cd {path}
  cargo test
  cargo build
  drakkar demo --driver 'target/debug/{package} --enable-device-metadata'
",
        path = path.display(),
        driver = options.name,
    );
    Ok(print_bytes(report.as_bytes())?)
}

/// Returns the name of the package, and of the program, for a driver.
fn package_of(driver: &DriverName) -> String {
    let label = driver.as_str().split('.').next().unwrap_or_default();
    format!("{label}-driver")
}

/// Returns the directory with Drakkar's source: this one or, if wanted, one above it.
fn find_source(from: &Path, above_too: bool) -> Result<PathBuf, Failure> {
    let from = from.canonicalize().map_err(named(from))?;
    let is_source = |directory: &&Path| {
        let manifest = fs::read_to_string(directory.join("crates/plugin/Cargo.toml"));
        manifest.is_ok_and(|text| text.lines().any(|line| line == "name = \"drakkar-plugin\""))
    };
    match from.ancestors().take(if above_too { usize::MAX } else { 1 }).find(is_source) {
        Some(found) => Ok(found.to_owned()),
        None => {
            let message = format!("{}: no source of Drakkar here", from.display());
            let hint =
                "its crates are not on a registry yet: name the directory that you have cloned with --drakkar-path";
            Err(Failure::new(Code::NotFound, message).hint(hint))
        }
    }
}

/// Creates the directory of the project, which may exist if it is empty.
fn make_directory(path: &Path) -> Result<(), Failure> {
    let mut entries = match fs::read_dir(path) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return fs::create_dir_all(path).map_err(named(path)),
        Err(error) => return Err(named(path)(error)),
    };
    if entries.next().is_some() {
        let message = format!("{}: is not empty", path.display());
        return Err(Failure::new(Code::Usage, message).hint("choose another directory with --path"));
    }
    Ok(())
}

/// Returns the path from a directory to another: relative if both are in one directory other than the root.
fn path_from(directory: &Path, to: &Path) -> PathBuf {
    let shared = directory.components().zip(to.components()).take_while(|(a, b)| a == b).count();
    if shared < 2 {
        return to.to_owned();
    }
    let up = directory.components().skip(shared).map(|_| Component::ParentDir);
    let relative: PathBuf = up.chain(to.components().skip(shared)).collect();
    if relative.as_os_str().is_empty() { PathBuf::from(".") } else { relative }
}

/// Returns a conversion of an error that adds the path.
fn named(path: &Path) -> impl Fn(io::Error) -> Failure {
    move |error| Failure::new(Code::System, format!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_relative_where_both_directories_are_in_one() {
        let path = |from: &str, to: &str| path_from(Path::new(from), Path::new(to)).display().to_string();
        assert_eq!(path("/home/me/gpu-driver", "/home/me/drakkar"), "../drakkar");
        assert_eq!(path("/home/me/drakkar/x/gpu-driver", "/home/me/drakkar"), "../..");
        assert_eq!(path("/tmp/gpu-driver", "/home/me/drakkar"), "/home/me/drakkar");
    }

    #[test]
    fn the_package_has_the_name_of_the_first_part() {
        assert_eq!(package_of(&"nic.example.org".parse().unwrap()), "nic-driver");
    }
}
