//! Output to the terminal: safe text and tables.
//!
//! Output is streamed, so that it is never in memory as a whole.

mod cell;
mod safe;
pub(crate) mod table;
#[cfg(any(feature = "demo", feature = "kubevirt", feature = "operate"))]
pub(crate) mod wrap;

use std::io::{self, BufWriter, IsTerminal, Write};

pub(crate) use cell::cell;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use safe::SafeWriter;
#[cfg(feature = "demo")]
pub(crate) use safe::terminal_safe;
use serde::Serialize;

/// The styles of text.
pub(crate) mod style {
    use anstyle::{AnsiColor, Style};
    use clap::builder::Styles;

    /// The colours of help texts, those of cargo.
    pub(crate) const HELP: Styles = Styles::styled()
        .header(AnsiColor::BrightGreen.on_default().bold())
        .usage(AnsiColor::BrightGreen.on_default().bold())
        .literal(AnsiColor::BrightCyan.on_default().bold())
        .placeholder(AnsiColor::Cyan.on_default());

    pub(crate) const HEADER: Style = Style::new().bold();
    pub(crate) const ERROR: Style = AnsiColor::Red.on_default().bold();
    pub(crate) const HINT: Style = AnsiColor::Cyan.on_default();
    #[cfg(feature = "demo")]
    pub(crate) const COMMAND: Style = AnsiColor::Green.on_default().bold();
}

/// Writes to standard output, in colour if it is a terminal with colours. A broken pipe, as with `head`, is not an error.
pub(crate) fn styled(write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> io::Result<()> {
    let mut output = BufWriter::new(anstream::stdout());
    ignore_broken_pipe(write(&mut output).and_then(|()| output.flush()))
}

/// Writes text to standard output, as [`styled`] does.
pub(crate) fn print(text: &str) -> io::Result<()> {
    styled(|output| output.write_all(text.as_bytes()))
}

/// Writes to standard output, byte for byte; to a terminal, with control characters escaped.
pub(crate) fn plain(write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> io::Result<()> {
    let stdout = io::stdout().lock();
    let written = if stdout.is_terminal() {
        let mut output = SafeWriter::new(BufWriter::new(stdout));
        write(&mut output).and_then(|()| output.flush())
    } else {
        let mut output = BufWriter::new(stdout);
        write(&mut output).and_then(|()| output.flush())
    };
    ignore_broken_pipe(written)
}

/// Writes bytes to standard output, as [`plain`] does.
pub(crate) fn print_bytes(bytes: &[u8]) -> io::Result<()> {
    plain(|output| output.write_all(bytes))
}

/// Writes a value as YAML.
pub(crate) fn write_yaml(output: &mut dyn Write, value: &impl Serialize) -> io::Result<()> {
    let mut output = ErrorKeeper { output, failed: None };
    let written = serde_saphyr::to_io_writer(&mut output, value);
    // The library's error does not have the writer's error, which is needed to recognize a broken pipe.
    match (output.failed, written) {
        (Some(error), _) => Err(error),
        (None, written) => written.map_err(io::Error::other),
    }
}

/// A writer that keeps its first error.
struct ErrorKeeper<'a> {
    output: &'a mut dyn Write,
    failed: Option<io::Error>,
}

impl Write for ErrorKeeper<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.output.write(bytes).map_err(|error| {
            let kind = error.kind();
            self.failed.get_or_insert(error);
            kind.into()
        })
    }

    fn flush(&mut self) -> io::Result<()> {
        self.output.flush()
    }
}

/// Reports whether the reader of standard output has closed it.
pub(crate) fn is_closed() -> bool {
    let stdout = io::stdout();
    let mut polled = [PollFd::new(&stdout, PollFlags::empty())];
    let closed = PollFlags::ERR | PollFlags::HUP;
    poll(&mut polled, Some(&Timespec::default())).is_ok() && polled[0].revents().intersects(closed)
}

fn ignore_broken_pipe(outcome: io::Result<()>) -> io::Result<()> {
    match outcome {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        outcome => outcome,
    }
}
