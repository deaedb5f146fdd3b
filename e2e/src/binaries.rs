//! The node's programs, built from the Go modules in `e2e/cluster` at the versions that those pin.
//!
//! They are rebuilt only when the modules, the Go toolchain or the build options change; Go's build cache then reduces
//! that to linking.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use sha2::{Digest, Sha256};

use crate::error::{Error, IoContext, Result};
use crate::host::install_packages;
use crate::kubelet::Kubelet;
use crate::paths::{ClusterPaths, repository};
use crate::run::run;

/// A Go module's directory, and the files in it that determine what is built.
type Module = (&'static str, &'static [&'static str]);

const MODULES: [Module; 2] =
    [("kubernetes", &["go.mod", "go.sum"]), ("runtime", &["go.mod", "go.sum", "init/main.go"])];

/// The Go modules whose version is linked into programs, and the variables that receive it.
const VERSIONS: [(&str, &[&str]); 5] = [
    ("k8s.io/kubernetes", &["k8s.io/component-base/version.gitVersion", "k8s.io/client-go/pkg/version.gitVersion"]),
    ("github.com/containerd/containerd/v2", &["github.com/containerd/containerd/v2/version.Version"]),
    (
        "github.com/containernetworking/plugins",
        &["github.com/containernetworking/plugins/pkg/utils/buildversion.BuildVersion"],
    ),
    ("github.com/opencontainers/runc", &["main.version"]),
    ("helm.sh/helm/v3", &["helm.sh/helm/v3/internal/version.version"]),
];

/// A program and its build options.
struct Program {
    name: &'static str,
    module: &'static str,
    package: &'static str,
    tags: &'static str,
    /// Whether it needs cgo. It is linked statically in either case.
    cgo: bool,
    /// The arguments that make it print its version; empty if it cannot.
    version: &'static [&'static str],
}

const CONTAINERD_TAGS: &str = "no_btrfs no_devmapper no_zfs";

const fn kubernetes(name: &'static str, package: &'static str) -> Program {
    Program { name, module: "kubernetes", package, tags: "", cgo: false, version: &["--version"] }
}

const fn runtime(name: &'static str, package: &'static str, version: &'static [&'static str]) -> Program {
    Program { name, module: "runtime", package, tags: CONTAINERD_TAGS, cgo: false, version }
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
        cgo: true,
        ..runtime("runc", "github.com/opencontainers/runc", &["--version"])
    },
    // A CNI plugin that is called without a command prints its name and version.
    runtime("bridge", "github.com/containernetworking/plugins/plugins/main/bridge", &[""]),
    runtime("host-local", "github.com/containernetworking/plugins/plugins/ipam/host-local", &[]),
    runtime("loopback", "github.com/containernetworking/plugins/plugins/main/loopback", &[]),
    runtime("init", "./init", &[]),
];

/// Helm, which has a module of its own. The cluster runs without it.
const HELM: Program = Program {
    name: "helm",
    module: "helm",
    package: "helm.sh/helm/v3/cmd/helm",
    tags: "",
    cgo: false,
    version: &["version", "--short"],
};

/// Builds helm if it is missing or outdated, and returns its path.
///
/// # Errors
///
/// There is no Go toolchain, or the build fails.
pub fn build_helm(paths: &ClusterPaths) -> Result<PathBuf> {
    let bin = paths.bin();
    fs::create_dir_all(&bin).with_context(|| format!("create {}", bin.display()))?;
    build_all(&bin, ".helm-built-from", &[(HELM.module, &["go.mod", "go.sum"])], &[HELM])?;
    Ok(bin.join(HELM.name))
}

/// Builds etcd and kube-apiserver if they are missing or outdated, and returns their paths.
///
/// # Errors
///
/// There is no Go toolchain, or the build fails.
pub(crate) fn build_api_server(paths: &ClusterPaths) -> Result<[PathBuf; 2]> {
    let bin = paths.bin();
    fs::create_dir_all(&bin).with_context(|| format!("create {}", bin.display()))?;
    let [etcd, api_server, ..] = PROGRAMS;
    let built = [bin.join(etcd.name), bin.join(api_server.name)];
    build_all(&bin, ".api-server-built-from", &MODULES[..1], &[etcd, api_server])?;
    Ok(built)
}

/// Builds the programs that are missing or outdated, and prints progress to standard error. An older kubelet is built
/// only if `kubelet` is one.
///
/// # Errors
///
/// There is no Go toolchain, a required package is missing and cannot be installed, or the build fails.
pub fn build(paths: &ClusterPaths, kubelet: Kubelet) -> Result<()> {
    install_packages()?;
    let bin = paths.bin();
    fs::create_dir_all(&bin).with_context(|| format!("create {}", bin.display()))?;
    build_all(&bin, ".built-from", &MODULES, &PROGRAMS)?;
    match older_kubelet(kubelet) {
        Some(program) => {
            let stamp = format!(".{}-built-from", program.name);
            build_all(&bin, &stamp, &[(program.module, &["go.mod", "go.sum"])], &[program])
        }
        None => Ok(()),
    }
}

/// The program of an older kubelet, which has a module of its own.
fn older_kubelet(kubelet: Kubelet) -> Option<Program> {
    kubelet.release()?;
    let name = kubelet.program();
    Some(Program { module: name, ..kubernetes(name, "k8s.io/kubernetes/cmd/kubelet") })
}

/// Builds programs unless all of them exist and the file `stamp` has the hash of their inputs.
fn build_all(bin: &Path, stamp: &str, modules: &[Module], programs: &[Program]) -> Result<()> {
    let stamp = bin.join(stamp);
    let hash = input_hash(modules, programs)?;
    let present = programs.iter().all(|program| bin.join(program.name).exists());
    if present && fs::read_to_string(&stamp).is_ok_and(|built| built == hash) {
        return Ok(());
    }
    let names: Vec<_> = programs.iter().map(|program| program.name).collect();
    report(&format!("building in {} (the first build takes many minutes): {}", bin.display(), names.join(", ")))?;
    for program in programs {
        let begin = Instant::now();
        run(&mut go_build(program, bin)?)?;
        report(&format!("built {} in {:.0} s", program.name, begin.elapsed().as_secs_f32()))?;
    }
    fs::write(&stamp, hash).with_context(|| format!("write {}", stamp.display()))
}

/// Returns each component's name and the version that it prints.
///
/// # Errors
///
/// A program cannot be run.
pub(crate) fn versions(paths: &ClusterPaths, kubelet: Kubelet) -> Result<Vec<(&'static str, String)>> {
    let mut versions = Vec::new();
    for program in PROGRAMS.iter().filter(|program| !program.version.is_empty()) {
        let arguments = program.version.iter().filter(|argument| !argument.is_empty());
        let file = if program.name == "kubelet" { kubelet.program() } else { program.name };
        let output = crate::run::output(Command::new(paths.bin().join(file)).args(arguments))?;
        // CNI plugins print it to standard error.
        let printed = [output.stdout, output.stderr].concat();
        let printed = String::from_utf8_lossy(&printed);
        versions.push((program.name, printed.lines().next().unwrap_or_default().trim().to_owned()));
    }
    Ok(versions)
}

fn go_build(program: &Program, bin: &Path) -> Result<Command> {
    let module = module(program.module);
    let path = module.join("go.mod");
    let go_mod = fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
    let mut go = Command::new("go");
    go.current_dir(&module)
        .args(["build", "-trimpath", "-buildvcs=false", "-tags", program.tags, "-ldflags"])
        .arg(linker_flags(program, &go_mod))
        .arg("-o")
        .arg(bin.join(program.name))
        .arg(program.package)
        .env("CGO_ENABLED", if program.cgo { "1" } else { "0" });
    Ok(go)
}

/// Flags that strip symbols and set the version that the program prints.
fn linker_flags(program: &Program, go_mod: &str) -> String {
    let mut flags = "-s -w".to_owned();
    if program.cgo {
        flags.push_str(" -extldflags -static");
    }
    for (module, variables) in VERSIONS {
        let Some(version) = required(go_mod, module) else { continue };
        // runc prints its version without a `v`.
        let version = if module.ends_with("/runc") { version.trim_start_matches('v') } else { version };
        // Every program has a package `main`, so `main.version` is set for runc only.
        for variable in variables.iter().filter(|variable| !variable.starts_with("main.") || program.name == "runc") {
            flags.push_str(&format!(" -X {variable}={version}"));
        }
    }
    flags
}

/// The version of a module that `go.mod` requires.
fn required<'a>(go_mod: &'a str, module: &str) -> Option<&'a str> {
    go_mod.lines().filter(|line| !line.contains("=>")).find_map(|line| {
        let line = line.trim_start().trim_start_matches("require ");
        line.strip_prefix(module)?.strip_prefix(' ')?.split_whitespace().next()
    })
}

/// A hash of everything that the programs are built from.
fn input_hash(modules: &[Module], programs: &[Program]) -> Result<String> {
    let go = run(Command::new("go").arg("version")).map_err(|error| match error {
        Error::Io { source, .. } if source.kind() == io::ErrorKind::NotFound => Error::Missing {
            what: "`go` was not found".to_owned(),
            remedy: "install Go 1.26.6 or newer, which builds the node's programs".to_owned(),
        },
        other => other,
    })?;
    let mut hash = Sha256::new();
    hash.update(go.as_bytes());
    for (name, files) in modules {
        for file in *files {
            let path = module(name).join(file);
            hash.update(fs::read(&path).with_context(|| format!("read {}", path.display()))?);
        }
    }
    for program in programs {
        hash.update(format!("{} {} {} {}", program.name, program.package, program.tags, program.cgo));
    }
    Ok(hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}

fn module(name: &str) -> PathBuf {
    repository().join("e2e/cluster").join(name)
}

/// Prints a line of progress to standard error.
pub(crate) fn report(line: &str) -> Result<()> {
    writeln!(io::stderr(), "{line}").with_context(|| "write to standard error".to_owned())
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
    fn every_upstream_program_is_a_tool_of_its_module() {
        let older = Kubelet::OLDER.map(|kubelet| older_kubelet(kubelet).unwrap());
        for program in PROGRAMS.iter().chain(&older).chain([&HELM]).filter(|program| program.package != "./init") {
            let go_mod = committed(program.module);
            let is_tool = |line: &str| line.trim().trim_start_matches("tool ") == program.package;
            assert!(go_mod.lines().any(is_tool), "{}", program.name);
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
        assert!(older_kubelet(Kubelet::SameRelease).is_none());
    }

    #[test]
    fn programs_are_linked_with_the_version_that_go_mod_requires() {
        let go_mod = "require k8s.io/kubernetes v1.2.3\nreplace (\n\tk8s.io/api => k8s.io/api v0.2.3\n)\n";
        let flags = linker_flags(program("kubelet"), go_mod);
        assert!(flags.contains("-X k8s.io/component-base/version.gitVersion=v1.2.3"), "{flags}");

        let go_mod = "require (\n\tgithub.com/opencontainers/runc v1.9.0 // indirect\n)\n";
        assert!(linker_flags(program("runc"), go_mod).contains("-X main.version=1.9.0"));
        assert!(!linker_flags(program("ctr"), go_mod).contains("main.version"));
    }
}
