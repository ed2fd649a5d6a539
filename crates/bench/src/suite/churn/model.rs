//! The expected state of every key: the version that was acknowledged last, and the version that was begun last.
//!
//! A value names its key, its writer and its *version*. No key has two writers at one time, so two numbers per key
//! suffice: the last *acknowledged* version and the last *begun* version; version 0 means that the key does not exist.
//! A reader takes the acknowledged version before its read, and the begun version after it. The version that the read
//! returns must be one of these two, or between them: an older version was overwritten, a newer version was never
//! written. A log of all writes, as other benchmarks keep it, would take more memory here than the pairs themselves.
//!
//! * A write of unknown outcome leaves the two versions apart: both are right until the next write is acknowledged.
//! * A write without effect takes back the version that it has begun.

use std::sync::atomic::{AtomicU32, Ordering};

use fusee_client::WriteError;

use crate::store::OperationError;
use crate::value::ValueOrigin;
use crate::verify::{Mismatch, self_check};

/// The version of a key that does not exist.
pub const ABSENT: u32 = 0;

#[derive(Debug, Default)]
struct KeyVersions {
    acknowledged: AtomicU32,
    begun: AtomicU32,
}

/// The states of all keys.
#[derive(Debug)]
pub struct ChurnModel {
    keys: Vec<KeyVersions>,
}

// All accesses are sequentially consistent: if a read returned a version, every thread sees that this version was
// begun.
const ORDER: Ordering = Ordering::SeqCst;

impl ChurnModel {
    /// Returns the states of keys `0..keys`, none of which exists.
    pub fn new(keys: u64) -> ChurnModel {
        ChurnModel { keys: (0..keys).map(|_| KeyVersions::default()).collect() }
    }

    /// Returns the number of keys.
    pub fn len(&self) -> u64 {
        self.keys.len() as u64
    }

    fn key(&self, key: u64) -> &KeyVersions {
        &self.keys[key as usize]
    }

    /// Returns the last acknowledged version of a key.
    pub fn acknowledged(&self, key: u64) -> u32 {
        self.key(key).acknowledged.load(ORDER)
    }

    /// Returns whether the key certainly exists.
    pub fn is_present(&self, key: u64) -> bool {
        let KeyVersions { acknowledged, begun } = self.key(key);
        acknowledged.load(ORDER) != ABSENT && begun.load(ORDER) != ABSENT
    }

    /// Notes that a write of this version begins.
    pub fn begin(&self, key: u64, version: u32) {
        self.key(key).begun.store(version, ORDER);
    }

    /// Notes that the write of this version has ended.
    pub fn end(&self, key: u64, version: u32, result: &Result<(), WriteError>) {
        let key = self.key(key);
        match result {
            Ok(()) => key.acknowledged.store(version, ORDER),
            Err(error) if error.may_have_effect() => {}
            Err(_) => key.begun.store(key.acknowledged.load(ORDER), ORDER),
        }
    }

    /// Checks a read that has just ended; `before` was the acknowledged version when the read began.
    pub fn check(
        &self,
        key: u64,
        before: u32,
        found: Option<&[u8]>,
        value_len: usize,
    ) -> Result<(), Mismatch> {
        let begun = self.key(key).begun.load(ORDER);
        let Some(value) = found else {
            let may_be_absent = before == ABSENT || begun == ABSENT;
            return if may_be_absent { Ok(()) } else { Err(Mismatch::Missing) };
        };
        let ValueOrigin { writer, sequence, .. } = self_check(key, value, value_len)?;
        let version = u32::try_from(sequence).unwrap_or(ABSENT);
        if version != ABSENT && is_admissible(version, before, begun) {
            return Ok(());
        }
        if version == ABSENT || version > before.max(begun) {
            Err(Mismatch::NeverWritten { writer, sequence })
        } else {
            Err(Mismatch::Overwritten { writer, sequence })
        }
    }
}

fn is_admissible(version: u32, before: u32, begun: u32) -> bool {
    let between = before != ABSENT && before < version && version < begun;
    version == before || version == begun || between
}

#[cfg(test)]
mod tests {
    use fusee_core::error::FailedWriteOutcome;

    use super::*;

    const LEN: usize = 48;

    fn value(key: u64, version: u64) -> Vec<u8> {
        let mut bytes = vec![0; LEN];
        ValueOrigin { key, writer: 7, sequence: version }.encode(&mut bytes);
        bytes
    }

    fn write(model: &ChurnModel, version: u32, result: &Result<(), WriteError>) {
        model.begin(0, version);
        model.end(0, version, result);
    }

    fn check(model: &ChurnModel, before: u32, version: u64) -> Result<(), Mismatch> {
        model.check(0, before, Some(&value(0, version)), LEN)
    }

    fn unknown() -> Result<(), WriteError> {
        Err(WriteError::GaveUp { waiting_for: "a test", outcome: FailedWriteOutcome::Unknown })
    }

    #[test]
    fn only_the_last_acknowledged_version_is_right() {
        let model = ChurnModel::new(1);
        assert_eq!(model.check(0, ABSENT, None, LEN), Ok(()));
        write(&model, 1, &Ok(()));
        write(&model, 2, &Ok(()));
        let old = Mismatch::Overwritten { writer: 7, sequence: 1 };
        assert_eq!((check(&model, 2, 2), check(&model, 2, 1)), (Ok(()), Err(old)));
        for never in [0, 3, u64::MAX] {
            let never_written = Mismatch::NeverWritten { writer: 7, sequence: never };
            assert_eq!(check(&model, 2, never), Err(never_written));
        }
        assert_eq!(model.check(0, 2, None, LEN), Err(Mismatch::Missing));
        assert_eq!(
            model.check(0, 2, Some(&value(1, 2)), LEN),
            Err(Mismatch::ForeignKey { key: 1 })
        );
        let cut = &value(0, 2)[..LEN - 1];
        assert_eq!(model.check(0, 2, Some(cut), LEN), Err(Mismatch::Torn));
    }

    #[test]
    fn who_reads_while_somebody_writes_may_see_either() {
        let model = ChurnModel::new(1);
        write(&model, 4, &Ok(()));
        model.begin(0, 5);
        assert_eq!((check(&model, 4, 4), check(&model, 4, 5)), (Ok(()), Ok(())));
        assert!(check(&model, 4, 3).is_err() && check(&model, 4, 6).is_err());
    }

    #[test]
    fn a_deleted_key_is_gone_and_its_value_does_not_come_back() {
        let model = ChurnModel::new(1);
        write(&model, 1, &Ok(()));
        write(&model, ABSENT, &Ok(()));
        assert!(!model.is_present(0));
        assert_eq!(model.check(0, ABSENT, None, LEN), Ok(()));
        assert!(check(&model, ABSENT, 1).is_err());
        write(&model, 2, &Ok(()));
        assert!(model.is_present(0) && check(&model, 2, 1).is_err());
        assert_eq!(check(&model, 2, 2), Ok(()));
    }

    #[test]
    fn failed_writes_leave_what_was_and_unknown_ones_leave_both() {
        let model = ChurnModel::new(1);
        write(&model, 1, &Ok(()));
        write(&model, 2, &Err(WriteError::OutOfMemory));
        assert!(check(&model, 1, 1).is_ok() && check(&model, 1, 2).is_err());
        write(&model, 3, &unknown());
        assert!(check(&model, 1, 1).is_ok() && check(&model, 1, 3).is_ok());
        write(&model, ABSENT, &unknown());
        assert!(!model.is_present(0));
        assert!(check(&model, 1, 1).is_ok() && model.check(0, 1, None, LEN).is_ok());
        write(&model, 4, &Ok(()));
        assert!(check(&model, 4, 4).is_ok() && check(&model, 4, 3).is_err());
    }
}
