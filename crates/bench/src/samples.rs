//! Repeated measurements of one thing, round by round: comparisons are of the same round.

use crate::spread::Spread;

/// Nanoseconds of one operation, of every round.
#[derive(Clone, Debug, Default)]
pub struct RoundSamples(Vec<f64>);

impl RoundSamples {
    /// Adds the value of the next round.
    pub fn push(&mut self, value: f64) {
        self.0.push(value);
    }

    /// Returns every value over the other one of the same round.
    pub fn over(&self, other: &RoundSamples) -> RoundSamples {
        RoundSamples(self.0.iter().zip(&other.0).map(|(a, b)| a / b).collect())
    }

    /// Returns the sums of every value and the other one of the same round.
    pub fn plus(&self, other: &RoundSamples) -> RoundSamples {
        RoundSamples(self.0.iter().zip(&other.0).map(|(a, b)| a + b).collect())
    }

    /// # Panics
    /// If nothing was measured.
    pub fn spread(&self) -> Spread {
        self.try_spread().expect("something was measured")
    }

    /// `None` if nothing was measured.
    pub fn try_spread(&self) -> Option<Spread> {
        Spread::of(self.0.iter().copied())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_compared_round_by_round() {
        let samples = RoundSamples(vec![4.0, 1.0, 3.0, 2.0]);
        assert_eq!(samples.over(&RoundSamples(vec![2.0; 4])).spread().most, 2.0);
    }
}
