//! Lost members: the next view goes on without them, as far as every subtable and region survives that.
//!
//! `failure_detector` and its probes decide which members are gone. A member that the view cannot do without stays in
//! it, and in the set here, until it is heard again or other members can go.

use fusee_control::count_with_noun;
use fusee_control::events::Topic;
use std::collections::BTreeSet;

use fusee_core::verbs::MnId;
use fusee_core::view::View;
use fusee_core::view::change::ViewChange;

use super::MasterState;
use super::context::EventContext;

/// The members that are gone.
#[derive(Debug, Default)]
pub(super) struct FailedMembers {
    /// Members that are gone and still in the view.
    gone: BTreeSet<MnId>,
    /// The view and the set of lost members for which some subtable or region would have no replica left.
    hopeless: Option<(u64, BTreeSet<MnId>)>,
}

impl FailedMembers {
    /// Returns whether a member is gone and still in the view.
    pub fn has(&self, node: MnId) -> bool {
        self.gone.contains(&node)
    }

    /// Returns whether all members are present.
    pub fn is_empty(&self) -> bool {
        self.gone.is_empty()
    }

    /// Forgets a member that is present after all, or a member no longer.
    pub fn forget(&mut self, node: MnId) {
        self.gone.remove(&node);
    }
}

impl MasterState {
    /// Takes note that a member is gone, as far as the cluster is concerned.
    pub(super) fn suspect(&mut self, ctx: &mut EventContext<'_>, node: MnId, why: &str) {
        if self.in_view(node) && self.losing.gone.insert(node) {
            ctx.warn(Topic::Loss, format!("{node} is lost: {why}"));
        }
    }

    /// Makes the view without the members that are gone, as far as every subtable and region survives that.
    pub(super) fn remove_lost_members(&mut self, ctx: &mut EventContext<'_>) {
        let losing = self.losing.gone.clone();
        let Some(view) = self.view() else { return };
        if self.finishes && view.change.is_none() {
            return;
        }
        if losing.is_empty() {
            if self.losing.hopeless.take().is_some() {
                self.problem = None;
            }
            return;
        }
        let tried = (view.number, losing);
        if self.losing.hopeless.as_ref() == Some(&tried) {
            return;
        }
        let (number, losing) = tried;
        let mut lost: Vec<MnId> = Vec::new();
        let mut without = None;
        let mut problem = None;
        for node in &losing {
            lost.push(*node);
            match view.without(&lost) {
                Ok(view) => without = Some(view),
                Err(nothing) => {
                    lost.pop();
                    problem = Some((*node, nothing));
                }
            }
        }
        if let Some(view) = without {
            self.lose(ctx, &lost, view);
        }
        self.losing.hopeless = problem.as_ref().map(|_| {
            let number = self.view().map_or(number, |view| view.number);
            (number, self.losing.gone.clone())
        });
        if let Some((node, nothing)) = problem {
            let problem =
                format!("{node} is lost, and without it {nothing}. {}", self.describe_losses());
            ctx.warn(Topic::Loss, problem.clone());
            self.problem = Some(problem);
        }
    }

    /// Returns a text: the parts without a living replica, and the remedy.
    fn describe_losses(&self) -> String {
        let losing = &self.losing.gone;
        let Some(view) = self.view() else { return String::new() };
        let is_lost = |node: MnId| losing.contains(&node);
        let tables = view.subtables.iter().filter(|table| !table.survives(is_lost)).count();
        let regions = view.regions.iter().filter(|region| !region.survives(is_lost)).count();
        let all_tables = view.subtables.len();
        let all_regions = view.regions.len();
        let names: Vec<String> = losing.iter().map(MnId::to_string).collect();
        format!(
            "Gone: {}, and so {tables} of {all_tables} index subtables and {regions} of \
             {all_regions} regions. The cluster goes on when one of these processes is heard again (one \
             that is started anew is empty, and another one). If none will be, what it held is lost: with an \
             export, `fusee restore FILE --destroy-data` makes a new cluster of it; without one, give this \
             one up with `fusee destroy`, and form a new one with `fusee form`",
            names.join(", ")
        )
    }

    fn lose(&mut self, ctx: &mut EventContext<'_>, lost: &[MnId], view: View) {
        let mut writes = Vec::new();
        for node in lost {
            self.presences.forget(*node);
            self.losing.forget(*node);
            self.roster.lose(*node, &mut writes);
        }
        writes.push(self.members_change(view.number));
        let count = |of: fn(&ViewChange) -> usize| view.change.as_ref().map_or(0, of);
        let change = count(|change| change.subtables.len());
        let names: Vec<String> = lost.iter().map(MnId::to_string).collect();
        let pairs = match count(|change| change.lost_pairs.len()) {
            0 => String::new(),
            regions => {
                format!(
                    "; lost: {} of pairs without redundancy",
                    count_with_noun(regions, "region")
                )
            }
        };
        let text = format!(
            "view {}: frozen, without {}; {} in the scope{pairs}",
            view.number,
            names.join(", "),
            count_with_noun(change, "subtable")
        );
        self.cancel_bar_settlement();
        self.growth.abandon();
        self.splitting.abandon();
        self.adding.abandon();
        self.history.lost(ctx.now_ms, lost);
        self.set_view(ctx, view, writes, (Topic::Loss, text));
    }
}
