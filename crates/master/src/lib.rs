//! The master: it names memory nodes, forms the cluster, hands out client ids and publishes views.
//!
//! [`logic`] decides, without sockets, clocks or files. [`store`] keeps the records, and [`server`]
//! connects both to the network. [`plan`] and [`placement`] choose the memory nodes that hold each
//! part of index and data. Gets and puts never pass the master: while it is down, sessions go on,
//! and only new sessions wait. With the feature `etcd`, several masters elect a leader in etcd and
//! keep their records there.
#![forbid(unsafe_code)]
#![deny(clippy::print_stdout, clippy::print_stderr)]

pub mod config;
#[cfg(feature = "etcd")]
mod election;
pub mod jobs;
mod journal;
pub mod logic;
mod pieces;
pub mod placement;
pub mod plan;
pub mod record;
mod repairer;
mod seat;
pub mod server;
pub mod sessions;
pub mod settings;
pub mod store;
#[cfg(feature = "etcd")]
mod tenure;

pub use config::{Config, default_data_dir};
pub use server::{FormError, MasterServer, StartError, random_cluster};
pub use settings::Settings;
