//! The bars on primaries that this session has asked for.
//!
//! If neither the master nor a primary answers, the session asks all other members to bar the primary. When more than
//! half of all members bar it, no session is granted a lease any more. Then the session waits, by its own clock, for
//! the longest lease of which it, or any of those members, has ever been told. After that, every lease that was valid
//! when the primary was barred has run out, and backups can be read (`fusee_core::host::Views::bar`).
//!
//! Bars are valid for one view. Only one operation of the session asks for bars of a primary at a time; other
//! operations use its result.

use std::cell::RefCell;
use std::sync::Arc;
use std::time::Duration;

use fusee_control::node::{NodeReply, NodeRequest};
use fusee_core::mutant::{Mutant, removed};
use fusee_core::verbs::{ClientId, MnId};
use fusee_core::view::View;
use futures_util::future::join_all;

use super::Environment;

/// Longest and shortest wait for a member's answer to a request for a bar.
const LONGEST_PATIENCE: Duration = Duration::from_millis(250);
const SHORTEST_PATIENCE: Duration = Duration::from_millis(1);

/// The bars that a session has asked for in one view: the newest one in which it has asked.
#[derive(Debug, Default)]
pub(super) struct RequestedBars {
    state: RefCell<ViewBars>,
}

#[derive(Debug, Default)]
struct ViewBars {
    /// The number of the view in which the bars were requested.
    view: u64,
    primaries: Vec<BarredPrimary>,
}

/// A primary for which bars have been requested.
#[derive(Debug)]
struct BarredPrimary {
    node: MnId,
    /// The members that bar the primary.
    by: Vec<MnId>,
    /// The longest lease that any of the barring members knows of.
    lease: Duration,
    /// Whether an operation is asking members to bar the primary now.
    is_asked: bool,
    /// The time at which to ask the members again that do not bar the primary yet.
    again: Duration,
    /// The time at which this session first saw that more than half of all members bar the primary.
    since: Option<Duration>,
}

impl ViewBars {
    fn of(&mut self, node: MnId, view: u64) -> &mut BarredPrimary {
        if self.view != view {
            *self = ViewBars { view, primaries: Vec::new() };
        }
        let known = self.primaries.iter().position(|primary| primary.node == node);
        let at = known.unwrap_or_else(|| {
            self.primaries.push(BarredPrimary {
                node,
                by: Vec::new(),
                lease: Duration::ZERO,
                is_asked: false,
                again: Duration::ZERO,
                since: None,
            });
            self.primaries.len() - 1
        });
        &mut self.primaries[at]
    }
}

/// A running request for bars. Dropping the guard, also when the request is dropped half-way, allows the next request.
struct BarRequestGuard<'b> {
    bars: &'b RequestedBars,
    node: MnId,
    view: u64,
}

impl Drop for BarRequestGuard<'_> {
    fn drop(&mut self) {
        if !self.bars.is_of_later(self.view) {
            self.bars.state.borrow_mut().of(self.node, self.view).is_asked = false;
        }
    }
}

impl RequestedBars {
    /// Returns whether the session has asked for bars in a view later than `view`.
    fn is_of_later(&self, view: u64) -> bool {
        self.state.borrow().view > view
    }

    /// Asks the members that do not bar `node` yet to bar it, if it is time to ask; see `Views::bar`. `lease` is the
    /// longest lease of which the session has been told.
    pub async fn bar(
        &self,
        env: &impl Environment,
        client: ClientId,
        node: MnId,
        view: &Arc<View>,
        lease: Duration,
    ) -> Option<Vec<MnId>> {
        // In a view of fewer than three members, the members other than `node` are no majority. Their bars would only
        // keep other sessions from reading the primary.
        if self.is_of_later(view.number) || view.members.len() < 3 {
            return None;
        }
        let others = view.members.iter().map(|member| member.node).filter(|other| *other != node);
        let asked: Vec<MnId> = {
            let mut state = self.state.borrow_mut();
            let primary = state.of(node, view.number);
            let is_due = !primary.is_asked && primary.again <= env.now();
            let asked = others.filter(|other| is_due && !primary.by.contains(other));
            let asked: Vec<MnId> = asked.collect();
            primary.is_asked |= !asked.is_empty();
            asked
        };
        if !asked.is_empty() {
            let asking = BarRequestGuard { bars: self, node, view: view.number };
            let patience = (lease / 4).clamp(SHORTEST_PATIENCE, LONGEST_PATIENCE);
            let request = NodeRequest::Bar { client, node, view: view.number };
            let answers = asked.iter().map(|other| env.ask_node(*other, request.clone(), patience));
            let answers = join_all(answers).await;
            if self.is_of_later(view.number) {
                return None;
            }
            let mut state = self.state.borrow_mut();
            let primary = state.of(node, view.number);
            for (other, answer) in asked.into_iter().zip(answers) {
                match answer {
                    Ok(NodeReply::Barred { lease_ms }) => {
                        primary.lease = primary.lease.max(Duration::from_millis(lease_ms));
                        if !primary.by.contains(&other) {
                            primary.by.push(other);
                        }
                    }
                    other => tracing::debug!(?other, %node, "it is not barred"),
                }
            }
            // If a majority bars the primary, few keys need the bars of the remaining members, so there is no hurry to
            // ask again.
            let is_barred = 2 * primary.by.len() > view.members.len();
            primary.again = env.now() + if is_barred { lease / 2 } else { patience / 4 };
            drop(state);
            drop(asking);
        }
        let mut state = self.state.borrow_mut();
        let primary = state.of(node, view.number);
        let is_barred = 2 * primary.by.len() > view.members.len()
            || (!primary.by.is_empty() && removed(Mutant::BarsOnHalf));
        if !is_barred {
            return None;
        }
        let now = env.now();
        let since = *primary.since.get_or_insert_with(|| {
            tracing::warn!(%node, "neither it nor the master answers: its backups are read after a lease");
            now
        });
        // The session waits a tenth longer than the lease, because the clock was possibly read a little late.
        let lease = primary.lease.max(lease);
        let is_over = now.saturating_sub(since) >= lease.saturating_add(lease / 10);
        (is_over || removed(Mutant::BarsDoNotWait)).then(|| primary.by.clone())
    }
}
