//! Tests of the program `fusee-bench` as users run it. They form one test program, so that they run concurrently,
//! because most of them wait for processes. `cargo test -p fusee-bench --test commands churn::` runs the tests of
//! `churn.rs`.
//!
//! Some tests start servers, which run the program `fusee`. `cargo test --workspace` builds that program; before tests
//! of this package alone, run `cargo build -p fusee`.

mod bad_input;
mod bench;
mod cache;
mod capacity;
mod check;
mod churn;
mod costs;
mod documented;
mod drivers;
mod elasticity;
mod failover;
mod growth;
mod lab;
mod manual;
mod redundancy;
mod sim;
mod sweep;
mod switch;
mod ycsb_files;
