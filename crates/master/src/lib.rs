//! The master.
#![forbid(unsafe_code)]
pub mod placement;
pub mod settings;
