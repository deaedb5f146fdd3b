//! The API server that a client talks to, as it appears in errors and logs.

use std::fmt;
use std::sync::Arc;

/// The API server of a client. Its URL is known for clients of [`DraClient::connect`](crate::DraClient::connect).
///
/// Displayed as `the API server https://10.0.0.1:6443`, or without the URL.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Server(Option<Arc<str>>);

impl Server {
    /// Returns the URL, if it is known.
    pub fn url(&self) -> Option<&str> {
        self.0.as_deref()
    }
}

impl From<&http::Uri> for Server {
    fn from(url: &http::Uri) -> Self {
        Self(Some(url.to_string().trim_end_matches('/').into()))
    }
}

impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the API server")?;
        self.url().map_or(Ok(()), |url| write!(f, " {url}"))
    }
}
