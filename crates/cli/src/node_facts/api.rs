//! What the API server knows: its version and clock, the node, device classes, slices, and the claims that are prepared here.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, SystemTime};

use drakkar_client::{ApiError, DraClient, DraVersion, escape};
use http::{Method, StatusCode, header};
use serde_json::Value;
use tokio::time::timeout;

/// The time that the server has for each answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// The largest answer that is read. A slice has at most 128 devices, and a node a few slices of each driver.
const MAX_ANSWER: usize = 32 * 1024 * 1024;
/// The largest number of claims that are asked for.
pub(crate) const MAX_CLAIMS: usize = 500;

/// The state of the API server.
#[derive(Debug)]
pub(crate) enum Api {
    /// It is not asked, for this reason.
    Off(String),
    /// It cannot be asked.
    Failed(ApiFailure),
    Up(Box<ApiFacts>),
}

/// Why the API server cannot be asked.
#[derive(Debug)]
pub(crate) enum ApiFailure {
    Config(String),
    Unreachable(String),
    Unauthorized(String),
}

/// The answers of the API server.
#[derive(Debug)]
pub(crate) struct ApiFacts {
    /// The server, for messages.
    pub(crate) server: String,
    /// Its version, for example `v1.37.1`.
    pub(crate) version: Option<String>,
    /// How many seconds its clock is ahead of the one here.
    pub(crate) ahead: Option<i64>,
    /// The versions of `resource.k8s.io` that it serves.
    pub(crate) dra_versions: Answer<Vec<String>>,
    pub(crate) node: Answer<Option<Value>>,
    /// The feature gates of the kubelet, from its `configz`.
    pub(crate) kubelet_gates: Answer<BTreeMap<String, bool>>,
    pub(crate) classes: Answer<Vec<Value>>,
    pub(crate) slices: Answer<Vec<Value>>,
    /// The claims that were asked for, by namespace and name.
    pub(crate) claims: BTreeMap<(String, String), Answer<Option<Value>>>,
}

/// An answer, or why there is none.
#[derive(Debug, Clone)]
pub(crate) enum Answer<T> {
    Got(T),
    /// The user may not ask for it.
    Forbidden(String),
    Failed(String),
}

impl<T> Answer<T> {
    pub(crate) fn map<U>(self, change: impl FnOnce(T) -> U) -> Answer<U> {
        match self {
            Self::Got(value) => Answer::Got(change(value)),
            Self::Forbidden(message) => Answer::Forbidden(message),
            Self::Failed(message) => Answer::Failed(message),
        }
    }

    /// Returns the answer, if there is one.
    pub(crate) fn got(&self) -> Option<&T> {
        match self {
            Self::Got(value) => Some(value),
            Self::Forbidden(_) | Self::Failed(_) => None,
        }
    }
}

impl Api {
    pub(crate) fn facts(&self) -> Option<&ApiFacts> {
        match self {
            Self::Up(facts) => Some(facts),
            Self::Off(_) | Self::Failed(_) => None,
        }
    }
}

/// A connection to the API server.
#[derive(Debug)]
pub(crate) struct ApiReader {
    client: DraClient,
    version: DraVersion,
}

impl ApiReader {
    /// Connects, and asks for the server's version. On success it returns the facts with nothing but that.
    pub(crate) async fn connect(kubeconfig: Option<&Path>) -> Result<(Self, ApiFacts), ApiFailure> {
        let client = match DraClient::connect(kubeconfig).await {
            Ok(client) => client,
            Err(error) => return Err(ApiFailure::Config(error.to_string())),
        };
        let mut reader = Self { client, version: DraVersion::V1 };
        let request = reader.client.request(Method::GET, "/version", "application/json", Vec::new());
        let asked = async {
            let response = reader.client.send(request?).await?;
            let date = response.headers().get(header::DATE).and_then(|date| date.to_str().ok()).map(str::to_owned);
            let (status, body) = reader.client.collect(response, MAX_ANSWER).await?;
            Ok::<_, ApiError>((date, status, body))
        };
        let answered = timeout(PATIENCE, asked).await.unwrap_or_else(|_| Err(reader.client.timeout(PATIENCE)));
        let (date, status, body) = match answered {
            Ok(answer) => answer,
            Err(error @ ApiError::Unauthorized { .. }) => return Err(ApiFailure::Unauthorized(error.to_string())),
            Err(error) => return Err(ApiFailure::Unreachable(error.to_string())),
        };
        let version = serde_json::from_slice::<Value>(&body).ok().filter(|_| status == StatusCode::OK);
        let mut facts = ApiFacts {
            server: reader.client.server().to_string(),
            version: version.and_then(|version| Some(version.get("gitVersion")?.as_str()?.to_owned())),
            ahead: date.and_then(|date| httpdate::parse_http_date(&date).ok()).map(seconds_ahead),
            dra_versions: Answer::Got(Vec::new()),
            node: Answer::Got(None),
            kubelet_gates: Answer::Got(BTreeMap::new()),
            classes: Answer::Got(Vec::new()),
            slices: Answer::Got(Vec::new()),
            claims: BTreeMap::new(),
        };
        // Some servers tell their version to everybody, so this is the first request that needs credentials.
        facts.dra_versions = match reader.get("/apis/resource.k8s.io").await {
            Ok(group) => group.map(|group| served(group.as_ref())),
            Err(error) => return Err(ApiFailure::Unauthorized(error)),
        };
        if let Some(served) = facts.dra_versions.got() {
            let newest = DraVersion::ALL.into_iter().find(|known| served.iter().any(|name| name == known.name()));
            reader.version = newest.unwrap_or(DraVersion::V1);
        }
        Ok((reader, facts))
    }

    /// Asks for a claim; `None` if it does not exist.
    pub(crate) async fn claim(&self, namespace: &str, name: &str) -> Answer<Option<Value>> {
        let namespace = escape(namespace);
        let path = self.resource(&format!("namespaces/{namespace}/resourceclaims/{}", escape(name)));
        self.object(&path).await
    }

    /// Asks for all claims that have this UID. There is no selector for it, so it lists all.
    pub(crate) async fn claim_with_uid(&self, uid: &str) -> Answer<Option<Value>> {
        let claims = self.list(&self.resource("resourceclaims")).await;
        claims.map(|claims| claims.into_iter().find(|claim| claim["metadata"]["uid"] == uid))
    }

    /// Asks for the node, and for its kubelet's feature gates.
    pub(crate) async fn node(&self, name: &str) -> (Answer<Option<Value>>, Answer<BTreeMap<String, bool>>) {
        let path = format!("/api/v1/nodes/{}", escape(name));
        let gates = self.object(&format!("{path}/proxy/configz")).await;
        (self.object(&path).await, gates.map(|config| feature_gates(config.as_ref())))
    }

    pub(crate) async fn classes(&self) -> Answer<Vec<Value>> {
        self.list(&self.resource("deviceclasses")).await
    }

    /// Asks for the slices of a driver.
    pub(crate) async fn slices(&self, driver: &str) -> Answer<Vec<Value>> {
        let selector = format!("spec.driver={driver}");
        self.list(&self.resource(&format!("resourceslices?fieldSelector={}", escape(&selector)))).await
    }

    fn resource(&self, path: &str) -> String {
        format!("/apis/{}/{path}", self.version.api_version())
    }

    async fn list(&self, path: &str) -> Answer<Vec<Value>> {
        self.object(path).await.map(|list| {
            let items = list.and_then(|mut list| Some(list.get_mut("items")?.take()));
            items.and_then(|items| serde_json::from_value(items).ok()).unwrap_or_default()
        })
    }

    async fn object(&self, path: &str) -> Answer<Option<Value>> {
        self.get(path).await.unwrap_or_else(Answer::Failed)
    }

    /// Asks for an object; `None` if it does not exist. Fails if the server does not know the user.
    async fn get(&self, path: &str) -> Result<Answer<Option<Value>>, String> {
        let asked = async {
            let request = self.client.request(Method::GET, path, "application/json", Vec::new())?;
            self.client.exchange(request, MAX_ANSWER).await
        };
        let answered = timeout(PATIENCE, asked).await.unwrap_or_else(|_| Err(self.client.timeout(PATIENCE)));
        Ok(match answered {
            Ok((StatusCode::OK, body)) => match serde_json::from_slice(&body) {
                Ok(object) => Answer::Got(Some(object)),
                Err(error) => Answer::Failed(format!("GET {path}: {error}")),
            },
            Ok((StatusCode::NOT_FOUND, _)) => Answer::Got(None),
            Ok((status, body)) => {
                let error = ApiError::from_answer(status, &body).to_string();
                if status == StatusCode::FORBIDDEN { Answer::Forbidden(error) } else { Answer::Failed(error) }
            }
            Err(error @ ApiError::Unauthorized { .. }) => return Err(error.to_string()),
            Err(error) => Answer::Failed(error.to_string()),
        })
    }
}

fn seconds_ahead(server: SystemTime) -> i64 {
    let seconds = |time: SystemTime| {
        let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
    };
    seconds(server) - seconds(SystemTime::now())
}

fn served(group: Option<&Value>) -> Vec<String> {
    let versions = group.and_then(|group| group.get("versions")?.as_array()).into_iter().flatten();
    versions.filter_map(|version| Some(version.get("version")?.as_str()?.to_owned())).collect()
}

fn feature_gates(config: Option<&Value>) -> BTreeMap<String, bool> {
    let gates = config.and_then(|config| config.pointer("/kubeletconfig/featureGates")?.as_object());
    gates.into_iter().flatten().filter_map(|(name, value)| Some((name.clone(), value.as_bool()?))).collect()
}
