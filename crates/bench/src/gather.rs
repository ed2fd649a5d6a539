//! Merges the results of several processes into results as of one process. The processes run on one host
//! ([`super::processes`]), or are drivers on several hosts ([`super::rendezvous`]).

use std::time::Duration;

use fusee_workload::WorkloadShare;

use super::driver::{DriverOutcome, PhaseResult};
use super::message::{BenchClientMessage, ResultsMessage};
use super::processes::{ProcessMessage, read_message};
use super::record::{PackedOperation, RecordedOperation};
use super::verify::WriteLog;

/// Number of phases that every process goes through: loading and running.
pub const PHASES: usize = 2;

/// The results of all processes together.
pub struct GatheredResults {
    /// The merged results.
    pub outcome: DriverOutcome,
    /// The exclusive upper bound of key numbers.
    pub keys: u64,
    /// Whether any process ended early because of errors.
    pub broken: bool,
}

/// The results of one process.
pub struct ProcessResults {
    /// The share of the workload that the process ran.
    pub part: WorkloadShare,
    /// Begin and end of each phase, in nanoseconds: by the monotonic clock of the host, or, if there are several hosts,
    /// since a time when the phase had not yet begun on any host.
    pub times: Vec<(u64, u64)>,
    /// The counts of the process.
    pub results: ResultsMessage,
    /// The recorded operations.
    pub entries: Vec<PackedOperation>,
}

impl ProcessResults {
    /// Returns the duration of a phase.
    pub fn duration(&self, phase: usize) -> Duration {
        let (from, to) = self.times.get(phase).copied().unwrap_or_default();
        Duration::from_nanos(to.saturating_sub(from))
    }

    /// Encodes the results, in the format of a client process's output.
    pub fn to_bytes(&self) -> Result<Vec<u8>, String> {
        let mut bytes = Vec::new();
        let times =
            self.times.iter().map(|&(from_ns, to_ns)| BenchClientMessage::Ended { from_ns, to_ns });
        for said in times.chain([BenchClientMessage::Results(self.results.clone())]) {
            serde_json::to_writer(&mut bytes, &said).map_err(|error| error.to_string())?;
            bytes.push(b'\n');
        }
        bytes.extend(self.entries.iter().flat_map(|entry| entry.to_bytes()));
        Ok(bytes)
    }

    /// Decodes the bytes of [`ProcessResults::to_bytes`].
    pub fn from_bytes(part: WorkloadShare, mut bytes: &[u8]) -> Result<ProcessResults, String> {
        let mut times = Vec::new();
        loop {
            match read_message(&mut bytes)? {
                ProcessMessage::Said(BenchClientMessage::Ended { from_ns, to_ns }) => {
                    times.push((from_ns, to_ns))
                }
                ProcessMessage::Said(said) => return Err(format!("it told {said:?}")),
                ProcessMessage::Results(results, entries) => {
                    return Ok(ProcessResults { part, times, results, entries });
                }
            }
        }
    }
}

/// Merges the results of all processes, which have `workers` workers together.
pub fn gather(shares: Vec<ProcessResults>, workers: usize) -> GatheredResults {
    let mut results = vec![PhaseResult::default(); PHASES];
    for (phase, result) in results.iter_mut().enumerate() {
        let times = || shares.iter().filter_map(|share| share.times.get(phase));
        let from = times().map(|t| t.0).min().unwrap_or(0);
        let to = times().map(|t| t.1).max().unwrap_or(0);
        result.duration = Duration::from_nanos(to.saturating_sub(from));
    }
    let mut logs = vec![WriteLog::default(); workers];
    let mut keys = 0;
    let mut broken = false;
    let mut kept = Vec::new();
    for ProcessResults { part, results: process, mut entries, .. } in shares {
        for (sum, counts) in results.iter_mut().zip(process.phases) {
            counts.add_to(sum);
        }
        keys = keys.max(process.claimed.checked_sub(1).map_or(0, |last| part.key(last) + 1));
        broken |= process.broken;
        for entry in entries.iter().map(|packed| RecordedOperation::from(*packed)) {
            keys = keys.max(entry.key + 1);
            if let (Some(write), Some(log)) = (entry.write(), logs.get_mut(entry.worker as usize)) {
                log.push(write);
            }
        }
        kept.append(&mut entries);
    }
    GatheredResults { outcome: DriverOutcome { results, logs, entries: kept }, keys, broken }
}

#[cfg(test)]
mod tests {
    use fusee_linearizability::{HistoryAnswer, HistoryCall};

    use super::*;
    use crate::message::PhaseCounts;
    use crate::record::RecordedEnd;

    fn share(number: u64) -> ProcessResults {
        let end = RecordedEnd::Answered(9, HistoryAnswer::Done);
        let entry = RecordedOperation {
            key: number,
            worker: number,
            call: HistoryCall::Insert(1),
            invoked: 5,
            end,
        };
        let phases = vec![PhaseCounts::new(&PhaseResult::default()); PHASES];
        let results = ResultsMessage { phases, claimed: 3, broken: number == 1, entries: 1 };
        let times = vec![(number, 10 + number), (20, 30 + number)];
        ProcessResults {
            part: WorkloadShare { number, of: 2 },
            times,
            results,
            entries: vec![entry.into()],
        }
    }

    #[test]
    fn shares_come_back_and_are_put_together() {
        let again = |share: ProcessResults| {
            ProcessResults::from_bytes(share.part, &share.to_bytes().unwrap()).unwrap()
        };
        let shares = vec![again(share(0)), again(share(1))];
        assert_eq!(shares[1].duration(1), Duration::from_nanos(11));
        let gathered = gather(shares, 2);
        let durations: Vec<u128> =
            gathered.outcome.results.iter().map(|r| r.duration.as_nanos()).collect();
        assert_eq!((durations, gathered.keys, gathered.broken), (vec![11, 11], 6, true));
        assert_eq!(gathered.outcome.entries.len(), 2);
        assert!(gathered.outcome.logs.iter().all(|log| log.next_sequence() == 1));
        let bytes = share(0).to_bytes().unwrap();
        for len in 0..bytes.len() {
            assert!(
                ProcessResults::from_bytes(WorkloadShare::WHOLE, &bytes[..len]).is_err(),
                "{len}"
            );
        }
    }
}
