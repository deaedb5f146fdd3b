//! The versions of the file format, and documents of one version.

use std::fmt;
use std::marker::PhantomData;
use std::str::FromStr;

use serde::ser::SerializeStruct;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::lenient;
use crate::object_meta::ObjectMeta;
use crate::types::{DeviceMetadata, Request};

/// The API group of metadata documents.
pub const GROUP: &str = "metadata.resource.k8s.io";

/// The kind of metadata documents.
pub const KIND: &str = "DeviceMetadata";

/// A version of the file format that this crate reads and writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Version {
    /// `metadata.resource.k8s.io/v1alpha1`, which every consumer in existence reads.
    V1Alpha1,
    /// `metadata.resource.k8s.io/v1beta1`, since Kubernetes 1.37.
    V1Beta1,
}

impl Version {
    /// Every version, newest first: the order in which a stream has them by convention.
    pub const ALL: &'static [Self] = &[Self::V1Beta1, Self::V1Alpha1];

    /// The short name, for example `v1beta1`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::V1Alpha1 => "v1alpha1",
            Self::V1Beta1 => "v1beta1",
        }
    }

    /// The `apiVersion` of a document of this version.
    pub const fn api_version(self) -> &'static str {
        match self {
            Self::V1Alpha1 => "metadata.resource.k8s.io/v1alpha1",
            Self::V1Beta1 => "metadata.resource.k8s.io/v1beta1",
        }
    }

    /// The version with this `apiVersion`, if it is one of ours.
    pub fn from_api_version(api_version: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|version| version.api_version() == api_version)
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// A name that is no version of the file format.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum VersionError {
    /// The text names no version.
    #[error("unknown metadata version {0:?}: known are v1beta1 and v1alpha1")]
    Unknown(String),
    /// A version is named twice.
    #[error("metadata version {0} is named twice")]
    Repeated(Version),
    /// No version is named.
    #[error("no metadata version given: name at least one of v1beta1 and v1alpha1")]
    None,
}

impl FromStr for Version {
    type Err = VersionError;

    /// Takes the short name (`v1beta1`) or the whole `apiVersion`.
    fn from_str(text: &str) -> Result<Self, VersionError> {
        Self::ALL
            .iter()
            .copied()
            .find(|version| text == version.as_str() || text == version.api_version())
            .ok_or_else(|| VersionError::Unknown(text.to_owned()))
    }
}

/// The versions of a stream, in the order in which they are written: at least one, none twice.
///
/// ```
/// use drakkar_metadata::{Version, Versions};
///
/// let versions: Versions = "v1beta1,v1alpha1".parse()?;
/// assert_eq!(versions.as_slice(), [Version::V1Beta1, Version::V1Alpha1]);
/// # Ok::<(), drakkar_metadata::VersionError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Versions(Vec<Version>);

impl Versions {
    /// Takes versions in the order in which they are to be written.
    pub fn new(versions: impl IntoIterator<Item = Version>) -> Result<Self, VersionError> {
        let mut list: Vec<Version> = Vec::new();
        for version in versions {
            if list.contains(&version) {
                return Err(VersionError::Repeated(version));
            }
            list.push(version);
        }
        if list.is_empty() { Err(VersionError::None) } else { Ok(Self(list)) }
    }

    /// The versions, in order.
    pub fn as_slice(&self) -> &[Version] {
        &self.0
    }
}

/// `v1alpha1` alone: every consumer in existence reads it.
impl Default for Versions {
    fn default() -> Self {
        Self(vec![Version::V1Alpha1])
    }
}

impl From<Version> for Versions {
    fn from(version: Version) -> Self {
        Self(vec![version])
    }
}

impl FromStr for Versions {
    type Err = VersionError;

    /// Takes a list separated by commas.
    fn from_str(text: &str) -> Result<Self, VersionError> {
        let names = text.split(',').map(str::trim).filter(|name| !name.is_empty());
        Self::new(names.map(str::parse).collect::<Result<Vec<_>, _>>()?)
    }
}

impl fmt::Display for Versions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = self.0.iter().map(|version| version.as_str()).collect();
        f.pad(&names.join(","))
    }
}

/// A version as a type; [`v1alpha1`](crate::v1alpha1) and [`v1beta1`](crate::v1beta1) have the two that there are.
pub trait SchemaVersion: sealed::Sealed {
    /// The version.
    const VERSION: Version;
}

mod sealed {
    pub trait Sealed {}
}

macro_rules! schema_version {
    ($module:ident, $marker:ident, $version:ident, $doc:literal) => {
        #[doc = $doc]
        ///
        /// The two versions have the same schema, so they share the types of what is in them.
        pub mod $module {
            pub use crate::attribute::DeviceAttribute;
            pub use crate::types::{Device, NetworkDeviceData, Request};

            /// The version as a type.
            #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
            pub struct $marker;

            impl super::sealed::Sealed for $marker {}

            impl super::SchemaVersion for $marker {
                const VERSION: super::Version = super::Version::$version;
            }

            /// A document of this version: serialized, it has the version's `kind` and `apiVersion`.
            pub type DeviceMetadata = super::Document<$marker>;
        }
    };
}

schema_version!(v1alpha1, V1Alpha1, V1Alpha1, "`metadata.resource.k8s.io/v1alpha1`.");
schema_version!(v1beta1, V1Beta1, V1Beta1, "`metadata.resource.k8s.io/v1beta1`.");

/// A metadata document of version `V`. It converts from and to the neutral [`DeviceMetadata`], and so to any other
/// version.
///
/// ```
/// use drakkar_metadata::{DeviceMetadata, v1alpha1, v1beta1};
///
/// let old: v1alpha1::DeviceMetadata =
///     serde_json::from_str(r#"{"kind":"DeviceMetadata","apiVersion":"metadata.resource.k8s.io/v1alpha1"}"#)?;
/// let new = v1beta1::DeviceMetadata::from(DeviceMetadata::from(old));
/// assert_eq!(serde_json::to_value(&new)?["apiVersion"], "metadata.resource.k8s.io/v1beta1");
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Document<V> {
    /// See [`DeviceMetadata::metadata`].
    pub metadata: ObjectMeta,
    /// See [`DeviceMetadata::pod_claim_name`].
    pub pod_claim_name: Option<String>,
    /// See [`DeviceMetadata::requests`].
    pub requests: Vec<Request>,
    version: PhantomData<V>,
}

impl<V: SchemaVersion> Document<V> {
    /// The `kind` that the document is written with.
    pub const KIND: &str = KIND;
    /// The `apiVersion` that the document is written with.
    pub const API_VERSION: &str = V::VERSION.api_version();
}

impl<V: SchemaVersion> From<DeviceMetadata> for Document<V> {
    fn from(neutral: DeviceMetadata) -> Self {
        let DeviceMetadata { metadata, pod_claim_name, requests } = neutral;
        Self { metadata, pod_claim_name, requests, version: PhantomData }
    }
}

impl<V: SchemaVersion> From<Document<V>> for DeviceMetadata {
    fn from(document: Document<V>) -> Self {
        let Document { metadata, pod_claim_name, requests, version: _ } = document;
        Self { metadata, pod_claim_name, requests }
    }
}

impl<V: SchemaVersion> Serialize for Document<V> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serialize_document(V::VERSION, &self.metadata, self.pod_claim_name.as_deref(), &self.requests, serializer)
    }
}

/// Demands the version's own `kind` and `apiVersion`. To read whatever version a file has, use [`crate::decode`].
impl<'de, V: SchemaVersion> Deserialize<'de> for Document<V> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let typed = Typed::deserialize(deserializer)?;
        let (kind, api_version) = (typed.kind.as_deref(), typed.api_version.as_deref());
        if kind != Some(KIND) || api_version != Some(Self::API_VERSION) {
            return Err(serde::de::Error::custom(format_args!(
                "expected kind {KIND} of {}, found kind {kind:?} of {api_version:?}",
                Self::API_VERSION
            )));
        }
        Ok(DeviceMetadata::from(typed).into())
    }
}

/// A document as it is read: type and content in one pass.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Typed {
    pub(crate) kind: Option<String>,
    pub(crate) api_version: Option<String>,
    #[serde(default, deserialize_with = "lenient::object")]
    metadata: ObjectMeta,
    pod_claim_name: Option<String>,
    #[serde(default, deserialize_with = "lenient::object_list")]
    requests: Vec<Request>,
}

impl From<Typed> for DeviceMetadata {
    fn from(typed: Typed) -> Self {
        let Typed { kind: _, api_version: _, metadata, pod_claim_name, requests } = typed;
        Self { metadata, pod_claim_name, requests }
    }
}

/// The neutral metadata, written as a document of a version that is chosen at run time.
pub(crate) struct AsVersion<'a>(pub(crate) Version, pub(crate) &'a DeviceMetadata);

impl Serialize for AsVersion<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self(version, neutral) = self;
        serialize_document(
            *version,
            &neutral.metadata,
            neutral.pod_claim_name.as_deref(),
            &neutral.requests,
            serializer,
        )
    }
}

fn serialize_document<S: Serializer>(
    version: Version,
    metadata: &ObjectMeta,
    pod_claim_name: Option<&str>,
    requests: &[Request],
    serializer: S,
) -> Result<S::Ok, S::Error> {
    let mut document = serializer.serialize_struct(KIND, 5)?;
    document.serialize_field("kind", KIND)?;
    document.serialize_field("apiVersion", version.api_version())?;
    document.serialize_field("metadata", metadata)?;
    match pod_claim_name {
        Some(name) => document.serialize_field("podClaimName", name)?,
        None => document.skip_field("podClaimName")?,
    }
    if requests.is_empty() {
        document.skip_field("requests")?;
    } else {
        document.serialize_field("requests", requests)?;
    }
    document.end()
}
