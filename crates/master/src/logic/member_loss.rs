//! Lost members: the next view lacks them, as far as every subtable and region keeps a replica.
//!
//! `failure_detector` and its probes decide which members have failed. A failed member without which a subtable or
//! region would have no replica stays in the view, and in [`FailedMembers`], until it sends a heartbeat again or other
//! members can be removed.

use fusee_control::count_with_noun;
use fusee_control::events::Topic;
use std::collections::BTreeSet;

use fusee_core::verbs::MnId;
use fusee_core::view::View;
use fusee_core::view::change::ViewChange;

use super::context::EventContext;
use super::decision::{Decision, NextView};
use super::facts::ClusterFacts;

/// The members that have failed and are still in the view.
#[derive(Debug, Default)]
pub(super) struct FailedMembers {
    gone: BTreeSet<MnId>,
}

impl FailedMembers {
    /// Returns whether a member has failed and is still in the view.
    pub fn has(&self, node: MnId) -> bool {
        self.gone.contains(&node)
    }

    /// Returns whether no member has failed.
    pub fn is_empty(&self) -> bool {
        self.gone.is_empty()
    }

    /// Adds a member; returns whether it had not failed before.
    pub fn insert(&mut self, node: MnId) -> bool {
        self.gone.insert(node)
    }

    /// Forgets a member that is present after all, or that is no longer in the view. Returns whether it had failed.
    pub fn forget(&mut self, node: MnId) -> bool {
        self.gone.remove(&node)
    }
}

/// The failed members without which no view can be made.
#[derive(Debug, PartialEq, Eq)]
struct HopelessLoss {
    /// The number of the view that was in force when their removal was impossible.
    view: u64,
    gone: BTreeSet<MnId>,
}

/// The removal of failed members from the view.
#[derive(Debug, Default)]
pub(super) struct MemberLoss {
    /// The last removal that was impossible, because some subtable or region would have had no replica left.
    hopeless: Option<HopelessLoss>,
}

impl MemberLoss {
    /// Makes the view without the failed members, as far as every subtable and region keeps a replica.
    pub fn step(&mut self, ctx: &mut EventContext<'_>, cluster: &ClusterFacts) {
        let Some(view) = &cluster.view else { return };
        if cluster.finishes && view.change.is_none() {
            return;
        }
        if cluster.failed.is_empty() {
            if self.hopeless.take().is_some() {
                ctx.decide(Decision::SetProblem(None));
            }
            return;
        }
        let tried = HopelessLoss { view: view.number, gone: cluster.failed.gone.clone() };
        if self.hopeless.as_ref() == Some(&tried) {
            return;
        }
        let mut lost: Vec<MnId> = Vec::new();
        let mut without = None;
        let mut problem = None;
        for node in &tried.gone {
            lost.push(*node);
            match view.without(&lost) {
                Ok(view) => without = Some(view),
                Err(nothing) => {
                    lost.pop();
                    problem = Some(format!("{node} is lost, and without it {nothing}."));
                }
            }
        }
        let mut left = tried.gone;
        left.retain(|node| !lost.contains(node));
        let next = without.as_ref().unwrap_or(view);
        let had_problem = self.hopeless.is_some();
        self.hopeless = problem.is_some().then_some(HopelessLoss { view: next.number, gone: left });
        let problem = problem.zip(self.hopeless.as_ref());
        let problem =
            problem.map(|(it, hopeless)| format!("{it} {}", describe_losses(next, &hopeless.gone)));
        if let Some(view) = without {
            ctx.decide(Decision::Lose { view: Box::new(lossy(view, &lost)), nodes: lost });
        }
        if let Some(problem) = problem {
            ctx.warn(Topic::Loss, problem.clone());
            ctx.decide(Decision::SetProblem(Some(problem)));
        } else if had_problem {
            ctx.decide(Decision::SetProblem(None));
        }
    }
}

/// Returns a text that names the subtables and regions without a living replica, and the remedy.
fn describe_losses(view: &View, losing: &BTreeSet<MnId>) -> String {
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

/// Returns the next view, which lacks the lost members, with a text for operators.
fn lossy(view: View, lost: &[MnId]) -> NextView {
    let count = |of: fn(&ViewChange) -> usize| view.change.as_ref().map_or(0, of);
    let change = count(|change| change.subtables.len());
    let names: Vec<String> = lost.iter().map(MnId::to_string).collect();
    let pairs = match count(|change| change.lost_pairs.len()) {
        0 => String::new(),
        regions => {
            format!("; lost: {} of pairs without redundancy", count_with_noun(regions, "region"))
        }
    };
    let text = format!(
        "view {}: frozen, without {}; {} in the scope{pairs}",
        view.number,
        names.join(", "),
        count_with_noun(change, "subtable")
    );
    NextView { is_shown: true, ..NextView::new(view, Topic::Loss, text) }
}
