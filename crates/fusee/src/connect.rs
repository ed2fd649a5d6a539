//! How the tools reach a cluster.

use clap::Args;
use fusee_client::{Client, ConnectError, FabricChoice, Options};

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
        join(&self.master, options)
    }
}

/// Joins the cluster of the master at this address.
pub fn join(master: &str, options: Options) -> Result<Client, Failure> {
    check_address(master)?;
    Client::connect_with(master, options).map_err(|error| match error {
        ConnectError::Master(_) => explain(master, &error.to_string()),
        other => other.into(),
    })
}

/// Refuses what is no address: host and port.
pub fn check_address(master: &str) -> Result<(), Failure> {
    let port = master.rsplit_once(':').filter(|(host, _)| !host.is_empty());
    match port.map(|(_, port)| port.parse::<u16>()) {
        Some(Ok(_)) => Ok(()),
        _ => Err(Failure::usage(format!(
            "`{master}` is no address of a master; write it like {DEFAULT_MASTER}"
        ))),
    }
}

/// A failure to reach the cluster, with the next step.
pub fn explain(master: &str, error: &str) -> Failure {
    Failure::unreachable(format!(
        "{error}\n(the master is looked for at {master}; start a cluster with `fusee up`, or name \
         another with --master or FUSEE_MASTER)"
    ))
}
