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

/// A block that a session has left or handed on, and that other sessions can continue to use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Orphan {
    /// The orphaned block.
    pub block: BlockId,
    /// The client that the block tables name as the block's owner.
    pub owner: ClientId,
    /// The size class of the block's objects.
    pub class: SizeClass,
    /// The number of the first object that was never allocated; the number of objects if all were allocated.
    pub first: u32,
    /// See [`BlockRemainder::base`](fusee_core::slab::BlockRemainder::base).
    pub base: Option<u16>,
    /// See [`BlockRemainder::marked`](fusee_core::slab::BlockRemainder::marked).
    pub marked: Option<u64>,
}

/// The progress of epochs in the cluster. An operation belongs to the newest epoch that its process knows when the
/// operation begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterEpochs {
    /// The newest epoch of the cluster.
    pub newest: u64,
    /// An epoch. All operations of earlier epochs have ended, in all sessions.
    pub passed: u64,
    /// An epoch for which this is true: all objects that were freed by operations of earlier epochs have their free
    /// bits set, or will never have them set.
    pub settled: u64,
}

/// One session's part of a heartbeat: the sign that the session lives, and the view and epoch in which its operations
/// are pinned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionHeartbeat {
    /// The session's id.
    pub client: ClientId,
    /// The number of a view. No running operation of the session uses an older view, and no later operation will.
    pub pinned_by: u64,
    /// An epoch. No running operation of the session belongs to an earlier epoch, and no later operation will.
    pub pinned_in: u64,
    /// An epoch for which this is true: all objects that were freed by the session's operations of earlier epochs have
    /// their free bits set, or will never have them set.
    pub frees_in: u64,
    /// Whether the session has suspended writes whose result it does not know yet.
    pub has_suspended: bool,
    /// Damage that the session has found since it began.
    pub damage: Damage,
    /// Changes of redundancy that the session has made since it began, by its policy.
    pub transitions: Transitions,
    /// Counts of the session's operations since it began.
    pub work: SessionWork,
    /// Whether the session will possibly free memory or hand on blocks soon, because of what it is doing now.
    pub stirs: bool,
}

/// Identifies one answer of a master to a memory node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MasterReplyId {
    /// The master's id, a random number that is new with each start.
    pub by: u64,
    /// The time of the answer, in milliseconds of the master's own clock.
    pub at_ms: u64,
}

/// The beginning of a refusal's reason, if the refusal is due to facts that a newly started master does not know yet.
pub const NOT_KNOWN_YET: &str = "it is not known yet";

/// A request to the master. It is stamped with the cluster of its sender ([`Stamped`](crate::rpc::Stamped)). A master
/// that leads another cluster, or none, answers `WrongCluster`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum MasterRequest {
    /// Forms a cluster, with the master's settings, of the memory nodes that join from now on. The master must have no
    /// cluster. A repetition changes nothing. Answer: `Done` or `Refused`.
    Form {
        /// The name of the new cluster, a random number.
        cluster: ClusterId,
    },
    /// Destroys the cluster with all data on its memory nodes. These start again, empty, and the master leads no
    /// cluster any more. A repetition changes nothing. Answer: `Done` or `Refused`. If the reason of a refusal begins
    /// with [`NOT_KNOWN_YET`], the same request can succeed soon.
    Destroy {
        /// The cluster to destroy. Another cluster is not affected.
        cluster: ClusterId,
        /// Whether to destroy the cluster even if memory nodes that hold data are running.
        with_living_data: bool,
    },
    /// Offers the memory of a memory node to the cluster. A repetition gets the same answer. Answer: `Joined`.
    Join {
        /// The node's identity, a random number.
        identity: u64,
        /// Host and port of the node's control service.
        control: String,
        /// Host and port of the node's software NIC.
        tcp: Option<String>,
        /// Path of the node's Unix socket.
        shm: Option<String>,
        /// Host and port at which the node hands out queue pairs of its NIC.
        verbs: Option<String>,
        /// Size of the node's pool, in bytes.
        pool_bytes: u64,
    },
    /// Opens a session. Answer: `Opened`, or `NotReady` while the cluster is forming.
    Open,
    /// Asks for an orphaned block. Not idempotent: if the answer is lost, the block stays unused until the session
    /// ends, or, if another master has begun to lead, until the block's owner is recovered. Answer: `Orphan`.
    TakeOrphan {
        /// The session's id.
        client: ClientId,
        /// The session's number of this request. It also identifies the block in the answer.
        turn: u64,
        /// Blocks that the session has taken over, and that the master has not acknowledged yet, each with the number
        /// of the request by which the session got the block. The answer `Orphan` acknowledges them.
        adopted: Vec<(BlockId, u64)>,
        /// The size class that the session needs. `None` accepts a block of any class: possibly all of the block's
        /// objects are free, so that the block can go back to the pool.
        class: Option<SizeClass>,
        /// The redundancy that the objects in the block's region must have.
        redundancy: Redundancy,
        /// Whether the session also accepts a block whose objects have all been allocated before. If the session needs
        /// one size class, it gets such a block only if no suitable block has objects that were never allocated.
        full: bool,
        /// The number of the view that the session uses to take the block over.
        view: u64,
    },
    /// Hands on blocks that the session does not need, for sessions that are short of memory. The session goes on
    /// without these blocks. A repetition changes nothing, even if the session has got one of the blocks again since.
    /// Answer: `Done`.
    HandOn {
        /// The session's id.
        client: ClientId,
        /// The session's number of this request, from 1. The session sends the next `HandOn` only after this request
        /// was answered.
        serial: u64,
        /// The session's blocks that become orphaned blocks.
        orphans: Vec<Orphan>,
        /// Those of the blocks in which the session has just seen objects in use. Blocks with objects in use are
        /// useless to sessions that need another size class.
        used: Vec<BlockId>,
    },
    /// Ends a session of which no operation runs. Answer: `Done`.
    Close {
        /// The session's id.
        client: ClientId,
        /// The session's blocks, which become orphaned blocks.
        orphans: Vec<Orphan>,
        /// Counts of the session's operations since it began.
        work: Box<SessionWork>,
    },
    /// Renews the leases of the sessions of a client process. The answer is held until there is a newer view, or until
    /// the next heartbeat is due. Answer: `Heartbeat`.
    Heartbeat {
        /// All open sessions of the process.
        sessions: Vec<SessionHeartbeat>,
        /// The number of the newest view that the process has; 0 to get the newest view as a whole.
        newer_than: u64,
        /// The epochs that the process knows.
        known: ClusterEpochs,
        /// Whether the process waits for epochs to pass. If it does, the master does not hold the answer when there are
        /// newer epochs.
        reclaims: bool,
        /// The last call for memory that the process has acknowledged ([`MasterReply::Heartbeat`]); 0 for none.
        acked: u64,
    },
    /// Ends a session as if it had crashed, because its writes possibly need recovery. Sent only when no operation of
    /// the session runs any more. Answer: `Done`.
    Abandon {
        /// The session's id.
        client: ClientId,
    },
    /// Reports a memory node that does not answer a session. The master then checks whether the node still runs.
    /// Answer: `Done`.
    Unreachable {
        /// The memory node that the session reports.
        node: MnId,
    },
    /// Reports that a client found no free slot in a subtable. The master splits the subtable, which a newer view will
    /// show. Answer: `Done`; `TooDeep`; or `Refused`, if a split is impossible.
    Split {
        /// The number of the full subtable.
        subtable: u32,
        /// The number of the view in which the subtable was full.
        view: u64,
    },
    /// Reports that a client got no block from any member. The master adds regions, which a newer view will show.
    /// Answer: `Done`; `Called`, if no region can be added, but other sessions possibly have memory; `Refused`, if no
    /// region can be added and the call that the session waited for has ended; `Exhausted`; or `Degraded`.
    MoreRoom {
        /// The session's id.
        client: ClientId,
        /// The number of the view that the client used when it asked the members for blocks.
        view: u64,
        /// The redundancy of the objects for which there is no room.
        redundancy: Redundancy,
        /// The number of the call for memory that the session waits for ([`MasterReply::Called`]); 0 for none.
        call: u64,
    },
    /// Drains a memory node: its replicas move to other nodes, and then the cluster goes on without it. A repetition
    /// changes nothing. Answer: `Done`, or `Refused` with advice.
    Drain {
        /// The memory node to drain.
        node: MnId,
        /// Whether to stop draining: the node then remains a member with what it still holds.
        cancel: bool,
    },
    /// The heartbeat of a memory node. The answer is held until the next heartbeat is due; a master's first answer is
    /// not held. Answer: `Noted`, `Expelled`, `Drained`, or `Unknown`.
    Alive {
        /// The node's identity.
        identity: u64,
        /// The identification of the last answer of a master that the node has received.
        heard: Option<MasterReplyId>,
        /// The bars of the node, read after it received the answer in `heard`.
        bars: MemberBars,
    },
    /// Asks for the view, if there is a newer one. Answer: `View` or `NotReady`.
    GetView {
        /// The number of the view that the sender has; 0 for none.
        newer_than: u64,
    },
    /// Asks for a piece of a view that is too long for one message ([`view_pieces`](crate::view_pieces)). Answer:
    /// `ViewPiece` or `NotReady`.
    ViewPiece {
        /// The number of the view that is fetched in pieces.
        number: u64,
        /// The offset of the piece's first byte in the encoded view.
        from: u64,
    },
    /// Asks for the state of the cluster. Answer: `Status`.
    Status,
    /// Asks for the clients that block tables can name as owners. Answer: `Owners` or `NotReady`.
    Owners,
    /// Asks for events. Answer: `Events`.
    Events {
        /// The serial number of the newest event that the sender knows; 0 for none.
        after: u64,
    },
    /// Asks for a client id for the numbers of the session's further DELETEs. No session gets this id. Not idempotent:
    /// if the answer is lost, the id is never used. Answer: `FurtherClient`, or `Refused` if there is no such open
    /// session.
    FurtherClient {
        /// The session's id.
        client: ClientId,
    },
}

/// An answer of the master.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum MasterReply {
    /// The answer to `Join`.
    Joined {
        /// The node's id in this cluster.
        node: MnId,
    },
    /// The answer to `Open`.
    Opened {
        /// The id of the new session, which was never used before.
        client: ClientId,
        /// The current view.
        view: View,
        /// The current epoch.
        epoch: u64,
        /// The length of the lease, in milliseconds. The lease begins when the request was sent, or `behind_ms` before
        /// that.
        lease_ms: u64,
        /// As in [`MasterReply::Heartbeat`].
        behind_ms: u64,
        /// The rules for the redundancy of new pairs, and for its later changes.
        policy: Policy,
    },
    /// The answer to `TakeOrphan`: an orphaned block for the session.
    Orphan {
        /// The block; `None` if there is no suitable one.
        orphan: Option<Orphan>,
        /// Whether the session that owns the block is still open. If that session expires, the block is recovered
        /// together with the session's other blocks, and must not be taken over any more.
        owner_lives: bool,
    },
    /// The answer to `Heartbeat`.
    Heartbeat {
        /// The newest view, if the process does not have it yet: either the whole view, or its difference from the view
        /// that the process has.
        view: Option<ViewUpdate>,
        /// Those of the process's sessions that are fenced. The process must not use them any more.
        expelled: Vec<ClientId>,
        /// The progress of epochs in the cluster.
        epochs: ClusterEpochs,
        /// The newest epoch when the heartbeat arrived. All operations that had begun before the heartbeat was sent
        /// belong to this epoch or to earlier ones.
        mark: u64,
        /// The number of a call for memory, or 0. A call means that some session finds no memory: the sessions hand on
        /// what they can spare, once for each call.
        short: u64,
        /// The session that keeps its offered blocks in this call, because it is the only one that is short of memory.
        spared: Option<ClientId>,
        /// The length of the lease of all sessions that are not fenced, in milliseconds.
        lease_ms: u64,
        /// The time from the beginning of the lease until the heartbeat was sent, in milliseconds. The lease begins at
        /// the latest time T for which the master knows this: more than half of the memory nodes have received an
        /// answer that it gave at T or later, and bar no member. 0 if T is not before the heartbeat; `u64::MAX` if
        /// there is no T, so that no session has a valid lease.
        behind_ms: u64,
    },
    /// The answer to `Alive` for a node that the master knows.
    Noted {
        /// The identification of this answer, which the node reports with its next heartbeat.
        note: MasterReplyId,
        /// The length of the lease, in milliseconds.
        lease_ms: u64,
    },
    /// The answer to `Alive` if the cluster goes on without this node. The node is allowed to join again, empty and
    /// with another identity.
    Expelled,
    /// The answer to `Alive` if the node has been drained. The node holds nothing any more, and should end.
    Drained,
    /// The answer to `Alive` for a node that the master does not know: either the node never joined this cluster, or
    /// the master was started on a store that is older than the node's membership.
    Unknown,
    /// The answer to any request whose sender belongs to another cluster than the master leads. The request had no
    /// effect. [`MasterClient`](crate::rpc::MasterClient) converts this answer into an error.
    WrongCluster {
        /// The cluster that the master leads; `None` if it leads none.
        cluster: Option<ClusterId>,
    },
    /// The answer to `GetView`; `None` if the sender's view is the newest.
    View(Option<View>),
    /// The answer to `ViewPiece`: a piece of the requested view, or the first piece of a newer one.
    ViewPiece {
        /// The number of the view that is sent in pieces.
        number: u64,
        /// The offset of the piece's first byte in the encoded view.
        from: u64,
        /// Length of the whole encoded view, in bytes.
        total: u64,
        /// The piece: a part of the encoded view.
        bytes: Vec<u8>,
    },
    /// The answer to `Status`.
    Status(Box<Status>),
    /// The answer to `Owners`.
    Owners(BlockOwners),
    /// The answer to `Events`: the oldest events with later serial numbers that the master still has, in order, at most
    /// [`MAX_TOLD`](crate::events::MAX_TOLD) of them.
    Events {
        /// The events.
        events: Vec<ClusterEvent>,
        /// The serial number of the newest event. It is lower than before if the newest events were lost with a master,
        /// or the store was replaced.
        newest: u64,
    },
    /// The request has been carried out, by this message or by an earlier copy of it.
    Done,
    /// The cluster is still forming. The sender should ask again.
    NotReady {
        /// Number of memory nodes that have joined.
        joined: u32,
        /// Number of memory nodes that the cluster needs to form.
        expected: u32,
    },
    /// An answer to `MoreRoom`: the master has called on other sessions to hand on memory.
    Called {
        /// The number of the call for memory, which the session's next request contains.
        call: u64,
    },
    /// An answer to `MoreRoom`: no region can be added, and the call for memory was in vain. No session has handed on
    /// memory for it, or was doing anything that frees memory. It is useless to ask again at once.
    Exhausted,
    /// An answer to `Split`: the subtable cannot be split again, because the index has its greatest depth there
    /// ([`View::deepest`](fusee_core::view::View::deepest)). Too many of its keys have the same hash bits.
    TooDeep,
    /// An answer to `MoreRoom`: no region is added until there is a memory node for the missing replicas. It is useless
    /// to ask again at once.
    Degraded {
        /// A text that names the missing replicas, and gives advice.
        reason: String,
    },
    /// The request is refused.
    Refused {
        /// A text that gives the reason for the refusal, and advice.
        reason: String,
    },
    /// The master that answers stands by: another master leads, or will soon lead. The request had no effect that any
    /// process has seen.
    NotLeader {
        /// Host and port of the leading master, if the master that answers knows it.
        leader: Option<String>,
    },
    /// The answer to `FurtherClient`.
    FurtherClient {
        /// The client id, which was never used before.
        client: ClientId,
    },
}

/// The state of the cluster as the master sees it, for operators.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// The cluster that this master leads; `None` if none has been formed.
    pub cluster: Option<ClusterId>,
    /// Number of memory nodes that the cluster needs to form.
    pub expected_memory_nodes: u32,
    /// Memory nodes that have joined, ordered by id, including lost and drained ones.
    pub members: Vec<MemberStatus>,
    /// Number of replicas of the subtable that has the fewest.
    pub index_replicas: u8,
    /// Number of replicas of the replicated region that has the fewest.
    pub data_replicas: u8,
    /// Number of replicas that subtables should have, by the master's settings.
    pub wanted_index_replicas: u8,
    /// Number of replicas that replicated regions should have, by the master's settings.
    pub wanted_data_replicas: u8,
    /// Number of subtables and regions that have fewer replicas than they should.
    pub missing_replicas: u64,
    /// Whether replicas are to be moved, to members that hold less than their share or from a node that is being
    /// drained.
    pub rebalancing: bool,
    /// Number of open sessions.
    pub open_sessions: u64,
    /// Number of sessions that have expired and are not recovered yet.
    pub expired_sessions: u64,
    /// Number of client ids used so far, including those of the master's own repair sessions.
    pub sessions_opened: u64,
    /// The current view; `None` while the cluster forms.
    pub view: Option<View>,
    /// Milliseconds since the current view took effect, or since this master has known that view.
    pub view_age_ms: u64,
    /// Number of clients recovered since this master started.
    pub recoveries: u64,
    /// The latest recoveries, the oldest of them first.
    pub last_recoveries: Vec<ClientRecovery>,
    /// Number of changes of the view that were completed since this master started.
    pub reconfigurations: u64,
    /// The latest changes of the view, the oldest of them first. The last one is possibly still running.
    pub last_reconfigurations: Vec<Reconfiguration>,
    /// Counts of replicas of objects that sessions and repairs found damaged since this master started.
    pub damage: Damage,
    /// The rules for the redundancy of new pairs, and for its later changes.
    pub policy: Policy,
    /// Counts of redundancy changes that sessions have made, by the cluster's policy, since this master started.
    pub transitions: Transitions,
    /// Counts of the sessions' operations since this master started, as far as sessions have reported them.
    pub work: SessionWork,
    /// The current epoch.
    pub epoch: u64,
    /// The length of a lease, in milliseconds.
    pub lease_ms: u64,
    /// Results of the scrubber.
    pub scrub: ScrubStatus,
    /// The problem that keeps the cluster from forming or from having all its replicas, and advice; `None` if there is
    /// none.
    pub problem: Option<String>,
    /// The number of regions of replicated values for which there is room now; at most the number of regions that one
    /// change adds.
    pub more_regions: u64,
    /// The reason why no region of replicated values can be added now; `None` if one can be.
    pub no_region: Option<String>,
}

/// Results of the scrubber since the master started. The scrubber also reads memory that possibly no client ever reads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScrubStatus {
    /// Number of complete passes over the index and all objects that it leads to.
    pub passes: u64,
    /// Number of bytes that were read.
    pub bytes: u64,
    /// Number of subtables whose replicas differed, and were made equal.
    pub settled_subtables: u64,
    /// Number of regions whose free bitmaps contradicted the index, and were renewed.
    pub renewed_regions: u64,
    /// Number of pairs without an undamaged replica in the last pass.
    pub lost_pairs: u64,
}

/// The clients that possibly own blocks, and the blocks that ended sessions have left.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlockOwners {
    /// The ids of the open sessions, in ascending order.
    pub open: Vec<ClientId>,
    /// The ids of the sessions that have expired and are not recovered yet, in ascending order.
    pub expired: Vec<ClientId>,
    /// The first client id that has not been used yet.
    pub unused_from: ClientId,
    /// The orphaned blocks.
    pub orphans: Vec<Orphan>,
}

/// The state of a memory node in the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum MemberState {
    /// The node is a member.
    InView,
    /// The node will become a member with the next view.
    Joining,
    /// The node has joined, but cannot become a member now.
    Waiting,
    /// The node is a member, and its replicas are being moved to other members.
    Draining,
    /// The node has been drained, and the cluster goes on without it.
    Drained,
    /// The node has failed. The cluster goes on without the node, or will do so when it can.
    Lost,
}

/// A memory node, as the master sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberStatus {
    /// The node's id.
    pub node: MnId,
    /// Host and port of the node's control service.
    pub control: String,
    /// The node's state in the cluster.
    pub state: MemberState,
}

/// Durations of the parts of a recovery, as in the paper's Table 1, in microseconds. The first two parts are done only
/// once for all clients that are recovered together. Their whole duration appears in the times of each of these
/// clients.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecoveryTimes {
    /// Time to fence the dead client once more, on all memory nodes.
    pub reconnect_us: u64,
    /// Time to ask the memory nodes for the dead client's blocks.
    pub metadata_us: u64,
    /// Time to read the client's logs, and to complete or withdraw the writes that they show as unfinished.
    pub log_us: u64,
    /// Time to make the replicas of the block tables equal.
    pub repair_us: u64,
    /// Time to free the blocks that the dead client never used.
    pub free_lists_us: u64,
}

/// The recovery of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClientRecovery {
    /// The id of the dead client.
    pub client: ClientId,
    /// Number of the client's blocks.
    pub blocks: u64,
    /// Number of the client's blocks that were freed.
    pub freed: u64,
    /// Number of the client's blocks that have become orphaned blocks, because they have unused objects.
    pub orphans: u64,
    /// Number of objects in the client's logs.
    pub walked: u64,
    /// Number of the client's writes that recovery completed.
    pub committed: u64,
    /// Number of the client's writes that recovery withdrew.
    pub withdrawn: u64,
    /// Number of slots and objects in a state that no correct client leaves.
    pub strange: u64,
    /// Durations of the parts of the recovery.
    pub times: RecoveryTimes,
}

/// A change of the view, with all its stages.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reconfiguration {
    /// The memory nodes that were lost.
    pub lost: Vec<MnId>,
    /// Number of subtables that the change of the view concerns.
    pub subtables: u64,
    /// Number of replicas that were added, of subtables and of regions.
    pub joined: u64,
    /// Number of replicas that moved from one memory node to another.
    pub moved: u64,
    /// Number of new regions.
    pub new_regions: u64,
    /// Milliseconds in the frozen stage, until all sessions had stopped writing to what the change concerns.
    pub frozen_ms: u64,
    /// Milliseconds in the transforming stage, until the replicas were equal, or new ones were filled.
    pub transforming_ms: u64,
    /// Milliseconds in the switched stage, until all sessions had found out the results of their suspended writes.
    pub switched_ms: u64,
    /// If nodes were lost, milliseconds from the beginning of the change until no replica was missing any more; `None`
    /// until then.
    pub whole_after_ms: Option<u64>,
}
