//! Telemetry of single operations: full with the feature `telemetry` ([`on`]), and empty, at no cost, without
//! it.

#[cfg(not(feature = "telemetry"))]
mod off;
#[cfg(feature = "telemetry")]
mod on;

#[cfg(not(feature = "telemetry"))]
pub use off::{OperationSpan, SessionLatencies};
#[cfg(feature = "telemetry")]
pub use on::{LatencySums, OperationSpan, SessionLatencies};
