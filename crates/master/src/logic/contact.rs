//! Contact: since when sessions may count as heard, and what memory nodes bar.
//!
//! A session that counts as heard reads primaries without a question. But where no master is heard
//! somebody may read what the backups of a silent primary agree on, once more than half of all members
//! *bar* it (`docs/decisions/0030-reads-without-a-master.md`). So no lease may run from a later time
//! than that. Each member says with every heartbeat which answer of this master it has received
//! last, and whom it bars. *Contact* is the latest time such that more than half of the members have
//! received an answer that was given since, and barred nobody when they said so. A lease runs from
//! there, if that is earlier than the question.
//!
//! *Why that is enough.* A member that bars somebody has received its last answer before that, as far as
//! it has said so while it barred nobody. Any two majorities have a member in common. The
//! members of earlier views that somebody may still be pinned by count by themselves, each view's (`standing`).
//!
//! * A master that has just begun has no contact: the first heartbeat is answered at once.
//! * As long as bars are known there is none that is later. When a change that loses members leaves *frozen*,
//!   all bars are known, and from then on the smaller set of members decides.
//! * A master that finds a change which is past *frozen* waits until all members have said what they bar.
//! * Nodes inside of this process end with it, and are always in contact. So are one or two members: there is no
//!   majority without the primary, so nobody reads beside it.

use std::collections::BTreeMap;

use fusee_control::master::Note;
use fusee_control::node::Bars;
use fusee_core::change::Stage;
use fusee_core::mutant::{Mutant, removed};
use fusee_core::verbs::MnId;
use fusee_core::view::View;

use super::State;
use super::context::Ctx;

/// What is known of members.
#[derive(Debug, Default)]
pub(super) struct Contact {
    /// Names this master in its answers.
    by: u64,
    members: BTreeMap<MnId, Said>,
    latest_ms: Option<u64>,
}

/// What a member has said to this master.
#[derive(Debug, Default)]
struct Said {
    /// When the last answer was given that it has received, and barred nobody then.
    answered_ms: Option<u64>,
    bars: Option<Bars>,
}

impl Contact {
    /// Of a master that begins. `random` is a random number.
    pub fn new(random: u64) -> Contact {
        Contact { by: random, ..Contact::default() }
    }

    /// What to answer a memory node now.
    pub fn note(&self, now_ms: u64) -> Note {
        Note { by: self.by, at_ms: now_ms }
    }

    /// Whether a node has received an answer of this master.
    pub fn knows(&self, heard: Option<Note>) -> bool {
        heard.is_some_and(|note| note.by == self.by)
    }

    /// A member says what it bars.
    pub fn bars(&mut self, node: MnId, bars: Bars) {
        let said = self.members.entry(node).or_default();
        if said.bars.as_ref().is_none_or(|known| known.changes <= bars.changes) {
            said.bars = Some(bars);
        }
    }

    /// A member says that it is there.
    pub fn alive(&mut self, node: MnId, heard: Option<Note>, bars: &Bars) {
        self.bars(node, bars.clone());
        let own = heard.filter(|note| note.by == self.by && bars.bars.is_empty());
        let said = self.members.entry(node).or_default();
        said.answered_ms = said.answered_ms.max(own.map(|note| note.at_ms));
    }

    /// Whether a member has received an answer of this master.
    pub fn is_heard(&self, node: MnId) -> bool {
        self.members.get(&node).is_some_and(|said| said.bars.is_some())
    }

    /// Whom a member bars.
    pub fn barred_by(&self, node: MnId) -> &[fusee_control::node::Bar] {
        let bars = self.members.get(&node).and_then(|said| said.bars.as_ref());
        bars.map_or(&[], |bars| &bars.bars)
    }

    /// Forgets all that are in none of these sets.
    fn follow(&mut self, sets: &[Vec<MnId>]) {
        self.members.retain(|node, _| sets.iter().any(|set| set.contains(node)));
    }

    /// The latest time such that more than half of these have received an answer since.
    fn of(&self, members: &[MnId], answered: impl Fn(MnId) -> Option<u64>) -> Option<u64> {
        let mut all: Vec<Option<u64>> = members.iter().map(|node| answered(*node)).collect();
        all.sort_unstable_by(|a, b| b.cmp(a));
        all.get(members.len() / 2).copied().flatten()
    }
}

impl State {
    /// How long before a question that came then the lease of who asks begins, in milliseconds;
    /// `u64::MAX` if there is none.
    pub(super) fn behind_ms(&self, asked_ms: u64) -> u64 {
        if removed(Mutant::LeasesWithoutContact) {
            return 0;
        }
        // Both are rounded down.
        let since = |latest_ms| (asked_ms + 1).saturating_sub(latest_ms);
        self.contact.latest_ms.map_or(u64::MAX, since)
    }

    /// Looks how late contact is.
    pub(super) fn follow_contact(&mut self, ctx: &Ctx<'_>) {
        let Some(view) = self.view() else { return };
        let names = |view: &View| view.members.iter().map(|member| member.node).collect();
        let members: Vec<MnId> = names(view);
        let passed = view.change.as_ref().is_some_and(|change| change.stage != Stage::Frozen);
        let mut sets = vec![members.clone()];
        sets.extend(self.standing.former().iter().cloned());
        self.contact.follow(&sets);
        let is_local = |node: MnId| self.presences.is_local(node);
        let has_said = |node: &MnId| is_local(*node) || self.contact.is_heard(*node);
        let is_barred = members.iter().any(|node| !self.contact.barred_by(*node).is_empty());
        if is_barred || (passed && !members.iter().all(has_said)) {
            return;
        }
        let answered = |node: MnId| {
            if is_local(node) {
                Some(ctx.now_ms)
            } else {
                self.contact.members.get(&node).and_then(|said| said.answered_ms)
            }
        };
        // Where there is no majority beside one of them nobody is ever barred.
        let of = |set: &Vec<MnId>| match set.len() {
            ..=2 => Some(ctx.now_ms),
            _ => self.contact.of(set, answered),
        };
        let latest = sets.iter().map(of).min().flatten();
        self.contact.latest_ms = self.contact.latest_ms.max(latest);
    }
}
