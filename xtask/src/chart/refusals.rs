//! Values that the chart must refuse, and what its message says.

/// Wrong values, as `--set-json` takes them.
pub(super) struct Refusal {
    pub(super) values: &'static str,
    /// A part of the message.
    pub(super) message: &'static str,
}

const fn refusal(values: &'static str, message: &'static str) -> Refusal {
    Refusal { values, message }
}

pub(super) const REFUSALS: [Refusal; 20] = [
    refusal("net={}", "no driver is enabled"),
    refusal(r#"net={"enabled":true}"#, "net.image.repository is not set"),
    refusal(r#"nett={"enabled":true}"#, "additional properties 'nett' not allowed"),
    refusal(r#"net={"enabled":"yes"}"#, "at '/net/enabled': got string, want boolean"),
    refusal(r#"net={"image":{"repo":"r"}}"#, "additional properties 'repo' not allowed"),
    refusal(
        r#"net={"config":{"kind":"DriverConfig","apiVersion":"pci.drakkar.dev/v1alpha1"}}"#,
        "at '/net/config/apiVersion'",
    ),
    refusal(r#"net={"http":{"port":0}}"#, "at '/net/http/port'"),
    // There is one instance of these per node.
    refusal(r#"net={"maxSurge":1}"#, "additional properties 'maxSurge' not allowed"),
    refusal(r#"pci={"maxUnavailable":0}"#, "at '/pci/maxUnavailable'"),
    refusal(r#"node={"nriDirectory":"var/run/nri"}"#, "at '/node/nriDirectory'"),
    refusal(r#"pci={"log":{"format":"xml"}}"#, "at '/pci/log/format'"),
    refusal(r#"extraDrivers={"gpu":{"image":{"repository":"r"}}}"#, "missing property 'driverName'"),
    refusal(r#"extraDrivers={"net":{"driverName":"a.b","image":{"repository":"r"}}}"#, "invalid propertyName 'net'"),
    refusal(
        r#"pci={"enabled":true,"image":{"repository":"r"},"http":{"address":"127.0.0.1"}}"#,
        "pci.http.address is 127.0.0.1, where the kubelet's probes do not reach the pod",
    ),
    refusal(
        r#"net={"enabled":true,"image":{"repository":"r"}},monitoring={"podMonitor":{"enabled":true}}"#,
        "net.http.address is 127.0.0.1, where Prometheus does not reach it",
    ),
    refusal(
        r#"extraDrivers={"gpu":{"driverName":"gpu.example.com","image":{"repository":"r"},"hostNetwork":true}}"#,
        "extraDrivers.gpu has hostNetwork and surge",
    ),
    // Two drivers of one name would take each other's claims and slices.
    refusal(
        r#"extraDrivers={"a":{"driverName":"gpu.example.com","image":{"repository":"r"}},"b":{"driverName":"gpu.example.com","image":{"repository":"r"},"deviceClasses":[]}}"#,
        "extraDrivers.b has the driver gpu.example.com, and so has extraDrivers.a",
    ),
    refusal(
        r#"net={"enabled":true,"image":{"repository":"r"}},extraDrivers={"a":{"driverName":"net.drakkar.dev","image":{"repository":"r"}}}"#,
        "extraDrivers.a has the driver net.drakkar.dev, and so has net",
    ),
    refusal(
        r#"extraDrivers={"a":{"driverName":"a.example.com","image":{"repository":"r"},"deviceClasses":[{"name":"gpu"},{"name":"gpu"}]}}"#,
        "extraDrivers.a has the DeviceClass gpu, and so has extraDrivers.a",
    ),
    // The names of both would be cut to the same, and with them their accounts and policies.
    refusal(
        r#"fullnameOverride="a-name-of-49-characters-with-which-names-get-long",extraDrivers={"accelerators-1":{"driverName":"a.example.com","image":{"repository":"r"}},"accelerators-2":{"driverName":"b.example.com","image":{"repository":"r"}}}"#,
        "extraDrivers.accelerators-2 has objects named a-name-of-49-characters-with-which-names-get-long-accelerators",
    ),
];
