//! Tests of the program as users run it. They form one test program, because most of them wait for processes,
//! and so they do side by side. `cargo test -p fusee --test commands up::` runs those of `up.rs`.

mod arrows;
mod backup;
#[cfg(feature = "bench")]
mod bad_input;
#[cfg(feature = "bench")]
mod bench;
#[cfg(feature = "bench")]
mod cache;
mod capacity;
#[cfg(feature = "bench")]
mod check;
#[cfg(feature = "bench")]
mod churn;
mod common;
mod config;
#[cfg(feature = "bench")]
mod costs;
mod documented;
mod drivers;
#[cfg(feature = "bench")]
mod elasticity;
mod events;
#[cfg(feature = "bench")]
mod failover;
mod full;
#[cfg(feature = "bench")]
mod growth;
mod http;
#[cfg(feature = "lab")]
mod lab;
mod licences;
mod lines;
mod logs;
#[cfg(feature = "tls")]
mod manual;
mod memory;
mod page;
mod plain;
mod policy;
mod promises_page;
mod redundancy;
mod secrets;
mod servers;
#[cfg(feature = "sim")]
mod sim;
mod sockets;
mod strangers;
#[cfg(feature = "bench")]
mod sweep;
mod switch;
#[cfg(feature = "tls")]
mod tls;
mod up;
mod ycsb_files;
