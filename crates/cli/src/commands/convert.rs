//! `drakkar convert`: the same metadata in other versions.

use std::io::Read;
use std::path::Path;

use drakkar_metadata::read::MAX_FILE_SIZE;
use drakkar_metadata::{Reader, Versions, decode, encode};

use crate::exit::{Code, Failure};
use crate::output::print_bytes;

pub(crate) fn run(file: &Path, versions: &Versions) -> Result<(), Failure> {
    let bytes = read_input(file)?;
    let decoded =
        decode(&bytes).map_err(|error| Failure::new(Code::Invalid, format!("{}: {error}", file.display())))?;
    Ok(print_bytes(&encode(&decoded.metadata, versions))?)
}

/// The content of a file that was named on the command line, or of standard input for `-`.
pub(crate) fn read_input(file: &Path) -> Result<Vec<u8>, Failure> {
    if file != Path::new("-") {
        return Ok(Reader::new().read_bytes(file)?);
    }
    let mut bytes = Vec::new();
    let refused = |error| Failure::new(Code::Refused, format!("standard input: {error}"));
    std::io::stdin().lock().take(MAX_FILE_SIZE + 1).read_to_end(&mut bytes).map_err(refused)?;
    if bytes.len() as u64 > MAX_FILE_SIZE {
        let limit = MAX_FILE_SIZE / 1024 / 1024;
        return Err(Failure::new(
            Code::Invalid,
            format!("standard input: more than {limit} MiB, which no metadata file has"),
        ));
    }
    Ok(bytes)
}
