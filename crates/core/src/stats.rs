//! Counters per kind of operation. The RTT budget is a test on them.

use serde::{Deserialize, Serialize};

/// Kinds of operations that are counted apart.
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
    /// What memory management costs beside the operations: to mark freed objects, to collect them,
    /// to return blocks.
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

    /// The paper's word for it, in lower case.
    pub fn name(self) -> &'static str {
        ["search", "search_many", "insert", "update", "upsert", "delete", "move", "scan", "reclaim"]
            [self as usize]
    }
}

/// What one operation cost.
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
    pub fn add_batch(&mut self, batch: &crate::verbs::Batch) {
        self.phases += 1;
        self.verbs += batch.verbs().len() as u32;
        self.atomics += batch.atomics();
        self.bytes += batch.touched_bytes();
    }

    /// Adds what another part of the operation cost.
    pub fn add(&mut self, other: &Cost) {
        self.phases += other.phases;
        self.verbs += other.verbs;
        self.atomics += other.atomics;
        self.bytes += other.bytes;
    }
}

/// Replicas of objects that did not hold what belongs there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Damage {
    /// That were found.
    pub found: u64,
    /// Those of them that were written anew, from a replica that was whole.
    pub repaired: u64,
}

impl Damage {
    /// Adds what somebody else found, who may say anything.
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
    /// The most phases that one of them took.
    pub max_phases: u32,
    /// Sum of their verbs.
    pub verbs: u64,
    /// Sum of their CASes and FAAs.
    pub atomics: u64,
    /// Sum of the bytes they moved.
    pub bytes: u64,
}

/// What steered READs came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Steered {
    /// Those that were answered, and could have brought an object of the key.
    pub tried: u64,
    /// Those that brought the object that the slot leads to.
    pub right: u64,
}

/// Counters of one session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    kinds: [KindStats; OpKind::ALL.len()],
    damage: Damage,
    left_to_comparison: u64,
    gone: u64,
    steered: Steered,
}

impl Stats {
    /// Counts one operation.
    pub fn add(&mut self, kind: OpKind, cost: &Cost) {
        let sums = &mut self.kinds[kind as usize];
        sums.operations += 1;
        sums.phases += u64::from(cost.phases);
        sums.max_phases = sums.max_phases.max(cost.phases);
        sums.verbs += u64::from(cost.verbs);
        sums.atomics += u64::from(cost.atomics);
        sums.bytes += cost.bytes;
    }

    /// The sums of one kind.
    pub fn kind(&self, kind: OpKind) -> &KindStats {
        &self.kinds[kind as usize]
    }

    /// What operations found damaged, and wrote anew.
    pub fn damage(&self) -> Damage {
        self.damage
    }

    /// Objects that were freed, and whose free bits may not be set any more: the next comparison of their blocks with
    /// the index finds them.
    pub fn left_to_comparison(&self) -> u64 {
        self.left_to_comparison
    }

    pub(crate) fn add_left_to_comparison(&mut self, objects: u64) {
        self.left_to_comparison += objects;
    }

    /// Words that operations met whose pairs were lost with their only memory node.
    pub fn gone(&self) -> u64 {
        self.gone
    }

    pub(crate) fn add_gone(&mut self) {
        self.gone += 1;
    }

    /// What its steered READs came to.
    pub fn steered(&self) -> Steered {
        self.steered
    }

    pub(crate) fn add_steered(&mut self, is_right: bool) {
        self.steered.tried += 1;
        self.steered.right += u64::from(is_right);
    }

    pub(crate) fn add_damage(&mut self, damage: Damage) {
        self.damage.add(damage);
    }

    /// Adds the counters of another session.
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
        self.steered.tried += other.steered.tried;
        self.steered.right += other.steered.right;
    }
}
