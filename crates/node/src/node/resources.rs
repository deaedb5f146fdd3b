//! Creating and reading objects on a node.

use drakkar_client::ClaimRef;
use drakkar_metadata::name::NameError;
use k8s_openapi::api::resource::v1::{AllocatedDeviceStatus, DeviceClass, ResourceClaim, ResourceSlice};
use kube::api::{Api, ApiResource, DynamicObject, ListParams, PostParams};
use kube::core::GroupVersion;
use kube::core::gvk::ParseGroupVersionError;
use serde_json::Value;

use super::pod::POD_TIMEOUT;
use super::{Node, NodeError, PodHandle, static_cdi_directory};
use crate::kubelet::Kubelet;
use crate::objects::{device_class, resource_slice};

impl Node {
    /// Creates an object. A namespaced object without a namespace is created in `default`.
    pub async fn create(&self, object: impl Into<Value>) -> Result<DynamicObject, NodeError> {
        self.create_document(object.into(), 1).await
    }

    /// Creates the objects of a YAML text, in their order.
    pub async fn apply(&self, yaml: &str) -> Result<Vec<DynamicObject>, NodeError> {
        let documents: Vec<Value> = serde_saphyr::from_multiple(yaml)
            .map_err(|error| NodeError::Yaml { document: 1, message: error.to_string() })?;
        let mut created = Vec::with_capacity(documents.len());
        for (index, document) in documents.into_iter().enumerate().filter(|(_, document)| !document.is_null()) {
            created.push(self.create_document(document, index + 1).await?);
        }
        Ok(created)
    }

    /// Creates a pod and returns a handle to it.
    pub async fn create_pod(&self, pod: impl Into<Value>) -> Result<PodHandle<'_>, NodeError> {
        let pod = self.create(pod).await?;
        Ok(PodHandle {
            node: self,
            namespace: pod.metadata.namespace.unwrap_or_default(),
            name: pod.metadata.name.unwrap_or_default(),
            uid: pod.metadata.uid.unwrap_or_default(),
            timeout: POD_TIMEOUT,
        })
    }

    /// Returns a handle to an existing pod.
    pub async fn pod(&self, namespace: &str, name: &str) -> Result<PodHandle<'_>, NodeError> {
        let pods: Api<k8s_openapi::api::core::v1::Pod> = Api::namespaced(self.client(), namespace);
        let pod = pods.get(name).await.map_err(NodeError::request(format!("get pod {namespace}/{name}")))?;
        let uid = pod.metadata.uid.unwrap_or_default();
        Ok(PodHandle { node: self, namespace: namespace.to_owned(), name: name.to_owned(), uid, timeout: POD_TIMEOUT })
    }

    /// Publishes devices on behalf of a driver that does not publish, in a pool named after the node, and creates a device
    /// class of the driver's name unless it exists. Waits until a kubelet that has just started has deleted the slices of
    /// earlier runs.
    ///
    /// A second call does not add to the first: pass all devices at once.
    pub async fn publish(&self, driver: &str, devices: &[&str]) -> Result<(), NodeError> {
        match self.create(device_class(driver)).await {
            Err(NodeError::Request { source, .. }) if is_already_there(&source) => {}
            created => drop(created?),
        }
        let deleted = self.kubelet.lock().await.as_ref().map(Kubelet::slices_deleted);
        if let Some(deleted) = deleted {
            deleted.await;
        }
        let slices: Api<ResourceSlice> = Api::all(self.api.client(&self.driver_identity(driver))?);
        let slice = serde_json::from_value(resource_slice(driver, &self.name, devices))
            .map_err(|error| NodeError::Yaml { document: 1, message: error.to_string() })?;
        slices
            .create(&PostParams::default(), &slice)
            .await
            .map(drop)
            .map_err(NodeError::request(format!("create the resourceslice of {driver}")))
    }

    /// Writes a CDI spec with one device, `vendor/class=name`, for a driver whose CDI specs come from elsewhere. A container that
    /// gets the device has the environment variable `CDI_DEVICE` with that name.
    pub fn add_cdi_device(&self, device: &str) -> Result<(), NodeError> {
        let invalid = |message: String| NodeError::CdiDevice { device: device.to_owned(), message };
        let (kind, name) = device.split_once('=').ok_or_else(|| invalid("it is not vendor/class=name".to_owned()))?;
        let spec = serde_json::json!({
            "cdiVersion": "0.5.0", "kind": kind,
            "devices": [{"name": name, "containerEdits": {"env": [format!("CDI_DEVICE={device}")]}}],
        });
        let directory = static_cdi_directory(self.directory());
        let file = device.replace(['/', '='], "_");
        // Container runtimes notice a rename.
        let staged = directory.join(format!(".{file}"));
        std::fs::create_dir_all(&directory)
            .and_then(|()| std::fs::write(&staged, spec.to_string()))
            .and_then(|()| std::fs::rename(&staged, directory.join(format!("{file}.json"))))
            .map_err(NodeError::Directory)?;
        match self.runner.specs().problems().first() {
            Some(problem) => Err(invalid(problem.to_string())),
            None => Ok(()),
        }
    }

    /// Returns a claim in the namespace `default`.
    pub async fn claim(&self, name: &str) -> Result<Option<ResourceClaim>, NodeError> {
        let claims: Api<ResourceClaim> = Api::namespaced(self.client(), "default");
        claims.get_opt(name).await.map_err(NodeError::request(format!("get resourceclaim {name}")))
    }

    /// Returns all claims in the namespace `default`.
    pub async fn claims(&self) -> Result<Vec<ResourceClaim>, NodeError> {
        let claims: Api<ResourceClaim> = Api::namespaced(self.client(), "default");
        Ok(claims.list(&ListParams::default()).await.map_err(NodeError::request("list resourceclaims"))?.items)
    }

    /// Returns a reference to a claim in the namespace `default`, as a driver needs it to update the claim's metadata.
    pub async fn claim_ref(&self, name: &str) -> Result<ClaimRef, NodeError> {
        let claims: Api<ResourceClaim> = Api::namespaced(self.client(), "default");
        let claim = claims.get(name).await.map_err(NodeError::request(format!("get resourceclaim {name}")))?;
        let invalid = |error: NameError| NodeError::Yaml { document: 1, message: error.to_string() };
        Ok(ClaimRef {
            namespace: "default".parse().map_err(invalid)?,
            name: name.parse().map_err(invalid)?,
            uid: claim.metadata.uid.unwrap_or_default().parse().map_err(invalid)?,
        })
    }

    /// Returns a device class.
    pub async fn device_class(&self, name: &str) -> Result<Option<DeviceClass>, NodeError> {
        let classes: Api<DeviceClass> = Api::all(self.client());
        classes.get_opt(name).await.map_err(NodeError::request(format!("get deviceclass {name}")))
    }

    /// Returns the slices of a driver.
    pub async fn slices(&self, driver: &str) -> Result<Vec<ResourceSlice>, NodeError> {
        let slices: Api<ResourceSlice> = Api::all(self.client());
        let parameters = ListParams::default().fields(&format!("spec.driver={driver}"));
        Ok(slices.list(&parameters).await.map_err(NodeError::request("list resourceslices"))?.items)
    }

    /// Waits until a driver has published a device.
    pub async fn wait_published(&self, driver: &str) -> Result<(), NodeError> {
        let deadline = crate::Deadline::default();
        let has_devices =
            |slice: &ResourceSlice| slice.spec.devices.as_ref().is_some_and(|devices| !devices.is_empty());
        while !self.slices(driver).await?.iter().any(has_devices) {
            deadline.pause().await.map_err(|waited| NodeError::NotPublished { driver: driver.to_owned(), waited })?;
        }
        Ok(())
    }

    /// Waits until a driver has reported the devices of a claim in the namespace `default`, and returns its status.
    pub async fn wait_device_status(&self, claim: &str) -> Result<Vec<AllocatedDeviceStatus>, NodeError> {
        let deadline = crate::Deadline::default();
        loop {
            let status = self.claim(claim).await?.and_then(|claim| claim.status);
            match status.and_then(|status| status.devices).filter(|devices| !devices.is_empty()) {
                Some(devices) => return Ok(devices),
                None => {
                    deadline.pause().await.map_err(|waited| NodeError::NoStatus { claim: claim.to_owned(), waited })?;
                }
            }
        }
    }

    async fn create_document(&self, object: Value, document: usize) -> Result<DynamicObject, NodeError> {
        let invalid = |message: String| NodeError::Yaml { document, message };
        let field = |name: &str| object.get(name).and_then(Value::as_str).unwrap_or_default().to_owned();
        let version = field("apiVersion");
        let kind = field("kind");
        if version.is_empty() || kind.is_empty() {
            return Err(invalid("apiVersion or kind is missing".to_owned()));
        }
        let version: GroupVersion =
            version.parse().map_err(|error: ParseGroupVersionError| invalid(error.to_string()))?;
        let resource = ApiResource::from_gvk(&version.with_kind(&kind));
        let object: DynamicObject = serde_json::from_value(object).map_err(|error| invalid(error.to_string()))?;
        let is_cluster_scoped = matches!(kind.as_str(), "Node" | "Namespace" | "DeviceClass" | "ResourceSlice");
        let api: Api<DynamicObject> = match (is_cluster_scoped, &object.metadata.namespace) {
            (true, _) => Api::all_with(self.client(), &resource),
            (false, Some(namespace)) => Api::namespaced_with(self.client(), namespace, &resource),
            (false, None) => Api::namespaced_with(self.client(), "default", &resource),
        };
        let name = object.metadata.name.clone().or_else(|| object.metadata.generate_name.clone()).unwrap_or_default();
        api.create(&PostParams::default(), &object).await.map_err(NodeError::request(format!("create {kind} {name}")))
    }
}

fn is_already_there(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.is_already_exists())
}
