//! Who a client is, and the tokens that prove it.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::sync::{Arc, Mutex, PoisonError};

use super::rules::User;

/// Who a client is. Every identity has an opaque bearer token of its own, made when it is first asked for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Identity {
    /// A member of `system:masters`: may do everything.
    Admin,
    /// The scheduler, which here is the claim controller too.
    Scheduler,
    /// The kubelet of a node.
    Node(String),
    /// A driver: a service account whose token is bound to a pod on a node.
    Driver {
        /// Namespace of the service account.
        namespace: String,
        /// Name of the service account.
        service_account: String,
        /// The node of the pod that the token is bound to.
        node_name: String,
    },
    /// A service account whose token tells no node, for example that of a controller.
    ServiceAccount {
        /// Namespace of the service account.
        namespace: String,
        /// Its name.
        name: String,
    },
    /// Anyone else.
    User {
        /// Name of the user.
        name: String,
        /// Groups besides `system:authenticated`.
        groups: Vec<String>,
    },
}

impl Identity {
    /// The name by which the server knows it.
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

/// The tokens that were given out.
#[derive(Debug, Default)]
pub(crate) struct Tokens {
    tokens: Mutex<Both>,
}

#[derive(Debug, Default)]
struct Both {
    by_identity: HashMap<Identity, String>,
    users: HashMap<String, Arc<User>>,
}

impl Tokens {
    /// The token of an identity, the same each time.
    pub(crate) fn issue(&self, who: &Identity) -> Result<String, RandomError> {
        let mut both = self.tokens.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(token) = both.by_identity.get(who) {
            return Ok(token.clone());
        }
        let token = hex(&random::<24>()?);
        both.users.insert(token.clone(), Arc::new(who.user()));
        both.by_identity.insert(who.clone(), token.clone());
        Ok(token)
    }

    /// The user that an `Authorization` header proves.
    pub(crate) fn user(&self, header: &str) -> Option<Arc<User>> {
        let token = header.strip_prefix("Bearer ")?.trim();
        self.tokens.lock().unwrap_or_else(PoisonError::into_inner).users.get(token).cloned()
    }
}

/// The kernel gave no random bytes.
#[derive(Debug, thiserror::Error)]
#[error("get random bytes from the kernel")]
pub(crate) struct RandomError;

fn random<const N: usize>() -> Result<[u8; N], RandomError> {
    let mut bytes = [0; N];
    match tokio_rustls::rustls::crypto::ring::default_provider().secure_random.fill(&mut bytes) {
        Ok(()) => Ok(bytes),
        Err(_unspecified) => Err(RandomError),
    }
}

/// What `generateName` appends: five characters that make no words.
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
