//! `drakkar convert`: converts a metadata file to other versions.

use std::path::Path;

use drakkar_metadata::{Versions, decode, encode};

use super::input::Input;
use crate::exit::{Code, Failure};
use crate::output::print_bytes;

pub(crate) fn run(input: &Input, file: &Path, versions: &Versions) -> Result<(), Failure> {
    let bytes = input.read(file)?;
    let decoded =
        decode(&bytes).map_err(|error| Failure::new(Code::Invalid, format!("{}: {error}", file.display())))?;
    Ok(print_bytes(&encode(&decoded.metadata, versions))?)
}
