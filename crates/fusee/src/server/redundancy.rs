//! The cluster's policy for redundancy in the form that operators write: the table `[redundancy]` of a master's file,
//! and rules on the command line.

use std::str::FromStr;

use fusee_cli::quantity::ByteSize;
use fusee_client::{
    Demotion, Fallback, Policy, PromotedRedundancy, Promotion, Redundancy, RedundancyRules,
    SizeRule,
};
use fusee_core::data::PolicyError;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Default rate limit of demotion and of promotion, in bytes per second.
const BYTES_PER_S: ByteSize = ByteSize(16 << 20);
const PROMOTE_WINDOW_MS: u32 = 10_000;

/// The table `[redundancy]`. Missing settings have defaults.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub struct RedundancyTable {
    default: Option<RedundancyName>,
    rules: Option<Vec<RedundancyTableRule>>,
    fallback: Option<FallbackSetting>,
    demote_above: Option<MemoryShare>,
    demote_bytes_per_s: Option<ByteSize>,
    promote_after: Option<u16>,
    promote_window_ms: Option<u32>,
    promote_to: Option<PromotionSetting>,
    promote_bytes_per_s: Option<ByteSize>,
}

/// A rule for the redundancy of values from some length on.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RedundancyTableRule {
    from: ByteSize,
    redundancy: RedundancyName,
}

/// A redundancy, as text like `ec:4+2`.
#[derive(Clone, Copy, Debug, Default)]
struct RedundancyName(Redundancy);

impl<'de> Deserialize<'de> for RedundancyName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<RedundancyName, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map(RedundancyName).map_err(serde::de::Error::custom)
    }
}

impl Serialize for RedundancyName {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&self.0)
    }
}

/// A share of memory, from 0.01 to 0.99.
#[derive(Clone, Copy, Debug, Serialize)]
struct MemoryShare(f64);

impl<'de> Deserialize<'de> for MemoryShare {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<MemoryShare, D::Error> {
        let share = f64::deserialize(deserializer)?;
        if (0.01..=0.99).contains(&share) {
            Ok(MemoryShare(share))
        } else {
            Err(serde::de::Error::custom(format!("it is {share}, and must be 0.01..=0.99")))
        }
    }
}

#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum FallbackSetting {
    #[default]
    Refuse,
    Replicated,
}

#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum PromotionSetting {
    #[default]
    Eor,
    Replicated,
}

/// Parses rules of the command line: `ec:4+2`, `16KiB=ec:4+2`, or several of these, separated by commas. The rules set
/// the redundancy of values by length, and no other setting of the table.
impl FromStr for RedundancyTable {
    type Err = String;

    fn from_str(text: &str) -> Result<RedundancyTable, String> {
        let mut default = RedundancyName::default();
        let mut rules = Vec::new();
        let redundancy = |text: &str| {
            let found = text.trim().parse::<Redundancy>();
            found
                .map(RedundancyName)
                .map_err(|error| format!("{error}; write rules like `16KiB=ec:4+2`"))
        };
        for (number, rule) in text.split(',').enumerate() {
            match rule.split_once('=') {
                Some((from, text)) => {
                    rules.push(RedundancyTableRule {
                        from: from.parse()?,
                        redundancy: redundancy(text)?,
                    });
                }
                None if number == 0 => default = redundancy(rule)?,
                None => {
                    return Err(format!("`{rule}` has no length; write it like `16KiB={rule}`"));
                }
            }
        }
        Ok(RedundancyTable {
            default: Some(default),
            rules: Some(rules),
            ..RedundancyTable::default()
        })
    }
}

impl RedundancyTable {
    /// Sets missing settings to their defaults. Without `demote-above` no pair is demoted, and without `promote-after`
    /// none is promoted.
    pub fn filled(self) -> RedundancyTable {
        RedundancyTable {
            default: Some(self.default.unwrap_or_default()),
            rules: Some(self.rules.unwrap_or_default()),
            fallback: Some(self.fallback.unwrap_or_default()),
            demote_above: self.demote_above,
            demote_bytes_per_s: Some(self.demote_bytes_per_s.unwrap_or(BYTES_PER_S)),
            promote_after: self.promote_after,
            promote_window_ms: Some(self.promote_window_ms.unwrap_or(PROMOTE_WINDOW_MS)),
            promote_to: Some(self.promote_to.unwrap_or_default()),
            promote_bytes_per_s: Some(self.promote_bytes_per_s.unwrap_or(BYTES_PER_S)),
        }
    }

    /// Returns the policy that the table describes.
    pub fn policy(&self) -> Result<Policy, PolicyError> {
        let rule = |line: &RedundancyTableRule| SizeRule {
            from: line.from.0,
            redundancy: line.redundancy.0,
        };
        let by_size: Vec<SizeRule> = self.rules.iter().flatten().map(rule).collect();
        let rules = RedundancyRules::new(self.default.unwrap_or_default().0, &by_size)?;
        let rules = rules.with_fallback(match self.fallback.unwrap_or_default() {
            FallbackSetting::Refuse => Fallback::Refuse,
            FallbackSetting::Replicated => Fallback::Replicated,
        });
        let bytes_per_s = |given: Option<ByteSize>| given.unwrap_or(BYTES_PER_S).0;
        let demotion = self.demote_above.map(|MemoryShare(above)| Demotion {
            above_percent: (above * 100.0).round() as u8,
            bytes_per_s: bytes_per_s(self.demote_bytes_per_s),
        });
        let promotion = self.promote_after.map(|after_reads| Promotion {
            after_reads,
            window_ms: self.promote_window_ms.unwrap_or(PROMOTE_WINDOW_MS),
            to: match self.promote_to.unwrap_or_default() {
                PromotionSetting::Eor => PromotedRedundancy::Oriented,
                PromotionSetting::Replicated => PromotedRedundancy::Replicated,
            },
            bytes_per_s: bytes_per_s(self.promote_bytes_per_s),
        });
        let policy = Policy { rules, demotion, promotion };
        policy.check().map(|()| policy)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::settings::merge_settings;

    const WHOLE: &str = r#"
        default = "replicated"
        fallback = "replicated"
        demote-above = 0.85
        demote-bytes-per-s = "32MiB"
        promote-after = 8
        promote-window-ms = 1000
        promote-to = "replicated"
        promote-bytes-per-s = 1_000_000

        [[rules]]
        from = "4KiB"
        redundancy = "eor:2:4+2"

        [[rules]]
        from = 65_536
        redundancy = "ec:4+2"
    "#;

    fn table(text: &str) -> Result<Policy, String> {
        let table: RedundancyTable = toml::from_str(text).map_err(|error| error.to_string())?;
        table.policy().map_err(|error| error.to_string())
    }

    #[test]
    fn a_table_is_a_policy() {
        let policy = table(WHOLE).unwrap();
        for (bytes, says) in [(4095, "replicated"), (4096, "eor:2:4+2"), (65_536, "ec:4+2")] {
            assert_eq!(policy.rules.of(bytes).to_string(), says);
        }
        assert_eq!(policy.rules.fallback(), Fallback::Replicated);
        assert_eq!(policy.demotion, Some(Demotion { above_percent: 85, bytes_per_s: 32 << 20 }));
        let promotion = Promotion {
            after_reads: 8,
            window_ms: 1000,
            to: PromotedRedundancy::Replicated,
            bytes_per_s: 1_000_000,
        };
        assert_eq!(policy.promotion, Some(promotion));
        assert_eq!(table(""), Ok(Policy::default()));
        let only = |text: &str| table(text).unwrap();
        assert_eq!(only("demote-above = 0.5").demotion.unwrap().bytes_per_s, BYTES_PER_S.0);
        let promotion = only("promote-after = 2").promotion.unwrap();
        assert_eq!(
            (promotion.window_ms, promotion.to),
            (PROMOTE_WINDOW_MS, PromotedRedundancy::Oriented)
        );
    }

    #[test]
    fn bad_tables_name_the_field_and_the_limit() {
        for (text, says) in [
            ("default = \"raid\"", "`raid` is no redundancy"),
            ("default = \"ec:1+1\"", "ec:1+1"),
            ("fallback = \"ask\"", "`refuse` or `replicated`"),
            ("demote-above = 1.0", "it is 1, and must be 0.01..=0.99"),
            ("demote-above = nan", "it is NaN, and must be"),
            (
                "demote-above = 0.5\ndemote-bytes-per-s = 0",
                "demote-bytes-per-s is 0; it must be 1..",
            ),
            ("promote-after = 1", "promote-after is 1; it must be 2..=10000"),
            ("promote-after = 2\npromote-window-ms = 0", "promote-window-ms is 0"),
            ("promote = 1", "unknown field `promote`"),
            ("[[rules]]\nfrom = 5", "missing field `redundancy`"),
            ("[[rules]]\nfrom = 5\nto = 7\nredundancy = \"ec:2+1\"", "unknown field `to`"),
            (
                "[[rules]]\nfrom = \"2KiB\"\nredundancy = \"ec:2+1\"\n\
                 [[rules]]\nfrom = 2048\nredundancy = \"ec:4+2\"",
                "redundancy.rules[1].from is 2048, and the rule before begins at 2048",
            ),
        ] {
            let error = table(text).unwrap_err();
            assert!(error.contains(says), "{text}: {error}");
        }
    }

    #[test]
    fn rules_on_the_command_line_replace_those_of_the_file() {
        let rules: RedundancyTable = "eor:2:2+1,16KiB=ec:4+2,1MiB=replicated".parse().unwrap();
        let file: RedundancyTable = toml::from_str(WHOLE).unwrap();
        let policy = merge_settings(&file, &rules).policy().unwrap();
        for (bytes, says) in [(0, "eor:2:2+1"), (16_384, "ec:4+2"), (1 << 20, "replicated")] {
            assert_eq!(policy.rules.of(bytes).to_string(), says);
        }
        assert!(policy.demotion.is_some(), "the rest of the table stays");
        for (text, says) in [
            ("", "is no redundancy"),
            ("16KiB", "is no redundancy"),
            ("ec:4+2,ec:2+1", "`ec:2+1` has no length; write it like `16KiB=ec:2+1`"),
            ("x=ec:4+2", "no number of bytes"),
        ] {
            let error = text.parse::<RedundancyTable>().unwrap_err();
            assert!(error.contains(says), "{text}: {error}");
        }
    }
}
