//! Requests, classified by the part of the master that answers them.
//!
//! The host of the logic keeps the events and cuts views into pieces, so it answers requests for these. Requests to
//! form or destroy a cluster are valid whichever cluster their sender belongs to; all other requests only if the sender
//! belongs to the cluster that the master leads.

use fusee_control::master::{
    ClusterEpochs, MasterReplyId, MasterRequest, Orphan, SessionHeartbeat,
};
use fusee_control::node::{BlockId, MemberBars};
use fusee_core::data::Redundancy;
use fusee_core::layout::SizeClass;
use fusee_core::stats::SessionWork;
use fusee_core::verbs::{ClientId, ClusterId, MnId};
use fusee_core::view::Member;

/// A request, classified by the part of the master that answers it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RoutedRequest {
    /// A request that the host of the logic answers.
    Host(HostRequest),
    /// A request that the logic answers.
    Logic(LogicRequest),
}

/// A request that the host of the logic answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostRequest {
    /// [`MasterRequest::Events`].
    Events {
        /// The serial number of the newest event that the sender knows; 0 for none.
        after: u64,
    },
    /// [`MasterRequest::ViewPiece`]. If there is no view, the logic answers instead ([`ClusterRequest::ViewPiece`]).
    ViewPiece {
        /// The number of the view that is fetched in pieces.
        number: u64,
        /// The offset of the piece's first byte in the encoded view.
        from: u64,
    },
}

/// A request that the logic answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LogicRequest {
    /// A request about the cluster as a whole.
    Identity(IdentityRequest),
    /// A request within a cluster.
    Cluster(ClusterRequest),
}

/// A request to form or destroy a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IdentityRequest {
    /// [`MasterRequest::Form`].
    Form {
        /// The id of the new cluster.
        cluster: ClusterId,
    },
    /// [`MasterRequest::Destroy`].
    Destroy {
        /// The cluster to destroy.
        cluster: ClusterId,
        /// Whether to destroy it even if memory nodes that hold data are present.
        with_living_data: bool,
    },
}

/// A request within a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClusterRequest {
    /// [`MasterRequest::Join`]. The master has yet to choose the node's name.
    Join(Member),
    /// [`MasterRequest::Open`].
    Open,
    /// [`MasterRequest::TakeOrphan`].
    TakeOrphan(OrphanRequest),
    /// [`MasterRequest::HandOn`].
    HandOn(HandOver),
    /// [`MasterRequest::Close`].
    Close {
        /// The session's id.
        client: ClientId,
        /// The blocks that the session hands on.
        orphans: Vec<Orphan>,
        /// Counts of the session's operations since it began.
        work: Box<SessionWork>,
    },
    /// [`MasterRequest::Heartbeat`].
    Heartbeat(ProcessHeartbeat),
    /// [`MasterRequest::Abandon`].
    Abandon {
        /// The session's id.
        client: ClientId,
    },
    /// [`MasterRequest::Unreachable`].
    Unreachable {
        /// The memory node that the session reports.
        node: MnId,
    },
    /// [`MasterRequest::Alive`].
    Alive(NodeHeartbeat),
    /// [`MasterRequest::ViewPiece`] to a master without a view.
    ViewPiece,
    /// [`MasterRequest::Status`].
    Status,
    /// [`MasterRequest::FurtherClient`].
    FurtherClient {
        /// The session's id.
        client: ClientId,
    },
    /// A request that has to wait until the cluster is formed.
    Formed(FormedRequest),
}

/// A request that only a formed cluster can answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FormedRequest {
    /// [`MasterRequest::Split`].
    Split {
        /// The number of the full subtable.
        subtable: u32,
        /// The number of the view in which the subtable was full.
        view: u64,
    },
    /// [`MasterRequest::MoreRoom`].
    MoreRoom(RegionRequest),
    /// [`MasterRequest::Drain`].
    Drain {
        /// The memory node to drain.
        node: MnId,
        /// Whether to cancel the drain of the node.
        cancel: bool,
    },
    /// [`MasterRequest::GetView`].
    GetView {
        /// The number of the view that the sender has; 0 for none.
        newer_than: u64,
    },
    /// [`MasterRequest::Owners`].
    Owners,
}

/// [`MasterRequest::TakeOrphan`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OrphanRequest {
    /// The session's id.
    pub client: ClientId,
    /// The number of this request in the session.
    pub turn: u64,
    /// Blocks that the session has taken over, each with the number of the request for which it was given.
    pub adopted: Vec<(BlockId, u64)>,
    /// The size class that the session needs; `None` for any.
    pub class: Option<SizeClass>,
    /// The redundancy that the objects in the block's region must have.
    pub redundancy: Redundancy,
    /// Whether the session also accepts a block whose objects have all been allocated before.
    pub full: bool,
    /// The number of the view that the session uses to take the block over.
    pub view: u64,
}

/// [`MasterRequest::HandOn`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HandOver {
    /// The session's id.
    pub client: ClientId,
    /// The number of this request in the session.
    pub serial: u64,
    /// The blocks that the session hands on.
    pub orphans: Vec<Orphan>,
    /// Those of the blocks in which the session has just seen objects in use.
    pub used: Vec<BlockId>,
}

/// [`MasterRequest::Heartbeat`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessHeartbeat {
    /// All open sessions of the process.
    pub sessions: Vec<SessionHeartbeat>,
    /// The number of the newest view that the process has; 0 for none.
    pub newer_than: u64,
    /// The epochs that the process knows.
    pub known: ClusterEpochs,
    /// Whether the process waits for later epochs.
    pub reclaims: bool,
    /// The latest call for memory that the process has acknowledged; 0 for none.
    pub acked: u64,
}

/// [`MasterRequest::MoreRoom`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegionRequest {
    /// The session's id.
    pub client: ClientId,
    /// The number of the view that the session used when it asked the members for blocks.
    pub view: u64,
    /// The redundancy of the objects for which the session needs room.
    pub redundancy: Redundancy,
    /// The number of the call for memory for whose end the session waits; 0 for none.
    pub call: u64,
}

/// [`MasterRequest::Alive`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeHeartbeat {
    /// The node's identity.
    pub identity: u64,
    /// The latest answer that the node has received from a master.
    pub heard: Option<MasterReplyId>,
    /// The bars of the node at the time of this heartbeat.
    pub bars: MemberBars,
}

impl From<MasterRequest> for RoutedRequest {
    fn from(request: MasterRequest) -> RoutedRequest {
        use MasterRequest as Asked;
        let request = match request {
            Asked::Events { after } => return RoutedRequest::Host(HostRequest::Events { after }),
            Asked::ViewPiece { number, from } => {
                return RoutedRequest::Host(HostRequest::ViewPiece { number, from });
            }
            Asked::Form { cluster } => return IdentityRequest::Form { cluster }.into(),
            Asked::Destroy { cluster, with_living_data } => {
                return IdentityRequest::Destroy { cluster, with_living_data }.into();
            }
            Asked::Join { identity, control, tcp, shm, verbs, pool_bytes } => {
                let node = MnId(u16::MAX);
                let new = Member { node, identity, control, tcp, shm, verbs, pool_bytes };
                ClusterRequest::Join(new)
            }
            Asked::Open => ClusterRequest::Open,
            Asked::TakeOrphan { client, turn, adopted, class, redundancy, full, view } => {
                let request =
                    OrphanRequest { client, turn, adopted, class, redundancy, full, view };
                ClusterRequest::TakeOrphan(request)
            }
            Asked::HandOn { client, serial, orphans, used } => {
                ClusterRequest::HandOn(HandOver { client, serial, orphans, used })
            }
            Asked::Close { client, orphans, work } => {
                ClusterRequest::Close { client, orphans, work }
            }
            Asked::Heartbeat { sessions, newer_than, known, reclaims, acked } => {
                let beat = ProcessHeartbeat { sessions, newer_than, known, reclaims, acked };
                ClusterRequest::Heartbeat(beat)
            }
            Asked::Abandon { client } => ClusterRequest::Abandon { client },
            Asked::Unreachable { node } => ClusterRequest::Unreachable { node },
            Asked::Split { subtable, view } => FormedRequest::Split { subtable, view }.into(),
            Asked::MoreRoom { client, view, redundancy, call } => {
                FormedRequest::MoreRoom(RegionRequest { client, view, redundancy, call }).into()
            }
            Asked::Drain { node, cancel } => FormedRequest::Drain { node, cancel }.into(),
            Asked::Alive { identity, heard, bars } => {
                ClusterRequest::Alive(NodeHeartbeat { identity, heard, bars })
            }
            Asked::GetView { newer_than } => FormedRequest::GetView { newer_than }.into(),
            Asked::Status => ClusterRequest::Status,
            Asked::FurtherClient { client } => ClusterRequest::FurtherClient { client },
            Asked::Owners => FormedRequest::Owners.into(),
        };
        RoutedRequest::Logic(LogicRequest::Cluster(request))
    }
}

impl From<FormedRequest> for ClusterRequest {
    fn from(request: FormedRequest) -> ClusterRequest {
        ClusterRequest::Formed(request)
    }
}

impl From<ClusterRequest> for LogicRequest {
    fn from(request: ClusterRequest) -> LogicRequest {
        LogicRequest::Cluster(request)
    }
}

impl From<IdentityRequest> for RoutedRequest {
    fn from(request: IdentityRequest) -> RoutedRequest {
        RoutedRequest::Logic(LogicRequest::Identity(request))
    }
}
