//! The results of several processes, put together as if of one: processes of one host
//! ([`super::processes`]), or drivers on several ([`super::meeting`]).

use std::time::Duration;

use fusee_workload::Part;

use super::driver::{Outcome, PhaseResult};
use super::message::{Results, Said};
use super::processes::{Heard, hear};
use super::record::{Entry, Packed};
use super::verify::Log;

/// Phases that every process goes through.
pub const PHASES: usize = 2;

/// The results of all processes together.
pub struct Gathered {
    /// The results as if of one process.
    pub outcome: Outcome,
    /// The bound of key numbers, exclusive.
    pub keys: u64,
    /// Whether one of them ended early, because of errors.
    pub broken: bool,
}

/// The results of one process.
pub struct Share {
    /// The part of that process.
    pub part: Part,
    /// By phase: begin and end, of a clock that is the same for all.
    pub times: Vec<(u64, u64)>,
    /// Counts.
    pub results: Results,
    /// The recorded operations.
    pub entries: Vec<Packed>,
}

impl Share {
    /// Returns the duration of a phase.
    pub fn duration(&self, phase: usize) -> Duration {
        let (from, to) = self.times.get(phase).copied().unwrap_or_default();
        Duration::from_nanos(to.saturating_sub(from))
    }

    /// Returns the bytes, in the format of a client process.
    pub fn to_bytes(&self) -> Result<Vec<u8>, String> {
        let mut bytes = Vec::new();
        let times = self.times.iter().map(|&(from_ns, to_ns)| Said::Ended { from_ns, to_ns });
        for said in times.chain([Said::Results(self.results.clone())]) {
            serde_json::to_writer(&mut bytes, &said).map_err(|error| error.to_string())?;
            bytes.push(b'\n');
        }
        bytes.extend(self.entries.iter().flat_map(|entry| entry.to_bytes()));
        Ok(bytes)
    }

    /// Reads the bytes of [`Share::to_bytes`].
    pub fn from_bytes(part: Part, mut bytes: &[u8]) -> Result<Share, String> {
        let mut times = Vec::new();
        loop {
            match hear(&mut bytes)? {
                Heard::Said(Said::Ended { from_ns, to_ns }) => times.push((from_ns, to_ns)),
                Heard::Said(said) => return Err(format!("it told {said:?}")),
                Heard::Results(results, entries) => {
                    return Ok(Share { part, times, results, entries });
                }
            }
        }
    }
}

/// Puts together the results of `workers` workers.
pub fn gather(shares: Vec<Share>, workers: usize) -> Gathered {
    let mut results = vec![PhaseResult::default(); PHASES];
    for (phase, result) in results.iter_mut().enumerate() {
        let times = || shares.iter().filter_map(|share| share.times.get(phase));
        let from = times().map(|t| t.0).min().unwrap_or(0);
        let to = times().map(|t| t.1).max().unwrap_or(0);
        result.duration = Duration::from_nanos(to.saturating_sub(from));
    }
    let mut logs = vec![Log::default(); workers];
    let mut keys = 0;
    let mut broken = false;
    let mut kept = Vec::new();
    for Share { part, results: process, mut entries, .. } in shares {
        for (sum, counts) in results.iter_mut().zip(process.phases) {
            counts.add_to(sum);
        }
        keys = keys.max(process.claimed.checked_sub(1).map_or(0, |last| part.key(last) + 1));
        broken |= process.broken;
        for entry in entries.iter().map(|packed| Entry::from(*packed)) {
            keys = keys.max(entry.key + 1);
            if let (Some(write), Some(log)) = (entry.write(), logs.get_mut(entry.worker as usize)) {
                log.push(write);
            }
        }
        kept.append(&mut entries);
    }
    Gathered { outcome: Outcome { results, logs, entries: kept }, keys, broken }
}

#[cfg(test)]
mod tests {
    use fusee_linearizability::{Answer, Call};

    use super::*;
    use crate::message::PhaseCounts;
    use crate::record::End;

    fn share(number: u64) -> Share {
        let end = End::Answered(9, Answer::Done);
        let entry = Entry { key: number, worker: number, call: Call::Insert(1), invoked: 5, end };
        let phases = vec![PhaseCounts::new(&PhaseResult::default()); PHASES];
        let results = Results { phases, claimed: 3, broken: number == 1, entries: 1 };
        let times = vec![(number, 10 + number), (20, 30 + number)];
        Share { part: Part { number, of: 2 }, times, results, entries: vec![entry.into()] }
    }

    #[test]
    fn shares_come_back_and_are_put_together() {
        let again =
            |share: Share| Share::from_bytes(share.part, &share.to_bytes().unwrap()).unwrap();
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
            assert!(Share::from_bytes(Part::WHOLE, &bytes[..len]).is_err(), "{len}");
        }
    }
}
