//! Addresses of stores that several masters share: `etcd://HOST:PORT,HOST:PORT/PREFIX`.
//!
//! The hosts are members of one etcd cluster; without a port, 2379 is used. All keys begin with the prefix, so that
//! several FUSEE clusters can share one etcd; without a prefix, `fusee` is used. This module only parses the text,
//! whether or not the program can use etcd.

use std::fmt;
use std::path::PathBuf;

const SCHEME: &str = "etcd://";
const DEFAULT_PORT: u16 = 2379;
const DEFAULT_PREFIX: &str = "fusee";

/// The address of a shared store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreAddress {
    /// Hosts and ports of the members of the etcd cluster.
    pub endpoints: Vec<String>,
    /// The beginning of all keys in the store, without a slash at either end.
    pub prefix: String,
    /// The files for TLS, if the store is reached over TLS.
    pub tls: Option<StoreTls>,
}

/// The files for reaching a shared store over TLS. They are read again when they have changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreTls {
    /// The certificate authorities that sign the certificates of the store's members.
    pub ca: PathBuf,
    /// The certificate and key of this master, if the store demands them.
    pub identity: Option<(PathBuf, PathBuf)>,
}

/// Errors of the settings of a shared store.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreAddressError {
    /// The address names another kind of store.
    #[error(
        "`{text}` is no store; write it like etcd://10.0.0.5:2379,10.0.0.6:2379/fusee, or leave \
         it out to keep the state in data_dir"
    )]
    Scheme {
        /// The text of the address.
        text: String,
    },
    /// A part of the address is no host and port.
    #[error("`{endpoint}` in `{text}` is no member of an etcd cluster; write HOST:PORT")]
    Endpoint {
        /// The text of the address.
        text: String,
        /// The part of the address that is no host and port.
        endpoint: String,
    },
    /// The prefix has an invalid form.
    #[error(
        "`{prefix}` in `{text}` is no prefix for keys; use letters, digits and `-`, `_`, `.`, \
         with single slashes between"
    )]
    Prefix {
        /// The text of the address.
        text: String,
        /// The invalid prefix.
        prefix: String,
    },
    /// The program was built without etcd.
    #[error(
        "this program was built without etcd, so it cannot use `{text}`; build it with `cargo \
         build --release --features etcd`"
    )]
    NotBuilt {
        /// The text of the address.
        text: String,
    },
    /// Files for TLS are named in an invalid combination.
    #[error(
        "store_cert and store_key belong together, and to store_ca; and all of them to a store that several masters \
         share"
    )]
    Files,
    /// A file for TLS cannot be used.
    #[error("{0}")]
    Tls(String),
    /// The lease is shorter than etcd allows, or needlessly long.
    #[error("lease_ttl_s is {ttl_s}; it must be 2..=60 seconds")]
    LeaseTtl {
        /// The length of the lease that the setting demands, in seconds.
        ttl_s: u64,
    },
}

impl StoreAddress {
    /// Parses the address of a shared store.
    pub fn parse(text: &str) -> Result<StoreAddress, StoreAddressError> {
        let rest = text.strip_prefix(SCHEME);
        let rest = rest.ok_or_else(|| StoreAddressError::Scheme { text: text.to_owned() })?;
        let (hosts, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        let endpoints = hosts.split(',').map(|host| {
            endpoint(host.trim()).ok_or_else(|| StoreAddressError::Endpoint {
                text: text.to_owned(),
                endpoint: host.to_owned(),
            })
        });
        let endpoints = endpoints.collect::<Result<Vec<_>, _>>()?;
        let prefix = match prefix.trim_end_matches('/') {
            "" => DEFAULT_PREFIX,
            prefix => prefix,
        };
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        if prefix.split('/').any(|part| part.is_empty() || !part.chars().all(plain)) {
            let text = text.to_owned();
            let prefix = prefix.to_owned();
            return Err(StoreAddressError::Prefix { text, prefix });
        }
        Ok(StoreAddress { endpoints, prefix: prefix.to_owned(), tls: None })
    }
}

impl fmt::Display for StoreAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{SCHEME}{}/{}", self.endpoints.join(","), self.prefix)
    }
}

/// Returns host and port of a member of etcd, with the default port if the text names none.
fn endpoint(text: &str) -> Option<String> {
    let (host, port) = match text.rsplit_once(':') {
        // In an address in brackets, the last colon can be inside of the brackets.
        Some((host, port)) if !port.ends_with(']') => (host, port.parse().ok()?),
        _ => (text, DEFAULT_PORT),
    };
    let strange = |c: char| c.is_whitespace() || "/@?#".contains(c);
    (!host.is_empty() && !host.contains(strange)).then(|| format!("{host}:{port}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_understood() {
        for (text, full) in [
            ("etcd://a:1,b:2/x/y", "etcd://a:1,b:2/x/y"),
            ("etcd://a", "etcd://a:2379/fusee"),
            ("etcd://a, b:7/", "etcd://a:2379,b:7/fusee"),
            ("etcd://[::1]:5/p", "etcd://[::1]:5/p"),
            ("etcd://[::1]/p", "etcd://[::1]:2379/p"),
        ] {
            assert_eq!(StoreAddress::parse(text).unwrap().to_string(), full);
        }
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (text, says) in [
            ("/var/lib/fusee", "no store"),
            ("http://a:1", "write it like etcd://"),
            ("etcd://", "write HOST:PORT"),
            ("etcd://a:1,,b:2/x", "write HOST:PORT"),
            ("etcd://a:99999", "`a:99999`"),
            ("etcd://user@a:1/x", "`user@a:1`"),
            ("etcd://a:1/x//y", "`x//y`"),
            ("etcd://a:1/x y", "letters, digits"),
        ] {
            let error = StoreAddress::parse(text).unwrap_err().to_string();
            assert!(error.contains(says), "{text}: {error}");
        }
    }
}
