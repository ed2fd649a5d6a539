//! The environment of a session: clock, waits and requests. A fabric executes the verbs.

use std::time::Duration;

use fusee_control::master::{MasterReply, MasterRequest};
use fusee_control::node::{NodeReply, NodeRequest};
use fusee_control::rpc::RpcError;
use fusee_core::verbs::MnId;
use fusee_core::view::View;

/// A source of time, and a sender of messages.
pub trait Environment {
    /// Returns the time by the clock of this process's keeper ([`KeeperEnvironment::now`]), or a little later.
    ///
    /// [`KeeperEnvironment::now`]: super::KeeperEnvironment::now
    fn now(&self) -> Duration;

    /// Waits for `time`, while the session's other operations run.
    fn sleep(&self, time: Duration) -> impl Future<Output = ()>;

    /// Lets the session's other operations, and other threads, run once before the calling operation goes on.
    fn yield_now(&self) -> impl Future<Output = ()>;

    /// Waits very briefly, for `turns` turns of a spin loop, without yielding.
    fn spin(&self, turns: u64);

    /// Sends a request to the control service of a memory node. After an error the request can still take effect,
    /// unless the error says otherwise ([`RpcError::may_take_effect`]).
    fn ask_node(
        &self,
        node: MnId,
        request: NodeRequest,
        deadline: Duration,
    ) -> impl Future<Output = Result<NodeReply, RpcError>>;

    /// Sends a request to the master. Waits and fails like [`Environment::ask_node`].
    fn ask_master(
        &self,
        request: MasterRequest,
        deadline: Duration,
    ) -> impl Future<Output = Result<MasterReply, RpcError>>;

    /// Adopts a newer view. From now on, verbs and requests reach the members of that view, and verbs and requests to
    /// other nodes end soon.
    fn adopt(&self, view: &View);

    /// Records the beginning of an operation; see [`Epochs::note_pinned`](fusee_core::host::Epochs::note_pinned).
    fn began(&self, _local_epoch: u64) {}

    /// Records the end of an operation; see [`Epochs::note_unpinned`](fusee_core::host::Epochs::note_unpinned).
    fn ended(&self, _local_epoch: u64) {}

    /// Tells the master that a memory node does not answer, and does not wait for the master's reply.
    fn report_unreachable(&self, node: MnId);
}
