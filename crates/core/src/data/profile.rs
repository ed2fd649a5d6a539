//! Profiles: the redundancy that a writer asks for, and which pairs can have it.

use serde::{Deserialize, Serialize};

use crate::code::Coding;
use crate::layout::{Object, SizeClass};

/// What a writer asks for: how a pair is to survive failures.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[non_exhaustive]
pub enum Profile {
    /// Every byte stands on as many memory nodes as the cluster's regions have replicas.
    #[default]
    Replicated,
    /// Erasure-coded.
    Coded(Coding),
}

/// Coded pairs have payloads of at least so many bytes: below, the headers of their chunks weigh more than the
/// copies that they save.
pub const MIN_PAYLOAD_BYTES: usize = 256;
/// The key stands in every chunk: it has at most one of so many parts of the payload's length.
pub const MAX_KEY_PART: usize = 8;

/// Why a pair cannot survive failures in the way that was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProfileError {
    /// Each chunk needs its own memory node.
    #[error(
        "{coding} takes {} memory nodes, one for each chunk, and the cluster has {members}; start more, or \
         take another profile",
        coding.chunks()
    )]
    TooFewNodes {
        /// The erasure code.
        coding: Coding,
        /// The memory nodes that there are.
        members: usize,
    },
    /// Chunks would be mostly headers.
    #[error(
        "the value has {bytes} bytes, {coding} is for values of at least {least}; take another profile for \
         it"
    )]
    ValueTooSmall {
        /// The erasure code.
        coding: Coding,
        /// Its length.
        bytes: usize,
        /// The limit.
        least: usize,
    },
    /// The key stands in every chunk.
    #[error(
        "the key has {bytes} bytes, at most {most} with a value of this length by {coding}: it stands in \
         every chunk; take another profile for it"
    )]
    KeyTooLong {
        /// The erasure code.
        coding: Coding,
        /// Its length.
        bytes: usize,
        /// The limit.
        most: usize,
    },
}

impl Profile {
    /// Whether pairs of these lengths may have it.
    #[inline]
    pub fn check(self, key_bytes: usize, value_bytes: usize) -> Result<(), ProfileError> {
        match self {
            Profile::Replicated => Ok(()),
            Profile::Coded(coding) => check_coded(coding, key_bytes, value_bytes),
        }
    }

    /// On how many places a pair of it stands, in a cluster whose regions have so many replicas.
    pub fn places(self, replicas: usize) -> usize {
        match self {
            Profile::Replicated => replicas,
            Profile::Coded(coding) => coding.chunks(),
        }
    }

    /// The size class of what stands of a pair of these lengths on each place; `None` over 15 MiB.
    pub fn class(self, key_bytes: usize, value_bytes: usize) -> Option<SizeClass> {
        match self {
            Profile::Replicated => Object::class(key_bytes, value_bytes),
            Profile::Coded(coding) => coding.class(key_bytes, value_bytes),
        }
    }
}

#[cold]
fn check_coded(coding: Coding, key_bytes: usize, value_bytes: usize) -> Result<(), ProfileError> {
    let least = coding.k() * MIN_PAYLOAD_BYTES;
    let most = coding.payload_bytes(value_bytes) / MAX_KEY_PART;
    if value_bytes < least {
        return Err(ProfileError::ValueTooSmall { coding, bytes: value_bytes, least });
    }
    if key_bytes > most {
        return Err(ProfileError::KeyTooLong { coding, bytes: key_bytes, most });
    }
    Ok(())
}
