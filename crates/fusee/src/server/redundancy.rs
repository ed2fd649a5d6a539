//! The cluster's policy for redundancy as operators write it: the table `[redundancy]` of a master's file, and
//! rules on the command line.

use std::str::FromStr;

use fusee_cli::quantity::Bytes;
use fusee_client::{
    Demotion, Fallback, Policy, Promoted, Promotion, Redundancy, RedundancyRules, SizeRule,
};
use fusee_core::data::PolicyError;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Default rate limits, in bytes a second.
const BYTES_PER_S: Bytes = Bytes(16 << 20);
const PROMOTE_WINDOW_MS: u32 = 10_000;

/// The table `[redundancy]`. Missing entries have defaults.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub struct Table {
    default: Option<Named>,
    rules: Option<Vec<Line>>,
    fallback: Option<By>,
    demote_above: Option<Share>,
    demote_bytes_per_s: Option<Bytes>,
    promote_after: Option<u16>,
    promote_window_ms: Option<u32>,
    promote_to: Option<To>,
    promote_bytes_per_s: Option<Bytes>,
}

/// A rule.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    from: Bytes,
    redundancy: Named,
}

/// A redundancy by its name.
#[derive(Clone, Copy, Debug, Default)]
struct Named(Redundancy);

impl<'de> Deserialize<'de> for Named {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Named, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map(Named).map_err(serde::de::Error::custom)
    }
}

impl Serialize for Named {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&self.0)
    }
}

/// A share of memory.
#[derive(Clone, Copy, Debug, Serialize)]
struct Share(f64);

impl<'de> Deserialize<'de> for Share {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Share, D::Error> {
        let share = f64::deserialize(deserializer)?;
        if (0.01..=0.99).contains(&share) {
            Ok(Share(share))
        } else {
            Err(serde::de::Error::custom(format!("it is {share}, and must be 0.01..=0.99")))
        }
    }
}

#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum By {
    #[default]
    Refuse,
    Replicated,
}

#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum To {
    #[default]
    Eor,
    Replicated,
}

/// Parses rules of the command line: `ec:4+2`, `16KiB=ec:4+2`, or several of these, separated by commas. They
/// set the redundancy of values by length, and nothing else.
impl FromStr for Table {
    type Err = String;

    fn from_str(text: &str) -> Result<Table, String> {
        let mut default = Named::default();
        let mut rules = Vec::new();
        let redundancy = |text: &str| {
            let found = text.trim().parse::<Redundancy>();
            found.map(Named).map_err(|error| format!("{error}; write rules like `16KiB=ec:4+2`"))
        };
        for (number, rule) in text.split(',').enumerate() {
            match rule.split_once('=') {
                Some((from, text)) => {
                    rules.push(Line { from: from.parse()?, redundancy: redundancy(text)? });
                }
                None if number == 0 => default = redundancy(rule)?,
                None => {
                    return Err(format!("`{rule}` has no length; write it like `16KiB={rule}`"));
                }
            }
        }
        Ok(Table { default: Some(default), rules: Some(rules), ..Table::default() })
    }
}

impl Table {
    /// Fills in all defaults. Without `demote-above` nothing is demoted, and without `promote-after` nothing promoted.
    pub fn filled(self) -> Table {
        Table {
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
        let rule = |line: &Line| SizeRule { from: line.from.0, redundancy: line.redundancy.0 };
        let by_size: Vec<SizeRule> = self.rules.iter().flatten().map(rule).collect();
        let rules = RedundancyRules::new(self.default.unwrap_or_default().0, &by_size)?;
        let rules = rules.with_fallback(match self.fallback.unwrap_or_default() {
            By::Refuse => Fallback::Refuse,
            By::Replicated => Fallback::Replicated,
        });
        let bytes_per_s = |given: Option<Bytes>| given.unwrap_or(BYTES_PER_S).0;
        let demotion = self.demote_above.map(|Share(above)| Demotion {
            above_percent: (above * 100.0).round() as u8,
            bytes_per_s: bytes_per_s(self.demote_bytes_per_s),
        });
        let promotion = self.promote_after.map(|after_reads| Promotion {
            after_reads,
            window_ms: self.promote_window_ms.unwrap_or(PROMOTE_WINDOW_MS),
            to: match self.promote_to.unwrap_or_default() {
                To::Eor => Promoted::Oriented,
                To::Replicated => Promoted::Replicated,
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
    use crate::server::settings::laid;

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
        let table: Table = toml::from_str(text).map_err(|error| error.to_string())?;
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
            to: Promoted::Replicated,
            bytes_per_s: 1_000_000,
        };
        assert_eq!(policy.promotion, Some(promotion));
        assert_eq!(table(""), Ok(Policy::default()));
        let only = |text: &str| table(text).unwrap();
        assert_eq!(only("demote-above = 0.5").demotion.unwrap().bytes_per_s, BYTES_PER_S.0);
        let promotion = only("promote-after = 2").promotion.unwrap();
        assert_eq!((promotion.window_ms, promotion.to), (PROMOTE_WINDOW_MS, Promoted::Oriented));
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
        let rules: Table = "eor:2:2+1,16KiB=ec:4+2,1MiB=replicated".parse().unwrap();
        let file: Table = toml::from_str(WHOLE).unwrap();
        let policy = laid(&file, &rules).policy().unwrap();
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
            let error = text.parse::<Table>().unwrap_err();
            assert!(error.contains(says), "{text}: {error}");
        }
    }
}
