//! The declaration of a health monitor.

use std::fmt;
use std::sync::Arc;

use futures::FutureExt as _;
use futures::future::BoxFuture;

use super::HealthReporter;
use crate::call_watch::CallWatch;
use crate::error::BoxError;

type Watch<P> = dyn Fn(Arc<P>, HealthReporter) -> BoxFuture<'static, Result<(), BoxError>> + Send + Sync;

/// A monitor of the health of a driver's devices: a function that reports for as long as its future lives.
///
/// It is started when a kubelet first asks for health, and there is one for all kubelets and versions. If it fails or panics,
/// the health of all devices is unknown, and it is started again after a delay. If it returns `Ok` it has nothing more to
/// report, and is started again when a kubelet asks again.
pub struct HealthMonitor<P>(Box<Watch<P>>);

impl<P> HealthMonitor<P> {
    /// Declares a monitor. The function gets the driver, and the reporter to report with.
    pub fn new<F>(watch: impl Fn(Arc<P>, HealthReporter) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Result<(), BoxError>> + Send + 'static,
    {
        Self(Box::new(move |driver, reports| watch(driver, reports).boxed()))
    }

    /// Returns the monitor of a driver that is shared.
    pub(crate) fn of_shared(self) -> HealthMonitor<Arc<P>>
    where
        P: 'static,
    {
        HealthMonitor(Box::new(move |driver, reports| (self.0)(Arc::unwrap_or_clone(driver), reports)))
    }

    /// Binds the monitor to a driver, whose code is watched for calls that block.
    pub(crate) fn of(
        self,
        driver: Arc<P>,
        calls: Option<CallWatch>,
    ) -> impl Fn(HealthReporter) -> BoxFuture<'static, Result<(), BoxError>> + Send + Sync + 'static
    where
        P: Send + Sync + 'static,
    {
        move |reports| {
            let watch = (self.0)(driver.clone(), reports);
            match calls.clone() {
                Some(calls) => async move { calls.watch("health monitor", watch).await }.boxed(),
                None => watch,
            }
        }
    }
}

impl<P> fmt::Debug for HealthMonitor<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HealthMonitor").finish_non_exhaustive()
    }
}
