//! Counters for each kind of operation. Tests check the number of phases of operations with them.

use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;

use serde::{Deserialize, Serialize};

use crate::mutant::{Mutant, removed};

/// Kinds of operations, each of which has its own counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpKind {
    /// SEARCH of one key.
    Search,
    /// SEARCH of several keys in shared phases; one call counts as one operation.
    SearchMany,
    /// INSERT.
    Insert,
    /// UPDATE.
    Update,
    /// UPSERT: an UPDATE if the key exists, otherwise an INSERT.
    Upsert,
    /// DELETE.
    Delete,
    /// A Move, which gives a pair another redundancy.
    Move,
    /// One piece of a SCAN.
    Scan,
    /// Memory management apart from other operations: setting free bits, collecting freed objects, returning blocks.
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

    /// Returns the name of the kind, in lower case. It is the paper's name, if the paper has one.
    pub fn name(self) -> &'static str {
        ["search", "search_many", "insert", "update", "upsert", "delete", "move", "scan", "reclaim"]
            [self as usize]
    }
}

/// The cost of an operation in phases (round trips), verbs, atomics and bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// The number of batches, each of which is one network round trip.
    pub phases: u32,
    /// The number of verbs of all kinds.
    pub verbs: u32,
    /// The number of CASes and FAAs.
    pub atomics: u32,
    /// Bytes that READs and WRITEs moved, plus 8 for each CAS and FAA.
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
    /// The number of damaged replicas that were found.
    pub found: u64,
    /// The number of damaged replicas that were overwritten from a whole replica.
    pub repaired: u64,
}

impl Damage {
    /// Adds the findings of another process. The numbers are untrusted, so the sums saturate instead of overflowing.
    pub fn add(&mut self, other: Damage) {
        self.found = self.found.saturating_add(other.found);
        self.repaired = self.repaired.saturating_add(other.repaired);
    }
}

/// Sums over all operations of one kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KindStats {
    /// The number of operations that ended, with or without an error.
    pub operations: u64,
    /// The sum of the operations' phases.
    pub phases: u64,
    /// The largest number of phases of one operation.
    pub max_phases: u32,
    /// The sum of the operations' verbs.
    pub verbs: u64,
    /// The sum of the operations' CASes and FAAs.
    pub atomics: u64,
    /// The sum of the bytes that the operations moved.
    pub bytes: u64,
}

/// Counts of steered READs by their results.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SteeredReadCounts {
    /// The number of steered READs that were answered and could have returned an object of the key.
    pub tried: u64,
    /// The number of steered READs that returned the object to which the slot leads.
    pub right: u64,
}

/// The sums over the operations of one session, or of several sessions.
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
    /// The sums over the operations of one kind.
    pub fn kind(&self, kind: OpKind) -> &KindStats {
        &self.kinds[kind as usize]
    }

    /// Returns how many damaged replicas operations found and repaired.
    pub fn damage(&self) -> Damage {
        self.damage
    }

    /// Returns the number of freed objects whose free bits are not allowed to be set any more. The next comparison of
    /// their blocks with the index finds these objects.
    pub fn left_to_comparison(&self) -> u64 {
        self.left_to_comparison
    }

    /// Returns how often operations met a slot word of a value that was lost with its only memory node.
    pub fn gone(&self) -> u64 {
        self.gone
    }

    /// Returns the number of rounds that the sessions' writes lost to other writers.
    pub fn lost_rounds(&self) -> u64 {
        self.lost_rounds
    }

    /// Returns the results of the sessions' steered READs.
    pub fn steered(&self) -> SteeredReadCounts {
        self.steered
    }

    /// Adds the sums of another session to these.
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

/// A counter that one thread increases while other threads read it. Adding is as cheap as for a plain number.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds to the counter. Only one thread at a time is allowed to call this function.
    #[inline]
    pub fn add(&self, n: u64) {
        // Relaxed is enough: there is one writer, and nothing depends on the values that other threads read.
        self.0.store(self.get().wrapping_add(n), Relaxed);
    }

    fn raise(&self, n: u64) {
        if n > self.get() {
            self.0.store(n, Relaxed);
        }
    }

    /// Returns the counter's value.
    #[inline]
    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// Counters of the operations of one kind, as in [`KindStats`].
#[derive(Debug, Default)]
struct KindCounters {
    operations: Counter,
    phases: Counter,
    max_phases: Counter,
    verbs: Counter,
    atomics: Counter,
    bytes: Counter,
}

/// The counters of a session. Only the session adds to them. Other threads of the process can read them at any time,
/// and then possibly see an operation that is just being counted in only some of the counters.
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

    /// Counts one operation that took one batch, of READs only, as most operations do.
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

    /// Returns the sums over all operations counted so far.
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

/// The work of sessions, as reported to the master. It is only shown to operators: no decision depends on it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionWork {
    /// The number of operations of each [`OpKind`].
    pub operations: [u64; OpKind::ALL.len()],
    /// The number of phases of the operations of each [`OpKind`].
    pub phases: [u64; OpKind::ALL.len()],
    /// The number of verbs of all operations.
    pub verbs: u64,
    /// The bytes that all operations moved.
    pub bytes: u64,
    /// The number of SNAPSHOT rounds that writes lost to other writers.
    pub lost_rounds: u64,
    /// The number of lookups in the index cache.
    pub cache_accesses: u64,
    /// The number of lookups that returned a hint which was used.
    pub hints: u64,
    /// The number of hints that turned out to be wrong.
    pub wrong_hints: u64,
}

impl SessionWork {
    /// Adds the work of another process. The numbers are untrusted, so the sums saturate instead of overflowing.
    pub fn add(&mut self, other: &SessionWork) {
        self.combine(other, u64::saturating_add);
    }

    /// Returns the work done since an earlier report.
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
    /// Converts the sums. The counters of the index cache are not among them, and stay 0.
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
