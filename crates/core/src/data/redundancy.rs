//! The redundancy that a writer asks for, and which pairs can have it.
//!
//! A pair has the redundancy of the region that its word leads to: nothing else says it. So it changes only
//! when the pair is written anew.

use alloc::string::{String, ToString};
use core::fmt;
use core::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::code::{Coding, CodingError};
use crate::layout::{Object, SizeClass};

/// How a pair survives failures. As text, `replicated` or `ec:K+M`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[non_exhaustive]
pub enum Redundancy {
    /// Every byte stands on as many memory nodes as the cluster's regions have replicas.
    #[default]
    Replicated,
    /// Erasure-coded: k + m memory nodes have a chunk each, any k of which make the value.
    Coded(Coding),
}

impl fmt::Display for Redundancy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Redundancy::Replicated => f.write_str("replicated"),
            Redundancy::Coded(coding) => write!(f, "ec:{}+{}", coding.k(), coding.m()),
        }
    }
}

/// Why a text is no [`Redundancy`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseRedundancyError {
    /// It has another form.
    #[error("`{0}` is no redundancy; it is `replicated`, or like `ec:4+2`")]
    Form(String),
    /// There is no such code.
    #[error(transparent)]
    Coding(#[from] CodingError),
}

impl FromStr for Redundancy {
    type Err = ParseRedundancyError;

    fn from_str(text: &str) -> Result<Redundancy, ParseRedundancyError> {
        if text == "replicated" {
            return Ok(Redundancy::Replicated);
        }
        let numbers = text.strip_prefix("ec:").and_then(|numbers| numbers.split_once('+'));
        let number = |text: &str| text.parse::<u8>().ok();
        let numbers = numbers.and_then(|(k, m)| Some((number(k)?, number(m)?)));
        let (k, m) = numbers.ok_or_else(|| ParseRedundancyError::Form(text.to_string()))?;
        Ok(Redundancy::Coded(Coding::new(k, m)?))
    }
}

/// Coded pairs have payloads of at least so many bytes: below, the headers of their chunks weigh more than the
/// copies that they save.
pub const MIN_PAYLOAD_BYTES: usize = 256;
/// The key stands in every chunk: the payload is at least so many times as long.
pub const MIN_PAYLOADS_PER_KEY: usize = 8;

/// Why a pair cannot survive failures in the way that was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RedundancyError {
    /// Each chunk needs its own memory node.
    #[error(
        "{coding} takes {} memory nodes, one for each chunk, and the cluster has {members}; start more, use \
         a smaller code, or replicate",
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
        "the value has {bytes} bytes, {coding} is for values of at least {min_bytes}; use a smaller code, or \
         replicate"
    )]
    ValueTooSmall {
        /// The erasure code.
        coding: Coding,
        /// The length of the value.
        bytes: usize,
        /// The limit.
        min_bytes: usize,
    },
    /// The key stands in every chunk.
    #[error(
        "the key has {bytes} bytes, {coding} takes keys of at most {max_bytes} with a value of this length: \
         the key stands in every chunk; use a smaller code, or replicate"
    )]
    KeyTooLarge {
        /// The erasure code.
        coding: Coding,
        /// The length of the key.
        bytes: usize,
        /// The limit.
        max_bytes: usize,
    },
}

impl Redundancy {
    /// Whether pairs of these lengths may have it.
    #[inline]
    pub fn check(self, key_bytes: usize, value_bytes: usize) -> Result<(), RedundancyError> {
        match self {
            Redundancy::Replicated => Ok(()),
            Redundancy::Coded(coding) => check_coded(coding, key_bytes, value_bytes),
        }
    }

    /// On how many places a pair of it stands, in a cluster whose regions have so many replicas.
    pub fn places(self, replicas: usize) -> usize {
        match self {
            Redundancy::Replicated => replicas,
            Redundancy::Coded(coding) => coding.chunks(),
        }
    }

    /// The size class of what stands of a pair of these lengths on each place; `None` over 15 MiB.
    pub fn class(self, key_bytes: usize, value_bytes: usize) -> Option<SizeClass> {
        match self {
            Redundancy::Replicated => Object::class(key_bytes, value_bytes),
            Redundancy::Coded(coding) => coding.class(key_bytes, value_bytes),
        }
    }
}

#[cold]
fn check_coded(
    coding: Coding,
    key_bytes: usize,
    value_bytes: usize,
) -> Result<(), RedundancyError> {
    let min_bytes = coding.k() * MIN_PAYLOAD_BYTES;
    if value_bytes < min_bytes {
        return Err(RedundancyError::ValueTooSmall { coding, bytes: value_bytes, min_bytes });
    }
    let max_bytes = coding.payload_bytes(value_bytes) / MIN_PAYLOADS_PER_KEY;
    if key_bytes > max_bytes {
        return Err(RedundancyError::KeyTooLarge { coding, bytes: key_bytes, max_bytes });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redundancies_are_written_as_they_are_read() {
        for text in ["replicated", "ec:4+2", "ec:2+1", "ec:12+4"] {
            assert_eq!(text.parse::<Redundancy>().unwrap().to_string(), text);
        }
        for text in ["", "ec", "ec:4", "ec:4+", "ec:+2", "ec:4+2 ", "EC:4+2", "ec:4+-2", "ec:4+256"]
        {
            let error = text.parse::<Redundancy>().unwrap_err();
            assert_eq!(error, ParseRedundancyError::Form(text.into()));
        }
        let error = "ec:1+1".parse::<Redundancy>().unwrap_err();
        assert_eq!(error, ParseRedundancyError::Coding(CodingError { k: 1, m: 1 }));
    }
}
