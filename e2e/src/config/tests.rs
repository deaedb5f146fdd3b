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
    let all = Options { all_dra_gates: true, ..Options::default() };
    assert_eq!(kubelet(&place(), Options::default()).get("featureGates"), None);
    assert_eq!(kubelet(&place(), all)["featureGates"]["DRAListTypeAttributes"], true);
    for component in [Component::ApiServer, Component::ControllerManager, Component::Scheduler] {
        let gates = |options| command_line(component, &place(), options).join(" ").contains("DRADeviceTaints=true");
        assert!(gates(all) && !gates(Options::default()), "{component}");
    }
}

#[test]
fn an_older_kubelet_gets_what_it_knows_and_needs() {
    for all_dra_gates in [false, true] {
        let options = |kubelet| Options { all_dra_gates, kubelet };
        let kubelet_of = |which| kubelet(&place(), options(which));
        assert_eq!(kubelet_of(Kubelet::V1_34).get("featureGates"), None);
        assert_eq!(kubelet_of(Kubelet::V1_32)["featureGates"], json!({"DynamicResourceAllocation": true}));
        let line = command_line(Component::Kubelet, &place(), options(Kubelet::V1_32));
        assert_eq!(line[0], "/cache/bin/kubelet-1.32");
    }
}

#[test]
fn the_api_server_serves_what_an_older_kubelet_asks_for() {
    let served = |all_dra_gates, kubelet| {
        let line = command_line(Component::ApiServer, &place(), Options { all_dra_gates, kubelet });
        line.into_iter().filter(|argument| argument.starts_with("--runtime-config")).collect::<Vec<_>>()
    };
    assert_eq!(served(false, Kubelet::V1_34), [""; 0]);
    assert_eq!(served(false, Kubelet::V1_32), ["--runtime-config=resource.k8s.io/v1beta1=true"]);
    assert_eq!(served(true, Kubelet::V1_32), ["--runtime-config=api/all=true"]);
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
        let line = command_line(component, &place(), Options { all_dra_gates: true, ..Options::default() });
        assert!(line.iter().all(|argument| !argument.contains('\n')), "{component}");
    }
}

#[test]
fn capabilities_are_read_from_the_mask() {
    assert!(!has_capability("CapPrm:\t0\nCapEff:\t000001fffeffffff\n", 24));
    assert!(has_capability("CapEff:\t000001ffffffffff\n", 24));
    assert!(!has_capability("nothing", 24));
}
