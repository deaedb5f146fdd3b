//! `pods/exec`: an upgrade to a WebSocket, whose messages belong to [channels](super::channels).

use futures::future::BoxFuture;
use http::{HeaderMap, Method, StatusCode, header};
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::Role;

use super::channels::{self, Protocol};
use super::{Located, kubelet};
use crate::call::Call;
use crate::kubelet::ExecOptions;
use crate::serve::{Answer, full};
use crate::status::Failure;

/// What happens on a connection after its upgrade.
pub(crate) type Upgraded = BoxFuture<'static, ()>;

/// Upgrades a connection to run a program in a container. Returns the response, and what is done on the connection then.
pub(crate) fn exec(
    call: &Call,
    method: &Method,
    headers: &HeaderMap,
    upgrade: Option<OnUpgrade>,
) -> Result<(Answer, Upgraded), Failure> {
    let query = &call.query;
    let options = ExecOptions {
        command: query.all("command").map(str::to_owned).collect(),
        stdin: query.flag("stdin"),
        stdout: query.flag("stdout"),
        stderr: query.flag("stderr") && !query.flag("tty"),
        tty: query.flag("tty"),
    };
    if options.command.is_empty() {
        return Err(Failure::bad_request("you must specify at least one command for the container"));
    }
    if !(options.stdin || options.stdout || options.stderr) {
        return Err(Failure::bad_request("you must specify at least 1 of stdin, stdout, stderr"));
    }
    let located = Located::find(call)?;
    let name = call.name();
    let unbound = || Failure::bad_request(format!("pod {name} does not have a host assigned"));
    let node = located.node.as_deref().ok_or_else(unbound)?;
    let kubelet = kubelet(call, node)?;
    let ((key, protocol), upgrade) = handshake(method, headers).zip(upgrade).ok_or_else(|| {
        let protocols = Protocol::ALL.map(Protocol::name).join(", ");
        Failure::bad_request(format!(
            "Upgrade request required: exec is served on WebSockets, with one of the protocols {protocols}"
        ))
    })?;
    let mut answer = Answer::new(full(""));
    *answer.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let accept = header::HeaderValue::from_str(&derive_accept_key(key.as_bytes())).map_err(Failure::internal)?;
    let own = answer.headers_mut();
    own.insert(header::SEC_WEBSOCKET_ACCEPT, accept);
    own.insert(header::CONNECTION, header::HeaderValue::from_static("Upgrade"));
    own.insert(header::UPGRADE, header::HeaderValue::from_static("websocket"));
    own.insert(header::SEC_WEBSOCKET_PROTOCOL, header::HeaderValue::from_static(protocol.name()));
    let name = name.to_owned();
    let upgraded = Box::pin(async move {
        match upgrade.await {
            Ok(connection) => {
                let socket = WebSocketStream::from_raw_socket(TokioIo::new(connection), Role::Server, None).await;
                // Started after the upgrade, as by a real kubelet: the error channel says why a program does not start.
                let served = match kubelet.exec(located.container, options).await {
                    Ok(session) => channels::serve(socket, protocol, session).await,
                    Err(error) => channels::refuse(socket, &error).await,
                };
                if let Err(error) = served {
                    tracing::debug!(pod = name, %error, "connection of an exec ended");
                }
            }
            Err(error) => tracing::debug!(pod = name, %error, "upgrading the connection of an exec failed"),
        }
    });
    Ok((answer, upgraded))
}

/// Returns the key and the protocol of a request for a WebSocket that this server understands.
fn handshake<'a>(method: &Method, headers: &'a HeaderMap) -> Option<(&'a str, Protocol)> {
    let text = |name: header::HeaderName| headers.get(name).and_then(|value| value.to_str().ok());
    let is_upgrade = *method == Method::GET
        && text(header::UPGRADE)?.eq_ignore_ascii_case("websocket")
        && text(header::SEC_WEBSOCKET_VERSION)? == "13";
    let key = text(header::SEC_WEBSOCKET_KEY)?;
    let wanted = headers.get_all(header::SEC_WEBSOCKET_PROTOCOL).iter().filter_map(|value| value.to_str().ok());
    let mut wanted = wanted.flat_map(|value| value.split(',').map(str::trim));
    let protocol = wanted.find_map(|wanted| Protocol::ALL.into_iter().find(|known| known.name() == wanted))?;
    is_upgrade.then_some((key, protocol))
}
