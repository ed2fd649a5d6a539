//! A switch for our own store. It *steers* READs that allow it, and *orders* the CASes of one round by delaying some.
//! It changes nothing else; in particular it never changes a CAS.
//!
//! # Steered READs
//! If a client's hint is often wrong, the client READs the slot on its primary, and posts behind that READ a [steered
//! READ](fusee_core::verbs::VerbBatch::steered) of the slot. If the switch knows where on the primary's node the slot's
//! object lies, it redirects the steered READ there, which saves a second phase. Otherwise it lets that READ pass
//! unchanged. Then the READ returns bytes of the index, which the client drops.
//!
//! *Why that is safe.* The client accepts the bytes as the word's object only under these conditions: the bytes show
//! the identity of the word that the same batch READ before, their CRC is good, they contain the requested key, and by
//! the client's view the node has a replica of that object. No other object on that node has that identity
//! ([`fusee_core::store`], "steered READs"), so these bytes are that object's, wherever they came from. The client
//! drops all other bytes, as if it had not posted the READ.
//!
//! *How the switch learns.* It remembers the last WRITEs of each connection by the identities with which their objects
//! begin. The CAS of a slot names the identity of the new object. If there were steered READs of that slot, and the
//! same connection has written the object, the switch remembers slot and object. When the node answers that the CAS has
//! found the expected word, the switch knows that the slot leads to that object.
//!
//! # Ordered CASes
//! CASes that expect the same word belong to one round. The new word of the first CAS that passes is the *favourite*. A
//! CAS with another new word waits until the favourite's CAS has passed to the same replica of the slot. So the
//! favourite wins on all replicas, and no session needs rules 2 and 3 of conflict resolution. The rules also work
//! without the switch: a delay by the switch is only one of the delays that every network can cause.

use alloc::collections::{BTreeMap, VecDeque};

use fusee_core::layout::{Object, Slot};
use fusee_core::view::PoolPlace;

use crate::{
    CasAnswer, ForgetScope, HotKeyTable, REMEMBERED, Switch, SwitchConnection, SwitchCounts,
    SwitchDecision, SwitchMemory, SwitchRequest, SwitchVerb, push,
};

/// Largest number of replicas of a slot. For each replica, a round records whether the favourite's CAS has passed.
const PLACES: usize = 5;

/// The sizes of the switch's tables. A size of 0 turns a function off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FuseeSwitchOptions {
    /// Number of slots whose objects the switch can remember. With 0 it steers no READ.
    pub slots: usize,
    /// Number of rounds that the switch can remember. With 0 it delays no CAS.
    pub rounds: usize,
}

/// A switch for our own store.
#[derive(Clone, Debug)]
pub struct FuseeSwitch {
    slots: HotKeyTable<Option<SlotObject>>,
    connections: BTreeMap<SwitchConnection, PassedSlotVerbs>,
    /// Remembered rounds. The latest is at the back.
    rounds: VecDeque<OrderedRound>,
    options: FuseeSwitchOptions,
    counts: SwitchCounts,
}

/// An object that lies on the same node as its slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct SlotObject {
    offset: u64,
    bytes: u32,
}

/// Verbs that have passed on a connection, in their order.
#[derive(Clone, Debug, Default)]
struct PassedSlotVerbs {
    writes: VecDeque<(u64, SlotObject)>,
    /// CASes whose answers have not passed.
    cases: VecDeque<PendingSlotCas>,
}

#[derive(Clone, Copy, Debug)]
struct PendingSlotCas {
    number: u64,
    slot: u128,
    expected: u64,
    /// The object to which the slot leads if the CAS succeeds; `None` if the switch does not know it.
    object: Option<SlotObject>,
}

#[derive(Clone, Debug)]
struct OrderedRound {
    expected: u64,
    favourite: u64,
    passed: VecDeque<PoolPlace>,
}

/// Returns the table key of a slot.
fn slot_key(place: PoolPlace) -> u128 {
    u128::from(place.node.0) << 64 | u128::from(place.offset)
}

impl FuseeSwitch {
    /// Makes a switch without knowledge.
    pub fn new(options: FuseeSwitchOptions) -> FuseeSwitch {
        FuseeSwitch {
            slots: HotKeyTable::new(options.slots),
            connections: BTreeMap::new(),
            rounds: VecDeque::new(),
            options,
            counts: SwitchCounts::default(),
        }
    }

    fn learn_write(&mut self, request: &SwitchRequest<'_>, bytes: u32, start: &[u8]) {
        if self.options.slots == 0 {
            return;
        }
        let Some(identity) = Object::header_identity(start) else { return };
        let written = SlotObject { offset: request.place.offset, bytes };
        let passed = self.connections.entry(request.connection).or_default();
        push(&mut passed.writes, (identity.word(), written), REMEMBERED);
    }

    /// Remembers a CAS that passes. The node's answer will tell whether the CAS has changed the slot.
    fn remember_cas(&mut self, request: &SwitchRequest<'_>, expected: u64, swap: u64) {
        let slot = slot_key(request.place);
        if self.slots.get(slot).is_none() {
            return;
        }
        let passed = self.connections.entry(request.connection).or_default();
        let identity = Slot(swap).object_identity().word();
        let object = if Slot(swap).is_free() {
            None
        } else {
            passed.writes.iter().rev().find(|(of, _)| *of == identity).map(|(_, at)| *at)
        };
        let cas = PendingSlotCas { number: request.number, slot, expected, object };
        push(&mut passed.cases, cas, REMEMBERED);
    }

    /// Returns whether a CAS has to wait for the CAS of the round's favourite.
    fn order_cas(&mut self, place: PoolPlace, expected: u64, swap: u64) -> bool {
        // All slots that were never used have the same word, so a free word does not identify a round.
        if self.options.rounds == 0 || Slot(expected).is_free() {
            return false;
        }
        if let Some(round) = self.rounds.iter_mut().rev().find(|round| round.expected == expected) {
            let has_passed = round.passed.contains(&place);
            if round.favourite == swap && !has_passed {
                push(&mut round.passed, place, PLACES);
            }
            return round.favourite != swap && !has_passed;
        }
        let round = OrderedRound { expected, favourite: swap, passed: [place].into() };
        push(&mut self.rounds, round, self.options.rounds);
        false
    }
}

impl Switch for FuseeSwitch {
    fn request(&mut self, request: &SwitchRequest<'_>) -> SwitchDecision {
        match request.verb {
            SwitchVerb::Read(_) | SwitchVerb::Faa => {}
            SwitchVerb::Write(bytes, start) => self.learn_write(request, bytes, start),
            SwitchVerb::Cas { expected, swap } => {
                if self.order_cas(request.place, expected, swap) {
                    self.counts.held += 1;
                    return SwitchDecision::Hold;
                }
                self.remember_cas(request, expected, swap);
            }
            SwitchVerb::Steered(bytes) => {
                self.counts.seen += 1;
                self.counts.asked += 1;
                let known = self.slots.count_access(slot_key(request.place), || None);
                // A READ of more bytes than the client has written there could end beyond the pool, and the node would
                // refuse it.
                let known = known.and_then(|known| *known).filter(|known| bytes <= known.bytes);
                let Some(known) = known else { return SwitchDecision::Forward };
                self.counts.steered += 1;
                return SwitchDecision::Steer(known.offset);
            }
        }
        self.counts.seen += 1;
        SwitchDecision::Forward
    }

    fn answer(&mut self, answer: &CasAnswer) {
        let Some(passed) = self.connections.get_mut(&answer.connection) else { return };
        let Some(at) = passed.cases.iter().position(|cas| cas.number == answer.number) else {
            return;
        };
        let cas = passed.cases.remove(at).expect("it is there");
        if let Some(known) = self.slots.get_mut(cas.slot) {
            *known = if answer.found == cas.expected { cas.object } else { None };
        }
    }

    fn forget(&mut self, what: ForgetScope) {
        match what {
            ForgetScope::All => {
                let forgot = self.counts.forgot + 1;
                *self = FuseeSwitch { counts: self.counts, ..FuseeSwitch::new(self.options) };
                self.counts.forgot = forgot;
            }
            // Unanswered CASes of the connection have possibly changed slots, and the switch will not see the answers.
            ForgetScope::Connection(connection) => {
                if let Some(passed) = self.connections.remove(&connection) {
                    for cas in passed.cases {
                        if let Some(known) = self.slots.get_mut(cas.slot) {
                            *known = None;
                        }
                    }
                }
            }
        }
    }

    fn counts(&self) -> SwitchCounts {
        self.counts
    }

    fn bytes(&self) -> SwitchMemory {
        // A slot of the table takes 20 bytes: the slot's key, and the offset and length of its object.
        let slots = self.slots.len() as u64 * (8 + 8 + 4);
        let rounds = self.rounds.iter().map(|round| 16 + 8 * round.passed.len() as u64);
        let connections = self.connections.values().map(|passed| {
            20 * passed.writes.len() as u64 + (24 + 12) * passed.cases.len() as u64 + 8
        });
        SwitchMemory { keys: slots + rounds.sum::<u64>(), connections: connections.sum() }
    }
}

#[cfg(test)]
mod tests {
    use fusee_core::layout::{Address, Identity, Opcode, Pair, SizeClass};
    use fusee_core::verbs::MnId;

    use super::*;

    const SLOT: PoolPlace = PoolPlace { node: MnId(1), offset: 8192 };
    const OPTIONS: FuseeSwitchOptions = FuseeSwitchOptions { slots: 4, rounds: 4 };

    fn object(number: u64) -> ([u8; 64], Slot) {
        let address = Address::new(number * 64);
        let generation = 3;
        let class = SizeClass::fitting(64).unwrap();
        let pair = Pair {
            key: b"key",
            value: b"value",
            identity: Identity::new(address, generation),
            opcode: Opcode::Update,
        };
        let mut bytes = [0; 64];
        pair.encode(&mut bytes);
        (bytes, Slot::new(7, class, address, generation))
    }

    struct FuseeSwitchFixture {
        switch: FuseeSwitch,
        number: u64,
    }

    impl FuseeSwitchFixture {
        fn new() -> FuseeSwitchFixture {
            FuseeSwitchFixture { switch: FuseeSwitch::new(OPTIONS), number: 0 }
        }

        fn post(
            &mut self,
            connection: u64,
            place: PoolPlace,
            verb: SwitchVerb<'_>,
        ) -> SwitchDecision {
            self.number += 1;
            let connection = SwitchConnection(connection);
            self.switch.request(&SwitchRequest { connection, number: self.number, place, verb })
        }

        fn ask(&mut self, bytes: u32) -> SwitchDecision {
            self.post(99, SLOT, SwitchVerb::Steered(bytes))
        }

        /// WRITEs an object and CASes its word into the slot. Returns the number of the CAS.
        fn write(&mut self, connection: u64, number: u64, expected: Slot) -> u64 {
            let (bytes, word) = object(number);
            let place = PoolPlace { offset: 64 * number, ..SLOT };
            assert_eq!(
                self.post(connection, place, SwitchVerb::Write(64, &bytes)),
                SwitchDecision::Forward
            );
            let cas = SwitchVerb::Cas { expected: expected.0, swap: word.0 };
            assert_eq!(self.post(connection, SLOT, cas), SwitchDecision::Forward);
            self.number
        }

        fn answer(&mut self, connection: u64, number: u64, found: Slot) {
            let connection = SwitchConnection(connection);
            self.switch.answer(&CasAnswer { connection, number, found: found.0 });
        }
    }

    #[test]
    fn a_read_is_steered_to_where_the_slot_leads_once_that_is_known() {
        let mut world = FuseeSwitchFixture::new();
        assert_eq!(world.ask(64), SwitchDecision::Forward, "nothing is known");
        let first = world.write(1, 1000, Slot(0));
        assert_eq!(world.ask(64), SwitchDecision::Forward, "it is not answered");
        world.answer(1, first, Slot(0));
        assert_eq!(world.ask(64), SwitchDecision::Steer(64_000));
        assert_eq!(world.ask(65), SwitchDecision::Forward, "nobody has written so much there");
        let second = world.write(2, 2000, object(1000).1);
        world.answer(2, second, object(1000).1);
        assert_eq!(world.ask(64), SwitchDecision::Steer(128_000));
        let counts = world.switch.counts();
        assert_eq!((counts.asked, counts.steered), (5, 2));
    }

    #[test]
    fn a_slot_that_turns_out_to_be_another_ones_is_forgotten() {
        let mut world = FuseeSwitchFixture::new();
        world.ask(64);
        let first = world.write(1, 1000, Slot(0));
        world.answer(1, first, Slot(0));
        let late = world.write(2, 2000, Slot(0));
        world.answer(2, late, object(1000).1);
        assert_eq!(world.ask(64), SwitchDecision::Forward);
        // After a DELETE the slot leads to no object.
        let third = world.write(3, 3000, object(2000).1);
        world.answer(3, third, object(2000).1);
        assert_eq!(world.ask(64), SwitchDecision::Steer(192_000));
        let expected = object(3000).1.0;
        let swap = object(3000).1.withdrawn().0;
        world.post(3, SLOT, SwitchVerb::Cas { expected, swap });
        world.answer(3, world.number, object(3000).1);
        assert_eq!(world.ask(64), SwitchDecision::Forward);
    }

    #[test]
    fn what_it_forgets_it_learns_again() {
        for what in [ForgetScope::All, ForgetScope::Connection(SwitchConnection(1))] {
            let mut world = FuseeSwitchFixture::new();
            world.ask(64);
            let first = world.write(1, 1000, Slot(0));
            world.switch.forget(what);
            world.answer(1, first, Slot(0));
            assert_eq!(world.ask(64), SwitchDecision::Forward, "{what:?}");
            let second = world.write(1, 2000, object(1000).1);
            world.answer(1, second, object(1000).1);
            assert_eq!(world.ask(64), SwitchDecision::Steer(128_000), "{what:?}");
        }
    }

    #[test]
    fn who_comes_second_waits_until_the_first_has_passed_everywhere() {
        let mut world = FuseeSwitchFixture::new();
        let places = [MnId(1), MnId(2)].map(|node| PoolPlace { node, offset: 8192 });
        let old = object(9).1.0;
        let cas = |swap| SwitchVerb::Cas { expected: old, swap };
        assert_eq!(world.post(1, places[0], cas(10)), SwitchDecision::Forward);
        assert_eq!(
            world.post(2, places[0], cas(20)),
            SwitchDecision::Forward,
            "the first has passed"
        );
        assert_eq!(world.post(3, places[1], cas(20)), SwitchDecision::Hold);
        assert_eq!(world.post(4, places[1], cas(10)), SwitchDecision::Forward);
        assert_eq!(world.post(3, places[1], cas(20)), SwitchDecision::Forward);
        // A CAS with another expected word starts another round. CASes that expect a free word belong to no round.
        for (expected, swap) in [(object(8).1.0, 20), (0, 30), (0, 40)] {
            let cas = SwitchVerb::Cas { expected, swap };
            assert_eq!(world.post(3, places[1], cas), SwitchDecision::Forward);
        }
    }

    #[test]
    fn what_it_remembers_is_bounded() {
        let mut world = FuseeSwitchFixture::new();
        for connection in 0..3 {
            for number in 0..200 {
                world.ask(64);
                world.write(connection, 1000 + number, Slot(number));
            }
        }
        let most = 4 * 20 + 4 * (16 + 8 * 5) + 3 * 8 + 3 * 32 * (20 + 36);
        assert!(world.switch.bytes().sum() <= most, "{:?}", world.switch.bytes());
    }
}
