//! A switch for Clover (S §3). If a CAS would come too late, the switch redirects it to the entry that is now the last.
//!
//! An UPDATE of Clover WRITEs an entry, which begins with its key. Then it appends the entry to the key's chain by a
//! CAS of the entry that its client takes for the last one. The switch knows the key of each entry that was written,
//! and the last entry of the chains of some keys. It *steers* a CAS of another entry there.
//!
//! # The published state is not soft
//! In the published design ([`ChainTrust::Sent`]) the switch takes an entry for the last one as soon as its CAS passes.
//! That CAS may fail, because the switch had forgotten the chain, or the chain has grown on another path. Then the
//! next CAS is steered to an entry that is in no chain: its client is told that the CAS has succeeded, and readers of
//! the key do not find the new value. A failed CAS makes the switch forget everything (S §5), but that comes too late
//! for a CAS that was steered meanwhile.
//!
//! With [`ChainTrust::Answered`] an entry is the last one when the answer to its CAS has passed, and other CASes of its
//! key wait until then. So a CAS is only ever steered to an entry that was in the chain of its key. If the CAS
//! succeeds there, that entry was the last one, and the new entry is the last one now. If it fails, its client
//! searches the end of the chain from the entry that it knew, and the switch forgets that key: this costs time, even
//! if that entry was the last one.
//!
//! (`crates/baselines/tests/promises/switched.rs` has the shortest history. Over switches that forget, most runs of
//! the published design break the promise or do not end, since clients search the end of a chain for ever. With a
//! single switch that forgets nothing and knows the same keys throughout, no CAS of these keys fails.)
//!
//! Neither design is safe with a table that is wrong rather than empty: a CAS that is steered to the chain of another
//! key succeeds there.
//!
//! # Details that the published design leaves out
//! * A client whose CAS was steered does not know which entry its own one follows, and names the entry that it knew
//!   to the metadata server. So some entries are never freed: every second one, if two clients take turns.
//! * The word of an entry contains the entry's version, and a CAS expects the version of the entry that it was made
//!   for. So the switch steers no CAS to an entry with another version.

use alloc::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::{
    CasAnswer, ForgetScope, HotKeyTable, REMEMBERED, Switch, SwitchConnection, SwitchCounts,
    SwitchDecision, SwitchMemory, SwitchRequest, SwitchVerb, push,
};

/// The format of entries and their words.
pub trait ChainFormat {
    /// Returns the key of an entry that begins with these bytes.
    fn key(&self, start: &[u8]) -> Option<u128>;

    /// Returns, for a CAS, the version that its entry must have, and the entry that is to follow. `None` if it is no
    /// CAS of a chain.
    fn follows(&self, expected: u64, swap: u64) -> Option<(u64, ChainEntry)>;
}

/// An entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChainEntry {
    /// The offset of its word.
    pub offset: u64,
    /// The version: entries are used again.
    pub version: u64,
}

/// The moment from which an entry counts as the last one of its chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChainTrust {
    /// When its CAS passes, as published.
    Sent,
    /// When the answer passes that its CAS has succeeded.
    Answered,
}

/// A switch for Clover with all entries on one memory node, as in the published evaluation.
#[derive(Clone, Debug)]
pub struct CloverSwitch<C> {
    chains: C,
    trust: ChainTrust,
    room: usize,
    /// The only keys that the switch considers; if empty, it considers all.
    only: BTreeSet<u128>,
    last: HotKeyTable<ChainTail>,
    connections: BTreeMap<SwitchConnection, PassedChainVerbs>,
    counts: SwitchCounts,
}

/// The knowledge about a key.
#[derive(Clone, Copy, Debug, Default)]
struct ChainTail {
    entry: Option<ChainEntry>,
    /// A CAS of the key is not answered yet.
    is_busy: bool,
}

/// Verbs that have passed on a connection, the latest last.
#[derive(Clone, Debug, Default)]
struct PassedChainVerbs {
    /// Offset and key.
    writes: VecDeque<(u64, u128)>,
    /// Unanswered.
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

    /// Lets the switch consider these keys only. The published one considers only the keys known to be used most.
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
            // S §5.
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
        // 24 bytes: a key, and the offset of an entry with its version.
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

    /// Entries begin with their keys; a word is the offset of the next entry.
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

    /// In the published design the first CAS fails, and the second one appends to an entry that is in no chain.
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
