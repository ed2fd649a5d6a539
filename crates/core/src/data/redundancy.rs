//! The redundancy that a writer demands, and its limits.
//!
//! A pair has the redundancy of the region that its slot word leads to; the redundancy is stored nowhere else. So it
//! changes only when the pair is written again.

use alloc::string::{String, ToString};
use core::fmt;
use core::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::erasure::{Coding, CodingError};
use crate::layout::{MAX_COPIES, Object, SizeClass};
use crate::verbs::MnId;

/// The way in which a pair survives failures. Its text is `replicated`, `ec:K+M`, `eor:R:K+M` or `none`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[non_exhaustive]
pub enum Redundancy {
    /// Every byte is on as many memory nodes as the cluster's regions have replicas.
    #[default]
    Replicated,
    /// Erasure-coded: each of k + m memory nodes has one chunk, and any k chunks restore the value.
    Coded(Coding),
    /// EC-oriented replication: the replicas are laid out such that the pair can become erasure-coded cheaply.
    Oriented(Orientation),
    /// Copies of EC-oriented pairs on one memory node, which are lost with that node. It is a redundancy of regions
    /// only, not of pairs.
    Copies(MnId),
    /// No redundancy: one memory node has the whole pair. When that node is lost, the key does not exist any more.
    None,
}

/// EOR(r, k), which can become EC(k, m). One replica is made of the data chunks of the stripe, on k memory nodes; the
/// other replicas are copies elsewhere. Room for the parity chunks is reserved from the beginning.
///
/// Each of the r - 1 copies is on the node of a different parity chunk, so r - 1 is at most m. The addresses of the
/// copies are in the data chunks, one of which has to be left when r - 1 nodes are lost, so r is at most k.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "(u8, Coding)", into = "(u8, Coding)")]
pub struct Orientation {
    replicas: u8,
    coding: Coding,
}

/// The reason for which there is no EOR(r, k) that can become EC(k, m).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OrientationError {
    /// With this number of replicas, objects have no room for the addresses of all copies, or there is no second
    /// replica.
    #[error(
        "no EC-oriented replication has {replicas} replicas: it has {LEAST_REPLICAS} to {MOST_REPLICAS}; use one of \
         these, or `replicated`"
    )]
    Replicas {
        /// The number of replicas of EOR(r, k).
        replicas: u8,
    },
    /// There are fewer parity chunks than copies. Each copy needs the node of a different parity chunk.
    #[error(
        "{replicas} EC-oriented replicas take a code with at least {} parity chunks, each for a copy, and {coding} \
         has {}; use such a code, or fewer replicas",
        replicas - 1,
        coding.m()
    )]
    TooLittleParity {
        /// The number of replicas of EOR(r, k).
        replicas: u8,
        /// The erasure code to which the pair could change.
        coding: Coding,
    },
    /// The loss of r - 1 nodes could take all data chunks, and with them the addresses of the copies.
    #[error(
        "{replicas} EC-oriented replicas take a code with at least {replicas} data chunks, as only these tell where \
         the copies are, and {coding} has {}; use such a code, or fewer replicas",
        coding.k()
    )]
    TooFewDataChunks {
        /// The number of replicas of EOR(r, k).
        replicas: u8,
        /// The erasure code to which the pair could change.
        coding: Coding,
    },
}

/// The smallest and the largest number of replicas of EC-oriented pairs; the data chunks are one replica.
const LEAST_REPLICAS: u8 = 2;
const MOST_REPLICAS: u8 = 1 + MAX_COPIES as u8;

impl Orientation {
    /// Returns EOR(r, k) for this number of replicas and this code.
    pub fn new(replicas: u8, coding: Coding) -> Result<Orientation, OrientationError> {
        let k = coding.k();
        let m = coding.m();
        let all = usize::from(replicas);
        let copies = usize::from(replicas.saturating_sub(1));
        match replicas {
            LEAST_REPLICAS..=MOST_REPLICAS if copies > m => {
                Err(OrientationError::TooLittleParity { replicas, coding })
            }
            LEAST_REPLICAS..=MOST_REPLICAS if all > k => {
                Err(OrientationError::TooFewDataChunks { replicas, coding })
            }
            LEAST_REPLICAS..=MOST_REPLICAS => Ok(Orientation { replicas, coding }),
            _ => Err(OrientationError::Replicas { replicas }),
        }
    }

    /// Returns r, the number of replicas; the pair survives the loss of r - 1 memory nodes.
    pub const fn replicas(self) -> usize {
        self.replicas as usize
    }

    /// Returns the number of copies in addition to the data chunks.
    pub const fn copies(self) -> usize {
        self.replicas() - 1
    }

    /// Returns the code of the stripe, to which the pair can change.
    pub const fn coding(self) -> Coding {
        self.coding
    }
}

impl TryFrom<(u8, Coding)> for Orientation {
    type Error = OrientationError;

    fn try_from(parts: (u8, Coding)) -> Result<Orientation, OrientationError> {
        let (replicas, coding) = parts;
        Orientation::new(replicas, coding)
    }
}

impl From<Orientation> for (u8, Coding) {
    fn from(orientation: Orientation) -> (u8, Coding) {
        (orientation.replicas, orientation.coding)
    }
}

impl fmt::Display for Redundancy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Redundancy::Replicated => f.write_str("replicated"),
            Redundancy::Coded(coding) => write!(f, "ec:{}+{}", coding.k(), coding.m()),
            Redundancy::Oriented(Orientation { replicas, coding }) => {
                write!(f, "eor:{replicas}:{}+{}", coding.k(), coding.m())
            }
            Redundancy::Copies(node) => write!(f, "copies on {node}"),
            Redundancy::None => f.write_str("none"),
        }
    }
}

/// The reason for which a text is not a [`Redundancy`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseRedundancyError {
    /// The text has none of the forms of a redundancy.
    #[error("`{0}` is no redundancy; it is `replicated`, `none`, or like `ec:4+2` or `eor:2:4+2`")]
    Form(String),
    /// There is no such erasure code.
    #[error(transparent)]
    Coding(#[from] CodingError),
    /// There is no such EC-oriented replication.
    #[error(transparent)]
    Orientation(#[from] OrientationError),
}

impl FromStr for Redundancy {
    type Err = ParseRedundancyError;

    fn from_str(text: &str) -> Result<Redundancy, ParseRedundancyError> {
        match text {
            "replicated" => return Ok(Redundancy::Replicated),
            "none" => return Ok(Redundancy::None),
            _ => {}
        }
        let form = || ParseRedundancyError::Form(text.to_string());
        let number = |text: &str| text.parse::<u8>().ok();
        let coding = |text: &str| {
            let numbers = text.split_once('+');
            let numbers = numbers.and_then(|(k, m)| Some((number(k)?, number(m)?)));
            let (k, m) = numbers.ok_or_else(form)?;
            Ok::<Coding, ParseRedundancyError>(Coding::new(k, m)?)
        };
        if let Some(text) = text.strip_prefix("ec:") {
            return Ok(Redundancy::Coded(coding(text)?));
        }
        let oriented = text.strip_prefix("eor:").and_then(|text| text.split_once(':'));
        let (replicas, text) = oriented.ok_or_else(form)?;
        let replicas = number(replicas).ok_or_else(form)?;
        Ok(Redundancy::Oriented(Orientation::new(replicas, coding(text)?)?))
    }
}

/// The smallest payload of a chunk, in bytes. With smaller payloads, the headers of chunks would cost more than coding
/// saves.
pub const MIN_PAYLOAD_BYTES: usize = 256;
/// The smallest ratio of a chunk's payload to the key, which every chunk contains.
pub const MIN_PAYLOADS_PER_KEY: usize = 8;

/// The reason for which a pair cannot have a redundancy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RedundancyError {
    /// The cluster has too few memory nodes, because each chunk needs a different node.
    #[error(
        "{coding} takes {} memory nodes, one for each chunk, and the cluster has {members}; start more, use \
         a smaller code, or replicate",
        coding.chunks()
    )]
    TooFewNodes {
        /// The erasure code for which there are too few memory nodes.
        coding: Coding,
        /// The number of memory nodes that the cluster has.
        members: usize,
    },
    /// The value is so small that chunks would consist mostly of headers.
    #[error(
        "the value has {bytes} bytes, {coding} is for values of at least {min_bytes}; use a smaller code, or \
         replicate"
    )]
    ValueTooSmall {
        /// The erasure code for which the value is too small.
        coding: Coding,
        /// The length of the value, in bytes.
        bytes: usize,
        /// The smallest allowed length of the value, in bytes.
        min_bytes: usize,
    },
    /// No pair can consist of copies alone; only the store makes copies.
    #[error("copies are made by the store, and no pair can have them alone; use `eor:R:K+M`")]
    CopiesAlone,
    /// The key is too large, because every chunk contains the key.
    #[error(
        "the key has {bytes} bytes, {coding} takes keys of at most {max_bytes} with a value of this length: \
         the key stands in every chunk; use a smaller code, or replicate"
    )]
    KeyTooLarge {
        /// The erasure code for which the key is too large.
        coding: Coding,
        /// The length of the key, in bytes.
        bytes: usize,
        /// The largest allowed length of the key, in bytes.
        max_bytes: usize,
    },
}

impl Redundancy {
    /// Whether this is replication. Cheaper than a comparison, which also compares the fields of other variants.
    #[inline]
    pub fn is_replicated(self) -> bool {
        matches!(self, Redundancy::Replicated)
    }

    /// Checks whether pairs with keys and values of these lengths can have this redundancy.
    #[inline]
    pub fn check(self, key_bytes: usize, value_bytes: usize) -> Result<(), RedundancyError> {
        match self {
            Redundancy::Replicated | Redundancy::None => Ok(()),
            Redundancy::Coded(coding) => check_coded(coding, key_bytes, value_bytes),
            Redundancy::Oriented(of) => check_coded(of.coding, key_bytes, value_bytes),
            Redundancy::Copies(_) => Err(RedundancyError::CopiesAlone),
        }
    }

    /// Returns the erasure code that pairs of this redundancy have, or are laid out for.
    pub fn coding(self) -> Option<Coding> {
        match self {
            Redundancy::Replicated | Redundancy::Copies(_) | Redundancy::None => None,
            Redundancy::Coded(coding) => Some(coding),
            Redundancy::Oriented(of) => Some(of.coding),
        }
    }

    /// Returns the number of places of a pair, in a cluster whose regions have `replicas` replicas. For an EC-oriented
    /// pair it counts only the places of the stripe.
    pub fn places(self, replicas: usize) -> usize {
        match self {
            Redundancy::Replicated => replicas,
            Redundancy::Coded(coding) => coding.chunks(),
            Redundancy::Oriented(of) => of.coding.chunks(),
            Redundancy::Copies(_) | Redundancy::None => 1,
        }
    }

    /// Returns the bytes of memory that a pair with a key and value of these lengths takes on all its places, in a
    /// cluster whose regions have `replicas` replicas; `None` if the pair is too long.
    pub fn memory_bytes(
        self,
        key_bytes: usize,
        value_bytes: usize,
        replicas: usize,
    ) -> Option<u64> {
        let of_places = self.class(key_bytes, value_bytes)?.bytes() * self.places(replicas) as u64;
        let of_copies = match self {
            Redundancy::Oriented(of) => {
                Object::class(key_bytes, value_bytes)?.bytes() * (of.replicas() as u64 - 1)
            }
            _ => 0,
        };
        Some(of_places + of_copies)
    }

    /// Returns the size class of each replica or chunk of a pair of these lengths; `None` over [`SizeClass::MAX`].
    pub fn class(self, key_bytes: usize, value_bytes: usize) -> Option<SizeClass> {
        match self.coding() {
            None => Object::class(key_bytes, value_bytes),
            Some(coding) => coding.class(key_bytes, value_bytes),
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
        let codes = ["ec:4+2", "ec:2+1", "ec:12+4", "eor:2:4+2", "eor:3:3+2"];
        for text in ["replicated", "none"].into_iter().chain(codes) {
            assert_eq!(text.parse::<Redundancy>().unwrap().to_string(), text);
        }
        let others = ["eor:4+2", "eor:2:4", "eor::4+2", "eor:x:4+2", "copies on mn1"];
        let codes =
            ["", "ec", "ec:4", "ec:4+", "ec:+2", "ec:4+2 ", "EC:4+2", "ec:4+-2", "ec:4+256"];
        for text in codes.into_iter().chain(others) {
            let error = text.parse::<Redundancy>().unwrap_err();
            assert_eq!(error, ParseRedundancyError::Form(text.into()));
        }
        let error = "ec:1+1".parse::<Redundancy>().unwrap_err();
        assert_eq!(error, ParseRedundancyError::Coding(CodingError { k: 1, m: 1 }));
        let refused = |text: &str| match text.parse::<Redundancy>().unwrap_err() {
            ParseRedundancyError::Orientation(error) => (error, error.to_string()),
            other => panic!("{text}: {other}"),
        };
        for (text, replicas) in [("eor:0:4+2", 0), ("eor:1:4+2", 1), ("eor:4:4+4", 4)] {
            let (error, text) = refused(text);
            assert_eq!(error, OrientationError::Replicas { replicas });
            assert!(text.contains("2 to 3"), "{text}");
        }
        let of = |k, m| Coding::new(k, m).unwrap();
        let (error, text) = refused("eor:3:4+1");
        assert_eq!(error, OrientationError::TooLittleParity { replicas: 3, coding: of(4, 1) });
        assert!(text.contains("at least 2 parity chunks"), "{text}");
        let (error, text) = refused("eor:3:2+2");
        assert_eq!(error, OrientationError::TooFewDataChunks { replicas: 3, coding: of(2, 2) });
        assert!(text.contains("at least 3 data chunks"), "{text}");
    }
}
