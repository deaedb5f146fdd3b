//! The identities of clients, and their bearer tokens.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::sync::{Arc, Mutex, PoisonError};

use super::rules::User;

/// The identity of a client. Each has its own opaque bearer token.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Identity {
    /// A member of `system:masters`, which is allowed everything.
    Admin,
    /// The scheduler, which is also the resource claim controller here.
    Scheduler,
    /// The kubelet of a node.
    Node(String),
    /// A driver: a service account whose token is bound to a pod on a node.
    Driver {
        /// Namespace of the service account.
        namespace: String,
        /// Name of the service account.
        service_account: String,
        /// Node of the pod that the token is bound to.
        node_name: String,
    },
    /// A service account whose token is not bound to a node, for example that of a controller.
    ServiceAccount {
        /// Namespace of the service account.
        namespace: String,
        /// Name of the service account.
        name: String,
    },
    /// Any other user.
    User {
        /// Name of the user.
        name: String,
        /// Groups besides `system:authenticated`.
        groups: Vec<String>,
    },
}

impl Identity {
    /// Returns the user name, for example `system:node:worker`.
    pub fn user_name(&self) -> String {
        match self {
            Self::Admin => "kubernetes-admin".to_owned(),
            Self::Scheduler => "system:kube-scheduler".to_owned(),
            Self::Node(node) => format!("system:node:{node}"),
            Self::Driver { namespace, service_account: name, .. } | Self::ServiceAccount { namespace, name } => {
                format!("system:serviceaccount:{namespace}:{name}")
            }
            Self::User { name, .. } => name.clone(),
        }
    }

    fn user(&self) -> User {
        let mut groups = match self {
            Self::Admin => vec!["system:masters".to_owned()],
            Self::Scheduler => Vec::new(),
            Self::Node(_) => vec!["system:nodes".to_owned()],
            Self::Driver { namespace, .. } | Self::ServiceAccount { namespace, .. } => {
                vec!["system:serviceaccounts".to_owned(), format!("system:serviceaccounts:{namespace}")]
            }
            Self::User { groups, .. } => groups.clone(),
        };
        groups.push("system:authenticated".to_owned());
        let mut extra = BTreeMap::new();
        if let Self::Driver { node_name, .. } = self {
            extra.insert("authentication.kubernetes.io/node-name".to_owned(), vec![node_name.clone()]);
        }
        User { name: self.user_name(), groups, extra }
    }
}

/// The issued tokens.
#[derive(Debug, Default)]
pub(crate) struct Tokens {
    tokens: Mutex<TokenMaps>,
}

#[derive(Debug, Default)]
struct TokenMaps {
    by_identity: HashMap<Identity, String>,
    by_token: HashMap<String, Arc<User>>,
}

impl Tokens {
    /// Returns the token of an identity, which is created on first use.
    pub(crate) fn issue(&self, identity: &Identity) -> Result<String, RandomError> {
        let mut maps = self.tokens.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(token) = maps.by_identity.get(identity) {
            return Ok(token.clone());
        }
        let token = hex(&random::<24>()?);
        maps.by_token.insert(token.clone(), Arc::new(identity.user()));
        maps.by_identity.insert(identity.clone(), token.clone());
        Ok(token)
    }

    /// Returns the user of an `Authorization` header.
    pub(crate) fn user(&self, header: &str) -> Option<Arc<User>> {
        let token = header.strip_prefix("Bearer ")?.trim();
        self.tokens.lock().unwrap_or_else(PoisonError::into_inner).by_token.get(token).cloned()
    }
}

/// The random number generator failed.
#[derive(Debug, thiserror::Error)]
#[error("no random bytes from the operating system")]
pub(crate) struct RandomError;

fn random<const N: usize>() -> Result<[u8; N], RandomError> {
    let mut bytes = [0; N];
    match tokio_rustls::rustls::crypto::ring::default_provider().secure_random.fill(&mut bytes) {
        Ok(()) => Ok(bytes),
        Err(_unspecified) => Err(RandomError),
    }
}

/// Returns a suffix for `generateName`: five characters, without vowels so that they form no words.
pub(crate) fn suffix() -> Result<String, RandomError> {
    const ALPHABET: &[u8; 27] = b"bcdfghjklmnpqrstvwxz2456789";
    Ok(random::<5>()?.iter().map(|byte| char::from(ALPHABET[usize::from(*byte) % ALPHABET.len()])).collect())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}
