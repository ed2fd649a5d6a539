//! What is seen of single operations: with the feature `telemetry` much ([`on`]), and without it nothing, at no cost.

#[cfg(not(feature = "telemetry"))]
mod off;
#[cfg(feature = "telemetry")]
mod on;

#[cfg(not(feature = "telemetry"))]
pub use off::{Begun, Latencies};
#[cfg(feature = "telemetry")]
pub use on::{Begun, Latencies, LatencySums};
