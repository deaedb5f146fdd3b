//! A fake API server that serves claims.

use std::collections::HashMap;
use std::convert::Infallible;
use std::future::pending;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::{Request, Response, StatusCode};
use kube::client::Body;
use serde_json::{Value, json};

/// A fake API server that serves claims. Clones share their state.
#[derive(Clone, Default)]
pub struct ApiServer(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    /// By namespace and name.
    claims: HashMap<(String, String), Value>,
    /// The served versions of resource.k8s.io; all if empty.
    versions: Vec<&'static str>,
    /// The statuses of the next responses; afterwards requests succeed again.
    failures: Vec<StatusCode>,
    /// Faults of requests for a claim, by its name.
    faults: HashMap<String, ClaimFault>,
    /// The paths of all requests.
    log: Vec<String>,
    /// The delay of each response.
    latency: Duration,
    in_flight: usize,
    /// The highest value that `in_flight` had.
    max_in_flight: usize,
}

/// A fault of requests for one claim.
#[derive(Debug, Clone, Copy)]
pub enum ClaimFault {
    /// Fails with this status.
    Status(StatusCode),
    /// Never responds.
    Hang,
}

impl ApiServer {
    pub fn client(&self) -> kube::Client {
        let server = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let server = server.clone();
            async move { Ok::<_, Infallible>(server.respond(request.uri().path()).await) }
        });
        kube::Client::new(service, "default")
    }

    /// Adds or replaces a claim, by its metadata.
    pub fn put(&self, claim: &Value) {
        let text = |pointer| claim.pointer(pointer).and_then(Value::as_str).unwrap().to_owned();
        let key = (text("/metadata/namespace"), text("/metadata/name"));
        self.0.lock().unwrap().claims.insert(key, claim.clone());
    }

    /// Serves a claim under a name, whatever its metadata says.
    pub fn put_at(&self, namespace: &str, name: &str, claim: &Value) {
        self.0.lock().unwrap().claims.insert((namespace.to_owned(), name.to_owned()), claim.clone());
    }

    pub fn remove(&self, namespace: &str, name: &str) {
        self.0.lock().unwrap().claims.remove(&(namespace.to_owned(), name.to_owned()));
    }

    /// Serves only these versions from now on.
    pub fn serve_only(&self, versions: &[&'static str]) {
        self.0.lock().unwrap().versions = versions.to_vec();
    }

    /// Fails the next requests with these statuses.
    pub fn fail_next(&self, failures: &[StatusCode]) {
        self.0.lock().unwrap().failures = failures.to_vec();
    }

    /// Sets or clears the fault of requests for claims of this name.
    pub fn fail_for(&self, claim: &str, fault: Option<ClaimFault>) {
        let faults = &mut self.0.lock().unwrap().faults;
        match fault {
            Some(fault) => faults.insert(claim.to_owned(), fault),
            None => faults.remove(claim),
        };
    }

    /// Delays each response from now on.
    pub fn slow_down(&self, latency: Duration) {
        self.0.lock().unwrap().latency = latency;
    }

    /// Returns the paths of requests since the last call.
    pub fn take_log(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().unwrap().log)
    }

    /// Counts the requests for a claim in the namespace `default` since the log was last taken.
    pub fn gets(&self, claim: &str) -> usize {
        let end = format!("/namespaces/default/resourceclaims/{claim}");
        self.0.lock().unwrap().log.iter().filter(|path| path.ends_with(&end)).count()
    }

    /// Returns the highest number of requests that were in flight at once.
    pub fn max_in_flight(&self) -> usize {
        self.0.lock().unwrap().max_in_flight
    }

    async fn respond(&self, path: &str) -> Response<Body> {
        let (latency, fault) = {
            let mut state = self.0.lock().unwrap();
            state.log.push(path.to_owned());
            state.in_flight += 1;
            state.max_in_flight = state.max_in_flight.max(state.in_flight);
            (state.latency, path.rsplit('/').next().and_then(|name| state.faults.get(name)).copied())
        };
        if matches!(fault, Some(ClaimFault::Hang)) {
            pending::<()>().await;
        }
        if !latency.is_zero() {
            tokio::time::sleep(latency).await;
        }
        let mut state = self.0.lock().unwrap();
        state.in_flight -= 1;
        let (status, body) = match fault {
            Some(ClaimFault::Status(status)) => (status, error_body(status)),
            _ => state.respond(path),
        };
        Response::builder().status(status).body(Body::from(body)).unwrap()
    }
}

fn error_body(status: StatusCode) -> Vec<u8> {
    let body = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": "not today", "code": status.as_u16()});
    body.to_string().into_bytes()
}

impl State {
    fn respond(&mut self, path: &str) -> (StatusCode, Vec<u8>) {
        if !self.failures.is_empty() {
            let status = self.failures.remove(0);
            return (status, error_body(status));
        }
        let versions: &[&str] =
            if self.versions.is_empty() { &["v1", "v1beta2", "v1beta1"] } else { self.versions.as_slice() };
        let parts: Vec<&str> = path.trim_start_matches('/').split('/').collect();
        match parts.as_slice() {
            ["apis", "resource.k8s.io"] => {
                let versions: Vec<Value> = versions
                    .iter()
                    .map(|version| json!({"groupVersion": format!("resource.k8s.io/{version}"), "version": version}))
                    .collect();
                let body =
                    json!({"kind": "APIGroup", "apiVersion": "v1", "name": "resource.k8s.io", "versions": versions});
                (StatusCode::OK, body.to_string().into_bytes())
            }
            ["apis", "resource.k8s.io", version, "namespaces", namespace, "resourceclaims", name]
                if versions.contains(version) =>
            {
                match self.claims.get(&((*namespace).to_owned(), (*name).to_owned())) {
                    Some(claim) => (StatusCode::OK, claim.to_string().into_bytes()),
                    None => {
                        let body = json!({
                            "kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404,
                            "message": format!("resourceclaims.resource.k8s.io \"{name}\" not found"),
                            "details": {"name": name, "group": "resource.k8s.io", "kind": "resourceclaims"},
                        });
                        (StatusCode::NOT_FOUND, body.to_string().into_bytes())
                    }
                }
            }
            _ => (StatusCode::NOT_FOUND, b"404 page not found\n".to_vec()),
        }
    }
}
