//! Reads a claim, and applies the status of its devices. Without retries: callers have their own, with longer delays than a
//! kubelet would allow.

use drakkar_client::{ApiError, ClaimRef, DraVersion};
use http::{Method, StatusCode};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Status;
use serde_json::{Value, json};

use super::{ClaimSource, is_about, path};

/// The media type of a server-side apply.
const APPLY: &str = "application/apply-patch+yaml";

/// The result of an apply.
#[derive(Debug)]
pub(crate) enum Applied {
    /// The status was applied; the claim as it is now.
    Yes(Value),
    /// The claim does not exist.
    NoClaim,
    /// The claim has changed since it was read.
    Conflict,
    /// The server refused the apply as forbidden or invalid.
    Refused(StatusCode, Box<Status>),
}

/// The result in one version of the API; `None` if the server does not have that version.
type InVersion<T> = Result<Option<T>, ApiError>;

impl ClaimSource {
    /// Returns the claim with that name, if it exists, including its managed fields and in the server's version of the API.
    pub(crate) async fn read(&self, claim: &ClaimRef) -> Result<Option<Value>, ApiError> {
        let version = self.client.version();
        if let Some(found) = self.read_in(claim, version).await? {
            return Ok(found);
        }
        let version = self.client.rediscover(version).await?;
        self.read_in(claim, version).await?.ok_or(ApiError::NoVersion)
    }

    async fn read_in(&self, claim: &ClaimRef, version: DraVersion) -> InVersion<Option<Value>> {
        match self.get_path(path(claim, version)).await? {
            (StatusCode::OK, body) => Ok(Some(Some(serde_json::from_slice(&body).map_err(ApiError::Decode)?))),
            (StatusCode::NOT_FOUND, body) => Ok(is_about(claim, &body).then_some(None)),
            (status, body) => Err(ApiError::from_answer(status, &body)),
        }
    }

    /// Replaces the field manager's entries in `status.devices`, if the claim still has this resource version.
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
        // A field manager is named after the driver, so it needs no percent-encoding.
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
