//! For programs in the virtual machine: what they can ask of the host.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Write};
use std::path::Path;

use serde_json::{Value, json};

/// The directory that the host shares.
pub const SHARED_DIRECTORY: &str = "/test";

/// The line from a program in the virtual machine to the host, which executes QMP commands for it: hot-unplugging a device,
/// listing the PCI devices that QEMU has.
#[derive(Debug)]
pub struct Host {
    reader: BufReader<File>,
    writer: File,
}

impl Host {
    /// Opens the line.
    ///
    /// # Errors
    ///
    /// The program does not run in the virtual machine.
    pub fn connect() -> io::Result<Self> {
        let writer = File::options().read(true).write(true).open("/dev/ttyS1")?;
        Ok(Self { reader: BufReader::new(writer.try_clone()?), writer })
    }

    /// Executes a QMP command and returns its result.
    ///
    /// # Errors
    ///
    /// QEMU refuses the command, or the host has gone away.
    pub fn qmp(&mut self, command: &str, arguments: &Value) -> io::Result<Value> {
        let request = format!("{}\n", json!({ "execute": command, "arguments": arguments }));
        self.writer.write_all(request.as_bytes())?;
        let mut line = String::new();
        self.reader.read_line(&mut line)?;
        let answer = fs::read(Path::new(SHARED_DIRECTORY).join(line.trim()))?;
        let mut answer: Value = serde_json::from_slice(&answer)?;
        match answer.get("error") {
            Some(error) => Err(io::Error::other(error.to_string())),
            None => Ok(answer["return"].take()),
        }
    }
}
