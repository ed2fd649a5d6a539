//! What the commands of FUSEE share, whichever crate they are in.
//!
//! How a command fails ([`failure`]), what it prints ([`output`], [`stderr`], [`progress`], [`quantity`],
//! [`recoveries`]), how a signal ends it ([`interrupt`]), and how it reaches a cluster and asks its master
//! ([`connect`], [`standing`], [`flags`]). There is no command here: those of users are in `fusee`, the benchmarks
//! in `fusee-bench`.
#![forbid(unsafe_code)]
#![deny(clippy::print_stdout, clippy::print_stderr)] // They panic where nothing takes it.

pub mod connect;
pub mod failure;
pub mod flags;
pub mod interrupt;
pub mod memory;
pub mod output;
pub mod progress;
pub mod quantity;
pub mod recoveries;
pub mod secret;
pub mod standing;
pub mod stderr;
pub mod tls;
