//! The master: it names memory nodes, forms the cluster, assigns client ids and publishes views.
//!
//! [`logic`] decides, without sockets, clocks or files. [`store`] keeps the records, and [`server`] connects [`logic`]
//! and [`store`] to the network. [`plan`] and [`placement`] choose the memory nodes that hold each part of index and
//! data. No get or put passes through the master: while no master runs, those of open sessions go on. With the feature
//! `etcd`, several masters elect a leader in etcd and keep their records there.
#![forbid(unsafe_code)]
#![deny(clippy::print_stdout, clippy::print_stderr)]

pub mod config;
#[cfg(feature = "etcd")]
mod election;
pub mod jobs;
mod journal;
#[cfg(feature = "etcd")]
mod lease_validity;
pub mod logic;
pub mod placement;
pub mod plan;
pub mod record;
mod repairer;
pub mod request_kinds;
mod request_router;
pub mod server;
pub mod sessions;
pub mod settings;
pub mod store;
mod view_pieces;

pub use config::{MasterConfig, default_data_dir};
pub use server::{FormError, MasterServer, MasterStartError, random_cluster};
pub use settings::ClusterSettings;
