//! Requests to the master, and its answers.

use fusee_core::data::{Policy, Redundancy, Transitions};
use fusee_core::layout::SizeClass;
use fusee_core::stats::{Damage, SessionWork};
use fusee_core::verbs::{ClientId, ClusterId, MnId};
use fusee_core::view::View;
use fusee_core::view::update::ViewUpdate;
use serde::{Deserialize, Serialize};

use crate::events::ClusterEvent;
use crate::node::{BlockId, MemberBars};

/// A block that a client has left, for other sessions to continue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Orphan {
    /// The block.
    pub block: BlockId,
    /// The owner in the block tables.
    pub owner: ClientId,
    /// The size class of its objects.
    pub class: SizeClass,
    /// The first object that was never allocated; the number of objects if all were.
    pub first: u32,
    /// See [`BlockRemainder::marked`](fusee_core::slab::BlockRemainder::marked).
    pub marked: Option<u64>,
}

/// Epochs. An operation belongs to the newest epoch that its process knows when it begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterEpochs {
    /// The newest epoch.
    pub newest: u64,
    /// All operations of epochs before this one have ended, everywhere.
    pub passed: u64,
    /// Every object that operations of epochs before this one had to free is free, or never will be.
    pub settled: u64,
}

/// A session's part of a heartbeat. It tells that the session lives, and by which view it is pinned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionHeartbeat {
    /// The session.
    pub client: ClientId,
    /// The session is pinned by no view older than this one: it has no operation that began under one, and will
    /// begin none.
    pub pinned_by: u64,
    /// The session has no operation of an epoch before this one, and will begin none.
    pub pinned_in: u64,
    /// Every object that its operations of epochs before this one had to free is free, or never will be.
    pub frees_in: u64,
    /// Whether the session has suspended writes without a known result.
    pub has_suspended: bool,
    /// Damage that the session has found since it began.
    pub damage: Damage,
    /// Changes of redundancy that the session has made since it began, by its policy.
    pub transitions: Transitions,
    /// Results of its operations since it began.
    pub work: SessionWork,
    /// Whether the session may soon free memory or hand some on, by its present activity.
    pub stirs: bool,
}

/// The name of one answer of a master to a memory node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MasterReplyId {
    /// The master: a random number, new with each start.
    pub by: u64,
    /// The time of the answer, in milliseconds of the master's own clock.
    pub at_ms: u64,
}

/// The beginning of a refusal's reason if it concerns facts that a newly started master does not know yet.
pub const NOT_KNOWN_YET: &str = "it is not known yet";

/// A request to the master. It is stamped with the cluster of the asker ([`Stamped`](crate::rpc::Stamped)). A
/// master of another cluster, or of none, answers `WrongCluster`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum MasterRequest {
    /// Forms a cluster of the memory nodes that join from now on, by the master's settings. The master must
    /// have no cluster. A repetition changes nothing. Answer: `Done` or `Refused`.
    Form {
        /// The name of the new cluster, a random number.
        cluster: ClusterId,
    },
    /// Gives up the cluster with all data on its memory nodes: these start again, empty, and the master has no
    /// cluster any more. A repetition changes nothing. Answer: `Done` or `Refused`. The reason of a refusal
    /// begins with [`NOT_KNOWN_YET`] if the same request may soon have another answer.
    Destroy {
        /// The cluster to give up. Nothing happens to another one.
        cluster: ClusterId,
        /// Give it up even if memory nodes that hold data are present.
        with_living_data: bool,
    },
    /// Offers the memory of a memory node. A repetition gets the same answer. Answer: `Joined`.
    Join {
        /// The node's random identity.
        identity: u64,
        /// Host and port of its control service.
        control: String,
        /// Host and port of its software NIC.
        tcp: Option<String>,
        /// Path of its Unix socket.
        shm: Option<String>,
        /// Host and port at which it hands out queue pairs of its NIC.
        verbs: Option<String>,
        /// Bytes of its pool.
        pool_bytes: u64,
    },
    /// Opens a session. Answer: `Opened`, or `NotReady` while the cluster forms.
    Open,
    /// Asks for a block that another session left. Not idempotent: a lost answer costs one block until the
    /// session ends, or, if another master leads by then, until the block's owner is recovered. Answer:
    /// `Orphan`.
    TakeOrphan {
        /// The session's id.
        client: ClientId,
        /// The number of this request in the session. It also names the block that is given in answer.
        turn: u64,
        /// Blocks that the session has taken over since it last heard an answer to such a request. Each comes with
        /// the number of the request that it was given for.
        adopted: Vec<(BlockId, u64)>,
        /// The size class that the session needs. `None` if it takes any block: objects of it, or all of it,
        /// may be free, so that the block can go back to the pool.
        class: Option<SizeClass>,
        /// The redundancy of the objects of the block's region.
        redundancy: Redundancy,
        /// Whether the session also takes a block of which all objects were allocated once. Blocks with room
        /// are preferred.
        full: bool,
        /// The number of the view by which the session will take the block over.
        view: u64,
    },
    /// Hands on blocks that the session does not need, for sessions that are short of memory. It goes on
    /// without them. A repetition changes nothing, even if the session has got one of the blocks again since.
    /// Answer: `Done`.
    HandOn {
        /// The session's id.
        client: ClientId,
        /// The number of this request in the session, from 1. The next one is sent after this one is answered.
        serial: u64,
        /// The blocks.
        orphans: Vec<Orphan>,
        /// Blocks among these in which the session has just seen objects in use. They are useless to sessions that
        /// need another size class.
        used: Vec<BlockId>,
    },
    /// Ends a session that has no running operation. Answer: `Done`.
    Close {
        /// The session's id.
        client: ClientId,
        /// The blocks that it hands on.
        orphans: Vec<Orphan>,
        /// Results of its operations since it began.
        work: Box<SessionWork>,
    },
    /// Renews the leases of the sessions of a client process. The answer waits until there is a newer view, or
    /// until the next heartbeat is due. Answer: `Heartbeat`.
    Heartbeat {
        /// All open sessions of the process.
        sessions: Vec<SessionHeartbeat>,
        /// The number of the newest view that the process has; 0 to get the newest one whole.
        newer_than: u64,
        /// The epochs that the process knows.
        known: ClusterEpochs,
        /// Whether the process waits for later epochs. Then the answer comes as soon as there are.
        reclaims: bool,
        /// The last call for memory that it has acknowledged ([`MasterReply::Heartbeat`]); 0 for none.
        acked: u64,
    },
    /// Ends a session as if it had crashed, since its writes may need recovery. Sent only when none of its
    /// operations runs any more. Answer: `Done`.
    Abandon {
        /// The session's id.
        client: ClientId,
    },
    /// Reports a memory node that does not answer a session, so that the master looks after it. Answer: `Done`.
    Unreachable {
        /// The node.
        node: MnId,
    },
    /// Reports a subtable in which a client found no free slot. The master splits it, which a newer view will
    /// show. Answer: `Done`; `TooDeep`; or `Refused`, if that is impossible.
    Split {
        /// The subtable.
        subtable: u32,
        /// The number of the view in which the subtable was full.
        view: u64,
    },
    /// Reports that a client got no block from any member. The master adds regions, which a newer view will
    /// show. Answer: `Done`; `Called`, if that is impossible, but other sessions may have memory; `Refused`, if
    /// they had none; `Exhausted`; or `Degraded`.
    MoreRoom {
        /// The session's id.
        client: ClientId,
        /// The number of the view by which the client asked for blocks.
        view: u64,
        /// The redundancy of the objects to make room for.
        redundancy: Redundancy,
        /// The call that the session waits for ([`MasterReply::Called`]); 0 for none.
        call: u64,
    },
    /// Drains a memory node: its content moves to other nodes, and then the cluster goes on without it. A
    /// repetition changes nothing. Answer: `Done`, or `Refused` with advice.
    Drain {
        /// The node.
        node: MnId,
        /// Stop draining: the node stays with what it still holds.
        cancel: bool,
    },
    /// The heartbeat of a memory node. The answer waits until the next heartbeat is due, but a master's first
    /// answer comes at once. Answer: `Noted`, `Expelled`, `Drained`, or `Unknown`.
    Alive {
        /// The node's identity.
        identity: u64,
        /// The last answer that the node has received.
        heard: Option<MasterReplyId>,
        /// The bars of the node, after it has received that answer.
        bars: MemberBars,
    },
    /// Asks for the view, if it is newer. Answer: `View` or `NotReady`.
    GetView {
        /// The number of the view that the asker has; 0 for none.
        newer_than: u64,
    },
    /// Asks for a part of a view that is too long for one message ([`view_pieces`](crate::view_pieces)). Answer:
    /// `ViewPiece` or `NotReady`.
    ViewPiece {
        /// The number of the view.
        number: u64,
        /// The first byte of the piece.
        from: u64,
    },
    /// Asks for the state of the cluster. Answer: `Status`.
    Status,
    /// Asks for the clients that may stand as owners in the block tables. Answer: `Owners` or `NotReady`.
    Owners,
    /// Asks for events. Answer: `Events`.
    Events {
        /// The serial of the newest event that the asker knows; 0 for none.
        after: u64,
    },
}

/// An answer of the master.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum MasterReply {
    /// To `Join`.
    Joined {
        /// The node's name in this cluster.
        node: MnId,
    },
    /// To `Open`.
    Opened {
        /// The new session's id, never used before.
        client: ClientId,
        /// The current view.
        view: View,
        /// The current epoch.
        epoch: u64,
        /// The length of the lease, in milliseconds. It begins when the request was sent, or `behind_ms` before
        /// that.
        lease_ms: u64,
        /// See [`MasterReply::Heartbeat`].
        behind_ms: u64,
        /// The redundancy of new pairs, and the rules by which it changes later.
        policy: Policy,
    },
    /// To `TakeOrphan`: a block of this class that is now the session's, if there was one.
    Orphan {
        /// The block.
        orphan: Option<Orphan>,
        /// Whether the owner of the block has not ended. Should the owner expire, the block is recovered with
        /// it, and must not be taken over any more.
        owner_lives: bool,
    },
    /// To `Heartbeat`.
    Heartbeat {
        /// The newest view, if the process does not have it yet. It is whole, or the difference to the view
        /// that the process has.
        view: Option<ViewUpdate>,
        /// The fenced ones among the sessions. They must not be used any more.
        expelled: Vec<ClientId>,
        /// The epochs.
        epochs: ClusterEpochs,
        /// The newest epoch when the heartbeat arrived: all operations that had begun before it was sent belong
        /// to this epoch or to earlier ones.
        mark: u64,
        /// The number of a call for memory, or 0. Some session finds no memory, so the sessions hand on what
        /// they can spare, once for each call.
        short: u64,
        /// The length of the lease of all sessions that are not fenced, in milliseconds.
        lease_ms: u64,
        /// The lease begins this many milliseconds before the heartbeat was sent: at the latest time when more
        /// than half of the memory nodes are known to have heard this master, and bar no member. 0 if that was
        /// not before the heartbeat; `u64::MAX` if it never was, and then no session has a valid lease.
        behind_ms: u64,
    },
    /// To `Alive`: the master knows the node.
    Noted {
        /// The name of this answer, which the node reports with its next heartbeat.
        note: MasterReplyId,
        /// The lease, in milliseconds.
        lease_ms: u64,
    },
    /// To `Alive`: the cluster goes on without this node. The node may join again, empty, with another
    /// identity.
    Expelled,
    /// To `Alive`: the node has been drained. It holds nothing any more, and should end.
    Drained,
    /// To `Alive`: the master knows no such node. Either the node never joined this cluster, or the master goes
    /// on from a store that is older than the node's membership.
    Unknown,
    /// The master leads another cluster than the asker's, or none. The request had no effect.
    /// [`MasterClient`](crate::rpc::MasterClient) makes an error of this answer.
    WrongCluster {
        /// The cluster that the master leads.
        cluster: Option<ClusterId>,
    },
    /// To `GetView`; `None` if the asker's view is the newest.
    View(Option<View>),
    /// To `ViewPiece`: a piece of the requested view, or the first piece of a newer one.
    ViewPiece {
        /// The number of the view.
        number: u64,
        /// The first byte.
        from: u64,
        /// Bytes of the whole encoded view.
        total: u64,
        /// The piece.
        bytes: Vec<u8>,
    },
    /// To `Status`.
    Status(Box<Status>),
    /// To `Owners`.
    Owners(BlockOwners),
    /// To `Events`: the oldest events with later serials that the master still has, in order, at most
    /// [`MAX_TOLD`](crate::events::MAX_TOLD).
    Events {
        /// The events.
        events: Vec<ClusterEvent>,
        /// The serial of the newest event. It is lower than before if the last events were lost with the
        /// master, or the store was replaced.
        newest: u64,
    },
    /// The request has been carried out, now or before.
    Done,
    /// The cluster is still forming. The asker should ask again.
    NotReady {
        /// Memory nodes that have joined.
        joined: u32,
        /// Memory nodes that the cluster waits for.
        expected: u32,
    },
    /// To `MoreRoom`: other sessions are called upon to hand on memory.
    Called {
        /// The number of the call, for the next request.
        call: u64,
    },
    /// To `MoreRoom`: as `Refused`; moreover, no session that was called upon handed memory on, or did anything
    /// that frees memory. Asking again at once is useless.
    Exhausted,
    /// To `Split`: the subtable is as deep as the index may be
    /// ([`View::deepest`](fusee_core::view::View::deepest)). Its keys hash alike, so splits do not help.
    TooDeep,
    /// To `MoreRoom`: no region is added until missing replicas have another memory node. Asking again at once
    /// is useless.
    Degraded {
        /// The replicas that are missing, and advice.
        reason: String,
    },
    /// The request is refused.
    Refused {
        /// The reason, and advice.
        reason: String,
    },
    /// This master stands by: another one leads, or is about to. The request had no effect that any process has
    /// seen.
    NotLeader {
        /// Host and port of the leader, if it is known.
        leader: Option<String>,
    },
}

/// The state of the cluster as the master sees it, for people.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// The cluster that this master leads; `None` if none has been formed.
    pub cluster: Option<ClusterId>,
    /// Memory nodes that the cluster was started for.
    pub expected_memory_nodes: u32,
    /// Memory nodes that joined, in the order of their names, including lost ones.
    pub members: Vec<MemberStatus>,
    /// Replicas of the subtable with the fewest.
    pub index_replicas: u8,
    /// Replicas of the replicated region with the fewest.
    pub data_replicas: u8,
    /// Replicas that subtables should have, by the master's settings.
    pub wanted_index_replicas: u8,
    /// Replicas that replicated regions should have, by the master's settings.
    pub wanted_data_replicas: u8,
    /// Subtables and regions that have fewer replicas than they should.
    pub missing_replicas: u64,
    /// Whether replicas wait to be moved: to members that hold less than their share, or from one that is
    /// drained.
    pub rebalancing: bool,
    /// Open sessions.
    pub open_sessions: u64,
    /// Sessions that had expired and are not recovered yet.
    pub expired_sessions: u64,
    /// Client ids used so far; the master's own repair sessions take some.
    pub sessions_opened: u64,
    /// The current view; `None` while the cluster forms.
    pub view: Option<View>,
    /// Milliseconds since that view came into force, or since this master has known it.
    pub view_age_ms: u64,
    /// Clients recovered since this master started.
    pub recoveries: u64,
    /// The last recoveries, the oldest first.
    pub last_recoveries: Vec<ClientRecovery>,
    /// Changes of the view completed since this master started.
    pub reconfigurations: u64,
    /// The last changes, the oldest first; the last one may still run.
    pub last_reconfigurations: Vec<Reconfiguration>,
    /// Replicas of objects that sessions and repairs found damaged since this master started.
    pub damage: Damage,
    /// The redundancy of new pairs, and the rules by which it changes later.
    pub policy: Policy,
    /// Changes of redundancy that sessions have made by this policy since this master started.
    pub transitions: Transitions,
    /// Results of the sessions' operations since this master started, as far as sessions have reported them.
    pub work: SessionWork,
    /// The current epoch.
    pub epoch: u64,
    /// The lease, in milliseconds.
    pub lease_ms: u64,
    /// Results of the scrubber.
    pub scrub: ScrubStatus,
    /// The obstacle that keeps the cluster from forming or from being whole, and advice.
    pub problem: Option<String>,
    /// The number of regions of replicated values that could be added now, up to the number that is added at a
    /// time.
    pub more_regions: u64,
    /// The reason, if no region could be added.
    pub no_region: Option<String>,
}

/// Results of the scrubber since the master started. It also reads memory that perhaps no client ever reads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScrubStatus {
    /// Complete passes over the index and all that it leads to.
    pub passes: u64,
    /// Bytes read.
    pub bytes: u64,
    /// Subtables whose replicas differed, and were made equal.
    pub settled_subtables: u64,
    /// Regions with free bitmaps that contradicted the index, and were renewed.
    pub renewed_regions: u64,
    /// Pairs without an undamaged replica in the last pass.
    pub lost_pairs: u64,
}

/// The clients that may own blocks, and the blocks that ended sessions have left.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlockOwners {
    /// The open sessions, in order.
    pub open: Vec<ClientId>,
    /// The sessions that have expired and are not recovered yet, in order.
    pub expired: Vec<ClientId>,
    /// Ids from this one on have not been handed out.
    pub unused_from: ClientId,
    /// Blocks of ended sessions, for other sessions to continue.
    pub orphans: Vec<Orphan>,
}

/// The state of a memory node in the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum MemberState {
    /// It is a member.
    InView,
    /// It is about to become a member with the next view.
    Joining,
    /// It has joined, but cannot become a member now.
    Waiting,
    /// It is a member, and its content moves to others.
    Draining,
    /// It has been drained, and the cluster goes on without it.
    Drained,
    /// The cluster goes on without it, or would if that were possible.
    Lost,
}

/// A memory node, as the master sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberStatus {
    /// Its name.
    pub node: MnId,
    /// Host and port of its control service.
    pub control: String,
    /// Its state in the cluster.
    pub state: MemberState,
}

/// Durations of the parts of a recovery, as in the paper's Table 1, in microseconds. The first two parts are
/// done once for all clients that are recovered together; each of these shows the whole time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecoveryTimes {
    /// Fencing the client once more, at all memory nodes.
    pub reconnect_us: u64,
    /// Asking for its blocks.
    pub metadata_us: u64,
    /// Reading its logs, and ending the requests that these show half-way.
    pub log_us: u64,
    /// Making the replicas of the block tables agree.
    pub repair_us: u64,
    /// Freeing the blocks that it never used.
    pub free_lists_us: u64,
}

/// The recovery of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClientRecovery {
    /// The client.
    pub client: ClientId,
    /// The number of its blocks.
    pub blocks: u64,
    /// Blocks that were freed.
    pub freed: u64,
    /// Blocks with an unused rest that is handed on.
    pub orphans: u64,
    /// Objects in its logs.
    pub walked: u64,
    /// Writes that were completed.
    pub committed: u64,
    /// Writes that were withdrawn.
    pub withdrawn: u64,
    /// Slots and objects in a state that no correct client leaves.
    pub strange: u64,
    /// Durations of the parts.
    pub times: RecoveryTimes,
}

/// A change of the view through all its stages.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reconfiguration {
    /// The memory nodes that were lost.
    pub lost: Vec<MnId>,
    /// Subtables in its scope.
    pub subtables: u64,
    /// Replicas that were added, of subtables and of regions.
    pub joined: u64,
    /// Replicas that moved from one memory node to another.
    pub moved: u64,
    /// New regions.
    pub new_regions: u64,
    /// Milliseconds in the frozen stage, until all sessions had stopped in the scope.
    pub frozen_ms: u64,
    /// Milliseconds in the transforming stage, until the replicas were equal, or filled.
    pub transforming_ms: u64,
    /// Milliseconds in the switched stage, until all sessions had found the results of their suspended writes.
    pub switched_ms: u64,
    /// For a loss, the milliseconds from the beginning until no replica was missing any more; `None` as long as
    /// one is.
    pub whole_after_ms: Option<u64>,
}
