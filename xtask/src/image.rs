//! `cargo xtask image`: OCI images of the drivers and of the command from source, or of one program that is built already.
//!
//! An image has one static program, its license and the list of what is in it (SBOM): no shell, no libraries, no package manager. The same
//! sources and the same toolchain give the same digest, wherever the checkout and the target directory are: files have the time 0 and
//! are sorted, paths of this machine are replaced in the program, and each program is built by itself, so that the features of its
//! dependencies do not depend on what else is built.

mod sbom;

use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use drakkar_e2e::{ClusterPaths, Image, run};

use crate::e2e::cargo_command;

/// The target of images, unless another is asked for.
const DEFAULT_TARGET: &str = "x86_64-unknown-linux-gnu";

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// A program that has an image.
struct Package {
    /// The name of the package, of the program and of the image.
    name: &'static str,
    description: &'static str,
    /// The user of the image; root if there is none.
    user: Option<&'static str>,
}

const PACKAGES: [Package; 3] = [
    // The drivers are root: the kubelet's directories, the CDI specs and sysfs are root's.
    Package { name: "drakkar-net", description: "A DRA driver for network interfaces", user: None },
    Package {
        name: "drakkar-pci",
        description: "A DRA driver for PCI devices, virtual functions and mediated devices",
        user: None,
    },
    Package {
        name: "drakkar",
        description: "The command of Drakkar, the Rust toolkit for Kubernetes Dynamic Resource Allocation",
        user: Some("65532:65532"),
    },
];

/// `cargo xtask image`: writes images.
pub(crate) fn image(arguments: &[&str]) -> Result<()> {
    let options = Options::parse(arguments)?;
    match options.binary {
        Some(binary) => of_program(binary, &options),
        None => of_packages(&options),
    }
}

/// The command line.
#[derive(Debug, Default)]
struct Options<'a> {
    binary: Option<&'a str>,
    name: Option<&'a str>,
    output: Option<&'a str>,
    busybox: bool,
    repository: Option<&'a str>,
    tag: Option<&'a str>,
    target: Option<&'a str>,
    packages: Vec<&'a str>,
}

impl<'a> Options<'a> {
    fn parse(arguments: &[&'a str]) -> Result<Self> {
        let mut options = Self::default();
        let mut arguments = arguments.iter();
        while let Some(argument) = arguments.next() {
            let field = match *argument {
                "--binary" => &mut options.binary,
                "--name" => &mut options.name,
                "--output" => &mut options.output,
                "--repository" => &mut options.repository,
                "--tag" => &mut options.tag,
                "--target" => &mut options.target,
                "--busybox" => {
                    options.busybox = true;
                    continue;
                }
                other if other.starts_with('-') => bail!("image: unknown argument `{other}`"),
                package => {
                    let names = PACKAGES.map(|package| package.name);
                    ensure!(names.contains(&package), "image: no image of `{package}`, only of {}", names.join(", "));
                    options.packages.push(package);
                    continue;
                }
            };
            *field = Some(*arguments.next().with_context(|| format!("image: `{argument}` needs a value"))?);
        }
        let of_packages =
            options.repository.or(options.tag).or(options.target).is_some() || !options.packages.is_empty();
        if options.binary.is_some() {
            ensure!(!of_packages, "image: with `--binary` there are only `--name`, `--output` and `--busybox`");
        } else {
            ensure!(!options.busybox && options.name.is_none(), "image: `--binary PATH` is missing: the program");
        }
        Ok(options)
    }
}

/// Writes the image of a program that is built already, with the libraries that it needs.
fn of_program(binary: &str, options: &Options<'_>) -> Result<()> {
    let name = options.name.context("image: `--name localhost/NAME:TAG` is missing: the image's name")?;
    let output = PathBuf::from(options.output.context("image: `--output FILE.tar` is missing: the file to write")?);
    let mut image = Image::new(name, Path::new(binary))?;
    if options.busybox {
        image = image.with_busybox()?;
    }
    image.write(&output)?;
    let shown = env::current_dir().map_or_else(|_| output.clone(), |here| here.join(&output));
    println!("{}", shown.display());
    Ok(())
}

/// Builds packages, and writes their images and SBOMs.
fn of_packages(options: &Options<'_>) -> Result<()> {
    let paths = ClusterPaths::of_checkout()?;
    let build = Build {
        target: options.target.unwrap_or(DEFAULT_TARGET),
        directory: paths.cache().parent().context("the target directory")?.to_owned(),
        top: Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("the top of the checkout")?.to_owned(),
    };
    let output = options.output.map_or_else(|| build.directory.join("images"), PathBuf::from);
    fs::create_dir_all(&output).with_context(|| format!("create {}", output.display()))?;
    let license = fs::read(build.top.join("LICENSE")).context("read LICENSE")?;
    let revision = revision(&build.top);
    let is_chosen = |package: &&Package| options.packages.is_empty() || options.packages.contains(&package.name);
    for package in PACKAGES.iter().filter(is_chosen) {
        let program = build.run(package.name)?;
        let sbom = sbom::of_package(package.name, build.target, &build.top)?;
        let name = format!(
            "{}/{}:{}",
            options.repository.unwrap_or("localhost").trim_end_matches('/'),
            package.name,
            options.tag.unwrap_or(VERSION)
        );
        let documents = Path::new("/usr/share/doc").join(package.name);
        let mut image = Image::new(name.as_str(), &program)?
            .with_file(&documents.join("LICENSE"), &license)?
            .with_file(&documents.join("sbom.cdx.json"), sbom.as_bytes())?
            .label("org.opencontainers.image.title", package.name)
            .label("org.opencontainers.image.description", package.description)
            .label("org.opencontainers.image.version", VERSION)
            .label("org.opencontainers.image.licenses", "Apache-2.0");
        ensure!(!image.is_dynamic(), "{} is not static", program.display());
        if let Some(revision) = &revision {
            image = image.label("org.opencontainers.image.revision", revision);
        }
        if let Some(user) = package.user {
            image = image.user(user);
        }
        let stem = format!("{}-{}", package.name, image.architecture());
        let tar = output.join(format!("{stem}.tar"));
        let digest = image.write(&tar)?;
        let list = output.join(format!("{stem}.cdx.json"));
        fs::write(&list, sbom).with_context(|| format!("write {}", list.display()))?;
        let size = fs::metadata(&tar).with_context(|| format!("read {}", tar.display()))?.len();
        println!("{name}\n  {digest}\n  {} ({size} bytes)\n  {}", tar.display(), list.display());
    }
    Ok(())
}

/// How programs of images are built.
struct Build<'a> {
    target: &'a str,
    /// Cargo's target directory.
    directory: PathBuf,
    /// The top of the checkout.
    top: PathBuf,
}

impl Build<'_> {
    /// Builds the program of a package, and returns its path.
    fn run(&self, package: &str) -> Result<PathBuf> {
        let mut cargo =
            cargo_command(&["build", "--locked", "--profile", "image", "--package", package, "--target", self.target]);
        cargo.current_dir(&self.top).envs(self.environment()?);
        let status = cargo.status().context("run cargo")?;
        ensure!(status.success(), "{cargo:?}: {status}");
        Ok(self.directory.join(self.target).join("image").join(package))
    }

    /// The variables with which a program is static and has no path of this machine.
    fn environment(&self) -> Result<Vec<(String, OsString)>> {
        let cargo_home = match env::var_os("CARGO_HOME") {
            Some(home) => PathBuf::from(home),
            None => PathBuf::from(env::var_os("HOME").context("neither CARGO_HOME nor HOME is set")?).join(".cargo"),
        };
        let text =
            |path: &Path| path.to_str().map(str::to_owned).with_context(|| format!("{} is not UTF-8", path.display()));
        // Of several that match, the compiler takes the last.
        let prefixes =
            [(text(&self.top)?, "/src"), (text(&cargo_home)?, "/cargo"), (text(&self.directory)?, "/target")];
        let mut rust = vec!["-Ctarget-feature=+crt-static".to_owned(), "-Crelocation-model=static".to_owned()];
        rust.extend(prefixes.iter().map(|(from, to)| format!("--remap-path-prefix={from}={to}")));
        // GCC takes the last, too.
        let c: Vec<String> = prefixes.iter().map(|(from, to)| format!("-ffile-prefix-map={from}={to}")).collect();
        let name = self.target.replace('-', "_");
        let mut variables = vec![
            ("CARGO_ENCODED_RUSTFLAGS".to_owned(), rust.join("\u{1f}").into()),
            (format!("CFLAGS_{name}"), c.join(" ").into()),
        ];
        if self.target.starts_with("aarch64-") && env::consts::ARCH != "aarch64" {
            // Debian's package gcc-aarch64-linux-gnu.
            let compiler = "aarch64-linux-gnu-gcc";
            variables.push((format!("CARGO_TARGET_{}_LINKER", name.to_uppercase()), compiler.into()));
            variables.push((format!("CC_{name}"), compiler.into()));
        }
        Ok(variables)
    }
}

/// The commit of the checkout; `None` outside of a repository, or if files differ from the commit.
fn revision(top: &Path) -> Option<String> {
    let git = |arguments: &[&str]| run(Command::new("git").arg("-C").arg(top).args(arguments)).ok();
    let changes = git(&["status", "--porcelain"])?;
    let revision = git(&["rev-parse", "HEAD"])?;
    changes.is_empty().then(|| revision.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_and_unknown_arguments_of_image_are_named() {
        for (arguments, expected) in [
            (&["--binary"][..], "`--binary` needs a value"),
            (&["--binary", "a", "--output", "b"], "`--name localhost/NAME:TAG` is missing"),
            (&["--name", "a"], "`--binary PATH` is missing"),
            (&["--shell"], "unknown argument `--shell`"),
            (&["drakkar-gpu"], "no image of `drakkar-gpu`, only of drakkar-net, drakkar-pci, drakkar"),
            (&["--binary", "a", "--tag", "1"], "with `--binary` there are only"),
        ] {
            let error = image(arguments).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn packages_are_chosen_by_name() {
        let options = Options::parse(&["drakkar", "--tag", "2", "--output", "out", "drakkar-pci"]).unwrap();
        assert_eq!(
            (options.packages, options.tag, options.output),
            (vec!["drakkar", "drakkar-pci"], Some("2"), Some("out"))
        );
    }

    #[test]
    fn paths_of_this_machine_are_replaced_in_rust_and_in_c() {
        let build = Build { target: "aarch64-unknown-linux-gnu", directory: "/t".into(), top: "/top".into() };
        let variables = build.environment().unwrap();
        let value =
            |name: &str| variables.iter().find(|(found, _)| found == name).map(|(_, value)| value.to_str().unwrap());
        let rust = value("CARGO_ENCODED_RUSTFLAGS").unwrap();
        assert!(rust.starts_with("-Ctarget-feature=+crt-static\u{1f}"), "{rust}");
        assert!(rust.ends_with("--remap-path-prefix=/t=/target") && rust.contains("=/top=/src\u{1f}"), "{rust}");
        assert!(value("CFLAGS_aarch64_unknown_linux_gnu").unwrap().contains("-ffile-prefix-map=/top=/src "));
        if env::consts::ARCH != "aarch64" {
            let linker = value("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER");
            assert_eq!(linker, Some("aarch64-linux-gnu-gcc"));
        }
    }
}
