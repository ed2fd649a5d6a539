//! The hosts that HTTP requests are allowed to name, as a protection against DNS rebinding.
//!
//! In such an attack another site makes its own name resolve to this server's address, so that a browser lets that
//! site's page read this server's pages. The browser's requests then name the other site as their host.
//!
//! Numeric addresses cannot resolve to another address, and names without a dot belong to no site, so both are allowed.
//! Other names are allowed if this server knows them from `--http` or `--advertise`.

// Promise SEC-19: HTTP requests for another host are not answered.

use std::net::IpAddr;

use hyper::Request;
use hyper::header::HOST;

/// The allowed names that contain a dot, in lower case.
#[derive(Clone, Debug, Default)]
pub struct AllowedHosts(Vec<String>);

impl AllowedHosts {
    /// Returns the hosts of these addresses, each with or without a port.
    pub fn of<'a>(addresses: impl IntoIterator<Item = &'a str>) -> AllowedHosts {
        AllowedHosts(addresses.into_iter().filter_map(host).collect())
    }

    /// Returns whether a request is allowed. A request that names no host does not come from a browser, and is allowed.
    pub fn is_allowed<B>(&self, request: &Request<B>) -> bool {
        let line = request.uri().authority().map(|authority| authority.as_str());
        let mut named = request.headers().get_all(HOST).iter().map(|value| value.to_str().ok());
        line.is_none_or(|authority| self.contains_host(authority))
            && named.all(|value| value.is_some_and(|authority| self.contains_host(authority)))
    }

    fn contains_host(&self, authority: &str) -> bool {
        host(authority).is_some_and(|host| {
            host.parse::<IpAddr>().is_ok() || !host.contains('.') || self.0.contains(&host)
        })
    }
}

/// Returns the host of `host`, `host:port`, `[v6]` or `[v6]:port`, in lower case and without a final dot.
fn host(authority: &str) -> Option<String> {
    let host = match authority.strip_prefix('[') {
        Some(rest) => rest.split_once(']')?.0,
        None => authority.rsplit_once(':').map_or(authority, |(host, _)| host),
    };
    let host = host.strip_suffix('.').unwrap_or(host).to_ascii_lowercase();
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"-._:".contains(&byte);
    (!host.is_empty() && host.bytes().all(is_name)).then_some(host)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_heard(hosts: &AllowedHosts, named: &[&str]) -> bool {
        let mut request = Request::builder().uri("/status.json");
        for host in named {
            request = request.header(HOST, *host);
        }
        hosts.is_allowed(&request.body(()).unwrap())
    }

    #[test]
    fn addresses_and_own_names_are_heard_and_other_sites_are_not() {
        let hosts =
            AllowedHosts::of(["0.0.0.0:7480", "Store-1.example.org:7480", "mn.example.org"]);
        for own in [
            "127.0.0.1:7480",
            "10.0.0.3",
            "[::1]:7480",
            "[fd00::1]",
            "localhost:7480",
            "fusee-master",
            "store-1.example.org",
            "STORE-1.example.org.:80",
            "mn.example.org:7480",
        ] {
            assert!(is_heard(&hosts, &[own]), "{own}");
        }
        for other in [
            "evil.example",
            "evil.example:7480",
            "example.org",
            "store-1.example.org.evil.example",
            "127.0.0.1.evil.example",
            "localhost.evil.example",
            "",
            ":7480",
            "[::1",
            "evil.example/",
        ] {
            assert!(!is_heard(&hosts, &[other]), "{other}");
        }
        assert!(is_heard(&hosts, &[]), "no browser");
        assert!(!is_heard(&hosts, &["127.0.0.1", "evil.example"]), "one of two");
        let whole = Request::builder().uri("http://evil.example/").header(HOST, "127.0.0.1");
        assert!(!hosts.is_allowed(&whole.body(()).unwrap()));
    }
}
