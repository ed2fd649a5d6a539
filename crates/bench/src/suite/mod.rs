//! The benchmarks, one module each: arguments, run, and what comes out.

pub mod cache;
pub mod churn;
pub mod elasticity;
pub mod failover;
pub mod growth;
pub mod micro;
pub mod recovery;
pub mod sizes;
pub mod sweep;
pub mod ycsb;
