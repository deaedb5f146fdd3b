//! Metadata files of a launcher's container, in a temporary directory.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use tempfile::TempDir;

/// Writes files below a directory of a new root. A path that ends with a slash is a directory.
pub(crate) fn tree(base: &str, files: &BTreeMap<String, Option<String>>) -> TempDir {
    let root = tempfile::tempdir().unwrap();
    let base = root.path().join(base.trim_start_matches('/'));
    for (path, content) in files {
        write(&base.join(path), path.ends_with('/'), content.as_deref().unwrap_or_default());
    }
    root
}

/// Writes files in the directory of the released layout.
pub(crate) fn released_tree(files: &BTreeMap<String, Option<String>>) -> TempDir {
    tree("/var/run/kubernetes.io/dra-device-attributes", files)
}

fn write(path: &Path, is_directory: bool, content: &str) {
    if is_directory {
        fs::create_dir_all(path).unwrap();
    } else {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }
}
