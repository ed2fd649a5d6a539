//! The master: names memory nodes, forms the cluster, hands out client ids and views.
//!
//! [`logic`] decides, without sockets, clocks or files; [`store`] remembers; [`server`] connects
//! both to the network. [`plan`] and [`placement`] say which memory node holds what. Gets and
//! puts never come here: a cluster whose master is down goes on, and only new sessions wait.
//! With the feature `etcd`, several masters elect a leader there and keep their records there.
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
