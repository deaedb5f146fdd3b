//! Errors that no call of the kubelet can be answered with, on their way to the driver.
//!
//! Every part that works in the background reports to one sink. The sink exists before the driver does, because the handles
//! that the driver is made with need it: until the driver is attached, errors are kept and then delivered in their order.

use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, PoisonError};

use drakkar_metadata::show::Printable;

use crate::error::BoxError;
use crate::metrics::{Metrics, Severity};
use crate::recent_errors::RecentErrors;

/// An error that no call of the kubelet can be answered with.
#[derive(Debug, thiserror::Error)]
#[error("{what}: {}", Printable::whole(source.to_string()))]
pub struct BackgroundError {
    what: &'static str,
    source: BoxError,
    is_fatal: bool,
}

impl BackgroundError {
    /// An error that is retried, or that the driver can live with.
    pub(crate) fn recoverable(what: &'static str, source: impl Into<BoxError>) -> Self {
        Self { what, source: source.into(), is_fatal: false }
    }

    /// An error after which the driver no longer serves the kubelet.
    pub(crate) fn fatal(what: &'static str, source: impl Into<BoxError>) -> Self {
        Self { what, source: source.into(), is_fatal: true }
    }

    /// Returns whether the driver no longer serves the kubelet, and should end so that it is started again.
    pub fn is_fatal(&self) -> bool {
        self.is_fatal
    }
}

/// Reports an error to the driver.
pub(crate) type Background = Arc<dyn Fn(BackgroundError) + Send + Sync>;

/// Where background errors go: to the driver, once there is one.
pub(crate) struct ErrorSink {
    metrics: Metrics,
    recent: RecentErrors,
    receiver: Mutex<Receiver>,
}

enum Receiver {
    /// The driver is not there yet.
    Pending(Vec<BackgroundError>),
    Driver(Arc<dyn Fn(&BackgroundError) + Send + Sync>),
}

impl ErrorSink {
    pub(crate) fn new(metrics: Metrics, recent: RecentErrors) -> Arc<Self> {
        Arc::new(Self { metrics, recent, receiver: Mutex::new(Receiver::Pending(Vec::new())) })
    }

    /// Returns the function that reports to this sink.
    pub(crate) fn reporter(self: &Arc<Self>) -> Background {
        let sink = self.clone();
        Arc::new(move |error| sink.report(error))
    }

    /// Delivers what was reported so far to the driver, and from now on everything at once.
    pub(crate) fn attach(&self, handle_error: impl Fn(&BackgroundError) + Send + Sync + 'static) {
        let deliver: Arc<dyn Fn(&BackgroundError) + Send + Sync> = Arc::new(move |error| {
            if std::panic::catch_unwind(AssertUnwindSafe(|| handle_error(error))).is_err() {
                tracing::error!(%error, "driver panicked in handle_error");
            }
        });
        let pending = std::mem::replace(&mut *self.lock(), Receiver::Driver(deliver.clone()));
        if let Receiver::Pending(errors) = pending {
            errors.iter().for_each(|error| deliver(error));
        }
    }

    fn report(&self, error: BackgroundError) {
        self.metrics.background_error(if error.is_fatal() { Severity::Fatal } else { Severity::Recoverable });
        self.recent.add(error.what, None, &error.source);
        let driver = match &mut *self.lock() {
            Receiver::Pending(errors) => return errors.push(error),
            Receiver::Driver(driver) => driver.clone(),
        };
        // Not under the lock: a driver may do something that reports an error itself.
        driver(&error);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Receiver> {
        self.receiver.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a handler that records errors, and panics at some, and its records.
    fn handler() -> (impl Fn(&BackgroundError) + Send + Sync, Arc<Mutex<Vec<String>>>) {
        let errors: Arc<Mutex<Vec<String>>> = Arc::default();
        let records = errors.clone();
        let handle = move |error: &BackgroundError| {
            errors.lock().unwrap_or_else(PoisonError::into_inner).push(error.to_string());
            assert!(!error.to_string().contains("panic"));
        };
        (handle, records)
    }

    #[test]
    fn errors_that_are_reported_before_the_driver_exists_reach_it_first_and_in_order() {
        let sink = ErrorSink::new(Metrics::new(&"gpu.example.com".parse().unwrap()), RecentErrors::default());
        let report = sink.reporter();
        report(BackgroundError::recoverable("publish resources", "one"));
        report(BackgroundError::recoverable("publish resources", "two"));
        let (handle, errors) = handler();
        sink.attach(handle);
        report(BackgroundError::fatal("serve the kubelet", "three"));
        let expected = ["publish resources: one", "publish resources: two", "serve the kubelet: three"];
        assert_eq!(*errors.lock().unwrap(), expected);
    }

    #[test]
    fn a_driver_that_panics_in_its_handler_gets_the_next_error_too() {
        let sink = ErrorSink::new(Metrics::new(&"gpu.example.com".parse().unwrap()), RecentErrors::default());
        let (handle, errors) = handler();
        sink.attach(handle);
        sink.report(BackgroundError::recoverable("test", "panic"));
        sink.report(BackgroundError::recoverable("test", "next"));
        assert_eq!(*errors.lock().unwrap(), ["test: panic", "test: next"]);
    }
}
