//! `cargo xtask proto`: generates the Rust code of `drakkar-kubelet-api` from its `.proto` files, without protoc.
//!
//! The code is committed, so that building the crate generates nothing. A test here fails when it is out of date.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

/// The stem of each `.proto` file and of its Rust file, and the protobuf package, after which the generator names its
/// output.
const SOURCES: [(&str, &str); 5] = [
    ("registration", "pluginregistration"),
    ("dra_v1", "k8s.io.kubelet.pkg.apis.dra.v1"),
    ("dra_v1beta1", "k8s.io.kubelet.pkg.apis.dra.v1beta1"),
    ("health_v1", "v1"),
    ("health_v1alpha1", "v1alpha1"),
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
    let krate = Path::new(env!("CARGO_MANIFEST_DIR")).with_file_name("crates").join("kubelet-api");
    let out = tempfile::tempdir().context("create a directory for the generator")?;
    for (stem, package) in SOURCES {
        let include = krate.join("proto");
        let descriptors = protox::compile([format!("{stem}.proto")], [&include])
            .with_context(|| format!("compile {stem}.proto in {}", include.display()))?;
        tonic_prost_build::configure()
            // Users of the clients bring their own channel.
            .build_transport(false)
            .emit_rerun_if_changed(false)
            .out_dir(out.path())
            .compile_fds(descriptors)
            .with_context(|| format!("generate package {package}"))?;
    }
    SOURCES
        .iter()
        .map(|(stem, package)| {
            let output = out.path().join(format!("{package}.rs"));
            let code = fs::read_to_string(&output).with_context(|| format!("read {}", output.display()))?;
            Ok((krate.join("src").join(format!("{stem}.rs")), code))
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
