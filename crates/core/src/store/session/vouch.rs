//! Vouching: the proof that what a session without a valid lease has READ was so at some moment since its operation
//! began.
//!
//! A memory node that is cut off from the master serves on, and shows what was true before the cluster went on
//! without it. The cluster waits for sessions with a valid lease before it goes on. A session without one
//! (`Views::has_valid_lease`) asks the members of its view at which view they are. What it has READ counts if more
//! than half of all members are at that view, or an earlier one. A member that does not answer does not vouch: it
//! cannot be told whether it is dead or cut off. A view without a member takes effect only when at least half of the
//! members of the view before it show its number.
//!
//! It does not matter whether the READs came before the question or after it, as long as both happened since the
//! operation began: until a view without the node that was READ takes effect, the node shows what all sessions see,
//! and afterwards no session changes anything there. So a question serves all operations that began before it.
//!
//! Members also show which nodes they *bar* (backup reads: [`read`](crate::store::read)): a member that bars a node
//! does not vouch for words that the node has shown. If there is no vouching for a primary because it is barred, its
//! backups are read.
//!
//! Writes need no question: they are done when all replicas have them, and the replicas that are left have fenced the
//! session. Only answers that a write takes from a READ do ("exists", "not found"), and the answer of an UPDATE that
//! lost, because others may have read the winner's word before it began.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::cell::{Cell, RefCell};
use core::mem;

use crate::error::{Error, FailedWriteOutcome};
use crate::host::Host;
use crate::layout::{BARS_BYTES, HeaderWord, has_bar};
use crate::mutant::{Mutant, guard, passes, removed};
use crate::race::{Buckets, Key};
use crate::store::{Store, StoreOp};
use crate::verbs::{Fabric, MnId, Ticket};
use crate::view::View;

/// The event that an operation waits for, as errors name it.
const WORD: &str = "word from the master, or from more than half of the memory nodes";

/// The questions of a session to the members.
#[derive(Debug, Default)]
pub(in crate::store) struct VouchRequests {
    begun: Cell<u64>,
    answer: RefCell<VouchResult>,
}

/// The result of the last question for which more than half of the members vouched.
#[derive(Debug, Default)]
struct VouchResult {
    /// The number of the question, and that of the view for which they vouched.
    ask: u64,
    view: u64,
    /// Nodes for whose words no majority vouched.
    barred: Vec<MnId>,
}

impl VouchRequests {
    /// Returns the number of questions that have begun.
    pub fn begun(&self) -> u64 {
        self.begun.get()
    }

    /// Returns whether the members have vouched for words of these nodes by a view, in a question with a number above
    /// `since`.
    fn have_vouched(&self, view: u64, since: u64, shown_on: &[MnId]) -> bool {
        let answer = self.answer.borrow();
        let is_new = answer.ask > since || (answer.ask > 0 && removed(Mutant::OldAskVouches));
        answer.view == view && is_new && !shown_on.iter().any(|node| answer.barred.contains(node))
    }
}

/// Returns whether this many of the members are enough to vouch.
fn is_majority(vouching: usize, members: usize) -> bool {
    2 * vouching > members || (2 * vouching == members && removed(Mutant::HalfVouches))
}

impl<F: Fabric, H: Host> Store<F, H> {
    /// Returns whether the session has a valid lease.
    pub(in crate::store) fn has_valid_lease(&self) -> bool {
        passes(Mutant::ReadsUnheard, self.host.has_valid_lease())
    }
}

impl<F: Fabric, H: Host> StoreOp<'_, F, H> {
    /// Returns whether what this operation has READ of a key, by the view that it is pinned by, was so at some moment
    /// since it began. Waits until that is certain; false if it is to be READ again, by a newer view or from the
    /// backups.
    #[inline]
    pub(in crate::store) async fn is_vouched_for(&mut self, key: Key<'_>) -> Result<bool, Error> {
        if self.store.has_valid_lease() {
            return Ok(true);
        }
        Box::pin(self.await_vouching(&[Buckets::of(key, &self.view).subtable])).await
    }

    /// Does the same for words of a subtable.
    pub(in crate::store) async fn is_vouched_for_in(
        &mut self,
        subtable: u32,
    ) -> Result<bool, Error> {
        if self.store.has_valid_lease() {
            return Ok(true);
        }
        Box::pin(self.await_vouching(&[subtable])).await
    }

    /// Does the same for words that were read from backups although there is a primary: checks that more than half of
    /// the members are at no later view. In a later view perhaps none of these backups is left; then no fence has kept
    /// the session from reading them.
    pub(in crate::store) async fn is_vouched_for_backups(&mut self) -> Result<bool, Error> {
        if passes(Mutant::BesideAsksNobody, self.store.has_valid_lease()) {
            return Ok(true);
        }
        Box::pin(self.await_vouching(&[])).await
    }

    /// Does the same for many keys.
    pub(in crate::store) async fn are_vouched_for<'k>(
        &mut self,
        keys: impl Iterator<Item = Key<'k>>,
    ) -> Result<bool, Error> {
        if self.store.has_valid_lease() {
            return Ok(true);
        }
        let mut subtables: Vec<u32> =
            keys.map(|key| Buckets::of(key, &self.view).subtable).collect();
        subtables.sort_unstable();
        subtables.dedup();
        Box::pin(self.await_vouching(&subtables)).await
    }

    /// Does the same for a key, but asks at most once.
    #[cold]
    pub(in crate::store) async fn is_vouched_for_now(&mut self, key: Key<'_>) -> bool {
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
    async fn await_vouching(&mut self, subtables: &[u32]) -> Result<bool, Error> {
        let primaries = self.primaries(subtables);
        loop {
            if self.store.has_valid_lease() || self.have_vouched(&primaries) {
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
                if is_barred && self.store.may_read_backups(*subtable, &view).await {
                    return Ok(false);
                }
            }
            if self.pause().await.is_err() {
                return Err(Error::GaveUp {
                    waiting_for: WORD,
                    outcome: FailedWriteOutcome::NotApplied,
                });
            }
        }
    }

    /// Asks the members at which view they are, and which nodes they bar. One phase. The bars are read first: when a
    /// member takes them back it is at a later view.
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
        // The operation's own batch keeps what it has READ.
        let own = mem::replace(&mut self.batch, batch);
        let unanswered = self.pin.traces.unanswered().len();
        self.phase().await;
        self.pin.traces.forgive_reads_after(unanswered);
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
                let by = |bars: &&&[u8]| passes(Mutant::BarredIsVouchedFor, !has_bar(bars, node));
                is_majority(vouching.iter().filter(by).count(), voters)
            };
            let members = view.members.iter().map(|member| member.node);
            let barred = members.filter(|node| !counts(*node)).collect();
            store.asks.answer.replace(VouchResult { ask, view: view.number, barred });
        }
        store.recycle(batch);
    }
}

/// Returns the number of members of which more than half have to vouch. Members that the change under way has lost
/// count, too: they may have barred a node by an earlier view, and what was read so is not settled yet. With two
/// members there is no majority without one of them, so no node was barred.
fn voters(view: &View) -> usize {
    let lost = view.change.as_ref().map_or(0, |change| usize::from(change.lost));
    let all = view.members.len() + lost;
    let counts = guard(Mutant::LostBarsForgotten, all > 2);
    if counts { all } else { view.members.len() }
}

/// Returns whether the view word of a member's header shows a view, and none that is later than this one. The word 0
/// shows none.
fn vouches(word: &[u8], view: &View) -> bool {
    let word = word.try_into().map_or(0, u64::from_le_bytes);
    (1..=view.number).contains(&word)
}
