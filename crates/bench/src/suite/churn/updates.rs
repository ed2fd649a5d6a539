//! First load of `fusee-bench churn`: the pool is filled to a share of its memory, and then every key is updated again
//! and again.
//! The number of pairs and the memory that they take stay the same. If replaced objects were not used again, the pool
//! would be full within less than one pass. Therefore the first result is whether any operation runs out of memory. The
//! second result is the *factor*: the largest memory in use at any time during the passes, divided by the memory of the
//! pairs.

use std::time::{Duration, Instant};

use fusee_cli::failure::Failure;
use serde::Serialize;

use super::model::ChurnModel;
use super::plan::ChurnClusterSizes;
use super::usage::{ChurnMemoryMonitor, ChurnMemoryUse};
use super::workers::{ChurnKeys, ChurnTask, ChurnTaskResult, ChurnWorkerPool};
use super::{ChurnArgs, ChurnTotals, LOOK_PERIOD};
use crate::progress::bar;
use crate::series::{LatencyByOperation, operations};
use crate::tally::OperationTally;

/// Number of failed operations after which no further pass begins, because each of them can take seconds.
const MOST_ERRORS: u64 = 16;

/// The figures of one pass over all keys.
#[derive(Clone, Debug, Serialize)]
pub struct ChurnPass {
    /// The number of the pass, from 1.
    pub pass: u32,
    /// Updates and reads that succeeded, per second.
    pub ops_per_s: f64,
    /// The largest memory in use during the pass.
    pub most_in_use_bytes: u64,
    /// The memory in use at the end of the pass.
    #[serde(flatten)]
    pub usage: ChurnMemoryUse,
}

/// The results.
#[derive(Clone, Debug, Serialize)]
pub struct ChurnUpdatesReport {
    /// Number of pairs.
    pub keys: u64,
    /// Bytes of the pairs, with all overhead.
    pub live_bytes: u64,
    /// Bytes of the pairs, as a share of the memory that regions can take (the data memory).
    pub fill: f64,
    /// Memory in use when all pairs had been inserted.
    pub loaded_in_use_bytes: u64,
    /// Number of passes that were begun.
    pub passes_done: u32,
    /// The first pass, every n-th pass, and the last pass.
    pub passes: Vec<ChurnPass>,
    /// The largest memory in use during the passes.
    pub most_in_use_bytes: u64,
    /// The largest memory in use, divided by `live_bytes`.
    pub factor: f64,
    /// Latencies in all passes, by kind of operation.
    pub operations: LatencyByOperation,
    /// Number of keys that new sessions read at the end.
    pub read_back: u64,
}

/// Runs this load.
pub fn run(
    args: &ChurnArgs,
    sizes: &ChurnClusterSizes,
    sum: &mut ChurnTotals,
) -> Result<ChurnUpdatesReport, Failure> {
    let (client, _servers) = sizes.open(&args.cluster)?;
    sum.describe(&client);
    let keys = sizes.pairs(args.fill);
    let model = ChurnModel::new(keys);
    let mut watch = ChurnMemoryMonitor::new(&client);
    let mut updates = ChurnWorkerPool::run(&client, &model, args.load(), |crew| {
        passes(args, sizes, keys, crew, &mut watch, sum)
    })?;
    let checked = ChurnWorkerPool::run(&client, &model, args.load(), |crew| {
        let bar = bar("verify", keys, true);
        let done = crew
            .run_task(ChurnTask::Check, ChurnKeys::below(keys), |taken| bar.set_position(taken));
        bar.finish_and_clear();
        done
    })?;
    updates.read_back = checked.tally.operations();
    sum.tally.merge_failures(&checked.tally);
    sum.read_back += updates.read_back;
    sum.problems.extend(watch.problem);
    Ok(updates)
}

fn insert_all(keys: u64, crew: &ChurnWorkerPool<'_>) -> ChurnTaskResult {
    let load = bar("insert", keys, true);
    let loaded = crew
        .run_task(ChurnTask::Insert(1), ChurnKeys::below(keys), |taken| load.set_position(taken));
    load.finish_and_clear();
    loaded
}

fn passes(
    args: &ChurnArgs,
    sizes: &ChurnClusterSizes,
    keys: u64,
    crew: &ChurnWorkerPool<'_>,
    watch: &mut ChurnMemoryMonitor<'_>,
    sum: &mut ChurnTotals,
) -> ChurnUpdatesReport {
    let loaded = insert_all(keys, crew);
    sum.tally.merge_failures(&loaded.tally);
    let loaded_in_use_bytes = watch.look().in_use_bytes;
    let shown = bar("update", u64::from(args.passes), true);
    let mut all = OperationTally::default();
    let mut passes = Vec::new();
    let mut most = 0;
    let mut duration = Duration::ZERO;
    let mut looked = Instant::now();
    let mut done = 0;
    watch.take_most_bytes();
    let mut gave_up = loaded.gave_up;
    for pass in 1..=args.passes {
        if gave_up || !crew.goes_on() {
            break;
        }
        let result = crew.run_task(ChurnTask::Update(pass + 1), ChurnKeys::below(keys), |_| {
            if looked.elapsed() >= LOOK_PERIOD {
                watch.look();
                looked = Instant::now();
            }
        });
        let usage = watch.look();
        let most_in_use_bytes = watch.take_most_bytes();
        most = most.max(most_in_use_bytes);
        duration += result.duration;
        done = pass;
        let seconds = result.duration.as_secs_f64().max(1e-9);
        let ops_per_s = result.tally.operations() as f64 / seconds;
        all.merge(&result.tally);
        gave_up = result.gave_up || all.error_count() >= MOST_ERRORS;
        shown.set_position(pass.into());
        shown.set_message(format!("{:.0} kops/s", ops_per_s / 1000.0));
        let is_shown = pass == 1 || pass == args.passes || pass.is_multiple_of(args.every);
        if is_shown || gave_up {
            passes.push(ChurnPass { pass, ops_per_s, most_in_use_bytes, usage });
        }
    }
    shown.finish_and_clear();
    if gave_up {
        sum.problems.push(format!(
            "the updates ended in pass {done} of {}: too many operations failed",
            args.passes
        ));
    }
    sum.tally.merge_failures(&all);
    let live_bytes = keys * sizes.object_bytes;
    ChurnUpdatesReport {
        keys,
        live_bytes,
        fill: live_bytes as f64 / sizes.data_bytes.max(1) as f64,
        loaded_in_use_bytes,
        passes_done: done,
        passes,
        most_in_use_bytes: most,
        factor: most as f64 / live_bytes as f64,
        operations: operations(&all, duration.as_secs_f64()),
        read_back: 0,
    }
}
