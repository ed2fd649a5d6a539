//! A switch for Clover (S §3). If a CAS would come too late, the switch redirects it to the entry that is now the last.
//!
//! An UPDATE of Clover WRITEs an entry, which begins with its key. Then it appends the entry to the key's chain by a
//! CAS of the entry that its client takes for the last one. The switch knows the key of each entry that was written,
//! and the last entry of the chains of some keys. It *steers* a CAS of another entry there.
//!
//! # The published state is not soft
//! In the published design ([`Trust::Sent`]) the switch takes an entry for the last one as soon as its CAS passes.
//! That CAS may fail, because the switch had forgotten the chain, or the chain has grown on another path. Then the
//! next CAS is steered to an entry that is in no chain: its client is told that the CAS has succeeded, and readers of
//! the key do not find the new value. A failed CAS makes the switch forget everything (S §5), but that comes too late
//! for a CAS that was steered meanwhile.
//!
//! With [`Trust::Answered`] an entry is the last one when the answer to its CAS has passed, and other CASes of its
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
    Answer, Bytes, Connection, Counts, Forget, REMEMBERED, Request, Switch, Table, Verb, Verdict,
    push,
};

/// The format of entries and their words.
pub trait Chains {
    /// Returns the key of an entry that begins with these bytes.
    fn key(&self, start: &[u8]) -> Option<u128>;

    /// Returns, for a CAS, the version that its entry must have, and the entry that is to follow. `None` if it is no
    /// CAS of a chain.
    fn follows(&self, expected: u64, swap: u64) -> Option<(u64, Entry)>;
}

/// An entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The offset of its word.
    pub offset: u64,
    /// The version: entries are used again.
    pub version: u64,
}

/// The moment from which an entry counts as the last one of its chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trust {
    /// When its CAS passes, as published.
    Sent,
    /// When the answer passes that its CAS has succeeded.
    Answered,
}

/// A switch for Clover with all entries on one memory node, as in the published evaluation.
#[derive(Clone, Debug)]
pub struct Clover<C> {
    chains: C,
    trust: Trust,
    room: usize,
    /// The only keys that the switch considers; if empty, it considers all.
    only: BTreeSet<u128>,
    last: Table<Last>,
    connections: BTreeMap<Connection, Passed>,
    counts: Counts,
}

/// The knowledge about a key.
#[derive(Clone, Copy, Debug, Default)]
struct Last {
    entry: Option<Entry>,
    /// A CAS of the key is not answered yet.
    is_busy: bool,
}

/// Verbs that have passed on a connection, the latest last.
#[derive(Clone, Debug, Default)]
struct Passed {
    /// Offset and key.
    writes: VecDeque<(u64, u128)>,
    /// Unanswered.
    cases: VecDeque<Cas>,
}

#[derive(Clone, Copy, Debug)]
struct Cas {
    number: u64,
    key: u128,
    expected: u64,
    new: Entry,
}

impl<C: Chains> Clover<C> {
    /// Makes a switch without knowledge, with room for `keys` keys.
    pub fn new(chains: C, trust: Trust, keys: usize) -> Clover<C> {
        Clover {
            chains,
            trust,
            room: keys,
            only: BTreeSet::new(),
            last: Table::new(keys),
            connections: BTreeMap::new(),
            counts: Counts::default(),
        }
    }

    /// Lets the switch consider these keys only. The published one considers only the keys known to be used most.
    pub fn only(self, keys: impl IntoIterator<Item = u128>) -> Clover<C> {
        Clover { only: keys.into_iter().collect(), ..self }
    }

    fn cas(&mut self, request: &Request<'_>, expected: u64, swap: u64) -> Verdict {
        let Some((version, new)) = self.chains.follows(expected, swap) else {
            return Verdict::Forward;
        };
        let Some(passed) = self.connections.get_mut(&request.connection) else {
            return Verdict::Forward;
        };
        let written = passed.writes.iter().rev().find(|(offset, _)| *offset == new.offset);
        let Some((_, key)) = written.copied() else { return Verdict::Forward };
        let Some(last) = self.last.get_mut(key) else { return Verdict::Forward };
        if self.trust == Trust::Answered && last.is_busy {
            self.counts.held += 1;
            return Verdict::Hold;
        }
        self.counts.asked += 1;
        let known = last.entry.filter(|entry| entry.version == version);
        match self.trust {
            Trust::Sent => last.entry = Some(new),
            Trust::Answered => last.is_busy = true,
        }
        if passed.cases.len() == REMEMBERED
            && let Some(Cas { key, .. }) = passed.cases.pop_front()
        {
            self.last.remove(key);
        }
        passed.cases.push_back(Cas { number: request.number, key, expected, new });
        match known {
            Some(entry) if entry.offset != request.place.offset => {
                self.counts.steered += 1;
                Verdict::Steer(entry.offset)
            }
            _ => Verdict::Forward,
        }
    }
}

impl<C: Chains + Clone> Switch for Clover<C> {
    fn request(&mut self, request: &Request<'_>) -> Verdict {
        let verdict = match request.verb {
            Verb::Cas { expected, swap } => self.cas(request, expected, swap),
            Verb::Write(_, start) => {
                let is_known = |key: &u128| self.only.is_empty() || self.only.contains(key);
                if let Some(key) = self.chains.key(start).filter(is_known) {
                    self.last.ask(key, Last::default);
                    let passed = self.connections.entry(request.connection).or_default();
                    push(&mut passed.writes, (request.place.offset, key), REMEMBERED);
                }
                Verdict::Forward
            }
            Verb::Read(_) | Verb::Steered(_) | Verb::Faa => Verdict::Forward,
        };
        self.counts.seen += u64::from(verdict != Verdict::Hold);
        verdict
    }

    fn answer(&mut self, answer: &Answer) {
        let Some(passed) = self.connections.get_mut(&answer.connection) else { return };
        let Some(at) = passed.cases.iter().position(|cas| cas.number == answer.number) else {
            return;
        };
        let cas = passed.cases.remove(at).expect("it is there");
        let has_failed = answer.found != cas.expected;
        match (self.trust, has_failed) {
            // S §5.
            (Trust::Sent, true) => self.forget(Forget::All),
            (Trust::Sent, false) => {}
            (Trust::Answered, _) => {
                if let Some(last) = self.last.get_mut(cas.key) {
                    let entry = (!has_failed).then_some(cas.new);
                    *last = Last { entry, is_busy: false };
                }
            }
        }
    }

    fn forget(&mut self, what: Forget) {
        match what {
            Forget::All => {
                let mut counts = self.counts;
                counts.forgot += 1;
                let new = Clover::new(self.chains.clone(), self.trust, self.room);
                *self = Clover { counts, only: core::mem::take(&mut self.only), ..new };
            }
            Forget::Connection(connection) => {
                for cas in self.connections.remove(&connection).unwrap_or_default().cases {
                    self.last.remove(cas.key);
                }
            }
        }
    }

    fn counts(&self) -> Counts {
        self.counts
    }

    fn bytes(&self) -> Bytes {
        // 24 bytes: a key, and the offset of an entry with its version.
        let connections = self.connections.values().map(|passed| {
            8 + 24 * passed.writes.len() as u64 + (8 + 16 + 8 + 8) * passed.cases.len() as u64
        });
        Bytes { keys: 24 * self.last.len() as u64, connections: connections.sum() }
    }
}

#[cfg(test)]
mod tests {
    use fusee_core::verbs::MnId;
    use fusee_core::view::Place;

    use super::*;

    /// Entries begin with their keys; a word is the offset of the next entry.
    #[derive(Clone, Copy)]
    struct Words;

    impl Chains for Words {
        fn key(&self, start: &[u8]) -> Option<u128> {
            start.first_chunk().copied().map(u128::from_le_bytes)
        }

        fn follows(&self, _: u64, swap: u64) -> Option<(u64, Entry)> {
            Some((0, Entry { offset: swap, version: 0 }))
        }
    }

    struct World {
        switch: Clover<Words>,
        number: u64,
    }

    impl World {
        fn new(trust: Trust, keys: usize) -> World {
            World { switch: Clover::new(Words, trust, keys), number: 0 }
        }

        fn post(&mut self, client: u64, offset: u64, verb: Verb<'_>) -> Verdict {
            self.number += 1;
            let place = Place { node: MnId(0), offset };
            let connection = Connection(client);
            let number = self.number;
            self.switch.request(&Request { connection, number, place, verb })
        }

        fn write(&mut self, client: u64, key: u128, new: u64) {
            self.post(client, new, Verb::Write(16, &key.to_le_bytes()));
        }

        fn cas(&mut self, client: u64, at: u64, new: u64) -> Verdict {
            self.post(client, at, Verb::Cas { expected: 0, swap: new })
        }

        fn answer(&mut self, client: u64, number: u64, found: u64) {
            self.switch.answer(&Answer { connection: Connection(client), number, found });
        }
    }

    #[test]
    fn a_cas_goes_to_the_entry_that_is_last() {
        for trust in [Trust::Sent, Trust::Answered] {
            let mut world = World::new(trust, 4);
            world.write(1, 7, 100);
            world.write(2, 7, 200);
            assert_eq!(world.cas(1, 50, 100), Verdict::Forward);
            let first = world.number;
            if trust == Trust::Answered {
                assert_eq!(world.cas(2, 50, 200), Verdict::Hold);
            }
            world.answer(1, first, 0);
            assert_eq!(world.cas(2, 50, 200), Verdict::Steer(100), "{trust:?}");
            world.answer(2, world.number, 0);
            world.write(3, 7, 300);
            assert_eq!(world.cas(3, 200, 300), Verdict::Forward, "it knows");
        }
    }

    /// In the published design the first CAS fails, and the second one appends to an entry that is in no chain.
    #[test]
    fn only_what_was_answered_is_certain() {
        for trust in [Trust::Sent, Trust::Answered] {
            let mut world = World::new(trust, 4);
            world.write(1, 7, 100);
            world.write(2, 7, 200);
            world.cas(1, 50, 100);
            let first = world.number;
            let second = world.cas(2, 50, 200);
            world.answer(1, first, 60);
            match trust {
                Trust::Sent => assert_eq!(second, Verdict::Steer(100)),
                Trust::Answered => {
                    assert_eq!(second, Verdict::Hold);
                    assert_eq!(world.cas(2, 50, 200), Verdict::Forward);
                }
            }
        }
    }

    #[test]
    fn what_is_forgotten_is_not_steered_by() {
        for what in [Forget::All, Forget::Connection(Connection(1))] {
            let mut world = World::new(Trust::Answered, 4);
            world.write(1, 7, 100);
            world.cas(1, 50, 100);
            world.switch.forget(what);
            world.answer(1, world.number, 0);
            world.write(2, 7, 200);
            assert_eq!(world.cas(2, 50, 200), Verdict::Forward, "{what:?}");
        }
    }

    #[test]
    fn what_it_remembers_is_bounded() {
        let mut world = World::new(Trust::Sent, 2);
        for number in 0..1000 {
            for client in 0..3 {
                world.write(client, u128::from(number % 5), number);
                world.cas(client, 50, number);
            }
        }
        assert!(world.switch.bytes().sum() <= 2 * 24 + 3 * (8 + 32 * 24 + 32 * 40));
    }
}
