//! How the tools reach a cluster.

use clap::Args;
use fusee_client::{Client, FabricChoice, Options};

use crate::failure::Failure;

/// The port at which a master listens unless it is told otherwise.
pub const DEFAULT_PORT: u16 = 7400;
/// Where a master is looked for unless a command is told otherwise.
pub const DEFAULT_MASTER: &str = "127.0.0.1:7400";

/// Which cluster, and how.
#[derive(Args, Clone, Debug)]
pub struct ConnectArgs {
    /// Address of the master
    #[arg(long, env = "FUSEE_MASTER", default_value = DEFAULT_MASTER, value_name = "HOST:PORT")]
    pub master: String,

    /// How to reach the memory nodes: shm (same host), tcp, or auto (shm where possible)
    #[arg(long, env = "FUSEE_FABRIC", default_value = "auto")]
    pub fabric: FabricChoice,
}

impl ConnectArgs {
    /// Joins the cluster.
    pub fn connect(&self) -> Result<Client, Failure> {
        let options = Options { fabric: self.fabric, ..Options::default() };
        Client::connect_with(&self.master, options)
            .map_err(|error| explain(&self.master, &error.to_string()))
    }
}

/// A failure to reach the cluster, with the next step.
pub fn explain(master: &str, error: &str) -> Failure {
    Failure::unreachable(format!(
        "{error}\n(the master is looked for at {master}; start a cluster with `fusee up`, or name \
         another with --master or FUSEE_MASTER)"
    ))
}
