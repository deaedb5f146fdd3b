//! Whether the environment wants a proxy for a server. Proxies are not supported, so all depends on the answer.

use std::env;
use std::net::IpAddr;

use http::Uri;
use http::uri::Scheme;
use ipnet::IpNet;

/// Returns the proxy that the variables of the environment name for a server, by the rules of Go's HTTP clients.
pub(super) fn of_environment(server: &Uri) -> Option<String> {
    let variable =
        |names: [&str; 2]| names.into_iter().filter_map(|name| env::var(name).ok()).find(|value| !value.is_empty());
    let excluded = variable(["NO_PROXY", "no_proxy"]).unwrap_or_default();
    variable(["HTTPS_PROXY", "https_proxy"]).filter(|_| needs_proxy(server, &excluded))
}

/// Whether requests to a server go through a proxy, which the list `excluded` may forbid.
fn needs_proxy(server: &Uri, excluded: &str) -> bool {
    let host = server.host().unwrap_or_default().trim_matches(['[', ']']).to_ascii_lowercase();
    let host = host.trim_end_matches('.');
    let address: Option<IpAddr> = host.parse().ok();
    if server.scheme() != Some(&Scheme::HTTPS) || host == "localhost" || address.is_some_and(|it| it.is_loopback()) {
        return false;
    }
    let port = server.port_u16().unwrap_or(443);
    !excluded.split(',').map(str::trim).any(|entry| is_excluded(&entry.to_ascii_lowercase(), host, address, port))
}

/// Whether an entry is the host, a domain of it, its address or its network, if it has a port with the same port.
fn is_excluded(entry: &str, host: &str, address: Option<IpAddr>, port: u16) -> bool {
    if entry == "*" {
        return true;
    }
    if let Ok(network) = entry.parse::<IpNet>() {
        return address.is_some_and(|address| network.contains(&address));
    }
    let is_address = |text: &str| text.trim_matches(['[', ']']).parse::<IpAddr>().is_ok();
    let (name, its_port) = match entry.rsplit_once(':') {
        Some((name, its_port)) if !is_address(entry) => (name, its_port.parse().ok()),
        _ => (entry, None),
    };
    if name.is_empty() || its_port.is_some_and(|its_port: u16| its_port != port) {
        return false;
    }
    if is_address(name) {
        return address.is_some() && name.trim_matches(['[', ']']).parse().ok() == address;
    }
    // `.example.com` and `*.example.com` are all below, `example.com` is also the domain itself.
    match name.strip_prefix("*.").or_else(|| name.strip_prefix('.')) {
        Some(domain) => is_below(host, domain),
        None => host == name || is_below(host, name),
    }
}

fn is_below(host: &str, domain: &str) -> bool {
    host.strip_suffix(domain).is_some_and(|rest| rest.ends_with('.'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_are_excluded_as_by_kubectl() {
        let needs = |server: &'static str, excluded| needs_proxy(&Uri::from_static(server), excluded);
        for (server, excluded) in [
            ("http://api.test", ""),
            ("https://127.0.0.1:6443", ""),
            ("https://[::1]:6443", ""),
            ("https://localhost:6443", ""),
            ("https://api.test:6443", "*"),
            ("https://api.test:6443", "other, API.test"),
            ("https://api.test:6443", "test"),
            ("https://api.test:6443", ".test"),
            ("https://api.test:6443", "*.test"),
            ("https://api.test:6443", "api.test:6443"),
            ("https://api.test", "api.test:443"),
            ("https://10.1.2.3:6443", "10.0.0.0/8"),
            ("https://10.1.2.3:6443", "10.1.2.3"),
            ("https://10.1.2.3:6443", "10.1.2.3:6443"),
            ("https://[fd00::1]:6443", "fd00::/8"),
            ("https://[fd00::1]:6443", "fd00::1"),
            ("https://[fd00::1]:6443", "[fd00::1]:6443"),
        ] {
            assert!(!needs(server, excluded), "{server} {excluded}");
        }
        for (server, excluded) in [
            ("https://api.test:6443", ""),
            ("https://api.test:6443", ",,:6443"),
            ("https://api.test:6443", "api.test:443"),
            ("https://api.test:6443", ".api.test"),
            ("https://api.test:6443", "pi.test"),
            ("https://10.1.2.3:6443", "10.1.2.4,11.0.0.0/8,10.1.2.3:443"),
            ("https://[fd00::1]:6443", "fd00::2,10.0.0.0/8"),
        ] {
            assert!(needs(server, excluded), "{server} {excluded}");
        }
    }
}
