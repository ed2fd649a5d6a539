//! The settling of slots that sessions possibly read from backups, because the primary was barred.
//!
//! While no master answers, members *bar* a silent primary, and sessions read the value on which the backups of its
//! slots agree (`docs/decisions/0030-reads-without-a-master.md`). The next master settles these slots before any
//! session trusts the primary again:
//!
//! * The master makes a change whose scope has all subtables with a primary on the barred member. The change loses no
//!   member; if the barred member is lost, the change that removes it settles these subtables as well.
//! * Members raise the view number that they show to the number of that change, and report their bars. From then on
//!   they bar no member for sessions that are pinned by an earlier view. So before the change leaves *frozen*, the
//!   subtables of all primaries that the reported bars name are added to its scope.
//! * When the change is complete, and not before, the master tells members to take back the bars that the change has
//!   settled: bars that were set in earlier views than the change's own.
//!
//! The step by which a change leaves *frozen* also stores which bars the change settles: otherwise a master that is
//! restarted often would settle them again and again. While there are bars, no member is added, and none leaves.

use fusee_control::count_with_noun;
use fusee_control::events::Topic;
use std::collections::{BTreeMap, BTreeSet};

use fusee_control::node::{Bar, NodeReply, NodeRequest};
use fusee_core::verbs::MnId;
use fusee_core::view::View;

use super::contact::Contact;
use super::context::{CallPurpose, EventContext};
use super::decision::{Decision, NextView};
use super::facts::ClusterFacts;
use super::failure_detector::FailureDetector;
use crate::record::{MasterRecord, RecordWrite, SETTLED_KEY};

/// The pause after a member failed to answer, in milliseconds.
const PAUSE_MS: u64 = 100;

/// The state of the settlement: whether a change settles bars, and which bars are settled.
#[derive(Debug, Default)]
pub(super) struct BarSettlement {
    /// Whether the frozen change settles bars. After a restart of the master, true for any frozen change, because the
    /// store does not tell.
    is_frozen: bool,
    /// A view number and members. Bars against these members that were set in earlier views than that are settled when
    /// the change is complete.
    settled: Option<(u64, BTreeSet<MnId>)>,
    /// The times at which members are told again to remove bars, unless they answer earlier.
    again_ms: BTreeMap<MnId, u64>,
}

impl BarSettlement {
    /// Restores from the store which bars are settled.
    pub fn restore(&mut self, before: u64, barred: BTreeSet<MnId>) {
        self.settled = Some((before, barred));
    }

    /// Restores from the store whether a change is frozen. The store does not tell whether that change settles bars.
    pub fn restore_frozen(&mut self, is_frozen: bool) {
        self.is_frozen = is_frozen;
    }

    /// Returns whether a bar will have no effect any more when the view is stable.
    fn is_settled(&self, cluster: &ClusterFacts, bar: &Bar) -> bool {
        let by_change = |(before, barred): &(u64, BTreeSet<MnId>)| {
            bar.view < *before && barred.contains(&bar.node)
        };
        let is_by_no_view = cluster.view.as_ref().is_none_or(|view| view.number < bar.view);
        is_by_no_view || !cluster.in_view(bar.node) || self.settled.as_ref().is_some_and(by_change)
    }

    /// Returns whether the frozen change waits until all members show its number, so that their bars are known.
    pub fn settles_bars(&self) -> bool {
        self.is_frozen
    }

    /// Records that the change that is frozen now has another reason than bars.
    pub fn cancel(&mut self) {
        self.is_frozen = false;
    }

    /// Decides which bars a change settles when it leaves *frozen*: if all members show `before`, all bars that they
    /// have reported, otherwise none. Returns the write to be made durable together with that step.
    pub fn fix_scope(
        &mut self,
        cluster: &ClusterFacts,
        contact: &Contact,
        before: u64,
    ) -> Option<RecordWrite> {
        let is_shown = self.is_frozen || cluster.loses_a_member();
        self.is_frozen = false;
        let barred = if is_shown { barred(cluster, contact) } else { BTreeSet::new() };
        let settled = (!barred.is_empty()).then_some((before, barred));
        let write = match (&settled, &self.settled) {
            (Some((before, barred)), _) => Some(RecordWrite::Put(MasterRecord::Settled {
                before: *before,
                barred: barred.clone(),
            })),
            (None, Some(_)) => Some(RecordWrite::Remove(SETTLED_KEY.into())),
            (None, None) => None,
        };
        self.settled = settled;
        write
    }

    /// Adds the subtables of all barred primaries to the scope of a change. All members show the number of the change,
    /// which is about to leave *frozen*. Returns whether any subtable was missing in the scope.
    pub fn widen_scope(
        &self,
        ctx: &mut EventContext<'_>,
        cluster: &ClusterFacts,
        contact: &Contact,
    ) -> bool {
        let Some(view) = &cluster.view else { return false };
        let in_scope = |subtable: &u32| view.stage_of(*subtable).is_some();
        let mut missing = led_by(view, &barred(cluster, contact));
        missing.retain(|subtable| !in_scope(subtable));
        if missing.is_empty() {
            return false;
        }
        let next = view.also_settling(&missing);
        let text = format!(
            "view {}: frozen, with {} more by a barred primary",
            next.number,
            count_with_noun(missing.len(), "subtable")
        );
        ctx.set_view(NextView::new(next, Topic::View, text));
        true
    }

    /// In a stable view: tells members to remove bars that are settled, and begins to settle the other bars. Returns
    /// whether all other changes have to wait for that.
    pub fn step(
        &mut self,
        ctx: &mut EventContext<'_>,
        cluster: &ClusterFacts,
        contact: &Contact,
        detector: &FailureDetector,
    ) -> bool {
        let mut settled: BTreeMap<MnId, Vec<Bar>> = BTreeMap::new();
        let bars = contact.all_bars(cluster);
        for (node, bar) in bars.filter(|(_, bar)| self.is_settled(cluster, bar)) {
            // The master does not wait for a failed member that the view cannot do without.
            if !cluster.failed.has(node) {
                settled.entry(node).or_default().push(bar);
            }
        }
        let Some(view) = &cluster.view else { return false };
        for (node, bars) in &settled {
            let again_ms = self.again_ms.entry(*node).or_default();
            if *again_ms <= ctx.now_ms {
                // If no answer comes at all, the request is repeated one lease from now.
                *again_ms = ctx.now_ms.saturating_add(ctx.settings.lease.lease_ms);
                let request = NodeRequest::Unbar { cluster: view.cluster, bars: bars.clone() };
                ctx.call(&cluster.roster, *node, request, CallPurpose::Unbar);
            }
        }
        self.settle_bars(ctx, cluster, contact, detector) || !settled.is_empty()
    }

    fn settle_bars(
        &mut self,
        ctx: &mut EventContext<'_>,
        cluster: &ClusterFacts,
        contact: &Contact,
        detector: &FailureDetector,
    ) -> bool {
        let open = contact.all_bars(cluster).filter(|(_, bar)| !self.is_settled(cluster, bar));
        let open = open.map(|(_, bar)| bar.node);
        // A member that has not reported to this master is possibly lost; then the change that removes it settles the
        // same slots.
        let may_be_waited_for = |node: &MnId| {
            let is_local = detector.is_local(*node);
            (is_local || contact.is_heard(*node)) && !cluster.failed.has(*node)
        };
        let barred: BTreeSet<MnId> = open.filter(may_be_waited_for).collect();
        let Some(view) = cluster.view.as_ref().filter(|_| !barred.is_empty()) else { return false };
        let next = view.settling(&led_by(view, &barred), &[]);
        let names: Vec<String> = barred.iter().map(MnId::to_string).collect();
        let text = format!(
            "view {}: frozen; what may have been read beside {} without a master is settled",
            next.number,
            names.join(", ")
        );
        self.is_frozen = true;
        ctx.set_view(NextView { is_shown: true, ..NextView::new(next, Topic::View, text) });
        true
    }

    /// Handles a member's answer to the request to take bars back, or the failure of that request.
    pub fn unbar_answered(
        &mut self,
        ctx: &mut EventContext<'_>,
        node: MnId,
        result: Result<NodeReply, String>,
    ) {
        let again_ms = match result {
            Ok(NodeReply::Bars(bars)) => {
                ctx.decide(Decision::Bars { node, bars });
                ctx.now_ms
            }
            other => {
                ctx.info(Topic::View, format!("{node} keeps its bars: {other:?}"));
                ctx.decide(Decision::Probe(node));
                ctx.now_ms + PAUSE_MS
            }
        };
        self.again_ms.insert(node, again_ms);
    }
}

/// Returns the members that other members bar.
fn barred(cluster: &ClusterFacts, contact: &Contact) -> BTreeSet<MnId> {
    let barred = contact.all_bars(cluster).map(|(_, bar)| bar.node);
    barred.filter(|node| cluster.in_view(*node)).collect()
}

/// Returns the numbers of the subtables whose primaries are on these nodes, in ascending order.
fn led_by(view: &View, nodes: &BTreeSet<MnId>) -> Vec<u32> {
    let subtables = (0u32..).zip(&view.subtables);
    let led = subtables.filter(|(number, subtable)| {
        !view.is_without_primary(*number) && nodes.contains(&subtable.primary().node)
    });
    led.map(|(number, _)| number).collect()
}
