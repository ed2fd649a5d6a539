//! What a memory node is asked, and what it answers.
//!
//! A memory node lends memory and nothing else: it reserves extents of its pool for the master,
//! hands out blocks of its primary regions, records the owners of blocks, and fences clients.
//! Every request but `Alloc` may be repeated after a lost answer and then has the same effect once; a `SetOwner`
//! that is asked for `once` is repeated without that.

use fusee_core::data::Redundancy;
use fusee_core::over::Living;
use fusee_core::verbs::{ClientId, ClusterId, MnId};
use serde::{Deserialize, Serialize};

/// A part of the pool that the master reserves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Extent {
    /// A replica of a region.
    Region {
        /// Region number.
        region: u32,
        /// Whether this node is the region's primary, which allocates its blocks.
        primary: bool,
    },
    /// A replica of an index subtable, all zeros at first.
    Subtable {
        /// Subtable number.
        subtable: u32,
    },
}

/// A block: region and number within it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct BlockId {
    /// Region number.
    pub region: u32,
    /// Block number within the region.
    pub block: u32,
}

/// That a member bars another one: sessions that do not hear a master count on it no more. See
/// `docs/decisions/0030-reads-without-a-master.md`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Bar {
    /// Who is barred.
    pub node: MnId,
    /// The number of the newest view by which somebody asked for it.
    pub view: u64,
}

/// All that a member bars.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bars {
    /// Grows with every change, so that of two answers the later one is known.
    pub changes: u64,
    /// At most [`MAX_BARS`](fusee_core::layout::MAX_BARS).
    pub bars: Vec<Bar>,
}

/// Regions that one ALLOC may name, of each sort.
pub const MAX_ALLOC_REGIONS: usize = 64;

/// Clients that one request may be about.
pub const MAX_CLIENTS: usize = 1024;

/// The alignment of an extent of `bytes` bytes in the pool: pages, and huge pages where they
/// pay. Memory nodes reserve by it and the master counts with it.
pub const fn extent_align_bytes(bytes: u64) -> u64 {
    const PAGE: u64 = 4096;
    const HUGE_PAGE: u64 = 2 << 20;
    if bytes >= HUGE_PAGE { HUGE_PAGE } else { PAGE }
}

/// A request to a memory node. With it comes the cluster that the asker belongs to
/// ([`Stamped`](crate::rpc::Stamped)): a member of another one refuses whatever is more than a question
/// who it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum NodeRequest {
    /// Who are you? Answer: `Description`.
    Describe,
    /// Empties the node and binds it to a cluster that is being formed: extents of an earlier
    /// attempt are forgotten. No client may own a block here. Repeating it, or a late one of an
    /// earlier attempt, changes nothing. Answer: `Done`.
    Format {
        /// A node serves one cluster in its life.
        cluster: ClusterId,
        /// Grows with every attempt to form the cluster.
        attempt: u64,
    },
    /// Sets a zeroed extent aside. Repeating it gives the same offset. Answer: `Reserved`.
    Reserve {
        /// As in the `Format` that came before.
        cluster: ClusterId,
        /// As in the `Format` that came before.
        attempt: u64,
        /// The number of the view that it is reserved for; 0 while the cluster forms.
        view: u64,
        /// What for.
        extent: Extent,
        /// Its length, in bytes.
        bytes: u64,
        /// Size of a block, in bytes, if it is a region.
        block_bytes: u64,
        /// The redundancy of its objects, if it is a region.
        redundancy: Redundancy,
    },
    /// ALLOC (P §4.4): gives the client a free block of one of this node's primary regions.
    /// Not idempotent: a lost answer costs one block, which recovery finds. Answer: `Allocated`.
    Alloc {
        /// The new owner.
        client: ClientId,
        /// The redundancy of the region's objects.
        redundancy: Redundancy,
        /// Whether it may be one of those that are kept back, to make room again.
        to_delete: bool,
        /// Regions that are being copied: no block of these. At most [`MAX_ALLOC_REGIONS`].
        frozen: Vec<u32>,
        /// If there are any, of one of these regions only, and only if that has more than a quarter of its blocks
        /// to spare. At most [`MAX_ALLOC_REGIONS`].
        spare_of: Vec<u32>,
    },
    /// Records the owner of a block of a backup region, or a new owner. `from` is the owner the
    /// table must show now (`NOBODY` for a free block), or already `to`. Answer: `Done`.
    SetOwner {
        /// The block.
        block: BlockId,
        /// The owner before.
        from: ClientId,
        /// The owner from now on; `NOBODY` frees the block (FREE, P §4.4).
        to: ClientId,
        /// Not if `from` has been fenced and may yet be recovered: whoever does that counts on what is its own.
        unless_fenced: bool,
        /// Not if the block is `to`'s already: this has not been asked before, so `to` got it otherwise.
        once: bool,
    },
    /// What a session asks about blocks. Its requests have numbers, and those that have `ended` for the
    /// session, answered or not, have no effect any more when this one is answered: the node refuses what
    /// comes later. So a request that nobody waits for cannot overtake what was asked since. Answer: that
    /// to the request.
    InTurn {
        /// The session.
        client: ClientId,
        /// The request's number.
        turn: u64,
        /// All requests of smaller numbers have ended.
        ended: u64,
        /// The request.
        request: BlockRequest,
    },
    /// What a job of the master asks. Each job of a repairer has a number, and later ones have larger ones: what
    /// comes of a job behind the answer to a later one of its repairer is refused, and so is all that comes of
    /// a repairer that is fenced. So nothing that a job has given up overtakes what was done since. Answer:
    /// that to the request.
    OfJob {
        /// The session under which the job works.
        repairer: ClientId,
        /// The job's number.
        job: u64,
        /// The request.
        request: JobRequest,
    },
    /// The blocks that clients own here, in primary and backup regions. Answer: `Blocks`.
    BlocksOf {
        /// The clients; at most [`MAX_CLIENTS`].
        clients: Vec<ClientId>,
    },
    /// The owners of all blocks of a region. Answer: `Owners`.
    OwnersOf {
        /// The region.
        region: u32,
    },
    /// Fences clients for good: when the answer comes, no verb of theirs executes any more on
    /// any fabric of this node. Answer: `Done`.
    Fence {
        /// The clients; at most [`MAX_CLIENTS`].
        clients: Vec<ClientId>,
    },
    /// How full are you? Answer: `Usage`.
    Usage,
    /// The node stands at a view from now on: the header of its pool shows the number when the answer
    /// comes. One that stands at a later view already stays there. From now on it bars nobody for who is pinned
    /// by an earlier view. Answer: `Bars`.
    StandAt {
        /// The cluster whose view it is; the node serves no other one.
        cluster: ClusterId,
        /// The number of the view, which the master has stored.
        view: u64,
    },
    /// A session that no master has heard for a lease gets no answer from a member: the node bars it, which
    /// its pool's header shows when the answer comes. Answer: `Barred`; or `Refused`, if it stands at a
    /// later view, has fenced the session, or hears a master itself.
    Bar {
        /// The session.
        client: ClientId,
        /// Who does not answer it.
        node: MnId,
        /// The number of the view by which it is pinned.
        view: u64,
    },
    /// A change is through that has settled what may have been read beside these: the node bars them no more,
    /// unless somebody has asked for it by a later view since. Answer: `Bars`, those that are left.
    Unbar {
        /// The cluster; the node serves no other one.
        cluster: ClusterId,
        /// What was settled.
        bars: Vec<Bar>,
    },
    /// Who lives among the first clients: all others of these are over, and need not be remembered one by one. True for
    /// good, so it may come late. Answer: `Done`.
    Living {
        /// Who.
        living: Living,
    },
}

/// What a session asks about blocks ([`NodeRequest::InTurn`]).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum BlockRequest {
    /// As [`NodeRequest::Alloc`], for the session.
    Alloc {
        /// The redundancy of the region's objects.
        redundancy: Redundancy,
        /// Whether it may be one of those that are kept back, to make room again.
        to_delete: bool,
        /// Regions that are being copied: no block of these. At most [`MAX_ALLOC_REGIONS`].
        frozen: Vec<u32>,
        /// If there are any, of one of these regions only, and only if that has more than a quarter of its blocks
        /// to spare. At most [`MAX_ALLOC_REGIONS`].
        spare_of: Vec<u32>,
    },
    /// As [`NodeRequest::SetOwner`].
    SetOwner {
        /// The block.
        block: BlockId,
        /// The owner before.
        from: ClientId,
        /// The owner from now on.
        to: ClientId,
        /// Not if `from` has been fenced.
        unless_fenced: bool,
        /// Not if the block is `to`'s already.
        once: bool,
    },
    /// As [`NodeRequest::BlocksOf`], for the session.
    Blocks,
}

impl BlockRequest {
    /// The same without a turn, of this session.
    pub fn of(self, client: ClientId) -> NodeRequest {
        match self {
            BlockRequest::Alloc { redundancy, to_delete, frozen, spare_of } => {
                NodeRequest::Alloc { client, redundancy, to_delete, frozen, spare_of }
            }
            BlockRequest::SetOwner { block, from, to, unless_fenced, once } => {
                NodeRequest::SetOwner { block, from, to, unless_fenced, once }
            }
            BlockRequest::Blocks => NodeRequest::BlocksOf { clients: vec![client] },
        }
    }
}

/// What a job of the master asks ([`NodeRequest::OfJob`]). It goes by the answers to its questions, so these go in
/// turn as well: behind one of them nothing of an earlier job changes what it said.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum JobRequest {
    /// As [`NodeRequest::BlocksOf`].
    BlocksOf {
        /// The clients; at most [`MAX_CLIENTS`].
        clients: Vec<ClientId>,
    },
    /// As [`NodeRequest::OwnersOf`].
    OwnersOf {
        /// The region.
        region: u32,
    },
    /// Gives all blocks of a region that this node does not lead their owners, as another replica
    /// has them. For a new replica, before the view uses it. Answer: `Done`.
    SetOwners {
        /// The region.
        region: u32,
        /// The owner of every block; `NOBODY` for a free one.
        owners: Vec<ClientId>,
    },
    /// Undoes what a fenced client began: a block that it had not taken over on all replicas is
    /// its earlier owner's again, be that one fenced or not. Answer: `Done`.
    TakeBack {
        /// The block.
        block: BlockId,
        /// The fenced client that the table shows here.
        from: ClientId,
        /// Whom other replicas show; `NOBODY` frees the block.
        to: ClientId,
    },
    /// Gives a block back to the pool that a dead client never used. Answer: `Done`.
    Free {
        /// The block.
        block: BlockId,
        /// The client.
        from: ClientId,
    },
    /// This node is the primary of these regions from now on, in addition to those that it leads
    /// already, and hands out their free blocks. Answer: `Done`.
    Lead {
        /// The regions. One that was reserved for a later view is passed over: the order is late.
        regions: Vec<u32>,
        /// The number of the view that says so.
        view: u64,
    },
    /// Takes an extent back that no view uses any more, and that nobody reads or writes. It is zeroed
    /// before it is reserved again. One that was reserved for a later view stays: the order is
    /// late. Answer: `Done`, also if there is no such extent.
    Release {
        /// The extent; `primary` does not matter.
        extent: Extent,
        /// The number of the view that does without it.
        view: u64,
    },
}

/// What a memory node says of itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Description {
    /// Random; another process, or the same after a restart, has another one.
    pub identity: u64,
    /// Bytes of the pool.
    pub pool_bytes: u64,
    /// Host and port of the software NIC.
    pub tcp: Option<String>,
    /// Path of the Unix socket that hands out the memory.
    pub shm: Option<String>,
    /// Host and port where the network card's queue pairs are handed out.
    pub verbs: Option<String>,
}

/// How full a memory node is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// Bytes of the pool.
    pub pool_bytes: u64,
    /// Bytes reserved for regions and subtables.
    pub reserved_bytes: u64,
    /// Blocks in the primary regions.
    pub primary_blocks: u64,
    /// Those of them that a client owns.
    pub primary_blocks_owned: u64,
    /// Bytes of subtables, and of blocks that a client owns: what lies in them may be free, for its owner.
    pub used_bytes: u64,
    /// Blocks in the primary regions that a write may still get: of what is free some is kept back for deletes.
    pub free_blocks: u64,
    /// Sessions at the moment.
    pub attached: Attached,
    /// Requests over TCP since it started: parts of a session's batches.
    pub tcp_requests: u64,
    /// Bytes of them and of their replies.
    pub tcp_bytes: u64,
    /// The socket of shared memory is not there any more, and could not be made again.
    pub socket_gone: bool,
}

/// Sessions that are attached to a memory node, by their fabric.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attached {
    /// Over shared memory.
    pub shm: u64,
    /// Over TCP.
    pub tcp: u64,
    /// Over verbs.
    pub verbs: u64,
}

impl Attached {
    /// All of them.
    pub fn total(self) -> u64 {
        self.shm + self.tcp + self.verbs
    }
}

/// An answer of a memory node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum NodeReply {
    /// To `Describe`.
    Description(Description),
    /// To `Reserve`: where the extent starts in the pool, in bytes.
    Reserved {
        /// Offset in the pool.
        offset: u64,
    },
    /// To `Alloc`.
    Allocated {
        /// The block, now the client's in this node's table.
        block: BlockId,
    },
    /// To `OwnersOf`.
    Owners(Vec<ClientId>),
    /// To `BlocksOf`: the blocks, in order, with their owners.
    Blocks(Vec<(BlockId, ClientId)>),
    /// To `Usage`.
    Usage(Usage),
    /// To `Bar`: it is barred.
    Barred {
        /// The longest lease that a master has ever told this node, in milliseconds: so long sessions may
        /// still count as heard by it. 0 if none has.
        lease_ms: u64,
    },
    /// To `StandAt` and `Unbar`.
    Bars(Bars),
    /// It is so.
    Done,
    /// It cannot be.
    Refused(NodeRefusal),
}

/// Why a memory node refuses.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum NodeRefusal {
    /// No room in the pool for this extent.
    #[error("the pool has {free_bytes} bytes left, {bytes} were asked for")]
    PoolFull {
        /// Asked for.
        bytes: u64,
        /// Left.
        free_bytes: u64,
    },
    /// All blocks of the primary regions have owners.
    #[error("no free block")]
    NoFreeBlock,
    /// The block table shows another owner.
    #[error("the block belongs to {owner}")]
    NotOwner {
        /// The owner.
        owner: ClientId,
    },
    /// This node has no such region or block.
    #[error("unknown block {block:?}")]
    UnknownBlock {
        /// The block.
        block: BlockId,
    },
    /// The client has been fenced.
    #[error("{client} has been fenced")]
    Fenced {
        /// The client.
        client: ClientId,
    },
    /// The session, or the job, had given this request up before something was asked that was answered.
    #[error("the request came too late: nothing waits for it any more")]
    Late,
    /// The node stands at a later view than the asker.
    #[error("the node stands at view {view}, a later one")]
    LaterView {
        /// The number of its view.
        view: u64,
    },
    /// A master was heard less than a lease ago: it looks after who is silent.
    #[error("the node hears a master")]
    HearsMaster,
    /// The node lends its memory to another cluster.
    #[error("this memory node belongs to another cluster ({cluster}); restart it to empty it")]
    OtherCluster {
        /// The cluster it belongs to.
        cluster: ClusterId,
    },
    /// The request's numbers make no sense.
    #[error("bad request: {what}")]
    BadRequest {
        /// What is wrong.
        what: String,
    },
}
