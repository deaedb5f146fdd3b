//! Configurations as runtimes and installers write them.

use super::*;

fn known(files: &[(&str, &str)]) -> RuntimeConfig {
    match runtime(files) {
        Runtime::Known(config) => config,
        other => panic!("{other:?}"),
    }
}

fn runtime(files: &[(&str, &str)]) -> Runtime {
    let root = tempfile::tempdir().unwrap();
    for (path, content) in files {
        let path = root.path().join(path.trim_start_matches('/'));
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, content).unwrap();
    }
    read(&Host::open(root.path()).unwrap(), None)
}

#[test]
fn the_default_of_containerd_depends_on_its_release() {
    let old = known(&[("/etc/containerd/config.toml", "version = 2\n")]);
    assert_eq!((old.cdi, old.nri), (Switch::ByRelease, Switch::ByRelease));
    assert_eq!(old.cdi_with(Some("containerd://1.7.27")), Switch::Off);
    assert_eq!(old.cdi_with(Some("containerd://2.1.4")), Switch::On);
    assert_eq!(old.nri_with(None), Switch::ByRelease);
    let new = known(&[("/etc/containerd/config.toml", "version = 3\n")]);
    assert_eq!((new.cdi_with(None), new.nri_with(None)), (Switch::On, Switch::On));
    assert_eq!(new.cdi_dirs, [Path::new("/etc/cdi"), Path::new("/var/run/cdi")]);
    assert_eq!(new.nri_socket, Path::new(DEFAULT_NRI_SOCKET));
}

#[test]
fn an_imported_file_wins_and_imports_end() {
    let main = r#"
        version = 3
        imports = ["/etc/containerd/conf.d/*.toml", "config.toml"]
        [plugins."io.containerd.cri.v1.runtime"]
          enable_cdi = false
          cdi_spec_dirs = ["/a"]
        [plugins."io.containerd.nri.v1.nri"]
          disable = true
          socket_path = "/x/nri.sock"
    "#;
    let own = "[plugins.\"io.containerd.cri.v1.runtime\"]\nenable_cdi = true\n";
    let config = known(&[
        ("/etc/containerd/config.toml", main),
        ("/etc/containerd/conf.d/10-cdi.toml", own),
        ("/etc/containerd/conf.d/notes.txt", "not toml"),
    ]);
    assert_eq!((config.cdi, config.nri), (Switch::On, Switch::Off));
    assert_eq!(config.cdi_dirs, [Path::new("/a")]);
    assert_eq!(config.nri_socket, Path::new("/x/nri.sock"));
    let disabled =
        known(&[("/etc/containerd/config.toml", "version = 3\ndisabled_plugins = [\"io.containerd.nri.v1.nri\"]")]);
    assert_eq!(disabled.nri, Switch::Off);
}

#[test]
fn cri_o_reads_its_directory_in_order() {
    let config = known(&[
        ("/etc/crio/crio.conf", "[crio.runtime]\ncdi_spec_dirs = [\"/a\"]\n"),
        (
            "/etc/crio/crio.conf.d/20-b.conf",
            "[crio.runtime]\ncdi_spec_dirs = [\"/b\"]\n[crio.nri]\nenable_nri = false\n",
        ),
        ("/etc/crio/crio.conf.d/10-c.conf", "[crio.runtime]\ncdi_spec_dirs = [\"/c\"]\n"),
    ]);
    assert_eq!((config.name, config.cdi, config.nri), ("CRI-O", Switch::On, Switch::Off));
    assert_eq!(config.cdi_dirs, [Path::new("/b")]);
}

#[test]
fn a_file_that_cannot_be_parsed_is_named_with_its_line() {
    let Runtime::Invalid { path, problem } = runtime(&[("/etc/containerd/config.toml", "version = 3\n[plugins\n")])
    else {
        panic!("it is not valid");
    };
    assert_eq!(path, Path::new("/etc/containerd/config.toml"));
    assert!(problem.starts_with("line 2: "), "{problem}");
    assert!(matches!(runtime(&[]), Runtime::Unknown(_)));
}
