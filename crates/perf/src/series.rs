//! Repeated measurements of one thing.

use serde::Serialize;

/// Nanoseconds of one operation, of every round.
#[derive(Clone, Debug, Default)]
pub struct Series(Vec<f64>);

/// The middle, and how far it spreads.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Spread {
    pub median: f64,
    pub least: f64,
    pub most: f64,
}

impl Series {
    pub fn push(&mut self, value: f64) {
        self.0.push(value);
    }

    /// Every value over the one of another series of the same round.
    pub fn over(&self, other: &Series) -> Series {
        Series(self.0.iter().zip(&other.0).map(|(a, b)| a / b).collect())
    }

    /// Every value with the one of another series of the same round.
    pub fn plus(&self, other: &Series) -> Series {
        Series(self.0.iter().zip(&other.0).map(|(a, b)| a + b).collect())
    }

    /// # Panics
    /// If nothing was measured.
    pub fn spread(&self) -> Spread {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        let (low, high) = ((sorted.len() - 1) / 2, sorted.len() / 2);
        let median = f64::midpoint(sorted[low], sorted[high]);
        Spread { median, least: sorted[0], most: sorted[sorted.len() - 1] }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_of_an_even_number_lies_between_two() {
        let series = Series(vec![4.0, 1.0, 3.0, 2.0]);
        let Spread { median, least, most } = series.spread();
        assert_eq!((median, least, most), (2.5, 1.0, 4.0));
        assert_eq!(Series(vec![3.0]).spread().median, 3.0);
        assert_eq!(series.over(&Series(vec![2.0; 4])).spread().most, 2.0);
    }
}
