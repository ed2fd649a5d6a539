//! The store under test, and a thread's access to it.
//!
//! Workers ([`crate::worker`]), phases and verification use every store through these traits alone: FUSEE, and FUSEE
//! with a redundancy of its own for every write ([`crate::redundant`]).
//!
//! Calls are resolved at compile time, and FUSEE's own futures are returned unchanged, except that errors of reads are
//! converted. Therefore driving FUSEE through the traits costs as much as driving its sessions.

use std::fmt::Display;
use std::future::Future;

use fusee_client::{BlockingClient, CacheStats, FabricKind, FailedWriteOutcome, Stats, WriteError};
use fusee_linearizability::HistoryAnswer;

/// A store, as its clients see it.
pub trait BenchStore: Sync {
    /// A thread's access to the store.
    type Session: BenchSession;

    /// Opens a session for the thread that calls this.
    fn open(&self) -> Result<Self::Session, <Self::Session as BenchSession>::Error>;
}

/// A thread's access to a store. As many operations are under way as futures are polled on it.
pub trait BenchSession {
    /// The error of an operation.
    type Error: OperationError;

    /// Runs operations to their end.
    fn block_on<T>(&self, operations: impl Future<Output = T>) -> T;

    /// Reads a key, and returns the result of `found`. `found` gets the key's value, borrowed from the buffer into
    /// which it was read, or `None` if the key does not exist.
    fn get_with<R>(
        &self,
        key: &[u8],
        found: impl FnOnce(Option<&[u8]>) -> R,
    ) -> impl Future<Output = Result<R, Self::Error>>;

    /// Adds a key that does not exist.
    fn insert(&self, key: &[u8], value: &[u8]) -> impl Future<Output = Result<(), Self::Error>>;

    /// Replaces the value of a key that exists.
    fn update(&self, key: &[u8], value: &[u8]) -> impl Future<Output = Result<(), Self::Error>>;

    /// Removes a key that exists.
    fn delete(&self, key: &[u8]) -> impl Future<Output = Result<(), Self::Error>>;

    /// Returns whether an operation can end without having waited. If so, the workers of a session have to yield to
    /// each other.
    fn is_immediate(&self) -> bool;

    /// Returns the costs of this session's operations, as far as the store counts them.
    fn stats(&self) -> Stats {
        Stats::default()
    }

    /// Returns the counts of accesses to this session's index cache, if it has one.
    fn cache_stats(&self) -> CacheStats {
        CacheStats::default()
    }
}

/// The error of an operation, with what benchmarks need to count and to judge it.
pub trait OperationError: Display {
    /// Returns a short name of the error, for counting.
    fn kind(&self) -> &'static str;

    /// Returns the store's answer if the error is a right answer: that the key exists already, or that it does not
    /// exist.
    fn answer(&self) -> Option<HistoryAnswer>;

    /// Returns whether the failed write has possibly taken effect, or still can.
    fn may_have_effect(&self) -> bool;

    /// Returns whether the operation failed because the store is full. A store that looks for room first can take long
    /// to report this.
    fn is_full(&self) -> bool;
}

impl BenchStore for BlockingClient {
    type Session = fusee_client::Session;

    fn open(&self) -> Result<fusee_client::Session, WriteError> {
        Ok(self.session()?)
    }
}

impl BenchSession for fusee_client::Session {
    type Error = WriteError;

    fn block_on<T>(&self, operations: impl Future<Output = T>) -> T {
        self.block_on(operations)
    }

    async fn get_with<R>(
        &self,
        key: &[u8],
        found: impl FnOnce(Option<&[u8]>) -> R,
    ) -> Result<R, WriteError> {
        Ok(self.get_with(key, found).await?)
    }

    fn insert(&self, key: &[u8], value: &[u8]) -> impl Future<Output = Result<(), WriteError>> {
        self.insert(key, value)
    }

    fn update(&self, key: &[u8], value: &[u8]) -> impl Future<Output = Result<(), WriteError>> {
        self.update(key, value)
    }

    fn delete(&self, key: &[u8]) -> impl Future<Output = Result<(), WriteError>> {
        self.delete(key)
    }

    fn is_immediate(&self) -> bool {
        // Over a network every operation waits, and other operations run meanwhile.
        self.fabric() == FabricKind::Shm
    }

    fn stats(&self) -> Stats {
        self.stats()
    }

    fn cache_stats(&self) -> CacheStats {
        self.cache_stats()
    }
}

impl OperationError for WriteError {
    fn kind(&self) -> &'static str {
        match self {
            WriteError::NotFound => "not_found",
            WriteError::AlreadyExists => "already_exists",
            WriteError::KeyEmpty => "key_empty",
            WriteError::KeyTooLarge { .. } => "key_too_large",
            WriteError::ValueTooLarge { .. } => "value_too_large",
            WriteError::OutOfMemory => "out_of_memory",
            WriteError::Degraded { .. } => "degraded",
            WriteError::IndexFull => "index_full",
            WriteError::KeysHashAlike => "keys_hash_alike",
            WriteError::Unreachable { .. } => "unreachable",
            WriteError::GaveUp { .. } => "gave_up",
            WriteError::Corrupt { .. } => "corrupt",
            WriteError::Interrupted { .. } => "interrupted",
            WriteError::Expelled { .. } => "expelled",
            WriteError::Allocation { .. } => "allocation",
            WriteError::NoSession { .. } => "no_session",
            _ => "other",
        }
    }

    fn answer(&self) -> Option<HistoryAnswer> {
        match self {
            WriteError::AlreadyExists => Some(HistoryAnswer::Exists),
            WriteError::NotFound => Some(HistoryAnswer::Absent),
            _ => None,
        }
    }

    fn may_have_effect(&self) -> bool {
        match self {
            WriteError::Unreachable { outcome, .. }
            | WriteError::GaveUp { outcome, .. }
            | WriteError::Expelled { outcome } => *outcome == FailedWriteOutcome::Unknown,
            WriteError::NotFound
            | WriteError::AlreadyExists
            | WriteError::KeyEmpty
            | WriteError::KeyTooLarge { .. }
            | WriteError::ValueTooLarge { .. }
            | WriteError::OutOfMemory
            | WriteError::Degraded { .. }
            | WriteError::IndexFull
            | WriteError::KeysHashAlike
            | WriteError::Allocation { .. }
            | WriteError::NoSession { .. } => false,
            _ => true,
        }
    }

    fn is_full(&self) -> bool {
        matches!(
            self,
            WriteError::OutOfMemory | WriteError::Degraded { .. } | WriteError::IndexFull
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_writes_without_any_effect_are_excluded() {
        let unknown = WriteError::GaveUp { waiting_for: "x", outcome: FailedWriteOutcome::Unknown };
        let none = WriteError::GaveUp { waiting_for: "x", outcome: FailedWriteOutcome::NotApplied };
        assert!(unknown.may_have_effect() && !none.may_have_effect());
        assert!(WriteError::Interrupted { what: "x" }.may_have_effect());
        assert!(!WriteError::OutOfMemory.may_have_effect() && WriteError::OutOfMemory.is_full());
    }
}
