//! Code that the programs and commands of FUSEE share.
//!
//! The parts are: the course of a program ([`program`]) with its log ([`logging`]) and manual ([`manual`]); failures of
//! commands ([`failure`]) and their output ([`output`], [`stderr`], [`progress`], [`quantity`], [`recoveries`]);
//! signals ([`interrupt`]); and connections to a cluster and its master ([`connect`], [`master_requests`], [`flags`]).
//! The commands themselves are in the programs `fusee` and `fusee-bench`.
#![forbid(unsafe_code)]
#![deny(clippy::print_stdout, clippy::print_stderr)] // These macros panic if the output is closed.

pub mod connect;
pub mod failure;
pub mod flags;
pub mod interrupt;
pub mod logging;
pub mod manual;
pub mod master_requests;
pub mod memory;
pub mod output;
pub mod program;
pub mod progress;
pub mod quantity;
pub mod recoveries;
pub mod secret;
pub mod stderr;
pub mod tls;
