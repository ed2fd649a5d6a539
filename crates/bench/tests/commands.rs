//! Tests of the program `fusee-bench` as users run it. They form one test program, because most of them wait for
//! processes, and so they do side by side. `cargo test -p fusee-bench --test commands churn::` runs those of
//! `churn.rs`.
//!
//! Some start servers, which run the program `fusee`. `cargo test --workspace` builds it; before tests of this package
//! alone, `cargo build -p fusee` does.

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
