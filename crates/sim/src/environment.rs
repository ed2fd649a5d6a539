//! The environment of a simulated session: virtual timers and simulated messages.

use std::time::Duration;

use fusee_client::logic::{Environment, KeeperEnvironment, SessionLogic};
use fusee_control::master::{MasterReply, MasterRequest};
use fusee_control::node::{NodeReply, NodeRequest};
use fusee_control::rpc::RpcError;
use fusee_core::verbs::{ClientId, MnId};
use fusee_core::view::View;

use crate::cluster::SimCluster;
use crate::control::NoAnswer;
use crate::engine::{Nanos, ProcessId};
use crate::fabric::SimFabric;
use crate::master::CLUSTER;

/// A client's session under simulation.
pub type SimSession = SessionLogic<SimFabric, SimEnvironment>;

/// The environment of a simulated session.
pub struct SimEnvironment {
    cluster: SimCluster,
    process: ProcessId,
    client: ClientId,
}

impl SimEnvironment {
    pub(crate) fn new(
        cluster: &SimCluster,
        process: ProcessId,
        client: ClientId,
    ) -> SimEnvironment {
        SimEnvironment { cluster: cluster.clone(), process, client }
    }
}

impl Drop for SimEnvironment {
    fn drop(&mut self) {
        // With a stepwise network, tests stand in for the master and do not report when a dead session is recovered.
        if self.cluster.network().options().stepwise {
            self.cluster.network().checkers().reuse().note_recovered(self.client);
        }
    }
}

/// Limits on the random number of steps that a short wait and a long wait take in a stepwise cluster.
const SHORT_STEPS: usize = 32;
const LONG_STEPS: usize = 128;
/// The shortest sleep that counts as a deadline for an answer in a stepwise cluster. In a stepwise cluster every answer
/// comes, so a sleep for a deadline never ends.
const DEADLINE: Duration = Duration::from_millis(100);

fn nanos(time: Duration) -> Nanos {
    Nanos::try_from(time.as_nanos()).unwrap_or(Nanos::MAX / 4)
}

pub(crate) fn error(addr: String, why: NoAnswer) -> RpcError {
    match why {
        NoAnswer::Closed => RpcError::Closed { addr },
        NoAnswer::TimedOut => RpcError::TimedOut { addr },
    }
}

/// Turns an answer from the master of another cluster into an error.
fn heard(answer: Result<MasterReply, NoAnswer>) -> Result<MasterReply, RpcError> {
    match answer.map_err(|why| error("master".into(), why))? {
        MasterReply::WrongCluster { cluster: found } => {
            Err(RpcError::WrongCluster { addr: "master".into(), own: Some(CLUSTER), found })
        }
        reply => Ok(reply),
    }
}

impl Environment for SimEnvironment {
    fn now(&self) -> Duration {
        self.cluster.sim().clock_of(self.process)
    }

    async fn sleep(&self, time: Duration) {
        if !self.cluster.network().options().stepwise {
            self.cluster.sim().sleep(nanos(time)).await
        } else if time < DEADLINE {
            self.cluster.sim().idle(LONG_STEPS).await
        } else {
            std::future::pending().await
        }
    }

    async fn yield_now(&self) {
        if self.cluster.network().options().stepwise {
            self.cluster.sim().idle(SHORT_STEPS).await
        } else {
            self.cluster.sim().sleep(1).await
        }
    }

    fn spin(&self, _: u64) {}

    async fn ask_node(
        &self,
        node: MnId,
        request: NodeRequest,
        deadline: Duration,
    ) -> Result<NodeReply, RpcError> {
        let answer = self.cluster.ask_node(node, request, nanos(deadline)).await;
        answer.map_err(|why| error(node.to_string(), why))
    }

    fn adopt(&self, view: &View) {
        self.cluster.network().adopted(self.client, view);
    }

    fn began(&self, local_epoch: u64) {
        self.cluster.network().checkers().reuse().began(self.client, local_epoch);
    }

    fn ended(&self, local_epoch: u64) {
        self.cluster.network().checkers().reuse().ended(self.client, local_epoch);
    }

    fn report_unreachable(&self, node: MnId) {
        self.cluster.master().tell(
            &self.cluster,
            self.process,
            MasterRequest::Unreachable { node },
        );
    }

    async fn ask_master(
        &self,
        request: MasterRequest,
        deadline: Duration,
    ) -> Result<MasterReply, RpcError> {
        let master = self.cluster.master();
        heard(master.ask(&self.cluster, self.process, request, nanos(deadline)).await)
    }
}

/// A client process's connection to the master.
pub(crate) struct SimMasterLink {
    pub cluster: SimCluster,
    pub process: ProcessId,
}

impl KeeperEnvironment for SimMasterLink {
    fn now(&self) -> Duration {
        self.cluster.sim().clock_of(self.process)
    }

    async fn sleep(&self, time: Duration) {
        self.cluster.sim().sleep(nanos(time)).await;
    }

    async fn ask_master(
        &self,
        request: MasterRequest,
        deadline: Duration,
    ) -> Result<MasterReply, RpcError> {
        let master = self.cluster.master();
        heard(master.ask(&self.cluster, self.process, request, nanos(deadline)).await)
    }
}
