//! The definition of the command line, from which help, man pages and completions are generated.

#[cfg(feature = "demo")]
mod demo;
mod duration;
mod environment;
#[cfg(feature = "kubevirt")]
pub(crate) mod kubevirt;
#[cfg(feature = "net")]
pub(crate) mod net;
#[cfg(feature = "new")]
pub(crate) mod new;
#[cfg(feature = "operate")]
pub(crate) mod operate;
mod parse;
mod selection;

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Parser, Subcommand, ValueEnum, ValueHint};
use drakkar_metadata::name::DeviceName;
use drakkar_metadata::read::Selection;
use drakkar_metadata::{Version, Versions};

#[cfg(feature = "demo")]
pub(crate) use self::demo::{DemoOptions, SampleKind};
pub(crate) use self::duration::parse_duration;
use self::environment::VARIABLES;
pub(crate) use self::environment::{Readiness, Variables};
#[cfg(feature = "manual")]
pub(crate) use self::parse::definition;
pub(crate) use self::parse::{is_env, parse};
pub(crate) use self::selection::{Request, Target};
use crate::exit;
use crate::output::style;

/// Read the metadata of this container's Kubernetes DRA devices.
///
/// A DRA driver describes each allocated device in a metadata file that is mounted into the container (KEP-5304). These
/// commands find and read the files.
#[derive(Debug, Parser)]
#[command(name = "drakkar", version, max_term_width = 80, styles = style::HELP)]
#[command(after_help = format!("\
Examples:
  drakkar list                            all devices of this container
  drakkar read my-claim/gpu               all metadata of a request
  drakkar get my-claim/gpu pciBusID       one value, for a script
  drakkar wait net/eth --for ips          wait for the network driver
  drakkar watch                           each change, as it happens
  drakkar exec --wait -- ./train          run a program with DRA_* variables

{}", exit::HELP))]
pub(crate) struct Arguments {
    /// Use this root directory instead of /, for example /proc/PID/root for another container. Its path must not have
    /// symbolic links other than those of /proc. For files that are named on the command line it applies to absolute
    /// paths.
    #[arg(long, global = true, value_name = "DIR", env = "DRAKKAR_ROOT", hide_env_values = true)]
    #[arg(value_hint = ValueHint::DirPath, value_parser = clap::builder::OsStringValueParser::new())]
    root: Option<OsString>,

    #[command(subcommand)]
    pub(crate) command: Command,
}

impl Arguments {
    /// Returns the root directory. A variable that is set but empty is ignored.
    pub(crate) fn root(&self) -> PathBuf {
        self.root.clone().filter(|root| !root.is_empty()).map_or(PathBuf::from("/"), PathBuf::from)
    }
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// List the claims, requests and devices of this container.
    #[command(after_help = "\
Examples:
  drakkar list
  drakkar list -o json | jq -r '.[].devices[].name'
  drakkar --root /proc/4711/root list     another container, from the host")]
    List {
        /// The output format.
        #[arg(short, long, value_name = "FORMAT", default_value = "table")]
        output: Output,
    },

    /// Show the metadata of a claim or a request.
    #[command(after_help = "\
Examples:
  drakkar read my-claim                   all requests of the claim
  drakkar read my-claim/gpu
  drakkar read my-claim/gpu -o json
  drakkar read my-claim/gpu/large         one subrequest of the request
  drakkar read resourceclaimtemplates/gpus/gpu
                                          if a claim has the same name")]
    Read {
        #[command(flatten)]
        target: Target,
        /// The output format; json and yaml are metadata documents.
        #[arg(short, long, value_name = "FORMAT", default_value = "table")]
        output: Output,
        /// The version of the document, v1beta1 or v1alpha1; by default that of the file.
        #[arg(long, value_name = "VERSION")]
        to: Option<Version>,
    },

    /// Print the value of an attribute, one line per device and element.
    ///
    /// Without ATTRIBUTE it prints the names to choose from: the requests of a
    /// claim, or the attributes of a request.
    #[command(after_help = "\
ATTRIBUTE is pciBusID or mdevUUID, under any spelling that drivers use;
interfaceName, ips or hardwareAddress; driver, pool or name; or the name of any
attribute, with or without the driver's domain. It is an error if a device of
the request does not have the attribute or, without --raw, if a value contains
a newline or another control character. Nothing is printed then.

Examples:
  drakkar get my-claim/gpu pciBusID
  drakkar get my-claim/gpu example.com/model --device gpu-0
  drakkar get my-claim                    the requests of the claim
  drakkar get my-claim/gpu pciBusID -o json | jq -r '.[0].value'
  for ip in $(drakkar get net/eth ips); do …; done")]
    Get {
        #[command(flatten)]
        target: Target,
        /// The attribute to print.
        attribute: Option<String>,
        /// Print only the value of this device.
        #[arg(long, value_name = "NAME", requires = "attribute")]
        device: Option<DeviceName>,
        /// Print values with control characters too, unchanged.
        #[arg(long)]
        raw: bool,
        /// The output format; json is a list.
        #[arg(short, long, value_name = "FORMAT", default_value = "text")]
        output: LineOutput,
    },

    /// Print the metadata as shell variables.
    #[command(after_help = format!("{VARIABLES}\n\n\
If it fails, it prints a command that fails with the same code, so that the
shell that evaluates the output notices: `eval \"$(drakkar env)\" || exit`.

Examples:
  eval \"$(drakkar env)\" || exit; echo \"$DRA_MY_CLAIM_GPU_0_PCI_BUS_ID\"
  drakkar env --export --wait=1m my-claim/gpu > gpu.sh"))]
    Env {
        #[command(flatten)]
        variables: Variables,
        #[command(flatten)]
        readiness: Readiness,
        /// Print `export NAME=…`.
        #[arg(long)]
        export: bool,
        /// Print only these claims or requests.
        #[arg(value_name = "CLAIM[/REQUEST]")]
        requests: Vec<Selection>,
    },

    /// Run a program with the metadata in its environment.
    #[command(after_help = format!("{VARIABLES}\n\n\
The program replaces drakkar, so it receives signals and sets the exit code. If
it cannot be started, the exit code is 127 (not found), 126 (not executable) or
one of those in `drakkar help`.

Examples:
  drakkar exec -- ./train --epochs 3
  drakkar exec --request my-claim/gpu -- python3 serve.py
  drakkar exec --wait=2m -- ./serve       wait for the network driver first
  drakkar exec --optional -- ./train      in pods with and without devices"))]
    Exec {
        #[command(flatten)]
        variables: Variables,
        #[command(flatten)]
        readiness: Readiness,
        /// Use only this claim or request; can be repeated.
        #[arg(long = "request", value_name = "CLAIM[/REQUEST]")]
        requests: Vec<Selection>,
        /// The program and its arguments.
        #[arg(required = true, trailing_var_arg = true, value_name = "CMD", value_hint = ValueHint::CommandWithArguments)]
        command: Vec<OsString>,
    },

    /// Wait until the metadata of a request is complete.
    #[command(after_help = "\
Waits until every driver of the request has written its file and, with --for,
every device has the attribute. Prints nothing. After a timeout, the exit code
and the message say what is missing.

Examples:
  drakkar wait net/eth
  drakkar wait net/eth --for ips --for interfaceName --timeout 2m && ./serve")]
    Wait {
        #[command(flatten)]
        request: Request,
        /// Wait until every device has this attribute; can be repeated.
        #[arg(long = "for", value_name = "ATTRIBUTE")]
        attributes: Vec<String>,
        /// The timeout, such as 500ms, 1.5s, 1m30s or 1h; 0 checks once.
        #[arg(long, value_name = "TIME", default_value = "30s", value_parser = parse_duration)]
        timeout: Duration,
    },

    /// Print the metadata files, and each change of them as it happens.
    #[command(after_help = "\
Prints what there is as ADDED, then each file that is ADDED, MODIFIED or
DELETED, until it is interrupted or its output is closed. GEN counts the
driver's updates. As JSON, each line is an object with type and object, whose
fields are those of `drakkar list -o json`.

Examples:
  drakkar watch
  drakkar watch net/eth
  drakkar watch -o json | jq -r '.object.devices[].networkData.ips[]'")]
    Watch {
        /// Watch only this claim or request.
        #[arg(value_name = "CLAIM[/REQUEST]")]
        selection: Option<Selection>,
        /// The output format; json prints one object per line.
        #[arg(short, long, value_name = "FORMAT", default_value = "text")]
        output: LineOutput,
    },

    /// Validate metadata files: every document in them, every rule.
    #[command(after_help = "\
Examples:
  drakkar validate metadata.json
  some-generator | drakkar validate -")]
    Validate {
        /// The files; - means standard input.
        #[arg(required = true, value_name = "FILE", value_hint = ValueHint::FilePath)]
        files: Vec<PathBuf>,
    },

    /// Convert a metadata file to other versions.
    #[command(after_help = "\
Reads every version, and two formats that were never released. Writes to
standard output.

Examples:
  drakkar convert old.json --to v1beta1
  drakkar convert metadata.json --to v1beta1,v1alpha1 > both.json")]
    Convert {
        /// The file; - means standard input.
        #[arg(value_hint = ValueHint::FilePath)]
        file: PathBuf,
        /// The versions to write, in this order: v1beta1, v1alpha1.
        #[arg(long, value_name = "VERSION[,VERSION]")]
        to: Versions,
    },

    /// Print the JSON Schema of a metadata document.
    #[command(after_help = "\
Examples:
  drakkar schema v1beta1 > device-metadata.schema.json")]
    Schema {
        /// The version, v1beta1 or v1alpha1.
        version: Version,
    },

    /// Work with the DRA devices of KubeVirt's virtual machines.
    ///
    /// From a VM or VMI and the metadata files in its launcher pod to libvirt's XML, and
    /// what KubeVirt's admission says about it.
    #[cfg(feature = "kubevirt")]
    Kubevirt {
        #[command(subcommand)]
        command: Box<kubevirt::KubevirtCommand>,
    },

    /// Work with the claims of network interfaces, for the driver drakkar-net.
    #[cfg(feature = "net")]
    Net {
        #[command(subcommand)]
        command: net::NetCommand,
    },

    /// Create a new project.
    #[cfg(feature = "new")]
    #[command(subcommand_required = true, arg_required_else_help = true)]
    New {
        #[command(subcommand)]
        command: new::NewCommand,
    },

    /// Check this node: sockets, runtime, files, claims, API server.
    ///
    /// Run it on a node as root, or in the driver's pod. It changes nothing.
    #[cfg(feature = "operate")]
    #[command(after_help = "\
Each finding is ok (✓), a warning (!), an error (✗) or skipped (-), with what to
do about it. docs/doctor.md explains the ids. The exit code is 0 if there is no
error, 1 if there is one, 2 if nothing could be checked.

Examples:
  drakkar doctor
  drakkar doctor --driver gpu.example.com --http-endpoint localhost:9464
  drakkar doctor --host-root /host        in a pod with the host at /host
  drakkar doctor -o json | jq -r '.findings[] | select(.status==\"error\").id'")]
    Doctor(Box<operate::DoctorOptions>),

    /// List what is prepared on this node.
    #[cfg(feature = "operate")]
    Node {
        #[command(subcommand)]
        command: operate::NodeCommand,
    },

    /// Follow a claim from its allocation to the file in the container.
    ///
    /// Across API server, kubelet, driver, CDI spec and running containers; each step with what is missing or differs.
    #[cfg(feature = "operate")]
    #[command(after_help = "\
The exit code is 0 if all steps agree, 1 if one is missing or differs, and 3 if
nobody knows the claim.

Examples:
  drakkar inspect default/my-claim
  drakkar inspect 0d6a3c0e-5c5e-4d53-9d39-0f2f6a1f6a11 --no-api
  drakkar inspect default/my-claim -o json | jq '.steps[]'")]
    Inspect(Box<operate::InspectOptions>),

    /// Run a demo: an embedded node, two drivers, and a pod with their devices.
    ///
    /// Needs no cluster and no root. API server, scheduler, kubelet and container runner are embedded; the drivers are
    /// real processes that use the sockets and files of a real node.
    #[cfg(feature = "demo")]
    #[command(after_help = "\
Examples:
  drakkar demo
  drakkar demo --keep                     keep it running, use kubectl
  drakkar demo --driver ./my-driver       with your own driver
  drakkar demo --runtime crun             run containers with crun or runc

Your own driver gets KUBECONFIG, NODE_NAME, KUBELET_ROOT_DIR and CDI_DIR in its
environment, which the flags of drakkar-plugin read.")]
    Demo(DemoOptions),

    /// Run one of the demo's drivers.
    #[cfg(feature = "demo")]
    #[command(hide = true)]
    SampleDriver {
        /// The driver to run.
        kind: SampleKind,
        /// The number of GPUs.
        #[arg(long, default_value_t = 2)]
        count: u16,
        #[command(flatten)]
        flags: Box<drakkar_plugin::Flags>,
    },

    /// Remove what a killed demo leaves: started by it, with a pipe that closes when it ends.
    #[cfg(feature = "demo")]
    #[command(hide = true)]
    DemoCleanup {
        /// The directory of the demo's node.
        directory: PathBuf,
    },

    /// Print shell completions.
    #[cfg(feature = "manual")]
    #[command(after_help = "\
Examples:
  drakkar completions bash > /etc/bash_completion.d/drakkar
  drakkar completions zsh > \"${fpath[1]}/_drakkar\"")]
    Completions {
        /// The shell.
        shell: clap_complete::Shell,
    },

    /// Print the man page of the command or of one of its subcommands.
    #[cfg(feature = "manual")]
    #[command(after_help = "\
Examples:
  drakkar man get | man -l -
  drakkar man --dir /usr/local/share/man/man1")]
    Man {
        /// The subcommand.
        command: Option<String>,
        /// Write all pages into this directory instead.
        #[arg(long, value_hint = ValueHint::DirPath, conflicts_with = "command")]
        dir: Option<PathBuf>,
    },
}

/// The output format of values and changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum LineOutput {
    Text,
    Json,
}

/// An output format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Output {
    Table,
    Json,
    Yaml,
}
