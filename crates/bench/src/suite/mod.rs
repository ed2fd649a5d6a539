//! The benchmarks, one module each: arguments, run, and results.

pub mod cache;
pub mod capacity;
pub mod churn;
pub mod cold;
pub mod compare;
pub mod correlated;
pub mod elasticity;
pub mod failover;
pub mod growth;
pub mod micro;
pub mod recovery;
pub mod redundancy;
pub mod sizes;
pub mod sweep;
pub mod ycsb;
