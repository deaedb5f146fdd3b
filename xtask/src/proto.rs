//! Rust code from the `.proto` files of `drakkar-kubelet-api`, without protoc.
//!
//! The code is committed, so that neither users nor a build of the workspace generate anything. A test here fails when
//! it no longer is what the `.proto` files give.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

/// The `.proto` files, and with the same stems the files of Rust code; with the package that names the generator's
/// output.
const SOURCES: [(&str, &str); 5] = [
    ("registration", "pluginregistration"),
    ("dra_v1", "k8s.io.kubelet.pkg.apis.dra.v1"),
    ("dra_v1beta1", "k8s.io.kubelet.pkg.apis.dra.v1beta1"),
    ("health_v1", "v1"),
    ("health_v1alpha1", "v1alpha1"),
];

/// Writes the code.
pub(crate) fn generate() -> Result<()> {
    for (path, code) in generated()? {
        fs::write(&path, code).with_context(|| format!("write {}", path.display()))?;
        println!("{}", path.display());
    }
    Ok(())
}

/// Fails when the committed code is not what the `.proto` files give.
pub(crate) fn check() -> Result<()> {
    for (path, code) in generated()? {
        let committed = fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
        if committed != code {
            bail!("{} is stale: run `cargo xtask proto`", path.display());
        }
    }
    Ok(())
}

/// What each file of Rust code should hold.
fn generated() -> Result<Vec<(PathBuf, String)>> {
    let krate = Path::new(env!("CARGO_MANIFEST_DIR")).with_file_name("crates").join("plugin");
    let out = tempfile::tempdir().context("make a directory for the generator")?;
    for (stem, package) in SOURCES {
        let include = krate.join("proto");
        let descriptors = protox::compile([format!("{stem}.proto")], [&include])
            .with_context(|| format!("compile {stem}.proto in {}", include.display()))?;
        tonic_prost_build::configure()
            // Tests and embedded kubelets bring their own channel.
            .build_transport(false)
            .emit_rerun_if_changed(false)
            .out_dir(out.path())
            .compile_fds(descriptors)
            .with_context(|| format!("generate package {package}"))?;
    }
    SOURCES
        .iter()
        .map(|(stem, package)| {
            let made = out.path().join(format!("{package}.rs"));
            let code = fs::read_to_string(&made).with_context(|| format!("read {}", made.display()))?;
            Ok((krate.join("src").join(format!("{stem}.rs")), code))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_committed_code_is_what_the_proto_files_give() {
        super::check().unwrap();
    }
}
