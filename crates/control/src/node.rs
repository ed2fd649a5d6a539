//! Requests to a memory node, and its answers.
//!
//! A memory node reserves extents of its pool for the master, hands out blocks of the regions whose primary it is,
//! records the owners of blocks, and fences clients. Every request except `Alloc` can be repeated after a lost answer,
//! and takes effect once. A `SetOwner` with `once` is repeated without `once`.

use fusee_core::data::Redundancy;
use fusee_core::ended_clients::LiveClients;
use fusee_core::layout::{Address, TableEntry};
use fusee_core::verbs::{ClientId, ClusterId, MnId};
use fusee_core::view::Geometry;
use serde::{Deserialize, Serialize};

/// The use of a part of the pool that the master reserves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Extent {
    /// A replica of a region.
    Region {
        /// The number of the region.
        region: u32,
        /// Whether this node is the region's primary and hands out the region's blocks.
        primary: bool,
    },
    /// A replica of an index subtable. It is all zeros at first.
    Subtable {
        /// The number of the subtable.
        subtable: u32,
    },
}

/// The identification of a block. Blocks of different orders that begin at one frame are different blocks: one of them
/// was split or merged into the other one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct BlockId {
    /// The number of the region.
    pub region: u32,
    /// The number of the block's first frame within the region.
    pub frame: u32,
    /// The block's order: the block has 2^order frames.
    pub order: u8,
}

impl BlockId {
    /// Returns the block with this address and this number of bytes; `None` if there is no such block.
    pub fn at(address: Address, bytes: u64, geometry: &Geometry) -> Option<BlockId> {
        let (region, frame) = geometry.frame_at(address)?;
        let order = geometry.order_of(bytes)?;
        geometry.is_block(frame, order).then_some(BlockId { region, frame, order })
    }

    /// The address of the block.
    pub fn address(&self, geometry: &Geometry) -> Address {
        geometry.frame_address(self.region, self.frame)
    }

    /// The length of the block.
    pub fn bytes(&self, geometry: &Geometry) -> u64 {
        geometry.order_bytes(self.order)
    }
}

/// The blocks that an ALLOC accepts. It gets the largest free block of these orders, and a smaller one rather than a
/// mixed one ([`TableEntry::base`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AcceptedOrders {
    /// The smallest order.
    pub least: u8,
    /// The largest order.
    pub most: u8,
    /// Whether a mixed block will do, and blocks with different bases are merged if there is no other.
    pub mixed: bool,
}

/// A block that has an owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OwnedBlock {
    /// The block.
    pub block: BlockId,
    /// The block's owner.
    pub owner: ClientId,
    /// The base in the table ([`TableEntry::base`]).
    pub base: Option<u16>,
}

/// A bar that one member has set against another member: sessions without a valid lease must no longer rely on the
/// barred member. See `docs/decisions/0030-reads-without-a-master.md`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Bar {
    /// The barred member.
    pub node: MnId,
    /// The number of the newest view in which a session asked for the bar.
    pub view: u64,
}

/// All bars in one member's pool header.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberBars {
    /// A number that grows with every change of the bars, so that it tells which of two answers with bars is the later
    /// one.
    pub changes: u64,
    /// The bars, at most [`MAX_BARS`](fusee_core::layout::MAX_BARS) of them.
    pub bars: Vec<Bar>,
}

/// Limit of regions that one ALLOC can name in each of its lists.
pub const MAX_ALLOC_REGIONS: usize = 64;

/// Limit of clients that one request can name.
pub const MAX_CLIENTS: usize = 1024;

/// Returns the alignment in the pool of an extent of `bytes` bytes: a page, or a huge page if the extent is long
/// enough. Memory nodes reserve extents by this rule, and the master uses it to calculate their space.
pub const fn extent_align_bytes(bytes: u64) -> u64 {
    const PAGE: u64 = 4096;
    const HUGE_PAGE: u64 = 2 << 20;
    if bytes >= HUGE_PAGE { HUGE_PAGE } else { PAGE }
}

/// A request to a memory node. It is stamped with the cluster of its sender ([`Stamped`](crate::rpc::Stamped)). A
/// member of another cluster refuses every request except `Describe`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum NodeRequest {
    /// Asks for the node's description. Answer: `Description`.
    Describe,
    /// Empties the node and binds it to a cluster that is being formed. Extents of an earlier attempt are forgotten. No
    /// client is allowed to own a block of this node. A repetition, or a late request of an earlier attempt, changes
    /// nothing. Answer: `Done`.
    Format {
        /// The cluster that is being formed. A node belongs to only one cluster until the node's process ends.
        cluster: ClusterId,
        /// The number of the attempt to form the cluster, which grows with every attempt.
        attempt: u64,
    },
    /// Reserves a zeroed extent. A repetition returns the same offset. Answer: `Reserved`.
    Reserve {
        /// The cluster, as in the preceding `Format`.
        cluster: ClusterId,
        /// The number of the attempt to form the cluster, as in the preceding `Format`.
        attempt: u64,
        /// The number of the view for which the extent is reserved; 0 while the cluster forms.
        view: u64,
        /// The region or subtable for which the extent is reserved.
        extent: Extent,
        /// Length of the extent, in bytes.
        bytes: u64,
        /// Size of a block, in bytes, if the extent is a region.
        block_bytes: u64,
        /// The redundancy of the region's objects, if the extent is a region.
        redundancy: Redundancy,
    },
    /// ALLOC (P §4.4): gives the client a free block of a region whose primary this node is. Not idempotent: if the
    /// answer is lost, the block is lost until recovery finds it. Answer: `Allocated`.
    Alloc {
        /// The client that becomes the block's owner.
        client: ClientId,
        /// The redundancy that the region's objects must have.
        redundancy: Redundancy,
        /// The orders of blocks that the client accepts.
        orders: AcceptedOrders,
        /// Regions that a view change has frozen, from which no block must be given. At most [`MAX_ALLOC_REGIONS`].
        frozen: Vec<u32>,
        /// If not empty, the block must be in one of these regions, and more than a quarter of that region's blocks
        /// must be free. At most [`MAX_ALLOC_REGIONS`].
        spare_of: Vec<u32>,
    },
    /// Records the owner of a block in a region whose backup this node is, or a new owner in any region. The table must
    /// name `from` (`NOBODY` for a free block) as the owner before, or `to` already. Answer: `Done`.
    SetOwner {
        /// The block that gets another owner.
        block: BlockId,
        /// The owner of the block before this request.
        from: ClientId,
        /// The owner of the block after this request; `NOBODY` frees the block (FREE, P §4.4). A node that frees a
        /// block fills the block's header with zeros.
        to: ClientId,
        /// The block's base ([`TableEntry::base`]). Noted only if this request frees the block, or if the block was
        /// free.
        base: Option<u16>,
        /// Whether to refuse if `from` has been fenced and is possibly not recovered yet, because its recovery relies
        /// on the block tables.
        unless_fenced: bool,
        /// Whether to refuse if `to` already owns the block. Set if this request is made for the first time: if `to`
        /// owns the block already, it got the block in another way.
        once: bool,
    },
    /// A request of a session about blocks. The session numbers its requests, and tells which of them have `ended`: the
    /// session does not wait for their answers any more. Once this request is answered, the ended ones have no effect
    /// any more, because the node refuses them if they arrive later. So a request that the session has given up cannot
    /// take effect after later ones. The answer is that of the request inside.
    InTurn {
        /// The session's id.
        client: ClientId,
        /// The session's number of this request.
        turn: u64,
        /// A bound of request numbers: all of the session's requests with smaller numbers have ended.
        ended: u64,
        /// The request about blocks that the session makes.
        request: BlockRequest,
    },
    /// A request of a job of the master. The master's session for jobs, the *repairer*, runs jobs with growing numbers.
    /// The node refuses the requests of a job after it has answered a later job of the same repairer, and all requests
    /// of a fenced repairer. So no request that a job has given up takes effect after later work. The answer is that of
    /// the request inside.
    OfJob {
        /// The session under which the job runs.
        repairer: ClientId,
        /// The number of the master's job.
        job: u64,
        /// The request that the job makes.
        request: JobRequest,
    },
    /// Asks for the blocks that clients own according to this node's tables, in all regions of which the node has a
    /// replica. Answer: `Blocks`.
    BlocksOf {
        /// The clients whose blocks are wanted; at most [`MAX_CLIENTS`].
        clients: Vec<ClientId>,
    },
    /// Asks for the block table of a region. Answer: `Owners`.
    OwnersOf {
        /// The number of the region.
        region: u32,
    },
    /// Fences clients for good: once this is answered, none of their verbs executes any more, on any fabric of this
    /// node. Answer: `Done`.
    Fence {
        /// The clients to fence; at most [`MAX_CLIENTS`].
        clients: Vec<ClientId>,
    },
    /// Asks for the use of the pool. Answer: `Usage`.
    Usage,
    /// Moves the node to a view: the header of its pool shows the view's number before this is answered. A node at a
    /// later view stays at that view. From then on the node sets no bar for sessions that are at an earlier view.
    /// Answer: `Bars`.
    StandAt {
        /// The cluster to which the view belongs. A node of another cluster refuses.
        cluster: ClusterId,
        /// The number of the view, which the master has stored.
        view: u64,
    },
    /// Asks the node to bar a member that does not answer the session, while the session has no valid lease. The header
    /// of the node's pool shows the bar before this is answered. Answer: `Barred`; or `Refused`, if the node is at a
    /// later view, has fenced the session, or has had an answer of a master less than a lease ago.
    Bar {
        /// The session's id.
        client: ClientId,
        /// The member that does not answer.
        node: MnId,
        /// The number of the view in which the session's operations are pinned.
        view: u64,
    },
    /// Removes bars, because a change of the view has settled the words that backup reads have possibly returned. A bar
    /// stays if a session has asked for it in a later view. Answer: `Bars`, with those that are left.
    Unbar {
        /// The cluster of the master. A node of another cluster refuses.
        cluster: ClusterId,
        /// The bars to remove.
        bars: Vec<Bar>,
    },
    /// Tells which clients below a bound are alive. All other clients below the bound have ended, so the node need not
    /// remember them one by one. That stays true, so this request can arrive late. Answer: `Done`.
    Living {
        /// The living clients, and the bound below which all other clients have ended.
        living: LiveClients,
    },
    /// Asks for the log areas that sessions have on this node. Answer: `LogAreas`.
    LogAreasOf {
        /// The sessions whose log areas are wanted; at most [`MAX_CLIENTS`].
        clients: Vec<ClientId>,
    },
    /// Asks for the session's log area on this node. The first request of a session fills the area with zeros; later
    /// ones return the same area. Answer: `LogArea`.
    LogArea {
        /// The session's id.
        client: ClientId,
        /// The session's number of the area, below [`MAX_LOG_AREAS`](fusee_core::layout::MAX_LOG_AREAS).
        number: u8,
    },
}

/// A request of a session about blocks ([`NodeRequest::InTurn`]).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum BlockRequest {
    /// Like [`NodeRequest::Alloc`], for the session.
    Alloc {
        /// The redundancy that the region's objects must have.
        redundancy: Redundancy,
        /// The orders of blocks that the session accepts.
        orders: AcceptedOrders,
        /// Regions that a view change has frozen, from which no block must be given. At most [`MAX_ALLOC_REGIONS`].
        frozen: Vec<u32>,
        /// If not empty, the block must be in one of these regions, and more than a quarter of that region's blocks
        /// must be free. At most [`MAX_ALLOC_REGIONS`].
        spare_of: Vec<u32>,
    },
    /// Like [`NodeRequest::SetOwner`].
    SetOwner {
        /// The block that gets another owner.
        block: BlockId,
        /// The owner of the block before this request.
        from: ClientId,
        /// The owner of the block after this request.
        to: ClientId,
        /// The block's base. Noted only if this request frees the block, or if the block was free.
        base: Option<u16>,
        /// Whether to refuse if `from` has been fenced and is possibly not recovered yet.
        unless_fenced: bool,
        /// Whether to refuse if `to` already owns the block.
        once: bool,
    },
    /// Like [`NodeRequest::BlocksOf`], for the session.
    Blocks,
}

impl BlockRequest {
    /// Converts the request into a [`NodeRequest`] of this session, without a request number.
    pub fn of(self, client: ClientId) -> NodeRequest {
        match self {
            BlockRequest::Alloc { redundancy, orders, frozen, spare_of } => {
                NodeRequest::Alloc { client, redundancy, orders, frozen, spare_of }
            }
            BlockRequest::SetOwner { block, from, to, base, unless_fenced, once } => {
                NodeRequest::SetOwner { block, from, to, base, unless_fenced, once }
            }
            BlockRequest::Blocks => NodeRequest::BlocksOf { clients: vec![client] },
        }
    }
}

/// A request of a job of the master ([`NodeRequest::OfJob`]). A job relies on the answers that it gets, so even its
/// requests that change nothing are ordered: after the node has answered such a request, it executes no request of an
/// earlier job, because that could make the answer wrong.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum JobRequest {
    /// Asks for blocks, like [`NodeRequest::BlocksOf`].
    BlocksOf {
        /// The clients whose blocks are wanted; at most [`MAX_CLIENTS`].
        clients: Vec<ClientId>,
    },
    /// Asks for the block table of a region, like [`NodeRequest::OwnersOf`].
    OwnersOf {
        /// The number of the region.
        region: u32,
    },
    /// Asks for log areas, like [`NodeRequest::LogAreasOf`].
    LogAreasOf {
        /// The sessions whose log areas are wanted; at most [`MAX_CLIENTS`].
        clients: Vec<ClientId>,
    },
    /// Sets the block table of a region whose primary is another node to a copy of another replica's. Used for a new
    /// replica before the view contains the replica. Answer: `Done`.
    SetOwners {
        /// The number of the region.
        region: u32,
        /// The blocks, free ones included, each with its first frame, in order. They cover the region.
        owners: Vec<(u32, TableEntry)>,
    },
    /// Undoes the incomplete takeover of a block by a fenced client: the block belongs to its earlier owner again,
    /// whether that client is fenced or not. Answer: `Done`.
    TakeBack {
        /// The block whose owner in this node's table is wrong.
        block: BlockId,
        /// The fenced client, which this node's table names as the owner.
        from: ClientId,
        /// The client that other replicas of the block table name as the owner; `NOBODY` frees the block.
        to: ClientId,
        /// The base that other replicas name, if the block is freed.
        base: Option<u16>,
    },
    /// Returns a block that a dead client never used to the pool. Answer: `Done`.
    Free {
        /// The block to free.
        block: BlockId,
        /// The dead client.
        from: ClientId,
    },
    /// Makes this node the primary of these regions, so that it hands out their free blocks. It remains the primary of
    /// other regions. Answer: `Done`.
    Lead {
        /// The regions. A region that was reserved for a later view is skipped, because the request is late in this
        /// case.
        regions: Vec<u32>,
        /// The number of the view in which the node is the primary of these regions.
        view: u64,
    },
    /// Frees an extent that no view contains, and that no process reads or writes any more. It is zeroed before it is
    /// reserved again. An extent that was reserved for a later view stays, because this request is then a late one.
    /// Answer: `Done`, even if there is no such extent.
    Release {
        /// The extent to give back; its field `primary` is ignored.
        extent: Extent,
        /// The number of a view that does not contain the extent any more.
        view: u64,
    },
}

/// A memory node's description of itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeDescription {
    /// The node's identity, a random number. Another process has another identity, and so has the same node after a
    /// restart.
    pub identity: u64,
    /// Size of the pool, in bytes.
    pub pool_bytes: u64,
    /// Host and port of the software NIC.
    pub tcp: Option<String>,
    /// Path of the Unix socket that hands out the pool's memory.
    pub shm: Option<String>,
    /// Host and port at which the node hands out queue pairs of its NIC.
    pub verbs: Option<String>,
}

/// The use of a memory node's pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// Size of the pool, in bytes.
    pub pool_bytes: u64,
    /// Bytes that are reserved for regions and subtables.
    pub reserved_bytes: u64,
    /// Bytes of all blocks in the regions of which this node is the primary.
    pub led_bytes: u64,
    /// Bytes of the blocks that have an owner, among `led_bytes`.
    pub led_bytes_owned: u64,
    /// Bytes of subtables, and of blocks that have an owner. Some objects in these blocks are possibly free.
    pub used_bytes: u64,
    /// Bytes of blocks that writes can still get from the regions whose primary the node is.
    pub free_block_bytes: u64,
    /// Number of log areas in the pool.
    pub log_areas: u32,
    /// Number of log areas that sessions have. A session gets one for its first DELETE, and up to 3 more if it runs
    /// many DELETEs at once.
    pub log_areas_used: u32,
    /// Number of sessions that are attached now, by fabric.
    pub attached: AttachedSessions,
    /// Number of requests over TCP since the node started. A request is a part of a session's batch.
    pub tcp_requests: u64,
    /// Bytes of these requests and of their replies.
    pub tcp_bytes: u64,
    /// Whether the shared-memory socket has disappeared, and could not be created again.
    pub socket_gone: bool,
}

/// The sessions that are attached to a memory node, by fabric.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttachedSessions {
    /// Number of sessions over shared memory.
    pub shm: u64,
    /// Number of sessions over TCP.
    pub tcp: u64,
    /// Number of sessions over verbs.
    pub verbs: u64,
}

impl AttachedSessions {
    /// Returns the number of all attached sessions.
    pub fn total(self) -> u64 {
        self.shm + self.tcp + self.verbs
    }
}

/// An answer of a memory node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum NodeReply {
    /// The answer to `Describe`.
    Description(NodeDescription),
    /// The answer to `Reserve`.
    Reserved {
        /// Offset of the extent in the pool, in bytes.
        offset: u64,
    },
    /// The answer to `Alloc`.
    Allocated {
        /// The allocated block. This node's table names the client as its owner now.
        block: BlockId,
        /// The generation with which the block's objects begin. `None` if the block is mixed, so that the client has to
        /// wait a window before it uses the block.
        base: Option<u16>,
    },
    /// The answer to `OwnersOf`: all blocks, free ones included, each with its first frame, in order.
    Owners(Vec<(u32, TableEntry)>),
    /// The answer to `BlocksOf`: the blocks, in order.
    Blocks(Vec<OwnedBlock>),
    /// The answer to `Usage`.
    Usage(Usage),
    /// The answer to `Bar`: the node has a bar against the member that the session named.
    Barred {
        /// The longest lease that a master has ever told this node, in milliseconds; 0 if there was none. Until that
        /// time has passed, a session possibly has a valid lease.
        lease_ms: u64,
    },
    /// The answer to `StandAt` and `Unbar`.
    Bars(MemberBars),
    /// The request has been carried out, by this message or by an earlier copy of it.
    Done,
    /// The request is refused.
    Refused(NodeRefusal),
    /// The answer to `LogArea`.
    LogArea {
        /// The number of the log area in the pool.
        area: u32,
    },
    /// The answer to `LogAreasOf`: the log areas that the sessions have here.
    LogAreas(Vec<(ClientId, u32)>),
}

/// The reasons for which a memory node refuses a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum NodeRefusal {
    /// The pool has no room for the extent.
    #[error("the pool has {free_bytes} bytes left, {bytes} were asked for")]
    PoolFull {
        /// The length of the extent, in bytes.
        bytes: u64,
        /// The length of the longest free part of the pool, in bytes.
        free_bytes: u64,
    },
    /// No region of which the node is the primary has a free block that this request is allowed to get.
    #[error("no free block")]
    NoFreeBlock,
    /// The block table names another owner.
    #[error("the block belongs to {owner}")]
    NotOwner {
        /// The owner that the block table names.
        owner: ClientId,
    },
    /// This node has no such region or block.
    #[error("unknown block {block:?}")]
    UnknownBlock {
        /// The block that the request names.
        block: BlockId,
    },
    /// The client has been fenced.
    #[error("{client} has been fenced")]
    Fenced {
        /// The client's id.
        client: ClientId,
    },
    /// The session or job has given this request up: a later request has told the node so before this request arrived.
    #[error("the request came too late: nothing waits for it any more")]
    Late,
    /// The node is at a later view than the sender.
    #[error("the node stands at view {view}, a later one")]
    LaterView {
        /// The number of the node's view.
        view: u64,
    },
    /// The node has had an answer of a master less than a lease ago, and that master deals with silent members.
    #[error("the node hears a master")]
    HearsMaster,
    /// The node belongs to another cluster.
    #[error("this memory node belongs to another cluster ({cluster}); restart it to empty it")]
    OtherCluster {
        /// The cluster of the node.
        cluster: ClusterId,
    },
    /// The numbers in the request are impossible.
    #[error("bad request: {what}")]
    BadRequest {
        /// A text that names the impossible number.
        what: String,
    },
    /// Other sessions have all log areas of the pool.
    #[error("all {areas} log areas are lent to sessions that delete; close sessions that are idle")]
    NoLogArea {
        /// The number of log areas in the pool.
        areas: u32,
    },
}
