//! Errors of operations on the peers other than FUSEE.

use std::io;

use fusee_linearizability::HistoryAnswer;

use crate::store::OperationError;

/// The reason for which an operation failed.
#[derive(Debug, thiserror::Error)]
pub enum PeerError {
    /// An insert found that the key exists.
    #[error("the key exists already")]
    Exists,
    /// An update or delete did not find the key.
    #[error("the key does not exist")]
    Absent,
    /// The connection to the server broke, or an answer does not have the expected form.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// An error of LMDB.
    #[error("LMDB: {0}")]
    Lmdb(#[from] heed::Error),
}

impl OperationError for PeerError {
    fn kind(&self) -> &'static str {
        match self {
            PeerError::Exists => "already_exists",
            PeerError::Absent => "not_found",
            PeerError::Io(_) => "io",
            PeerError::Lmdb(_) => "lmdb",
        }
    }

    fn answer(&self) -> Option<HistoryAnswer> {
        match self {
            PeerError::Exists => Some(HistoryAnswer::Exists),
            PeerError::Absent => Some(HistoryAnswer::Absent),
            PeerError::Io(_) | PeerError::Lmdb(_) => None,
        }
    }

    fn may_have_effect(&self) -> bool {
        self.answer().is_none()
    }

    fn is_full(&self) -> bool {
        matches!(self, PeerError::Lmdb(heed::Error::Mdb(heed::MdbError::MapFull)))
    }
}
