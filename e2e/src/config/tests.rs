use super::*;

fn place() -> Place {
    Place::at(Path::new("/s"), Path::new("/cache")).unwrap()
}

#[test]
fn nothing_listens_beyond_the_node() {
    let (_, address) = place().link();
    let config = kubelet(&place(), Options::default());
    assert_eq!(config["address"], address.to_string());
    assert_eq!(config["healthzBindAddress"], "127.0.0.1");
    for component in [Component::Etcd, Component::ControllerManager, Component::Scheduler] {
        let line = command_line(component, &place(), Options::default()).join(" ");
        assert!(line.contains("127.0.0.1") && !line.contains("0.0.0.0"), "{line}");
    }
}

#[test]
fn the_kubelets_cgroups_are_below_the_clusters() {
    assert_eq!(kubelet(&place(), Options::default())["cgroupRoot"], format!("/{}", place().cgroup()));
}

#[test]
fn gates_are_set_only_when_asked_for() {
    let all = Options { all_dra_gates: true };
    assert_eq!(kubelet(&place(), Options::default()).get("featureGates"), None);
    assert_eq!(kubelet(&place(), all)["featureGates"]["DRAListTypeAttributes"], true);
    for component in [Component::ApiServer, Component::ControllerManager, Component::Scheduler] {
        let gates = |options| command_line(component, &place(), options).join(" ").contains("DRADeviceTaints=true");
        assert!(gates(all) && !gates(Options::default()), "{component}");
    }
}

#[test]
fn containerd_finds_its_programs_and_has_nothing_in_opt() {
    let config = containerd(Path::new("/cache/bin"), true);
    assert!(config.contains("BinaryName = '/cache/bin/runc'"));
    assert!(config.contains("restrict_oom_score_adj = true"));
    assert!(!config.contains("'/opt"), "{config}");
}

#[test]
fn no_argument_has_a_line_break() {
    for component in Component::ALL {
        let line = command_line(component, &place(), Options { all_dra_gates: true });
        assert!(line.iter().all(|argument| !argument.contains('\n')), "{component}");
    }
}

#[test]
fn capabilities_are_read_from_the_mask() {
    assert!(!has_capability("CapPrm:\t0\nCapEff:\t000001fffeffffff\n", 24));
    assert!(has_capability("CapEff:\t000001ffffffffff\n", 24));
    assert!(!has_capability("nothing", 24));
}
