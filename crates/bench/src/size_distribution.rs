//! Distributions from which the lengths of values are drawn.

use std::fmt;
use std::str::FromStr;

use rand::RngExt;
use rand::rngs::SmallRng;

/// A distribution of sizes in bytes. The bounds are included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SizeDistribution {
    Fixed(u32),
    Uniform(u32, u32),
    LogUniform(u32, u32),
}

impl SizeDistribution {
    /// Draws a size.
    pub fn draw(self, rng: &mut SmallRng) -> u32 {
        match self {
            SizeDistribution::Fixed(bytes) => bytes,
            SizeDistribution::Uniform(least, most) => rng.random_range(least..=most),
            SizeDistribution::LogUniform(least, most) => {
                let low = f64::from(least).ln();
                let high = (f64::from(most) + 1.0).ln();
                (rng.random_range(low..high).exp() as u32).clamp(least, most)
            }
        }
    }
}

impl FromStr for SizeDistribution {
    type Err = String;

    fn from_str(text: &str) -> Result<SizeDistribution, String> {
        let (kind, sizes) = text.split_once(':').unwrap_or((text, ""));
        let size = |text: &str| text.parse::<u32>().ok().filter(|bytes| *bytes <= 16 << 20);
        let range = || {
            let (least, most) = sizes.split_once('-')?;
            let least = size(least)?;
            let most = size(most)?;
            (least <= most).then_some((least, most))
        };
        let sizes = match kind {
            "fixed" => size(sizes).map(SizeDistribution::Fixed),
            "uniform" => range().map(|(least, most)| SizeDistribution::Uniform(least, most)),
            "log-uniform" => {
                let range = range().filter(|(least, _)| *least > 0);
                range.map(|(least, most)| SizeDistribution::LogUniform(least, most))
            }
            _ => None,
        };
        sizes.ok_or_else(|| {
            format!(
                "`{text}` is none of fixed:BYTES, uniform:LEAST-MOST, log-uniform:LEAST-MOST (from \
                 1 on), with at most 16777216 bytes"
            )
        })
    }
}

impl fmt::Display for SizeDistribution {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SizeDistribution::Fixed(bytes) => write!(f, "fixed:{bytes}"),
            SizeDistribution::Uniform(least, most) => write!(f, "uniform:{least}-{most}"),
            SizeDistribution::LogUniform(least, most) => write!(f, "log-uniform:{least}-{most}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;

    use super::*;

    #[test]
    fn distributions_are_understood_and_unknown_ones_refused() {
        for text in ["fixed:0", "uniform:1-1", "uniform:0-4096", "log-uniform:1-1048576"] {
            assert_eq!(text.parse::<SizeDistribution>().unwrap().to_string(), text);
        }
        for text in [
            "",
            "fixed",
            "fixed:-1",
            "fixed:99999999",
            "uniform:7",
            "uniform:2-1",
            "log-uniform:0-9",
        ] {
            assert!(text.parse::<SizeDistribution>().unwrap_err().contains("none of"), "{text}");
        }
    }

    #[test]
    fn drawn_sizes_stay_in_their_range_and_reach_its_ends() {
        let mut rng = SmallRng::seed_from_u64(3);
        for sizes in [SizeDistribution::Uniform(3, 9), SizeDistribution::LogUniform(3, 9)] {
            let mut seen = [0u32; 12];
            for _ in 0..10_000 {
                seen[sizes.draw(&mut rng) as usize] += 1;
            }
            assert!(seen[3..=9].iter().all(|n| *n > 100) && seen[..3] == [0; 3], "{seen:?}");
            assert_eq!(seen.iter().sum::<u32>(), 10_000);
        }
        // As many sizes are below 1 KiB as above.
        let octaves = SizeDistribution::LogUniform(1, (1 << 20) - 1);
        let below = (0..10_000).filter(|_| octaves.draw(&mut rng) < 1 << 10).count();
        assert!((4_700..5_300).contains(&below), "{below}");
    }
}
