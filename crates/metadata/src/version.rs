//! The versions of the file format, and documents of one version.

use std::fmt;
use std::marker::PhantomData;
use std::str::FromStr;

use serde::ser::SerializeStruct;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::lenient;
use crate::object_meta::ObjectMeta;
use crate::types::{Metadata, Request};

/// The API group of metadata documents.
pub const GROUP: &str = "metadata.resource.k8s.io";

/// The kind of metadata documents.
pub const KIND: &str = "DeviceMetadata";

/// A version of the file format that this crate reads and writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Version {
    /// `metadata.resource.k8s.io/v1alpha1`, which every known consumer reads.
    V1Alpha1,
    /// `metadata.resource.k8s.io/v1beta1`, since Kubernetes 1.37.
    V1Beta1,
}

impl Version {
    /// All versions, newest first, which is the conventional order in a stream.
    pub const ALL: &'static [Self] = &[Self::V1Beta1, Self::V1Alpha1];

    /// Returns the short name, for example `v1beta1`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::V1Alpha1 => "v1alpha1",
            Self::V1Beta1 => "v1beta1",
        }
    }

    /// Returns the `apiVersion` of a document of this version.
    pub const fn api_version(self) -> &'static str {
        match self {
            Self::V1Alpha1 => "metadata.resource.k8s.io/v1alpha1",
            Self::V1Beta1 => "metadata.resource.k8s.io/v1beta1",
        }
    }

    /// Returns the version with this `apiVersion`, or `None` if it is unknown.
    pub fn from_api_version(api_version: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|version| version.api_version() == api_version)
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// An invalid version, or list of versions, of the file format.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum VersionError {
    /// The version is unknown.
    #[error("unknown metadata version {0:?}: known are v1beta1 and v1alpha1")]
    Unknown(String),
    /// The list has a version twice.
    #[error("metadata version {0} is named twice")]
    Repeated(Version),
    /// The list is empty.
    #[error("no metadata version given: name at least one of v1beta1 and v1alpha1")]
    None,
}

impl FromStr for Version {
    type Err = VersionError;

    /// Parses the short name (`v1beta1`) or the `apiVersion`.
    fn from_str(text: &str) -> Result<Self, VersionError> {
        Self::ALL
            .iter()
            .copied()
            .find(|version| text == version.as_str() || text == version.api_version())
            .ok_or_else(|| VersionError::Unknown(text.to_owned()))
    }
}

/// The versions of the documents in a stream, in order: at least one, no duplicates.
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
    /// Creates a list of versions, in the order of the stream.
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

    /// Returns the versions in order.
    pub fn as_slice(&self) -> &[Version] {
        &self.0
    }
}

/// `v1alpha1` alone, because every known consumer reads it.
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

    /// Parses a list separated by commas.
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

/// A version as a type: [`v1alpha1`](crate::v1alpha1) or [`v1beta1`](crate::v1beta1).
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
        /// Both versions have the same schema, so they share the types of their content.
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

/// A metadata document of version `V`.
///
/// It converts from and to the version-neutral [`Metadata`], and thereby to any other version.
///
/// ```
/// use drakkar_metadata::{Metadata, v1alpha1, v1beta1};
///
/// let old: v1alpha1::DeviceMetadata =
///     serde_json::from_str(r#"{"kind":"DeviceMetadata","apiVersion":"metadata.resource.k8s.io/v1alpha1"}"#)?;
/// let new = v1beta1::DeviceMetadata::from(Metadata::from(old));
/// assert_eq!(serde_json::to_value(&new)?["apiVersion"], "metadata.resource.k8s.io/v1beta1");
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Document<V> {
    /// See [`Metadata::metadata`].
    pub metadata: ObjectMeta,
    /// See [`Metadata::pod_claim_name`].
    pub pod_claim_name: Option<String>,
    /// See [`Metadata::requests`].
    pub requests: Vec<Request>,
    version: PhantomData<V>,
}

impl<V: SchemaVersion> Document<V> {
    /// The `kind` that the document is written with.
    pub const KIND: &str = KIND;
    /// The `apiVersion` that the document is written with.
    pub const API_VERSION: &str = V::VERSION.api_version();
}

impl<V: SchemaVersion> From<Metadata> for Document<V> {
    fn from(neutral: Metadata) -> Self {
        let Metadata { metadata, pod_claim_name, requests } = neutral;
        Self { metadata, pod_claim_name, requests, version: PhantomData }
    }
}

impl<V: SchemaVersion> From<Document<V>> for Metadata {
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

/// Deserializes a document of exactly this version. [`crate::decode`] accepts a file of any known version.
impl<'de, V: SchemaVersion> Deserialize<'de> for Document<V> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let typed = Typed::deserialize(deserializer)?;
        let kind = typed.kind.as_deref();
        let api_version = typed.api_version.as_deref();
        if kind != Some(KIND) || api_version != Some(Self::API_VERSION) {
            return Err(serde::de::Error::custom(format_args!(
                "expected kind {KIND} of {}, found kind {kind:?} of {api_version:?}",
                Self::API_VERSION
            )));
        }
        Ok(Metadata::from(typed).into())
    }
}

/// A document's `kind`, `apiVersion` and content, deserialized in one pass.
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

impl From<Typed> for Metadata {
    fn from(typed: Typed) -> Self {
        let Typed { kind: _, api_version: _, metadata, pod_claim_name, requests } = typed;
        Self { metadata, pod_claim_name, requests }
    }
}

/// Serializes metadata as a document of a version that is chosen at run time.
pub(crate) struct AsVersion<'a>(pub(crate) Version, pub(crate) &'a Metadata);

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
