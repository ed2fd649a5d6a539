//! Numbers of bytes with units: `512`, `64KiB`, `1.5GiB`, `2GB`.
//!
//! `K`, `M`, `G`, `T` and their `Ki...` forms are powers of 1024, as is usual for memory; `KB`, `MB`, `GB`, `TB` are
//! powers of 1000. Case does not matter.

use std::fmt;
use std::str::FromStr;

pub use fusee_control::count_with_noun;
use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

/// A number of bytes. Serde serializes it as a plain number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct ByteSize(pub u64);

const UNITS: [(&str, u64); 13] = [
    ("kib", 1 << 10),
    ("mib", 1 << 20),
    ("gib", 1 << 30),
    ("tib", 1 << 40),
    ("kb", 1000),
    ("mb", 1_000_000),
    ("gb", 1_000_000_000),
    ("tb", 1_000_000_000_000),
    ("k", 1 << 10),
    ("m", 1 << 20),
    ("g", 1 << 30),
    ("t", 1 << 40),
    ("b", 1),
];

impl FromStr for ByteSize {
    type Err = String;

    fn from_str(text: &str) -> Result<ByteSize, String> {
        let wrong = || format!("`{text}` is no number of bytes; write it like 512MiB or 1.5GiB");
        let lower = text.trim().to_ascii_lowercase();
        let unit = UNITS.iter().find(|(suffix, _)| lower.ends_with(suffix));
        let (suffix, factor) = unit.copied().unwrap_or(("", 1));
        let number = lower[..lower.len() - suffix.len()].trim_end();
        if let Ok(whole) = number.parse::<u64>() {
            return whole.checked_mul(factor).map(ByteSize).ok_or_else(wrong);
        }
        let valid = number.bytes().all(|b| b.is_ascii_digit() || b == b'.');
        let fraction: f64 = number.parse().map_err(|_| wrong())?;
        let bytes = fraction * factor as f64;
        // The conversion of larger numbers would be inexact, and no machine has so much memory.
        if valid && bytes < (1u64 << 63) as f64 { Ok(ByteSize(bytes as u64)) } else { Err(wrong()) }
    }
}

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = self.0 as f64;
        for (unit, name) in [(1u64 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB")] {
            if self.0 >= unit {
                return write!(f, "{:.1} {name}", bytes / unit as f64);
            }
        }
        if self.0 >= 1 << 10 {
            return write!(f, "{:.1} KiB", bytes / 1024.0);
        }
        write!(f, "{} B", self.0)
    }
}

/// Formats a number of bytes exactly, in the largest unit that divides it, as in a file of settings.
pub fn exact(bytes: u64) -> String {
    let units = [(1u64 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
    let whole = units.into_iter().find(|(unit, _)| bytes > 0 && bytes.is_multiple_of(*unit));
    whole.map_or(bytes.to_string(), |(unit, name)| format!("{}{name}", bytes / unit))
}

impl<'de> Deserialize<'de> for ByteSize {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<ByteSize, D::Error> {
        deserializer.deserialize_any(ByteSizeVisitor)
    }
}

/// A visitor that accepts a number, or text with a unit.
struct ByteSizeVisitor;

impl Visitor<'_> for ByteSizeVisitor {
    type Value = ByteSize;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a number of bytes, like 1048576 or \"512MiB\"")
    }

    fn visit_u64<E>(self, bytes: u64) -> Result<ByteSize, E> {
        Ok(ByteSize(bytes))
    }

    fn visit_i64<E: de::Error>(self, bytes: i64) -> Result<ByteSize, E> {
        let number = u64::try_from(bytes).map(ByteSize);
        number.map_err(|_| E::invalid_value(de::Unexpected::Signed(bytes), &self))
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<ByteSize, E> {
        text.parse().map_err(E::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_are_understood() {
        let cases = [
            ("0", 0),
            ("512", 512),
            ("64k", 64 << 10),
            ("64KiB", 64 << 10),
            ("1.5GiB", 3 << 29),
            ("2GB", 2_000_000_000),
            (" 3 MiB ", 3 << 20),
            ("7b", 7),
        ];
        for (text, bytes) in cases {
            assert_eq!(text.parse(), Ok(ByteSize(bytes)), "{text}");
        }
        for text in ["", "GiB", "x", "-1", "1e3", "inf", "nan", "1..2", "99999999999999T", "é"] {
            assert!(text.parse::<ByteSize>().is_err(), "{text}");
        }
    }

    #[test]
    fn quantities_are_shown_short() {
        assert_eq!(ByteSize(100).to_string(), "100 B");
        assert_eq!(ByteSize(1536).to_string(), "1.5 KiB");
        assert_eq!(ByteSize(1 << 30).to_string(), "1.0 GiB");
    }

    #[test]
    fn exact_quantities_come_back() {
        for (bytes, text) in [(0, "0"), (3 << 20, "3MiB"), (1025, "1025"), (1 << 40, "1TiB")] {
            assert_eq!((exact(bytes), text.parse()), (text.into(), Ok(ByteSize(bytes))));
        }
    }

    proptest::proptest! {
        #[test]
        fn whole_numbers_come_back_in_every_unit(number: u64, unit in 0..UNITS.len(), upper: bool) {
            let (suffix, factor) = UNITS[unit];
            // The loop tests the largest multiple of the unit that is not above the drawn number, so that 64 bits can
            // hold it. The line after the loop tests the quotient without a unit.
            let number = number / factor;
            let unit = if upper { suffix.to_uppercase() } else { suffix.to_owned() };
            for text in [format!("{number}{unit}"), format!(" {number} {unit} ")] {
                proptest::prop_assert_eq!(text.parse(), Ok(ByteSize(number * factor)), "{}", text);
            }
            proptest::prop_assert_eq!(number.to_string().parse(), Ok(ByteSize(number)));
            let too_many = format!("{}{unit}", u128::from(u64::MAX / factor) + 1);
            proptest::prop_assert!(factor == 1 || too_many.parse::<ByteSize>().is_err());
        }

        // Promise SEC-2
        #[test]
        fn any_text_is_a_number_of_bytes_or_an_error(
            text in proptest::prop_oneof!["\\PC{0,20}", "[0-9.eE+-]{0,9} ?[kKmMgGtTiIbB]{0,3}"]
        ) {
            if let Ok(bytes) = text.parse::<ByteSize>() {
                proptest::prop_assert!(text.contains(|c: char| c.is_ascii_digit()));
                proptest::prop_assert!(!text.contains('-'), "{}", bytes);
            }
        }
    }
}
