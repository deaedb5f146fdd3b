//! The hook: changes a libvirt domain before virt-launcher defines it, where released KubeVirt cannot use a DRA device.
//!
//! | module | owns |
//! |---|---|
//! | [`annotation`] | the VMI annotations that name devices for the hook alone |
//! | [`launcher_pod`] | which containers of a launcher pod get which claims, so that the hook sees the metadata files |
//! | `domain` ([`mutate_domain`]) | the change of the domain, as a pure function of the VMI, the domain and the files |
//! | [`api`] | KubeVirt's gRPC messages, generated |
//! | `service`, `server`, `socket` | the gRPC services on unix sockets, until virt-launcher says that the VM has ended |
//!
//! One program serves hook sidecars (`Info` and `Callbacks` v1alpha1 to v1alpha3) and KubeVirt's plugins
//! (`DomainHookService`). virt-launcher defines a domain up to three times per start and gives the hook its own earlier
//! result, with the addresses that libvirt assigned: applying the hook to its result changes nothing.

pub mod annotation;
#[cfg(feature = "hook")]
pub mod api;
mod domain;
pub mod launcher_pod;
#[cfg(feature = "webhook")]
mod pod_review;
#[cfg(feature = "hook")]
mod server;
#[cfg(feature = "hook")]
mod service;
#[cfg(feature = "hook")]
mod socket;

pub use annotation::{AnnotatedDevice, AnnotationError, DeviceKind, annotated_devices};
pub use domain::{HookError, HookOptions, mutate_domain};
pub use launcher_pod::{LauncherPodError, PatchOperation, mutate_launcher_pod};
#[cfg(feature = "webhook")]
pub use pod_review::{BadPodReview, review_launcher_pod};
#[cfg(feature = "hook")]
pub use server::{HookServer, ServeError, sidecar_socket};
#[cfg(feature = "hook")]
pub use service::{DomainMutator, Hook, MutationError};
#[cfg(feature = "hook")]
pub use socket::SocketError;
