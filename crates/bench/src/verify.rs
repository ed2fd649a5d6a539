//! A check of the final state against all writes: the store must have kept what it acknowledged.
//!
//! Every writer logs its writes: the key, the time at which the call began, the time at which it returned, and the
//! outcome. All threads use one clock. After the last write each key is read back, and its value names the write that
//! wrote it. The named write is *admissible* unless an acknowledged write of the same key began after the named write
//! had ended. In every order that respects real time, the acknowledged write is then later than the named write, so the
//! key must have the value of the acknowledged write or a still later value. Overlapping writes can have taken effect
//! in either order.
//!
//! * A write with an unknown outcome can take effect at any time after its start. Therefore it stays admissible for
//!   ever. It excludes no other write, because it has possibly never taken effect.
//! * A write that failed without effect is never admissible.
//! * Loading a key is a write like any other. A delete is a write of no value. Before its first write a key is taken
//!   for deleted at time 0.
//!
//! The check finds lost updates, values that came back after they had been replaced, values of other keys, torn values,
//! keys that vanished, and keys that survived their delete.

// Promise CHK-7: The verifier finds lost, resurrected, torn and foreign values.

use super::value::{TornValue, ValueOrigin};

/// The outcome of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteOutcome {
    /// The write was acknowledged at this time.
    Acknowledged(u64),
    /// The write has possibly taken effect, or still can.
    Unknown,
    /// The write had no effect.
    NotApplied,
}

/// The state that a write leaves behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteEffect {
    /// The key has the value that the writer and the sequence number determine.
    Value,
    /// The key does not exist.
    Absent,
}

/// A write in the log of its writer; its index in the log is its sequence number.
#[derive(Clone, Copy, Debug)]
pub struct LoggedWrite {
    /// The number of the key.
    pub key: u64,
    /// The state that the write leaves behind.
    pub effect: WriteEffect,
    /// The time at which the call began.
    pub start: u64,
    /// The outcome.
    pub fate: WriteOutcome,
}

/// The writes of one writer.
#[derive(Clone, Debug, Default)]
pub struct WriteLog {
    writes: Vec<LoggedWrite>,
}

impl WriteLog {
    /// Returns the sequence number of the next write.
    pub fn next_sequence(&self) -> u64 {
        self.writes.len() as u64
    }

    /// Notes a write that has ended.
    pub fn push(&mut self, write: LoggedWrite) {
        self.writes.push(write);
    }
}

/// A fault in the final state of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Mismatch {
    /// The value's length or fill does not match any write.
    #[error("the value is torn: its bytes do not come from one write")]
    Torn,
    /// The value belongs to another key.
    #[error("the value belongs to key number {key}")]
    ForeignKey {
        /// The number of that key.
        key: u64,
    },
    /// The value names a write that never happened, or that had no effect.
    #[error("the value of write {sequence} of writer {writer}, which had no effect")]
    NeverWritten {
        /// The writer that the value names.
        writer: u64,
        /// The number of the write.
        sequence: u64,
    },
    /// The value is older than an acknowledged write: that write is lost, or this value came back.
    #[error("the value of write {sequence} of writer {writer}, although a newer one was confirmed")]
    Overwritten {
        /// The writer of the value.
        writer: u64,
        /// The number of the write.
        sequence: u64,
    },
    /// The key must have a value, but does not exist.
    #[error("the key is missing")]
    Missing,
}

impl Mismatch {
    /// Returns a short name for counting.
    pub fn kind(&self) -> &'static str {
        match self {
            Mismatch::Torn => "torn",
            Mismatch::ForeignKey { .. } => "foreign_key",
            Mismatch::NeverWritten { .. } => "never_written",
            Mismatch::Overwritten { .. } => "overwritten",
            Mismatch::Missing => "missing",
        }
    }
}

/// The final states of a key that its writes allow.
#[derive(Clone, Copy, Debug, Default)]
struct KeyState {
    /// The latest begin of an acknowledged write. A write that ended before this time is not admissible.
    last_start: u64,
    /// The latest end of a write that removes the key.
    absent_end: u64,
}

/// The verifier of final states, which knows all writes.
#[derive(Debug)]
pub struct Verifier {
    logs: Vec<WriteLog>,
    keys: Vec<KeyState>,
}

impl Verifier {
    /// Takes the logs of all writes of the keys `0..keys`. The index of a log is the number of its writer.
    ///
    /// # Panics
    /// Panics if a log names a key that is out of range.
    pub fn new(keys: u64, logs: Vec<WriteLog>) -> Verifier {
        let mut states = vec![KeyState::default(); keys as usize];
        for write in logs.iter().flat_map(|log| &log.writes) {
            let state = &mut states[write.key as usize];
            let end = match write.fate {
                WriteOutcome::Acknowledged(end) => {
                    state.last_start = state.last_start.max(write.start);
                    end
                }
                WriteOutcome::Unknown => u64::MAX,
                WriteOutcome::NotApplied => continue,
            };
            if write.effect == WriteEffect::Absent {
                state.absent_end = state.absent_end.max(end);
            }
        }
        Verifier { logs, keys: states }
    }

    /// Checks the result of a read of this key that began after all writes had ended. Values have `value_len` bytes.
    pub fn check(&self, key: u64, found: Option<&[u8]>, value_len: usize) -> Result<(), Mismatch> {
        let state = self.keys[key as usize];
        let Some(value) = found else {
            let admissible = state.absent_end >= state.last_start;
            return if admissible { Ok(()) } else { Err(Mismatch::Missing) };
        };
        let ValueOrigin { writer, sequence, .. } = self_check(key, value, value_len)?;
        let write = usize::try_from(writer).ok().and_then(|w| self.logs.get(w));
        let write = write.and_then(|log| log.writes.get(usize::try_from(sequence).ok()?));
        let end = match write {
            Some(LoggedWrite { key: k, effect: WriteEffect::Value, fate, .. }) if *k == key => {
                match fate {
                    WriteOutcome::Acknowledged(end) => *end,
                    WriteOutcome::Unknown => u64::MAX,
                    WriteOutcome::NotApplied => {
                        return Err(Mismatch::NeverWritten { writer, sequence });
                    }
                }
            }
            _ => return Err(Mismatch::NeverWritten { writer, sequence }),
        };
        if end < state.last_start {
            return Err(Mismatch::Overwritten { writer, sequence });
        }
        Ok(())
    }
}

/// Checks a value by itself: it must be whole and belong to this key.
pub fn self_check(key: u64, value: &[u8], value_len: usize) -> Result<ValueOrigin, Mismatch> {
    let origin = ValueOrigin::decode(value, value_len).map_err(|TornValue| Mismatch::Torn)?;
    if origin.key == key { Ok(origin) } else { Err(Mismatch::ForeignKey { key: origin.key }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEN: usize = 64;

    /// Builds a verifier of a history; each entry is (writer, key, effect, start, fate).
    fn verifier(writes: &[(usize, u64, WriteEffect, u64, WriteOutcome)]) -> Verifier {
        let writers = writes.iter().map(|w| w.0 + 1).max().unwrap_or(0);
        let mut logs = vec![WriteLog::default(); writers];
        for (writer, key, effect, start, fate) in writes.iter().copied() {
            logs[writer].push(LoggedWrite { key, effect, start, fate });
        }
        Verifier::new(10, logs)
    }

    fn value(key: u64, writer: u64, sequence: u64) -> Vec<u8> {
        let mut bytes = vec![0; LEN];
        ValueOrigin { key, writer, sequence }.encode(&mut bytes);
        bytes
    }

    fn check(verifier: &Verifier, writer: u64, sequence: u64) -> Result<(), Mismatch> {
        verifier.check(1, Some(&value(1, writer, sequence)), LEN)
    }

    use WriteEffect::{Absent, Value};
    use WriteOutcome::{Acknowledged as Ack, NotApplied, Unknown};

    #[test]
    fn the_last_of_one_writer_is_the_only_admissible_value() {
        let v = verifier(&[(0, 1, Value, 10, Ack(20)), (0, 1, Value, 30, Ack(40))]);
        assert_eq!(check(&v, 0, 1), Ok(()));
        assert_eq!(check(&v, 0, 0), Err(Mismatch::Overwritten { writer: 0, sequence: 0 }));
        assert_eq!(v.check(1, None, LEN), Err(Mismatch::Missing));
    }

    #[test]
    fn a_lost_update_of_another_writer_is_noticed() {
        // The key is loaded, then writer 1 updates it, but the loaded value is still there.
        let v = verifier(&[(0, 1, Value, 10, Ack(20)), (1, 1, Value, 21, Ack(30))]);
        assert_eq!(check(&v, 0, 0), Err(Mismatch::Overwritten { writer: 0, sequence: 0 }));
        assert_eq!(check(&v, 1, 0), Ok(()));
    }

    #[test]
    fn overlapping_writes_may_end_in_either_order() {
        let v = verifier(&[
            (0, 1, Value, 10, Ack(30)),
            (1, 1, Value, 20, Ack(40)),
            (2, 1, Value, 25, Ack(26)),
        ]);
        assert_eq!(check(&v, 0, 0), Ok(()));
        assert_eq!(check(&v, 1, 0), Ok(()));
        assert_eq!(check(&v, 2, 0), Ok(()));
        // A fourth write begins when two of the first three have ended; the third of them stays admissible.
        let v = verifier(&[
            (0, 1, Value, 10, Ack(30)),
            (1, 1, Value, 20, Ack(40)),
            (2, 1, Value, 25, Ack(26)),
            (3, 1, Value, 35, Ack(36)),
        ]);
        assert_eq!(check(&v, 0, 0), Err(Mismatch::Overwritten { writer: 0, sequence: 0 }));
        assert_eq!(check(&v, 2, 0), Err(Mismatch::Overwritten { writer: 2, sequence: 0 }));
        assert_eq!(check(&v, 1, 0), Ok(()));
        assert_eq!(check(&v, 3, 0), Ok(()));
    }

    #[test]
    fn an_older_value_that_came_back_is_noticed() {
        // The last two writes overlap each other, but the write whose value comes back ended before both.
        let v = verifier(&[
            (0, 1, Value, 10, Ack(20)),
            (1, 1, Value, 30, Ack(50)),
            (2, 1, Value, 40, Ack(60)),
        ]);
        assert_eq!(check(&v, 0, 0), Err(Mismatch::Overwritten { writer: 0, sequence: 0 }));
    }

    #[test]
    fn torn_and_foreign_values_are_noticed() {
        let v = verifier(&[(0, 1, Value, 10, Ack(20)), (0, 2, Value, 30, Ack(40))]);
        let mixed = [&value(1, 0, 0)[..32], &value(2, 0, 1)[32..]].concat();
        assert_eq!(v.check(1, Some(&mixed), LEN), Err(Mismatch::Torn));
        assert_eq!(v.check(1, Some(&value(1, 0, 0)[..63]), LEN), Err(Mismatch::Torn));
        let foreign = value(2, 0, 1);
        assert_eq!(v.check(1, Some(&foreign), LEN), Err(Mismatch::ForeignKey { key: 2 }));
        // The value names key 1, but the named write wrote key 2.
        let never = Err(Mismatch::NeverWritten { writer: 0, sequence: 1 });
        assert_eq!(check(&v, 0, 1), never);
    }

    #[test]
    fn values_that_nobody_wrote_are_noticed() {
        let v = verifier(&[(0, 1, Value, 10, Ack(20)), (0, 1, Value, 30, NotApplied)]);
        assert_eq!(check(&v, 0, 0), Ok(()));
        for (writer, sequence) in [(0, 1), (0, 2), (7, 0), (u64::MAX, u64::MAX)] {
            let never = Err(Mismatch::NeverWritten { writer, sequence });
            assert_eq!(check(&v, writer, sequence), never);
        }
    }

    #[test]
    fn an_unknown_outcome_stays_possible_and_excludes_nothing() {
        let v = verifier(&[
            (0, 1, Value, 10, Ack(20)),
            (1, 1, Value, 30, Unknown),
            (2, 1, Value, 22, Ack(25)),
        ]);
        assert_eq!(check(&v, 1, 0), Ok(()));
        assert_eq!(check(&v, 2, 0), Ok(()));
        assert_eq!(check(&v, 0, 0), Err(Mismatch::Overwritten { writer: 0, sequence: 0 }));
        // A newer acknowledged write does not exclude a write of unknown outcome, which can take effect late.
        let v = verifier(&[(1, 1, Value, 30, Unknown), (0, 1, Value, 90, Ack(95))]);
        assert_eq!(check(&v, 1, 0), Ok(()));
        assert_eq!(check(&v, 0, 0), Ok(()));
        assert_eq!(v.check(1, None, LEN), Err(Mismatch::Missing));
    }

    #[test]
    fn keys_are_absent_before_their_first_write_and_after_their_delete() {
        let v = verifier(&[(0, 1, Value, 10, Ack(20)), (0, 1, Absent, 30, Ack(40))]);
        assert_eq!(v.check(1, None, LEN), Ok(()));
        assert_eq!(check(&v, 0, 0), Err(Mismatch::Overwritten { writer: 0, sequence: 0 }));
        // A delete has no value, so no value can name it.
        assert_eq!(check(&v, 0, 1), Err(Mismatch::NeverWritten { writer: 0, sequence: 1 }));
        assert_eq!(v.check(2, None, LEN), Ok(()));
        // After an insert of unknown outcome, both a present and an absent key are right.
        let v = verifier(&[(0, 1, Value, 10, Unknown)]);
        assert_eq!(v.check(1, None, LEN), Ok(()));
        assert_eq!(check(&v, 0, 0), Ok(()));
        // The key is inserted again after the delete.
        let v = verifier(&[(0, 1, Absent, 30, Ack(40)), (1, 1, Value, 41, Ack(50))]);
        assert_eq!(v.check(1, None, LEN), Err(Mismatch::Missing));
        assert_eq!(check(&v, 1, 0), Ok(()));
    }
}
