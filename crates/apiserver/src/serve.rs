//! Request handling: authentication, injected faults, routing and the response.

use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::time::Instant;

use futures::stream::{Stream, StreamExt as _};
use http::{HeaderMap, Method, Request, Response, StatusCode, header};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full, LengthLimitError, Limited, StreamBody};
use hyper::body::{Body as _, Bytes, Frame, Incoming};

use super::call::{Call, Subresource, Target};
use super::core::{Core, RequestRecord};
use super::faults::{ConnectionCut, Fault};
use super::media::{self, Media};
use super::query::Query;
use super::resource::DRA_GROUP;
use super::rules::{self, User};
use super::status::Failure;
use super::{binding, delete, discovery, patch, read, watch, write};

/// The limit of a request body, as in the kube-apiserver.
const MAX_BODY_BYTES: usize = 3 * 1024 * 1024;

pub(crate) type Answer = Response<UnsyncBoxBody<Bytes, io::Error>>;

/// Handles a request. An error closes the connection.
pub(crate) async fn serve(core: Arc<Core>, request: Request<Incoming>) -> Result<Answer, ConnectionCut> {
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
            let endpoint = match target {
                Some(target) => Endpoint::Resource(target, verb),
                None => Endpoint::NonResource(&segments),
            };
            match respond(&core, user, endpoint, &parts.method, &parts.headers, parsed, body).await {
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
    /// A path without objects, such as `/version`.
    NonResource(&'a [&'a str]),
}

async fn respond(
    core: &Arc<Core>,
    user: Option<Arc<User>>,
    endpoint: Endpoint<'_>,
    method: &Method,
    headers: &HeaderMap,
    query: Query,
    body: Incoming,
) -> Result<Answer, Failure> {
    let (target, verb) = match endpoint {
        Endpoint::NonResource(segments) => return non_resource(core, user.is_some(), segments),
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
    let accept = header(headers, header::ACCEPT).unwrap_or("*/*");
    let media = Media::accepted(accept, call.target.version.api_version(), call.resource().kind())?;
    if *method == Method::GET {
        return match verb {
            "get" => Ok(media.answer(StatusCode::OK, read::get(&call).await?)),
            "list" => Ok(media.answer(StatusCode::OK, read::list(&call).await?)),
            _ => Ok(watch_answer(media, watch::start(call)?)),
        };
    }
    let mut body = collect(body).await?;
    if media::is_protobuf(&call.content_type) && !body.is_empty() {
        body = media::to_json(&body)?.into();
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
        "create" => (true, write::create(&call, &body)?),
        "update" => (false, write::replace(&call, &body)?),
        "patch" => patch::patch(&call, &body)?,
        "delete" => return Ok(media.answer(StatusCode::OK, delete::one(&call, &body)?)),
        _ => return Ok(media.answer(StatusCode::OK, delete::collection(&call, &body)?)),
    };
    let mut out = Vec::with_capacity(object.json().len() + 64);
    super::codec::encode(call.resource(), call.target.version, &object, &mut out);
    let mut answer = media.answer(if created { StatusCode::CREATED } else { StatusCode::OK }, out);
    for warning in rules::warnings(call.resource(), &object.value) {
        match header::HeaderValue::from_str(&format!("299 - {warning:?}")) {
            Ok(value) => drop(answer.headers_mut().append(header::WARNING, value)),
            Err(error) => tracing::debug!(warning, %error, "warning does not fit into a header"),
        }
    }
    Ok(answer)
}

/// Handles non-resource paths. Health and version need no authentication, as in the kube-apiserver.
fn non_resource(core: &Core, authenticated: bool, segments: &[&str]) -> Result<Answer, Failure> {
    if let ["healthz" | "readyz" | "livez", ..] = segments {
        return Ok(text_answer(StatusCode::OK, "ok"));
    }
    if !authenticated && *segments != ["version"] {
        return Err(Failure::unauthorized());
    }
    match discovery::answer(segments, &core.versions, &core.address) {
        Some(answer) => Ok(json_answer(StatusCode::OK, answer.to_string().into_bytes())),
        None if matches!(segments, ["api", ..] | ["apis", DRA_GROUP | "events.k8s.io", ..]) => {
            Err(Failure::no_resource())
        }
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

fn watch_answer(media: Media, lines: impl Stream<Item = io::Result<Bytes>> + Send + 'static) -> Answer {
    let frames = lines.map(move |lines| media.encode_watch_lines(lines?).map(Frame::data));
    answer(StatusCode::OK, media.watch_media_type(), StreamBody::new(frames).boxed_unsync())
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
