//! KubeVirt's gRPC services over one [`DomainMutator`].
//!
//! All versions are thin adapters. The mutator reads files, so it runs on a thread for blocking work: `Info`, to which
//! virt-launcher gives one second, never waits for it. A panic fails the one call.

use std::sync::Arc;

use tokio_util::sync::CancellationToken;
use tonic::service::Routes;
use tonic::{Code, Request, Response, Status};

use super::api::hooks_info::info_server::{Info, InfoServer};
use super::api::hooks_info::{HookPoint, InfoParams, InfoResult};
use super::api::plugins_v1alpha1::domain_hook_service_server::{DomainHookService, DomainHookServiceServer};
use super::api::plugins_v1alpha1::{MutateDomainRequest, MutateDomainResponse};
use super::api::{hooks_v1alpha1 as v1alpha1, hooks_v1alpha2 as v1alpha2, hooks_v1alpha3 as v1alpha3};
use super::domain::{HookError, HookOptions, mutate_domain};
use v1alpha1::callbacks_server::CallbacksServer as V1alpha1Server;
use v1alpha2::callbacks_server::CallbacksServer as V1alpha2Server;
use v1alpha3::callbacks_server::CallbacksServer as V1alpha3Server;

use crate::resolve::Resolver;
use crate::vmi::VirtualMachineInstance;

/// The name of the hook in virt-launcher's logs.
const NAME: &str = "drakkar";
/// The kind of domain that `MutateDomain` gets.
const LIBVIRT: &str = "libvirt";

/// Changes a domain. Called more than once per start with its own earlier result, which it must leave as it is.
pub trait DomainMutator: Send + Sync + 'static {
    /// Returns the changed domain. May block.
    fn mutate(&self, vmi_json: &[u8], domain_xml: &[u8]) -> Result<Vec<u8>, MutationError>;
}

/// A domain that could not be changed. virt-launcher shows the text in the condition `Synchronized` of the VMI.
#[derive(Debug, thiserror::Error)]
#[error("{source}")]
pub struct MutationError {
    code: Code,
    source: Box<dyn std::error::Error + Send + Sync>,
}

impl MutationError {
    /// The VMI or the domain cannot be read: the caller is at fault.
    pub fn invalid(source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self { code: Code::InvalidArgument, source: source.into() }
    }

    /// A device cannot be resolved or placed: something outside is missing. virt-launcher calls again.
    pub fn unmet(source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self { code: Code::FailedPrecondition, source: source.into() }
    }
}

/// The hook: [`mutate_domain`] with the files of this container.
#[derive(Debug, Default)]
pub struct Hook {
    resolver: Resolver,
    options: HookOptions,
}

impl Hook {
    /// Creates a hook that reads the files of this resolver.
    #[must_use]
    pub fn new(resolver: Resolver, options: HookOptions) -> Self {
        Self { resolver, options }
    }
}

impl DomainMutator for Hook {
    fn mutate(&self, vmi_json: &[u8], domain_xml: &[u8]) -> Result<Vec<u8>, MutationError> {
        let vmi: VirtualMachineInstance =
            serde_json::from_slice(vmi_json).map_err(|error| MutationError::invalid(format!("VMI: {error}")))?;
        let domain =
            std::str::from_utf8(domain_xml).map_err(|error| MutationError::invalid(format!("domain: {error}")))?;
        match mutate_domain(&vmi, domain, &self.resolver, &self.options) {
            Ok(domain) => Ok(domain.into_owned().into_bytes()),
            Err(error @ HookError::Edit(_)) => Err(MutationError::invalid(error)),
            Err(error) => Err(MutationError::unmet(error)),
        }
    }
}

/// The services of a hook.
#[derive(Clone)]
pub(super) struct Services {
    mutator: Arc<dyn DomainMutator>,
    /// Cancelled when virt-launcher says that the VM has ended.
    ended: CancellationToken,
}

impl Services {
    pub(super) fn new(mutator: Arc<dyn DomainMutator>, ended: CancellationToken) -> Self {
        Self { mutator, ended }
    }

    /// All services: those of a sidecar and that of a plugin.
    pub(super) fn routes(&self) -> Routes {
        Routes::new(InfoServer::new(self.clone()))
            .add_service(V1alpha1Server::new(self.clone()))
            .add_service(V1alpha2Server::new(self.clone()))
            .add_service(V1alpha3Server::new(self.clone()))
            .add_service(DomainHookServiceServer::new(self.clone()))
    }

    async fn mutate(&self, call: &'static str, vmi: Vec<u8>, domain: Vec<u8>) -> Result<Vec<u8>, Status> {
        let mutator = Arc::clone(&self.mutator);
        let outcome = tokio::task::spawn_blocking(move || {
            let changed = mutator.mutate(&vmi, &domain)?;
            Ok::<_, MutationError>((changed != domain, changed))
        });
        match outcome.await {
            Ok(Ok((changed, domain))) => {
                tracing::info!(call, changed, "domain seen");
                Ok(domain)
            }
            Ok(Err(error)) => {
                tracing::error!(call, %error, "domain refused");
                Err(Status::new(error.code, format!("drakkar hook: {error}")))
            }
            Err(error) => {
                tracing::error!(call, %error, "hook panicked");
                Err(Status::internal("drakkar hook: panicked: see the log of its container"))
            }
        }
    }
}

#[tonic::async_trait]
impl Info for Services {
    async fn info(&self, _: Request<InfoParams>) -> Result<Response<InfoResult>, Status> {
        let point = |name: &str| HookPoint { name: name.to_owned(), priority: 0 };
        Ok(Response::new(InfoResult {
            name: NAME.to_owned(),
            // The cloud-init data stay as they are, so virt-launcher need not ask.
            hook_points: vec![point("OnDefineDomain"), point("Shutdown")],
            versions: ["v1alpha3", "v1alpha2", "v1alpha1"].map(str::to_owned).to_vec(),
        }))
    }
}

/// Implements the callbacks of one version, which have the same messages in every version, and more methods.
macro_rules! callbacks {
    ($version:ident { $($more:tt)* }) => {
        #[tonic::async_trait]
        impl $version::callbacks_server::Callbacks for Services {
            async fn on_define_domain(
                &self,
                request: Request<$version::OnDefineDomainParams>,
            ) -> Result<Response<$version::OnDefineDomainResult>, Status> {
                let $version::OnDefineDomainParams { vmi, domain_xml } = request.into_inner();
                let domain_xml = self.mutate("OnDefineDomain", vmi, domain_xml).await?;
                Ok(Response::new($version::OnDefineDomainResult { domain_xml }))
            }

            $($more)*
        }
    };
}

callbacks!(v1alpha1 {});

callbacks!(v1alpha2 {
    async fn pre_cloud_init_iso(
        &self,
        request: Request<v1alpha2::PreCloudInitIsoParams>,
    ) -> Result<Response<v1alpha2::PreCloudInitIsoResult>, Status> {
        let unchanged = request.into_inner();
        Ok(Response::new(v1alpha2::PreCloudInitIsoResult {
            cloud_init_no_cloud_source: unchanged.cloud_init_no_cloud_source,
            cloud_init_data: unchanged.cloud_init_data,
        }))
    }
});

callbacks!(v1alpha3 {
    async fn pre_cloud_init_iso(
        &self,
        request: Request<v1alpha3::PreCloudInitIsoParams>,
    ) -> Result<Response<v1alpha3::PreCloudInitIsoResult>, Status> {
        let unchanged = request.into_inner();
        Ok(Response::new(v1alpha3::PreCloudInitIsoResult {
            cloud_init_no_cloud_source: unchanged.cloud_init_no_cloud_source,
            cloud_init_data: unchanged.cloud_init_data,
        }))
    }

    async fn shutdown(
        &self,
        _: Request<v1alpha3::ShutdownParams>,
    ) -> Result<Response<v1alpha3::ShutdownResult>, Status> {
        // The server lets calls in flight finish, so the answer of this one is sent.
        self.ended.cancel();
        Ok(Response::new(v1alpha3::ShutdownResult {}))
    }
});

#[tonic::async_trait]
impl DomainHookService for Services {
    async fn mutate_domain(
        &self,
        request: Request<MutateDomainRequest>,
    ) -> Result<Response<MutateDomainResponse>, Status> {
        let MutateDomainRequest { domain_type, domain, vmi, .. } = request.into_inner();
        if domain_type != LIBVIRT {
            let text = format!("drakkar hook: domain type {domain_type:?} is not supported, only {LIBVIRT:?}");
            return Err(Status::invalid_argument(text));
        }
        let domain = self.mutate("MutateDomain", vmi, domain).await?;
        Ok(Response::new(MutateDomainResponse { domain }))
    }
}
