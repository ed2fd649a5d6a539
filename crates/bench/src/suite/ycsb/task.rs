//! The plan of a YCSB run: its operations, the memory they take, and the share of each process.

use std::sync::Arc;

use fusee_cli::failure::Failure;
use fusee_workload::{KeyNaming, MAX_KEYS, WorkloadOperation, WorkloadShare, YcsbTrace};

use super::args::{YcsbArgs, YcsbDriverKeys};
use crate::cluster::{self, ClusterDemand};
use crate::message::{ClientSpec, RunSpec, TraceFiles};
use crate::value::HEADER_BYTES;
use fusee_report::machine::HostMachine;

/// Default number of operations of a run that is not limited by time.
const DEFAULT_OPERATIONS: u64 = 1_000_000;
/// An upper bound of the operations per second of one core, for the size of a run that is limited by time.
const OPERATIONS_PER_CORE_AND_SECOND: f64 = 2_000_000.0;

/// The plan of a run.
pub struct YcsbRunPlan {
    /// The given arguments. If there are files, `keys` is the number of keys that they load.
    pub args: YcsbArgs,
    files: Option<TraceFiles>,
    /// The contents of the files.
    pub trace: Option<Arc<YcsbTrace>>,
}

impl YcsbRunPlan {
    /// Reads the files, if there are any, and checks the arguments.
    pub fn new(args: &YcsbArgs) -> Result<YcsbRunPlan, Failure> {
        args.check()?;
        let mut task = YcsbRunPlan { args: args.clone(), files: None, trace: None };
        if let (Some(load), Some(trans)) = (&args.load_file, &args.trans_file) {
            let max_key_bytes = cluster::max_key_bytes(&args.cluster)?;
            let files = TraceFiles { load: load.clone(), trans: trans.clone(), max_key_bytes };
            let trace = files.read()?;
            let least = trace.longest_key_bytes() + HEADER_BYTES;
            if args.load.pair_bytes < least {
                return Err(Failure::usage(format!(
                    "--pair-bytes is {}; the longest key of the files has {} bytes, and with a \
                     value that can be verified its pair needs {least}",
                    args.load.pair_bytes,
                    trace.longest_key_bytes(),
                )));
            }
            task.args.keys = trace.loaded();
            (task.files, task.trace) = (Some(files), Some(trace));
        }
        if args.check && task.checked_operations() == 0 {
            return Err(Failure::usage(format!(
                "--check-ops is {}; loading and reading back {} keys takes all of them",
                args.check_ops(),
                task.keys()
            )));
        }
        Ok(task)
    }

    /// Returns the names of the keys.
    pub fn names(&self) -> KeyNaming {
        self.trace.clone().map_or(KeyNaming::Numbered, KeyNaming::Named)
    }

    /// Returns the name of the workload.
    pub fn name(&self) -> String {
        self.trace.as_ref().map_or_else(|| self.args.workload.to_string(), |_| "files".to_owned())
    }

    /// Returns whether any key can be absent at any time. If the keys come from files, the files tell which keys exist.
    pub fn keys_come_and_go(&self) -> bool {
        self.trace.is_none() && self.args.workload.removes_keys()
    }

    /// Returns the number of keys that can exist, without the keys that workload D adds.
    pub fn keys(&self) -> u64 {
        self.trace.as_ref().map_or(self.args.keys, |trace| trace.keys())
    }

    /// Returns the maximum number of recorded operations in the run phase. The other records are for loading and
    /// reading back.
    pub fn checked_operations(&self) -> u64 {
        self.args.check_ops().saturating_sub(self.args.keys + self.keys())
    }

    /// Returns the maximum number of operations in the run phase.
    pub fn operations(&self, machine: &HostMachine) -> u64 {
        let operations = self.unrecorded_operations(machine);
        if self.args.check { operations.min(self.checked_operations()) } else { operations }
    }

    /// Returns the maximum number of operations in the run phase without `--check`. A run that is limited by time alone
    /// also ends when it has used up the memory of an embedded cluster.
    fn unrecorded_operations(&self, machine: &HostMachine) -> u64 {
        let args = &self.args;
        let once = self.trace.as_ref().map_or(DEFAULT_OPERATIONS, |trace| trace.operations());
        let Some(seconds) = args.seconds else {
            return args.operations.unwrap_or(once);
        };
        if let Some(operations) = args.operations {
            return operations;
        }
        if args.cluster.master.is_some() {
            return MAX_KEYS / 2;
        }
        let possible = seconds * OPERATIONS_PER_CORE_AND_SECOND * machine.cores as f64;
        let available = machine.available_memory_bytes;
        let pairs = cluster::affordable_pairs(&args.load, &args.cluster, available);
        let affordable = pairs.saturating_sub(self.keys()).saturating_mul(100);
        // Reads and DELETEs need no memory, so a run with nothing but these is limited by time alone.
        match affordable.checked_div(self.pair_writes_percent()) {
            Some(affordable) => (possible as u64).min(affordable).max(1),
            None => MAX_KEYS / 2,
        }
    }

    /// Returns the percentage of operations that write a pair, which takes memory.
    fn pair_writes_percent(&self) -> u64 {
        let workload = self.args.workload;
        match &self.trace {
            Some(trace) => {
                let inserts = trace.count(WorkloadOperation::Insert);
                let writes = inserts + trace.count(WorkloadOperation::Update);
                (writes * 100).div_ceil(trace.operations())
            }
            None => workload.updates_percent() + workload.inserts_percent(),
        }
    }

    /// Returns the memory that this number of operations takes.
    pub fn demand(&self, operations: u64) -> ClusterDemand {
        let (args, workload) = (&self.args, self.args.workload);
        let processes = if args.processes > 1 { args.processes.into() } else { 0 };
        if let Some(trace) = &self.trace {
            let times = operations.div_ceil(trace.operations());
            let count = |request| trace.count(request).saturating_mul(times).min(operations);
            let keys = trace.keys();
            let pairs =
                args.keys + count(WorkloadOperation::Insert) + count(WorkloadOperation::Update);
            return ClusterDemand {
                keys,
                index_keys: keys,
                pairs,
                processes,
                ..ClusterDemand::default()
            };
        }
        // Operations are drawn at random, so three standard deviations are added to the mean.
        let drawn = |percent: u64| {
            let mean = operations as f64 * percent as f64 / 100.0;
            if percent == 0 { 0 } else { (mean + 3.0 * mean.sqrt()).ceil() as u64 }
        };
        let inserts = drawn(workload.inserts_percent());
        let updates = drawn(workload.updates_percent());
        // On an existing cluster, a run limited by time alone has no known number of operations.
        let is_bounded =
            args.cluster.master.is_none() || args.seconds.is_none() || args.operations.is_some();
        let new_keys = if workload.adds_keys() && is_bounded { inserts } else { 0 };
        let pairs = args.keys + inserts + updates;
        let keys = args.keys + new_keys;
        ClusterDemand { keys, index_keys: keys, pairs, processes, ..ClusterDemand::default() }
    }

    /// Returns the operations of the run, for all processes together.
    pub fn run(&self, operations: u64) -> RunSpec {
        RunSpec {
            workload: self.args.workload,
            keys: self.args.keys,
            distribution: self.args.distribution(),
            theta: self.args.theta(),
            seed: self.args.load.seed,
            operations,
            seconds: self.args.seconds,
            files: self.files.clone(),
            workers: self.args.workers(),
            own_keys: self.args.keys_of == YcsbDriverKeys::Own,
        }
    }

    /// Returns the task of each process.
    pub fn specs(
        &self,
        run: &RunSpec,
        master: &str,
        fabric: String,
        origin_ns: u64,
    ) -> Vec<ClientSpec> {
        let (args, load) = (&self.args, &self.args.load);
        let processes = u64::from(args.processes);
        let threads = u64::from(load.threads);
        let spec = |number: u64| {
            let part = WorkloadShare { number, of: processes };
            let (first_thread, threads) = share(part, threads);
            ClientSpec {
                master: master.to_string(),
                fabric: fabric.clone(),
                switch: args.cluster.switch.clone(),
                cache_entries: load.cache_entries,
                cache_per_session: load.cache_per_session,
                cache_threshold: load.cache_threshold,
                work_table: load.work_table.to_string(),
                pair_bytes: load.pair_bytes,
                threads: threads as usize,
                first_thread: first_thread as usize,
                coroutines: load.coroutines.into(),
                part,
                run: own_run(run, part),
                keep: args.keep(),
                origin_ns,
            }
        };
        (0..processes).map(spec).collect()
    }

    /// Returns the arguments with all defaults filled in.
    pub fn settings(&self, operations: u64) -> YcsbArgs {
        let args = &self.args;
        let drawn = self.trace.is_none();
        YcsbArgs {
            operations: args.operations.or(args.seconds.is_none().then_some(operations)),
            distribution: drawn.then(|| args.distribution()),
            theta: drawn.then(|| args.theta()),
            check_ops: args.check.then(|| args.check_ops()),
            ..args.clone()
        }
    }
}

/// Returns the part of a run for one process. A run of files is not divided here, because each process finds its own
/// lines.
pub fn own_run(run: &RunSpec, part: WorkloadShare) -> RunSpec {
    match run.files {
        Some(_) => run.clone(),
        None => RunSpec { operations: share(part, run.operations).1, ..run.clone() },
    }
}

/// Divides a number among parts. Returns the sum of the shares of all parts before this part, and this part's share.
pub fn share(part: WorkloadShare, number: u64) -> (u64, u64) {
    let until = |parts: u64| number / part.of * parts + number % part.of * parts / part.of;
    let before = until(part.number);
    (before, until(part.number + 1) - before)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_whole() {
        for of in 1..6 {
            for total in [0, 1, 7, 1_000_003] {
                let shares = (0..of).map(|number| share(WorkloadShare { number, of }, total));
                let end = shares.fold(0, |end, (before, own)| {
                    assert_eq!(before, end);
                    before + own
                });
                assert_eq!(end, total);
            }
        }
    }
}
