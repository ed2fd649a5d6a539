//! The benchmarks, one module each: arguments, run, and results.

pub mod cache;
pub mod capacity;
pub mod churn;
pub mod cold;
pub mod correlated;
pub mod counts;
pub mod elasticity;
pub mod failover;
pub mod growth;
pub mod limit;
pub mod micro;
pub mod peers;
pub mod raw;
pub mod recovery;
pub mod redundancy;
pub mod sizes;
pub mod sweep;
pub mod ycsb;
