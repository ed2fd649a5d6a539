//! Repeated measurements of one operation, one for each round. Only measurements of the same round are compared.

use crate::spread::Spread;

/// Nanoseconds per operation, one value for each round.
#[derive(Clone, Debug, Default)]
pub struct RoundSamples(Vec<f64>);

impl RoundSamples {
    /// Adds the value of the next round.
    pub fn push(&mut self, value: f64) {
        self.0.push(value);
    }

    /// Returns each value divided by the value of the same round in `other`.
    pub fn over(&self, other: &RoundSamples) -> RoundSamples {
        RoundSamples(self.0.iter().zip(&other.0).map(|(a, b)| a / b).collect())
    }

    /// Returns the median and the extremes of all rounds.
    ///
    /// # Panics
    ///
    /// Panics if nothing was measured.
    pub fn spread(&self) -> Spread {
        self.try_spread().expect("something was measured")
    }

    /// Returns the median and the extremes of all rounds; `None` if nothing was measured.
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
