//! The answer to one `AdmissionReview`.
//!
//! The object is read in the same pass as the review. Where that fails, a second pass tells a review that is malformed
//! from one whose object is: the first is an error of the caller, the second is refused.

use std::borrow::Cow;

use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use thiserror::Error;

use super::Policy;
use crate::admission::{
    Cause, Warning, as_remarshalled, schema_violations, validate, validate_without_gates, warnings,
};
use crate::vmi::Workload;

/// The most causes in an answer, as in KubeVirt's. The message counts the others.
pub const MAX_CAUSES: usize = 10;

/// The most warnings in an answer: the API server cuts what is longer than 4 KiB in all.
const MAX_WARNINGS: usize = 10;

const API_VERSION: &str = "admission.k8s.io/v1";
const KIND: &str = "AdmissionReview";

/// Why a request is no review that can be answered.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum BadReview {
    /// The body is not JSON, or a field of the review has the wrong type.
    #[error("the request is not an AdmissionReview: {0}")]
    Malformed(#[from] serde_json::Error),
    /// The body is another object, or of another version.
    #[error("expected an {KIND} of {API_VERSION}, found kind {kind:?} of apiVersion {api_version:?}")]
    Kind {
        /// The kind found.
        kind: String,
        /// The version found.
        api_version: String,
    },
    /// The review has no request, as one that was already answered.
    #[error("the AdmissionReview has no request")]
    NoRequest,
    /// The request has no uid, which the answer must repeat.
    #[error("the AdmissionReview's request has no uid")]
    NoUid,
}

/// Answers a review: the body of an `AdmissionReview` with its response.
///
/// Creations and updates of a `VirtualMachineInstance` or `VirtualMachine` are checked as a cluster sees them
/// ([`as_remarshalled`]). Other operations, objects that are being deleted, and updates that leave the specification of a
/// `VirtualMachineInstance` as it was are allowed: a gate that was turned off does not hold up running machines.
///
/// # Errors
///
/// The body is not an `AdmissionReview` of `admission.k8s.io/v1` with a request.
pub fn review(body: &[u8], policy: &Policy) -> Result<Vec<u8>, BadReview> {
    let (uid, verdict) = if policy.behaviour.is_strict() {
        answer_strictly(body, policy)?
    } else {
        match serde_json::from_slice::<Review<'_, Workload>>(body) {
            Ok(review) => {
                let mut request = request(review)?;
                let object = request.object.take();
                let verdict = decide(&request, || Ok(object), policy);
                (request.uid, verdict)
            }
            Err(error) => refuse_object(body, error)?,
        }
    };
    let review = ReviewResponse { api_version: API_VERSION, kind: KIND, response: verdict.response(&uid) };
    Ok(serde_json::to_vec(&review)?)
}

/// As KubeVirt: the schema first, and the rules only for what keeps to it.
fn answer_strictly<'a>(body: &'a [u8], policy: &Policy) -> Result<(Cow<'a, str>, Verdict), BadReview> {
    let request = request(serde_json::from_slice::<Review<'_, &RawValue>>(body)?)?;
    let parse = || {
        let Some(object) = request.object else { return Ok(None) };
        let workload = serde_json::from_str(object.get()).map_err(|error| refusal(&request.kind, &error))?;
        // The same text has just been read, with more expected of it.
        let violations = schema_violations(object.get()).unwrap_or_default();
        if violations.is_empty() {
            Ok(Some(workload))
        } else {
            Err(Verdict::Denied { causes: violations, warnings: Vec::new() })
        }
    };
    let verdict = decide(&request, parse, policy);
    Ok((request.uid, verdict))
}

fn request<Object>(review: Review<'_, Object>) -> Result<Request<'_, Object>, BadReview> {
    if review.kind != KIND || review.api_version != API_VERSION {
        let (kind, api_version) = (review.kind.into_owned(), review.api_version.into_owned());
        return Err(BadReview::Kind { kind, api_version });
    }
    let request = review.request.ok_or(BadReview::NoRequest)?;
    if request.uid.is_empty() { Err(BadReview::NoUid) } else { Ok(request) }
}

/// The verdict on a review whose object cannot be read. The error is the caller's if the rest cannot be read either.
fn refuse_object(body: &[u8], error: serde_json::Error) -> Result<(Cow<'_, str>, Verdict), BadReview> {
    let Ok(review) = serde_json::from_slice::<Review<'_, IgnoredAny>>(body) else {
        return Err(BadReview::Malformed(error));
    };
    let request = request(review)?;
    let verdict = decide(&request, || Err(refusal(&request.kind, &error)), &Policy::default());
    Ok((request.uid, verdict))
}

fn refusal(kind: &GroupVersionKind<'_>, error: &serde_json::Error) -> Verdict {
    let known = kind.group == "kubevirt.io" && matches!(&*kind.kind, "VirtualMachineInstance" | "VirtualMachine");
    Verdict::Refused(if known {
        format!("{} cannot be read: {error}", kind.kind)
    } else {
        format!(
            "this webhook reviews VirtualMachineInstance and VirtualMachine of kubevirt.io, not {} of {:?}: correct the \
             rules of its ValidatingWebhookConfiguration",
            kind.kind, kind.group
        )
    })
}

/// Decides about a request. The object is only asked for if the request is one to check.
fn decide<Object>(
    request: &Request<'_, Object>,
    object: impl FnOnce() -> Result<Option<Workload>, Verdict>,
    policy: &Policy,
) -> Verdict {
    if !matches!(&*request.operation, "CREATE" | "UPDATE") || !request.sub_resource.is_empty() {
        return Verdict::Allowed { warnings: Vec::new() };
    }
    let workload = match object() {
        Ok(Some(workload)) => workload,
        Ok(None) => return Verdict::Refused(format!("the {} request has no object", request.operation)),
        Err(verdict) => return verdict,
    };
    let unchanged = || {
        let old = request.old_object.and_then(|old| Workload::from_json(old.get()).ok());
        old.is_some_and(|old| old.vmi().spec == workload.vmi().spec)
    };
    let is_update_of_vmi = request.operation == "UPDATE" && matches!(workload, Workload::Vmi(_));
    if workload.metadata().deletion_timestamp.is_some() || is_update_of_vmi && unchanged() {
        return Verdict::Allowed { warnings: Vec::new() };
    }
    let workload = as_remarshalled(workload);
    let (causes, mut warned) = match &policy.gates {
        Some(gates) => (validate(&workload, gates, policy.behaviour), Vec::new()),
        None => validate_without_gates(&workload, policy.behaviour),
    };
    if !policy.behaviour.is_strict() {
        warned.extend(warnings(&workload));
    }
    let warnings = warned;
    if causes.is_empty() {
        return Verdict::Allowed { warnings };
    }
    let (kind, metadata) = (workload.kind(), workload.metadata());
    tracing::info!(kind, namespace = metadata.namespace, name = metadata.name, causes = causes.len(), "object refused");
    Verdict::Denied { causes, warnings }
}

/// What is answered.
enum Verdict {
    Allowed {
        warnings: Vec<Warning>,
    },
    Denied {
        causes: Vec<Cause>,
        warnings: Vec<Warning>,
    },
    /// The object cannot be checked.
    Refused(String),
}

impl Verdict {
    fn response(self, uid: &str) -> Response<'_> {
        match self {
            Self::Allowed { warnings } => Response { uid, allowed: true, status: None, warnings: texts(&warnings) },
            Self::Denied { mut causes, warnings } => {
                let others = causes.len().saturating_sub(MAX_CAUSES);
                causes.truncate(MAX_CAUSES);
                let mut message = causes.iter().map(|cause| &*cause.message).collect::<Vec<_>>().join(", ");
                if others > 0 {
                    message.push_str(&format!(", and {others} more validation errors"));
                }
                let status = Status { message, reason: Some("Invalid"), details: Some(Details { causes }), code: 422 };
                Response { uid, allowed: false, status: Some(status), warnings: texts(&warnings) }
            }
            Self::Refused(message) => {
                let status = Status { message, reason: None, details: None, code: 400 };
                Response { uid, allowed: false, status: Some(status), warnings: Vec::new() }
            }
        }
    }
}

fn texts(warnings: &[Warning]) -> Vec<String> {
    let mut texts: Vec<String> = warnings.iter().take(MAX_WARNINGS).map(ToString::to_string).collect();
    if warnings.len() > MAX_WARNINGS {
        texts.push(format!("and {} more warnings", warnings.len() - MAX_WARNINGS));
    }
    texts
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", bound = "Object: Deserialize<'de>")]
struct Review<'a, Object> {
    #[serde(borrow, default)]
    api_version: Cow<'a, str>,
    #[serde(borrow, default)]
    kind: Cow<'a, str>,
    #[serde(borrow)]
    request: Option<Request<'a, Object>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", bound = "Object: Deserialize<'de>")]
struct Request<'a, Object> {
    #[serde(borrow, default)]
    uid: Cow<'a, str>,
    #[serde(borrow, default)]
    kind: GroupVersionKind<'a>,
    #[serde(borrow, default)]
    sub_resource: Cow<'a, str>,
    #[serde(borrow, default)]
    operation: Cow<'a, str>,
    object: Option<Object>,
    #[serde(borrow, default)]
    old_object: Option<&'a RawValue>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct GroupVersionKind<'a> {
    #[serde(borrow)]
    group: Cow<'a, str>,
    #[serde(borrow)]
    kind: Cow<'a, str>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ReviewResponse<'a> {
    api_version: &'static str,
    kind: &'static str,
    response: Response<'a>,
}

#[derive(Serialize)]
struct Response<'a> {
    uid: &'a str,
    allowed: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<Status>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    warnings: Vec<String>,
}

#[derive(Serialize)]
struct Status {
    message: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    details: Option<Details>,
    code: u16,
}

#[derive(Serialize)]
struct Details {
    causes: Vec<Cause>,
}
