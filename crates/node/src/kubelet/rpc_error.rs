//! The text of a failed call, in the kubelet's events and in its log.

use std::error::Error as _;
use std::fmt;
use std::io;

use drakkar_client::io_cause;
use tonic::Status;

/// Formats a failed call in the words of gRPC for Go, as a kubelet's events have them: code and description. The errors of the
/// libraries below are left out, except for the cause of a lost connection.
pub(super) struct RpcError<'a>(pub(super) &'a Status);

impl fmt::Display for RpcError<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(status) = self;
        write!(f, "rpc error: code = {:?} desc = ", status.code())?;
        match status.source().and_then(io_cause) {
            Some(cause) => write!(f, "the connection was lost: {}", plain(cause)),
            None => f.write_str(status.message()),
        }
    }
}

/// Returns the text of an I/O error without its number, as `connection refused`.
pub(super) fn plain(error: &io::Error) -> String {
    let text = error.to_string();
    let text = text.split(" (os error ").next().unwrap_or_default();
    let mut characters = text.chars();
    characters.next().map_or_else(String::new, |first| first.to_lowercase().chain(characters).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_call_has_code_and_cause_and_no_names_of_libraries() {
        let broken = io::Error::from(rustix::io::Errno::PIPE);
        let lost = Status::from_error(Box::new(io::Error::other(broken)));
        assert_eq!(
            RpcError(&lost).to_string(),
            "rpc error: code = Unknown desc = the connection was lost: broken pipe"
        );
        let refused = Status::unavailable("connect to /run/dra.sock: connection refused");
        assert_eq!(
            RpcError(&refused).to_string(),
            "rpc error: code = Unavailable desc = connect to /run/dra.sock: connection refused"
        );
    }
}
