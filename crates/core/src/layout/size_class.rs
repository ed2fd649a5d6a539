//! Size classes: the lengths that an object can have.
//!
//! Seven bits of a slot word tell a reader how many bytes to READ, and name the class of the object's slab. Class n of
//! 1..=16 has n units of 64 bytes. Above that, each octave has 8 classes, so an object wastes, and a reader reads too
//! much, at most 12.5 %. These classes have one unit more than the steps of an octave, so that a value of 2^n bytes
//! fits together with its key, header and log entry:
//!
//! ```text
//! class      1 .. 16   17  18 ..  24   25  26 ..     127
//! units      1 .. 16   17  19 ..  31   33  37 .. 229,377   (14 MiB and 64 bytes)
//! ```
//!
//! The next class would have more than 15 MiB, and there is no code left for it.

use serde::{Deserialize, Serialize};

use super::UNIT_BYTES;

/// The largest class whose number is the size of its objects in units.
const EXACT: u8 = 16;
/// The number of classes per octave above [`EXACT`].
const STEPS: u8 = 8;

/// A size class, 1..=127.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "u8", into = "u8")]
pub struct SizeClass(u8);

impl TryFrom<u8> for SizeClass {
    type Error = &'static str;

    fn try_from(code: u8) -> Result<SizeClass, &'static str> {
        SizeClass::from_code(code).ok_or("a size class is 1..=127")
    }
}

impl From<SizeClass> for u8 {
    fn from(class: SizeClass) -> u8 {
        class.code()
    }
}

impl SizeClass {
    /// The largest class: 14 MiB and 64 bytes.
    pub const MAX: SizeClass = SizeClass(EXACT + 14 * STEPS - 1);

    /// The class with this code; `None` for 0 and for codes over [`SizeClass::MAX`].
    pub const fn from_code(code: u8) -> Option<SizeClass> {
        if code >= 1 && code <= SizeClass::MAX.0 { Some(SizeClass(code)) } else { None }
    }

    /// The smallest class of at least `bytes` bytes; `None` over [`SizeClass::MAX`].
    #[inline]
    pub fn fitting(bytes: u64) -> Option<SizeClass> {
        let units = bytes.div_ceil(UNIT_BYTES).max(1);
        if units <= u64::from(EXACT) {
            return Some(SizeClass(units as u8));
        }
        // Without the one unit more, the octave [2^k, 2^(k+1)) is divided into 8 steps of 2^k / 8 units.
        let units = units - 1;
        let k = units.ilog2();
        let step = 1u64 << (k - 3);
        let steps = (units - (1 << k)).div_ceil(step);
        let code = u64::from(EXACT) + 1 + u64::from(k - 4) * u64::from(STEPS) + steps;
        u8::try_from(code).ok().and_then(SizeClass::from_code)
    }

    /// Returns the code that slots contain.
    pub const fn code(self) -> u8 {
        self.0
    }

    /// The size of an object of this class, in bytes.
    #[inline]
    pub const fn bytes(self) -> u64 {
        bytes_of(self.0)
    }

    /// The size of an object of the next smaller class, in bytes; 0 if there is none.
    #[inline]
    pub const fn below_bytes(self) -> u64 {
        bytes_of(self.0 - 1)
    }
}

/// The size of the class with this code, in bytes; 0 for code 0.
#[inline]
const fn bytes_of(code: u8) -> u64 {
    let units = if code <= EXACT {
        code as u64
    } else {
        let beyond = (code - EXACT - 1) as u64;
        // The size is 2^k units, with k >= 4, plus some steps of an eighth of that, plus one unit.
        ((STEPS as u64 + beyond % STEPS as u64) << (1 + beyond / STEPS as u64)) + 1
    };
    units * UNIT_BYTES
}

const _: () = assert!(SizeClass::MAX.bytes() == (14 << 20) + UNIT_BYTES);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_maps_to_itself_and_sizes_grow() {
        let mut last = 0;
        for code in 1..=SizeClass::MAX.code() {
            let class = SizeClass::from_code(code).unwrap();
            assert!(class.bytes() > last);
            assert_eq!(class.below_bytes(), last);
            assert_eq!(SizeClass::fitting(class.bytes()), Some(class));
            assert_eq!(SizeClass::fitting(last + 1), Some(class));
            last = class.bytes();
        }
        assert_eq!(last, SizeClass::MAX.bytes());
        assert_eq!(SizeClass::fitting(last + 1), None);
        assert_eq!(SizeClass::from_code(0), None);
        assert_eq!(SizeClass::from_code(128), None);
    }

    #[test]
    fn over_read_is_at_most_an_eighth() {
        for units in 1..=SizeClass::MAX.bytes() / UNIT_BYTES {
            let class = SizeClass::fitting(units * UNIT_BYTES).unwrap();
            assert!(class.bytes() * 8 <= units * UNIT_BYTES * 9);
        }
    }

    #[test]
    fn values_of_powers_of_two_fit_with_what_belongs_to_them() {
        for power in 10..23 {
            let class = SizeClass::fitting((1 << power) + UNIT_BYTES).unwrap();
            assert_eq!(class.bytes(), (1 << power) + UNIT_BYTES);
        }
    }
}
