//! What the results of benchmarks and of the lab have in common: where they come from, and pictures of them.
#![forbid(unsafe_code)]

pub mod machine;
pub mod plot;
