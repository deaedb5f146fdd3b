//! The arguments that `drakkar env` and `drakkar exec` share.

use std::time::Duration;

use clap::Args;
use drakkar_metadata::name::syntax::is_c_identifier;

use super::parse_duration;

/// The explanation of the variables in the help of both commands.
pub(super) const VARIABLES: &str = "\
Variables, for claim my-claim and request gpu (N counts its devices from 0):
  DRA_MY_CLAIM_GPU_COUNT          the number of devices of the request
  DRA_MY_CLAIM_GPU_N_DRIVER       and POOL, DEVICE: the device's name
  DRA_MY_CLAIM_GPU_N_PCI_BUS_ID   and MDEV_UUID, under any spelling
  DRA_MY_CLAIM_GPU_N_INTERFACE    and IPS, MAC: the network interface
  DRA_MY_CLAIM_GPU_N_ATTR_MODEL   the attribute model; pciBusID is PCI_BUS_ID,
                                  example.com/model is EXAMPLE_COM_MODEL
A claim from a template has the name of the pod's entry. Letters become upper
case, other characters than letters and digits become _. The elements of a list
are on separate lines. A variable without a value is not set.";

/// The names of variables.
#[derive(Debug, Args)]
pub(crate) struct Variables {
    /// The prefix of the variables' names.
    #[arg(long, default_value = "DRA", value_parser = parse_prefix)]
    pub(crate) prefix: String,
    /// Omit the variables with ATTR in their names.
    #[arg(long)]
    pub(crate) no_attributes: bool,
}

/// What to do if metadata is missing.
#[derive(Debug, Args)]
pub(crate) struct Readiness {
    /// Wait until the drivers have written the metadata, by default for 30s.
    #[arg(long, value_name = "TIMEOUT", num_args = 0..=1, require_equals = true, default_missing_value = "30s")]
    #[arg(value_parser = parse_duration)]
    pub(crate) wait: Option<Duration>,
    /// Missing metadata is not an error: its variables are not set. With --wait, only files that exist and are not
    /// written yet are waited for.
    #[arg(long)]
    pub(crate) optional: bool,
}

fn parse_prefix(text: &str) -> Result<String, String> {
    if is_c_identifier(text) {
        Ok(text.to_owned())
    } else {
        Err("must be letters, digits and _, starting with a letter or _".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_is_a_valid_start_of_a_variables_name() {
        assert!(parse_prefix("GPU_").is_ok());
        for wrong in ["", "1A", "A-B", "A=", "É"] {
            assert!(parse_prefix(wrong).is_err(), "{wrong}");
        }
    }
}
