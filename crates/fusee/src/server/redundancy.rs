//! The cluster's policy for redundancy as people write it: the table `[redundancy]` of a master's file, and rules on
//! the command line.

use std::str::FromStr;

use fusee_cli::failure::Failure;
use fusee_cli::quantity::Bytes;
use fusee_client::{
    Demotion, Fallback, Policy, Promoted, Promotion, Redundancy, RedundancyRules, SizeRule,
};
use serde::{Deserialize, Deserializer};

/// Bytes a second, unless the table says otherwise.
const BYTES_PER_S: u64 = 16 << 20;
const PROMOTE_WINDOW_MS: u32 = 10_000;

/// The table `[redundancy]`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub struct Table {
    default: Named,
    rules: Vec<Line>,
    fallback: By,
    demote_above: Option<f64>,
    demote_bytes_per_s: Option<Bytes>,
    promote_after: Option<u16>,
    promote_window_ms: Option<u32>,
    promote_to: To,
    promote_bytes_per_s: Option<Bytes>,
}

/// A rule.
#[derive(Clone, Copy, Debug, Deserialize)]
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

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum By {
    #[default]
    Refuse,
    Replicated,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum To {
    #[default]
    Eor,
    Replicated,
}

/// Rules on the command line: `ec:4+2`, `16KiB=ec:4+2`, or several of these, separated by commas.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rules {
    default: Redundancy,
    by_size: Vec<SizeRule>,
}

impl FromStr for Rules {
    type Err = String;

    fn from_str(text: &str) -> Result<Rules, String> {
        let mut rules = Rules { default: Redundancy::default(), by_size: Vec::new() };
        let redundancy = |text: &str| {
            let found = text.trim().parse::<Redundancy>();
            found.map_err(|error| format!("{error}; write rules like `16KiB=ec:4+2`"))
        };
        for (number, rule) in text.split(',').enumerate() {
            match rule.split_once('=') {
                Some((from, text)) => {
                    let Bytes(from) = from.parse()?;
                    rules.by_size.push(SizeRule { from, redundancy: redundancy(text)? });
                }
                None if number == 0 => rules.default = redundancy(rule)?,
                None => {
                    return Err(format!("`{rule}` has no length; write it like `16KiB={rule}`"));
                }
            }
        }
        Ok(rules)
    }
}

/// What a file and the command line say together: rules there replace those of the file.
pub fn policy(table: Option<Table>, rules: Option<Rules>) -> Result<Policy, Failure> {
    let table = table.unwrap_or_default();
    let Rules { default, by_size } = rules.unwrap_or_else(|| {
        let rule = |line: &Line| SizeRule { from: line.from.0, redundancy: line.redundancy.0 };
        Rules { default: table.default.0, by_size: table.rules.iter().map(rule).collect() }
    });
    let rules = RedundancyRules::new(default, &by_size).map_err(usage)?;
    let rules = rules.with_fallback(match table.fallback {
        By::Refuse => Fallback::Refuse,
        By::Replicated => Fallback::Replicated,
    });
    let bytes_per_s = |given: Option<Bytes>| given.map_or(BYTES_PER_S, |bytes| bytes.0);
    let demotion = table.demote_above.map(|above| {
        if !(0.01..=0.99).contains(&above) {
            let text = format!("redundancy.demote-above is {above}; it must be 0.01..=0.99");
            return Err(Failure::usage(text));
        }
        let above_percent = (above * 100.0).round() as u8;
        Ok(Demotion { above_percent, bytes_per_s: bytes_per_s(table.demote_bytes_per_s) })
    });
    let promotion = table.promote_after.map(|after_reads| Promotion {
        after_reads,
        window_ms: table.promote_window_ms.unwrap_or(PROMOTE_WINDOW_MS),
        to: match table.promote_to {
            To::Eor => Promoted::Oriented,
            To::Replicated => Promoted::Replicated,
        },
        bytes_per_s: bytes_per_s(table.promote_bytes_per_s),
    });
    let policy = Policy { rules, demotion: demotion.transpose()?, promotion };
    policy.check().map_err(usage)?;
    Ok(policy)
}

fn usage(error: impl ToString) -> Failure {
    Failure::usage(error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let table = toml::from_str(text).map_err(|error| error.to_string())?;
        policy(Some(table), None).map_err(|error| error.to_string())
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
        assert_eq!(only("demote-above = 0.5").demotion.unwrap().bytes_per_s, BYTES_PER_S);
        let promotion = only("promote-after = 2").promotion.unwrap();
        assert_eq!((promotion.window_ms, promotion.to), (PROMOTE_WINDOW_MS, Promoted::Oriented));
    }

    #[test]
    fn bad_tables_name_the_field_and_the_limit() {
        for (text, says) in [
            ("default = \"raid\"", "`raid` is no redundancy"),
            ("default = \"ec:1+1\"", "ec:1+1"),
            ("fallback = \"ask\"", "`refuse` or `replicated`"),
            ("demote-above = 1.0", "redundancy.demote-above is 1; it must be 0.01..=0.99"),
            ("demote-above = nan", "demote-above is NaN"),
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
        let rules: Rules = "eor:2:2+1,16KiB=ec:4+2,1MiB=replicated".parse().unwrap();
        let policy = policy(Some(toml::from_str(WHOLE).unwrap()), Some(rules)).unwrap();
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
            let error = text.parse::<Rules>().unwrap_err();
            assert!(error.contains(says), "{text}: {error}");
        }
    }
}
