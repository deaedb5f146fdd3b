//! `cargo xtask proto`: generates the Rust code of `drakkar-kubelet-api`, of `drakkar-nri-api` and of the hooks of
//! `drakkar-kubevirt` from their `.proto` files, without protoc.
//!
//! The code is committed, so that building the crates generates nothing. A test here fails when it is out of date.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

/// A `.proto` file and its Rust file.
struct Source {
    /// The directory of the crate, below `crates`. Its `.proto` files are in `proto`.
    krate: &'static str,
    /// The stem of the `.proto` file.
    stem: &'static str,
    /// The protobuf package, after which the generator names its output.
    package: &'static str,
    /// The directory of the Rust file, below the crate.
    directory: &'static str,
    /// What is made of it.
    output: Output,
}

/// What the generator makes of a `.proto` file.
#[derive(Clone, Copy)]
enum Output {
    /// Messages, and clients and servers for gRPC.
    Grpc,
    /// Messages only, with maps in the order of their keys and bytes that share the memory they were decoded from.
    Messages,
}

const fn kubelet(stem: &'static str, package: &'static str) -> Source {
    Source { krate: "kubelet-api", stem, package, directory: "src", output: Output::Grpc }
}

const fn hook(stem: &'static str, package: &'static str) -> Source {
    Source { krate: "kubevirt", stem, package, directory: "src/hook/api", output: Output::Grpc }
}

const fn nri(stem: &'static str, package: &'static str) -> Source {
    Source { krate: "nri-api", stem, package, directory: "src", output: Output::Messages }
}

const SOURCES: [Source; 12] = [
    kubelet("registration", "pluginregistration"),
    kubelet("dra_v1", "k8s.io.kubelet.pkg.apis.dra.v1"),
    kubelet("dra_v1beta1", "k8s.io.kubelet.pkg.apis.dra.v1beta1"),
    kubelet("health_v1", "v1"),
    kubelet("health_v1alpha1", "v1alpha1"),
    hook("hooks_info", "kubevirt.hooks.info"),
    hook("hooks_v1alpha1", "kubevirt.hooks.v1alpha1"),
    hook("hooks_v1alpha2", "kubevirt.hooks.v1alpha2"),
    hook("hooks_v1alpha3", "kubevirt.hooks.v1alpha3"),
    hook("plugins_v1alpha1", "kubevirt.hooks.plugins.v1alpha1"),
    nri("v1alpha1", "nri.pkg.api.v1alpha1"),
    nri("ttrpc", "ttrpc"),
];

/// Writes the generated code.
pub(crate) fn generate() -> Result<()> {
    for (path, code) in generated()? {
        fs::write(&path, code).with_context(|| format!("write {}", path.display()))?;
        println!("{}", path.display());
    }
    Ok(())
}

/// Fails if the committed code is out of date.
pub(crate) fn check() -> Result<()> {
    for (path, code) in generated()? {
        let committed = fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
        if committed != code {
            bail!("{} is out of date: run `cargo xtask proto`", path.display());
        }
    }
    Ok(())
}

/// Generates the code: the path and content of each Rust file.
fn generated() -> Result<Vec<(PathBuf, String)>> {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).with_file_name("crates");
    let out = tempfile::tempdir().context("create a directory for the generator")?;
    SOURCES
        .iter()
        .map(|Source { krate, stem, package, directory, output }| {
            let krate = crates.join(krate);
            let include = krate.join("proto");
            let descriptors = protox::compile([format!("{stem}.proto")], [&include])
                .with_context(|| format!("compile {stem}.proto in {}", include.display()))?;
            let builder = match output {
                // Users of the clients bring their own channel.
                Output::Grpc => tonic_prost_build::configure().build_transport(false),
                Output::Messages => {
                    tonic_prost_build::configure().build_client(false).build_server(false).btree_map(".").bytes(".")
                }
            };
            builder
                .emit_rerun_if_changed(false)
                .out_dir(out.path())
                .compile_fds(descriptors)
                .with_context(|| format!("generate package {package}"))?;
            let path = out.path().join(format!("{package}.rs"));
            let code = fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
            Ok((krate.join(directory).join(format!("{stem}.rs")), code))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_committed_code_is_up_to_date() {
        super::check().unwrap();
    }
}
