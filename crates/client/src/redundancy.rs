//! Which redundancy a value is written with, if the program does not say.

use fusee_core::data::Redundancy;

/// Rules for the redundancy of what a client writes, by the length of the value. Default: all of it is
/// replicated. Reads need no rules.
///
/// ```
/// use fusee_client::{Options, RedundancyRules};
///
/// // Values of 16 KiB and more stand on six memory nodes, any four of which make the value.
/// let rules = RedundancyRules::from_length(16 << 10, "ec:4+2".parse()?);
/// let options = Options::default().with_redundancy(rules);
/// # Ok::<(), fusee_client::ParseRedundancyError>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RedundancyRules {
    long: Option<Rule>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Rule {
    redundancy: Redundancy,
    min_value_bytes: usize,
}

impl RedundancyRules {
    /// Everything is replicated.
    pub const fn replicated() -> RedundancyRules {
        RedundancyRules { long: None }
    }

    /// Values of so many bytes and more get this redundancy. Of these, those that cannot have it are replicated all the
    /// same: values under 256 k bytes, and pairs whose key is over an eighth of what a memory node gets of the value.
    /// Pairs that exist change their redundancy when they are written anew, or on
    /// request ([`Client::set_redundancy`](crate::Client::set_redundancy)).
    ///
    /// Writes fail with [`Error::Redundancy`](crate::Error::Redundancy) where the cluster has too few memory
    /// nodes for the code.
    pub const fn from_length(min_value_bytes: usize, redundancy: Redundancy) -> RedundancyRules {
        RedundancyRules { long: Some(Rule { redundancy, min_value_bytes }) }
    }

    #[inline]
    pub(crate) fn of(&self, key: &[u8], value: &[u8]) -> Redundancy {
        match self.long {
            Some(Rule { redundancy, min_value_bytes }) if value.len() >= min_value_bytes => {
                if redundancy.check(key.len(), value.len()).is_ok() {
                    redundancy
                } else {
                    Redundancy::Replicated
                }
            }
            _ => Redundancy::Replicated,
        }
    }
}
