//! The choice of a fabric for clients with [`FabricChoice::Auto`](crate::FabricChoice::Auto): the best one that reaches
//! all members.
//!
//! Shared memory is chosen if every member has its socket on this host and admits this process. If all members are on
//! this host, but a socket refuses this process or has disappeared, the client uses another fabric, logs a warning
//! once, and shows this in its metrics.

use std::net::{IpAddr, UdpSocket};
use std::path::Path;

use fusee_auth::Keyring;
use fusee_core::view::Member;
use fusee_fabric::{FabricKind, check_shm_access};

/// The fabric of a client. `refused` is the reason why the fabric is not shared memory, although all members lend their
/// pools on this host.
#[derive(Debug)]
pub(crate) struct SelectedFabric {
    pub kind: FabricKind,
    pub refused: Option<String>,
}

impl SelectedFabric {
    /// Makes a selection of a fabric that the program has chosen.
    pub fn asked_for(kind: FabricKind) -> SelectedFabric {
        SelectedFabric { kind, refused: None }
    }

    /// Returns the best fabric that reaches all of these members.
    pub fn best(members: &[Member], keys: Option<&Keyring>) -> SelectedFabric {
        let is_here = |m: &Member| m.shm.as_deref().is_some_and(|path| Path::new(path).exists());
        let has_lost_it = |m: &&Member| !is_here(m) && m.shm.is_some() && is_local(m);
        // If a member is on another host, shared memory cannot be expected, so there is nothing to report.
        let are_here = || members.iter().all(|m| is_here(m) || has_lost_it(&m));
        let refused = if members.iter().all(is_here) {
            match check_shm_access(members, keys) {
                Ok(()) => return SelectedFabric::asked_for(FabricKind::Shm),
                Err(error) => Some(error.to_string()),
            }
        } else {
            members.iter().find(has_lost_it).filter(|_| are_here()).map(|member| {
                let path = member.shm.as_deref().unwrap_or_default();
                format!("{} is on this host, and its socket {path} is not there", member.node)
            })
        };
        let kind = beside_shm(members);
        if let Some(reason) = &refused {
            tracing::warn!(%reason, fabric = %kind, "shared memory is not used");
        }
        SelectedFabric { kind, refused }
    }
}

/// Returns the best fabric other than shared memory.
fn beside_shm(members: &[Member]) -> FabricKind {
    let has_verbs = members.iter().all(|m| m.verbs.is_some());
    // If all members serve nothing but verbs, a client without an RDMA device gets the best error from verbs.
    let only_verbs = members.iter().all(|m| m.tcp.is_none());
    if has_verbs && (only_verbs || fusee_fabric::verbs::default_device().is_ok()) {
        FabricKind::Verbs
    } else {
        FabricKind::Tcp
    }
}

/// Returns whether a member's control service listens at an address of this host. False for a member with a host name
/// instead of an address: the name is not looked up.
fn is_local(member: &Member) -> bool {
    let Some((host, _)) = member.control.rsplit_once(':') else { return false };
    let ip: Result<IpAddr, _> = host.trim_matches(['[', ']']).parse();
    ip.is_ok_and(|ip| UdpSocket::bind((ip, 0)).is_ok())
}

#[cfg(test)]
mod tests {
    use fusee_core::verbs::MnId;

    use super::*;

    fn member(control: &str, shm: Option<&str>) -> Member {
        Member {
            node: MnId(3),
            identity: 7,
            control: control.into(),
            tcp: Some("127.0.0.1:1".into()),
            shm: shm.map(Into::into),
            verbs: None,
            pool_bytes: 4096,
        }
    }

    #[test]
    fn a_socket_that_has_gone_is_told_from_one_of_another_host() {
        let here = SelectedFabric::best(&[member("127.0.0.1:7401", Some("/nowhere/socket"))], None);
        assert_eq!(here.kind, FabricKind::Tcp);
        let refused = here.refused.unwrap();
        assert!(refused.contains("mn3") && refused.contains("/nowhere/socket"), "{refused}");
        // The cases are a member on another host, a member with a host name, and a member without shared memory.
        for (control, shm) in [
            ("192.0.2.77:7401", Some("/nowhere/socket")),
            ("store-1:7401", Some("/nowhere/socket")),
            ("127.0.0.1:7401", None),
        ] {
            let elsewhere = SelectedFabric::best(&[member(control, shm)], None);
            assert!(elsewhere.kind == FabricKind::Tcp && elsewhere.refused.is_none());
        }
        // One of the two members is on another host.
        let members =
            ["127.0.0.1:7401", "192.0.2.77:7401"].map(|c| member(c, Some("/nowhere/socket")));
        assert_eq!(SelectedFabric::best(&members, None).refused, None);
    }
}
