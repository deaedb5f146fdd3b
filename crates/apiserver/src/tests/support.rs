//! A client that sends raw requests and returns whole responses.

use http::{Method, Request};
use http_body_util::BodyExt as _;
use kube::client::Body;
use kube::config::Kubeconfig;
use serde_json::{Value, json};

use crate::{ApiServer, Config, Identity};

pub(super) const CLAIMS: &str = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims";
pub(super) const SLICES: &str = "/apis/resource.k8s.io/v1/resourceslices";
pub(super) const PODS: &str = "/api/v1/namespaces/default/pods";

/// Returns a slice of the node and pool `node-NAME`.
pub(super) fn slice(name: &str) -> Value {
    let node = format!("node-{name}");
    json!({
        "metadata": { "name": name },
        "spec": {
            "driver": "d.example.com",
            "nodeName": node,
            "pool": { "name": node, "generation": 1, "resourceSliceCount": 1 },
            "devices": [{ "name": "x" }],
        },
    })
}

/// Returns a claim for one device.
pub(super) fn claim(name: &str) -> Value {
    json!({
        "metadata": { "name": name },
        "spec": { "devices": { "requests": [{ "name": "r", "exactly": { "deviceClassName": "gpu" } }] } },
    })
}

/// Returns the names in a list.
pub(super) fn names(list: &Value) -> Vec<String> {
    let items = list["items"].as_array().unwrap();
    items.iter().map(|item| item["metadata"]["name"].as_str().unwrap().to_owned()).collect()
}

pub(super) struct Client {
    pub(super) server: ApiServer,
    client: kube::Client,
}

pub(super) async fn server() -> Client {
    server_with(Config::default()).await
}

pub(super) async fn server_with(config: Config) -> Client {
    let server = ApiServer::start(config).await.unwrap();
    Client { client: client(&server, &Identity::Admin), server }
}

/// Creates a client without retries, unlike those of [`ApiServer::client`].
fn client(server: &ApiServer, identity: &Identity) -> kube::Client {
    let file = Kubeconfig::from_yaml(&server.kubeconfig(identity).unwrap()).unwrap();
    let token = &file.auth_infos[0].auth_info.as_ref().unwrap().token;
    let mut config = kube::Config::new(server.url().parse().unwrap());
    config.auth_info.token.clone_from(token);
    config.default_retry = false;
    kube::Client::try_from(config).unwrap()
}

impl Client {
    pub(super) fn of(&self, identity: &Identity) -> Self {
        Self { server: self.server.clone(), client: client(&self.server, identity) }
    }

    pub(super) async fn send(
        &self,
        method: Method,
        path: &str,
        content_type: &str,
        body: String,
    ) -> Result<(u16, Value), kube::Error> {
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("content-type", content_type)
            .body(Body::from(body.into_bytes()))
            .unwrap();
        let answer = self.client.send(request).await?;
        let status = answer.status().as_u16();
        let bytes = answer.into_body().collect().await?.to_bytes();
        let text = String::from_utf8(bytes.to_vec()).unwrap();
        Ok((status, serde_json::from_str(&text).unwrap_or(Value::String(text))))
    }

    pub(super) async fn json(&self, method: Method, path: &str, body: &Value) -> (u16, Value) {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        self.send(method, path, "application/json", body).await.unwrap()
    }

    pub(super) async fn get(&self, path: &str) -> (u16, Value) {
        self.json(Method::GET, path, &Value::Null).await
    }

    /// Gets a path in one of the forms of an `Accept` header. Returns code, media type and content.
    pub(super) async fn get_as(&self, path: &str, accept: &str) -> (u16, String, Value) {
        let request = Request::get(path).header("accept", accept).body(Body::empty()).unwrap();
        let answer = self.client.send(request).await.unwrap();
        let status = answer.status().as_u16();
        let kind = answer.headers()["content-type"].to_str().unwrap().to_owned();
        let bytes = answer.into_body().collect().await.unwrap().to_bytes();
        (status, kind, serde_json::from_slice(&bytes).unwrap_or(Value::Null))
    }

    pub(super) async fn post(&self, path: &str, body: &Value) -> (u16, Value) {
        self.json(Method::POST, path, body).await
    }

    pub(super) async fn put(&self, path: &str, body: &Value) -> (u16, Value) {
        self.json(Method::PUT, path, body).await
    }

    pub(super) async fn delete(&self, path: &str, body: &Value) -> (u16, Value) {
        self.json(Method::DELETE, path, body).await
    }

    pub(super) async fn merge(&self, path: &str, body: &Value) -> (u16, Value) {
        self.send(Method::PATCH, path, "application/merge-patch+json", body.to_string()).await.unwrap()
    }

    pub(super) async fn patch(&self, kind: &str, path: &str, body: &Value) -> (u16, Value) {
        self.send(Method::PATCH, path, &format!("application/{kind}"), body.to_string()).await.unwrap()
    }

    /// Starts a watch.
    pub(super) async fn watch(&self, path: &str) -> Lines {
        self.watch_as(path, "application/json").await
    }

    /// Starts a watch in one of the forms of an `Accept` header.
    pub(super) async fn watch_as(&self, path: &str, accept: &str) -> Lines {
        let request = Request::get(path).header("accept", accept).body(Body::empty()).unwrap();
        let answer = self.client.send(request).await.unwrap();
        Lines { status: answer.status().as_u16(), body: answer.into_body(), rest: Vec::new() }
    }
}

pub(super) struct Lines {
    pub(super) status: u16,
    body: Body,
    rest: Vec<u8>,
}

impl Lines {
    /// Returns the next line; `None` when the watch ended without an error.
    pub(super) async fn next(&mut self) -> Option<Value> {
        self.try_next().await.unwrap()
    }

    pub(super) async fn try_next(&mut self) -> Result<Option<Value>, kube::Error> {
        loop {
            if let Some(end) = self.rest.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.rest.drain(..=end).collect();
                return Ok(Some(serde_json::from_slice(&line).unwrap()));
            }
            match self.body.frame().await {
                None => return Ok(None),
                Some(frame) => self.rest.extend_from_slice(&frame?.into_data().unwrap()),
            }
        }
    }

    /// Returns the type and the name of the next event.
    pub(super) async fn brief(&mut self) -> (String, String) {
        let line = self.next().await.expect("the watch ended");
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        (text(&line["type"]), text(&line["object"]["metadata"]["name"]))
    }
}
