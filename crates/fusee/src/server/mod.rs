//! The servers: `fusee master`, `fusee memory-node` and `fusee switch`.
//!
//! Every setting has one name: as a flag (`--index-keys`), in the file of `--config` (`index-keys = 5`) and in the
//! environment (`FUSEE_INDEX_KEYS`). A flag overrides the environment, the environment overrides the file, and the file
//! overrides the default. One struct defines all four. [`settings`] merges the sources, and [`reload`] merges them
//! again in a running server.

pub mod master;
pub mod memory_node;
#[cfg(test)]
mod random_settings;
pub mod redundancy;
mod reload;
pub mod settings;
mod signals;
pub mod switch;

use std::net::ToSocketAddrs;

use fusee_cli::failure::Failure;
use fusee_cli::output;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Returns a failure if other machines can reach one of these addresses, for servers without a secret.
fn check_reach<'a>(addresses: impl IntoIterator<Item = &'a str>) -> Result<(), Failure> {
    let is_open = |address: &&str| {
        // An address that does not resolve passes here. It is reported when the server listens.
        let mut resolved = address.to_socket_addrs().into_iter().flatten();
        resolved.any(|at| !at.ip().to_canonical().is_loopback())
    };
    match addresses.into_iter().find(is_open) {
        None => Ok(()),
        Some(open) => Err(Failure::usage(format!(
            "{open} may be reached from other machines, and there is no secret: whoever reaches it could read, \
             write and destroy everything. Make one with `fusee secret new FILE`, and give it to all servers with \
             --secret FILE; or say --insecure, where nobody else is in the network"
        ))),
    }
}

/// Raises the limit of file descriptors to the maximum, because every connection takes one. The usual limit of 1024
/// only protects programs that cannot handle more.
fn take_descriptors() {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current != maximum
        && let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum })
    {
        tracing::warn!(?current, %error, "cannot take more file descriptors");
    }
}

/// Prints the addresses of the server as a line of JSON, for the process that has started the server.
fn announce(addresses: &impl serde::Serialize) -> Result<(), Failure> {
    let json = serde_json::to_string(addresses)
        .map_err(|error| Failure::operation(format!("cannot announce: {error}")))?;
    output::line(&json)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_others_reach_needs_a_secret() {
        for here in ["127.0.0.1:7400", "[::1]:0", "localhost:1", "no address at all"] {
            assert_eq!(check_reach([here]), Ok(()), "{here}");
        }
        for open in ["0.0.0.0:7400", "[::]:7400", "192.0.2.1:7400"] {
            let refused = check_reach(["127.0.0.1:0", open]).unwrap_err().to_string();
            assert!(refused.contains(open) && refused.contains("--insecure"), "{refused}");
        }
    }
}
