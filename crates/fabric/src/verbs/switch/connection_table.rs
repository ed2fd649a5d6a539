//! The connections between queue pairs that a switch knows, and its decisions about their packets.
//!
//! The switch observes the hellos of sessions and the welcomes of memory nodes (`wire`). From these messages the switch
//! learns which two queue pairs belong together, at which address they use the pool, and which RDMA key marks READs
//! that can be steered. The switch believes a message only about the sender's own address, so that strangers cannot
//! speak for others. Packets of other connections pass unchanged.
//!
//! # Repeated requests
//!
//! A lost request is sent again, and the node's NIC recognizes the repetition only if the address is the same. So the
//! switch remembers its decisions about the last steered READs of a connection, and repeats them. These decisions are
//! not soft state that a [`Switch`] is allowed to forget: if a switch is restarted while the wire loses packets, a
//! session can lose its connection.
//!
//! A READ whose answer takes several packets can be repeated from its middle, where it looks like another READ. So
//! such a READ is not steered, and neither is its repeated rest.

// Promise FAB-24

use std::collections::{HashMap, VecDeque};

use fusee_core::layout::POOL_HEADER_BYTES;
use fusee_core::verbs::MnId;
use fusee_core::view::PoolPlace;
use fusee_switch::{
    CasAnswer, ForgetScope, Switch, SwitchConnection, SwitchDecision, SwitchRequest, SwitchVerb,
};

use super::packet::{self, Flow, FrameContents, RoceEndpoint, RoceRequest};
use crate::verbs::wire::{HELLO_BYTES, VerbsHello, VerbsHelloStatus, VerbsWelcome, WELCOME_BYTES};

/// The largest number of connections that a switch knows.
const CONNECTIONS: usize = 1_024;
/// The largest number of unanswered hellos that a switch remembers.
const HELLOS: usize = 256;
/// The largest number of remembered steered READs of a connection. NICs have fewer in flight.
const REMEMBERED: usize = 256;
/// The number of different packet sequence numbers (PSNs).
const PSNS: u32 = 1 << 24;

/// A connection between a session's queue pair and a memory node's.
#[derive(Debug)]
struct RoceConnection {
    client: RoceEndpoint,
    flow: Flow,
    node: MnId,
    base: u64,
    pool_bytes: u64,
    /// The RDMA key of READs that the switch is allowed to steer; 0 if there is none.
    steered_key: u32,
    /// The length in bytes of the longest READ whose answer is one packet.
    most: u32,
    /// The latest READs with the RDMA key for steered READs, oldest first.
    asked: VecDeque<RememberedRead>,
}

/// A READ with the RDMA key for steered READs, and the switch's decision about it.
#[derive(Clone, Copy, Debug)]
struct RememberedRead {
    psn: u32,
    /// The number of packets of the READ's answer.
    packets: u32,
    address: u64,
    went: u64,
}

/// The switch's decision about a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FrameDecision {
    On,
    /// The frame waits, and so do all later frames of its connection.
    Waits,
}

/// The connections that pass a switch, and the switch that decides about their verbs.
pub(super) struct RoceConnectionTable {
    switch: Box<dyn Switch + Send>,
    hellos: VecDeque<(Flow, VerbsHello)>,
    /// The known connections, by the memory node's end.
    known: HashMap<RoceEndpoint, (SwitchConnection, RoceConnection)>,
    /// The memory nodes' ends, by the client's end.
    nodes_of: HashMap<RoceEndpoint, RoceEndpoint>,
    /// The memory nodes' ends of the known connections, oldest first.
    ends: VecDeque<RoceEndpoint>,
    next: u64,
}

impl RoceConnectionTable {
    pub(super) fn new(switch: Box<dyn Switch + Send>) -> RoceConnectionTable {
        RoceConnectionTable {
            switch,
            hellos: VecDeque::new(),
            known: HashMap::new(),
            nodes_of: HashMap::new(),
            ends: VecDeque::new(),
            next: 1,
        }
    }

    pub(super) fn switch(&mut self) -> &mut dyn Switch {
        &mut *self.switch
    }

    /// Returns the number of known connections.
    pub(super) fn connections(&self) -> usize {
        self.known.len()
    }

    /// Returns the bytes of memory that this table's connections take. The memory of the [`Switch`] is not included.
    pub(super) fn bytes(&self) -> u64 {
        let asked = self.known.values().map(|(_, known)| known.asked.len());
        (asked.sum::<usize>() * size_of::<RememberedRead>()
            + self.known.len() * size_of::<RoceConnection>()) as u64
    }

    /// Returns the connection that a request belongs to, if the frame is one and its connection is known.
    pub(super) fn connection(&self, frame: &[u8]) -> Option<SwitchConnection> {
        match packet::look(frame) {
            FrameContents::Request { to, .. } => {
                self.known.get(&to).map(|(connection, _)| *connection)
            }
            _ => None,
        }
    }

    /// Handles a frame. Changes the frame if it is a READ that is steered.
    pub(super) fn pass(&mut self, frame: &mut [u8]) -> FrameDecision {
        match packet::look(frame) {
            FrameContents::Request { to, psn, verb } => match self.request(to, psn, verb) {
                SwitchDecision::Forward => {}
                SwitchDecision::Steer(address) => {
                    packet::steer(frame, address).expect("it was looked at");
                }
                SwitchDecision::Hold => return FrameDecision::Waits,
            },
            FrameContents::Found { to, psn, word } => {
                if let Some((connection, _)) = self.of_client(to) {
                    let number = psn.into();
                    let found = word;
                    self.switch.answer(&CasAnswer { connection, number, found });
                }
            }
            FrameContents::Refused { to } => {
                if let Some((_, end)) = self.of_client(to) {
                    self.forget(end);
                }
            }
            FrameContents::Segment { flow, bytes, ends } => self.handle_segment(flow, bytes, ends),
            FrameContents::Other => {}
        }
        FrameDecision::On
    }

    fn of_client(&self, client: RoceEndpoint) -> Option<(SwitchConnection, RoceEndpoint)> {
        let end = *self.nodes_of.get(&client)?;
        self.known.get(&end).map(|(connection, _)| (*connection, end))
    }

    /// Decides about a request. In the returned `SwitchDecision::Steer`, the number is an address for the NIC, not
    /// an offset in the pool.
    fn request(&mut self, to: RoceEndpoint, psn: u32, asked: RoceRequest<'_>) -> SwitchDecision {
        let Some((connection, known)) = self.known.get_mut(&to) else {
            return SwitchDecision::Forward;
        };
        let (address, verb) = match asked {
            RoceRequest::Read { address, key, len } if key == known.steered_key && key != 0 => {
                if let Some(went) = known.repeated_target(psn, address) {
                    return if went == address {
                        SwitchDecision::Forward
                    } else {
                        SwitchDecision::Steer(went)
                    };
                }
                if len > known.most {
                    let packets = len.div_ceil(known.most);
                    known.note(RememberedRead { psn, packets, address, went: address });
                    return SwitchDecision::Forward;
                }
                (address, SwitchVerb::Steered(len))
            }
            RoceRequest::Read { address, len, .. } => (address, SwitchVerb::Read(len)),
            RoceRequest::Write { address, len, start } => (address, SwitchVerb::Write(len, start)),
            RoceRequest::Cas { address, expected, swap } => {
                (address, SwitchVerb::Cas { expected, swap })
            }
        };
        let Some(offset) = address.checked_sub(known.base) else { return SwitchDecision::Forward };
        let place = PoolPlace { node: known.node, offset };
        let connection = *connection;
        let number = psn.into();
        let verdict = self.switch.request(&SwitchRequest { connection, number, place, verb });
        let SwitchVerb::Steered(len) = verb else { return verdict };
        let went = match verdict {
            // The node's NIC would end the connection for a READ outside the pool, so such a READ is not steered.
            SwitchDecision::Steer(offset) if known.has(offset, len) => known.base + offset,
            SwitchDecision::Hold => return SwitchDecision::Hold,
            SwitchDecision::Steer(_) | SwitchDecision::Forward => address,
        };
        known.note(RememberedRead { psn, packets: 1, address, went });
        if went == address { SwitchDecision::Forward } else { SwitchDecision::Steer(went) }
    }

    /// Handles a TCP segment: records hellos and welcomes, and the end of a connection.
    fn handle_segment(&mut self, flow: Flow, bytes: &[u8], ends: bool) {
        if let Some(Ok(hello)) = bytes.first_chunk::<HELLO_BYTES>().map(VerbsHello::decode)
            && bytes.len() == HELLO_BYTES
            && hello.address.gid == flow.from.0
        {
            if self.hellos.len() == HELLOS {
                self.hellos.pop_front();
            }
            self.hellos.push_back((flow, hello));
        } else if let Some(Ok(welcome)) =
            bytes.first_chunk::<WELCOME_BYTES>().map(VerbsWelcome::decode)
            && welcome.status == VerbsHelloStatus::Welcome
            && welcome.address.gid == flow.from.0
            && let Some(at) = self.hellos.iter().rposition(|(hello, _)| *hello == flow.back())
        {
            let (_, hello) = self.hellos.remove(at).expect("it is there");
            self.connect(flow, &hello, &welcome);
        }
        if ends {
            let of = |known: &RoceConnection| known.flow == flow || known.flow == flow.back();
            let end = self.known.iter().find(|(_, (_, known))| of(known)).map(|(end, _)| *end);
            if let Some(end) = end {
                self.forget(end);
            }
        }
    }

    fn connect(&mut self, flow: Flow, hello: &VerbsHello, welcome: &VerbsWelcome) {
        let end = |address: &crate::verbs::wire::QueuePairAddress| RoceEndpoint {
            gid: address.gid,
            queue_pair: address.queue_pair,
        };
        let client = end(&hello.address);
        let node_end = end(&welcome.address);
        // Numbers of queue pairs are used again, so earlier connections with these numbers have ended.
        self.forget(node_end);
        if let Some((_, end)) = self.of_client(client) {
            self.forget(end);
        }
        if self.known.len() == CONNECTIONS
            && let Some(oldest) = self.ends.front().copied()
        {
            self.forget(oldest);
        }
        let mtu = hello.address.mtu.min(welcome.address.mtu);
        let known = RoceConnection {
            client,
            flow,
            // Names of nodes are random. If two nodes have the same number in this table, READs can be steered wrongly,
            // which is allowed.
            node: MnId(welcome.node as u16),
            base: welcome.base,
            pool_bytes: welcome.pool_bytes,
            steered_key: welcome.steered_key,
            most: 128 << mtu,
            asked: VecDeque::new(),
        };
        self.known.insert(node_end, (SwitchConnection(self.next), known));
        self.nodes_of.insert(client, node_end);
        self.ends.push_back(node_end);
        self.next += 1;
    }

    fn forget(&mut self, end: RoceEndpoint) {
        if let Some((connection, known)) = self.known.remove(&end) {
            self.nodes_of.remove(&known.client);
            self.ends.retain(|known| *known != end);
            self.switch.forget(ForgetScope::Connection(connection));
        }
    }
}

impl RoceConnection {
    /// Returns the address to which a repeated READ, or the repeated rest of a READ, must go; `None` if the READ is
    /// new.
    fn repeated_target(&self, psn: u32, address: u64) -> Option<u64> {
        let earlier = |of: &&RememberedRead| match psn.wrapping_sub(of.psn) & (PSNS - 1) {
            0 => of.address == address,
            behind => behind < of.packets,
        };
        let earlier = self.asked.iter().rev().find(earlier)?;
        Some(if earlier.psn == psn { earlier.went } else { address })
    }

    fn note(&mut self, one: RememberedRead) {
        if self.asked.len() == REMEMBERED {
            self.asked.pop_front();
        }
        self.asked.push_back(one);
    }

    /// Returns whether `len` bytes at this offset are in the part of the pool behind the header.
    fn has(&self, offset: u64, len: u32) -> bool {
        let end = offset.checked_add(len.into());
        offset >= POOL_HEADER_BYTES && end.is_some_and(|end| end <= self.pool_bytes)
    }
}

#[cfg(test)]
mod tests {
    use fusee_core::layout::{Address as Global, Identity, Opcode, Pair, SizeClass, Slot};
    use fusee_core::verbs::ClientId;
    use fusee_switch::fusee::{FuseeSwitch, FuseeSwitchOptions};

    use super::packet::made;
    use super::*;
    use crate::verbs::wire::QueuePairAddress;

    const BASE: u64 = 0x7f00_0000_0000;
    const POOL_BYTES: u64 = 1 << 20;
    const STEERED: u32 = 0x77;
    const SLOT: u64 = BASE + 8192;

    fn object(number: u64) -> ([u8; 64], Slot) {
        let address = Global::new(number * 64);
        let identity = Identity::new(address, 3);
        let pair = Pair { key: b"key", value: b"value", identity, opcode: Opcode::Update };
        let mut bytes = [0; 64];
        pair.encode(&mut bytes);
        (bytes, Slot::new(7, SizeClass::fitting(64).unwrap(), address, 3))
    }

    struct RoceTestRig {
        path: RoceConnectionTable,
        client: RoceEndpoint,
        node: RoceEndpoint,
        flow: Flow,
        psn: u32,
    }

    /// Returns the address that an end gives in its message.
    fn address(end: RoceEndpoint) -> QueuePairAddress {
        let RoceEndpoint { queue_pair, gid } = end;
        QueuePairAddress { queue_pair, first_packet: 1, lid: 0, mtu: 3, depth: 1, gid }
    }

    impl RoceTestRig {
        /// Makes a switch that has observed the hello of a session and the welcome of a memory node.
        fn new(rounds: usize) -> RoceTestRig {
            let path = RoceConnectionTable::new(Box::new(FuseeSwitch::new(FuseeSwitchOptions {
                slots: 4,
                rounds,
            })));
            let client = made::end(1, 17);
            let node = made::end(2, 18);
            let flow = Flow { from: (client.gid, 50_000), to: (node.gid, 7402) };
            let mut world = RoceTestRig { path, client, node, flow, psn: 100 };
            world.greet(world.client, world.node, POOL_BYTES);
            world
        }

        fn greet(&mut self, client: RoceEndpoint, node: RoceEndpoint, pool_bytes: u64) {
            let hello = VerbsHello { node: 5, client: ClientId(1), address: address(client) };
            let welcome = VerbsWelcome {
                pool_bytes,
                base: BASE,
                key: 7,
                header_key: 8,
                steered_key: STEERED,
                address: address(node),
                ..VerbsWelcome::refusal(5, VerbsHelloStatus::Welcome)
            };
            let flow = self.flow;
            self.pass(made::segment(flow, &hello.encode(), false));
            self.pass(made::segment(flow.back(), &welcome.encode(), false));
        }

        fn pass(&mut self, mut frame: Vec<u8>) -> Vec<u8> {
            assert_eq!(self.path.pass(&mut frame), FrameDecision::On);
            frame
        }

        /// Passes a READ of the slot that can be steered, with this packet number. Returns the address to which it
        /// goes.
        fn ask_as(&mut self, psn: u32, len: u32) -> u64 {
            let read = made::read(self.client.gid, self.node, psn, SLOT, STEERED, len);
            let frame = self.pass(read);
            assert_eq!(made::icrc_of(&frame), made::checked(&frame));
            match packet::look(&frame) {
                FrameContents::Request {
                    verb: RoceRequest::Read { address, key: STEERED, .. },
                    ..
                } => address,
                other => panic!("{other:?}"),
            }
        }

        fn ask(&mut self, len: u32) -> u64 {
            self.psn += 1;
            self.ask_as(self.psn, len)
        }

        /// WRITEs an object to an address, and CASes the slot to a word that leads there.
        fn write(&mut self, number: u64, address: u64, expected: Slot) {
            let (bytes, word) = object(number);
            let from = self.client.gid;
            let to = self.node;
            self.psn += 2;
            self.pass(made::write(from, to, self.psn - 1, address, &bytes));
            self.pass(made::cas(from, to, self.psn, SLOT, [expected.0, word.0]));
            self.pass(made::found(to.gid, self.client, self.psn, expected.0));
        }
    }

    #[test]
    fn a_read_is_steered_to_where_the_slot_leads() {
        let mut world = RoceTestRig::new(0);
        assert_eq!(world.path.connections(), 1);
        assert_eq!(world.ask(64), SLOT, "nothing is known");
        world.write(1, BASE + 65_536, Slot(0));
        assert_eq!(world.ask(64), BASE + 65_536);
        world.write(2, BASE + 131_072, object(1).1);
        assert_eq!(world.ask(64), BASE + 131_072);
        // A READ with another RDMA key is not steered.
        let frame = made::read(world.client.gid, world.node, 9, SLOT, 7, 64);
        assert_eq!(world.pass(frame.clone()), frame);
    }

    /// A message about another address than its sender's is ignored, whichever end sends it. If it were believed,
    /// the switch would steer READs of another session, or to another node.
    #[test]
    fn a_hello_or_a_welcome_that_speaks_of_another_address_is_not_heard() {
        let client = made::end(3, 27);
        let node = made::end(4, 28);
        let other = made::end(5, 29);
        for (said_client, said_node, heard) in
            [(client, node, 2), (other, node, 1), (client, other, 1)]
        {
            let mut world = RoceTestRig::new(0);
            world.flow = Flow { from: (client.gid, 50_001), to: (node.gid, 7402) };
            world.greet(said_client, said_node, POOL_BYTES);
            assert_eq!(world.path.connections(), heard, "{said_client:?} {said_node:?}");
            let hello = VerbsHello { node: 5, client: ClientId(1), address: address(said_client) };
            assert_eq!(VerbsHello::decode(&hello.encode()), Ok(hello), "it is well-formed");
        }
    }

    #[test]
    fn what_is_sent_again_goes_where_it_went() {
        let mut world = RoceTestRig::new(0);
        assert_eq!(world.ask_as(1, 64), SLOT);
        world.write(1, BASE + 65_536, Slot(0));
        assert_eq!(world.ask_as(2, 64), BASE + 65_536);
        world.write(2, BASE + 131_072, object(1).1);
        for _ in 0..2 {
            assert_eq!(world.ask_as(1, 64), SLOT);
            assert_eq!(world.ask_as(2, 64), BASE + 65_536);
            world.path.switch().forget(ForgetScope::All);
        }
    }

    /// Packet numbers are used again, so a new READ can have the number of a remembered one. The new READ goes to
    /// its own address.
    #[test]
    fn a_number_that_is_used_again_for_another_address_is_another_read() {
        let mut world = RoceTestRig::new(0);
        world.ask_as(1, 64);
        world.write(1, BASE + 65_536, Slot(0));
        assert_eq!(world.ask_as(2, 64), BASE + 65_536);
        let from = world.client.gid;
        let to = world.node;
        let other = SLOT + 64;
        for address in [other, SLOT, other] {
            let frame = world.pass(made::read(from, to, 2, address, STEERED, 64));
            let goes = if address == SLOT { BASE + 65_536 } else { other };
            let FrameContents::Request { verb: RoceRequest::Read { address, .. }, .. } =
                packet::look(&frame)
            else {
                panic!("it is a READ");
            };
            assert_eq!(address, goes);
        }
    }

    #[test]
    fn nothing_is_steered_out_of_the_pool_or_in_pieces() {
        for (address, goes) in [
            (BASE + POOL_BYTES - 64, BASE + POOL_BYTES - 64),
            (BASE + POOL_BYTES - 56, SLOT),
            (BASE + POOL_BYTES, SLOT),
            (BASE, SLOT),
            (BASE - 8, SLOT),
        ] {
            let mut world = RoceTestRig::new(0);
            world.ask(64);
            world.write(1, address, Slot(0));
            assert_eq!(world.ask(64), goes, "{address:x}");
        }
        let mut world = RoceTestRig::new(0);
        world.ask(64);
        let from = world.client.gid;
        let to = world.node;
        let mut bytes = vec![0; 2048];
        let word = object(1).1;
        bytes[..64].copy_from_slice(&object(1).0);
        world.pass(made::write(from, to, 1, BASE + 65_536, &bytes));
        world.pass(made::cas(from, to, 2, SLOT, [0, word.0]));
        world.pass(made::found(to.gid, world.client, 2, 0));
        assert_eq!(world.ask(1024), BASE + 65_536);
        assert_eq!(world.ask(1025), SLOT, "two packets");
        // The answer to this READ has two packets. The second one has the bytes at the slot's address, for which the
        // switch knows an object.
        let next = SLOT - 1024;
        let frame = made::read(from, to, PSNS - 1, next, STEERED, 2048);
        assert_eq!(world.pass(frame.clone()), frame);
        assert_eq!(world.ask_as(0, 1024), SLOT, "it is the rest");
        assert_eq!(world.ask_as(1, 1024), BASE + 65_536);
    }

    #[test]
    fn who_is_not_known_is_left_alone() {
        let client = RoceTestRig::new(0).client;
        let ways: [&dyn Fn(&mut RoceTestRig); 4] = [
            &|world| drop(world.pass(made::segment(world.flow, b"", true))),
            &|world| drop(world.pass(made::segment(world.flow.back(), b"", true))),
            &|world| drop(world.pass(made::refused(world.node.gid, client, 1, 2))),
            // The node's queue pair now belongs to another connection, so the earlier one is forgotten.
            &|world| world.greet(made::end(1, 99), world.node, 0),
        ];
        for (at, end) in ways.into_iter().enumerate() {
            let mut world = RoceTestRig::new(0);
            world.ask(64);
            world.write(1, BASE + 65_536, Slot(0));
            // A refusal because a packet came too early does not end the connection.
            world.pass(made::refused(world.node.gid, client, 1, 0));
            assert_eq!(world.ask(64), BASE + 65_536);
            end(&mut world);
            assert_eq!(world.ask(64), SLOT, "{at}");
        }
    }

    #[test]
    fn strangers_say_nothing_of_others() {
        let mut world = RoceTestRig::new(0);
        world.ask(64);
        world.write(1, BASE + 65_536, Slot(0));
        // Both ends are strangers, and their messages are about the addresses of others.
        world.flow = Flow { from: (made::end(8, 0).gid, 1), to: (made::end(9, 0).gid, 2) };
        world.greet(world.client, world.node, 0);
        assert_eq!((world.path.connections(), world.ask(64)), (1, BASE + 65_536));
    }

    #[test]
    fn what_is_known_is_bounded() {
        let mut world = RoceTestRig::new(0);
        for number in 0..2 * CONNECTIONS as u32 {
            let client = made::end(3, number);
            let node = made::end(4, number);
            world.flow = Flow { from: (client.gid, 50_000), to: (node.gid, 7402) };
            world.greet(client, node, POOL_BYTES);
            world.ask(64);
        }
        let path = &world.path;
        let sizes = [path.known.len(), path.nodes_of.len(), path.ends.len()];
        assert_eq!(sizes, [CONNECTIONS; 3]);
        assert!(path.hellos.len() <= HELLOS);
        assert!(path.known.values().all(|(_, known)| known.asked.len() <= REMEMBERED));
    }

    #[test]
    fn a_cas_that_has_to_wait_is_said_to() {
        let mut world = RoceTestRig::new(4);
        let others = made::end(2, 21);
        world.greet(made::end(1, 20), others, POOL_BYTES);
        let from = world.client.gid;
        let old = object(9).1.0;
        let cas = |to, swap| made::cas(from, to, 1, SLOT + 64, [old, swap]);
        // The CAS to 10 came first, so 10 is to win the conflict round. This CAS has passed to the slot's first replica
        // only, so the CAS to 20 waits before the second replica.
        world.pass(cas(world.node, 10));
        world.pass(cas(others, 20));
        let mut elsewhere = made::cas(from, others, 2, SLOT + 128, [old, 20]);
        assert_eq!(world.path.pass(&mut elsewhere), FrameDecision::Waits);
        assert!(world.path.connection(&elsewhere).is_some());
        world.pass(made::cas(from, world.node, 2, SLOT + 128, [old, 10]));
        assert_eq!(world.path.pass(&mut elsewhere), FrameDecision::On);
    }
}
