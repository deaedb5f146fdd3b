//! `drakkar convert`: converts a metadata file to other versions.

use std::path::Path;

use drakkar_metadata::{Versions, decode, encode};

use super::foreign::Foreign;
use super::input::Input;
use crate::exit::{Code, Failure};
use crate::output::print_bytes;

pub(crate) fn run(input: &Input, file: &Path, versions: &Versions) -> Result<(), Failure> {
    let bytes = input.read(file)?;
    let decoded = decode(&bytes).map_err(|error| {
        let problem = Foreign::find(&bytes).map_or_else(|| error.to_string(), |foreign| foreign.describe());
        Failure::new(Code::Invalid, format!("{}: {problem}", file.display()))
    })?;
    Ok(print_bytes(&encode(&decoded.metadata, versions))?)
}
