//! The cluster's policy for redundancy, and the transitions that sessions have made according to it.

use std::fmt::Write as _;

use fusee_cli::quantity::{ByteSize, count_with_noun};
use fusee_client::{Fallback, Policy, PromotedRedundancy, Transitions};
use serde::Serialize;

/// The policy, in the terms of the configuration file.
#[derive(Debug, Serialize)]
pub struct PolicyReport {
    pub default: String,
    pub rules: Vec<RuleReport>,
    /// Treatment of a write whose redundancy is impossible: `refuse` or `replicated`.
    pub fallback: &'static str,
    /// Share of used memory from which pairs are demoted; `None` if they are never demoted automatically.
    pub demote_above: Option<f64>,
    pub demote_bytes_per_s: Option<u64>,
    /// Number of reads after which a pair is promoted; `None` if pairs are never promoted automatically.
    pub promote_after: Option<u16>,
    pub promote_window_ms: Option<u32>,
    /// Redundancy of promoted pairs: `eor` or `replicated`.
    pub promote_to: Option<&'static str>,
    pub promote_bytes_per_s: Option<u64>,
}

/// A rule of the policy for the redundancy of values from some length on.
#[derive(Debug, Serialize)]
pub struct RuleReport {
    pub from: u64,
    pub redundancy: String,
}

/// Transitions that sessions have made since the master started.
#[derive(Debug, Serialize)]
pub struct TransitionReport {
    pub demoted_pairs: u64,
    pub demoted_bytes: u64,
    pub promoted_pairs: u64,
    pub promoted_bytes: u64,
    /// Number of writes that were replicated because their redundancy was impossible.
    pub fallbacks: u64,
}

impl From<&Policy> for PolicyReport {
    fn from(policy: &Policy) -> PolicyReport {
        let Policy { rules, demotion, promotion } = policy;
        let rule = |rule: fusee_client::SizeRule| RuleReport {
            from: rule.from,
            redundancy: rule.redundancy.to_string(),
        };
        PolicyReport {
            default: rules.default_redundancy().to_string(),
            rules: rules.by_size().map(rule).collect(),
            fallback: match rules.fallback() {
                Fallback::Refuse => "refuse",
                Fallback::Replicated => "replicated",
            },
            demote_above: demotion.map(|demotion| f64::from(demotion.above_percent) / 100.0),
            demote_bytes_per_s: demotion.map(|demotion| demotion.bytes_per_s),
            promote_after: promotion.map(|promotion| promotion.after_reads),
            promote_window_ms: promotion.map(|promotion| promotion.window_ms),
            promote_to: promotion.map(|promotion| match promotion.to {
                PromotedRedundancy::Oriented => "eor",
                PromotedRedundancy::Replicated => "replicated",
            }),
            promote_bytes_per_s: promotion.map(|promotion| promotion.bytes_per_s),
        }
    }
}

impl From<Transitions> for TransitionReport {
    fn from(of: Transitions) -> TransitionReport {
        let Transitions { demoted_pairs, demoted_bytes, promoted_pairs, promoted_bytes, fallbacks } =
            of;
        TransitionReport { demoted_pairs, demoted_bytes, promoted_pairs, promoted_bytes, fallbacks }
    }
}

/// Adds the policy as text, unless all values are replicated and no transition has happened.
pub fn show(text: &mut String, policy: &PolicyReport, transitions: &TransitionReport) {
    let bytes = |bytes: u64| ByteSize(bytes).to_string();
    let says_more = policy.demote_above.is_some() || policy.promote_after.is_some();
    if !policy.rules.is_empty() || policy.default != "replicated" || says_more {
        let _ = write!(text, "redundancy: {}", policy.default);
        for RuleReport { from, redundancy } in &policy.rules {
            let _ = write!(text, ", from {} on {redundancy}", bytes(*from));
        }
        let _ = writeln!(text, "; fallback: {}", policy.fallback);
    }
    if let (Some(above), Some(rate)) = (policy.demote_above, policy.demote_bytes_per_s) {
        let _ = writeln!(
            text,
            "demotion: where more than {:.0} % of a pool is taken, {} a second and session",
            above * 100.0,
            bytes(rate)
        );
    }
    if let (Some(after), Some(window), Some(to), Some(rate)) = (
        policy.promote_after,
        policy.promote_window_ms,
        policy.promote_to,
        policy.promote_bytes_per_s,
    ) {
        let _ = writeln!(
            text,
            "promotion: after {after} reads in {window} ms to {to}, {} a second and session",
            bytes(rate)
        );
    }
    let TransitionReport {
        demoted_pairs,
        demoted_bytes,
        promoted_pairs,
        promoted_bytes,
        fallbacks,
    } = *transitions;
    if demoted_pairs + promoted_pairs + fallbacks > 0 {
        let _ = writeln!(
            text,
            "{} ({}) demoted, {} ({}) promoted, {} replicated instead",
            count_with_noun(demoted_pairs, "pair"),
            bytes(demoted_bytes),
            count_with_noun(promoted_pairs, "pair"),
            bytes(promoted_bytes),
            count_with_noun(fallbacks, "write")
        );
    }
}

#[cfg(test)]
mod tests {
    use fusee_client::{Demotion, Promotion, RedundancyRules};

    use super::*;

    #[test]
    fn a_policy_is_shown_if_there_is_one() {
        let shown = |policy: &Policy, transitions: Transitions| {
            let mut text = String::new();
            show(&mut text, &policy.into(), &transitions.into());
            text
        };
        assert_eq!(shown(&Policy::default(), Transitions::default()), "");
        let policy = Policy {
            rules: RedundancyRules::from_length(16 << 10, "ec:4+2".parse().unwrap()),
            demotion: Some(Demotion { above_percent: 85, bytes_per_s: 1 << 20 }),
            promotion: Some(Promotion {
                after_reads: 8,
                window_ms: 1000,
                to: PromotedRedundancy::Oriented,
                bytes_per_s: 1 << 20,
            }),
        };
        let transitions = Transitions {
            demoted_pairs: 1,
            demoted_bytes: 2048,
            fallbacks: 2,
            ..Transitions::default()
        };
        let text = shown(&policy, transitions);
        for says in [
            "redundancy: replicated, from 16.0 KiB on ec:4+2; fallback: refuse\n",
            "demotion: where more than 85 % of a pool is taken, 1.0 MiB a second",
            "promotion: after 8 reads in 1000 ms to eor",
            "1 pair (2.0 KiB) demoted, 0 pairs (0 B) promoted, 2 writes replicated instead",
        ] {
            assert!(text.contains(says), "{text}");
        }
    }
}
