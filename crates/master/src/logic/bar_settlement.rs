//! The settling of slots that may have been read from backups beside barred primaries.
//!
//! While no master is heard, members *bar* a silent primary, and sessions read the value on which the backups of its
//! slots agree (`docs/decisions/0030-reads-without-a-master.md`). The master that comes back settles these slots,
//! before any session relies on the primary again:
//!
//! * It makes a change whose scope has all subtables with a primary on the barred member. The change loses no member;
//!   if the barred member is lost, a change without it does the same.
//! * Members go to the number of that change, and report their bars. From then on they bar no member for sessions that
//!   are pinned by an earlier view. So before the change leaves *frozen*, its scope is widened by the bars that became
//!   known.
//! * Once the change is complete, and not before, members are told to take back the bars that it has settled: those by
//!   views before its own.
//!
//! The step by which a change leaves *frozen* stores which bars it settles: otherwise a master that is restarted often
//! would settle them again and again. While there are bars, no member is added, and none leaves.

use fusee_control::count_with_noun;
use fusee_control::events::Topic;
use std::collections::{BTreeMap, BTreeSet};

use fusee_control::node::{Bar, NodeReply, NodeRequest};
use fusee_core::verbs::MnId;
use fusee_core::view::View;
use fusee_core::view::change::ChangeStage;

use super::MasterState;
use super::context::{CallPurpose, EventContext};
use crate::record::{MasterRecord, RecordWrite, SETTLED_KEY};

/// The pause after a failure.
const PAUSE_MS: u64 = 100;

/// The bars that are being settled, and those that are settled.
#[derive(Debug, Default)]
pub(super) struct BarSettlement {
    /// The frozen change was made to settle bars, or may have been.
    is_frozen: bool,
    /// Bars of these members, by views before this one, are settled when the change is complete.
    settled: Option<(u64, BTreeSet<MnId>)>,
    /// The times at which members are told again to take bars back, unless an answer comes.
    again_ms: BTreeMap<MnId, u64>,
}

impl BarSettlement {
    /// Restores from the store.
    pub fn restore(&mut self, before: u64, barred: BTreeSet<MnId>) {
        self.settled = Some((before, barred));
    }

    /// Restores from the store whether a change is frozen. The store does not tell why it was made.
    pub fn restore_frozen(&mut self, is_frozen: bool) {
        self.is_frozen = is_frozen;
    }
}

impl MasterState {
    /// Returns all bars that members of the view have reported.
    fn bars(&self) -> impl Iterator<Item = (MnId, Bar)> + '_ {
        let members = self.view().into_iter().flat_map(|view| &view.members);
        members.flat_map(|member| {
            let bars = self.contact.barred_by(member.node);
            bars.iter().map(|bar| (member.node, *bar))
        })
    }

    /// Returns whether any bar is known.
    pub(super) fn has_bars(&self) -> bool {
        self.bars().next().is_some()
    }

    /// Returns whether a bar no longer counts, once the view is stable.
    fn is_settled(&self, bar: &Bar) -> bool {
        let by_change = |(before, barred): &(u64, BTreeSet<MnId>)| {
            bar.view < *before && barred.contains(&bar.node)
        };
        let is_by_no_view = self.view().is_none_or(|view| view.number < bar.view);
        is_by_no_view
            || !self.in_view(bar.node)
            || self.settling.settled.as_ref().is_some_and(by_change)
    }

    /// Returns the members that are barred.
    fn barred(&self) -> BTreeSet<MnId> {
        self.bars().map(|(_, bar)| bar.node).filter(|node| self.in_view(*node)).collect()
    }

    /// Returns whether the frozen change waits until all members show its number, to learn of their bars.
    pub(super) fn settles_bars(&self) -> bool {
        self.settling.is_frozen
    }

    /// Takes note that a change is frozen for another reason.
    pub(super) fn cancel_bar_settlement(&mut self) {
        self.settling.is_frozen = false;
    }

    /// Fixes the scope of a change that leaves *frozen*. `is_shown` tells whether all members show its number. Returns
    /// the write to be made durable together with that step.
    pub(super) fn fix_scope(&mut self, before: u64, is_shown: bool) -> Option<RecordWrite> {
        self.settling.is_frozen = false;
        let barred = if is_shown { self.barred() } else { BTreeSet::new() };
        let settled = (!barred.is_empty()).then_some((before, barred));
        let write = match (&settled, &self.settling.settled) {
            (Some((before, barred)), _) => Some(RecordWrite::Put(MasterRecord::Settled {
                before: *before,
                barred: barred.clone(),
            })),
            (None, Some(_)) => Some(RecordWrite::Remove(SETTLED_KEY.into())),
            (None, None) => None,
        };
        self.settling.settled = settled;
        write
    }

    /// Widens the scope of a change, whose number all members show and which is about to leave *frozen*, by the
    /// subtables of all barred members. Returns whether any was missing.
    pub(super) fn widen_scope(&mut self, ctx: &mut EventContext<'_>) -> bool {
        let Some(view) = self.view() else { return false };
        let in_scope = |subtable: &u32| view.stage_of(*subtable).is_some();
        let mut missing = led_by(view, &self.barred());
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
        self.set_view(ctx, next, Vec::new(), (Topic::View, text));
        true
    }

    /// In a stable view: takes back bars that are settled, and settles the others. Returns whether all else has to wait
    /// for that.
    pub(super) fn handle_bars(&mut self, ctx: &mut EventContext<'_>) -> bool {
        let mut settled: BTreeMap<MnId, Vec<Bar>> = BTreeMap::new();
        for (node, bar) in self.bars().filter(|(_, bar)| self.is_settled(bar)) {
            // A member that is gone, and that the view cannot do without, is not waited for.
            if !self.losing.has(node) {
                settled.entry(node).or_default().push(bar);
            }
        }
        let Some(cluster) = self.view().map(|view| view.cluster) else { return false };
        for (node, bars) in &settled {
            let again_ms = self.settling.again_ms.entry(*node).or_default();
            if *again_ms <= ctx.now_ms {
                // In case no answer comes at all.
                *again_ms = ctx.now_ms.saturating_add(ctx.settings.lease.lease_ms);
                let request = NodeRequest::Unbar { cluster, bars: bars.clone() };
                ctx.call(&self.roster, *node, request, CallPurpose::Unbar);
            }
        }
        self.settle_bars(ctx) || !settled.is_empty()
    }

    fn settle_bars(&mut self, ctx: &mut EventContext<'_>) -> bool {
        let open = self.bars().filter(|(_, bar)| !self.is_settled(bar)).map(|(_, bar)| bar.node);
        // A member that has not been heard may be lost; then the change without it settles the same.
        let may_be_waited_for = |node: &MnId| {
            let is_local = self.presences.is_local(*node);
            (is_local || self.contact.is_heard(*node)) && !self.losing.has(*node)
        };
        let barred: BTreeSet<MnId> = open.filter(may_be_waited_for).collect();
        let Some(view) = self.view().filter(|_| !barred.is_empty()) else { return false };
        let next = view.settling(&led_by(view, &barred), &[]);
        let names: Vec<String> = barred.iter().map(MnId::to_string).collect();
        let text = format!(
            "view {}: frozen; what may have been read beside {} without a master is settled",
            next.number,
            names.join(", ")
        );
        let writes = vec![self.members_change(next.number)];
        self.settling.is_frozen = true;
        self.set_view(ctx, next, writes, (Topic::View, text));
        true
    }

    /// Handles a member's answer to the request to take bars back, or its failure.
    pub(super) fn unbar_answered(
        &mut self,
        ctx: &mut EventContext<'_>,
        node: MnId,
        result: Result<NodeReply, String>,
    ) {
        let again_ms = match result {
            Ok(NodeReply::Bars(bars)) => {
                self.contact.bars(node, bars);
                ctx.now_ms
            }
            other => {
                ctx.info(Topic::View, format!("{node} keeps its bars: {other:?}"));
                self.probe(ctx, node);
                ctx.now_ms + PAUSE_MS
            }
        };
        self.settling.again_ms.insert(node, again_ms);
    }

    /// Returns whether the change is *frozen*, and all members have reported their bars at its number.
    pub(super) fn bars_are_told(&self) -> bool {
        let is_told = if self.loses_a_member() {
            self.standing.is_shown_by_all()
        } else {
            self.is_shown_by_all_there()
        };
        self.stage() == Some(ChangeStage::Frozen) && is_told
    }
}

/// Returns the subtables whose primaries are on these nodes, in order.
fn led_by(view: &View, nodes: &BTreeSet<MnId>) -> Vec<u32> {
    let subtables = (0u32..).zip(&view.subtables);
    let led = subtables.filter(|(number, subtable)| {
        !view.is_without_primary(*number) && nodes.contains(&subtable.primary().node)
    });
    led.map(|(number, _)| number).collect()
}
