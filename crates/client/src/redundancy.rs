//! Which redundancy a value is written with, if the program does not say.

use fusee_core::code::Coding;
use fusee_core::data::Redundancy;

/// Rules for the redundancy of what a client writes, by the length of the value. Default: all of it is
/// replicated. Reads need no rules.
///
/// ```
/// use fusee_client::{Coding, Options, RedundancyRules};
///
/// // Values of 16 KiB and more stand on six memory nodes, any four of which make the value.
/// let rules = RedundancyRules::coded_from(Coding::new(4, 2)?, 16 << 10);
/// let options = Options::default().with_redundancy(rules);
/// # Ok::<(), fusee_client::CodingError>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RedundancyRules {
    coded: Option<Rule>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Rule {
    coding: Coding,
    min_value_bytes: usize,
}

impl RedundancyRules {
    /// Everything is replicated.
    pub const fn replicated() -> RedundancyRules {
        RedundancyRules { coded: None }
    }

    /// Values of so many bytes and more are erasure-coded, on k + m memory nodes. Of these, values under 256 k
    /// bytes are replicated all the same, and so are pairs whose key is over an eighth of what a memory node
    /// gets of the value. Pairs that exist change their redundancy when they are written anew, or on
    /// request ([`Client::set_redundancy`](crate::Client::set_redundancy)).
    ///
    /// Writes fail with [`Error::Redundancy`](crate::Error::Redundancy) where the cluster has too few memory
    /// nodes for the code.
    pub const fn coded_from(coding: Coding, min_value_bytes: usize) -> RedundancyRules {
        RedundancyRules { coded: Some(Rule { coding, min_value_bytes }) }
    }

    #[inline]
    pub(crate) fn of(&self, key: &[u8], value: &[u8]) -> Redundancy {
        match self.coded {
            Some(Rule { coding, min_value_bytes }) if value.len() >= min_value_bytes => {
                let coded = Redundancy::Coded(coding);
                if coded.check(key.len(), value.len()).is_ok() {
                    coded
                } else {
                    Redundancy::Replicated
                }
            }
            _ => Redundancy::Replicated,
        }
    }
}
