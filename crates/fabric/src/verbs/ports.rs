//! The choice of device, port and address (GID) for RDMA.
//!
//! An address of RoCE v2 is an IP address of the port's network interface. So the connection over which session and
//! memory node say hello tells which port to use: the port whose IP address is the address of this end of the
//! connection. If no port has that address (as with loopback or InfiniBand), the choice is the best address of all
//! ports that are up, and the first among equals. [`DEVICE_VARIABLE`] overrides this choice.

use std::net::{IpAddr, Ipv6Addr};

use crate::error::RdmaError;

/// The environment variable that chooses the device for memory nodes and sessions: `DEVICE[:PORT[:GID]]`, such as
/// `mlx5_0:1:3`.
pub const DEVICE_VARIABLE: &str = "FUSEE_RDMA_DEVICE";

/// The kinds of GIDs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum GidKind {
    InfiniBand,
    RoceV1,
    RoceV2,
}

/// An entry of a port's table of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Gid {
    pub(super) index: u8,
    pub(super) kind: GidKind,
    pub(super) bytes: [u8; 16],
}

/// A port of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Port {
    pub(super) device: String,
    pub(super) number: u8,
    pub(super) is_up: bool,
    pub(super) is_ethernet: bool,
    pub(super) lid: u16,
    /// The largest packet, numbered as in the library's header: from 1 for 256 bytes to 5 for 4096.
    pub(super) mtu: u8,
    pub(super) max_message_bytes: u32,
    pub(super) gids: Vec<Gid>,
}

/// A port, and the address of that port to use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SelectedPort {
    pub(super) port: Port,
    pub(super) gid: Gid,
}

/// The choice by [`DEVICE_VARIABLE`]; `None` in a field: not chosen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct DeviceChoice {
    device: Option<String>,
    port: Option<u8>,
    gid: Option<u8>,
}

impl DeviceChoice {
    /// Reads the choice from the environment variable.
    pub(super) fn from_environment() -> Result<DeviceChoice, RdmaError> {
        match std::env::var(DEVICE_VARIABLE) {
            Ok(text) if !text.is_empty() => DeviceChoice::parse(&text),
            _ => Ok(DeviceChoice::default()),
        }
    }

    fn parse(text: &str) -> Result<DeviceChoice, RdmaError> {
        let bad = || RdmaError::BadChoice { variable: DEVICE_VARIABLE, value: text.to_owned() };
        let mut parts = text.split(':');
        let device = parts.next().filter(|name| !name.is_empty()).ok_or_else(bad)?;
        let mut number = || parts.next().map(str::parse::<u8>).transpose().map_err(|_| bad());
        let port = number()?;
        let gid = number()?;
        if parts.next().is_some() {
            return Err(bad());
        }
        Ok(DeviceChoice { device: Some(device.to_owned()), port, gid })
    }
}

impl Gid {
    /// Returns the IP address that this GID represents; `None` if it represents none.
    pub(super) fn address(&self) -> Option<IpAddr> {
        let is_ip = self.kind == GidKind::RoceV2;
        is_ip.then(|| Ipv6Addr::from_octets(self.bytes).to_canonical())
    }

    /// Returns the rank by which an address is chosen if no port has the address of the connection; less is better.
    fn rank(&self) -> u8 {
        let is_v4 = self.bytes.starts_with(&[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff]);
        let is_link_local = self.bytes.starts_with(&[0xfe, 0x80]);
        match (is_v4, is_link_local) {
            (true, _) => 0,
            (_, false) => 1,
            // Two networks can have the same link-local addresses although no route connects them.
            (_, true) => 2,
        }
    }
}

impl Port {
    /// Returns whether the port uses this kind of address. On Ethernet that is RoCE v2, not v1, which routers do
    /// not forward.
    fn speaks(&self, gid: &Gid) -> bool {
        let kind = if self.is_ethernet { GidKind::RoceV2 } else { GidKind::InfiniBand };
        gid.kind == kind
    }
}

/// Selects the port and address to use. `near` is the address of this end of the connection to the other party.
pub(super) fn select(
    ports: &[Port],
    wanted: &DeviceChoice,
    near: Option<IpAddr>,
) -> Result<SelectedPort, RdmaError> {
    if ports.is_empty() {
        return Err(RdmaError::NoDevice);
    }
    let named = |port: &&Port| {
        wanted.device.as_ref().is_none_or(|name| *name == port.device)
            && wanted.port.is_none_or(|number| number == port.number)
    };
    let ports: Vec<&Port> = match ports.iter().filter(named).collect::<Vec<_>>() {
        named if named.is_empty() => {
            let all = ports.iter().map(|port| format!("{}:{}", port.device, port.number));
            return Err(RdmaError::NoSuchDevice {
                wanted: std::env::var(DEVICE_VARIABLE).unwrap_or_default(),
                there: all.collect::<Vec<_>>().join(", "),
            });
        }
        named => named,
    };
    let names = || ports.iter().map(|port| port.device.clone()).collect::<Vec<_>>().join(", ");
    let up: Vec<&Port> = ports.iter().copied().filter(|port| port.is_up).collect();
    if up.is_empty() {
        return Err(RdmaError::NoPort { devices: names() });
    }
    let usable = |port: &Port, gid: &Gid| match wanted.gid {
        Some(index) => gid.index == index,
        None => port.speaks(gid),
    };
    let all = || up.iter().flat_map(|port| port.gids.iter().map(move |gid| (*port, *gid)));
    let candidates: Vec<(&Port, Gid)> = all().filter(|(port, gid)| usable(port, gid)).collect();
    let is_near = |(_, gid): &&(&Port, Gid)| near.is_some() && gid.address() == near;
    let best = candidates.iter().find(is_near);
    // Of candidates with an equal rank, `min_by_key` returns the first.
    let best = best.or_else(|| candidates.iter().min_by_key(|(_, gid)| gid.rank()));
    match best {
        Some((port, gid)) => Ok(SelectedPort { port: (*port).clone(), gid: *gid }),
        None => Err(RdmaError::NoGid { devices: names() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn v4(last: u8) -> [u8; 16] {
        [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, last]
    }

    fn link_local(last: u8) -> [u8; 16] {
        [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, last]
    }

    /// A RoCE port as `rdma_rxe` shows it.
    fn roce(device: &str, last: u8) -> Port {
        let gid = |index, bytes| Gid { index, kind: GidKind::RoceV2, bytes };
        Port {
            device: device.into(),
            number: 1,
            is_up: true,
            is_ethernet: true,
            lid: 0,
            mtu: 3,
            max_message_bytes: 1 << 23,
            gids: vec![
                Gid { index: 0, kind: GidKind::RoceV1, bytes: v4(last) },
                gid(1, link_local(last)),
                gid(2, v4(last)),
            ],
        }
    }

    fn infiniband() -> Port {
        let gids = vec![Gid { index: 0, kind: GidKind::InfiniBand, bytes: link_local(9) }];
        Port { is_ethernet: false, lid: 7, gids, ..roce("ib0", 0) }
    }

    fn pick(ports: &[Port], wanted: &str, near: Option<&str>) -> Result<(String, u8), RdmaError> {
        let wanted =
            if wanted.is_empty() { DeviceChoice::default() } else { DeviceChoice::parse(wanted)? };
        let near = near.map(|near| near.parse().unwrap());
        select(ports, &wanted, near).map(|found| (found.port.device, found.gid.index))
    }

    #[test]
    fn the_connection_tells_which_port() {
        let ports = [roce("a", 1), roce("b", 2)];
        assert_eq!(pick(&ports, "", Some("10.0.0.2")).unwrap(), ("b".into(), 2));
        assert_eq!(pick(&ports, "", Some("fe80::200:0:0:2")).unwrap(), ("b".into(), 1));
        // No port has the loopback address, so the default is chosen.
        assert_eq!(pick(&ports, "", Some("127.0.0.1")).unwrap(), ("a".into(), 2));
        assert_eq!(pick(&ports, "", None).unwrap(), ("a".into(), 2));
        assert_eq!(pick(&[infiniband()], "", Some("10.0.0.2")).unwrap(), ("ib0".into(), 0));
    }

    #[test]
    fn what_is_down_or_of_the_wrong_kind_is_not_taken() {
        let down = Port { is_up: false, ..roce("a", 1) };
        assert_eq!(pick(&[down.clone(), roce("b", 2)], "", None).unwrap().0, "b");
        let error = pick(&[down], "", None).unwrap_err();
        assert!(matches!(error, RdmaError::NoPort { .. }), "{error}");
        let mut old = roce("a", 1);
        old.gids.truncate(1);
        let error = pick(&[old], "", None).unwrap_err();
        assert!(matches!(error, RdmaError::NoGid { .. }), "{error}");
        let error = pick(&[], "", None).unwrap_err();
        assert!(matches!(error, RdmaError::NoDevice), "{error}");
    }

    #[test]
    fn a_wish_overrides_all_of_it() {
        let ports = [roce("a", 1), roce("b", 2)];
        assert_eq!(pick(&ports, "b", Some("10.0.0.1")).unwrap(), ("b".into(), 2));
        assert_eq!(pick(&ports, "a:1:0", None).unwrap(), ("a".into(), 0));
        let error = pick(&ports, "c", None).unwrap_err().to_string();
        assert!(error.contains("a:1, b:1"), "{error}");
        assert!(matches!(pick(&ports, "a:2", None), Err(RdmaError::NoSuchDevice { .. })));
        for bad in ["", ":1", "a:b", "a:1:x", "a:1:2:3", "a:300"] {
            assert!(matches!(DeviceChoice::parse(bad), Err(RdmaError::BadChoice { .. })), "{bad}");
        }
    }
}
