use super::*;

fn paths() -> ClusterPaths {
    ClusterPaths::at(Path::new("/s"), Path::new("/cache")).unwrap()
}

#[test]
fn components_listen_only_in_the_node() {
    let (_, address) = paths().link();
    let config = kubelet(&paths(), Options::default());
    assert_eq!(config["address"], address.to_string());
    assert_eq!(config["healthzBindAddress"], "127.0.0.1");
    for component in [Component::Etcd, Component::ControllerManager, Component::Scheduler] {
        let line = command_line(component, &paths(), Options::default()).join(" ");
        assert!(line.contains("127.0.0.1") && !line.contains("0.0.0.0"), "{line}");
    }
}

#[test]
fn the_kubelets_cgroups_are_below_the_cgroup_of_the_cluster() {
    assert_eq!(kubelet(&paths(), Options::default())["cgroupRoot"], format!("/{}", paths().cgroup()));
}

#[test]
fn gates_are_set_only_on_request() {
    let all = Options { all_dra_gates: true, ..Options::default() };
    assert_eq!(kubelet(&paths(), Options::default()).get("featureGates"), None);
    assert_eq!(kubelet(&paths(), all)["featureGates"]["DRAListTypeAttributes"], true);
    for component in [Component::ApiServer, Component::ControllerManager, Component::Scheduler] {
        let gates = |options| command_line(component, &paths(), options).join(" ").contains("DRADeviceTaints=true");
        assert!(gates(all) && !gates(Options::default()), "{component}");
    }
}

#[test]
fn an_older_kubelet_gets_only_the_gates_that_it_needs() {
    for all_dra_gates in [false, true] {
        let options = |kubelet| Options { all_dra_gates, kubelet };
        let kubelet_of = |which| kubelet(&paths(), options(which));
        assert_eq!(kubelet_of(Kubelet::V1_34).get("featureGates"), None);
        assert_eq!(kubelet_of(Kubelet::V1_32)["featureGates"], json!({"DynamicResourceAllocation": true}));
        let line = command_line(Component::Kubelet, &paths(), options(Kubelet::V1_32));
        assert_eq!(line[0], "/cache/bin/kubelet-1.32");
    }
}

#[test]
fn the_api_server_serves_the_api_version_of_an_older_kubelet() {
    let served = |all_dra_gates, kubelet| {
        let line = command_line(Component::ApiServer, &paths(), Options { all_dra_gates, kubelet });
        line.into_iter().filter(|argument| argument.starts_with("--runtime-config")).collect::<Vec<_>>()
    };
    assert_eq!(served(false, Kubelet::V1_34), [""; 0]);
    assert_eq!(served(false, Kubelet::V1_32), ["--runtime-config=resource.k8s.io/v1beta1=true"]);
    assert_eq!(served(true, Kubelet::V1_32), ["--runtime-config=api/all=true"]);
}

#[test]
fn containerd_finds_its_programs_and_does_not_use_opt() {
    let config = containerd(Path::new("/cache/bin"), true);
    assert!(config.contains("BinaryName = '/cache/bin/runc'"));
    assert!(config.contains("restrict_oom_score_adj = true"));
    assert!(!config.contains("'/opt"), "{config}");
}

#[test]
fn no_argument_has_a_line_break() {
    for component in Component::ALL {
        let line = command_line(component, &paths(), Options { all_dra_gates: true, ..Options::default() });
        assert!(line.iter().all(|argument| !argument.contains('\n')), "{component}");
    }
}

#[test]
fn capabilities_are_read_from_the_mask() {
    assert!(!has_capability("CapPrm:\t0\nCapEff:\t000001fffeffffff\n", 24));
    assert!(has_capability("CapEff:\t000001ffffffffff\n", 24));
    assert!(!has_capability("nothing", 24));
}
