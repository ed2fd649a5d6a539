//! Second part of `fusee-bench churn`: the pool is filled until memory is used up, or up to a share of
//! it, every second key is deleted, and again.
//!
//! As many pairs as fitted at first have to fit every time, but for what sessions hold back:
//! objects that are not marked yet, and blocks of log objects, which only deletes need. Keys that
//! were deleted are inserted again in the next round, with another version. After every step all
//! keys are read: those that are there must have their version, the others must be absent.
//!
//! A delete needs a log object, and where nothing is free it may be refused. It is tried again when
//! other sessions have freed something; if no session makes progress, that is a problem.

use std::sync::Arc;
use std::time::Duration;

use fusee_cli::failure::Failure;
use serde::Serialize;

use super::model::ChurnModel;
use super::plan::ChurnClusterSizes;
use super::usage::ChurnMemoryMonitor;
use super::workers::{ChurnKeys, ChurnTask, ChurnTaskResult, ChurnWorkerPool};
use super::{ChurnArgs, ChurnTotals};
use crate::progress::bar;

/// Times in a row that all sessions have to be refused before a round is given up.
const ATTEMPTS_IN_VAIN: u32 = 3;

/// A round.
#[derive(Clone, Debug, Default, Serialize)]
pub struct ChurnRound {
    /// Counted from 1.
    pub round: u32,
    /// Pairs that exist when no session can insert another one, or all that are wanted.
    pub fit: u64,
    /// Their bytes over the data memory.
    pub fill: f64,
    /// Memory that was in use then.
    pub in_use_bytes: u64,
    /// Bytes in use by blocks of smaller objects than the pairs': the log objects of deletes.
    pub log_blocks_bytes: u64,
    /// Objects in these blocks that are not marked as free.
    pub log_objects_bytes: u64,
    /// Inserts refused for lack of memory: at most one for each session.
    pub inserts_refused: u64,
    /// The longest time until such a refusal.
    pub slowest_refusal_ms: f64,
    pub fill_s: f64,
    /// Pairs that were deleted afterwards.
    pub deleted: u64,
    /// Deletes refused for lack of memory; they were tried again.
    pub deletes_refused: u64,
    /// Pairs that could not be deleted at all.
    pub undeleted: u64,
    pub delete_s: f64,
    /// Memory in use after the deletes.
    pub left_in_use_bytes: u64,
}

/// The results.
#[derive(Clone, Debug, Serialize)]
pub struct ChurnRoundsReport {
    pub rounds: Vec<ChurnRound>,
    /// Pairs that fitted in the first round, in the worst one and in the last one.
    pub first_fit: u64,
    pub least_fit: u64,
    pub last_fit: u64,
    /// The worst fit over the first.
    pub least_share: f64,
    /// Reads that were judged, of keys that exist and of keys that do not.
    pub reads: u64,
}

/// Runs this part.
pub fn run(
    args: &ChurnArgs,
    sizes: &ChurnClusterSizes,
    sum: &mut ChurnTotals,
) -> Result<ChurnRoundsReport, Failure> {
    let (client, _servers) = sizes.open(&args.cluster)?;
    sum.describe(&client);
    let model = ChurnModel::new(sizes.most_pairs());
    let mut course = ChurnRoundRunner {
        args,
        sizes,
        model: &model,
        watch: ChurnMemoryMonitor::new(&client, sizes.geometry.block_bytes),
        known: 0,
        reads: 0,
        sum,
    };
    let rounds = ChurnWorkerPool::run(&client, &model, args.load(), |crew| course.rounds(crew))?;
    // New sessions, with empty caches.
    ChurnWorkerPool::run(&client, &model, args.load(), |crew| course.check(crew))?;
    let reads = course.reads;
    let problem = course.watch.problem.take();
    sum.problems.extend(problem);
    sum.read_back += reads;
    let fits = || rounds.iter().map(|round| round.fit);
    let first_fit = fits().next().unwrap_or(0);
    let least_fit = fits().min().unwrap_or(0);
    let least_share = least_fit as f64 / first_fit.max(1) as f64;
    if !rounds.is_empty() && least_share < args.least_share {
        sum.problems.push(format!(
            "in the worst round {:.1} % of the pairs of the first one fitted; it must be at least \
             {:.1} %",
            least_share * 100.0,
            args.least_share * 100.0
        ));
    }
    let last_fit = fits().next_back().unwrap_or(0);
    Ok(ChurnRoundsReport { rounds, first_fit, least_fit, last_fit, least_share, reads })
}

/// The way through the rounds.
struct ChurnRoundRunner<'a> {
    args: &'a ChurnArgs,
    sizes: &'a ChurnClusterSizes,
    model: &'a ChurnModel,
    watch: ChurnMemoryMonitor<'a>,
    /// Keys from 0 on that were ever tried.
    known: u64,
    reads: u64,
    sum: &'a mut ChurnTotals,
}

impl ChurnRoundRunner<'_> {
    fn rounds(&mut self, crew: &ChurnWorkerPool<'_>) -> Vec<ChurnRound> {
        let bar = bar("rounds", u64::from(self.args.rounds), true);
        let mut rounds = Vec::new();
        for number in 1..=self.args.rounds {
            let mut round = ChurnRound { round: number, ..ChurnRound::default() };
            self.fill(crew, &mut round);
            if !crew.goes_on() {
                break;
            }
            bar.set_message(format!("{} pairs", round.fit));
            self.check(crew);
            self.delete(crew, &mut round);
            self.check(crew);
            let is_stuck = round.undeleted > 0;
            rounds.push(round);
            bar.set_position(number.into());
            if is_stuck || !crew.goes_on() {
                break;
            }
        }
        bar.finish_and_clear();
        rounds
    }

    fn fill(&mut self, crew: &ChurnWorkerPool<'_>, round: &mut ChurnRound) {
        let listed: Vec<u64> = (0..self.known).filter(|key| !self.model.is_present(*key)).collect();
        let old = listed.len() as u64;
        let first = self.known;
        let present = self.known - old;
        let wanted = if self.args.fill_up < 1.0 {
            self.sizes.pairs(self.args.fill_up).min(self.model.len())
        } else {
            self.model.len()
        };
        let count = wanted.saturating_sub(present);
        let keys = ChurnKeys { listed: Arc::new(listed), first, count };
        let done = crew.run_task(ChurnTask::Fill(round.round), keys, |_| {});
        self.known += done.taken.saturating_sub(old);
        self.sum.tally.merge_failures(&done.tally);
        round.fit = self.present().count() as u64;
        let bytes = round.fit * self.sizes.object_bytes;
        round.fill = bytes as f64 / self.sizes.data_bytes().max(1) as f64;
        round.in_use_bytes = self.watch.look().in_use_bytes;
        let log = self.watch.use_of_classes_below(self.sizes.object_bytes);
        (round.log_blocks_bytes, round.log_objects_bytes) = (log.blocks, log.objects);
        round.inserts_refused = done.refused;
        round.slowest_refusal_ms = ms(done.slowest_refusal);
        round.fill_s = done.duration.as_secs_f64();
    }

    /// Deletes every second key, as far as that is possible.
    fn delete(&mut self, crew: &ChurnWorkerPool<'_>, round: &mut ChurnRound) {
        // The other half is deleted next time, so that no key stays for ever.
        let half = self.present().skip(round.round as usize % 2).step_by(2);
        let mut left: Vec<u64> = half.collect();
        let all = left.len() as u64;
        let mut in_vain = 0;
        while !left.is_empty() && in_vain < ATTEMPTS_IN_VAIN && crew.goes_on() {
            let before = left.len();
            let done: ChurnTaskResult =
                crew.run_task(ChurnTask::Delete, ChurnKeys::listed(left.clone()), |_| {});
            self.sum.tally.merge_failures(&done.tally);
            round.deletes_refused += done.refused;
            round.delete_s += done.duration.as_secs_f64();
            round.slowest_refusal_ms = round.slowest_refusal_ms.max(ms(done.slowest_refusal));
            left.retain(|key| self.model.is_present(*key));
            in_vain = if left.len() == before { in_vain + 1 } else { 0 };
        }
        if in_vain == ATTEMPTS_IN_VAIN {
            round.undeleted = left.len() as u64;
            self.sum.problems.push(format!(
                "round {}: {} of {all} pairs could not be deleted: no session had memory to do so",
                round.round,
                left.len()
            ));
        }
        round.deleted = all - left.len() as u64;
        round.left_in_use_bytes = self.watch.look().in_use_bytes;
    }

    fn check(&mut self, crew: &ChurnWorkerPool<'_>) {
        let done = crew.run_task(ChurnTask::Check, ChurnKeys::below(self.known), |_| {});
        self.reads += done.tally.operations();
        self.sum.tally.merge_failures(&done.tally);
    }

    fn present(&self) -> impl Iterator<Item = u64> + use<'_> {
        (0..self.known).filter(|key| self.model.is_present(*key))
    }
}

fn ms(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1000.0
}
