//! `fusee restore`: forms a cluster from an export, after everything has stopped.
//!
//! The command does what an operator would do by hand: it checks the export, gives up the lost cluster, forms a new
//! one, and imports the pairs. It does not touch data that a living memory node holds.

use std::path::PathBuf;
use std::time::Duration;

use fusee_cli::connect::ConnectArgs;
use fusee_cli::failure::Failure;
use fusee_cli::master_requests::ask_status;
use fusee_cli::{connect, flags, interrupt, secret};
use fusee_control::master::{MasterReply, MasterRequest, NOT_KNOWN_YET};
use fusee_control::rpc::MasterClient;
use fusee_core::verbs::ClusterId;

use super::import::{self, ImportOptions};
use crate::drain::TIMEOUT;
use crate::form;

/// Pause between two requests to the master.
const PAUSE: Duration = Duration::from_millis(100);

/// Arguments of `fusee restore`.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  \
    fusee restore /backups --destroy-data      after a stop of everything, from the newest export\n  \
    fusee restore pairs.fusee                  into a master that has no cluster yet\n\n\
    Start the master on its store, or on an empty one, and the memory nodes before. A cluster that still serves is\n\
    not touched: add the pairs to it with `fusee import`.\n\n\
    Exit codes: 0 done; 1 nothing was changed, or something failed; 2 wrong usage; 3 the cluster cannot be\n\
    reached; 128 and the number of the signal that ended it.")]
pub struct RestoreArgs {
    /// The export, or a directory of exports, for the newest of the master's cluster
    #[arg(value_name = "FILE|DIR")]
    file: PathBuf,

    /// Give up the master's cluster, of which all data is lost
    #[arg(long)]
    destroy_data: bool,

    #[command(flatten)]
    how: ImportOptions,

    /// Print one JSON object at the end, and no progress
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    connect: ConnectArgs,
}

/// Runs `fusee restore`.
pub fn run(args: &RestoreArgs) -> Result<(), Failure> {
    let address = &args.connect.master;
    connect::check_address(address)?;
    interrupt::watch()?;
    let runtime = secret::runtime("fusee-restore")?;
    let master = MasterClient::new(&runtime, &address[..]).with_deadline(TIMEOUT);
    let cluster = ask_status(&master, address)?.cluster;
    import::restore(&args.file, cluster, args.how, args.json, || {
        give_up(args, &master, cluster)?;
        form::form(&master, address, args.json)?;
        args.connect.connect()
    })
}

/// Makes the master give up its cluster, if it has one.
fn give_up(
    args: &RestoreArgs,
    master: &MasterClient,
    cluster: Option<ClusterId>,
) -> Result<(), Failure> {
    let Some(cluster) = cluster else { return Ok(()) };
    if !args.destroy_data {
        return Err(Failure::operation(format!(
            "the master has a cluster, {cluster}. If it is to get the pairs: `fusee import`. If all of its \
             data is gone: `fusee restore --destroy-data`. Nothing was changed"
        )));
    }
    let request = MasterRequest::Destroy { cluster, with_living_data: false };
    let mut answer = master.call_blocking(request.clone());
    // A master that has just started refuses until it has waited for memory nodes for one lease.
    while let Ok(MasterReply::Refused { reason }) = &answer
        && reason.starts_with(NOT_KNOWN_YET)
    {
        interrupt::failure().map_or(Ok(()), Err)?;
        std::thread::sleep(PAUSE);
        answer = master.call_blocking(request.clone());
    }
    match answer {
        Ok(MasterReply::Done) => Ok(()),
        Ok(MasterReply::Refused { reason }) => Err(Failure::operation(format!(
            "{}. Add the pairs to it with `fusee import`, or give it up with `fusee destroy` before",
            flags::with_flag_names(&reason)
        ))),
        Ok(other) => {
            Err(Failure::unreachable(format!("the master answered with something else: {other:?}")))
        }
        Err(error) => Err(connect::explain(&args.connect.master, &error)),
    }
}
