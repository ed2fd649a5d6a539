//! Rules for the redundancy of pairs, and for its automatic changes.
//!
//! The redundancy of a pair is the first of these that applies: the one that the writer names, the one that the pair
//! has already, the one that the rules choose for a value of its length, the rules' default. If the pair cannot have
//! that redundancy, the *fallback* decides.
//!
//! The policy belongs to the cluster: the master reads it from its configuration, and sends it to sessions when they
//! open. No part of the protocol depends on it, so it does no harm if sessions use different policies.

use serde::{Deserialize, Serialize};

use super::redundancy::{Redundancy, RedundancyError};

/// The largest number of rules by length in a policy.
pub const MAX_RULES: usize = 8;

/// A rule for values of at least some length, and shorter than the next rule's length.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SizeRule {
    /// The length of the shortest value to which the rule applies, in bytes.
    pub from: u64,
    /// The redundancy of the values to which the rule applies.
    pub redundancy: Redundancy,
}

/// The treatment of a write whose redundancy needs more memory nodes than there are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Fallback {
    /// The write fails.
    #[default]
    Refuse,
    /// The pair is replicated. A pair that is too short for a redundancy that its writer names is replicated as well.
    Replicated,
}

/// Rules that choose the redundancy of new values by their length. By default all values are replicated. Reads need no
/// rules.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RedundancyRules {
    default: Redundancy,
    /// The rules, in ascending order of length; unused entries are at the end.
    rules: [Option<SizeRule>; MAX_RULES],
    fallback: Fallback,
}

/// The reason for which a policy is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PolicyError {
    /// There are too many rules.
    #[error("redundancy.rules has {rules} rules; it may have {MAX_RULES}")]
    TooMany {
        /// The number of rules.
        rules: usize,
    },
    /// The lengths at which the rules begin do not increase from rule to rule, so it is not clear which rule applies.
    #[error(
        "redundancy.rules[{rule}].from is {from}, and the rule before begins at {before}; each must be larger than the \
         one before"
    )]
    Order {
        /// The number of the rule, from 0.
        rule: usize,
        /// The length at which this rule begins, in bytes.
        from: u64,
        /// The length at which the previous rule begins, in bytes.
        before: u64,
    },
    /// Pairs cannot have the redundancy of a setting.
    #[error("redundancy.{field}: {error}")]
    Redundancy {
        /// The setting that names the redundancy.
        field: PolicyField,
        /// The reason why pairs cannot have the redundancy.
        error: RedundancyError,
    },
    /// The value of a setting is outside of its limits.
    #[error("redundancy.{field} is {value}; it must be {min}..={max}")]
    Limit {
        /// The name of the setting.
        field: &'static str,
        /// The value of the setting.
        value: u64,
        /// The smallest allowed value of the setting.
        min: u64,
        /// The largest allowed value of the setting.
        max: u64,
    },
}

/// A cluster's settings for redundancy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Policy {
    /// The rules for new values.
    pub rules: RedundancyRules,
    /// The demotion of EC-oriented pairs, which makes them erasure-coded. By default there is none.
    pub demotion: Option<Demotion>,
    /// The promotion of erasure-coded pairs, which become EC-oriented or replicated. By default there is none.
    pub promotion: Option<Promotion>,
}

/// The demotion of EC-oriented pairs. While memory is short, they become erasure-coded in place, those in the oldest
/// blocks first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Demotion {
    /// Memory is short while more than this percentage of the pool of any memory node is taken; 1..=99.
    pub above_percent: u8,
    /// The largest number of value bytes that each session demotes per second.
    pub bytes_per_s: u64,
}

/// The promotion of erasure-coded pairs. While memory is not short, pairs that are read often become EC-oriented or
/// replicated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Promotion {
    /// The number of reads by one session, within one window, after which a pair is promoted; 2..=10,000.
    pub after_reads: u16,
    /// The length of the window, in milliseconds. A key is promoted at most once in a window.
    pub window_ms: u32,
    /// The redundancy that promoted pairs get.
    pub to: PromotedRedundancy,
    /// The largest number of value bytes that each session promotes per second.
    pub bytes_per_s: u64,
}

/// The redundancy of promoted pairs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum PromotedRedundancy {
    /// EC-oriented with the same code; the owner of the pair's block moves the pair in place.
    #[default]
    Oriented,
    /// Promoted pairs become replicated.
    Replicated,
}

/// The largest number of reads that promotion can require.
pub const MAX_PROMOTE_AFTER: u16 = 10_000;

impl Policy {
    /// Checks a policy from a configuration or another process.
    pub fn check(&self) -> Result<(), PolicyError> {
        self.rules.check()?;
        let within = |field, value, min, max| {
            if (min..=max).contains(&value) {
                Ok(())
            } else {
                Err(PolicyError::Limit { field, value, min, max })
            }
        };
        if let Some(demotion) = self.demotion {
            within("demote-above, in percent,", demotion.above_percent.into(), 1, 99)?;
            within("demote-bytes-per-s", demotion.bytes_per_s, 1, u64::MAX)?;
        }
        if let Some(promotion) = self.promotion {
            within("promote-after", promotion.after_reads.into(), 2, MAX_PROMOTE_AFTER.into())?;
            within("promote-window-ms", promotion.window_ms.into(), 1, u32::MAX.into())?;
            within("promote-bytes-per-s", promotion.bytes_per_s, 1, u64::MAX)?;
        }
        Ok(())
    }
}

/// The numbers of sessions' automatic changes of redundancy, and of their writes that fell back to replication.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Transitions {
    /// The number of pairs that became erasure-coded by demotion.
    pub demoted_pairs: u64,
    /// The number of bytes of the demoted pairs' values.
    pub demoted_bytes: u64,
    /// The number of pairs that were promoted.
    pub promoted_pairs: u64,
    /// The number of bytes of the promoted pairs' values.
    pub promoted_bytes: u64,
    /// The number of writes that were replicated because they could not have their redundancy.
    pub fallbacks: u64,
}

impl Transitions {
    /// Adds the numbers of another process. They are untrusted, so the sums saturate instead of overflowing.
    pub fn add(&mut self, other: Transitions) {
        let add = |sum: &mut u64, more| *sum = sum.saturating_add(more);
        add(&mut self.demoted_pairs, other.demoted_pairs);
        add(&mut self.demoted_bytes, other.demoted_bytes);
        add(&mut self.promoted_pairs, other.promoted_pairs);
        add(&mut self.promoted_bytes, other.promoted_bytes);
        add(&mut self.fallbacks, other.fallbacks);
    }

    /// Returns the differences from `before`, earlier numbers of the same session.
    pub fn since(&self, before: Transitions) -> Transitions {
        Transitions {
            demoted_pairs: self.demoted_pairs.saturating_sub(before.demoted_pairs),
            demoted_bytes: self.demoted_bytes.saturating_sub(before.demoted_bytes),
            promoted_pairs: self.promoted_pairs.saturating_sub(before.promoted_pairs),
            promoted_bytes: self.promoted_bytes.saturating_sub(before.promoted_bytes),
            fallbacks: self.fallbacks.saturating_sub(before.fallbacks),
        }
    }
}

/// A setting of a policy, for error messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PolicyField {
    /// The default redundancy.
    Default,
    /// The redundancy of the rule with this number, from 0.
    Rule(usize),
}

impl core::fmt::Display for PolicyField {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            PolicyField::Default => f.write_str("default"),
            PolicyField::Rule(rule) => write!(f, "rules[{rule}].redundancy"),
        }
    }
}

impl RedundancyRules {
    /// Returns rules that replicate all values.
    pub const fn replicated() -> RedundancyRules {
        RedundancyRules {
            default: Redundancy::Replicated,
            rules: [None; MAX_RULES],
            fallback: Fallback::Refuse,
        }
    }

    /// Returns rules that give this redundancy to new values of at least this length. Pairs that cannot have it are
    /// replicated: those with values of fewer than 256 bytes for each of the k data chunks, and those with a key that
    /// is longer than an eighth of a chunk's payload. Existing pairs keep their redundancy until a writer names another
    /// one.
    ///
    /// Writes fail with [`Error::Redundancy`](crate::Error::Redundancy) if the cluster has too few memory nodes for
    /// the code, unless these rules [fall back](RedundancyRules::with_fallback).
    pub const fn from_length(min_value_bytes: usize, redundancy: Redundancy) -> RedundancyRules {
        let mut rules = RedundancyRules::replicated();
        rules.rules[0] = Some(SizeRule { from: min_value_bytes as u64, redundancy });
        rules
    }

    /// Returns rules for values of at least the given lengths, which have to increase. Values shorter than all these
    /// lengths get the default redundancy.
    pub fn new(default: Redundancy, by_size: &[SizeRule]) -> Result<RedundancyRules, PolicyError> {
        let mut rules = RedundancyRules { default, ..RedundancyRules::replicated() };
        if by_size.len() > MAX_RULES {
            return Err(PolicyError::TooMany { rules: by_size.len() });
        }
        for (place, rule) in rules.rules.iter_mut().zip(by_size) {
            *place = Some(*rule);
        }
        rules.check().map(|()| rules)
    }

    /// Returns the same rules with another fallback.
    pub const fn with_fallback(self, fallback: Fallback) -> RedundancyRules {
        RedundancyRules { fallback, ..self }
    }

    /// Checks rules from a program, a configuration or another process.
    pub fn check(&self) -> Result<(), PolicyError> {
        let possible = |field, redundancy| match redundancy {
            Redundancy::Copies(_) => {
                Err(PolicyError::Redundancy { field, error: RedundancyError::CopiesAlone })
            }
            _ => Ok(()),
        };
        possible(PolicyField::Default, self.default)?;
        let mut before = None;
        for (rule, SizeRule { from, redundancy }) in self.by_size().enumerate() {
            possible(PolicyField::Rule(rule), redundancy)?;
            if let Some(before) = before.filter(|before| *before >= from) {
                return Err(PolicyError::Order { rule, from, before });
            }
            before = Some(from);
        }
        Ok(())
    }

    /// Returns the redundancy of values that are shorter than every rule's length.
    pub fn default_redundancy(&self) -> Redundancy {
        self.default
    }

    /// Returns the rules by length, in ascending order of length.
    pub fn by_size(&self) -> impl Iterator<Item = SizeRule> {
        self.rules.into_iter().map_while(|rule| rule)
    }

    /// Returns the treatment of writes that cannot have their redundancy.
    pub fn fallback(&self) -> Fallback {
        self.fallback
    }

    /// Returns the redundancy of a new value of this length.
    #[inline]
    pub fn of(&self, value_bytes: usize) -> Redundancy {
        let bytes = value_bytes as u64;
        match self.rules[0] {
            Some(first) if bytes >= first.from => self.of_long(bytes),
            _ => self.default,
        }
    }

    #[cold]
    fn of_long(&self, bytes: u64) -> Redundancy {
        let last = self.by_size().take_while(|rule| rule.from <= bytes).last();
        last.map_or(self.default, |rule| rule.redundancy)
    }

    /// Returns the placement of a write that names no redundancy.
    #[inline]
    pub fn placement(&self, value_bytes: usize) -> Placement {
        let redundancy = self.of(value_bytes);
        let falls_back = self.fallback == Fallback::Replicated;
        let otherwise = RedundancyDemand { redundancy, falls_back_by_length: true, falls_back };
        Placement::LikeExisting { otherwise }
    }

    /// Returns the placement of a write that names this redundancy.
    pub fn exactly(&self, redundancy: Redundancy) -> Placement {
        let falls_back = self.fallback == Fallback::Replicated;
        let falls_back_by_length = falls_back;
        Placement::Exactly(RedundancyDemand { redundancy, falls_back_by_length, falls_back })
    }
}

/// The redundancy that a write gives its pair: the one that it demands, or the one of the pair that it replaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// The redundancy that the write demands.
    Exactly(RedundancyDemand),
    /// The redundancy of the existing pair, if the new value can have it.
    LikeExisting {
        /// The redundancy of a new pair, and of an existing pair whose redundancy the new value cannot have.
        otherwise: RedundancyDemand,
    },
}

impl From<Redundancy> for Placement {
    /// Demands this redundancy; if the pair cannot have it, the write fails.
    fn from(redundancy: Redundancy) -> Placement {
        let falls_back_by_length = false;
        let falls_back = false;
        Placement::Exactly(RedundancyDemand { redundancy, falls_back_by_length, falls_back })
    }
}

impl Placement {
    /// Returns the demand for a new pair.
    pub fn of_new_pair(&self) -> &RedundancyDemand {
        let (Placement::Exactly(demand) | Placement::LikeExisting { otherwise: demand }) = self;
        demand
    }

    /// Returns whether an existing pair keeps its redundancy.
    pub fn keeps_existing(&self) -> bool {
        matches!(self, Placement::LikeExisting { .. })
    }
}

/// A redundancy, and the treatment of a pair that cannot have it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RedundancyDemand {
    /// The demanded redundancy.
    pub redundancy: Redundancy,
    /// Whether, if key and value do not fit this redundancy, the pair is replicated; otherwise the write fails.
    pub falls_back_by_length: bool,
    /// Whether, if there are too few memory nodes, the pair is replicated; otherwise the write fails.
    pub falls_back: bool,
}

impl RedundancyDemand {
    /// Whether the pair is replicated after this error. Otherwise the write fails with the error.
    pub fn falls_back(&self, from: &RedundancyError) -> bool {
        match from {
            RedundancyError::TooFewNodes { .. } => self.falls_back,
            RedundancyError::ValueTooSmall { .. } | RedundancyError::KeyTooLarge { .. } => {
                self.falls_back_by_length
            }
            RedundancyError::CopiesAlone => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use alloc::string::ToString;
    use alloc::vec::Vec;

    use super::*;
    use crate::verbs::MnId;

    fn redundancy(text: &str) -> Redundancy {
        text.parse().unwrap()
    }

    fn rule(from: u64, text: &str) -> SizeRule {
        SizeRule { from, redundancy: redundancy(text) }
    }

    #[test]
    fn the_last_rule_that_a_value_is_long_enough_for_counts() {
        let by_size = [rule(100, "eor:2:2+1"), rule(1000, "ec:4+2"), rule(5000, "replicated")];
        let rules = RedundancyRules::new(redundancy("ec:2+1"), &by_size).unwrap();
        for (bytes, says) in [
            (0, "ec:2+1"),
            (99, "ec:2+1"),
            (100, "eor:2:2+1"),
            (999, "eor:2:2+1"),
            (1000, "ec:4+2"),
            (5000, "replicated"),
            (usize::MAX, "replicated"),
        ] {
            assert_eq!(rules.of(bytes), redundancy(says), "{bytes}");
        }
        assert_eq!(rules.by_size().collect::<Vec<_>>(), by_size);
        assert_eq!(RedundancyRules::default().of(usize::MAX), Redundancy::Replicated);
        assert_eq!(RedundancyRules::default(), RedundancyRules::replicated());
    }

    #[test]
    fn no_sum_of_what_others_say_is_too_large() {
        let most = u64::MAX;
        let mut sum = Transitions { demoted_pairs: 7, fallbacks: most, ..Transitions::default() };
        let demoted_pairs = most;
        let demoted_bytes = most;
        sum.add(Transitions { demoted_pairs, demoted_bytes, ..sum });
        sum.add(Transitions { promoted_pairs: 3, promoted_bytes: 4, ..sum });
        let promoted_pairs = 3;
        let promoted_bytes = 4;
        let fallbacks = most;
        let demoted_pairs = most;
        let demoted_bytes = most;
        let all =
            Transitions { demoted_pairs, demoted_bytes, promoted_pairs, promoted_bytes, fallbacks };
        assert_eq!(sum, all);
    }

    #[test]
    fn bad_rules_name_the_field_and_the_limit() {
        let says = |by_size: &[SizeRule], text: &str| {
            let error = RedundancyRules::new(Redundancy::Replicated, by_size).unwrap_err();
            assert!(error.to_string().contains(text), "{error}");
        };
        says(&[rule(1, "replicated"); 9], "redundancy.rules has 9 rules; it may have 8");
        says(
            &[rule(5, "ec:2+1"), rule(5, "ec:4+2")],
            "rules[1].from is 5, and the rule before begins",
        );
        says(&[rule(5, "ec:2+1"), rule(4, "ec:4+2")], "rules[1].from is 4");
        let copies = SizeRule { from: 0, redundancy: Redundancy::Copies(MnId(1)) };
        says(&[copies], "redundancy.rules[0].redundancy: copies are made by the store");
        let error = RedundancyRules::new(Redundancy::Copies(MnId(1)), &[]).unwrap_err();
        assert!(error.to_string().contains("redundancy.default"), "{error}");
    }

    #[test]
    fn numbers_have_limits() {
        let says = |policy: Policy, text: &str| {
            let error = policy.check().unwrap_err().to_string();
            assert!(error.contains(text), "{error}");
        };
        let demotion = |above_percent, bytes_per_s| Policy {
            demotion: Some(Demotion { above_percent, bytes_per_s }),
            ..Policy::default()
        };
        says(demotion(100, 1), "redundancy.demote-above, in percent, is 100; it must be 1..=99");
        says(demotion(85, 0), "redundancy.demote-bytes-per-s is 0; it must be 1..");
        demotion(85, 1).check().unwrap();
        let promotion = |after_reads, window_ms| Policy {
            promotion: Some(Promotion {
                after_reads,
                window_ms,
                to: PromotedRedundancy::Oriented,
                bytes_per_s: 1,
            }),
            ..Policy::default()
        };
        says(promotion(1, 1), "redundancy.promote-after is 1; it must be 2..=10000");
        says(promotion(2, 0), "redundancy.promote-window-ms is 0");
        promotion(2, 1).check().unwrap();
    }

    #[test]
    fn who_names_a_redundancy_hears_of_it_where_it_cannot_be() {
        let coding = redundancy("ec:4+2").coding().unwrap();
        let few = RedundancyError::TooFewNodes { coding, members: 3 };
        let small = RedundancyError::ValueTooSmall { coding, bytes: 1, min_bytes: 1024 };
        let refuses = RedundancyRules::from_length(0, redundancy("ec:4+2"));
        let by_rule = refuses.placement(10);
        let by_name = refuses.exactly(redundancy("ec:4+2"));
        assert!(by_rule.keeps_existing() && !by_name.keeps_existing());
        let [by_rule, by_name] = [by_rule, by_name].map(|placement| *placement.of_new_pair());
        assert!(!by_rule.falls_back(&few) && by_rule.falls_back(&small));
        assert!(!by_name.falls_back(&few) && !by_name.falls_back(&small));
        let replicates = refuses.with_fallback(Fallback::Replicated);
        let by_rule = replicates.placement(10);
        let by_name = replicates.exactly(redundancy("ec:4+2"));
        let [by_rule, by_name] = [by_rule, by_name].map(|placement| *placement.of_new_pair());
        assert!(by_rule.falls_back(&few) && by_rule.falls_back(&small));
        assert!(by_name.falls_back(&few) && by_name.falls_back(&small));
        assert!(!by_name.falls_back(&RedundancyError::CopiesAlone));
    }
}
