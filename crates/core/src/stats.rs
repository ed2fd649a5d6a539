//! Counters per kind of operation. Tests check the budget of round trips by them.

use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;

use serde::{Deserialize, Serialize};

use crate::mutant::{Mutant, removed};

/// Kinds of operations with counters of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpKind {
    /// SEARCH of one key.
    Search,
    /// SEARCH of several keys in shared phases; counted once per call.
    SearchMany,
    /// INSERT.
    Insert,
    /// UPDATE.
    Update,
    /// INSERT or UPDATE, as the key demands.
    Upsert,
    /// DELETE.
    Delete,
    /// A Move: a pair gets another redundancy.
    Move,
    /// A piece of a SCAN.
    Scan,
    /// Memory management beside the operations: setting free bits, collecting freed objects, returning blocks.
    Reclaim,
}

impl OpKind {
    /// All kinds, in the order of their discriminants.
    pub const ALL: [OpKind; 9] = [
        OpKind::Search,
        OpKind::SearchMany,
        OpKind::Insert,
        OpKind::Update,
        OpKind::Upsert,
        OpKind::Delete,
        OpKind::Move,
        OpKind::Scan,
        OpKind::Reclaim,
    ];

    /// Returns the name of the kind, in lower case; the paper's, where it has one.
    pub fn name(self) -> &'static str {
        ["search", "search_many", "insert", "update", "upsert", "delete", "move", "scan", "reclaim"]
            [self as usize]
    }
}

/// The cost of an operation: phases (round trips), verbs, atomics and bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// Batches, each one network round trip.
    pub phases: u32,
    /// Verbs of all kinds.
    pub verbs: u32,
    /// CAS and FAA among them.
    pub atomics: u32,
    /// Bytes moved by READs and WRITEs, and 8 per atomic.
    pub bytes: u64,
}

impl Cost {
    /// Counts one batch.
    pub fn add_batch(&mut self, batch: &crate::verbs::VerbBatch) {
        self.phases += 1;
        self.verbs += batch.verbs().len() as u32;
        self.atomics += batch.atomics();
        self.bytes += batch.touched_bytes();
    }

    /// Adds the cost of another part of the operation.
    pub fn add(&mut self, other: &Cost) {
        self.phases += other.phases;
        self.verbs += other.verbs;
        self.atomics += other.atomics;
        self.bytes += other.bytes;
    }
}

/// Replicas of objects that did not match their slots.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Damage {
    /// Damaged replicas that were found.
    pub found: u64,
    /// Those of them that were written anew, from a whole replica.
    pub repaired: u64,
}

impl Damage {
    /// Adds the findings of another process, which may be any numbers.
    pub fn add(&mut self, other: Damage) {
        self.found = self.found.saturating_add(other.found);
        self.repaired = self.repaired.saturating_add(other.repaired);
    }
}

/// Sums over the operations of one kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KindStats {
    /// Operations that ended, with or without an error.
    pub operations: u64,
    /// Sum of their phases.
    pub phases: u64,
    /// The largest number of phases that one of them took.
    pub max_phases: u32,
    /// Sum of their verbs.
    pub verbs: u64,
    /// Sum of their CASes and FAAs.
    pub atomics: u64,
    /// Sum of the bytes they moved.
    pub bytes: u64,
}

/// Results of steered READs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SteeredReadCounts {
    /// READs that were answered, and could have brought an object of the key.
    pub tried: u64,
    /// READs that brought the object that the slot leads to.
    pub right: u64,
}

/// Sums of one session, or of several.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    kinds: [KindStats; OpKind::ALL.len()],
    damage: Damage,
    left_to_comparison: u64,
    gone: u64,
    lost_rounds: u64,
    steered: SteeredReadCounts,
}

impl Stats {
    /// The sums of one kind.
    pub fn kind(&self, kind: OpKind) -> &KindStats {
        &self.kinds[kind as usize]
    }

    /// Returns the numbers of damaged replicas that operations found, and that they repaired.
    pub fn damage(&self) -> Damage {
        self.damage
    }

    /// Returns the number of freed objects whose free bits may not be set any more: the next comparison of their
    /// blocks with the index finds them.
    pub fn left_to_comparison(&self) -> u64 {
        self.left_to_comparison
    }

    /// Returns how often operations met a word whose pair was lost with its only memory node.
    pub fn gone(&self) -> u64 {
        self.gone
    }

    /// Returns the number of SNAPSHOT rounds that its writes lost to other writers: conflicts.
    pub fn lost_rounds(&self) -> u64 {
        self.lost_rounds
    }

    /// Returns the results of its steered READs.
    pub fn steered(&self) -> SteeredReadCounts {
        self.steered
    }

    /// Adds the sums of another session.
    pub fn merge(&mut self, other: &Stats) {
        for (mine, theirs) in self.kinds.iter_mut().zip(&other.kinds) {
            mine.operations += theirs.operations;
            mine.phases += theirs.phases;
            mine.max_phases = mine.max_phases.max(theirs.max_phases);
            mine.verbs += theirs.verbs;
            mine.atomics += theirs.atomics;
            mine.bytes += theirs.bytes;
        }
        self.damage.add(other.damage);
        self.left_to_comparison += other.left_to_comparison;
        self.gone += other.gone;
        self.lost_rounds += other.lost_rounds;
        self.steered.tried += other.steered.tried;
        self.steered.right += other.steered.right;
    }
}

/// A number that one thread adds to, and other threads read. Adding is as cheap as with a plain number.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds to it. Only ever called by one thread at a time.
    #[inline]
    pub fn add(&self, n: u64) {
        // Relaxed: there is one writer, and nothing depends on the values that other threads read.
        self.0.store(self.get().wrapping_add(n), Relaxed);
    }

    fn raise(&self, n: u64) {
        if n > self.get() {
            self.0.store(n, Relaxed);
        }
    }

    /// The number.
    #[inline]
    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// Counters of one kind, as in [`KindStats`].
#[derive(Debug, Default)]
struct KindCounters {
    operations: Counter,
    phases: Counter,
    max_phases: Counter,
    verbs: Counter,
    atomics: Counter,
    bytes: Counter,
}

/// The counters of a session. Only the session adds to them, and any thread of its process may read them meanwhile:
/// then an operation that is just being counted may be counted partly.
#[derive(Debug, Default)]
pub struct Counters {
    kinds: [KindCounters; OpKind::ALL.len()],
    found: Counter,
    repaired: Counter,
    left_to_comparison: Counter,
    gone: Counter,
    lost_rounds: Counter,
    tried: Counter,
    right: Counter,
}

impl Counters {
    /// Counts one operation.
    pub(crate) fn add(&self, kind: OpKind, cost: &Cost) {
        let sums = &self.kinds[kind as usize];
        sums.operations.add(1);
        sums.phases.add(u64::from(cost.phases));
        sums.max_phases.raise(u64::from(cost.phases));
        sums.verbs.add(u64::from(cost.verbs));
        sums.atomics.add(u64::from(cost.atomics));
        sums.bytes.add(cost.bytes);
    }

    /// Counts one operation that took a batch of READs and nothing else, as most do.
    pub(crate) fn add_reads(&self, kind: OpKind, batch: &crate::verbs::VerbBatch) {
        debug_assert_eq!(batch.atomics(), 0);
        let sums = &self.kinds[kind as usize];
        sums.operations.add(1);
        sums.phases.add(1);
        sums.max_phases.raise(1);
        sums.verbs.add(batch.verbs().len() as u64);
        sums.bytes.add(batch.touched_bytes());
    }

    pub(crate) fn add_left_to_comparison(&self, objects: u64) {
        self.left_to_comparison.add(objects);
    }

    pub(crate) fn add_gone(&self) {
        self.gone.add(1);
    }

    pub(crate) fn add_lost_round(&self) {
        self.lost_rounds.add(1);
    }

    pub(crate) fn add_steered(&self, is_right: bool) {
        self.tried.add(1);
        self.right.add(u64::from(is_right));
    }

    pub(crate) fn add_damage(&self, damage: Damage) {
        self.found.add(damage.found);
        self.repaired.add(damage.repaired);
    }

    /// The sums so far.
    pub fn stats(&self) -> Stats {
        let kind = |sums: &KindCounters| KindStats {
            operations: sums.operations.get(),
            phases: sums.phases.get(),
            max_phases: sums.max_phases.get() as u32,
            verbs: sums.verbs.get(),
            atomics: sums.atomics.get(),
            bytes: sums.bytes.get(),
        };
        Stats {
            kinds: self.kinds.each_ref().map(kind),
            damage: Damage { found: self.found.get(), repaired: self.repaired.get() },
            left_to_comparison: self.left_to_comparison.get(),
            gone: self.gone.get(),
            lost_rounds: self.lost_rounds.get(),
            steered: SteeredReadCounts { tried: self.tried.get(), right: self.right.get() },
        }
    }
}

/// The work of sessions, as reported to the master: for people, and nothing depends on it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionWork {
    /// Operations, by [`OpKind`].
    pub operations: [u64; OpKind::ALL.len()],
    /// Their phases.
    pub phases: [u64; OpKind::ALL.len()],
    /// Verbs of all of them.
    pub verbs: u64,
    /// Bytes that they moved.
    pub bytes: u64,
    /// Rounds of SNAPSHOT that writes lost to other writers: conflicts.
    pub lost_rounds: u64,
    /// Accesses that asked the index cache.
    pub cache_accesses: u64,
    /// Accesses that used a hint.
    pub hints: u64,
    /// Hints that turned out to be wrong.
    pub wrong_hints: u64,
}

impl SessionWork {
    /// Adds the work of another process, which may report any numbers.
    pub fn add(&mut self, other: &SessionWork) {
        self.combine(other, u64::saturating_add);
    }

    /// Returns the work done since an earlier time.
    pub fn since(mut self, earlier: &SessionWork) -> SessionWork {
        self.combine(earlier, u64::saturating_sub);
        self
    }

    fn combine(&mut self, other: &SessionWork, by: fn(u64, u64) -> u64) {
        let arrays = [(&mut self.operations, &other.operations), (&mut self.phases, &other.phases)];
        for (mine, theirs) in arrays {
            mine.iter_mut().zip(theirs).for_each(|(mine, theirs)| *mine = by(*mine, *theirs));
        }
        for (mine, theirs) in [
            (&mut self.verbs, other.verbs),
            (&mut self.bytes, other.bytes),
            (&mut self.lost_rounds, other.lost_rounds),
            (&mut self.cache_accesses, other.cache_accesses),
            (&mut self.hints, other.hints),
            (&mut self.wrong_hints, other.wrong_hints),
        ] {
            *mine = by(*mine, theirs);
        }
    }
}

impl From<&Stats> for SessionWork {
    /// Leaves out the counters of the index cache.
    fn from(stats: &Stats) -> SessionWork {
        let sum = |of: fn(&KindStats) -> u64| stats.kinds.iter().map(of).sum();
        SessionWork {
            operations: stats.kinds.map(|kind| kind.operations),
            phases: stats.kinds.map(|kind| kind.phases),
            verbs: sum(|kind| kind.verbs),
            bytes: if removed(Mutant::BytesAreVerbs) {
                sum(|kind| kind.verbs)
            } else {
                sum(|kind| kind.bytes)
            },
            lost_rounds: stats.lost_rounds,
            ..SessionWork::default()
        }
    }
}
