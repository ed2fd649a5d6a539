//! Connections of commands to a cluster.

use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::time::Duration;

use clap::Args;
use fusee_client::{BlockingClient, Client, ConnectError, FabricChoice, FabricKind, Options};
use fusee_control::master::{MasterReply, MasterRequest};
use fusee_control::rpc::{MasterClient, RpcError};

use crate::failure::Failure;
use crate::{flags, secret, tls};

/// The default port of a master.
pub const DEFAULT_PORT: u16 = 7400;
/// The default address of the master.
pub const DEFAULT_MASTER: &str = "127.0.0.1:7400";

/// Deadline of the master's answer about a problem of the cluster, and of a connection to a switch.
const PATIENCE: Duration = Duration::from_secs(1);

/// Arguments that say which cluster a command uses, and over which fabric.
#[derive(Args, Clone, Debug)]
pub struct ConnectArgs {
    /// Address of the master; of several masters, their addresses, separated by commas
    #[arg(long, env = "FUSEE_MASTER", default_value = DEFAULT_MASTER, value_name = "HOST:PORT,..")]
    pub master: String,

    /// Fabric to the memory nodes: shm (same host), tcp, verbs (RDMA), or auto (the best possible)
    #[arg(long, env = "FUSEE_FABRIC", default_value = "auto")]
    pub fabric: FabricChoice,

    /// A switch in the path to the memory nodes (`fusee switch`): its address, for the fabric tcp; or `wire`,
    /// for the fabric verbs
    #[arg(long, env = "FUSEE_SWITCH", value_name = "HOST:PORT|wire")]
    pub switch: Option<String>,
}

impl ConnectArgs {
    /// Returns the options of a client with these arguments.
    pub fn options(&self) -> Options {
        let options = Options::default().with_fabric(self.fabric);
        match &self.switch {
            Some(switch) => options.with_switch(switch.as_str()),
            None => options,
        }
    }

    /// Connects to the cluster as a client.
    pub fn connect(&self) -> Result<BlockingClient, Failure> {
        self.check_switch()?;
        join(&self.master, self.options()).map_err(|failure| self.with_switch(failure))
    }

    /// Checks that the address of the switch matches the fabric.
    fn check_switch(&self) -> Result<(), Failure> {
        let Some(switch) = &self.switch else { return Ok(()) };
        let (fabric, is_there) = match switch.as_str() {
            "wire" => ("verbs", self.fabric == FabricKind::Verbs.into()),
            at => {
                check_host_port(at)?;
                ("tcp", self.fabric == FabricKind::Tcp.into())
            }
        };
        if is_there || self.fabric == FabricChoice::Auto {
            Ok(())
        } else {
            Err(Failure::usage(format!(
                "--switch {switch} is for {fabric}, and --fabric is {}: leave one of them out",
                self.fabric
            )))
        }
    }

    /// Replaces the failure by one about the switch, if the switch does not answer.
    fn with_switch(&self, failure: Failure) -> Failure {
        let Some(at) = self.switch.as_deref().filter(|at| *at != "wire") else { return failure };
        let addresses = at.to_socket_addrs().into_iter().flatten();
        let answers = |at: SocketAddr| TcpStream::connect_timeout(&at, PATIENCE).is_ok();
        if addresses.into_iter().any(answers) {
            failure
        } else {
            Failure::unreachable(format!(
                "no switch answers at {at} (--switch, or FUSEE_SWITCH); start one with `fusee switch`, or leave \
                 that out"
            ))
        }
    }
}

/// Connects as a client to the cluster of the master at `master`, or of the masters in this list.
pub fn join(master: &str, options: Options) -> Result<BlockingClient, Failure> {
    check_address(master)?;
    let options = options.with_keys(secret::keys()?).with_tls(tls::of_client()?);
    let client = Client::connect_with(master, options).map_err(|error| match error {
        ConnectError::Master(error) | ConnectError::WrongCluster(error) => explain(master, &error),
        ConnectError::Attach(_) => match ask_problem(master) {
            Some(problem) => Failure::unreachable(format!("{error}\nthe master says: {problem}")),
            None => error.into(),
        },
        other => other.into(),
    })?;
    Ok(client.blocking())
}

/// Asks the master for the problem because of which the cluster is not whole.
fn ask_problem(master: &str) -> Option<String> {
    let runtime = secret::runtime("fusee-status").ok()?;
    let master = MasterClient::new(&runtime, master).with_deadline(PATIENCE);
    match master.call_blocking(MasterRequest::Status) {
        Ok(MasterReply::Status(status)) => Some(flags::with_flag_names(&status.problem?)),
        _ => None,
    }
}

/// Checks the address of a master, or a list of such addresses. Each consists of host and port.
pub fn check_address(masters: &str) -> Result<(), Failure> {
    for master in masters.split(',').map(str::trim) {
        let port = master.rsplit_once(':').filter(|(host, _)| !host.is_empty());
        if port.is_none_or(|(_, port)| port.parse::<u16>().is_err()) {
            return Err(Failure::usage(format!(
                "`{master}` is no address of a master; write it like {DEFAULT_MASTER}, and several \
                 with commas between"
            )));
        }
    }
    Ok(())
}

/// Checks the address of a service, which consists of host and port.
pub fn check_host_port(address: &str) -> Result<(), Failure> {
    let parts = address.rsplit_once(':').filter(|(host, _)| !host.is_empty());
    if parts.is_some_and(|(_, port)| port.parse::<u16>().is_ok()) {
        Ok(())
    } else {
        Err(Failure::usage(format!(
            "`{address}` is no address; write host and port, like 127.0.0.1:7400"
        )))
    }
}

/// Makes the failure of a command that cannot reach the cluster. The message names the next step.
pub fn explain(master: &str, error: &RpcError) -> Failure {
    // These errors say themselves what to do, because the cluster was reached.
    if let RpcError::WrongCluster { .. }
    | RpcError::Keys { .. }
    | RpcError::Tls { .. }
    | RpcError::Version { .. } = error
    {
        return Failure::unreachable(flags::with_flag_names(&error.to_string()));
    }
    Failure::unreachable(format!(
        "{error}\n(the master is looked for at {master}; start a cluster with `fusee up`, or name \
         another with --master or FUSEE_MASTER)"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_and_lists_of_them_are_checked() {
        for good in [DEFAULT_MASTER, "a:1,b:2", "a:1, [::1]:2"] {
            assert_eq!(check_address(good), Ok(()));
        }
        for (bad, named) in [("a", "`a`"), ("a:1,b", "`b`"), ("a:1,", "``"), (":1", "`:1`")] {
            let error = check_address(bad).unwrap_err().to_string();
            assert!(error.contains(named), "{error}");
        }
    }
}
