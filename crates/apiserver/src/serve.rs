//! Request handling: authentication, injected faults, routing and the response.

use std::convert::Infallible;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use futures::stream::{Stream, StreamExt as _};
use http::{HeaderMap, Method, Request, Response, StatusCode, header};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full, LengthLimitError, Limited, StreamBody};
use hyper::body::{Body as _, Bytes, Frame, Incoming};
use hyper::upgrade::OnUpgrade;

use super::call::{Call, Subresource, Target};
use super::core::{Core, RequestRecord};
use super::faults::{ConnectionCut, Fault};
use super::media;
use super::query::Query;
use super::rules::{self, User};
use super::status::Failure;
use super::streams::{self, Upgraded};
use super::view::View;
use super::write::{self, Payload};
use super::{binding, delete, discovery, openapi, patch, read, reviews, watch};

/// The limit of a request body, as in the kube-apiserver.
const MAX_BODY_BYTES: usize = 3 * 1024 * 1024;

pub(crate) type Answer = Response<UnsyncBoxBody<Bytes, io::Error>>;

/// What is left to do on a connection when its last response has upgraded it.
pub(crate) type UpgradeSlot = Arc<Mutex<Option<Upgraded>>>;

/// Handles a request. An error closes the connection.
pub(crate) async fn serve(
    core: Arc<Core>,
    mut request: Request<Incoming>,
    slot: UpgradeSlot,
) -> Result<Answer, ConnectionCut> {
    let upgrade = request.headers().contains_key(header::UPGRADE).then(|| hyper::upgrade::on(&mut request));
    let (parts, body) = request.into_parts();
    let user = header(&parts.headers, header::AUTHORIZATION).and_then(|header| core.tokens.user(header));
    let name = user.as_ref().map(|user| user.name.clone());
    let path = parts.uri.path().to_owned();
    let query = parts.uri.query().unwrap_or_default().to_owned();
    let segments: Vec<&str> = path.split('/').filter(|segment| !segment.is_empty()).collect();
    let parsed = Query::parse(&query);
    let target = Target::parse(&segments, &core.versions);
    let verb = target.as_ref().and_then(|target| target.verb(&parts.method, &parsed));
    let resource = target.as_ref().map(|target| target.resource);
    let mut record = RequestRecord {
        method: parts.method.to_string(),
        verb: verb.unwrap_or_default(),
        path: path.clone(),
        query,
        user: name.clone().unwrap_or_default(),
        bytes: body.size_hint().exact().unwrap_or_default(),
        status: 0,
        time: Instant::now(),
    };

    core.faults.reachable(name.as_deref()).await?;
    if let Some(latency) = core.faults.latency(record.verb, resource, name.as_deref()) {
        tokio::time::sleep(latency).await;
        core.faults.reachable(name.as_deref()).await?;
    }
    let fault = core.faults.next_fault(record.verb, resource, name.as_deref());
    let answer = match (fault, fault.and_then(Fault::failure)) {
        (Some(Fault::Disconnect), _) => {
            core.record(record);
            return Err(ConnectionCut);
        }
        (_, Some(failure)) => fail(&failure),
        _ => {
            let endpoint = match (target, reviews::kind_at(&segments)) {
                (Some(target), _) => Endpoint::Resource(target, verb),
                (None, Some(kind)) => Endpoint::Review(kind),
                (None, None) => Endpoint::NonResource(&segments),
            };
            let received = Received { method: parts.method, headers: parts.headers, query: parsed, body, upgrade };
            match respond(&core, user, endpoint, received, &slot).await {
                Ok(answer) => answer,
                Err(failure) => fail(&failure),
            }
        }
    };
    if fault != Some(Fault::LostResponse) {
        record.status = answer.status().as_u16();
    }
    core.record(record);
    if fault == Some(Fault::LostResponse) { Err(ConnectionCut) } else { Ok(answer) }
}

/// The endpoint of a request.
enum Endpoint<'a> {
    /// Objects, with the verb if the method is allowed.
    Resource(Target, Option<&'static str>),
    /// A review of this kind.
    Review(&'static str),
    /// A path without objects, such as `/version`.
    NonResource(&'a [&'a str]),
}

/// What a client has sent, besides the path.
struct Received {
    method: Method,
    headers: HeaderMap,
    query: Query,
    body: Incoming,
    upgrade: Option<OnUpgrade>,
}

async fn respond(
    core: &Arc<Core>,
    user: Option<Arc<User>>,
    endpoint: Endpoint<'_>,
    received: Received,
    slot: &UpgradeSlot,
) -> Result<Answer, Failure> {
    let Received { method, headers, query, body, upgrade } = received;
    let headers = &headers;
    let accept = header(headers, header::ACCEPT).unwrap_or("*/*");
    let (target, verb) = match endpoint {
        Endpoint::NonResource(segments) => return non_resource(core, user.is_some(), &method, segments, accept),
        Endpoint::Review(kind) => return review(core, user, &method, headers, kind, body).await,
        Endpoint::Resource(target, verb) => (target, verb),
    };
    let user = user.ok_or_else(Failure::unauthorized)?;
    let verb = verb.ok_or_else(Failure::method_not_allowed)?;
    let agent = header(headers, header::USER_AGENT).and_then(|agent| agent.split('/').next()).unwrap_or_default();
    let mut call = Call {
        core: core.clone(),
        user,
        target,
        verb,
        query,
        agent: if agent.is_empty() { "unknown".to_owned() } else { agent.to_owned() },
        content_type: header(headers, header::CONTENT_TYPE).unwrap_or("application/json").to_owned(),
    };
    call.authorize()?;
    match call.target.subresource {
        Some(Subresource::Log) => return streams::logs(&call).await,
        Some(Subresource::Exec) => {
            let (answer, upgraded) = streams::exec(&call, &method, headers, upgrade)?;
            *slot.lock().unwrap_or_else(PoisonError::into_inner) = Some(upgraded);
            return Ok(answer);
        }
        Some(Subresource::Status | Subresource::Binding) | None => {}
    }
    let view = View::accepted(accept, &call)?;
    if method == Method::GET {
        return match verb {
            "get" => Ok(view.answer(StatusCode::OK, read::get(&call).await?)),
            "list" => Ok(view.answer(StatusCode::OK, read::list(&call).await?)),
            _ => Ok(watch_answer(view, watch::start(call)?)),
        };
    }
    let mut body = collect(body).await?;
    let mut decoded = None;
    if media::is_protobuf(&call.content_type) && !body.is_empty() {
        let object = media::decode_protobuf(&body)?;
        if call.target.subresource != Some(Subresource::Binding) && matches!(verb, "create" | "update") {
            decoded = Some(object);
        } else {
            body = object.to_string().into();
        }
        call.content_type = "application/json".to_owned();
    }
    call.check_options()?;
    if verb != "patch" && !call.content_type.contains("json") && !call.content_type.contains("yaml") && !body.is_empty()
    {
        return Err(Failure::media_type());
    }
    if call.target.subresource == Some(Subresource::Binding) {
        return match verb {
            "create" => Ok(json_answer(StatusCode::CREATED, binding::bind(&call, &body)?.to_string().into_bytes())),
            _ => Err(Failure::method_not_allowed()),
        };
    }
    let (created, object) = match verb {
        "create" => (true, write::create(&call, Payload::of(decoded, &body))?),
        "update" => (false, write::replace(&call, Payload::of(decoded, &body))?),
        "patch" => patch::patch(&call, &body)?,
        "delete" => return Ok(view.answer(StatusCode::OK, delete::one(&call, &body)?)),
        _ => return Ok(view.answer(StatusCode::OK, delete::collection(&call, &body)?)),
    };
    let mut out = Vec::with_capacity(object.json().len() + 64);
    super::codec::encode(call.resource(), call.target.version, &object, &mut out);
    let mut answer = view.answer(if created { StatusCode::CREATED } else { StatusCode::OK }, out);
    for warning in rules::warnings(call.resource(), &object.value) {
        match header::HeaderValue::from_str(&format!("299 - {warning:?}")) {
            Ok(value) => drop(answer.headers_mut().append(header::WARNING, value)),
            Err(error) => tracing::debug!(warning, %error, "warning does not fit into a header"),
        }
    }
    Ok(answer)
}

/// Handles reviews.
async fn review(
    core: &Core,
    user: Option<Arc<User>>,
    method: &Method,
    headers: &HeaderMap,
    kind: &str,
    body: Incoming,
) -> Result<Answer, Failure> {
    let user = user.ok_or_else(Failure::unauthorized)?;
    if *method != Method::POST {
        return Err(Failure::method_not_allowed());
    }
    let content_type = header(headers, header::CONTENT_TYPE).unwrap_or("application/json");
    let mut body = collect(body).await?;
    if media::is_protobuf(content_type) {
        body = media::decode_protobuf(&body)?.to_string().into();
    } else if !content_type.contains("json") && !content_type.contains("yaml") {
        return Err(Failure::media_type());
    }
    let review = reviews::answer(core, &user, kind, &body, content_type.contains("yaml"))?;
    Ok(json_answer(StatusCode::CREATED, review.to_string().into_bytes()))
}

/// Handles non-resource paths. Health and version need no authentication, as in the kube-apiserver.
fn non_resource(
    core: &Core,
    authenticated: bool,
    method: &Method,
    segments: &[&str],
    accept: &str,
) -> Result<Answer, Failure> {
    if let ["healthz" | "readyz" | "livez", ..] = segments {
        return Ok(text_answer(StatusCode::OK, "ok"));
    }
    if !authenticated && *segments != ["version"] {
        return Err(Failure::unauthorized());
    }
    let found = match segments {
        ["openapi", below @ ..] => {
            openapi::answer(below, &core.versions).map(|document| ("application/json", document))
        }
        segments => discovery::answer(segments, accept, &core.versions, &core.address),
    };
    match found {
        Some(_) if *method != Method::GET => Err(Failure::method_not_allowed()),
        // Clients of version 2 ask for protobuf alone, which this server does not have.
        Some(_) if accept.contains("protobuf") && !["json", "*/*"].iter().any(|known| accept.contains(known)) => {
            Err(Failure::not_acceptable())
        }
        Some((media_type, document)) => Ok(answer(StatusCode::OK, media_type, full(document.to_string()))),
        None if discovery::has_group(segments) => Err(Failure::no_resource()),
        None => Ok(text_answer(StatusCode::NOT_FOUND, "404 page not found\n")),
    }
}

async fn collect(body: Incoming) -> Result<Bytes, Failure> {
    match Limited::new(body, MAX_BODY_BYTES).collect().await {
        Ok(body) => Ok(body.to_bytes()),
        Err(error) if error.is::<LengthLimitError>() => Err(Failure::too_large()),
        Err(error) => Err(Failure::bad_request(format!("reading the request body failed: {error}"))),
    }
}

fn header(headers: &HeaderMap, name: header::HeaderName) -> Option<&str> {
    headers.get(name).and_then(|value| value.to_str().ok())
}

fn fail(failure: &Failure) -> Answer {
    let status = StatusCode::from_u16(failure.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut answer = json_answer(status, failure.body().to_string().into_bytes());
    if let Some(seconds) = failure.retry_after {
        answer.headers_mut().insert(header::RETRY_AFTER, seconds.into());
    }
    answer
}

fn json_answer(status: StatusCode, body: Vec<u8>) -> Answer {
    answer(status, "application/json", full(body))
}

fn text_answer(status: StatusCode, body: &'static str) -> Answer {
    answer(status, "text/plain; charset=utf-8", full(body))
}

fn watch_answer(view: View, lines: impl Stream<Item = io::Result<Bytes>> + Send + 'static) -> Answer {
    let mut is_first = true;
    let frames =
        lines.map(move |lines| view.encode_watch_lines(lines?, std::mem::take(&mut is_first)).map(Frame::data));
    answer(StatusCode::OK, view.watch_media_type(), StreamBody::new(frames).boxed_unsync())
}

pub(super) fn full(body: impl Into<Bytes>) -> UnsyncBoxBody<Bytes, io::Error> {
    Full::new(body.into()).map_err(|never: Infallible| match never {}).boxed_unsync()
}

pub(super) fn answer(status: StatusCode, kind: &'static str, body: UnsyncBoxBody<Bytes, io::Error>) -> Answer {
    let mut answer = Response::new(body);
    *answer.status_mut() = status;
    answer.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static(kind));
    answer.headers_mut().insert(header::CACHE_CONTROL, header::HeaderValue::from_static("no-cache, private"));
    answer
}
