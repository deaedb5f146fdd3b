//! The node's programs: built from the Go modules in `e2e/cluster` with the versions that these pin, and kept.
//!
//! Built anew only when the modules, the Go toolchain or how they are built changed; the Go toolchain's own cache then
//! makes it a matter of linking.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use sha2::{Digest, Sha256};

use crate::error::{Doing, Error, Result};
use crate::kubelet::Kubelet;
use crate::machine::install_packages;
use crate::place::{Place, repository};
use crate::run::run;

/// A Go module's directory, and the files in it that say what is built.
type Module = (&'static str, &'static [&'static str]);

const MODULES: [Module; 2] =
    [("kubernetes", &["go.mod", "go.sum"]), ("runtime", &["go.mod", "go.sum", "init/main.go"])];

/// Which variables of a program are given the version of the Go module that it is from.
const VERSIONS: [(&str, &[&str]); 4] = [
    ("k8s.io/kubernetes", &["k8s.io/component-base/version.gitVersion", "k8s.io/client-go/pkg/version.gitVersion"]),
    ("github.com/containerd/containerd/v2", &["github.com/containerd/containerd/v2/version.Version"]),
    (
        "github.com/containernetworking/plugins",
        &["github.com/containernetworking/plugins/pkg/utils/buildversion.BuildVersion"],
    ),
    ("github.com/opencontainers/runc", &["main.version"]),
];

/// A program and how it is built.
struct Program {
    name: &'static str,
    module: &'static str,
    package: &'static str,
    tags: &'static str,
    /// Whether it has C code; it is linked statically all the same.
    c: bool,
    /// What makes it print its version.
    version: &'static [&'static str],
}

const CONTAINERD_TAGS: &str = "no_btrfs no_devmapper no_zfs";

const fn kubernetes(name: &'static str, package: &'static str) -> Program {
    Program { name, module: "kubernetes", package, tags: "", c: false, version: &["--version"] }
}

const fn runtime(name: &'static str, package: &'static str, version: &'static [&'static str]) -> Program {
    Program { name, module: "runtime", package, tags: CONTAINERD_TAGS, c: false, version }
}

const PROGRAMS: [Program; 14] = [
    kubernetes("etcd", "go.etcd.io/etcd/server/v3"),
    kubernetes("kube-apiserver", "k8s.io/kubernetes/cmd/kube-apiserver"),
    kubernetes("kube-controller-manager", "k8s.io/kubernetes/cmd/kube-controller-manager"),
    kubernetes("kube-scheduler", "k8s.io/kubernetes/cmd/kube-scheduler"),
    kubernetes("kubelet", "k8s.io/kubernetes/cmd/kubelet"),
    Program { version: &["version", "--client"], ..kubernetes("kubectl", "k8s.io/kubernetes/cmd/kubectl") },
    runtime("containerd", "github.com/containerd/containerd/v2/cmd/containerd", &["--version"]),
    runtime("containerd-shim-runc-v2", "github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2", &[]),
    runtime("ctr", "github.com/containerd/containerd/v2/cmd/ctr", &[]),
    Program {
        tags: "seccomp netgo osusergo",
        c: true,
        ..runtime("runc", "github.com/opencontainers/runc", &["--version"])
    },
    // A CNI plugin that is called without a command says what it is.
    runtime("bridge", "github.com/containernetworking/plugins/plugins/main/bridge", &[""]),
    runtime("host-local", "github.com/containernetworking/plugins/plugins/ipam/host-local", &[]),
    runtime("loopback", "github.com/containernetworking/plugins/plugins/main/loopback", &[]),
    runtime("init", "./init", &[]),
];

/// Builds the programs that are not there yet, and says on standard error what it does and how long that took. An older
/// kubelet is built only for who asks for it.
///
/// # Errors
///
/// There is no Go toolchain or a package is missing that cannot be installed, or the build fails: with what was said.
pub fn build(place: &Place, kubelet: Kubelet) -> Result<()> {
    install_packages()?;
    let bin = place.bin();
    fs::create_dir_all(&bin).doing(|| format!("make {}", bin.display()))?;
    build_all(&bin, ".built-from", &MODULES, &PROGRAMS)?;
    match older(kubelet) {
        Some(program) => {
            let mark = format!(".{}-built-from", program.name);
            build_all(&bin, &mark, &[(program.module, &["go.mod", "go.sum"])], &[program])
        }
        None => Ok(()),
    }
}

/// The program of an older kubelet. Its module has nothing else.
fn older(kubelet: Kubelet) -> Option<Program> {
    kubelet.release()?;
    let name = kubelet.program();
    Some(Program { module: name, ..kubernetes(name, "k8s.io/kubernetes/cmd/kubelet") })
}

/// Builds programs if not all of them are there as they would be built now, which the file `mark` tells.
fn build_all(bin: &Path, mark: &str, modules: &[Module], programs: &[Program]) -> Result<()> {
    let mark = bin.join(mark);
    let key = key(modules, programs)?;
    let present = programs.iter().all(|program| bin.join(program.name).exists());
    if present && fs::read_to_string(&mark).is_ok_and(|built| built == key) {
        return Ok(());
    }
    let names: Vec<_> = programs.iter().map(|program| program.name).collect();
    say(&format!("building in {} (a first build takes many minutes): {}", bin.display(), names.join(", ")))?;
    for program in programs {
        let begin = Instant::now();
        run(&mut go_build(program, bin)?)?;
        say(&format!("built {} in {:.0} s", program.name, begin.elapsed().as_secs_f32()))?;
    }
    fs::write(&mark, key).doing(|| format!("write {}", mark.display()))
}

/// Each component's name and what it says its version is.
///
/// # Errors
///
/// A program is not there or does not say.
pub(crate) fn versions(place: &Place, kubelet: Kubelet) -> Result<Vec<(&'static str, String)>> {
    let mut versions = Vec::new();
    for program in PROGRAMS.iter().filter(|program| !program.version.is_empty()) {
        let arguments = program.version.iter().filter(|argument| !argument.is_empty());
        // CNI plugins say it on standard error.
        let file = if program.name == "kubelet" { kubelet.program() } else { program.name };
        let output = crate::run::output(Command::new(place.bin().join(file)).args(arguments))?;
        let said = [output.stdout, output.stderr].concat();
        let said = String::from_utf8_lossy(&said);
        versions.push((program.name, said.lines().next().unwrap_or_default().trim().to_owned()));
    }
    Ok(versions)
}

fn go_build(program: &Program, bin: &Path) -> Result<Command> {
    let module = module(program.module);
    let path = module.join("go.mod");
    let go_mod = fs::read_to_string(&path).doing(|| format!("read {}", path.display()))?;
    let mut go = Command::new("go");
    go.current_dir(&module)
        .args(["build", "-trimpath", "-buildvcs=false", "-tags", program.tags, "-ldflags"])
        .arg(linker_flags(program, &go_mod))
        .arg("-o")
        .arg(bin.join(program.name))
        .arg(program.package)
        .env("CGO_ENABLED", if program.c { "1" } else { "0" });
    Ok(go)
}

/// Without symbols, with the version that the program shall tell.
fn linker_flags(program: &Program, go_mod: &str) -> String {
    let mut flags = "-s -w".to_owned();
    if program.c {
        flags.push_str(" -extldflags -static");
    }
    for (module, variables) in VERSIONS {
        let Some(version) = required(go_mod, module) else { continue };
        // runc's own have none.
        let version = if module.ends_with("/runc") { version.trim_start_matches('v') } else { version };
        // `main.version` is every program's, so it is given to runc alone.
        for variable in variables.iter().filter(|variable| !variable.starts_with("main.") || program.name == "runc") {
            flags.push_str(&format!(" -X {variable}={version}"));
        }
    }
    flags
}

/// The version in which a module is required.
fn required<'a>(go_mod: &'a str, module: &str) -> Option<&'a str> {
    go_mod.lines().filter(|line| !line.contains("=>")).find_map(|line| {
        let line = line.trim_start().trim_start_matches("require ");
        line.strip_prefix(module)?.strip_prefix(' ')?.split_whitespace().next()
    })
}

/// What the programs are made of.
fn key(modules: &[Module], programs: &[Program]) -> Result<String> {
    let go = run(Command::new("go").arg("version")).map_err(|error| match error {
        Error::Io { source, .. } if source.kind() == io::ErrorKind::NotFound => Error::Missing {
            what: "there is no `go`".to_owned(),
            remedy: "install Go 1.26.6 or newer; the node's programs are built with it".to_owned(),
        },
        other => other,
    })?;
    let mut hash = Sha256::new();
    hash.update(go.as_bytes());
    for (name, files) in modules {
        for file in *files {
            let path = module(name).join(file);
            hash.update(fs::read(&path).doing(|| format!("read {}", path.display()))?);
        }
    }
    for program in programs {
        hash.update(format!("{} {} {} {}", program.name, program.package, program.tags, program.c));
    }
    Ok(hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}

fn module(name: &str) -> PathBuf {
    repository().join("e2e/cluster").join(name)
}

/// Tells whoever waits.
pub(crate) fn say(line: &str) -> Result<()> {
    writeln!(io::stderr(), "{line}").doing(|| "write to standard error".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn program(name: &str) -> &'static Program {
        const { &PROGRAMS }.iter().find(|program| program.name == name).unwrap()
    }

    fn committed(name: &str) -> String {
        fs::read_to_string(module(name).join("go.mod")).unwrap()
    }

    #[test]
    fn every_program_of_others_is_a_tool_of_its_module() {
        let older = Kubelet::OLDER.map(|kubelet| older(kubelet).unwrap());
        for program in PROGRAMS.iter().chain(&older).filter(|program| program.package != "./init") {
            let go_mod = committed(program.module);
            let is_it = |line: &str| line.trim().trim_start_matches("tool ") == program.package;
            assert!(go_mod.lines().any(is_it), "{}", program.name);
        }
    }

    #[test]
    fn all_kubernetes_modules_are_of_one_release() {
        for module in ["kubernetes"].into_iter().chain(Kubelet::OLDER.map(Kubelet::program)) {
            let go_mod = committed(module);
            let patch = required(&go_mod, "k8s.io/kubernetes").unwrap().strip_prefix("v1.").unwrap();
            let staging = go_mod.lines().filter_map(|line| line.split_once(" => ")?.1.split_once(" v0."));
            let staging: Vec<&str> = staging.map(|(_, version)| version).collect();
            assert!(staging.len() > 20 && staging.iter().all(|version| *version == patch), "{patch} {staging:?}");
        }
    }

    #[test]
    fn an_older_kubelet_is_of_the_release_that_it_is_named_after() {
        for kubelet in Kubelet::OLDER {
            let go_mod = committed(kubelet.program());
            let patch = required(&go_mod, "k8s.io/kubernetes").unwrap();
            assert!(patch.starts_with(&format!("v{}.", kubelet.release().unwrap())), "{patch}");
        }
        assert!(older(Kubelet::SameRelease).is_none());
    }

    #[test]
    fn programs_are_told_the_version_that_is_required() {
        let go_mod = "require k8s.io/kubernetes v1.2.3\nreplace (\n\tk8s.io/api => k8s.io/api v0.2.3\n)\n";
        let flags = linker_flags(program("kubelet"), go_mod);
        assert!(flags.contains("-X k8s.io/component-base/version.gitVersion=v1.2.3"), "{flags}");

        let go_mod = "require (\n\tgithub.com/opencontainers/runc v1.9.0 // indirect\n)\n";
        assert!(linker_flags(program("runc"), go_mod).contains("-X main.version=1.9.0"));
        assert!(!linker_flags(program("ctr"), go_mod).contains("main.version"));
    }
}
