//! `pods/log`.

use futures::StreamExt as _;
use http::StatusCode;
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::Frame;

use super::{Located, kubelet};
use crate::call::Call;
use crate::kubelet::LogOptions;
use crate::serve::{Answer, answer, full};
use crate::status::Failure;

const TEXT: &str = "text/plain";
/// Parameters that need the time of each line, which kubelets here do not know.
const TIMES: [&str; 3] = ["sinceSeconds", "sinceTime", "timestamps"];

/// Answers with the output of a container.
pub(crate) async fn logs(call: &Call) -> Result<Answer, Failure> {
    let options = options(call)?;
    let located = Located::find(call)?;
    // A pod that is not bound has no output yet.
    let Some(node) = &located.node else { return Ok(answer(StatusCode::OK, TEXT, full(""))) };
    let log = kubelet(call, node)?.logs(located.container, options).await?;
    let body = StreamBody::new(log.map(|piece| piece.map(Frame::data)));
    Ok(answer(StatusCode::OK, TEXT, body.boxed_unsync()))
}

fn options(call: &Call) -> Result<LogOptions, Failure> {
    let query = &call.query;
    if let Some(unsupported) = TIMES.into_iter().find(|name| query.get(name).is_some_and(|value| value != "false")) {
        let message =
            format!("{unsupported} is not supported by this server: it does not know when a line was written");
        return Err(Failure::bad_request(message));
    }
    if query.get("stream").is_some_and(|stream| stream != "All") {
        let message = "stream is not supported by this server: output and errors of a container are in one log";
        return Err(Failure::bad_request(message));
    }
    Ok(LogOptions {
        follow: query.flag("follow"),
        previous: query.flag("previous"),
        tail_lines: query.number("tailLines")?,
        limit_bytes: query.number("limitBytes")?,
    })
}
