//! The surroundings of a session's operations: implements the traits of [`fusee_core::host`], with which the operations
//! wait, get blocks, log areas, views and epochs, and report.
//!
//! Backoff: a loser waits for a winner that is about to finish, mostly within microseconds, but the winner's thread can
//! be preempted meanwhile. So the loser first spins, then yields the processor, and then sleeps, at most a millisecond
//! at a time.
//!
//! The operation's own [clock](super::clock) limits all of its waits, even if newer views or useless answers arrive.

use std::cell::Cell;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use fusee_control::master::{MasterReply, MasterRequest};
use fusee_control::node::{NodeRefusal, NodeReply, NodeRequest};
use fusee_core::data::Transitions;
use fusee_core::error::{Error, FailedWriteOutcome};
use fusee_core::host::{
    Backoff, BlockAnswer, BlockDemand, Blocks, Epochs, GiveUp, IndexGrowthAnswer, Logs,
    PinnedOperations, Reports, Views,
};
use fusee_core::layout::{Address, log_areas};
use fusee_core::mutant::{Mutant, removed};
use fusee_core::slab::{BlockRemainder, ReturnedBlock, SlabKind};
use fusee_core::stats::Damage;
use fusee_core::verbs::{ClientId, MnId};
use fusee_core::view::View;
use futures_util::future::{Either, select};

use super::Environment;
use super::bars::RequestedBars;
use super::blocks::BlockSource;
use super::clock::OperationClocks;
use super::gate::SessionGate;

/// Number of attempts of a loser after each of which it spins, over shared memory.
const SPINS: u32 = 16;
/// Number of further attempts of a loser after each of which it yields.
const YIELDS: u32 = 48;
/// The first sleep, which each further attempt lengthens by a quarter, and the longest sleep.
const FIRST_SLEEP: Duration = Duration::from_micros(20);
const LONGEST_SLEEP: Duration = Duration::from_millis(1);

/// Time for which a running request for a block is still awaited after a newer view has arrived: if the operation
/// stopped waiting at once, a block that is granted a moment later would be of no use.
const BLOCK_PATIENCE: Duration = Duration::from_millis(5);
/// First and longest wait for blocks that other sessions hand on, before all nodes are asked again. A call for memory
/// takes two heartbeats of the keepers to the master, mostly a few milliseconds.
const FIRST_CALL_PATIENCE: Duration = Duration::from_millis(2);
const CALL_PATIENCE: Duration = Duration::from_millis(10);
/// Deadline of a request to the master to split a full subtable, or to give a client id.
const MASTER_DEADLINE: Duration = Duration::from_secs(1);
/// First pause before a split is requested again. Each further pause is twice as long, up to `MASTER_DEADLINE`.
const SPLIT_AGAIN: Duration = Duration::from_millis(100);
/// A request follows another request of its process for at most 1 / `FOLLOWING` of the time that an operation is
/// allowed to wait.
const FOLLOWING: u32 = 50;

/// The surroundings of a session's operations: gives them blocks, log areas, views, epochs and pauses.
pub struct SessionHost<E> {
    env: Rc<E>,
    gate: Arc<SessionGate>,
    blocks: BlockSource<E>,
    bars: RequestedBars,
    /// Whether a phase is so short that it is faster to spin than to yield.
    spins: bool,
    /// Number of attempts after which an operation gives up even if it runs without a clock.
    max_attempts: u32,
    op_timeout: Duration,
    clocks: OperationClocks,
    random: Cell<u64>,
    /// The length of the next wait for blocks that other sessions hand on.
    call_patience: Cell<Duration>,
}

impl<E: Environment> SessionHost<E> {
    pub(super) fn new(
        env: Rc<E>,
        gate: Arc<SessionGate>,
        blocks: BlockSource<E>,
        spins: bool,
        op_timeout: Duration,
    ) -> SessionHost<E> {
        let sleeps = op_timeout.as_micros() / LONGEST_SLEEP.as_micros();
        let random =
            Cell::new(u64::from(blocks.client().0).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        SessionHost {
            env,
            gate,
            blocks,
            bars: RequestedBars::default(),
            spins,
            max_attempts: u32::try_from(sleeps).unwrap_or(u32::MAX / 2) + SPINS + YIELDS,
            op_timeout,
            clocks: OperationClocks::new(op_timeout),
            random,
            call_patience: Cell::new(FIRST_CALL_PATIENCE),
        }
    }

    /// Returns the state that the session shares with the keeper of its process.
    pub fn gate(&self) -> &Arc<SessionGate> {
        &self.gate
    }

    /// Returns the time by the keeper's clock.
    pub(super) fn now(&self) -> Duration {
        self.env.now()
    }

    pub(super) fn blocks(&self) -> &BlockSource<E> {
        &self.blocks
    }

    /// Waits for the result of a future that another request of the process completes; returns `None` if that takes too
    /// long.
    pub(super) async fn follow<T>(&self, future: impl Future<Output = T>) -> Option<T> {
        let patience = self.op_timeout / FOLLOWING;
        let patience = self.env.sleep(patience.min(self.left().unwrap_or_default()));
        match select(pin!(future), pin!(patience)).await {
            Either::Left((result, _)) => Some(result),
            Either::Right(_) => None,
        }
    }

    pub(super) fn clocks(&self) -> &OperationClocks {
        &self.clocks
    }

    /// Returns for how long the running operation can still wait; `None` if the operation must not wait any more.
    fn left(&self) -> Option<Duration> {
        self.clocks.left(self.env.now())
    }

    /// Waits until there is a newer view than `number`, or the running operation must not wait any more. Returns
    /// whether there is a newer view.
    async fn wait_for_view(&self, number: u64) -> bool {
        self.wait_for_view_at_most(number, Duration::MAX).await
    }

    /// Like [`SessionHost::wait_for_view`], but this wait ends after `at_most`.
    async fn wait_for_view_at_most(&self, number: u64, at_most: Duration) -> bool {
        let Some(left) = self.left() else { return false };
        let waits = self.env.sleep(left.min(at_most));
        select(pin!(self.gate.wait_for_news(number)), pin!(waits)).await;
        self.left().is_some() && !self.gate.is_expelled() && self.gate.newer_view(number).is_some()
    }

    /// Returns a pseudo-random number (xorshift64), which is good enough for jitter.
    fn random(&self) -> u64 {
        let mut x = self.random.get();
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        self.random.set(x);
        x
    }
}

impl<E: Environment> Backoff for SessionHost<E> {
    async fn pause(&self, attempt: u32) -> Result<(), GiveUp> {
        // A fenced session gets no view, so the event for which it waits possibly never comes.
        if attempt >= self.max_attempts || self.gate.is_expelled() {
            return Err(GiveUp);
        }
        if self.spins && attempt < SPINS {
            self.env.spin(self.random() % (8 << attempt.min(6)));
        } else if attempt < SPINS + YIELDS {
            self.env.yield_now().await;
        } else {
            let growth = 1.25f64.powi((attempt - SPINS - YIELDS).min(100) as i32);
            let longest = FIRST_SLEEP.mul_f64(growth).min(LONGEST_SLEEP);
            // The factor is between one half and one and a half, so that clients in conflict drift apart.
            let jitter = 0.5 + self.random() as f64 / u64::MAX as f64;
            let left = self.left().ok_or(GiveUp)?;
            self.env.sleep(longest.mul_f64(jitter).min(left)).await;
        }
        Ok(())
    }

    fn is_over(&self) -> bool {
        self.left().is_none()
    }
}

impl<E: Environment> Blocks for SessionHost<E> {
    async fn alloc_block(
        &self,
        kind: SlabKind,
        bytes: u64,
        demand: BlockDemand,
        view: &Arc<View>,
    ) -> Result<BlockAnswer, Error> {
        // This future is on the heap, so that the futures of operations stay small; a request for a block is rare.
        let granting = Box::pin(async {
            let granted = self.blocks.grant(kind, bytes, demand, view).await;
            granted.map(BlockAnswer::Block)
        });
        let give_up_timer = async {
            let is_newer = self.wait_for_view(view.number).await;
            if is_newer {
                self.env.sleep(BLOCK_PATIENCE).await;
            }
            is_newer
        };
        match select(granting, pin!(give_up_timer)).await {
            // Waiting for a call for memory or for a newer view takes a while, and other sessions wait for pinned
            // operations. So this function returns, and its caller unpins the operation before it waits.
            Either::Left((Err(Error::Allocation { .. }), _))
                if demand.is_urgent() && self.blocks.awaits_call(kind) =>
            {
                Ok(BlockAnswer::Called)
            }
            Either::Left((Err(Error::Allocation { .. }), _))
                if demand.is_urgent() && self.left().is_some() && !self.gate.is_expelled() =>
            {
                Ok(BlockAnswer::Later)
            }
            Either::Left((result, _)) => {
                self.call_patience.set(FIRST_CALL_PATIENCE);
                result
            }
            Either::Right((true, _)) => Ok(BlockAnswer::NewerView),
            Either::Right((false, _)) => Err(Error::GaveUp {
                waiting_for: "a memory node to allocate a block",
                outcome: FailedWriteOutcome::NotApplied,
            }),
        }
    }

    async fn await_pool(&self, view: &Arc<View>) {
        let patience = self.blocks.patience().min(self.left().unwrap_or_default());
        select(pin!(self.gate.wait_for_news(view.number)), pin!(self.env.sleep(patience))).await;
    }

    async fn await_others(&self) {
        let patience = self.call_patience.get();
        self.call_patience.set((patience * 2).min(CALL_PATIENCE));
        self.env.sleep(patience).await;
    }

    fn end_search(&self, kind: SlabKind) {
        self.blocks.end_search(kind);
    }

    fn is_exhausted(&self) -> bool {
        self.blocks.is_exhausted()
    }

    fn take_memory_call(&self) -> bool {
        self.gate.was_called()
    }

    fn offer(&self, spare: Vec<BlockRemainder>, surplus: Vec<BlockRemainder>, frees_soon: bool) {
        self.gate.offers.tell_frees_soon(frees_soon);
        let view = self.gate.view();
        let give_up = |rests| self.blocks.give_up(rests, &view);
        self.gate.offer(give_up(spare), give_up(surplus));
    }

    fn take_back(&self) -> Vec<Address> {
        let gone = self.gate.offers.take_back();
        self.blocks.forget(&gone);
        let geometry = self.gate.view().geometry;
        gone.iter().map(|gone| gone.address(&geometry)).collect()
    }

    async fn free_block(&self, block: ReturnedBlock, view: &Arc<View>) {
        self.blocks.free(block, view).await;
    }
}

impl<E: Environment> Logs for SessionHost<E> {
    async fn log_area(&self, node: MnId, number: u8, view: &View) -> Result<Option<u32>, Error> {
        let client = self.blocks.client();
        let patience = self.blocks.node_deadline().min(self.left().unwrap_or_default());
        match self.env.ask_node(node, NodeRequest::LogArea { client, number }, patience).await {
            Ok(NodeReply::LogArea { area }) => {
                let lent = view.member(node).map_or(0, |member| member.pool_bytes);
                if area < log_areas(lent) {
                    Ok(Some(area))
                } else {
                    Err(Error::Corrupt { what: "a log area lies outside of its pool" })
                }
            }
            // Areas of sessions that have ended a moment ago are not free yet.
            Ok(NodeReply::Refused(refusal @ NodeRefusal::NoLogArea { .. })) => {
                tracing::debug!(%node, %refusal, "the node lends no log area yet");
                Ok(None)
            }
            Ok(other) => Err(Error::Allocation { reason: format!("{node}: {other:?}") }),
            Err(error) => {
                tracing::debug!(%node, %error, "the node lends no log area yet");
                self.env.report_unreachable(node);
                Ok(None)
            }
        }
    }

    async fn further_client(&self) -> Result<Option<ClientId>, Error> {
        let client = self.blocks.client();
        let patience = MASTER_DEADLINE.min(self.left().unwrap_or_default());
        match self.env.ask_master(MasterRequest::FurtherClient { client }, patience).await {
            Ok(MasterReply::FurtherClient { client }) if client != ClientId::NOBODY => {
                Ok(Some(client))
            }
            Ok(other) => Err(Error::Allocation { reason: format!("master: {other:?}") }),
            Err(error) => {
                tracing::debug!(%error, "the master gives no client id yet");
                Ok(None)
            }
        }
    }
}

impl<E: Environment> Views for SessionHost<E> {
    fn newer_view(&self, than: u64) -> Option<Arc<View>> {
        let view = self.gate.newer_view(than)?;
        self.env.adopt(&view);
        Some(view)
    }

    async fn grow_index(&self, subtable: u32, view: &Arc<View>) -> IndexGrowthAnswer {
        let request = MasterRequest::Split { subtable, view: view.number };
        let (mut again, longest) = if removed(Mutant::AsksForSplitsOnce) {
            (Duration::MAX, Duration::MAX)
        } else {
            (SPLIT_AGAIN, MASTER_DEADLINE)
        };
        // The master's refusal to split is final if it is the first answer, or follows another refusal.
        let mut is_final = true;
        let Some(end) = self.left().map(|left| self.env.now().saturating_add(left)) else {
            return IndexGrowthAnswer::GaveUp;
        };
        // The request is repeated, because it can get lost: if another master leads now, or a memory node had no room
        // after all.
        while !self.gate.is_expelled() {
            let left = end.saturating_sub(self.env.now()).min(self.left().unwrap_or_default());
            if left.is_zero() {
                break;
            }
            match self.env.ask_master(request.clone(), MASTER_DEADLINE.min(left)).await {
                Ok(MasterReply::Refused { reason }) if is_final => {
                    tracing::debug!(subtable, reason, "the index does not grow");
                    return IndexGrowthAnswer::Full;
                }
                Ok(MasterReply::Refused { .. }) => is_final = true,
                Ok(MasterReply::TooDeep) => return IndexGrowthAnswer::TooDeep,
                // Even if the master has not received this request, another session has possibly asked for the same
                // split.
                Ok(_) | Err(_) => is_final = false,
            }
            if self.wait_for_view_at_most(view.number, again).await {
                return IndexGrowthAnswer::NewerView;
            }
            again = again.saturating_mul(2).min(longest);
        }
        IndexGrowthAnswer::GaveUp
    }

    #[inline]
    fn has_valid_lease(&self) -> bool {
        self.gate.lease.is_valid(self.env.now())
    }

    async fn bar(&self, node: MnId, view: &Arc<View>) -> Option<Vec<MnId>> {
        if self.has_valid_lease() || self.gate.is_expelled() {
            return None;
        }
        let client = self.blocks.client();
        let lease = self.gate.lease.longest();
        // The operation's clock limits this wait, because the requests for bars take up to a quarter of a lease.
        let asking = self.bars.bar(&*self.env, client, node, view, lease);
        let patience = self.env.sleep(self.left()?);
        match select(pin!(asking), pin!(patience)).await {
            Either::Left((barred, _)) => barred,
            Either::Right(_) => None,
        }
    }
}

impl<E: Environment> Epochs for SessionHost<E> {
    fn local_epoch(&self) -> u64 {
        self.gate.local_epoch()
    }

    fn publish(&self, pinned: PinnedOperations) {
        self.gate.publish(pinned);
    }

    fn note_pinned(&self, local_epoch: u64) {
        self.env.began(local_epoch);
    }

    fn note_unpinned(&self, local_epoch: u64) {
        self.env.ended(local_epoch);
    }

    fn publish_freed(&self, since: Option<u64>) {
        self.gate.freed.publish(since);
    }

    fn publish_older(&self, since: u64) {
        self.gate.freed.publish_older(since);
    }

    fn may_set_free(&self) -> bool {
        self.gate.freed.may_set_free()
    }

    fn epoch(&self) -> u64 {
        self.gate.epoch()
    }

    fn passed_epoch(&self) -> u64 {
        self.gate.questions.passed_epoch()
    }

    fn mark(&self) -> u64 {
        self.gate.mark()
    }

    fn has_passed(&self, mark: u64) -> bool {
        self.gate.questions.has_passed(mark)
    }

    fn is_settled(&self, mark: u64) -> bool {
        self.gate.questions.is_settled(mark)
    }
}

impl<E: Environment> Reports for SessionHost<E> {
    fn report_damage(&self, damage: Damage) {
        tracing::warn!(
            damaged = damage.found,
            repaired = damage.repaired,
            "replicas of an object do not hold what was written there: memory is failing, or somebody \
             else writes to it"
        );
        self.gate.found_damage(damage);
    }

    fn report_fallback(&self) {
        self.gate.add_transitions(Transitions { fallbacks: 1, ..Transitions::default() });
    }

    fn report_unreachable(&self, node: MnId) {
        self.env.report_unreachable(node);
    }
}
