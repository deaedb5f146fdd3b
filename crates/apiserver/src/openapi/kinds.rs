//! The Rust types of resources.

use drakkar_client::DraVersion;
use k8s_openapi::api::{coordination, core, events, resource};
use serde::de::DeserializeOwned;

use crate::resource::Resource;
use crate::version::Version;

/// The type of a resource's objects.
#[cfg(feature = "descriptions")]
pub(super) trait Kind: DeserializeOwned + k8s_openapi::Resource + k8s_openapi::schemars::JsonSchema {}
#[cfg(feature = "descriptions")]
impl<T: DeserializeOwned + k8s_openapi::Resource + k8s_openapi::schemars::JsonSchema> Kind for T {}

/// The type of a resource's objects.
#[cfg(not(feature = "descriptions"))]
pub(super) trait Kind: DeserializeOwned + k8s_openapi::Resource {}
#[cfg(not(feature = "descriptions"))]
impl<T: DeserializeOwned + k8s_openapi::Resource> Kind for T {}

/// Does something with a type.
pub(super) trait Visitor {
    fn visit<T: Kind>(&mut self);
}

/// Visits the type of a resource.
pub(super) fn visit(version: Version, resource: Resource, visitor: &mut impl Visitor) {
    /// The four types of a version of `resource.k8s.io`.
    macro_rules! dra {
        ($version:ident) => {
            match resource {
                Resource::ResourceClaim => visitor.visit::<resource::$version::ResourceClaim>(),
                Resource::ResourceClaimTemplate => visitor.visit::<resource::$version::ResourceClaimTemplate>(),
                Resource::ResourceSlice => visitor.visit::<resource::$version::ResourceSlice>(),
                _ => visitor.visit::<resource::$version::DeviceClass>(),
            }
        };
    }
    match (version, resource) {
        (Version::Dra(DraVersion::V1beta1), _) => dra!(v1beta1),
        (Version::Dra(DraVersion::V1beta2), _) => dra!(v1beta2),
        (Version::Dra(_), _) => dra!(v1),
        (Version::Events, _) => visitor.visit::<events::v1::Event>(),
        (Version::Coordination, _) => visitor.visit::<coordination::v1::Lease>(),
        (Version::Core, Resource::Node) => visitor.visit::<core::v1::Node>(),
        (Version::Core, Resource::Namespace) => visitor.visit::<core::v1::Namespace>(),
        (Version::Core, Resource::Event) => visitor.visit::<core::v1::Event>(),
        (Version::Core, Resource::ConfigMap) => visitor.visit::<core::v1::ConfigMap>(),
        (Version::Core, Resource::Service) => visitor.visit::<core::v1::Service>(),
        (Version::Core, _) => visitor.visit::<core::v1::Pod>(),
    }
}
