//! Vouching: the proof that what a session without a valid lease has READ was current at some moment since its
//! operation began.
//!
//! A memory node that is cut off from the master still answers, and shows the slots as they were before the cluster
//! went on without the node. The cluster goes on only after all sessions with a valid lease know about it. A session
//! without a valid lease (`Views::has_valid_lease`) sends a *vouch request*: it asks the members of its view at which
//! view they are. What the session has READ is valid if more than half of all members *vouch*: they are at the
//! session's view, or at an earlier one. A member that does not answer does not vouch, because it is unknown whether it
//! is dead or cut off. Such a majority is a proof, because a view without a member takes effect only when at least half
//! of the members of the view before it show its number.
//!
//! The READs can come before the vouch request or after it, as long as both happen after the operation began. Until a
//! view without the node that was READ takes effect, this node shows what all sessions see, and afterwards no session
//! changes anything there. So one vouch request serves all operations that began before it.
//!
//! Members also show which nodes they *bar* (backup reads: [`read`](crate::store::read)). A member that bars a node
//! does not vouch for words that the node has shown. If no majority vouches for a primary because it is barred, its
//! backups are read.
//!
//! A write that wins needs no vouch request: all replicas have answered its CASes, and if the session's lease had
//! expired, the remaining members would have fenced the session. Results that a write takes from a READ ("exists", "not
//! found") do need a vouch request. So does an UPDATE that lost, because other sessions have possibly read the winner's
//! word before it began.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::cell::{Cell, RefCell};
use core::mem;

use crate::error::{Error, FailedWriteOutcome};
use crate::host::Host;
use crate::layout::{BARS_BYTES, HeaderWord, has_bar};
use crate::mutant::{Mutant, guard, passes, removed};
use crate::race::{Buckets, Key};
use crate::store::StoreOp;
use crate::verbs::{Fabric, MnId, Ticket};
use crate::view::View;

/// The name, in errors, of the event for which an operation waits if it needs members to vouch.
const WORD: &str = "word from the master, or from more than half of the memory nodes";

/// A session's vouch requests: their number, and the latest result.
#[derive(Debug, Default)]
pub(in crate::store) struct VouchRequests {
    begun: Cell<u64>,
    answer: RefCell<VouchResult>,
}

/// The result of the latest vouch request in which more than half of the members vouched.
#[derive(Debug, Default)]
struct VouchResult {
    /// The number of this vouch request.
    ask: u64,
    /// The number of the view for which the members vouched.
    view: u64,
    /// The nodes that so many members bar that no majority vouched for words that these nodes have shown.
    barred: Vec<MnId>,
}

impl VouchRequests {
    /// Returns the number of vouch requests that the session has begun.
    pub fn begun(&self) -> u64 {
        self.begun.get()
    }

    /// Returns whether the members have vouched, in a vouch request with a number above `since`, for words that these
    /// nodes have shown in a view.
    fn have_vouched(&self, view: u64, since: u64, shown_on: &[MnId]) -> bool {
        let answer = self.answer.borrow();
        let is_new = answer.ask > since || (answer.ask > 0 && removed(Mutant::OldAskVouches));
        answer.view == view && is_new && !shown_on.iter().any(|node| answer.barred.contains(node))
    }
}

/// Returns whether this number of vouching members is a majority of the members.
fn is_majority(vouching: usize, members: usize) -> bool {
    2 * vouching > members || (2 * vouching == members && removed(Mutant::HalfVouches))
}

/// Returns whether the session has a valid lease.
#[inline]
pub(in crate::store) fn has_valid_lease(host: &impl Host) -> bool {
    passes(Mutant::ReadsUnheard, host.has_valid_lease())
}

/// Returns true as soon as it is certain that what the operation has READ of a key, in the view in which it is pinned,
/// was current at some moment since the operation began. Returns false if the operation has to READ again, in a newer
/// view or from the backups.
#[inline]
pub(in crate::store) async fn is_vouched_for<F: Fabric, H: Host>(
    op: &mut StoreOp<'_, F, H>,
    key: Key<'_>,
) -> Result<bool, Error> {
    if has_valid_lease(&op.store.host) {
        return Ok(true);
    }
    let subtable = Buckets::of(key, &op.view).subtable;
    Box::pin(MemberQuestion::new(op, &[subtable]).await_vouching()).await
}

/// Returns whether the members vouch for words that the operation has read from a subtable.
pub(in crate::store) async fn is_vouched_for_in<F: Fabric, H: Host>(
    op: &mut StoreOp<'_, F, H>,
    subtable: u32,
) -> Result<bool, Error> {
    if has_valid_lease(&op.store.host) {
        return Ok(true);
    }
    Box::pin(MemberQuestion::new(op, &[subtable]).await_vouching()).await
}

/// Returns whether the members vouch for words that were read from backups although there is a primary: more than
/// half of the members have to be at no later view. A later view possibly has none of these backups, so that none
/// of them has fenced the session.
pub(in crate::store) async fn is_vouched_for_backups<F: Fabric, H: Host>(
    op: &mut StoreOp<'_, F, H>,
) -> Result<bool, Error> {
    if passes(Mutant::BesideAsksNobody, has_valid_lease(&op.store.host)) {
        return Ok(true);
    }
    Box::pin(MemberQuestion::new(op, &[]).await_vouching()).await
}

/// Returns whether the members vouch for what the operation has read for many keys.
pub(in crate::store) async fn are_vouched_for<'k, F: Fabric, H: Host>(
    op: &mut StoreOp<'_, F, H>,
    keys: impl Iterator<Item = Key<'k>>,
) -> Result<bool, Error> {
    if has_valid_lease(&op.store.host) {
        return Ok(true);
    }
    let mut subtables: Vec<u32> = keys.map(|key| Buckets::of(key, &op.view).subtable).collect();
    subtables.sort_unstable();
    subtables.dedup();
    Box::pin(MemberQuestion::new(op, &subtables).await_vouching()).await
}

/// Returns whether the members vouch for what the operation has read for a key. Asks them at most once, and returns
/// false if they do not vouch.
#[cold]
pub(in crate::store) async fn is_vouched_for_now<F: Fabric, H: Host>(
    op: &mut StoreOp<'_, F, H>,
    key: Key<'_>,
) -> bool {
    let subtables = [Buckets::of(key, &op.view).subtable];
    let mut question = MemberQuestion::new(op, &subtables);
    question.is_answered() || {
        Box::pin(question.ask()).await;
        question.is_answered()
    }
}

/// A vouch request about words of some subtables, as a part of an operation.
struct MemberQuestion<'o, 's, 't, F: Fabric, H: Host> {
    op: &'o mut StoreOp<'s, F, H>,
    subtables: &'t [u32],
    /// The nodes that have shown the words to be vouched for: the primary of each subtable.
    primaries: Vec<MnId>,
}

impl<'o, 's, 't, F: Fabric, H: Host> MemberQuestion<'o, 's, 't, F, H> {
    fn new(
        op: &'o mut StoreOp<'s, F, H>,
        subtables: &'t [u32],
    ) -> MemberQuestion<'o, 's, 't, F, H> {
        let primary = |subtable: &u32| op.view.subtables[*subtable as usize].primary().node;
        let primaries = subtables.iter().map(primary).collect();
        MemberQuestion { op, subtables, primaries }
    }

    /// Returns whether the members have vouched for the words since the operation began.
    fn is_answered(&self) -> bool {
        let op = &*self.op;
        op.store.asks.have_vouched(op.view.number, op.asks_before, &self.primaries)
    }

    /// Waits until the members vouch for the words. Returns false if the operation has to READ the words again.
    #[cold]
    async fn await_vouching(&mut self) -> Result<bool, Error> {
        let store = self.op.store;
        loop {
            if has_valid_lease(&store.host) || self.is_answered() {
                return Ok(true);
            }
            if self.op.newer_view_has_come() {
                return Ok(false);
            }
            self.ask().await;
            if self.is_answered() {
                return Ok(true);
            }
            let view = self.op.view.clone();
            for (subtable, primary) in self.subtables.iter().zip(&self.primaries) {
                let is_barred = store.asks.answer.borrow().barred.contains(primary);
                if is_barred && store.reads.may_read_backups(&store.host, *subtable, &view).await {
                    return Ok(false);
                }
            }
            if self.op.pause().await.is_err() {
                return Err(Error::GaveUp {
                    waiting_for: WORD,
                    outcome: FailedWriteOutcome::NotApplied,
                });
            }
        }
    }

    /// Asks the members at which view they are, and which nodes they bar, in one phase. A member's bars are read before
    /// its view. A member that has ended its bars before this READ shows a later view, so it does not vouch.
    async fn ask(&mut self) {
        let op = &mut *self.op;
        let store = op.store;
        let view = op.view.clone();
        let ask = store.asks.begun.get() + 1;
        store.asks.begun.set(ask);
        let mut batch = store.batches.take();
        batch.clear();
        let members = view.members.iter().map(|member| member.node);
        let reads = members.map(|node| {
            let bars = batch.read(node, HeaderWord::Bar(0).offset(), BARS_BYTES as u32);
            (bars, batch.read(node, HeaderWord::View.offset(), 8))
        });
        let reads: Vec<(Ticket, Ticket)> = reads.collect();
        // The operation's own batch is set aside, because it contains what the operation has READ.
        let own = mem::replace(&mut op.batch, batch);
        let unanswered = op.pin.traces.unanswered().len();
        op.phase().await;
        op.pin.traces.forgive_reads_after(unanswered);
        let batch = mem::replace(&mut op.batch, own);
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
        store.batches.keep(batch);
    }
}

/// Returns the number of members of which more than half have to vouch. This includes members that the change under way
/// has lost, because they possibly have barred a node in an earlier view, and words that were read from backups because
/// of that are not settled yet. It does not include them if that makes two members: then no majority exists without one
/// of them, so no node was barred.
fn voters(view: &View) -> usize {
    let lost = view.change.as_ref().map_or(0, |change| usize::from(change.lost));
    let all = view.members.len() + lost;
    let counts = guard(Mutant::LostBarsForgotten, all > 2);
    if counts { all } else { view.members.len() }
}

/// Returns whether the view word of a member's header shows a view that is not later than `view`. The word 0 shows no
/// view.
fn vouches(word: &[u8], view: &View) -> bool {
    let word = word.try_into().map_or(0, u64::from_le_bytes);
    (1..=view.number).contains(&word)
}
