//! The served resources and their fixed properties.

/// A resource of the API.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Resource {
    /// `resourceclaims` of `resource.k8s.io`.
    ResourceClaim,
    /// `resourceclaimtemplates` of `resource.k8s.io`.
    ResourceClaimTemplate,
    /// `resourceslices` of `resource.k8s.io`.
    ResourceSlice,
    /// `deviceclasses` of `resource.k8s.io`.
    DeviceClass,
    /// `nodes` of the core group.
    Node,
    /// `pods` of the core group.
    Pod,
    /// `namespaces` of the core group.
    Namespace,
    /// `events` of the core group and of `events.k8s.io`: the same objects.
    Event,
}

/// The group of claims, templates, slices and classes.
pub(crate) const DRA_GROUP: &str = "resource.k8s.io";

impl Resource {
    pub(crate) const ALL: [Self; 8] = [
        Self::ResourceClaim,
        Self::ResourceClaimTemplate,
        Self::ResourceSlice,
        Self::DeviceClass,
        Self::Node,
        Self::Pod,
        Self::Namespace,
        Self::Event,
    ];

    pub(crate) fn plural(self) -> &'static str {
        match self {
            Self::ResourceClaim => "resourceclaims",
            Self::ResourceClaimTemplate => "resourceclaimtemplates",
            Self::ResourceSlice => "resourceslices",
            Self::DeviceClass => "deviceclasses",
            Self::Node => "nodes",
            Self::Pod => "pods",
            Self::Namespace => "namespaces",
            Self::Event => "events",
        }
    }

    pub(crate) fn singular(self) -> &'static str {
        match self {
            Self::ResourceClaim => "resourceclaim",
            Self::ResourceClaimTemplate => "resourceclaimtemplate",
            Self::ResourceSlice => "resourceslice",
            Self::DeviceClass => "deviceclass",
            Self::Node => "node",
            Self::Pod => "pod",
            Self::Namespace => "namespace",
            Self::Event => "event",
        }
    }

    pub(crate) fn short_names(self) -> &'static [&'static str] {
        match self {
            Self::Node => &["no"],
            Self::Pod => &["po"],
            Self::Namespace => &["ns"],
            Self::Event => &["ev"],
            _ => &[],
        }
    }

    pub(crate) fn kind(self) -> &'static str {
        match self {
            Self::ResourceClaim => "ResourceClaim",
            Self::ResourceClaimTemplate => "ResourceClaimTemplate",
            Self::ResourceSlice => "ResourceSlice",
            Self::DeviceClass => "DeviceClass",
            Self::Node => "Node",
            Self::Pod => "Pod",
            Self::Namespace => "Namespace",
            Self::Event => "Event",
        }
    }

    /// The API group of stored objects; empty for the core group.
    pub(crate) fn group(self) -> &'static str {
        match self {
            Self::ResourceClaim | Self::ResourceClaimTemplate | Self::ResourceSlice | Self::DeviceClass => DRA_GROUP,
            Self::Node | Self::Pod | Self::Namespace | Self::Event => "",
        }
    }

    pub(crate) fn namespaced(self) -> bool {
        matches!(self, Self::ResourceClaim | Self::ResourceClaimTemplate | Self::Pod | Self::Event)
    }

    pub(crate) fn has_status(self) -> bool {
        matches!(self, Self::ResourceClaim | Self::Node | Self::Pod | Self::Namespace)
    }

    /// Whether `metadata.generation` is set and incremented by changes of the spec.
    pub(crate) fn has_generation(self) -> bool {
        matches!(self, Self::ResourceSlice | Self::DeviceClass | Self::Pod)
    }

    /// Whether a DELETE that removes an object returns the object rather than a Status.
    pub(crate) fn returns_deleted(self) -> bool {
        !matches!(self, Self::Node | Self::Event)
    }

    /// `resourceclaims.resource.k8s.io`, or `pods`.
    pub(crate) fn qualified(self) -> String {
        qualify(self.plural(), self.group())
    }

    /// `ResourceClaim.resource.k8s.io`, or `Pod`.
    pub(crate) fn qualified_kind(self) -> String {
        qualify(self.kind(), self.group())
    }

    pub(crate) fn from_plural(group: &str, plural: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|resource| {
            resource.plural() == plural
                && (resource.group() == group || (*resource == Self::Event && group == "events.k8s.io"))
        })
    }
}

fn qualify(name: &str, group: &str) -> String {
    if group.is_empty() { name.to_owned() } else { format!("{name}.{group}") }
}
