//! Origin and pictures of results, for benchmarks and the lab.
#![forbid(unsafe_code)]

pub mod machine;
pub mod plot;
