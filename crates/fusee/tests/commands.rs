//! Tests of the program `fusee` as users run it. They form one test program, so that they run in parallel: most of them
//! wait for processes. `cargo test -p fusee --test commands up::` runs the tests in `up.rs`.

mod arrows;
mod backup;
mod bad_input;
mod common;
mod config;
mod events;
mod full;
mod http;
mod licences;
mod lines;
mod logs;
mod loss;
#[cfg(feature = "tls")]
mod manual;
mod memory;
mod page;
mod plain;
mod policy;
mod promises_page;
mod secrets;
mod servers;
mod sockets;
mod strangers;
mod switch;
#[cfg(feature = "tls")]
mod tls;
mod up;
