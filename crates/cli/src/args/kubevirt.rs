//! The command line of `drakkar kubevirt`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum, ValueHint};
use drakkar_kubevirt::{Behaviour, Gate};

/// The subcommands of `drakkar kubevirt`.
#[derive(Debug, Subcommand)]
pub(crate) enum KubevirtCommand {
    /// Explain what becomes of a VM's devices: claim, file, device, XML.
    ///
    /// Shows for each device which claim it comes from, which file describes it, and which XML it becomes; or what is
    /// missing and what to do. Without the files, in a checkout for example, it stops at what the documents say.
    #[command(after_help = "\
FILE can have several documents. Claims and claim templates among them are
checked with the VM.

Examples:
  drakkar kubevirt explain vmi.yaml
  kubectl get vmi train -o yaml | drakkar kubevirt explain -
  drakkar --root /proc/4711/root kubevirt explain vmi.yaml
                                          for a launcher, from its node")]
    Explain {
        #[command(flatten)]
        document: Document,
        #[command(flatten)]
        cluster: ClusterOptions,
        #[command(flatten)]
        resolution: Resolution,
    },

    /// Write the claims for a VM that names a device class per device.
    ///
    /// A device with a deviceClassName gets a claim template, an entry in resourceClaims, and the names of claim and
    /// request. Claims and VM are written to standard output, for kubectl apply.
    #[command(after_help = "\
In the document, instead of claimName and requestName:
  gpus:
  - name: g0
    deviceClassName: gpu.example.com
    deviceSelector: device.attributes[\"gpu.example.com\"].model == \"a100\"
The selector is optional. KubeVirt knows neither field; both are replaced.

Examples:
  drakkar kubevirt claims vm.yaml | kubectl apply -f -
  drakkar kubevirt claims vm.yaml --persistent
                                          the same devices after a restart
  drakkar kubevirt claims vm.yaml --one-claim --same numaNode")]
    Claims {
        #[command(flatten)]
        document: Document,
        /// Request all devices in one claim, instead of a claim for each.
        #[arg(long)]
        one_claim: bool,
        /// Write claims that outlive the VM's pods instead of templates: a restarted VM gets the same devices, on the same
        /// node.
        #[arg(long)]
        persistent: bool,
        /// Require the same value of this attribute for all devices, such as numaNode or pcieRoot; can be repeated.
        #[arg(long, value_name = "ATTRIBUTE", requires = "one_claim")]
        same: Vec<String>,
    },

    /// Validate virtual machines as KubeVirt's admission does.
    #[command(after_help = "\
Prints one line for each cause: field, reason, message. Warnings are about what
KubeVirt admits and what fails later.

Examples:
  drakkar kubevirt validate vmi.yaml
  drakkar kubevirt validate vm.yaml --feature-gate NetworkDevicesWithDRA
  drakkar kubevirt validate vm.yaml --kubevirt kubevirt.yaml
                                          with the gates of a cluster")]
    Validate {
        /// The files; - means standard input.
        #[arg(required = true, value_name = "FILE", value_hint = ValueHint::FilePath)]
        files: Vec<PathBuf>,
        #[command(flatten)]
        cluster: ClusterOptions,
    },

    /// Print the claims and resources of a VM's launcher pod.
    #[command(after_help = "\
Examples:
  drakkar kubevirt render vmi.yaml
  drakkar kubevirt render vmi.yaml -o json | jq .resourceClaims")]
    Render {
        #[command(flatten)]
        document: Document,
        #[command(flatten)]
        gates: GateOptions,
        /// The output format.
        #[arg(short, long, value_name = "FORMAT", default_value = "yaml")]
        output: Structured,
    },

    /// Resolve the devices of a VM to addresses, from the metadata files.
    #[command(after_help = "\
Examples:
  drakkar kubevirt resolve vmi.yaml       in a launcher
  drakkar --root DIR kubevirt resolve vmi.yaml -o json")]
    Resolve {
        #[command(flatten)]
        document: Document,
        #[command(flatten)]
        resolution: Resolution,
        #[command(flatten)]
        strictness: Strictness,
        /// The output format.
        #[arg(short, long, value_name = "FORMAT", default_value = "table")]
        output: super::Output,
    },

    /// Print the hostdev elements of a VM, or a domain with them.
    #[command(after_help = "\
Devices of device plugins come from the environment (PCI_RESOURCE_…,
MDEV_PCI_RESOURCE_…, USB_RESOURCE_…), as in a launcher.

Examples:
  drakkar kubevirt domain-xml vmi.yaml    in a launcher
  drakkar kubevirt domain-xml vmi.yaml --domain domain.xml
  drakkar kubevirt domain-xml vmi.yaml --strict-kubevirt
                                          byte for byte as KubeVirt 1.9")]
    DomainXml {
        #[command(flatten)]
        document: Document,
        #[command(flatten)]
        cluster: ClusterOptions,
        #[command(flatten)]
        resolution: Resolution,
        /// Print this domain with the devices in it.
        #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
        domain: Option<PathBuf>,
        /// Read NUMA nodes and devices below this directory instead of /sys.
        #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
        sysfs: Option<PathBuf>,
    },

    /// Check whether KubeVirt can use the metadata files of a driver.
    ///
    /// For authors of drivers, in whatever language: reads files that the driver wrote and says what KubeVirt makes of
    /// them, or why it cannot.
    #[command(after_help = "\
Examples:
  drakkar kubevirt check metadata.json
  drakkar kubevirt check --driver gpu.example.com
                                          all files in this container")]
    Check {
        /// The files; - means standard input. Without any, all metadata files of this container.
        #[arg(value_name = "FILE", value_hint = ValueHint::FilePath)]
        files: Vec<PathBuf>,
        /// Check only the files of this driver.
        #[arg(long, value_name = "NAME", conflicts_with = "files")]
        driver: Option<drakkar_metadata::name::DriverName>,
    },

    /// Serve the admission webhook: checks VMs, completes launcher pods.
    ///
    /// POST /validate checks VMs and their instances, and warns about what fails later. POST /mutate-pods
    /// gives the hook's container in a launcher pod its claims.
    #[cfg(feature = "kubevirt-services")]
    #[command(after_help = "\
The certificate, the key and the KubeVirt object are read again when they
change. Without --kubevirt and --feature-gate, a VM that needs a feature gate
gets a warning and is not refused.

Examples:
  drakkar kubevirt webhook --tls-cert tls.crt --tls-key tls.key
  drakkar kubevirt webhook --tls-cert t.crt --tls-key t.key --kubevirt kv.yaml
                                          with the gates of a cluster")]
    Webhook(WebhookOptions),

    /// Serve the hook that completes a VM's domain.
    ///
    /// Runs as a hook sidecar or as a domain hook of a plugin, and does what KubeVirt 1.9 cannot: several devices per
    /// request, NUMA placement by metadata, PCI devices beside plugins.
    #[cfg(feature = "kubevirt-services")]
    #[command(after_help = "\
Examples:
  drakkar kubevirt hook
  drakkar kubevirt hook --socket /var/run/kubevirt-plugin/drakkar/hook.sock")]
    Hook(HookOptions),
}

/// The document of a virtual machine.
#[derive(Debug, Args)]
pub(crate) struct Document {
    /// The file with the VM or VMI; - means standard input.
    #[arg(value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) file: PathBuf,
}

/// What a cluster's configuration decides, and how closely KubeVirt is followed.
#[derive(Debug, Clone, Args)]
pub(crate) struct ClusterOptions {
    #[command(flatten)]
    pub(crate) gates: GateOptions,
    #[command(flatten)]
    pub(crate) strictness: Strictness,
}

/// What a cluster's configuration decides.
#[derive(Debug, Clone, Args)]
pub(crate) struct GateOptions {
    /// Use the feature gates and permitted devices of this KubeVirt object (kubectl get kubevirt -o yaml).
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) kubevirt: Option<PathBuf>,
    /// Turn a feature gate on; can be repeated. The defaults are those of KubeVirt 1.9.
    #[arg(long = "feature-gate", value_name = "GATE")]
    pub(crate) enabled: Vec<Gate>,
    /// Turn a feature gate off; can be repeated.
    #[arg(long = "disable-feature-gate", value_name = "GATE")]
    pub(crate) disabled: Vec<Gate>,
}

/// Whether released KubeVirt is followed where it fails.
#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct Strictness {
    /// Behave as KubeVirt 1.9, including its limitations. Messages have other words.
    #[arg(long = "strict-kubevirt")]
    strict: bool,
}

impl From<Strictness> for Behaviour {
    fn from(strictness: Strictness) -> Self {
        if strictness.strict { Self::Strict } else { Self::Extended }
    }
}

/// How metadata files are found.
#[derive(Debug, Args)]
pub(crate) struct Resolution {
    /// The layout of the files in the container.
    #[arg(long, value_name = "LAYOUT", default_value = "released")]
    pub(crate) layout: LayoutName,
}

/// A layout of metadata files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum LayoutName {
    /// As Kubernetes 1.37 writes it and KubeVirt reads it from 1.8.3 on.
    Released,
    /// As KEP-5304 describes it, and KubeVirt 1.8.0 to 1.8.2 read it.
    Kep,
    /// As VEP 10 describes it.
    Vep10,
}

/// A format for structured output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Structured {
    /// YAML.
    Yaml,
    /// JSON.
    Json,
}

/// The options of the webhook.
#[cfg(feature = "kubevirt-services")]
#[derive(Debug, Args)]
pub(crate) struct WebhookOptions {
    /// The address to listen on.
    #[arg(long, value_name = "ADDRESS", default_value = "0.0.0.0:9443")]
    pub(crate) listen: std::net::SocketAddr,
    /// The certificate, in PEM.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) tls_cert: PathBuf,
    /// The private key, in PEM.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) tls_key: PathBuf,
    #[command(flatten)]
    pub(crate) cluster: ClusterOptions,
}

/// The options of the hook.
#[cfg(feature = "kubevirt-services")]
#[derive(Debug, Args)]
pub(crate) struct HookOptions {
    /// Serve on this unix socket; can be repeated. The default is that of a hook sidecar, in /var/run/kubevirt-hooks.
    #[arg(long, value_name = "PATH", value_hint = ValueHint::FilePath)]
    pub(crate) socket: Vec<PathBuf>,
    /// Read the NUMA nodes of devices below this directory instead of /sys.
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub(crate) sysfs: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) resolution: Resolution,
}
