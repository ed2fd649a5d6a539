//! What a session needs from outside, beside verbs: to wait, and to ask.

use std::time::Duration;

use fusee_control::master::{MasterReply, MasterRequest};
use fusee_control::node::{NodeReply, NodeRequest};
use fusee_control::rpc::RpcError;
use fusee_core::verbs::MnId;
use fusee_core::view::View;

/// Time and messages.
pub trait Environment {
    /// The time by the clock that the keeper of this process goes by ([`Keeping::now`]), or a little later.
    ///
    /// [`Keeping::now`]: super::Keeping::now
    fn now(&self) -> Duration;

    /// Waits for some time, while the session's other operations run.
    fn sleep(&self, time: Duration) -> impl Future<Output = ()>;

    /// Lets others run once: the session's operations, and other threads.
    fn yield_now(&self) -> impl Future<Output = ()>;

    /// Waits very shortly without letting anybody run.
    fn spin(&self, turns: u64);

    /// Asks the control service of a memory node. After an error the request may still take effect,
    /// unless the error says otherwise ([`RpcError::may_take_effect`]).
    fn ask_node(
        &self,
        node: MnId,
        request: NodeRequest,
        deadline: Duration,
    ) -> impl Future<Output = Result<NodeReply, RpcError>>;

    /// Asks the master, as [`Environment::ask_node`].
    fn ask_master(
        &self,
        request: MasterRequest,
        deadline: Duration,
    ) -> impl Future<Output = Result<MasterReply, RpcError>>;

    /// A newer view has come: from now on verbs and questions reach its members, and end soon for
    /// nodes that are none any more.
    fn adopt(&self, view: &View);

    /// See [`Epochs::began`](fusee_core::host::Epochs::began).
    fn began(&self, _local_epoch: u64) {}

    /// See [`Epochs::ended`](fusee_core::host::Epochs::ended).
    fn ended(&self, _local_epoch: u64) {}

    /// Tells the master that a memory node does not answer. Nobody waits for it.
    fn report_unreachable(&self, node: MnId);
}
