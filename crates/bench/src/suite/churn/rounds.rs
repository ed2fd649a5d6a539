//! Second load of `fusee-bench churn`: in each round the pool is filled until memory is used up, or up to a share of
//! it, and then every second key is deleted.
//!
//! In every round as many pairs have to fit as in the first round, apart from the memory that sessions hold back:
//! objects that are not yet marked as free. Deleted keys are inserted again in the next round, with another version.
//! After every step all keys are read: existing keys must have their version, and all other keys must be absent.
//!
//! A delete needs no memory, so a delete that is refused is a failure.

use std::sync::Arc;
use std::time::Duration;

use fusee_cli::failure::Failure;
use serde::Serialize;

use super::model::ChurnModel;
use super::plan::ChurnClusterSizes;
use super::usage::ChurnMemoryMonitor;
use super::workers::{ChurnKeys, ChurnTask, ChurnWorkerPool};
use super::{ChurnArgs, ChurnTotals};
use crate::progress::bar;

/// The figures of one round.
#[derive(Clone, Debug, Default, Serialize)]
pub struct ChurnRound {
    /// The number of the round, from 1.
    pub round: u32,
    /// Number of pairs when no session can insert another pair, or when the requested number is reached.
    pub fit: u64,
    /// Bytes of the pairs that fitted, as a share of the memory that regions can take (the data memory).
    pub fill: f64,
    /// Memory in use when the pool has been filled.
    pub in_use_bytes: u64,
    /// Number of inserts refused for lack of memory: at most one for each session.
    pub inserts_refused: u64,
    /// The longest time that a refused insert took.
    pub slowest_refusal_ms: f64,
    pub fill_s: f64,
    /// Number of pairs that were deleted after the pool had been filled.
    pub deleted: u64,
    pub delete_s: f64,
    /// Memory in use after the deletes.
    pub left_in_use_bytes: u64,
}

/// The results.
#[derive(Clone, Debug, Serialize)]
pub struct ChurnRoundsReport {
    pub rounds: Vec<ChurnRound>,
    /// Number of pairs that fitted in the first round. The next two fields have the number of the round with the fewest
    /// pairs, and of the last round.
    pub first_fit: u64,
    pub least_fit: u64,
    pub last_fit: u64,
    /// Number of pairs in the round with the fewest pairs, divided by the number in the first round.
    pub least_share: f64,
    /// Number of reads that were checked, of keys that exist and of keys that do not.
    pub reads: u64,
}

/// Runs this load.
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
        watch: ChurnMemoryMonitor::new(&client),
        known: 0,
        reads: 0,
        sum,
    };
    let rounds = ChurnWorkerPool::run(&client, &model, args.load(), |crew| course.rounds(crew))?;
    // New sessions with empty caches read all keys.
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

/// The state of this load from round to round.
struct ChurnRoundRunner<'a> {
    args: &'a ChurnArgs,
    sizes: &'a ChurnClusterSizes,
    model: &'a ChurnModel,
    watch: ChurnMemoryMonitor<'a>,
    /// The exclusive upper bound of the key numbers that sessions have tried to insert.
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
            rounds.push(round);
            bar.set_position(number.into());
            if !crew.goes_on() {
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
        round.fill = bytes as f64 / self.sizes.data_bytes.max(1) as f64;
        round.in_use_bytes = self.watch.look().in_use_bytes;
        round.inserts_refused = done.refused;
        round.slowest_refusal_ms = ms(done.slowest_refusal);
        round.fill_s = done.duration.as_secs_f64();
    }

    /// Deletes every second key.
    fn delete(&mut self, crew: &ChurnWorkerPool<'_>, round: &mut ChurnRound) {
        // The next round deletes the other half, so that no key stays for ever.
        let half = self.present().skip(round.round as usize % 2).step_by(2);
        let keys: Vec<u64> = half.collect();
        let done = crew.run_task(ChurnTask::Delete, ChurnKeys::listed(keys.clone()), |_| {});
        self.sum.tally.merge_failures(&done.tally);
        round.delete_s = done.duration.as_secs_f64();
        round.deleted = keys.iter().filter(|key| !self.model.is_present(**key)).count() as u64;
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
