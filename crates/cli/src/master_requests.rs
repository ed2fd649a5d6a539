//! The states of a cluster's memory nodes, according to its master, and the request that drains one.

use fusee_client::Status;
use fusee_control::master::{MasterReply, MasterRequest, MemberState};
use fusee_control::rpc::MasterClient;
use fusee_core::verbs::MnId;

use crate::connect;
use crate::failure::Failure;
use crate::flags;

/// Asks the master at `address` to drain a node, or to cancel the drain. When this returns, the master has recorded the
/// request, but not yet drained the node.
pub fn request_drain(
    master: &MasterClient,
    address: &str,
    node: MnId,
    cancel: bool,
) -> Result<(), Failure> {
    match master.call_blocking(MasterRequest::Drain { node, cancel }) {
        Ok(MasterReply::Done) => Ok(()),
        Ok(MasterReply::Refused { reason }) => {
            Err(Failure::operation(flags::with_flag_names(&reason)))
        }
        Ok(MasterReply::NotReady { joined, expected }) => Err(Failure::operation(format!(
            "the cluster is forming, {joined} of {expected} memory nodes joined; try again"
        ))),
        Ok(other) => {
            Err(Failure::unreachable(format!("the master answered with something else: {other:?}")))
        }
        Err(error) => Err(connect::explain(address, &error)),
    }
}

/// Asks the master at `address` for the status of the cluster.
pub fn ask_status(master: &MasterClient, address: &str) -> Result<Status, Failure> {
    match master.call_blocking(MasterRequest::Status) {
        Ok(MasterReply::Status(status)) => Ok(*status),
        Ok(other) => {
            Err(Failure::unreachable(format!("the master answered with something else: {other:?}")))
        }
        Err(error) => Err(connect::explain(address, &error)),
    }
}

/// The state of a memory node, and the numbers of replicas on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DrainStatus {
    /// The state according to the master; `None` if it knows no such node.
    pub state: Option<MemberState>,
    /// Subtables with a replica on the node.
    pub subtables: u64,
    /// Regions with a replica on the node.
    pub regions: u64,
}

impl DrainStatus {
    /// Returns the state of a node according to the master's answer.
    pub fn of(node: MnId, status: &Status) -> DrainStatus {
        let member = status.members.iter().find(|member| member.node == node);
        let view = status.view.as_ref();
        DrainStatus {
            state: member.map(|member| member.state),
            subtables: view.map_or(0, |view| view.subtables_on(node)),
            regions: view.map_or(0, |view| view.regions_on(node)),
        }
    }

    /// Returns whether the node is drained. Fails if the drain was cancelled or the node was lost.
    pub fn is_drained(&self, node: MnId) -> Result<bool, Failure> {
        match self.state {
            Some(MemberState::Drained) => Ok(true),
            Some(MemberState::Draining) => Ok(false),
            Some(MemberState::InView) => {
                Err(Failure::operation(format!("the drain of {node} was taken back")))
            }
            _ => Err(Failure::operation(format!("{node} was lost while it was drained"))),
        }
    }
}

/// Returns the name of a state.
pub fn state_name(state: MemberState) -> &'static str {
    match state {
        MemberState::InView => "in_view",
        MemberState::Joining => "joining",
        MemberState::Waiting => "waiting",
        MemberState::Lost => "lost",
        MemberState::Draining => "draining",
        MemberState::Drained => "drained",
    }
}
