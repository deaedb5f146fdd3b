//! Who may see the pages with details.
//!
//! Health pages and metrics name no object of the cluster, and are for everyone who reaches the endpoint. The others name claims,
//! pods, devices and paths of the node, and the endpoint knows no users. By default they are for clients on the same machine
//! or in the same pod, which is also where `kubectl port-forward` connects from.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use axum::extract::Request;
use axum::http::StatusCode;
use axum::http::header::HOST;
use axum::http::uri::Authority;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

/// Who may see the pages of the HTTP endpoint that name claims, pods, devices and settings: `/`, `/statusz` and `/flagz`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
pub enum HttpDetails {
    /// Nobody.
    None,
    /// Clients with a loopback address: on the same machine or in the same pod, and `kubectl port-forward`.
    #[default]
    Loopback,
    /// Everybody who reaches the endpoint.
    All,
}

impl HttpDetails {
    /// Returns the value as the flag takes it.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Loopback => "loopback",
            Self::All => "all",
        }
    }

    /// Returns why a client does not get the details, if it does not.
    fn refusal<'a>(self, peer: Option<IpAddr>, hosts: impl IntoIterator<Item = &'a str>) -> Option<&'static str> {
        match self {
            Self::All => None,
            Self::None => Some("the driver runs with --http-details=none"),
            Self::Loopback if !peer.is_some_and(|peer| peer.to_canonical().is_loopback()) => Some(
                "it names claims, pods or settings, and is served to clients on the same machine or in the same pod only: \
                 use kubectl port-forward, or --http-details=all if everybody who reaches this address may see it",
            ),
            Self::Loopback if !hosts.into_iter().all(is_local) => Some(
                "the request has a foreign name in its Host header: use the address or localhost (a web page must not read \
                 this one in your browser)",
            ),
            Self::Loopback => None,
        }
    }
}

/// The address of a client, as an extension of its request.
#[derive(Debug, Clone, Copy)]
pub(super) struct Peer(pub(super) IpAddr);

/// Refuses the requests of clients that may not see details.
pub(super) async fn check(details: HttpDetails, request: Request, next: Next) -> Response {
    let peer = request.extensions().get::<Peer>().map(|peer| peer.0);
    let headers = request.headers().get_all(HOST).into_iter().map(|host| host.to_str().unwrap_or("invalid"));
    let hosts = headers.chain(request.uri().authority().map(Authority::as_str));
    match details.refusal(peer, hosts) {
        None => next.run(request).await,
        Some(reason) => (StatusCode::FORBIDDEN, format!("403: {reason}\n\n{}", super::pages::LIST)).into_response(),
    }
}

/// Whether a Host header, or the authority of a request's URI, is an address or `localhost`, which no DNS server can make up.
fn is_local(host: &str) -> bool {
    let Ok(authority) = host.parse::<Authority>() else { return false };
    let name = authority.host();
    let address = name.strip_prefix('[').and_then(|name| name.strip_suffix(']'));
    let is_local_name = name.eq_ignore_ascii_case("localhost")
        || name.parse::<Ipv4Addr>().is_ok()
        || address.is_some_and(|address| address.parse::<Ipv6Addr>().is_ok());
    // Nothing before it, and nothing after it but a port.
    let port = host.strip_prefix(name).map(|rest| rest.strip_prefix(':').unwrap_or(rest));
    is_local_name && port.is_some_and(|port| port.bytes().all(|byte| byte.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_served(details: HttpDetails, peer: &str, host: Option<&str>) -> bool {
        details.refusal(Some(peer.parse().unwrap()), host).is_none()
    }

    #[test]
    fn details_are_for_loopback_clients_unless_the_flag_says_otherwise() {
        for peer in ["127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1"] {
            assert!(is_served(HttpDetails::Loopback, peer, Some("localhost:9464")), "{peer}");
            assert!(!is_served(HttpDetails::None, peer, Some("localhost:9464")), "{peer}");
        }
        for peer in ["10.0.0.1", "::ffff:10.0.0.1", "fe80::1", "0.0.0.0"] {
            assert!(!is_served(HttpDetails::Loopback, peer, Some("localhost:9464")), "{peer}");
            assert!(is_served(HttpDetails::All, peer, Some("drivers.example.com")), "{peer}");
        }
        assert!(HttpDetails::Loopback.refusal(None, None).is_some(), "an unknown client is not a local one");
    }

    /// A name that a hostile web site resolves to 127.0.0.1 must not let its script read the page of a port-forward.
    #[test]
    fn a_foreign_host_name_is_refused() {
        for host in ["localhost", "LOCALHOST:1", "127.0.0.1", "127.0.0.1:9464", "[::1]", "[::1]:9464", "10.1.2.3:80"] {
            assert!(is_served(HttpDetails::Loopback, "127.0.0.1", Some(host)), "{host}");
        }
        assert!(is_served(HttpDetails::Loopback, "127.0.0.1", None));
        let foreign = [
            "evil.example.com",
            "evil.example.com:9464",
            "localhost.example.com",
            "127.0.0.1.nip.io",
            "[::1]evil.example.com",
            "localhost@evil.example.com",
            "evil.example.com@localhost",
            "",
            "[",
        ];
        for host in foreign {
            assert!(!is_served(HttpDetails::Loopback, "127.0.0.1", Some(host)), "{host}");
            let peer = Some(IpAddr::from([127, 0, 0, 1]));
            assert!(HttpDetails::Loopback.refusal(peer, ["localhost", host]).is_some(), "one of two: {host}");
        }
    }
}
