//! QEMU's machine protocol: one JSON document on each line, answers in the order of the commands, events in between.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use serde_json::{Value, json};

use crate::error::{Error, IoContext, Result};

/// How long QEMU may take for an answer or an awaited event. On a loaded machine, saving the memory takes seconds.
const LIMIT: Duration = Duration::from_secs(180);

/// A connection to QEMU.
#[derive(Debug)]
pub(crate) struct Qmp {
    reader: BufReader<UnixStream>,
    writer: UnixStream,
    events: VecDeque<Value>,
}

impl Qmp {
    /// Takes the greeting of QEMU and leaves its negotiation mode.
    pub(crate) fn new(stream: UnixStream) -> Result<Self> {
        stream.set_read_timeout(Some(LIMIT)).with_context(|| "set the limit of QMP".to_owned())?;
        let writer = stream.try_clone().with_context(|| "clone the connection to QEMU".to_owned())?;
        let mut qmp = Self { reader: BufReader::new(stream), writer, events: VecDeque::new() };
        qmp.receive()?;
        qmp.execute("qmp_capabilities", Value::Null)?;
        Ok(qmp)
    }

    /// Executes a command and returns its result.
    pub(crate) fn execute(&mut self, command: &str, arguments: Value) -> Result<Value> {
        let mut message = json!({ "execute": command });
        if !arguments.is_null() {
            message["arguments"] = arguments;
        }
        let message = format!("{message}\n");
        self.writer.write_all(message.as_bytes()).with_context(|| format!("send `{command}` to QEMU"))?;
        loop {
            let mut received = self.receive()?;
            if let Some(result) = received.get_mut("return") {
                return Ok(result.take());
            }
            if let Some(error) = received.get("error") {
                return Err(Error::Refused {
                    command: command.to_owned(),
                    error: error["desc"].as_str().unwrap_or("no description").to_owned(),
                });
            }
            self.events.push_back(received);
        }
    }

    /// Waits for an event with this name that a condition accepts; earlier events are dropped.
    pub(crate) fn wait_for(&mut self, event: &str, mut accept: impl FnMut(&Value) -> Result<bool>) -> Result<()> {
        loop {
            let received = match self.events.pop_front() {
                Some(received) => received,
                None => self.receive()?,
            };
            if received["event"] == event && accept(&received["data"])? {
                return Ok(());
            }
        }
    }

    fn receive(&mut self) -> Result<Value> {
        let mut line = String::new();
        let read = self.reader.read_line(&mut line).with_context(|| "read from QEMU".to_owned())?;
        if read == 0 {
            return Err(Error::Refused { command: "read".to_owned(), error: "the connection is closed".to_owned() });
        }
        serde_json::from_str(&line)
            .map_err(|error| Error::Format { path: "QMP".to_owned(), reason: format!("{error} in {line}") })
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn events_between_command_and_answer_are_kept() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let qemu = thread::spawn(move || {
            let mut reader = BufReader::new(theirs.try_clone().unwrap());
            let mut writer = theirs;
            let mut line = String::new();
            writer.write_all(b"{\"QMP\": {}}\n").unwrap();
            reader.read_line(&mut line).unwrap();
            writer.write_all(b"{\"return\": {}}\n").unwrap();
            reader.read_line(&mut line).unwrap();
            writer.write_all(b"{\"event\": \"STOP\"}\n{\"return\": {\"running\": true}}\n").unwrap();
            reader.read_line(&mut line).unwrap();
            writer.write_all(b"{\"error\": {\"desc\": \"no such device\"}}\n").unwrap();
            line
        });
        let mut qmp = Qmp::new(ours).unwrap();
        assert_eq!(qmp.execute("query-status", Value::Null).unwrap()["running"], true);
        qmp.wait_for("STOP", |_| Ok(true)).unwrap();
        let error = qmp.execute("device_del", json!({ "id": "x" })).unwrap_err().to_string();
        assert_eq!(error, "QEMU refused `device_del`: no such device");
        assert!(qemu.join().unwrap().contains(r#""arguments":{"id":"x"}"#));
    }
}
