//! Requests to a memory node, and its answers.
//!
//! A memory node reserves extents of its pool for the master, hands out blocks of its primary regions, records
//! the owners of blocks, and fences clients. Every request except `Alloc` may be repeated after a lost answer,
//! and takes effect once. A `SetOwner` with `once` is repeated without `once`.

use fusee_core::data::Redundancy;
use fusee_core::ended_clients::LiveClients;
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

/// A bar of a member against another one: sessions without a valid lease no longer rely on the barred
/// member. See `docs/decisions/0030-reads-without-a-master.md`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Bar {
    /// The barred member.
    pub node: MnId,
    /// The newest view by which a session asked for the bar.
    pub view: u64,
}

/// All bars of a member.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberBars {
    /// Grows with every change, and so tells which of two answers is the later one.
    pub changes: u64,
    /// The bars; at most [`MAX_BARS`](fusee_core::layout::MAX_BARS).
    pub bars: Vec<Bar>,
}

/// The most regions that one ALLOC may name in each of its lists.
pub const MAX_ALLOC_REGIONS: usize = 64;

/// The most clients that one request may name.
pub const MAX_CLIENTS: usize = 1024;

/// Returns the alignment of an extent of `bytes` bytes in the pool: a page, or a huge page if the extent is
/// long enough. Memory nodes reserve by it, and the master calculates with it.
pub const fn extent_align_bytes(bytes: u64) -> u64 {
    const PAGE: u64 = 4096;
    const HUGE_PAGE: u64 = 2 << 20;
    if bytes >= HUGE_PAGE { HUGE_PAGE } else { PAGE }
}

/// A request to a memory node. It is stamped with the cluster of the asker ([`Stamped`](crate::rpc::Stamped)).
/// A member of another cluster refuses every request except `Describe`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum NodeRequest {
    /// Asks for the node's description. Answer: `Description`.
    Describe,
    /// Empties the node and binds it to a cluster that is being formed. Extents of an earlier attempt are
    /// forgotten. No client may own a block here. A repetition, or a late request of an earlier attempt,
    /// changes nothing. Answer: `Done`.
    Format {
        /// The cluster. A node serves only one in its life.
        cluster: ClusterId,
        /// Grows with every attempt to form the cluster.
        attempt: u64,
    },
    /// Reserves a zeroed extent. A repetition returns the same offset. Answer: `Reserved`.
    Reserve {
        /// As in the preceding `Format`.
        cluster: ClusterId,
        /// As in the preceding `Format`.
        attempt: u64,
        /// The number of the view for which the extent is reserved; 0 while the cluster forms.
        view: u64,
        /// The use of the extent.
        extent: Extent,
        /// Length of the extent, in bytes.
        bytes: u64,
        /// Size of a block, in bytes, if the extent is a region.
        block_bytes: u64,
        /// The redundancy of the objects, if the extent is a region.
        redundancy: Redundancy,
    },
    /// ALLOC (P §4.4): gives the client a free block of one of this node's primary regions. Not idempotent: a
    /// lost answer costs one block, which recovery finds. Answer: `Allocated`.
    Alloc {
        /// The new owner.
        client: ClientId,
        /// The redundancy of the region's objects.
        redundancy: Redundancy,
        /// Whether the block may be one of those kept for DELETEs, which free memory.
        to_delete: bool,
        /// Regions that are being copied, which give no block. At most [`MAX_ALLOC_REGIONS`].
        frozen: Vec<u32>,
        /// If not empty: the block must be of one of these regions, and more than a quarter of that region's
        /// blocks must be free. At most [`MAX_ALLOC_REGIONS`].
        spare_of: Vec<u32>,
    },
    /// Records the owner of a block of a backup region, or a new owner. The table must show `from` (`NOBODY`
    /// for a free block), or `to` already. Answer: `Done`.
    SetOwner {
        /// The block.
        block: BlockId,
        /// The owner before.
        from: ClientId,
        /// The owner from now on; `NOBODY` frees the block (FREE, P §4.4).
        to: ClientId,
        /// Refuse if `from` has been fenced and may yet be recovered: its recovery relies on its blocks.
        unless_fenced: bool,
        /// Refuse if `to` owns the block already: this request has not been made before, so `to` got the block
        /// otherwise.
        once: bool,
    },
    /// A request of a session about blocks. The session numbers its requests, and tells which ones have `ended`
    /// for it, answered or not. When this request is answered, those have no effect any more: the node refuses
    /// them if they come later. So a request that the session no longer waits for cannot take effect after
    /// later ones. Answer: that to the request.
    InTurn {
        /// The session.
        client: ClientId,
        /// The request's number.
        turn: u64,
        /// All requests with smaller numbers have ended.
        ended: u64,
        /// The request.
        request: BlockRequest,
    },
    /// A request of a job of the master. The jobs of a repairer have growing numbers. The node refuses the
    /// requests of a job after it has answered a later job of the same repairer, and all requests of a fenced
    /// repairer. So no request that a job has given up takes effect after later work. Answer: that to the
    /// request.
    OfJob {
        /// The session under which the job runs.
        repairer: ClientId,
        /// The job's number.
        job: u64,
        /// The request.
        request: JobRequest,
    },
    /// Asks for the blocks that clients own here, in primary and backup regions. Answer: `Blocks`.
    BlocksOf {
        /// The clients; at most [`MAX_CLIENTS`].
        clients: Vec<ClientId>,
    },
    /// Asks for the owners of all blocks of a region. Answer: `Owners`.
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
    /// Asks for the use of the pool. Answer: `Usage`.
    Usage,
    /// Moves the node to a view: the header of its pool shows the number when the answer comes. A node at a
    /// later view stays there. From then on the node sets no bar for sessions that are pinned by an earlier
    /// view. Answer: `Bars`.
    StandAt {
        /// The cluster whose view it is; the node serves no other one.
        cluster: ClusterId,
        /// The number of the view, which the master has stored.
        view: u64,
    },
    /// Asks the node to bar a member that does not answer the session, while the session has no valid lease. The
    /// header of the node's pool shows the bar when the answer comes. Answer: `Barred`; or `Refused`, if the node
    /// is at a later view, has fenced the session, or has had an answer of a master less than a lease ago.
    Bar {
        /// The session.
        client: ClientId,
        /// The member that does not answer.
        node: MnId,
        /// The number of the view by which the session is pinned.
        view: u64,
    },
    /// Removes bars. A change has completed that has settled the words that backup reads may have returned. A
    /// bar stays if a session has asked for it by a later view since. Answer: `Bars`, with those that are left.
    Unbar {
        /// The cluster; the node serves no other one.
        cluster: ClusterId,
        /// The bars that have been settled.
        bars: Vec<Bar>,
    },
    /// Names the living clients below a bound. All others below it have ended, and need not be remembered one
    /// by one. This stays true, so the request may come late. Answer: `Done`.
    Living {
        /// The living clients, and the bound.
        living: LiveClients,
    },
}

/// A request of a session about blocks ([`NodeRequest::InTurn`]).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum BlockRequest {
    /// Like [`NodeRequest::Alloc`], for the session.
    Alloc {
        /// The redundancy of the region's objects.
        redundancy: Redundancy,
        /// Whether the block may be one of those kept for DELETEs, which free memory.
        to_delete: bool,
        /// Regions that are being copied, which give no block. At most [`MAX_ALLOC_REGIONS`].
        frozen: Vec<u32>,
        /// If not empty: the block must be of one of these regions, and more than a quarter of that region's
        /// blocks must be free. At most [`MAX_ALLOC_REGIONS`].
        spare_of: Vec<u32>,
    },
    /// Like [`NodeRequest::SetOwner`].
    SetOwner {
        /// The block.
        block: BlockId,
        /// The owner before.
        from: ClientId,
        /// The owner from now on.
        to: ClientId,
        /// Refuse if `from` has been fenced.
        unless_fenced: bool,
        /// Refuse if `to` owns the block already.
        once: bool,
    },
    /// Like [`NodeRequest::BlocksOf`], for the session.
    Blocks,
}

impl BlockRequest {
    /// Returns the same request without a number, of this session.
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

/// A request of a job of the master ([`NodeRequest::OfJob`]). The job relies on the answers to its questions,
/// so questions have an order, too: after one is answered, no request of an earlier job can make the answer
/// wrong.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum JobRequest {
    /// Like [`NodeRequest::BlocksOf`].
    BlocksOf {
        /// The clients; at most [`MAX_CLIENTS`].
        clients: Vec<ClientId>,
    },
    /// Like [`NodeRequest::OwnersOf`].
    OwnersOf {
        /// The region.
        region: u32,
    },
    /// Sets the owners of all blocks of a region that this node does not lead, as another replica has them. For
    /// a new replica, before the view uses it. Answer: `Done`.
    SetOwners {
        /// The region.
        region: u32,
        /// The owner of every block; `NOBODY` for a free one.
        owners: Vec<ClientId>,
    },
    /// Undoes the incomplete takeover of a block by a fenced client: the block belongs to its earlier owner
    /// again, whether that one is fenced or not. Answer: `Done`.
    TakeBack {
        /// The block.
        block: BlockId,
        /// The fenced client, which the table of this node shows.
        from: ClientId,
        /// The owner that other replicas show; `NOBODY` frees the block.
        to: ClientId,
    },
    /// Returns to the pool a block that a dead client never used. Answer: `Done`.
    Free {
        /// The block.
        block: BlockId,
        /// The client.
        from: ClientId,
    },
    /// Makes this node the primary of these regions, in addition to those that it leads already: it hands out
    /// their free blocks. Answer: `Done`.
    Lead {
        /// The regions. A region that was reserved for a later view is skipped, since the order is late.
        regions: Vec<u32>,
        /// The number of the view in which the node leads them.
        view: u64,
    },
    /// Takes back an extent that no view uses, and no process reads or writes any more. It is zeroed before it
    /// is reserved again. An extent that was reserved for a later view stays, since the order is late. Answer:
    /// `Done`, also if there is no such extent.
    Release {
        /// The extent; `primary` does not matter.
        extent: Extent,
        /// The number of the view that does not use it any more.
        view: u64,
    },
}

/// A memory node's description of itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeDescription {
    /// Random. Another process has another one, and so has the same node after a restart.
    pub identity: u64,
    /// Bytes of the pool.
    pub pool_bytes: u64,
    /// Host and port of the software NIC.
    pub tcp: Option<String>,
    /// Path of the Unix socket that hands out the memory.
    pub shm: Option<String>,
    /// Host and port at which the node hands out queue pairs of its NIC.
    pub verbs: Option<String>,
}

/// The use of a memory node's pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// Bytes of the pool.
    pub pool_bytes: u64,
    /// Bytes reserved for regions and subtables.
    pub reserved_bytes: u64,
    /// Blocks in the primary regions.
    pub primary_blocks: u64,
    /// Blocks of these that a client owns.
    pub primary_blocks_owned: u64,
    /// Bytes of subtables, and of blocks that a client owns. Their owners may have free objects in them.
    pub used_bytes: u64,
    /// Blocks in the primary regions that a write may still get, without the free ones that are kept for
    /// DELETEs.
    pub free_blocks: u64,
    /// Sessions that are attached now.
    pub attached: AttachedSessions,
    /// Requests over TCP since the start of the node: parts of a session's batches.
    pub tcp_requests: u64,
    /// Bytes of these requests and of their replies.
    pub tcp_bytes: u64,
    /// The shared-memory socket has disappeared, and could not be made again.
    pub socket_gone: bool,
}

/// The sessions that are attached to a memory node, by fabric.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttachedSessions {
    /// Over shared memory.
    pub shm: u64,
    /// Over TCP.
    pub tcp: u64,
    /// Over verbs.
    pub verbs: u64,
}

impl AttachedSessions {
    /// Returns the sum.
    pub fn total(self) -> u64 {
        self.shm + self.tcp + self.verbs
    }
}

/// An answer of a memory node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum NodeReply {
    /// To `Describe`.
    Description(NodeDescription),
    /// To `Reserve`.
    Reserved {
        /// Offset of the extent in the pool, in bytes.
        offset: u64,
    },
    /// To `Alloc`.
    Allocated {
        /// The block, which this node's table now shows as the client's.
        block: BlockId,
    },
    /// To `OwnersOf`.
    Owners(Vec<ClientId>),
    /// To `BlocksOf`: the blocks, in order, with their owners.
    Blocks(Vec<(BlockId, ClientId)>),
    /// To `Usage`.
    Usage(Usage),
    /// To `Bar`: the member is barred.
    Barred {
        /// The longest lease that a master has ever told this node, in milliseconds: for that long, sessions
        /// may still have a valid lease. 0 if there was none.
        lease_ms: u64,
    },
    /// To `StandAt` and `Unbar`.
    Bars(MemberBars),
    /// The request has been carried out, now or before.
    Done,
    /// The request is refused.
    Refused(NodeRefusal),
}

/// Reasons of a memory node for a refusal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum NodeRefusal {
    /// The pool has no room for the extent.
    #[error("the pool has {free_bytes} bytes left, {bytes} were asked for")]
    PoolFull {
        /// The length of the extent.
        bytes: u64,
        /// The longest free part of the pool.
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
    /// The session or job had given this request up before it made a later one that was answered.
    #[error("the request came too late: nothing waits for it any more")]
    Late,
    /// The node is at a later view than the asker.
    #[error("the node stands at view {view}, a later one")]
    LaterView {
        /// The number of the node's view.
        view: u64,
    },
    /// The node has had an answer of a master less than a lease ago: that master deals with members that are
    /// silent.
    #[error("the node hears a master")]
    HearsMaster,
    /// The node lends its memory to another cluster.
    #[error("this memory node belongs to another cluster ({cluster}); restart it to empty it")]
    OtherCluster {
        /// The cluster of the node.
        cluster: ClusterId,
    },
    /// The numbers in the request make no sense.
    #[error("bad request: {what}")]
    BadRequest {
        /// The reason.
        what: String,
    },
}
