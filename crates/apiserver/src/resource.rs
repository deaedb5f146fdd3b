//! The served resources and their fixed properties.

/// A resource of the API.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
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
    /// `configmaps` of the core group.
    ConfigMap,
    /// `services` of the core group. Nothing implements them: there is no network to route.
    Service,
    /// `leases` of `coordination.k8s.io`.
    Lease,
}

/// The group of claims, templates, slices and classes.
pub(crate) const DRA_GROUP: &str = "resource.k8s.io";
/// The second group of events.
pub(crate) const EVENTS_GROUP: &str = "events.k8s.io";
/// The group of leases.
pub(crate) const COORDINATION_GROUP: &str = "coordination.k8s.io";

/// The names of a resource.
struct Names {
    group: &'static str,
    kind: &'static str,
    singular: &'static str,
    plural: &'static str,
    short: &'static [&'static str],
}

impl Resource {
    pub(crate) const ALL: [Self; 11] = [
        Self::ResourceClaim,
        Self::ResourceClaimTemplate,
        Self::ResourceSlice,
        Self::DeviceClass,
        Self::Node,
        Self::Pod,
        Self::Namespace,
        Self::Event,
        Self::ConfigMap,
        Self::Service,
        Self::Lease,
    ];

    #[rustfmt::skip]
    fn names(self) -> Names {
        let names = |group, kind, singular, plural, short| Names { group, kind, singular, plural, short };
        match self {
            Self::ResourceClaim => names(DRA_GROUP, "ResourceClaim", "resourceclaim", "resourceclaims", &[]),
            Self::ResourceClaimTemplate => {
                names(DRA_GROUP, "ResourceClaimTemplate", "resourceclaimtemplate", "resourceclaimtemplates", &[])
            }
            Self::ResourceSlice => names(DRA_GROUP, "ResourceSlice", "resourceslice", "resourceslices", &[]),
            Self::DeviceClass => names(DRA_GROUP, "DeviceClass", "deviceclass", "deviceclasses", &[]),
            Self::Node => names("", "Node", "node", "nodes", &["no"]),
            Self::Pod => names("", "Pod", "pod", "pods", &["po"]),
            Self::Namespace => names("", "Namespace", "namespace", "namespaces", &["ns"]),
            Self::Event => names("", "Event", "event", "events", &["ev"]),
            Self::ConfigMap => names("", "ConfigMap", "configmap", "configmaps", &["cm"]),
            Self::Service => names("", "Service", "service", "services", &["svc"]),
            Self::Lease => names(COORDINATION_GROUP, "Lease", "lease", "leases", &[]),
        }
    }

    pub(crate) fn plural(self) -> &'static str {
        self.names().plural
    }

    pub(crate) fn singular(self) -> &'static str {
        self.names().singular
    }

    pub(crate) fn short_names(self) -> &'static [&'static str] {
        self.names().short
    }

    /// The groups of resources that `kubectl` knows by one name.
    pub(crate) fn categories(self) -> &'static [&'static str] {
        match self {
            Self::Pod | Self::Service => &["all"],
            _ => &[],
        }
    }

    pub(crate) fn kind(self) -> &'static str {
        self.names().kind
    }

    /// What its objects are, in a sentence.
    pub(crate) fn description(self) -> &'static str {
        match self {
            Self::ResourceClaim => "A ResourceClaim is a request for devices, and what was allocated for it.",
            Self::ResourceClaimTemplate => "A ResourceClaimTemplate is the pattern of claims that are made for pods.",
            Self::ResourceSlice => "A ResourceSlice has devices of a pool that a driver publishes.",
            Self::DeviceClass => "A DeviceClass has selectors and configuration for requests that refer to it.",
            Self::Node => "A Node is a machine that runs pods.",
            Self::Pod => "A Pod is a group of containers that run on one node.",
            Self::Namespace => "A Namespace is a scope for the names of objects.",
            Self::Event => "An Event is a report of something that happened to an object.",
            Self::ConfigMap => "A ConfigMap has values for pods to use.",
            Self::Service => "A Service is a name for pods that are reached over a network.",
            Self::Lease => "A Lease says who holds something, and until when.",
        }
    }

    /// The API group of stored objects; empty for the core group.
    pub(crate) fn group(self) -> &'static str {
        self.names().group
    }

    pub(crate) fn namespaced(self) -> bool {
        matches!(
            self,
            Self::ResourceClaim
                | Self::ResourceClaimTemplate
                | Self::Pod
                | Self::Event
                | Self::ConfigMap
                | Self::Service
                | Self::Lease
        )
    }

    pub(crate) fn has_status(self) -> bool {
        matches!(self, Self::ResourceClaim | Self::Node | Self::Pod | Self::Namespace | Self::Service)
    }

    /// Whether `metadata.generation` is set and incremented by changes of the spec.
    pub(crate) fn has_generation(self) -> bool {
        matches!(self, Self::ResourceSlice | Self::DeviceClass | Self::Pod)
    }

    /// Whether a PUT of an object that does not exist creates it.
    pub(crate) fn is_created_by_update(self) -> bool {
        matches!(self, Self::Event | Self::Lease)
    }

    /// Whether a DELETE that removes an object returns the object rather than a Status.
    pub(crate) fn returns_deleted(self) -> bool {
        !matches!(self, Self::Node | Self::Event | Self::ConfigMap | Self::Lease)
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
        Self::of_group(group).find(|resource| resource.plural() == plural)
    }

    /// Returns the resources of a group.
    pub(crate) fn of_group(group: &str) -> impl Iterator<Item = Self> {
        Self::ALL
            .into_iter()
            .filter(move |resource| resource.group() == group || (*resource == Self::Event && group == EVENTS_GROUP))
    }
}

fn qualify(name: &str, group: &str) -> String {
    if group.is_empty() { name.to_owned() } else { format!("{name}.{group}") }
}
