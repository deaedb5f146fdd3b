//! RBAC rules, bound to users, groups and service accounts.

/// The subject of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Subject {
    /// A user, by name.
    User(String),
    /// A group, by name.
    Group(String),
    /// A service account.
    ServiceAccount {
        /// Its namespace.
        namespace: String,
        /// Its name.
        name: String,
    },
}

impl Subject {
    fn matches(&self, user: &super::User) -> bool {
        match self {
            Self::User(name) => user.name == *name,
            Self::Group(group) => user.groups.contains(group),
            Self::ServiceAccount { namespace, name } => {
                user.name.strip_prefix("system:serviceaccount:").and_then(|account| account.split_once(':'))
                    == Some((namespace, name))
            }
        }
    }
}

/// A rule that allows verbs on resources.
///
/// Resources are plural names, with a subresource after a slash: `resourceclaims/status`. `*` stands for all resources or all
/// verbs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    resources: Vec<String>,
    verbs: Vec<String>,
    names: Vec<String>,
    namespace: Option<String>,
}

impl Rule {
    /// Allows verbs on resources with any name, in all namespaces.
    pub fn new<'a>(resources: impl IntoIterator<Item = &'a str>, verbs: impl IntoIterator<Item = &'a str>) -> Self {
        let owned = |text: &str| text.to_owned();
        Self {
            resources: resources.into_iter().map(owned).collect(),
            verbs: verbs.into_iter().map(owned).collect(),
            names: Vec::new(),
            namespace: None,
        }
    }

    /// Limits the rule to objects with these names. Requests to list, watch or create have no name, so they never match.
    #[must_use]
    pub fn named<'a>(mut self, names: impl IntoIterator<Item = &'a str>) -> Self {
        self.names = names.into_iter().map(str::to_owned).collect();
        self
    }

    /// Limits the rule to one namespace, as a Role does.
    #[must_use]
    pub fn in_namespace(mut self, namespace: &str) -> Self {
        self.namespace = Some(namespace.to_owned());
        self
    }

    fn allows(&self, request: &Request<'_>) -> bool {
        let has = |list: &[String], wanted: &str| list.iter().any(|item| item == "*" || item == wanted);
        has(&self.verbs, request.verb)
            && has(&self.resources, request.resource)
            && (self.names.is_empty() || request.name.is_some_and(|name| self.names.iter().any(|known| known == name)))
            && self.namespace.as_deref().is_none_or(|namespace| request.namespace == Some(namespace))
    }
}

/// A request, as rules match it.
pub(super) struct Request<'a> {
    pub(super) verb: &'a str,
    /// The resource, and the subresource if any.
    pub(super) resource: &'a str,
    pub(super) namespace: Option<&'a str>,
    pub(super) name: Option<&'a str>,
}

/// The RBAC rules of a server.
///
/// The default has the minimal rules of a DRA driver on a node for all service accounts, and the rules of the scheduler and
/// of admins. Nodes have built-in rules, as in Kubernetes. Tests add and remove rules to see how a driver behaves with other
/// permissions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    bindings: Vec<(Subject, Rule)>,
}

impl Default for Policy {
    fn default() -> Self {
        let drivers = Subject::Group("system:serviceaccounts".to_owned());
        let scheduler = Subject::User("system:kube-scheduler".to_owned());
        let admins = Subject::Group("system:masters".to_owned());
        let read = ["get", "list", "watch"];
        let mut policy = Self::empty().allow(admins, Rule::new(["*"], ["*"]));
        for rule in [
            Rule::new(["resourceclaims", "nodes"], ["get"]),
            Rule::new(["resourceslices"], ["get", "list", "watch", "create", "update", "patch", "delete"]),
            Rule::new(["resourceclaims/status"], ["update", "patch"]),
            Rule::new(["resourceclaims/driver"], ["associated-node:update", "associated-node:patch"]),
        ] {
            policy = policy.allow(drivers.clone(), rule);
        }
        // Including the rules of the resource claim controller, which is part of the scheduler here.
        for rule in [
            Rule::new(["nodes", "namespaces", "deviceclasses", "resourceslices", "resourceclaimtemplates"], read),
            Rule::new(["pods"], ["get", "list", "watch", "delete"]),
            Rule::new(["pods/binding"], ["create"]),
            Rule::new(["pods/status"], ["update", "patch"]),
            Rule::new(["pods/finalizers"], ["update"]),
            Rule::new(["resourceclaims"], ["get", "list", "watch", "create", "update", "patch", "delete"]),
            Rule::new(["resourceclaims/status"], ["get", "list", "watch", "update", "patch"]),
            Rule::new(["resourceclaims/binding"], ["update", "patch"]),
            Rule::new(["events"], ["create", "update", "patch"]),
        ] {
            policy = policy.allow(scheduler.clone(), rule);
        }
        policy
    }
}

impl Policy {
    /// Returns a policy without rules: only the built-in rules for nodes apply.
    pub fn empty() -> Self {
        Self { bindings: Vec::new() }
    }

    /// Adds a rule.
    #[must_use]
    pub fn allow(mut self, subject: Subject, rule: Rule) -> Self {
        self.bindings.push((subject, rule));
        self
    }

    /// Removes all rules of a subject.
    #[must_use]
    pub fn without(mut self, subject: &Subject) -> Self {
        self.bindings.retain(|(bound, _)| bound != subject);
        self
    }

    /// Returns what a user may do in a namespace: verbs, resources and names of each rule.
    pub(crate) fn rules_of<'a>(
        &'a self,
        user: &'a super::User,
        namespace: &'a str,
    ) -> impl Iterator<Item = (&'a [String], &'a [String], &'a [String])> {
        let bound = self.bindings.iter().filter(|(subject, _)| subject.matches(user)).map(|(_, rule)| rule);
        bound
            .filter(move |rule| rule.namespace.as_deref().is_none_or(|own| own == namespace))
            .map(|rule| (&rule.verbs[..], &rule.resources[..], &rule.names[..]))
    }

    pub(super) fn allows(&self, user: &super::User, request: &Request<'_>) -> bool {
        self.bindings.iter().any(|(subject, rule)| subject.matches(user) && rule.allows(request))
    }
}
