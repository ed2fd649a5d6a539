//! The median and the extremes of repeated measurements of one thing.

use serde::Serialize;

/// Median, smallest and largest.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Spread {
    pub median: f64,
    pub least: f64,
    pub most: f64,
}

impl Spread {
    /// Returns the spread of these values; `None` if there are none.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Option<Spread> {
        let mut sorted: Vec<f64> = values.into_iter().collect();
        sorted.sort_by(f64::total_cmp);
        let least = *sorted.first()?;
        let most = *sorted.last()?;
        let low = (sorted.len() - 1) / 2;
        let high = sorted.len() / 2;
        Some(Spread { median: f64::midpoint(sorted[low], sorted[high]), least, most })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_of_an_even_number_lies_between_two() {
        let spread = |median, least, most| Some(Spread { median, least, most });
        assert_eq!(Spread::of([]), None);
        assert_eq!(Spread::of([3.0]), spread(3.0, 3.0, 3.0));
        assert_eq!(Spread::of([3.0, 1.0, 2.0]), spread(2.0, 1.0, 3.0));
        assert_eq!(Spread::of([4.0, 1.0, 3.0, 2.0]), spread(2.5, 1.0, 4.0));
    }
}
