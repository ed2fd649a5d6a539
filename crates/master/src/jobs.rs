//! The long work of the master: jobs settle and fill replicas, recover clients, and look for damage (P §5.2, §5.3).
//!
//! A job is a future over a [`Fabric`] and a [`JobEnvironment`], so it runs on any host: a thread of the real master,
//! or a process of the simulator. The logic starts jobs ([`MasterAction::Job`]), one at a time, under a session id that
//! is fenced before another id is used. So a job can stop anywhere, and another master can run it again: no verb of the
//! earlier run executes during the later one.
//!
//! A job's requests to memory nodes go in turn ([`NodeRequest::OfJob`]), so no request of an earlier run takes effect
//! during a later run either.
//!
//! A job knows only the view that it is given. If a memory node does not answer, the job ends with an error that names
//! the node. The logic then asks the node whether it still runs, and runs the job again.
//!
//! [`MasterAction::Job`]: crate::logic::MasterAction::Job

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

use fusee_control::master::{ClientRecovery, Orphan, RecoveryTimes};
use fusee_control::node::{
    BlockId, Extent, JobRequest, MAX_CLIENTS, NodeRefusal, NodeReply, NodeRequest, OwnedBlock,
};
use fusee_core::data::RegionBlock;
use fusee_core::layout::{BLOCK_HEADER_BYTES, TableEntry, log_areas};
use fusee_core::mutant::{Mutant, removed};
use fusee_core::recovery::{
    self, BlockContent, BlockReport, BlockSpan, RecoveryError, RecoveryResult, recover,
};
use fusee_core::repair::{self, RepairError, split};
use fusee_core::scrub::{self, ScrubFindings};
use fusee_core::slab::BlockRemainder;
use fusee_core::verbs::{ClientId, Fabric, FailedVerb, MnId, VerbBatch, VerbError};
use fusee_core::view::change::{LeavingFrom, RegionChange, ViewChange};
use fusee_core::view::{Geometry, PoolPlace, View};
use futures_util::future::try_join_all;

/// A task for a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MasterJob {
    /// Make the replicas in the scope of a view change equal, and fill new replicas: the work of the stage
    /// *transforming*.
    Transform {
        /// Clients that have expired and are not recovered. The clients that had not acknowledged the view when the
        /// stage began are fenced at all members.
        dead: Vec<ClientId>,
    },
    /// Check slots of a subtable, and the objects that they lead to, in a stable view.
    Scrub {
        /// The number of the subtable.
        subtable: u32,
        /// The number of the first slot to check.
        first: u64,
        /// The limit on the number of slots to check.
        count: u64,
        /// The approximate number of bytes to read from the subtable and from objects.
        bytes: u64,
    },
    /// Complete splits and moves, in a view that is *switched* and that all sessions have acknowledged.
    Clear,
    /// Recover dead clients whose sessions are fenced at all members.
    Recover {
        /// The clients to recover, at most [`MAX_CLIENTS`].
        clients: Vec<ClientId>,
    },
}

/// The result of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JobReport {
    /// The replicas in the scope of the view change are equal.
    Transformed {
        /// The number of slots that were changed on at least one replica.
        slots_changed: u64,
        /// The number of bytes that were copied to new replicas.
        bytes_copied: u64,
        /// The number of objects that were damaged on the replica from which they were copied.
        damaged: u64,
    },
    /// A part of a subtable was checked.
    Scrubbed {
        /// The number of the subtable.
        subtable: u32,
        /// The number of the first slot that was checked.
        first: u64,
        /// The findings of the check.
        looked: ScrubFindings,
    },
    /// Index entries that a split has moved are removed from their old slots.
    Cleared {
        /// The number of removed index entries.
        slots_changed: u64,
    },
    /// The dead clients are recovered: they left nothing that could harm other sessions.
    Recovered(Vec<RecoveredClient>),
}

/// A recovered client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecoveredClient {
    /// Figures of the recovery for the operator.
    pub recovery: ClientRecovery,
    /// The blocks that the client owned according to the block tables of all replicas.
    pub owned: Vec<BlockId>,
    /// Those of the client's blocks that other sessions can continue to fill.
    pub orphans: Vec<Orphan>,
}

/// The reason why a job ended early. The job can be run again.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what}")]
pub struct JobError {
    /// The memory node that did not answer; `None` if all nodes answered.
    pub node: Option<MnId>,
    /// Whether posted verbs can still execute after the end of the job. False for a host whose fabric executes verbs at
    /// once.
    pub may_linger: bool,
    /// The subtable and slot of an index entry that a split can move to neither half, because no replica of its object
    /// can be read.
    pub unreadable: Option<(u32, u64)>,
    /// A text that describes the failure for operators.
    pub what: String,
}

impl JobError {
    /// Returns an error; `node` is the memory node that did not answer, if there is one.
    pub fn new(node: Option<MnId>, what: String) -> JobError {
        JobError { node, may_linger: true, unreadable: None, what }
    }
}

impl From<FailedVerb> for JobError {
    fn from(failure: FailedVerb) -> JobError {
        let silent = failure.error == VerbError::Unreachable;
        JobError::new(silent.then_some(failure.node), failure.to_string())
    }
}

impl From<RecoveryError> for JobError {
    fn from(error: RecoveryError) -> JobError {
        match error {
            RecoveryError::Unreachable(failure) => failure.into(),
        }
    }
}

impl From<RepairError> for JobError {
    fn from(error: RepairError) -> JobError {
        match error {
            RepairError::Unreachable(failure) => failure.into(),
            RepairError::Unreadable { subtable, slot } => {
                let unreadable = Some((subtable, slot));
                JobError { unreadable, ..JobError::new(None, error.to_string()) }
            }
            other => JobError::new(None, other.to_string()),
        }
    }
}

/// The means by which a job reaches the control services of the view's members, and a clock.
pub trait JobEnvironment {
    /// Sends a memory node a request, once. The error is the reason why there is no answer.
    fn ask(
        &self,
        node: MnId,
        request: NodeRequest,
    ) -> impl Future<Output = Result<NodeReply, String>>;

    /// Returns the number of microseconds since some fixed moment.
    fn now_us(&self) -> u64;
}

/// The context in which a job runs. All of its requests carry the job's number.
#[derive(Clone, Copy, Debug)]
pub struct JobContext<'r, R> {
    /// The access of the job to the memory nodes.
    pub reach: &'r R,
    /// The session under which the job works.
    pub repairer: ClientId,
    /// The number of the job, larger than those of all earlier jobs of the repairer.
    pub job: u64,
}

impl<R: JobEnvironment> JobContext<'_, R> {
    fn now_us(&self) -> u64 {
        self.reach.now_us()
    }

    async fn send(&self, node: MnId, request: NodeRequest) -> Result<NodeReply, JobError> {
        let answer = self.reach.ask(node, request).await;
        answer
            .map_err(|cause| JobError::new(Some(node), format!("{node} does not answer: {cause}")))
    }

    async fn ask(&self, node: MnId, request: JobRequest) -> Result<NodeReply, JobError> {
        let JobContext { repairer, job, .. } = *self;
        self.send(node, NodeRequest::OfJob { repairer, job, request }).await
    }

    async fn order(&self, node: MnId, request: JobRequest) -> Result<(), JobError> {
        match self.ask(node, request).await? {
            NodeReply::Done => Ok(()),
            other => Err(unexpected(node, &other)),
        }
    }

    /// Fences clients at all members of the view concurrently. This request needs no number: a fence is permanent, so a
    /// late request does no harm.
    async fn fence(&self, view: &View, clients: &[ClientId]) -> Result<(), JobError> {
        let fencing = view.members.iter().map(|member| async {
            let request = NodeRequest::Fence { clients: clients.to_vec() };
            match self.send(member.node, request).await? {
                NodeReply::Done => Ok(()),
                other => Err(unexpected(member.node, &other)),
            }
        });
        try_join_all(fencing).await.map(drop)
    }

    /// Sends the same request to all members of the view concurrently.
    async fn ask_all(
        &self,
        view: &View,
        request: JobRequest,
    ) -> Result<Vec<(MnId, NodeReply)>, JobError> {
        let asking = view.members.iter().map(|member| async {
            Ok((member.node, self.ask(member.node, request.clone()).await?))
        });
        try_join_all(asking).await
    }
}

/// Runs a job that uses this view, which must have passed [`View::check`].
pub async fn run<F: Fabric, R: JobEnvironment>(
    fabric: &F,
    orders: &JobContext<'_, R>,
    view: &View,
    job: MasterJob,
) -> Result<JobReport, JobError> {
    match job {
        MasterJob::Transform { dead } => {
            let done = transform(fabric, orders, view, &dead).await?;
            let repair::TransformResult { slots_changed, bytes_copied, objects_repaired, .. } =
                done;
            Ok(JobReport::Transformed { slots_changed, bytes_copied, damaged: objects_repaired })
        }
        MasterJob::Scrub { subtable, first, count, bytes } => {
            let looked = scrub::check_slots(fabric, view, subtable, first, count, bytes).await?;
            Ok(JobReport::Scrubbed { subtable, first, looked })
        }
        MasterJob::Clear => {
            let repair::TransformResult { slots_changed, .. } = split::clear(fabric, view).await?;
            release(orders, view).await?;
            lead(orders, view).await?;
            Ok(JobReport::Cleared { slots_changed })
        }
        MasterJob::Recover { clients } => {
            Ok(JobReport::Recovered(recover_clients(fabric, orders, view, clients).await?))
        }
    }
}

fn unexpected(node: MnId, reply: &NodeReply) -> JobError {
    JobError::new(None, format!("{node} answered by {reply:?}"))
}

/// Makes the replicas in the scope of a change equal, and fills the joining ones, including their tables of block
/// owners. Then tells the primary of every region to hand out blocks. If a joining primary replaces a living one, this
/// waits until the old primary has released its place ([`MasterJob::Clear`]).
///
/// Before a region is copied, objects in it that `dead` clients have left on only some replicas are completed.
/// Otherwise the only complete replica of an object could be removed, and the slot word that leads to the object would
/// remain for ever. A client that dies later has no such objects there, because the region is frozen.
///
/// # Panics
/// If the view has no change that is transforming.
pub async fn transform<F: Fabric, R: JobEnvironment>(
    fabric: &F,
    orders: &JobContext<'_, R>,
    view: &View,
    dead: &[ClientId],
) -> Result<repair::TransformResult, JobError> {
    let is_copied = view.change.as_ref().is_some_and(|change| !change.regions.is_empty());
    if is_copied && !removed(Mutant::RegionsCopiedIncomplete) {
        for dead in dead.chunks(MAX_CLIENTS) {
            complete_objects(fabric, orders, view, dead).await?;
        }
    }
    let mut tables = BTreeMap::new();
    let regions = view.change.iter().flat_map(|change| &change.regions);
    for RegionChange { region, joining, adds_parity, .. } in regions.clone() {
        // Blocks of a frozen region are neither used for the first time nor returned, so these are all that contain
        // anything.
        if joining.is_some() || *adds_parity {
            let source = view.regions[*region as usize].primary().node;
            tables.insert(*region, table_of(orders, source, *region).await?);
        }
    }
    let blocks = tables.iter().map(|(region, table)| (*region, blocks_of(table, &view.geometry)));
    let transformed = repair::transform(fabric, view, &blocks.collect()).await?;
    for RegionChange { region, joining, .. } in regions {
        // The new replica's block table is written after the region's bytes, because these include the table of the
        // source.
        let (Some(joining), region) = (joining, *region) else { continue };
        // The table is the one from before the bytes were copied. If a late return has freed a block since, the new
        // replica has a header there. So its table has to name the owner, whose return or recovery frees the block
        // there.
        let owners = tables.remove(&region).unwrap_or_default();
        let request = JobRequest::SetOwners { region, owners };
        if !removed(Mutant::CopiesNoOwners) {
            orders.order(joining.node, request).await?;
        }
    }
    lead(orders, view).await?;
    if removed(Mutant::PlaceGivenUpEarly) {
        release(orders, view).await?;
    }
    Ok(transformed)
}

/// Asks a node for its block table of a region.
async fn table_of<R: JobEnvironment>(
    orders: &JobContext<'_, R>,
    node: MnId,
    region: u32,
) -> Result<Vec<(u32, TableEntry)>, JobError> {
    match orders.ask(node, JobRequest::OwnersOf { region }).await? {
        NodeReply::Owners(owners) => Ok(owners),
        other => Err(unexpected(node, &other)),
    }
}

/// Returns the blocks of a region's table.
pub fn blocks_of(table: &[(u32, TableEntry)], geometry: &Geometry) -> Vec<RegionBlock> {
    let blocks = table.iter().filter(|(frame, entry)| geometry.is_block(*frame, entry.order));
    let blocks = blocks.map(|(frame, entry)| RegionBlock {
        offset: geometry.frame_offset(*frame),
        bytes: geometry.order_bytes(entry.order),
    });
    blocks.collect()
}

/// Completes the objects of dead clients in the frozen regions, on all replicas.
async fn complete_objects<F: Fabric, R: JobEnvironment>(
    fabric: &F,
    orders: &JobContext<'_, R>,
    view: &View,
    dead: &[ClientId],
) -> Result<(), JobError> {
    for blocks in DeadClientBlocks::of_all(orders, view, dead.to_vec()).await? {
        let frozen = blocks.all().filter(|block| view.is_region_frozen(block.region));
        let frozen: Vec<_> = frozen.map(|block| span_of(*block, view)).collect();
        recovery::complete_objects(fabric, view, blocks.client, &frozen).await?;
    }
    Ok(())
}

/// Tells the primary of every region in the view to hand out the region's blocks.
async fn lead<R: JobEnvironment>(orders: &JobContext<'_, R>, view: &View) -> Result<(), JobError> {
    for member in &view.members {
        let led = (0u32..).zip(&view.regions).filter(|(_, r)| r.leader() == Some(member.node));
        let regions: Vec<u32> = led.map(|(number, _)| number).collect();
        if !regions.is_empty() {
            let request = JobRequest::Lead { regions, view: view.number };
            orders.order(member.node, request).await?;
        }
    }
    Ok(())
}

/// Releases the places of replicas that have left the view. All sessions have acknowledged that view. This has to be
/// done before another node is told to hand out blocks instead of one of these replicas.
async fn release<R: JobEnvironment>(
    orders: &JobContext<'_, R>,
    view: &View,
) -> Result<(), JobError> {
    for (from, place) in view.change.iter().flat_map(ViewChange::leaving) {
        let extent = match from {
            LeavingFrom::Subtable(subtable) => Extent::Subtable { subtable },
            LeavingFrom::Region(region) => Extent::Region { region, primary: false },
        };
        let request = JobRequest::Release { extent, view: view.number };
        orders.order(place.node, request).await?;
    }
    Ok(())
}

/// Repairs what dead clients left: their writes, their entries in block tables, and blocks that they never used.
/// Clients are recovered one after the other, but the first requests to the memory nodes are about all clients at once.
pub async fn recover_clients<F: Fabric, R: JobEnvironment>(
    fabric: &F,
    orders: &JobContext<'_, R>,
    view: &View,
    clients: Vec<ClientId>,
) -> Result<Vec<RecoveredClient>, JobError> {
    let mut times = RecoveryTimes::default();
    let mut watch = JobStopwatch { orders, last_us: orders.now_us() };
    if !removed(Mutant::RecoveryBeforeTheFence) {
        orders.fence(view, &clients).await?;
    }
    times.reconnect_us = watch.lap();
    let mut areas = log_areas_of(orders, view, clients.clone()).await?;
    let blocks = DeadClientBlocks::of_all(orders, view, clients).await?;
    times.metadata_us = watch.lap();
    let mut recovered = Vec::new();
    // Whether the tables have changed since they were read. For example, a block that client A had begun to take over
    // from client B was given back to B.
    let mut is_changed = false;
    for mut blocks in blocks {
        if is_changed {
            let again = DeadClientBlocks::of_all(orders, view, vec![blocks.client]).await?;
            blocks = again.into_iter().next().expect("one for each client");
        }
        is_changed |= !blocks.partial.is_empty();
        let areas = areas.remove(&blocks.client).unwrap_or_default();
        recovered.push(recover_client(fabric, &mut watch, view, blocks, &areas, times).await?);
    }
    Ok(recovered)
}

/// Recovers one client. `times` has the durations of the steps that were done for all clients together.
async fn recover_client<F: Fabric, R: JobEnvironment>(
    fabric: &F,
    watch: &mut JobStopwatch<'_, R>,
    view: &View,
    blocks: DeadClientBlocks,
    areas: &[(MnId, u32)],
    mut times: RecoveryTimes,
) -> Result<RecoveredClient, JobError> {
    let orders = watch.orders;
    let client = blocks.client;
    let spans: Vec<_> = blocks.all().map(|block| span_of(*block, view)).collect();
    let report = recover(fabric, view, client, &spans, areas).await?;
    times.log_us = watch.lap();
    blocks.take_back(orders, view).await?;
    times.repair_us = watch.lap();
    let unused = blocks.owned_with(view, &report, BlockContent::Nothing);
    free(fabric, orders, view, client, &unused).await?;
    times.free_lists_us = watch.lap();
    let orphans = blocks.orphans(view, &report);
    let recovery = ClientRecovery {
        client,
        blocks: blocks.owned.len() as u64,
        freed: unused.len() as u64,
        orphans: orphans.len() as u64,
        walked: report.walked,
        committed: report.committed,
        withdrawn: report.withdrawn,
        strange: report.strange,
        times,
    };
    Ok(RecoveredClient { recovery, owned: blocks.owned.into_iter().collect(), orphans })
}

/// Returns the log areas of dead clients on all members.
async fn log_areas_of<R: JobEnvironment>(
    orders: &JobContext<'_, R>,
    view: &View,
    clients: Vec<ClientId>,
) -> Result<BTreeMap<ClientId, Vec<(MnId, u32)>>, JobError> {
    let mut all = BTreeMap::<ClientId, Vec<(MnId, u32)>>::new();
    for (node, reply) in orders.ask_all(view, JobRequest::LogAreasOf { clients }).await? {
        let NodeReply::LogAreas(areas) = reply else { return Err(unexpected(node, &reply)) };
        let lent = view.member(node).map_or(0, |member| member.pool_bytes);
        for (client, area) in areas.into_iter().filter(|(_, area)| *area < log_areas(lent)) {
            all.entry(client).or_default().push((node, area));
        }
    }
    Ok(all)
}

/// A stopwatch that measures consecutive steps.
struct JobStopwatch<'r, R> {
    orders: &'r JobContext<'r, R>,
    last_us: u64,
}

impl<R: JobEnvironment> JobStopwatch<'_, R> {
    /// Returns the microseconds since the last call.
    fn lap(&mut self) -> u64 {
        let before = std::mem::replace(&mut self.last_us, self.orders.now_us());
        self.last_us.saturating_sub(before)
    }
}

/// The blocks whose owner, by the tables of the memory nodes, is a dead client.
struct DeadClientBlocks {
    client: ClientId,
    /// The blocks that the client owns according to the block tables of all replicas.
    owned: BTreeSet<BlockId>,
    /// Blocks that the client owns on only some replicas, with the nodes of these. The client had begun to take the
    /// block over, or to give it back, so the client has not written there since.
    partial: BTreeMap<BlockId, BTreeSet<MnId>>,
}

impl DeadClientBlocks {
    async fn of_all<R: JobEnvironment>(
        orders: &JobContext<'_, R>,
        view: &View,
        clients: Vec<ClientId>,
    ) -> Result<Vec<DeadClientBlocks>, JobError> {
        let mut shown: BTreeMap<ClientId, BTreeMap<BlockId, BTreeSet<MnId>>> = BTreeMap::new();
        let request = JobRequest::BlocksOf { clients: clients.clone() };
        for (node, reply) in orders.ask_all(view, request).await? {
            let NodeReply::Blocks(blocks) = reply else { return Err(unexpected(node, &reply)) };
            for OwnedBlock { block, owner, .. } in
                blocks.into_iter().filter(|owned| holds(view, owned.block, node))
            {
                shown.entry(owner).or_default().entry(block).or_default().insert(node);
            }
        }
        let everywhere = |block: BlockId, nodes: &BTreeSet<MnId>| {
            places(view, block).iter().all(|place| nodes.contains(&place.node))
        };
        let of_client = clients.into_iter().map(|client| {
            let shown = shown.remove(&client).unwrap_or_default();
            let (owned, partial): (BTreeMap<_, _>, BTreeMap<_, _>) =
                shown.into_iter().partition(|(block, nodes)| everywhere(*block, nodes));
            DeadClientBlocks { client, owned: owned.into_keys().collect(), partial }
        });
        Ok(of_client.collect())
    }

    fn all(&self) -> impl Iterator<Item = &BlockId> {
        self.owned.iter().chain(self.partial.keys())
    }

    /// Makes the tables of a block's replicas agree: a block that the client owns on only some replicas goes to the
    /// owner that the other replicas name.
    async fn take_back<R: JobEnvironment>(
        &self,
        orders: &JobContext<'_, R>,
        view: &View,
    ) -> Result<(), JobError> {
        // In a rare case a block is lost: the owner that the other replicas name gives the block back between the two
        // requests below. Then one replica's table names that owner for ever, the others call the block free, and no
        // session can use the block again.
        let mut tables: BTreeMap<(MnId, u32), Vec<(u32, TableEntry)>> = BTreeMap::new();
        for (block, nodes) in &self.partial {
            let places = places(view, *block);
            let other = places.iter().find(|place| !nodes.contains(&place.node));
            let other = other.expect("it is not the client's everywhere").node;
            let region = block.region;
            let table = match tables.entry((other, region)) {
                Entry::Occupied(known) => known.into_mut(),
                Entry::Vacant(unknown) => unknown.insert(table_of(orders, other, region).await?),
            };
            let (to, base) = owner_and_base(table, *block);
            // The primary comes last, because it hands the block out as soon as the block is free there.
            for place in places.iter().rev().filter(|place| nodes.contains(&place.node)) {
                let request = JobRequest::TakeBack { block: *block, from: self.client, to, base };
                match orders.ask(place.node, request).await? {
                    NodeReply::Done | NodeReply::Refused(NodeRefusal::NotOwner { .. }) => {}
                    reply => return Err(unexpected(place.node, &reply)),
                }
            }
        }
        Ok(())
    }

    /// Returns the blocks that have this kind of content and that the client owns according to the tables of all
    /// replicas.
    fn owned_with(
        &self,
        view: &View,
        report: &RecoveryResult,
        content: BlockContent,
    ) -> Vec<BlockId> {
        let found = report.blocks.iter().filter(|block| block.content == content);
        let blocks = found.filter_map(|found| {
            BlockId::at(found.block.address, found.block.bytes, &view.geometry)
        });
        blocks.filter(|block| self.owned.contains(block)).collect()
    }

    fn orphans(&self, view: &View, report: &RecoveryResult) -> Vec<Orphan> {
        let remainders = report.blocks.iter().filter_map(BlockReport::remainder);
        let orphans = remainders.filter_map(|rest| {
            let BlockRemainder { block, bytes, base, class, first, marked } = rest;
            let block = BlockId::at(block, bytes, &view.geometry)?;
            Some(Orphan { block, owner: self.client, class, first, base, marked })
        });
        orphans.filter(|orphan| self.owned.contains(&orphan.block)).collect()
    }
}

fn span_of(block: BlockId, view: &View) -> BlockSpan {
    BlockSpan { address: block.address(&view.geometry), bytes: block.bytes(&view.geometry) }
}

/// Returns the owner of a block by this table, and the base if the block is free. By the table of a node to which the
/// block's last owner has not come, the block is possibly a part of a larger one, or was split.
fn owner_and_base(table: &[(u32, TableEntry)], block: BlockId) -> (ClientId, Option<u16>) {
    let behind = table.partition_point(|(frame, _)| *frame <= block.frame);
    let with = behind.checked_sub(1).map(|at| table[at]);
    match with {
        Some((frame, entry)) if frame == block.frame && entry.order == block.order => {
            (entry.owner, entry.base)
        }
        Some((_, entry)) if entry.order > block.order && entry.owner == ClientId::NOBODY => {
            (ClientId::NOBODY, entry.base)
        }
        // Parts of the block were free with several bases, or belong to blocks that no session uses: sessions use only
        // blocks that all tables show.
        _ => (ClientId::NOBODY, None),
    }
}

/// Returns the places of a block's region; none if the view has no such block.
fn places(view: &View, block: BlockId) -> &[PoolPlace] {
    let region = view.regions.get(block.region as usize);
    let region = region.filter(|_| view.geometry.is_block(block.frame, block.order));
    region.map_or(&[], |region| region.places())
}

fn holds(view: &View, block: BlockId, node: MnId) -> bool {
    places(view, block).iter().any(|place| place.node == node)
}

/// Gives blocks that were never used back to their memory nodes, after filling their headers with zeros.
async fn free<F: Fabric, R: JobEnvironment>(
    fabric: &F,
    orders: &JobContext<'_, R>,
    view: &View,
    client: ClientId,
    blocks: &[BlockId],
) -> Result<(), JobError> {
    let mut batch = VerbBatch::new();
    for id in blocks {
        batch.clear();
        let zeros = batch.stage(BLOCK_HEADER_BYTES as u32);
        batch.bytes_mut(zeros).fill(0);
        let offset = view.geometry.frame_offset(id.frame);
        for place in places(view, *id) {
            batch.write(place.node, place.offset + offset, zeros);
        }
        batch = fabric.execute(batch).await;
        batch.check()?;
        // The primary comes last, because it hands the block out as soon as the block is free there.
        for place in places(view, *id).iter().rev() {
            let request = JobRequest::Free { block: *id, from: client };
            orders.order(place.node, request).await?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWNER: ClientId = ClientId(7);
    const FREE: ClientId = ClientId::NOBODY;

    /// Returns the owner and the base of the block of order 1 at frame 4, by the table with these blocks.
    fn found(table: &[(u32, ClientId, u8, Option<u16>)]) -> (ClientId, Option<u16>) {
        let entry = |&(frame, owner, order, base)| (frame, TableEntry { owner, order, base });
        let table: Vec<(u32, TableEntry)> = table.iter().map(entry).collect();
        owner_and_base(&table, BlockId { region: 0, frame: 4, order: 1 })
    }

    #[test]
    fn a_table_with_the_block_itself_names_its_owner_and_its_base() {
        let table = |owner, base| {
            [(0, ClientId(1), 2, Some(1)), (4, owner, 1, base), (6, ClientId(2), 1, Some(2))]
        };
        for (owner, base) in [(OWNER, Some(5)), (FREE, Some(5)), (FREE, None), (OWNER, None)] {
            assert_eq!(found(&table(owner, base)), (owner, base));
        }
        // The block is the last one of the table, or the first one.
        assert_eq!(found(&table(OWNER, Some(5))[..2]), (OWNER, Some(5)));
        assert_eq!(found(&table(OWNER, Some(5))[1..]), (OWNER, Some(5)));
    }

    #[test]
    fn a_part_of_a_larger_free_block_is_free_and_has_its_base() {
        for base in [Some(5), None] {
            assert_eq!(found(&[(0, OWNER, 2, Some(1)), (4, FREE, 2, base)]), (FREE, base));
            let after = (8, OWNER, 3, Some(2));
            assert_eq!(found(&[(0, FREE, 3, base), after]), (FREE, base));
        }
    }

    /// The table was not written by the session that owns the whole block, so the block has no owner, and no base is
    /// known to be safe.
    #[test]
    fn a_block_that_is_split_into_parts_is_free_and_mixed() {
        let parts = |first: ClientId, second: ClientId, bases: [Option<u16>; 2]| {
            let before = (0, OWNER, 2, Some(1));
            let after = (6, FREE, 1, Some(2));
            found(&[before, (4, first, 0, bases[0]), (5, second, 0, bases[1]), after])
        };
        for bases in [[Some(5), Some(6)], [Some(6), Some(5)], [Some(5), None], [None, None]] {
            assert_eq!(parts(FREE, FREE, bases), (FREE, None), "{bases:?}");
        }
        assert_eq!(parts(OWNER, FREE, [Some(5); 2]), (FREE, None));
        assert_eq!(parts(FREE, OWNER, [Some(5); 2]), (FREE, None));
    }

    #[test]
    fn a_part_of_a_larger_block_with_an_owner_is_free_and_mixed() {
        assert_eq!(found(&[(0, OWNER, 3, Some(5))]), (FREE, None));
    }
}
