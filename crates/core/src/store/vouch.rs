//! Who vouches for what was READ, when the master is not heard.
//!
//! A memory node that is cut off from the master serves on, and shows what was true before the cluster
//! went on without it. A session that is heard has been waited for. Who has not been heard for a lease
//! (`Views::is_heard`) asks the members of its view at which view they stand: what it has READ counts if
//! more than half of all of them show that one, or an earlier one. Members that do not answer do not
//! vouch: whether they are dead or cut off nobody can tell. A view without a member takes effect only when
//! half of the members before, at least, show its number.
//!
//! It does not matter whether the READs came before the question or after it, as long as all that
//! happened since the operation began: until a view without its node takes effect the node shows what
//! everybody sees, and afterwards nobody changes anything there. So a question serves all operations that
//! began before it.
//!
//! Members also show whom they *bar* ([`beside`](super::beside)): a member that bars a node does not vouch for what
//! that has shown. Where nobody vouches for a primary because it is barred, its backups are read.
//!
//! Writes need no question: they are done when all replicas have them, and those that are left have
//! fenced the session. Only what a write answers from a READ does ("exists", "not found"), and what the loser
//! of an UPDATE answers, whose winner others may have read before it began.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::cell::{Cell, RefCell};
use core::mem;

use super::{Op, Store};
use crate::error::{Error, Outcome};
use crate::host::Host;
use crate::layout::{BARS_BYTES, HeaderWord, has_bar};
use crate::mutant::{Mutant, removed};
use crate::race::{Buckets, Key};
use crate::verbs::{Fabric, MnId, Ticket};
use crate::view::View;

/// What is waited for.
const WORD: &str = "word from the master, or from more than half of the memory nodes";

/// The questions of a session to the members.
#[derive(Debug, Default)]
pub(super) struct Asks {
    begun: Cell<u64>,
    answer: RefCell<Answer>,
}

/// What came of the last question that more than half of the members answered well.
#[derive(Debug, Default)]
struct Answer {
    /// Its number, and that of the view for which they vouched.
    ask: u64,
    view: u64,
    /// For what these have shown nobody vouches.
    barred: Vec<MnId>,
}

impl Asks {
    /// How many have begun.
    pub fn begun(&self) -> u64 {
        self.begun.get()
    }

    /// Whether the members have vouched for what these show by a view, since so many questions had begun.
    fn have_vouched(&self, view: u64, since: u64, shown_on: &[MnId]) -> bool {
        let answer = self.answer.borrow();
        let is_new = answer.ask > since || (answer.ask > 0 && removed(Mutant::OldAskVouches));
        answer.view == view && is_new && !shown_on.iter().any(|node| answer.barred.contains(node))
    }
}

/// Whether so many members are enough to vouch.
fn is_majority(vouching: usize, members: usize) -> bool {
    2 * vouching > members || (2 * vouching == members && removed(Mutant::HalfVouches))
}

impl<F: Fabric, H: Host> Store<F, H> {
    /// Whether the master has heard the session less than a lease ago.
    pub(super) fn is_heard(&self) -> bool {
        self.host.is_heard() || removed(Mutant::ReadsUnheard)
    }
}

impl<F: Fabric, H: Host> Op<'_, F, H> {
    /// Whether what this operation has READ of a key, by the view that it is pinned by, was so at some moment since
    /// it began. Waits until that is certain; false if it is to be READ again, by a newer view or beside
    /// the primary.
    #[inline]
    pub(super) async fn is_vouched_for(&mut self, key: Key<'_>) -> Result<bool, Error> {
        if self.store.is_heard() {
            return Ok(true);
        }
        Box::pin(self.ask_around(&[Buckets::of(key, &self.view).subtable])).await
    }

    /// The same of what it has READ of a subtable.
    pub(super) async fn is_vouched_for_in(&mut self, subtable: u32) -> Result<bool, Error> {
        if self.store.is_heard() {
            return Ok(true);
        }
        Box::pin(self.ask_around(&[subtable])).await
    }

    /// The same of what it has READ beside a primary: whether nobody goes by a later view. There may be no backup
    /// left in that which would have fenced the session.
    pub(super) async fn is_vouched_for_beside(&mut self) -> Result<bool, Error> {
        if self.store.is_heard() || removed(Mutant::BesideAsksNobody) {
            return Ok(true);
        }
        Box::pin(self.ask_around(&[])).await
    }

    /// The same of many keys.
    pub(super) async fn are_vouched_for<'k>(
        &mut self,
        keys: impl Iterator<Item = Key<'k>>,
    ) -> Result<bool, Error> {
        if self.store.is_heard() {
            return Ok(true);
        }
        let mut subtables: Vec<u32> =
            keys.map(|key| Buckets::of(key, &self.view).subtable).collect();
        subtables.sort_unstable();
        subtables.dedup();
        Box::pin(self.ask_around(&subtables)).await
    }

    /// Asks once, if it has to.
    #[cold]
    pub(super) async fn is_vouched_for_now(&mut self, key: Key<'_>) -> bool {
        let primaries = self.primaries(&[Buckets::of(key, &self.view).subtable]);
        self.have_vouched(&primaries) || {
            Box::pin(self.ask_members()).await;
            self.have_vouched(&primaries)
        }
    }

    fn primaries(&self, subtables: &[u32]) -> Vec<MnId> {
        let primary = |subtable: &u32| self.view.subtables[*subtable as usize].primary().node;
        subtables.iter().map(primary).collect()
    }

    fn have_vouched(&self, shown_on: &[MnId]) -> bool {
        self.store.asks.have_vouched(self.view.number, self.asks_before, shown_on)
    }

    #[cold]
    async fn ask_around(&mut self, subtables: &[u32]) -> Result<bool, Error> {
        let primaries = self.primaries(subtables);
        loop {
            if self.store.is_heard() || self.have_vouched(&primaries) {
                return Ok(true);
            }
            if self.newer_view_has_come() {
                return Ok(false);
            }
            self.ask_members().await;
            if self.have_vouched(&primaries) {
                return Ok(true);
            }
            let view = self.view.clone();
            for (subtable, primary) in subtables.iter().zip(&primaries) {
                let is_barred = self.store.asks.answer.borrow().barred.contains(primary);
                if is_barred && self.store.may_read_beside(*subtable, &view).await {
                    return Ok(false);
                }
            }
            if self.pause().await.is_err() {
                return Err(Error::GaveUp { waiting_for: WORD, outcome: Outcome::NotApplied });
            }
        }
    }

    /// One phase: the members say at which view they stand, and whom they bar. The bars first: when a member
    /// takes them back it stands at a later view.
    async fn ask_members(&mut self) {
        let store = self.store;
        let view = self.view.clone();
        let ask = store.asks.begun.get() + 1;
        store.asks.begun.set(ask);
        let mut batch = store.batches.borrow_mut().pop().unwrap_or_default();
        batch.clear();
        let members = view.members.iter().map(|member| member.node);
        let reads = members.map(|node| {
            let bars = batch.read(node, HeaderWord::Bar(0).offset(), BARS_BYTES as u32);
            (bars, batch.read(node, HeaderWord::View.offset(), 8))
        });
        let reads: Vec<(Ticket, Ticket)> = reads.collect();
        // What the operation has READ stays where it is.
        let own = mem::replace(&mut self.batch, batch);
        let unanswered = self.unanswered.len();
        self.phase().await;
        // A READ that is still on its way harms nobody.
        self.unanswered.truncate(unanswered);
        let batch = mem::replace(&mut self.batch, own);
        let mut vouching = Vec::with_capacity(reads.len());
        for (bars, shows) in reads {
            match (batch.data(bars), batch.data(shows)) {
                (Ok(bars), Ok(word)) if vouches(word, &view) => vouching.push(bars),
                (Ok(_), Ok(_)) => {}
                _ if removed(Mutant::SilentNodesVouch) => vouching.push(&[]),
                _ => {}
            }
        }
        let voters = voters(&view);
        if is_majority(vouching.len(), voters) {
            let counts = |node: MnId| {
                let by =
                    |bars: &&&[u8]| !has_bar(bars, node) || removed(Mutant::BarredIsVouchedFor);
                is_majority(vouching.iter().filter(by).count(), voters)
            };
            let members = view.members.iter().map(|member| member.node);
            let barred = members.filter(|node| !counts(*node)).collect();
            store.asks.answer.replace(Answer { ask, view: view.number, barred });
        }
        store.recycle(batch);
    }
}

/// Of how many more than half have to vouch. Of those that the change under way has lost some may have
/// barred somebody by an earlier view, and what was read so is not settled yet. With two there is no
/// majority beside one of them, so nobody was barred.
fn voters(view: &View) -> usize {
    let lost = view.change.as_ref().map_or(0, |change| usize::from(change.lost));
    let all = view.members.len() + lost;
    let counts = all > 2 && !removed(Mutant::LostBarsForgotten);
    if counts { all } else { view.members.len() }
}

/// Whether the view word of a member's header shows no later view; 0 shows none.
fn vouches(word: &[u8], view: &View) -> bool {
    let word = word.try_into().map_or(0, u64::from_le_bytes);
    (1..=view.number).contains(&word)
}
