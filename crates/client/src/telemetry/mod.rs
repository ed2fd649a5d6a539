//! Telemetry of single operations: implemented by `on` with the feature `telemetry`, and by `off`, which does nothing
//! and costs nothing, without it.

#[cfg(not(feature = "telemetry"))]
mod off;
#[cfg(feature = "telemetry")]
mod on;

#[cfg(not(feature = "telemetry"))]
pub use off::{OperationSpan, SessionLatencies};
#[cfg(feature = "telemetry")]
pub use on::{LatencySums, OperationSpan, SessionLatencies};
