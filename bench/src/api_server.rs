//! The processor time that GETs of a claim cost a real kube-apiserver, in JSON and in protobuf.
//!
//! etcd and kube-apiserver run alone, on loopback addresses. A claim as the scheduler leaves it is read with the token of a
//! service account, as a driver would: over one connection, and over several at the same time, as many drivers would. Rounds
//! alternate between the encodings, so that both get the same share of what else the host does.

use std::error::Error;
use std::path::Path;
use std::time::Duration;

use drakkar_client::protobuf;
use drakkar_e2e::{ApiServerAlone, ClusterPaths};
use http::{Request, StatusCode, header};
use http_body_util::BodyExt as _;
use kube::client::Body;
use kube::config::{KubeConfigOptions, Kubeconfig};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use crate::cluster::CLAIM;
use crate::process::Process;
use crate::table::Table;
use crate::{millis, to_float};

/// The time limit for the start of the server.
const TIMEOUT: Duration = Duration::from_secs(120);
/// The time in which the server is observed without requests.
const IDLE: Duration = Duration::from_secs(5);
const NAMESPACE: &str = "measured";
const ACCOUNT: &str = "driver";

/// The encodings: the name, and what the client accepts, for protobuf the same as client-go.
const ENCODINGS: [(&str, &str); 2] =
    [("protobuf", "application/vnd.kubernetes.protobuf,application/json"), ("JSON", "application/json")];

/// The numbers of connections: the name, and how many are used at the same time.
const CONNECTIONS: [(&str, u32); 2] = [("1 in flight", 1), ("16 in flight", 16)];

/// The extent of the measurement.
#[derive(Debug, Clone, Copy)]
pub struct Scale {
    /// The number of rounds.
    pub rounds: usize,
    /// The number of GETs of a round, in each encoding and for each number of connections.
    pub gets: u32,
}

impl Scale {
    /// For figures.
    pub const FULL: Self = Self { rounds: 9, gets: 4000 };
    /// Once, to see whether it works.
    pub const TEST: Self = Self { rounds: 1, gets: 160 };
}

/// Returns the names of the columns of the table.
pub fn columns() -> [&'static str; 2] {
    ENCODINGS.map(|(name, _)| name)
}

/// Starts the server, and measures it. Builds the programs first if they are missing or outdated, which needs Go.
pub async fn run(scale: Scale) -> Result<Table, Box<dyn Error>> {
    let directory = tempfile::tempdir()?;
    let ApiServerAlone { mut etcd, mut api_server, kubeconfig } =
        ApiServerAlone::new(&ClusterPaths::of_checkout()?, directory.path())?;
    let etcd = Process::new(etcd.spawn()?);
    let mut server = Process::new(api_server.spawn()?);
    let config = config(&kubeconfig).await?;
    let admin = kube::Client::try_from(config.clone())?;
    wait_until_ready(&mut server, &admin, &directory.path().join("kube-apiserver.log")).await?;
    let path = create_claim(&admin).await?;
    let token = driver_token(&admin).await?;
    let mut drivers = Vec::new();
    for _ in 0..CONNECTIONS.into_iter().map(|(_, count)| count).max().unwrap_or(1) {
        drivers.push(driver_client(config.clone(), &token).await?);
    }

    let mut table = Table::default();
    // Without figures: connections, caches and the server's heap.
    for (_, accept) in ENCODINGS {
        get_many(&drivers, &path, accept, scale.gets / 4).await?;
    }
    let (begin, before) = (Instant::now(), server.total_processor_time());
    sleep(IDLE).await;
    let idle = (server.total_processor_time() - before).div_f64(begin.elapsed().as_secs_f64());
    for round in 0..scale.rounds {
        eprintln!("kube-apiserver: round {} of {}", round + 1, scale.rounds);
        let mut encodings = ENCODINGS;
        // What comes first in a round may pay for what was before.
        if round % 2 == 1 {
            encodings.reverse();
        }
        for (connections, count) in CONNECTIONS {
            let drivers = &drivers[..usize::try_from(count)?];
            for (encoding, accept) in encodings {
                let before = [server.total_processor_time(), etcd.total_processor_time()];
                let size = get_many(drivers, &path, accept, scale.gets / count).await?;
                let after = [server.total_processor_time(), etcd.total_processor_time()];
                for (index, program) in ["kube-apiserver", "etcd"].into_iter().enumerate() {
                    let name = format!("{program}, per 1,000 GETs, {connections}");
                    let time = millis(after[index] - before[index]) * 1000.0 / f64::from(scale.gets);
                    table.add_cost(encoding, &name, "ms", time);
                }
                table.add_cost(encoding, "size of the claim", "bytes", to_float(size));
            }
        }
    }
    println!("without requests kube-apiserver takes {:.0} ms of processor time per second\n", millis(idle));
    Ok(table)
}

async fn config(kubeconfig: &Path) -> Result<kube::Config, Box<dyn Error>> {
    let kubeconfig = Kubeconfig::read_from(kubeconfig)?;
    let mut config = kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
    config.default_retry = false;
    Ok(config)
}

async fn wait_until_ready(server: &mut Process, admin: &kube::Client, log: &Path) -> Result<(), Box<dyn Error>> {
    let deadline = Instant::now() + TIMEOUT;
    while admin.request_text(Request::get("/readyz").body(Vec::new())?).await.is_err() {
        if !server.is_running() || Instant::now() >= deadline {
            let log = std::fs::read_to_string(log)?;
            let last: Vec<&str> = log.lines().rev().take(5).collect();
            let state = if server.is_running() { "not ready in time" } else { "no longer running" };
            return Err(format!("kube-apiserver is {state}; the end of its log, last line first: {last:#?}").into());
        }
        sleep(Duration::from_millis(200)).await;
    }
    Ok(())
}

/// Creates the claim as the claim controller does, allocates it as the scheduler does, and returns its path.
async fn create_claim(admin: &kube::Client) -> Result<String, Box<dyn Error>> {
    request(admin, "POST", "/api/v1/namespaces", &json!({"metadata": {"name": NAMESPACE}})).await?;
    let mut claim: Value = serde_json::from_str(&CLAIM.replace("NNNNNN", "000001"))?;
    for field in ["uid", "resourceVersion", "creationTimestamp", "managedFields"] {
        claim["metadata"].as_object_mut().ok_or("the claim has no metadata")?.remove(field);
    }
    claim["metadata"]["namespace"] = NAMESPACE.into();
    let claims = format!("/apis/resource.k8s.io/v1/namespaces/{NAMESPACE}/resourceclaims");
    let created = request(admin, "POST", &format!("{claims}?fieldManager=kube-controller-manager"), &claim).await?;
    claim["metadata"] = created["metadata"].clone();
    let path = format!("{claims}/{}", created["metadata"]["name"].as_str().ok_or("the claim has no name")?);
    request(admin, "PUT", &format!("{path}/status?fieldManager=kube-scheduler"), &claim).await?;
    Ok(path)
}

/// Returns the token of a service account that may read claims.
async fn driver_token(admin: &kube::Client) -> Result<Value, Box<dyn Error>> {
    let accounts = format!("/api/v1/namespaces/{NAMESPACE}/serviceaccounts");
    request(admin, "POST", &accounts, &json!({"metadata": {"name": ACCOUNT}})).await?;
    let rule = json!({"apiGroups": ["resource.k8s.io"], "resources": ["resourceclaims"], "verbs": ["get"]});
    let role = json!({"metadata": {"name": ACCOUNT}, "rules": [rule]});
    request(admin, "POST", "/apis/rbac.authorization.k8s.io/v1/clusterroles", &role).await?;
    let binding = json!({
        "metadata": {"name": ACCOUNT},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": ACCOUNT},
        "subjects": [{"kind": "ServiceAccount", "name": ACCOUNT, "namespace": NAMESPACE}],
    });
    request(admin, "POST", "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", &binding).await?;
    let mut token = request(admin, "POST", &format!("{accounts}/{ACCOUNT}/token"), &json!({"spec": {}})).await?;
    Ok(token["status"]["token"].take())
}

/// Returns a client of the service account, with a connection of its own.
async fn driver_client(mut config: kube::Config, token: &Value) -> Result<kube::Client, Box<dyn Error>> {
    config.auth_info = serde_json::from_value(json!({"token": token}))?;
    let client = kube::Client::try_from(config)?;
    // The server's authorizer learns of the rule a little later.
    let deadline = Instant::now() + TIMEOUT;
    let claims = format!("/apis/resource.k8s.io/v1/namespaces/{NAMESPACE}/resourceclaims/missing");
    loop {
        let answer = client.send(Request::get(claims.as_str()).body(Body::empty())?).await?;
        match answer.status() {
            StatusCode::NOT_FOUND => return Ok(client),
            status if Instant::now() >= deadline => {
                return Err(format!("the driver may not read claims: {status}").into());
            }
            _ => sleep(Duration::from_millis(50)).await,
        }
    }
}

async fn request(client: &kube::Client, method: &str, path: &str, body: &Value) -> Result<Value, Box<dyn Error>> {
    let builder = Request::builder().method(method).uri(path).header(header::CONTENT_TYPE, "application/json");
    let answer = client.request(builder.body(body.to_string().into_bytes())?).await;
    answer.map_err(|error| format!("{method} {path}: {error}").into())
}

/// Gets the claim this number of times over each connection, and returns its size.
async fn get_many(clients: &[kube::Client], path: &str, accept: &str, times: u32) -> Result<u64, Box<dyn Error>> {
    let sizes = clients.iter().map(async |client| {
        let mut size = 0;
        for _ in 0..times {
            size = get(client, path, accept).await?;
        }
        Ok::<u64, Box<dyn Error>>(size)
    });
    let sizes = futures::future::try_join_all(sizes).await?;
    Ok(sizes.into_iter().max().unwrap_or_default())
}

/// Gets the claim, and returns its size.
async fn get(client: &kube::Client, path: &str, accept: &str) -> Result<u64, Box<dyn Error>> {
    let answer = client.send(Request::get(path).header(header::ACCEPT, accept).body(Body::empty())?).await?;
    let media_type = answer.headers().get(header::CONTENT_TYPE).and_then(|media_type| media_type.to_str().ok());
    let is_protobuf = media_type == Some(protobuf::MEDIA_TYPE);
    if answer.status() != StatusCode::OK || is_protobuf != accept.contains(protobuf::MEDIA_TYPE) {
        return Err(format!("GET {path}: {} of type {media_type:?}", answer.status()).into());
    }
    let body = answer.into_body().collect().await?.to_bytes();
    Ok(u64::try_from(body.len())?)
}
