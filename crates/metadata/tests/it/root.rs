//! Reading below another root, whose files an untrusted container controls.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Stdio};

use drakkar_metadata::read::{ErrorClass, ReadError};
use drakkar_metadata::{Query, Reader};

use crate::support::{CLAIMS, Tree, claim_path, device_names, file, metadata};

fn query() -> Query {
    "c/r".parse().unwrap()
}

/// The root of this process has a real `/proc`, as a container's has.
#[test]
fn files_on_procfs_are_not_opened_below_a_root() {
    let reader = Reader::with_root("/proc/self/root").unwrap();
    for path in ["/proc/version", "/proc/self/status", "/sys/kernel/mm/transparent_hugepage/enabled"] {
        if !Path::new(path).exists() {
            eprintln!("skipped: there is no {path} here");
            continue;
        }
        let error = reader.read_bytes(Path::new(path)).unwrap_err();
        assert!(matches!(error, ReadError::NotAFile { .. }), "{path}: {error:?}");
        assert_eq!(error.class(), ErrorClass::Invalid);
        assert!(error.to_string().contains("pseudo file system"), "{error}");
    }
}

#[test]
fn a_root_that_is_a_link_is_refused_with_a_remedy() {
    let tree = Tree::new();
    let target = Tree::new();
    target.write(claim_path("c", "r", "a.x"), file(&metadata("c", "r", "a.x", &["secret"])));
    let link = tree.root().join("sub");
    symlink(target.root(), &link).unwrap();
    for root in [link.clone(), link.join("."), link.join("var")] {
        let error = Reader::with_root(&root).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("symbolic link") && text.contains("readlink -f"), "{text}");
        assert_eq!(error.class(), ErrorClass::Unreadable);
    }
    assert!(Reader::with_root(target.root()).unwrap().read(&query()).is_ok());
}

#[test]
fn a_root_may_be_relative_and_go_up() {
    let tree = Tree::new();
    tree.write(claim_path("c", "r", "a.x"), file(&metadata("c", "r", "a.x", &["d"])));
    tree.directory("/other");
    let root = tree.root().join("other/..");
    let read = Reader::with_root(root).unwrap().read(&query()).unwrap();
    assert_eq!(device_names(read.devices()), ["d"]);
}

/// A process with its own root, as with `chroot` and container runtimes.
#[test]
fn the_root_of_another_process_is_read_through_its_magic_link() {
    let tree = Tree::new();
    tree.write(claim_path("c", "r", "a.x"), file(&metadata("c", "r", "a.x", &["inside"])));
    for directory in ["bin", "lib", "lib64", "usr"] {
        tree.directory(format!("/{directory}"));
    }
    // In a mount namespace of its own, so that there are no leftovers.
    let script = "for d in bin lib lib64 usr; do [ -d /$d ] && mount --rbind /$d \"$0/$d\"; done
                  exec chroot \"$0\" /bin/sh -c 'echo in; exec cat'";
    let started = Command::new("unshare")
        .args(["--user", "--map-root-user", "--mount", "sh", "-c", script])
        .arg(tree.root())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn();
    let Ok(mut child) = started else { return eprintln!("skipped: there is no unshare here") };
    let mut first = [0; 3];
    let came_up = std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut first).is_ok();
    if came_up {
        let root = format!("/proc/{}/root", child.id());
        let read = Reader::with_root(&root).unwrap().read(&query());
        // A directory below it is resolved without following the container's links.
        symlink("/etc", tree.outside("/sub")).unwrap();
        let escape = Reader::with_root(Path::new(&root).join("sub"));
        drop(child.stdin.take());
        child.wait().unwrap();
        assert_eq!(device_names(read.unwrap().devices()), ["inside"]);
        assert!(escape.unwrap_err().to_string().contains("symbolic link"));
    } else {
        child.wait().unwrap();
        eprintln!("skipped: no unprivileged mount namespaces here");
    }
}

/// A container's links to pseudo files are not opened, and the valid claim is read.
#[test]
fn links_to_pseudo_files_are_problems_beside_valid_files() {
    let tree = Tree::new();
    tree.write(claim_path("c", "r", "a.x"), file(&metadata("c", "r", "a.x", &["d"])));
    tree.directory("/proc");
    symlink("/proc/kmsg", tree.outside(format!("{CLAIMS}/c/r/b.x-metadata.json"))).unwrap();
    let read = tree.reader().read(&query()).unwrap();
    assert_eq!((device_names(read.devices()), read.problems.len()), (vec!["d"], 1));
    assert!(fs::read_link(tree.outside(format!("{CLAIMS}/c/r/b.x-metadata.json"))).is_ok());
}
