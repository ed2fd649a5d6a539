//! What the master is asked, and what it answers.

use fusee_core::data::{Policy, Redundancy, Transitions};
use fusee_core::layout::SizeClass;
use fusee_core::stats::{Damage, Work};
use fusee_core::update::ViewUpdate;
use fusee_core::verbs::{ClientId, ClusterId, MnId};
use fusee_core::view::View;
use serde::{Deserialize, Serialize};

use crate::events::ClusterEvent;
use crate::node::{Bars, BlockId};

/// A block that a client has left, for others to go on with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Orphan {
    /// The block.
    pub block: BlockId,
    /// Whose name stands in the block tables.
    pub owner: ClientId,
    /// The class its objects have.
    pub class: SizeClass,
    /// From this object on none was ever allocated; the number of its objects if all were.
    pub first: u32,
    /// See [`Remainder::marked`](fusee_core::slab::Remainder::marked).
    pub marked: Option<u64>,
}

/// Epochs: an operation belongs to the newest one that its process knows when it begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Epochs {
    /// The newest.
    pub newest: u64,
    /// All operations of earlier epochs than this one have ended, everywhere.
    pub passed: u64,
    /// What operations of earlier epochs than this one have freed is set free, or never will be.
    pub settled: u64,
}

/// What a session says of itself, again and again: that it is there, and by which view it is pinned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionHeartbeat {
    /// The session.
    pub client: ClientId,
    /// It is pinned by no view older than this one: neither has it operations that began under one, nor
    /// will it begin any.
    pub pinned_by: u64,
    /// It has no operations of earlier epochs than this one, and will begin none.
    pub pinned_in: u64,
    /// What its operations of earlier epochs than this one have freed is set free, or never will be.
    pub frees_in: u64,
    /// Whether operations of it were suspended by a change of the view, and have not found out yet
    /// what became of their writes.
    pub has_suspended: bool,
    /// What it found damaged since it began.
    pub damage: Damage,
    /// What it has done about redundancy since it began, by its policy.
    pub transitions: Transitions,
    /// What its operations came to since it began.
    pub work: Work,
    /// Whether it may soon free memory, or have some to hand on, by what it does now.
    pub stirs: bool,
}

/// Names an answer of a master to a memory node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Note {
    /// Which master: random, another one for each time that one begins.
    pub by: u64,
    /// When it answered, in milliseconds of its own clock.
    pub at_ms: u64,
}

/// How the reason of a refusal begins where it is about what a master that has just started does not know.
pub const NOT_KNOWN_YET: &str = "it is not known yet";

/// A request to the master. With it comes the cluster that the asker belongs to
/// ([`Stamped`](crate::rpc::Stamped)): a master of another one, or of none, answers `WrongCluster`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum MasterRequest {
    /// A cluster is to be formed, by a master that has none: of memory nodes that join from now on, by
    /// the master's settings. Repeating it changes nothing. Answer: `Done`, or `Refused`.
    Form {
        /// The name of the new cluster, drawn at random.
        cluster: ClusterId,
    },
    /// The cluster is to be given up, with all that its memory nodes hold: they start again, empty, and the
    /// master has no cluster any more. Repeating it changes nothing. Answer: `Done`, or `Refused`; the reason
    /// begins with [`NOT_KNOWN_YET`] where the same request may have another answer in a moment.
    Destroy {
        /// Which: nothing happens to another one.
        cluster: ClusterId,
        /// Also if memory nodes are there that hold data.
        with_living_data: bool,
    },
    /// A memory node offers its memory. Repeating it gives the same answer. Answer: `Joined`.
    Join {
        /// The node's random identity.
        identity: u64,
        /// Host and port of its control service.
        control: String,
        /// Host and port of its software NIC.
        tcp: Option<String>,
        /// Path of its Unix socket.
        shm: Option<String>,
        /// Host and port where it hands out queue pairs of its network card.
        verbs: Option<String>,
        /// Bytes of its pool.
        pool_bytes: u64,
    },
    /// A session wants to start. Answer: `Opened`, or `NotReady` while the cluster forms.
    Open,
    /// A session needs a block and would rather go on with one that another session left. Not
    /// idempotent: a lost answer costs one block, until the session ends; if another master leads by then, until the
    /// block's owner is recovered. Answer: `Orphan`.
    TakeOrphan {
        /// The session's id.
        client: ClientId,
        /// Names this request among those of the session, and what it is given in answer to it.
        turn: u64,
        /// What it had been given, in answer to which request, and has taken over since it heard an answer to
        /// this last.
        adopted: Vec<(BlockId, u64)>,
        /// The class of the objects that it needs. `None` if any block would do: some of it may be
        /// free, or all, so that it can go back to the pool.
        class: Option<SizeClass>,
        /// The redundancy of the objects of the block's region.
        redundancy: Redundancy,
        /// Whether a block will do of which all was allocated once. One with room comes first.
        full: bool,
        /// The number of the view by which it is going to take the block over.
        view: u64,
    },
    /// A session hands on blocks that it does not need, for somebody who is short of memory. It goes
    /// on without them. Repeating it changes nothing, also when the session has got one of the blocks
    /// again. Answer: `Done`.
    HandOn {
        /// The session's id.
        client: ClientId,
        /// Counts what the session hands on, from 1. The next one comes when this has been answered.
        serial: u64,
        /// The blocks.
        orphans: Vec<Orphan>,
        /// Those of which it has just seen that objects in them are in use: of no use to who is short
        /// of memory for another size class.
        used: Vec<BlockId>,
    },
    /// A session ends; it has no operation running. Answer: `Done`.
    Close {
        /// The session's id.
        client: ClientId,
        /// What it hands on.
        orphans: Vec<Orphan>,
        /// What its operations came to since it began.
        work: Box<Work>,
    },
    /// The sessions of a client process are there. The answer waits until there is a newer view,
    /// or until it is time to say so again. Answer: `Heartbeat`.
    Heartbeat {
        /// All open sessions of the process.
        sessions: Vec<SessionHeartbeat>,
        /// The number of the newest view that the process has; 0 to be told the newest one whole.
        newer_than: u64,
        /// The epochs that it knows.
        known: Epochs,
        /// Whether it waits for later ones: then the answer comes when there are.
        reclaims: bool,
        /// The last call for memory that it has acknowledged ([`MasterReply::Heartbeat`]); 0 for none.
        acked: u64,
    },
    /// A session ends as if it had crashed: something of it may have to be put right. To be told
    /// only when nothing of it runs any more. Answer: `Done`.
    Abandon {
        /// The session's id.
        client: ClientId,
    },
    /// A memory node does not answer a session: the master looks after it. Answer: `Done`.
    Unreachable {
        /// The node.
        node: MnId,
    },
    /// A client found no free slot in a subtable: it is split, which a newer view will show. Answer: `Done`;
    /// `TooDeep`; or `Refused`, if that cannot be.
    Split {
        /// The subtable.
        subtable: u32,
        /// The number of the view by which it was full.
        view: u64,
    },
    /// A client got no block from any member: regions are added, which a newer view will show. Answer:
    /// `Done`; `Called`, if that cannot be, but others may have memory; `Refused`, if they had none;
    /// `Exhausted`; or `Degraded`.
    MoreRoom {
        /// The session's id.
        client: ClientId,
        /// The number of the view by which it asked.
        view: u64,
        /// The redundancy of the objects that it needs room for.
        redundancy: Redundancy,
        /// The call that it waits for ([`MasterReply::Called`]); 0 for none.
        call: u64,
    },
    /// A memory node is to leave: what it holds goes to others, and then the cluster goes on
    /// without it. Repeating it changes nothing. Answer: `Done`, or `Refused` with what to do.
    Drain {
        /// The node.
        node: MnId,
        /// It stays after all, with what it still holds.
        cancel: bool,
    },
    /// A memory node is there. The answer waits until it is time to say so again, but the first one of a
    /// master comes at once. Answer: `Noted`, `Expelled`, `Drained`, or `Unknown`.
    Alive {
        /// The node's identity.
        identity: u64,
        /// The last answer that it has received.
        heard: Option<Note>,
        /// What it bars, now that it has received that.
        bars: Bars,
    },
    /// The view, if it is newer. Answer: `View` or `NotReady`.
    GetView {
        /// The number of the view that the asker has; 0 for none.
        newer_than: u64,
    },
    /// A part of a view that is too long for one message ([`pieces`](crate::pieces)). Answer: `ViewPiece`, or
    /// `NotReady`.
    ViewPiece {
        /// The number of the view.
        number: u64,
        /// The first byte of the piece.
        from: u64,
    },
    /// What is going on? Answer: `Status`.
    Status,
    /// Whose names may stand in the block tables? Answer: `Owners`, or `NotReady`.
    Owners,
    /// What has happened? Answer: `Events`.
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
        /// The lease, in milliseconds: so long the session counts as heard from this request on.
        lease_ms: u64,
        /// See [`MasterReply::Heartbeat`].
        behind_ms: u64,
        /// Which redundancy what is written gets, and when that changes by itself.
        policy: Policy,
    },
    /// To `TakeOrphan`: a block that is now the session's, if there is one of this class.
    Orphan {
        /// The block.
        orphan: Option<Orphan>,
        /// Its owner has not ended: should it expire, the block is recovered with it, and must
        /// not be taken over any more.
        owner_lives: bool,
    },
    /// To `Heartbeat`.
    Heartbeat {
        /// The newest view, if the process does not have it yet; whole, or as the difference to
        /// the one that it has.
        view: Option<ViewUpdate>,
        /// Which of the sessions are fenced: they must not be used any more.
        expelled: Vec<ClientId>,
        /// The epochs.
        epochs: Epochs,
        /// The newest epoch when the question came: all operations that had begun before it was
        /// asked are of this epoch or of earlier ones.
        mark: u64,
        /// Somebody finds no memory: what the sessions can do without is to be handed on, once for
        /// each such call. Its name; 0 if there is none.
        short: u64,
        /// The lease, in milliseconds: so long the sessions count as heard from this question on, except
        /// for those that are fenced.
        lease_ms: u64,
        /// So many milliseconds before the question the lease began: the last time that more than half of the
        /// memory nodes are known to have heard this master, and bar nobody. 0 if that was not before
        /// the question; `u64::MAX` if it never was, then nobody counts as heard.
        behind_ms: u64,
    },
    /// To `Alive`: the master takes note.
    Noted {
        /// To be told with the next one.
        note: Note,
        /// The lease, in milliseconds.
        lease_ms: u64,
    },
    /// To `Alive`: the cluster goes on without this node. It may join again, empty, under another
    /// identity.
    Expelled,
    /// To `Alive`: the node has been drained. Nothing lies on it any more; it should end.
    Drained,
    /// To `Alive`: the master knows no such node. Either it never joined this cluster, or the master
    /// goes on from a store that is older than the node's membership.
    Unknown,
    /// The master leads another cluster than the one that the asker belongs to, or none. The request
    /// had no effect. [`MasterClient`](crate::rpc::MasterClient) makes an error of it.
    WrongCluster {
        /// The cluster that it leads.
        cluster: Option<ClusterId>,
    },
    /// To `GetView`; `None` if the asker's view is the newest.
    View(Option<View>),
    /// To `ViewPiece`: of the view that was asked for, or the first piece of a newer one.
    ViewPiece {
        /// The number of the view.
        number: u64,
        /// The first byte.
        from: u64,
        /// Bytes of the whole view, as it is written.
        total: u64,
        /// The piece.
        bytes: Vec<u8>,
    },
    /// To `Status`.
    Status(Box<Status>),
    /// To `Owners`.
    Owners(Owners),
    /// To `Events`: those of later serials that the master still has, the oldest first, as many as one
    /// answer tells ([`MAX_TOLD`](crate::events::MAX_TOLD)).
    Events {
        /// The events.
        events: Vec<ClusterEvent>,
        /// The serial of the newest one that there is. It goes back if the last ones were lost with the master, or the
        /// store was replaced.
        newest: u64,
    },
    /// It is so.
    Done,
    /// The cluster is still forming; ask again.
    NotReady {
        /// Memory nodes that have joined.
        joined: u32,
        /// Memory nodes that it waits for.
        expected: u32,
    },
    /// Other sessions are called upon to hand on memory.
    Called {
        /// The name of the call, to be asked by again.
        call: u64,
    },
    /// To `MoreRoom`: as `Refused`; and while others were called upon nobody handed anything on, nor did
    /// anything by which memory becomes free. To ask again at once is in vain.
    Exhausted,
    /// To `Split`: the subtable is as deep as the index may be
    /// ([`View::deepest`](fusee_core::view::View::deepest)). Keys hash alike in it, and splits do not help.
    TooDeep,
    /// To `MoreRoom`: no region is added before replicas that are missing have another memory node. To ask again at
    /// once is in vain.
    Degraded {
        /// What is missing, and what to do.
        reason: String,
    },
    /// It cannot be.
    Refused {
        /// Why, and what to do.
        reason: String,
    },
    /// This master stands by: another one leads, or is about to. The request had no effect that
    /// anybody has seen.
    NotLeader {
        /// Host and port of the leader, if it is known.
        leader: Option<String>,
    },
}

/// The master's picture of the cluster, for people.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// The cluster that this master leads; `None` if none has been formed.
    pub cluster: Option<ClusterId>,
    /// Memory nodes that the cluster was started for.
    pub expected_memory_nodes: u32,
    /// Memory nodes that joined, in the order of their names; lost ones as well.
    pub members: Vec<MemberStatus>,
    /// Replicas of the subtable that has fewest.
    pub index_replicas: u8,
    /// Replicas of the replicated region that has fewest.
    pub data_replicas: u8,
    /// How many replicas subtables and regions are to have, by the master's settings.
    pub wanted_index_replicas: u8,
    /// See `wanted_index_replicas`.
    pub wanted_data_replicas: u8,
    /// Subtables and regions that have fewer replicas than they should.
    pub missing_replicas: u64,
    /// Whether replicas are to be moved: to members that hold less than their share, or from one
    /// that is drained.
    pub rebalancing: bool,
    /// Sessions open now.
    pub open_sessions: u64,
    /// Sessions that had expired and are not recovered yet.
    pub expired_sessions: u64,
    /// Client ids ever used; the master's own repair sessions take some.
    pub sessions_opened: u64,
    /// The current view; `None` while the cluster forms.
    pub view: Option<View>,
    /// How long that view has been in force, or this master has known it, in milliseconds.
    pub view_age_ms: u64,
    /// Clients recovered since this master started.
    pub recoveries: u64,
    /// The last of them, the oldest first.
    pub last_recoveries: Vec<Recovery>,
    /// Changes of the view completed since this master started.
    pub reconfigurations: u64,
    /// The last of them, the oldest first; the last one may be under way.
    pub last_reconfigurations: Vec<Reconfiguration>,
    /// Replicas of objects that sessions and repairs found damaged since this master started.
    pub damage: Damage,
    /// Which redundancy what is written gets, and when that changes by itself.
    pub policy: Policy,
    /// What sessions have done by that since this master started.
    pub transitions: Transitions,
    /// What operations of sessions came to since this master started, as far as they have told.
    pub work: Work,
    /// The current epoch.
    pub epoch: u64,
    /// The lease, in milliseconds.
    pub lease_ms: u64,
    /// What was found where nobody had looked.
    pub scrub: Scrub,
    /// What keeps the cluster from forming or from being whole, and what to do.
    pub problem: Option<String>,
    /// How many regions of replicated values could be added now, up to as many as are added at once.
    pub more_regions: u64,
    /// Why that is none.
    pub no_region: Option<String>,
}

/// What the master found by looking at memory that nobody may read, since it started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Scrub {
    /// How often it has looked at the whole index, and at all that it leads to.
    pub passes: u64,
    /// Bytes that it has read.
    pub bytes: u64,
    /// Subtables whose replicas differed, and were made equal.
    pub settled_subtables: u64,
    /// Regions whose free bitmaps contradicted the index, and were begun anew.
    pub renewed_regions: u64,
    /// Pairs of which no replica was whole in the last pass.
    pub lost_pairs: u64,
}

/// Who may own blocks: all clients that there are, and what those that are gone have left.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Owners {
    /// The open sessions, in order.
    pub open: Vec<ClientId>,
    /// Those that have expired and are not recovered yet, in order.
    pub expired: Vec<ClientId>,
    /// Ids from this one on have not been handed out.
    pub unused_from: ClientId,
    /// Blocks of sessions that have ended, which wait for somebody to go on with them.
    pub orphans: Vec<Orphan>,
}

/// How a memory node stands to the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum MemberState {
    /// The view has it.
    InView,
    /// It is being made a member, and comes with the next view.
    Joining,
    /// It has joined, and cannot be made a member now.
    Waiting,
    /// The view has it, and what it holds goes to others.
    Draining,
    /// It has been drained; the cluster goes on without it.
    Drained,
    /// The cluster goes on without it, or would if it could.
    Lost,
}

/// A memory node, as the master sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberStatus {
    /// Its name.
    pub node: MnId,
    /// Host and port of its control service.
    pub control: String,
    /// How it stands to the cluster.
    pub state: MemberState,
}

/// How a client was recovered: the parts of the paper's Table 1, in microseconds. The first two are
/// done once for all clients that are recovered together: each of them shows the whole time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecoveryTimes {
    /// To fence the client once more, at all memory nodes.
    pub reconnect_us: u64,
    /// To ask for its blocks.
    pub metadata_us: u64,
    /// To read its logs, and to end the requests that they show half-way.
    pub log_us: u64,
    /// To make the replicas of the block tables agree.
    pub repair_us: u64,
    /// To free the blocks that it never used.
    pub free_lists_us: u64,
}

/// The recovery of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Recovery {
    /// The client.
    pub client: ClientId,
    /// Its blocks.
    pub blocks: u64,
    /// Those of them that were freed.
    pub freed: u64,
    /// Those whose unused rest is handed on.
    pub orphans: u64,
    /// Objects in its logs.
    pub walked: u64,
    /// Writes that were completed for it.
    pub committed: u64,
    /// Writes that were withdrawn.
    pub withdrawn: u64,
    /// Slots and objects in a state that no correct client leaves.
    pub strange: u64,
    /// How long the parts took.
    pub times: RecoveryTimes,
}

/// A change of the view, through all its stages.
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
    /// Regions that are new.
    pub new_regions: u64,
    /// Milliseconds until everybody had stopped in the scope.
    pub frozen_ms: u64,
    /// Milliseconds until the replicas were equal, or filled.
    pub transforming_ms: u64,
    /// Milliseconds until everybody had found out.
    pub switched_ms: u64,
    /// Of a loss, the milliseconds from its beginning until nothing lacked a replica any more;
    /// `None` as long as something does.
    pub whole_after_ms: Option<u64>,
}
