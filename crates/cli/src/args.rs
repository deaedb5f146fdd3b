//! What can be said on the command line; help, man pages and completions are made from it.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum, ValueHint};
use drakkar_metadata::name::{DeviceName, DriverName};
use drakkar_metadata::{Query, Version, Versions};

use crate::exit;

/// What this container knows of the devices it got from Kubernetes DRA.
///
/// A DRA driver describes each device in a metadata file that is mounted into the container (KEP-5304). These
/// commands find the files and read them.
#[derive(Debug, Parser)]
#[command(name = "drakkar", version, max_term_width = 80, subcommand_required = true, arg_required_else_help = true)]
#[command(after_help = format!("\
Examples:
  drakkar list                            what this container has
  drakkar read my-claim/gpu               all about one request
  drakkar get my-claim/gpu pciBusID       one value, for a script
  drakkar wait net/eth --for ips          until the network driver has delivered
  drakkar exec -- ./train                 a program with it all in its environment

{}", exit::HELP))]
pub(crate) struct Arguments {
    /// Look below this directory instead of /, for example /proc/PID/root for another container. Its path must have no
    /// symbolic links, but for those of /proc. The files of validate and convert are looked for there too if their
    /// paths are absolute.
    #[arg(long, global = true, value_name = "DIR", env = "DRAKKAR_ROOT", hide_env_values = true)]
    #[arg(value_hint = ValueHint::DirPath, value_parser = clap::builder::OsStringValueParser::new())]
    root: Option<OsString>,

    #[command(subcommand)]
    pub(crate) command: Command,
}

impl Arguments {
    /// The directory to look below. A variable that is set but empty says nothing.
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
        /// How to show it.
        #[arg(short, long, value_name = "FORMAT", default_value = "table")]
        output: Output,
    },

    /// Show all about one request.
    #[command(after_help = "\
Examples:
  drakkar read my-claim/gpu
  drakkar read my-claim/gpu -o json
  drakkar read my-claim/gpu/large         one alternative of the request
  drakkar read resourceclaimtemplates/gpus/gpu
                                          where a claim has the same name")]
    Read {
        #[command(flatten)]
        request: Request,
        /// How to show it; json and yaml are metadata documents.
        #[arg(short, long, value_name = "FORMAT", default_value = "table")]
        output: Output,
        /// The version of the document, v1beta1 or v1alpha1; if not given, the one that was read.
        #[arg(long, value_name = "VERSION")]
        to: Option<Version>,
    },

    /// Print the value of one attribute, a line for each device and element.
    #[command(after_help = "\
ATTRIBUTE is pciBusID or mdevUUID, whatever spelling the driver has for them;
interfaceName, ips or hardwareAddress; driver, pool or name; or the name of any
attribute, with or without the driver's domain. Unless every device of the
request has it, nothing is printed; nor if a value has a newline or another
control character in it, unless --raw is given.

Examples:
  drakkar get my-claim/gpu pciBusID
  drakkar get my-claim/gpu example.com/model --device gpu-0
  for ip in $(drakkar get net/eth ips); do …; done")]
    Get {
        #[command(flatten)]
        request: Request,
        /// Which attribute.
        attribute: String,
        /// Only of the device of this name.
        #[arg(long, value_name = "NAME")]
        device: Option<DeviceName>,
        /// Print values with control characters too, as they are.
        #[arg(long)]
        raw: bool,
    },

    /// Print shell assignments of all there is.
    #[command(after_help = format!("{VARIABLES}\n\n\
Examples:
  eval \"$(drakkar env)\"; echo \"$DRA_MY_CLAIM_GPU_0_PCI_BUS_ID\"
  drakkar env --export my-claim/gpu > gpu.sh"))]
    Env {
        #[command(flatten)]
        variables: Variables,
        /// Write `export NAME=…`.
        #[arg(long)]
        export: bool,
        /// Only these requests.
        #[arg(value_name = "CLAIM/REQUEST")]
        requests: Vec<Query>,
    },

    /// Run a program with all there is in its environment.
    #[command(after_help = format!("{VARIABLES}\n\n\
The program takes the place of drakkar: signals and the exit code are its own.
Before it is started, drakkar ends with its own exit codes (see `drakkar help`),
with 127 if the program is not there, and with 126 if it cannot be run.

Examples:
  drakkar exec -- ./train --epochs 3
  drakkar exec --request my-claim/gpu -- python3 serve.py"))]
    Exec {
        #[command(flatten)]
        variables: Variables,
        /// Only this request; can be given several times.
        #[arg(long = "request", value_name = "CLAIM/REQUEST")]
        requests: Vec<Query>,
        /// The program and its arguments.
        #[arg(required = true, trailing_var_arg = true, value_name = "CMD", value_hint = ValueHint::CommandWithArguments)]
        command: Vec<OsString>,
    },

    /// Wait until the metadata of a request is there.
    #[command(after_help = "\
Waits until every driver of the request has written its file and, with --for,
every device has the attribute. Prints nothing. When time runs out, the exit
code tells what was missing.

Examples:
  drakkar wait net/eth
  drakkar wait net/eth --for ips --for interfaceName --timeout 2m && ./serve")]
    Wait {
        #[command(flatten)]
        request: Request,
        /// Until every device has this attribute; can be given several times.
        #[arg(long = "for", value_name = "ATTRIBUTE")]
        attributes: Vec<String>,
        /// How long to wait: 500ms, 30s, 5m, 1h; 0 looks once.
        #[arg(long, value_name = "TIME", default_value = "30s", value_parser = parse_duration)]
        timeout: Duration,
    },

    /// Check metadata files: every document in them, every rule.
    #[command(after_help = "\
Examples:
  drakkar validate metadata.json
  some-generator | drakkar validate -")]
    Validate {
        /// The files; - is standard input.
        #[arg(required = true, value_name = "FILE", value_hint = ValueHint::FilePath)]
        files: Vec<PathBuf>,
    },

    /// Rewrite a metadata file in other versions.
    #[command(after_help = "\
Reads every version and the two formats that were never released; writes to
standard output.

Examples:
  drakkar convert old.json --to v1beta1
  drakkar convert metadata.json --to v1beta1,v1alpha1 > both.json")]
    Convert {
        /// The file; - is standard input.
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
        /// v1beta1 or v1alpha1.
        version: Version,
    },

    /// Show what this is about: a node in one process, two drivers, and a pod that gets devices from them.
    ///
    /// Needs no cluster and no root. API server, scheduler, kubelet and containers are embedded; the drivers are real
    /// processes that talk to them over the sockets and files of a real node.
    #[cfg(feature = "demo")]
    #[command(after_help = "\
Examples:
  drakkar demo
  drakkar demo --keep                     and look around with kubectl
  drakkar demo --driver ./my-driver       with a driver of your own
  drakkar demo --runtime crun             containers made by crun or runc

A driver of your own is told of the node by KUBECONFIG, NODE_NAME,
KUBELET_ROOT_DIR and CDI_DIR, which the flags of drakkar-plugin read.")]
    Demo(DemoOptions),

    /// Run one of the demo's drivers.
    #[cfg(feature = "demo")]
    #[command(hide = true)]
    SampleDriver {
        /// Which.
        kind: SampleKind,
        /// The number of GPUs.
        #[arg(long, default_value_t = 2)]
        count: u16,
        #[command(flatten)]
        flags: Box<drakkar_plugin::Flags>,
    },

    /// Print shell completions.
    #[cfg(feature = "manual")]
    #[command(after_help = "\
Examples:
  drakkar completions bash > /etc/bash_completion.d/drakkar
  drakkar completions zsh > \"${fpath[1]}/_drakkar\"")]
    Completions {
        /// For which shell.
        shell: clap_complete::Shell,
    },

    /// Print the man page of the command or of one of its subcommands.
    #[cfg(feature = "manual")]
    #[command(after_help = "\
Examples:
  drakkar man get | man -l -
  drakkar man --dir /usr/local/share/man/man1")]
    Man {
        /// Of which subcommand.
        command: Option<String>,
        /// Write all pages into this directory instead.
        #[arg(long, value_hint = ValueHint::DirPath, conflicts_with = "command")]
        dir: Option<PathBuf>,
    },
}

/// Which request.
#[derive(Debug, Args)]
pub(crate) struct Request {
    /// The claim, by its own name or the name of the pod's entry for it, and the request.
    #[arg(value_name = "CLAIM/REQUEST")]
    query: Query,
    /// Only what this driver wrote.
    #[arg(long, value_name = "NAME")]
    driver: Option<DriverName>,
}

impl Request {
    pub(crate) fn into_query(self) -> Query {
        match self.driver {
            None => self.query,
            Some(driver) => self.query.with_driver(driver),
        }
    }
}

/// How variables are named.
#[derive(Debug, Args)]
pub(crate) struct Variables {
    /// What their names begin with.
    #[arg(long, default_value = "DRA", value_parser = parse_prefix)]
    pub(crate) prefix: String,
    /// Leave out the variables with ATTR in their names.
    #[arg(long)]
    pub(crate) no_attributes: bool,
}

/// How to show something.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Output {
    Table,
    Json,
    Yaml,
}

const VARIABLES: &str = "\
Variables, for claim my-claim and request gpu (N counts its devices from 0):
  DRA_MY_CLAIM_GPU_COUNT          how many devices the request has
  DRA_MY_CLAIM_GPU_N_DRIVER       and POOL, DEVICE: which device it is
  DRA_MY_CLAIM_GPU_N_PCI_BUS_ID   and MDEV_UUID, under whatever spelling
  DRA_MY_CLAIM_GPU_N_INTERFACE    and IPS, MAC: the network interface
  DRA_MY_CLAIM_GPU_N_ATTR_MODEL   the attribute model; pciBusID is PCI_BUS_ID,
                                  example.com/model is EXAMPLE_COM_MODEL
A claim from a template goes by the name of the pod's entry. Letters become
upper case, all that is neither letter nor digit becomes _. The elements of a
list are lines. What does not exist is not set.";

/// A number and a unit, or a number of seconds.
fn parse_duration(text: &str) -> Result<Duration, String> {
    let error = || "not a time: write 500ms, 30s, 5m or 1h".to_owned();
    let unit_at = text.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(text.len());
    let (number, unit) = text.split_at(unit_at);
    let number: u64 = number.parse().ok().ok_or_else(error)?;
    let milliseconds = match unit {
        "ms" => 1,
        "" | "s" => 1000,
        "m" => 60_000,
        "h" => 3_600_000,
        _ => return Err(error()),
    };
    number.checked_mul(milliseconds).map(Duration::from_millis).ok_or_else(error)
}

fn parse_prefix(text: &str) -> Result<String, String> {
    let word = text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    let letter = text.bytes().next().is_some_and(|byte| byte.is_ascii_alphabetic() || byte == b'_');
    if word && letter {
        Ok(text.to_owned())
    } else {
        Err("a variable's name begins with a letter or _ and goes on with letters, digits and _".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_definition_of_the_command_line_is_sound() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn times_are_numbers_with_units() {
        assert_eq!(parse_duration("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(parse_duration("30"), Ok(Duration::from_secs(30)));
        assert_eq!(parse_duration("30s"), Ok(Duration::from_secs(30)));
        assert_eq!(parse_duration("5m"), Ok(Duration::from_secs(300)));
        assert_eq!(parse_duration("1h"), Ok(Duration::from_secs(3600)));
        for wrong in ["", "s", "-1s", "1.5s", "1 s", "1d", "99999999999999999999h", "18446744073709551615h"] {
            assert!(parse_duration(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_prefix_is_the_beginning_of_a_variable() {
        assert!(parse_prefix("GPU_").is_ok());
        for wrong in ["", "1A", "A-B", "A=", "É"] {
            assert!(parse_prefix(wrong).is_err(), "{wrong}");
        }
    }
}

/// How the demo is to be.
#[cfg(feature = "demo")]
#[derive(Debug, Args)]
pub(crate) struct DemoOptions {
    /// Leave it running at the end, to look around.
    #[arg(long)]
    pub(crate) keep: bool,
    /// Run this driver in place of the two samples: a command for sh.
    #[arg(long, value_name = "COMMAND")]
    pub(crate) driver: Option<String>,
    /// Run containers with this OCI runtime: runc, crun or a path; it needs root. With "none" they are not run, and what they
    /// would be given is shown.
    #[arg(long, value_name = "NAME")]
    pub(crate) runtime: Option<String>,
}

/// The demo's drivers.
#[cfg(feature = "demo")]
#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum SampleKind {
    /// GPUs, whose metadata is there when a claim is prepared.
    Gpu,
    /// Network interfaces, whose metadata comes later.
    Net,
}
