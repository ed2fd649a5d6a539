//! `fusee destroy`: gives up a cluster with all that its memory nodes hold.
//!
//! Without options the command only shows what would be lost. With `--destroy-data` it destroys the cluster, unless
//! living memory nodes hold data. Then `--cluster` must also name the cluster. An operator needs this command for a
//! cluster that has lost the last replicas of some data. No server has an option for it.

use fusee_cli::connect::{self, DEFAULT_MASTER};
use fusee_cli::failure::Failure;
use fusee_cli::master_requests::ask_status;
use fusee_cli::quantity::count_with_noun;
use fusee_cli::{flags, output, secret};
use fusee_client::{Status, View};
use fusee_control::master::{MasterReply, MasterRequest, MemberState};
use fusee_control::rpc::MasterClient;
use fusee_core::verbs::ClusterId;

use crate::drain::TIMEOUT;

/// Arguments of `fusee destroy`.
#[derive(clap::Args, Debug)]
#[command(
    after_help = "Examples:\n  fusee destroy                     show what would be lost, and change nothing\n  \
    fusee destroy --destroy-data\n  \
    fusee destroy --destroy-data --cluster 00c0ffee00c0ffee\n\n\
    The memory nodes of the cluster start again, empty, whenever they come. The master has no cluster\n\
    then, and waits for `fusee form`.\n\n\
    Exit codes: 0 destroyed; 1 nothing was changed; 2 wrong usage; 3 the master cannot be reached."
)]
pub struct DestroyArgs {
    /// Destroy the cluster, unless memory nodes that hold data answer
    #[arg(long)]
    destroy_data: bool,

    /// The cluster, as `fusee status` names it: destroy it even if memory nodes that hold data answer
    #[arg(long, value_name = "ID", value_parser = cluster_id, requires = "destroy_data")]
    cluster: Option<ClusterId>,

    /// Address of the master; of several masters, their addresses, separated by commas
    #[arg(long, env = "FUSEE_MASTER", default_value = DEFAULT_MASTER, value_name = "HOST:PORT,..")]
    master: String,
}

fn cluster_id(text: &str) -> Result<ClusterId, String> {
    let word = u64::from_str_radix(text, 16).ok().filter(|_| text.len() == 16);
    let cluster = word.and_then(ClusterId::from_word);
    cluster.ok_or_else(|| "write the 16 digits that `fusee status` shows".into())
}

/// Shows what would be lost. Destroys the cluster if the options ask for that.
pub fn run(args: &DestroyArgs) -> Result<(), Failure> {
    connect::check_address(&args.master)?;
    let runtime = secret::runtime("fusee-destroy")?;
    let master = MasterClient::new(&runtime, &args.master[..]).with_deadline(TIMEOUT);
    let status = ask_status(&master, &args.master)?;
    let Some(cluster) = status.cluster else {
        return Err(Failure::operation("the master has no cluster: there is nothing to destroy"));
    };
    if args.cluster.is_some_and(|named| named != cluster) {
        return Err(Failure::operation(format!(
            "the master leads cluster {cluster}, and not that one; nothing was changed"
        )));
    }
    output::text(&losses(cluster, &status))?;
    if !args.destroy_data {
        return Err(Failure::operation(
            "nothing was changed; to give the cluster up: `fusee destroy --destroy-data`",
        ));
    }
    let request = MasterRequest::Destroy { cluster, with_living_data: args.cluster.is_some() };
    match master.call_blocking(request) {
        Ok(MasterReply::Done) => output::text(&format!(
            "cluster {cluster} is destroyed; form a new one with `fusee form`\n"
        )),
        Ok(MasterReply::Refused { reason }) => Err(Failure::operation(format!(
            "{}. To destroy it nevertheless, say so twice: `fusee destroy --destroy-data --cluster {cluster}`",
            flags::with_flag_names(&reason)
        ))),
        Ok(other) => {
            Err(Failure::unreachable(format!("the master answered with something else: {other:?}")))
        }
        Err(error) => Err(connect::explain(&args.master, &error)),
    }
}

/// Describes what would be lost, in words.
fn losses(cluster: ClusterId, status: &Status) -> String {
    let view = status.view.as_ref();
    let count = |of: fn(&View) -> usize, what| count_with_noun(view.map_or(0, of) as u64, what);
    let there = status.members.iter().filter(|member| member.state == MemberState::InView).count();
    format!(
        "cluster {cluster}: {} and {} on {}, {there} of them not lost; {} open\n",
        count(|view| view.subtables.len(), "index subtable"),
        count(|view| view.regions.len(), "region"),
        count(|view| view.members.len(), "memory node"),
        count_with_noun(status.open_sessions, "session")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clusters_are_named_as_in_the_status() {
        let cluster = ClusterId::from_word(0xc0ffee).unwrap();
        assert_eq!(cluster_id(&cluster.to_string()), Ok(cluster));
        for bad in ["", "c0ffee", "0000000000000000", "00000000000000zz"] {
            assert!(cluster_id(bad).unwrap_err().contains("fusee status"));
        }
    }
}
