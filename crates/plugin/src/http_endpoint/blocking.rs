//! Work that reads files or takes milliseconds: one piece at a time, beside the thread that answers probes.

use std::fmt::Display;
use std::sync::Arc;

use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};
use tokio::sync::Mutex;

/// Runs one piece of work at a time. Clones share that limit.
#[derive(Debug, Clone, Default)]
pub(super) struct BlockingWork(Arc<Mutex<()>>);

impl BlockingWork {
    /// Runs work on a blocking thread. Waits for work of other requests first, and goes on if the client disconnects.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        what: &'static str,
        work: impl FnOnce() -> Result<T, std::fmt::Error> + Send + 'static,
    ) -> Result<T, Response> {
        let guard = self.0.clone().lock_owned().await;
        let work = move || {
            let outcome = work();
            drop(guard);
            outcome
        };
        match tokio::task::spawn_blocking(work).await {
            Ok(Ok(outcome)) => Ok(outcome),
            Ok(Err(error)) => Err(failed(what, &error)),
            // A panic: of a driver's own collector, for example.
            Err(error) => Err(failed(what, &error)),
        }
    }
}

fn failed(what: &str, error: &dyn Display) -> Response {
    tracing::error!(%error, what, "http endpoint: rendering a page failed");
    (StatusCode::INTERNAL_SERVER_ERROR, format!("{what} failed: see the log\n")).into_response()
}
