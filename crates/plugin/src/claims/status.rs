//! Reading a claim as it is, and applying the status of its devices. One try each: who asks has more patience than a
//! kubelet.

use drakkar_client::{ApiError, DraVersion};
use http::{Method, StatusCode};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Status;
use serde_json::{Value, json};

use super::{ClaimSource, is_about, path};
use drakkar_client::ClaimRef;

/// The media type of a server-side apply.
const APPLY: &str = "application/apply-patch+yaml";

/// What became of an apply.
#[derive(Debug)]
pub(crate) enum Applied {
    /// The claim as it is now.
    Yes(Value),
    /// There is no such claim.
    NoClaim,
    /// The claim has changed since it was read.
    Conflict,
    /// The server says no.
    Refused(StatusCode, Box<Status>),
}

/// What the server of one version answers; `None` if it has no such version.
type InVersion<T> = Result<Option<T>, ApiError>;

impl ClaimSource {
    /// The object of that name as the server has it, managed fields included, in whichever version.
    pub(crate) async fn read(&self, claim: &ClaimRef) -> Result<Option<Value>, ApiError> {
        let version = self.client.version();
        if let Some(found) = self.read_in(claim, version).await? {
            return Ok(found);
        }
        let version = self.client.rediscover(version).await?;
        self.read_in(claim, version).await?.ok_or(ApiError::NoVersion)
    }

    async fn read_in(&self, claim: &ClaimRef, version: DraVersion) -> InVersion<Option<Value>> {
        match self.get_path(&path(claim, version)).await? {
            (StatusCode::OK, body) => Ok(Some(Some(serde_json::from_slice(&body).map_err(ApiError::Decode)?))),
            (StatusCode::NOT_FOUND, body) => Ok(is_about(claim, &body).then_some(None)),
            (status, body) => Err(ApiError::from_answer(status, &body)),
        }
    }

    /// Makes these entries all that the field manager has in `status.devices`, if the claim still is of that version.
    pub(crate) async fn apply_status(
        &self,
        claim: &ClaimRef,
        manager: &str,
        resource_version: &str,
        devices: &[Value],
    ) -> Result<Applied, ApiError> {
        let body = json!({
            "kind": "ResourceClaim",
            "metadata": {"name": claim.name.as_str(), "uid": claim.uid.as_str(), "resourceVersion": resource_version},
            "status": {"devices": devices},
        });
        let version = self.client.version();
        if let Some(applied) = self.apply_in(claim, manager, body.clone(), version).await? {
            return Ok(applied);
        }
        let version = self.client.rediscover(version).await?;
        self.apply_in(claim, manager, body, version).await?.ok_or(ApiError::NoVersion)
    }

    async fn apply_in(
        &self,
        claim: &ClaimRef,
        manager: &str,
        mut body: Value,
        version: DraVersion,
    ) -> InVersion<Applied> {
        body["apiVersion"] = version.api_version().into();
        // A driver's name needs no escapes.
        let path = format!("{}/status?fieldManager={manager}&force=true", path(claim, version));
        let request = self.client.request(Method::PATCH, &path, APPLY, body.to_string().into_bytes())?;
        let (status, body) = self.send(request).await?;
        let is_refusal = matches!(status, StatusCode::FORBIDDEN | StatusCode::UNPROCESSABLE_ENTITY);
        match status {
            StatusCode::OK | StatusCode::CREATED => {
                Ok(Some(Applied::Yes(serde_json::from_slice(&body).map_err(ApiError::Decode)?)))
            }
            StatusCode::NOT_FOUND => Ok(is_about(claim, &body).then_some(Applied::NoClaim)),
            StatusCode::CONFLICT => Ok(Some(Applied::Conflict)),
            status if is_refusal => match serde_json::from_slice(&body) {
                Ok(answer) => Ok(Some(Applied::Refused(status, Box::new(answer)))),
                Err(_) => Err(ApiError::from_answer(status, &body)),
            },
            status => Err(ApiError::from_answer(status, &body)),
        }
    }
}
