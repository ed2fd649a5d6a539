//! The scrubber: jobs that look for damage, also in memory that no client reads, at a limited rate
//! ([`fusee_core::scrub`]).
//!
//! In a stable view without other work, a job reads some slots and the objects that they lead to. The next job
//! continues behind these slots; it starts when reading these bytes at the rate of the settings would have ended.
//! Damage is handled as follows:
//!
//! * The job itself repairs damaged replicas of objects.
//! * If the replicas of a slot differ, the slot is checked again after [`PATIENCE_LEASES`] leases. Slot words do not
//!   recur, so if the words are the same then, no session was writing, or a session has left a write half-way. Then a
//!   change of the view settles the subtable.
//! * If a region's bitmap contradicts the index, another change gives the region a new bitmap.
//! * If an entry leads to an object of which no replica is whole, the operator is told once, and the pair is counted in
//!   every pass.
//!
//! Nothing of this is stored: a master that restarts begins with the first slot.

use fusee_control::count_with_noun;
use fusee_control::events::Topic;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use fusee_control::master::ScrubStatus;
use fusee_core::scrub::{DifferingSlot, ScrubFindings, UnreadableSlot};
use fusee_core::stats::Damage;
use fusee_core::view::View;

use super::context::EventContext;
use super::decision::{Decision, NextView};
use super::facts::ClusterFacts;
use crate::jobs::MasterJob;
use crate::settings::LeaseSettings;

/// The time after which a slot is checked again, in leases. By then a session that was writing has finished or expired.
const PATIENCE_LEASES: u64 = 2;
/// The limit on slots that wait for their second check.
const MAX_SUSPECTS: usize = 64;
/// Bounds of the approximate number of bytes that one job reads.
const MIN_JOB_BYTES: u64 = 64 << 10;
const MAX_JOB_BYTES: u64 = 2 << 20;
/// The limit on lost pairs that the scrubber remembers having told the operator of. Further ones are counted, not told.
const MAX_TOLD: usize = 4096;
/// The limit on the number of subtables that one view change settles.
const TOGETHER: usize = 16;

/// The progress of the scrubber, and its findings.
#[derive(Debug, Default)]
pub(super) struct ScrubState {
    subtable: u32,
    slot: u64,
    not_before_ms: u64,
    /// Slots whose replicas differed, by subtable and slot: the words of the replicas, and the time of the first check.
    suspects: BTreeMap<(u32, u64), (Vec<u64>, u64)>,
    unequal: BTreeSet<u32>,
    marked: BTreeSet<u32>,
    /// The number of lost pairs that the present pass has found so far.
    lost: u64,
    /// Lost pairs that the operator was told of: their slot words, by subtable and slot.
    told: BTreeMap<(u32, u64), u64>,
    so_far: ScrubStatus,
}

/// The slots of a subtable that a job has checked.
#[derive(Clone, Copy, Debug)]
pub(super) struct ScrubbedSlots {
    pub subtable: u32,
    /// The number of the first slot that the job has checked.
    pub first: u64,
    /// Whether the job used the view that is in force now.
    pub is_current: bool,
}

impl ScrubState {
    /// Returns the totals of the scrubber's results.
    pub fn scrubbed(&self) -> ScrubStatus {
        self.so_far
    }

    /// Starts the next job of the scrubber, or a change that deals with a finding.
    pub fn step(&mut self, ctx: &mut EventContext<'_>, cluster: &ClusterFacts) {
        let Some(view) = &cluster.view else { return };
        let rate = ctx.settings.scrub_bytes_per_s;
        if rate == 0 || view.change.is_some() || view.subtables.is_empty() {
            return;
        }
        if self.settle_what_disagrees(ctx, view) {
            return;
        }
        let bytes = (rate / 2).clamp(MIN_JOB_BYTES, MAX_JOB_BYTES);
        let patience_ms = patience_ms(ctx.settings.lease);
        let due = |(_, (_, seen_ms)): &(&(u32, u64), &(Vec<u64>, u64))| {
            seen_ms.saturating_add(patience_ms) <= ctx.now_ms
        };
        let due = self.suspects.iter().find(due).map(|(at, _)| *at);
        let job = match due {
            Some((subtable, first)) => MasterJob::Scrub { subtable, first, count: 1, bytes },
            None if self.not_before_ms > ctx.now_ms => return,
            None => {
                let ScrubState { subtable, slot: first, .. } = *self;
                MasterJob::Scrub { subtable, first, count: u64::MAX, bytes }
            }
        };
        ctx.decide(Decision::StartJob(job));
    }

    /// Begins a view change that deals with the scrubber's findings. Returns whether it has begun one.
    fn settle_what_disagrees(&mut self, ctx: &mut EventContext<'_>, view: &View) -> bool {
        let subtables = view.subtables.len() as u32;
        let regions = view.regions.len() as u32;
        let unequal = self.unequal.iter().copied().filter(|s| *s < subtables);
        let unequal: Vec<u32> = unequal.take(TOGETHER).collect();
        // One region at a time gets a new bitmap, because no session places objects there meanwhile.
        let marked = self.marked.iter().copied().filter(|r| *r < regions);
        let marked: Vec<u32> = marked.take(1).collect();
        if unequal.is_empty() && marked.is_empty() {
            return false;
        }
        let next = view.settling(&unequal, &marked);
        let text = format!(
            "view {}: frozen; to be made equal: the replicas of {}; to be made anew: the free bitmaps of {}",
            next.number,
            count_with_noun(unequal.len(), "subtable"),
            count_with_noun(marked.len(), "region")
        );
        self.unequal.retain(|subtable| !unequal.contains(subtable));
        self.marked.retain(|region| !marked.contains(region));
        self.so_far.settled_subtables += unequal.len() as u64;
        self.so_far.renewed_regions += marked.len() as u64;
        ctx.set_view(NextView::new(next, Topic::Damage, text));
        true
    }

    /// Tells the operator which pairs in these slots are lost; each pair once, however often its slot is checked.
    fn tell_lost(
        &mut self,
        ctx: &mut EventContext<'_>,
        subtable: u32,
        slots: Range<u64>,
        lost: &[UnreadableSlot],
    ) {
        let ScrubState { lost: count, told, .. } = self;
        *count += lost.len() as u64;
        // A pair that is no longer lost is forgotten. If it is lost again later, the operator is told again.
        let before: Vec<(u32, u64)> =
            told.range((subtable, slots.start)..(subtable, slots.end)).map(|(at, _)| *at).collect();
        let before: BTreeMap<(u32, u64), u64> =
            before.iter().filter_map(|at| told.remove_entry(at)).collect();
        let mut damaged = 0;
        for UnreadableSlot { slot, word, damaged: parts } in lost {
            let at = (subtable, *slot);
            let is_new = before.get(&at) != Some(word);
            if is_new && told.len() >= MAX_TOLD {
                continue;
            }
            told.insert(at, *word);
            if is_new {
                damaged += parts;
                let text = format!(
                    "slot {slot} of index subtable {subtable} leads to an object of which too little is \
                     undamaged: the pair is lost"
                );
                ctx.warn(Topic::Damage, text);
            }
        }
        ctx.decide(Decision::AddDamage(Damage { found: damaged, repaired: 0 }));
    }

    /// Handles the findings of a job that has checked these slots.
    pub fn take_findings(
        &mut self,
        ctx: &mut EventContext<'_>,
        cluster: &ClusterFacts,
        scrubbed: ScrubbedSlots,
        looked: ScrubFindings,
    ) {
        let ScrubFindings { next, bytes, damage, lost, differing, marked } = looked;
        let ScrubbedSlots { subtable, first, is_current } = scrubbed;
        ctx.decide(Decision::AddDamage(damage));
        self.tell_lost(ctx, subtable, first..next, &lost);
        let Some(view) = &cluster.view else { return };
        let slots = view.geometry.subtable_slots();
        let subtables = view.subtables.len() as u32;
        if damage.found > 0 {
            let Damage { found, repaired } = damage;
            let text = format!(
                "damaged replicas or chunks of objects: {found}, {repaired} of them repaired"
            );
            ctx.warn(Topic::Damage, text);
        }
        for region in marked {
            let text = format!("a free bitmap of region {region} marks an object that is in use");
            ctx.warn(Topic::Damage, text);
            self.marked.insert(region);
        }
        let patience_ms = patience_ms(ctx.settings.lease);
        // Differences that were found earlier in these slots have gone, or are among the new findings.
        let within = (subtable, first)..(subtable, next);
        let mut before = BTreeMap::new();
        while let Some((at, _)) = self.suspects.range(within.clone()).next() {
            let at = *at;
            before.extend(self.suspects.remove_entry(&at));
        }
        for DifferingSlot { slot, words } in differing {
            let at = (subtable, slot);
            match before.remove(&at).filter(|(shown, _)| *shown == words) {
                Some((_, seen_ms))
                    if seen_ms.saturating_add(patience_ms) <= ctx.now_ms && is_current =>
                {
                    let text = format!(
                        "the replicas of slot {slot} of index subtable {subtable} differ, and nobody is \
                         writing there"
                    );
                    ctx.warn(Topic::Damage, text);
                    self.unequal.insert(subtable);
                }
                Some(seen) => drop(self.suspects.insert(at, seen)),
                None if self.suspects.len() < MAX_SUSPECTS => {
                    self.suspects.insert(at, (words, ctx.now_ms));
                }
                None => {}
            }
        }
        let rate = ctx.settings.scrub_bytes_per_s.max(1);
        // A job that reads few bytes has a cost as well, so at least this many are counted.
        let due = bytes.max(MIN_JOB_BYTES).saturating_mul(1_000);
        self.not_before_ms = ctx.now_ms + due / rate;
        self.so_far.bytes += bytes;
        if (self.subtable, self.slot) == (subtable, first) {
            (self.subtable, self.slot) =
                if next < slots { (subtable, next) } else { (subtable + 1, 0) };
            if self.subtable >= subtables {
                (self.subtable, self.slot) = (0, 0);
                self.so_far.passes += 1;
                self.so_far.lost_pairs = std::mem::take(&mut self.lost);
            }
        }
    }
}

/// Returns the time after which a suspected slot is checked again.
fn patience_ms(lease: LeaseSettings) -> u64 {
    lease.lease_ms.saturating_mul(PATIENCE_LEASES)
}
