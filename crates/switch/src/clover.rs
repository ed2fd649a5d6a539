//! A switch for Clover (S §3), which keeps the values of a key in a *chain* of entries. If a CAS comes too late,
//! because another entry already follows the one that it expects to be the last, the switch redirects the CAS to the
//! last entry of the chain.
//!
//! An UPDATE of Clover WRITEs a new entry, which begins with its key. Then it CASes the entry that its client regards
//! as the last one of the key's chain, to append the new entry. The switch knows the key of each entry that was
//! written, and the last entry of some keys' chains. It *steers* a CAS of another entry to that last entry.
//!
//! # The published design can lose updates
//! In the published design ([`ChainTrust::Sent`]) the switch regards an entry as the last one as soon as the CAS that
//! appends it passes. That CAS possibly fails, because the switch had forgotten the chain, or because the chain has
//! grown by a CAS that did not pass this switch. Then the next CAS is steered to an entry that is in no chain: the
//! client that sent this CAS is told that it has succeeded, and readers of the key do not find the new value. A failed
//! CAS makes the switch forget everything (S §5), but that comes too late for a CAS that was steered before.
//!
//! With [`ChainTrust::Answered`] an entry becomes the last one when the answer to its CAS passes, and other CASes of
//! the same key wait until then. So a CAS is only ever steered to an entry that was in the chain of its key. If the CAS
//! succeeds there, that entry was the last one, and the new entry is the last one now. If the CAS fails, its client
//! searches the end of the chain from the entry that it knew, and the switch forgets the key. That costs time, even if
//! the client's entry was the last one.
//!
//! (`crates/baselines/tests/promises/switched.rs` has the shortest history that loses an update. With switches that
//! forget, most runs of the published design either lose updates or do not end, because a client searches the end of a
//! chain for ever. With a single switch that forgets nothing and knows the same keys throughout, no CAS of these keys
//! fails.)
//!
//! Neither design is safe if the switch's table is wrong instead of incomplete: a CAS that is steered to the chain of
//! another key succeeds there.
//!
//! # Details that the published design leaves out
//! * A client whose CAS was steered does not know which entry its own one follows. It reports to the metadata server
//!   that its entry follows the one that it knew, which is false. So some entries are never freed: every second one, if
//!   two clients take turns.
//! * An entry's word contains the entry's version, and a CAS expects the version of the entry for which it was made.
//!   Therefore the switch steers no CAS to an entry with another version.

use alloc::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::{
    CasAnswer, ForgetScope, HotKeyTable, REMEMBERED, Switch, SwitchConnection, SwitchCounts,
    SwitchDecision, SwitchMemory, SwitchRequest, SwitchVerb, push,
};

/// The format of Clover's entries and their words.
pub trait ChainFormat {
    /// Returns the key of an entry that begins with these bytes; `None` if the bytes are too short to contain a key.
    fn key(&self, start: &[u8]) -> Option<u128>;

    /// Returns, for a CAS with these operands, the version that the entry which it changes must have, and the entry
    /// that it appends. Returns `None` if the CAS appends no entry.
    fn follows(&self, expected: u64, swap: u64) -> Option<(u64, ChainEntry)>;
}

/// An entry of a key's chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChainEntry {
    /// The offset of the entry's word in the pool.
    pub offset: u64,
    /// The entry's version, which changes when the entry is reused.
    pub version: u64,
}

/// The moment from which the switch regards an entry as the last one of its chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChainTrust {
    /// The moment at which the entry's CAS passes, as published.
    Sent,
    /// The moment at which an answer passes that the entry's CAS has succeeded.
    Answered,
}

/// A switch for Clover with all entries on one memory node, as in the published evaluation.
#[derive(Clone, Debug)]
pub struct CloverSwitch<C> {
    chains: C,
    trust: ChainTrust,
    room: usize,
    /// The only keys that the switch considers. If this is empty, it considers all keys.
    only: BTreeSet<u128>,
    last: HotKeyTable<ChainTail>,
    connections: BTreeMap<SwitchConnection, PassedChainVerbs>,
    counts: SwitchCounts,
}

/// The switch's knowledge about the chain of a key.
#[derive(Clone, Copy, Debug, Default)]
struct ChainTail {
    entry: Option<ChainEntry>,
    /// Whether a CAS of the key is unanswered.
    is_busy: bool,
}

/// Verbs that have passed on a connection, in their order.
#[derive(Clone, Debug, Default)]
struct PassedChainVerbs {
    /// WRITEs of entries: the entry's offset, and its key.
    writes: VecDeque<(u64, u128)>,
    /// CASes whose answers have not passed.
    cases: VecDeque<PendingChainCas>,
}

#[derive(Clone, Copy, Debug)]
struct PendingChainCas {
    number: u64,
    key: u128,
    expected: u64,
    new: ChainEntry,
}

impl<C: ChainFormat> CloverSwitch<C> {
    /// Makes a switch without knowledge, with room for `keys` keys.
    pub fn new(chains: C, trust: ChainTrust, keys: usize) -> CloverSwitch<C> {
        CloverSwitch {
            chains,
            trust,
            room: keys,
            only: BTreeSet::new(),
            last: HotKeyTable::new(keys),
            connections: BTreeMap::new(),
            counts: SwitchCounts::default(),
        }
    }

    /// Lets the switch consider only these keys. The published switch considers only keys that are known to be used
    /// most.
    pub fn only(self, keys: impl IntoIterator<Item = u128>) -> CloverSwitch<C> {
        CloverSwitch { only: keys.into_iter().collect(), ..self }
    }

    fn cas(&mut self, request: &SwitchRequest<'_>, expected: u64, swap: u64) -> SwitchDecision {
        let Some((version, new)) = self.chains.follows(expected, swap) else {
            return SwitchDecision::Forward;
        };
        let Some(passed) = self.connections.get_mut(&request.connection) else {
            return SwitchDecision::Forward;
        };
        let written = passed.writes.iter().rev().find(|(offset, _)| *offset == new.offset);
        let Some((_, key)) = written.copied() else { return SwitchDecision::Forward };
        let Some(last) = self.last.get_mut(key) else { return SwitchDecision::Forward };
        if self.trust == ChainTrust::Answered && last.is_busy {
            self.counts.held += 1;
            return SwitchDecision::Hold;
        }
        self.counts.asked += 1;
        let known = last.entry.filter(|entry| entry.version == version);
        match self.trust {
            ChainTrust::Sent => last.entry = Some(new),
            ChainTrust::Answered => last.is_busy = true,
        }
        if passed.cases.len() == REMEMBERED
            && let Some(PendingChainCas { key, .. }) = passed.cases.pop_front()
        {
            self.last.remove(key);
        }
        passed.cases.push_back(PendingChainCas { number: request.number, key, expected, new });
        match known {
            Some(entry) if entry.offset != request.place.offset => {
                self.counts.steered += 1;
                SwitchDecision::Steer(entry.offset)
            }
            _ => SwitchDecision::Forward,
        }
    }
}

impl<C: ChainFormat + Clone> Switch for CloverSwitch<C> {
    fn request(&mut self, request: &SwitchRequest<'_>) -> SwitchDecision {
        let verdict = match request.verb {
            SwitchVerb::Cas { expected, swap } => self.cas(request, expected, swap),
            SwitchVerb::Write(_, start) => {
                let is_known = |key: &u128| self.only.is_empty() || self.only.contains(key);
                if let Some(key) = self.chains.key(start).filter(is_known) {
                    self.last.count_access(key, ChainTail::default);
                    let passed = self.connections.entry(request.connection).or_default();
                    push(&mut passed.writes, (request.place.offset, key), REMEMBERED);
                }
                SwitchDecision::Forward
            }
            SwitchVerb::Read(_) | SwitchVerb::Steered(_) | SwitchVerb::Faa => {
                SwitchDecision::Forward
            }
        };
        self.counts.seen += u64::from(verdict != SwitchDecision::Hold);
        verdict
    }

    fn answer(&mut self, answer: &CasAnswer) {
        let Some(passed) = self.connections.get_mut(&answer.connection) else { return };
        let Some(at) = passed.cases.iter().position(|cas| cas.number == answer.number) else {
            return;
        };
        let cas = passed.cases.remove(at).expect("it is there");
        let has_failed = answer.found != cas.expected;
        match (self.trust, has_failed) {
            // In the published design a failed CAS makes the switch forget everything (S §5).
            (ChainTrust::Sent, true) => self.forget(ForgetScope::All),
            (ChainTrust::Sent, false) => {}
            (ChainTrust::Answered, _) => {
                if let Some(last) = self.last.get_mut(cas.key) {
                    let entry = (!has_failed).then_some(cas.new);
                    *last = ChainTail { entry, is_busy: false };
                }
            }
        }
    }

    fn forget(&mut self, what: ForgetScope) {
        match what {
            ForgetScope::All => {
                let mut counts = self.counts;
                counts.forgot += 1;
                let new = CloverSwitch::new(self.chains.clone(), self.trust, self.room);
                *self = CloverSwitch { counts, only: core::mem::take(&mut self.only), ..new };
            }
            ForgetScope::Connection(connection) => {
                for cas in self.connections.remove(&connection).unwrap_or_default().cases {
                    self.last.remove(cas.key);
                }
            }
        }
    }

    fn counts(&self) -> SwitchCounts {
        self.counts
    }

    fn bytes(&self) -> SwitchMemory {
        // A key of the table takes 24 bytes: the key's 16, and the offset of an entry with its version.
        let connections = self.connections.values().map(|passed| {
            8 + 24 * passed.writes.len() as u64 + (8 + 16 + 8 + 8) * passed.cases.len() as u64
        });
        SwitchMemory { keys: 24 * self.last.len() as u64, connections: connections.sum() }
    }
}

#[cfg(test)]
mod tests {
    use fusee_core::verbs::MnId;
    use fusee_core::view::PoolPlace;

    use super::*;

    /// A format for tests: entries begin with their keys, and an entry's word is the offset of the next entry.
    #[derive(Clone, Copy)]
    struct TestChainFormat;

    impl ChainFormat for TestChainFormat {
        fn key(&self, start: &[u8]) -> Option<u128> {
            start.first_chunk().copied().map(u128::from_le_bytes)
        }

        fn follows(&self, _: u64, swap: u64) -> Option<(u64, ChainEntry)> {
            Some((0, ChainEntry { offset: swap, version: 0 }))
        }
    }

    struct CloverSwitchFixture {
        switch: CloverSwitch<TestChainFormat>,
        number: u64,
    }

    impl CloverSwitchFixture {
        fn new(trust: ChainTrust, keys: usize) -> CloverSwitchFixture {
            CloverSwitchFixture {
                switch: CloverSwitch::new(TestChainFormat, trust, keys),
                number: 0,
            }
        }

        fn post(&mut self, client: u64, offset: u64, verb: SwitchVerb<'_>) -> SwitchDecision {
            self.number += 1;
            let place = PoolPlace { node: MnId(0), offset };
            let connection = SwitchConnection(client);
            let number = self.number;
            self.switch.request(&SwitchRequest { connection, number, place, verb })
        }

        fn write(&mut self, client: u64, key: u128, new: u64) {
            self.post(client, new, SwitchVerb::Write(16, &key.to_le_bytes()));
        }

        fn cas(&mut self, client: u64, at: u64, new: u64) -> SwitchDecision {
            self.post(client, at, SwitchVerb::Cas { expected: 0, swap: new })
        }

        fn answer(&mut self, client: u64, number: u64, found: u64) {
            self.switch.answer(&CasAnswer { connection: SwitchConnection(client), number, found });
        }
    }

    #[test]
    fn a_cas_goes_to_the_entry_that_is_last() {
        for trust in [ChainTrust::Sent, ChainTrust::Answered] {
            let mut world = CloverSwitchFixture::new(trust, 4);
            world.write(1, 7, 100);
            world.write(2, 7, 200);
            assert_eq!(world.cas(1, 50, 100), SwitchDecision::Forward);
            let first = world.number;
            if trust == ChainTrust::Answered {
                assert_eq!(world.cas(2, 50, 200), SwitchDecision::Hold);
            }
            world.answer(1, first, 0);
            assert_eq!(world.cas(2, 50, 200), SwitchDecision::Steer(100), "{trust:?}");
            world.answer(2, world.number, 0);
            world.write(3, 7, 300);
            assert_eq!(world.cas(3, 200, 300), SwitchDecision::Forward, "it knows");
        }
    }

    /// In the published design the first CAS fails, and the second one appends an entry to one that is in no chain.
    #[test]
    fn only_what_was_answered_is_certain() {
        for trust in [ChainTrust::Sent, ChainTrust::Answered] {
            let mut world = CloverSwitchFixture::new(trust, 4);
            world.write(1, 7, 100);
            world.write(2, 7, 200);
            world.cas(1, 50, 100);
            let first = world.number;
            let second = world.cas(2, 50, 200);
            world.answer(1, first, 60);
            match trust {
                ChainTrust::Sent => assert_eq!(second, SwitchDecision::Steer(100)),
                ChainTrust::Answered => {
                    assert_eq!(second, SwitchDecision::Hold);
                    assert_eq!(world.cas(2, 50, 200), SwitchDecision::Forward);
                }
            }
        }
    }

    #[test]
    fn what_is_forgotten_is_not_steered_by() {
        for what in [ForgetScope::All, ForgetScope::Connection(SwitchConnection(1))] {
            let mut world = CloverSwitchFixture::new(ChainTrust::Answered, 4);
            world.write(1, 7, 100);
            world.cas(1, 50, 100);
            world.switch.forget(what);
            world.answer(1, world.number, 0);
            world.write(2, 7, 200);
            assert_eq!(world.cas(2, 50, 200), SwitchDecision::Forward, "{what:?}");
        }
    }

    #[test]
    fn what_it_remembers_is_bounded() {
        let mut world = CloverSwitchFixture::new(ChainTrust::Sent, 2);
        for number in 0..1000 {
            for client in 0..3 {
                world.write(client, u128::from(number % 5), number);
                world.cas(client, 50, number);
            }
        }
        assert!(world.switch.bytes().sum() <= 2 * 24 + 3 * (8 + 32 * 24 + 32 * 40));
    }
}
