//! Code that the commands of FUSEE share, in whichever crate they are.
//!
//! It has failures of commands ([`failure`]), their output ([`output`], [`stderr`], [`progress`], [`quantity`],
//! [`recoveries`]), signals ([`interrupt`]), and connections to a cluster and its master ([`connect`],
//! [`master_requests`], [`flags`]). The commands themselves are elsewhere: those of users in `fusee`, the benchmarks
//! in `fusee-bench`.
#![forbid(unsafe_code)]
#![deny(clippy::print_stdout, clippy::print_stderr)] // These macros panic if the output is closed.

pub mod connect;
pub mod failure;
pub mod flags;
pub mod interrupt;
pub mod master_requests;
pub mod memory;
pub mod output;
pub mod progress;
pub mod quantity;
pub mod recoveries;
pub mod secret;
pub mod stderr;
pub mod tls;
