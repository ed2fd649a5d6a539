//! The decisions of a memory node: a state machine without sockets, clocks or threads.
//!
//! The node is the first level of the two-level allocation (P §4.4): the master reserves extents of the pool, and
//! clients get whole blocks of the regions whose primary this node is. The host of this logic carries out the
//! effects of a step in their order, and sends the reply after that.
//!
//! Invariants:
//!
//! * Extents lie inside the pool, behind its header, are aligned by [`extent_align_bytes`] and never overlap.
//!   Regions are placed from the low end, subtables from the high end. Extents of one kind have one size, so the
//!   next extent exactly fits where an earlier one was released, and the pool does not fragment.
//! * An extent is all zeros when it is reserved, because it is zeroed when it is released.
//! * Each request of the master to reserve or release an extent, or to lead a region, has the number of a view, and
//!   each extent the number of the view for which it was reserved. So a late request about an extent that was released
//!   and reserved again meanwhile changes nothing.
//! * A block has one owner at a time. The table in this module is authoritative. The pool holds a copy of it at the
//!   start of the region, which is read one-sided for surveys. The node never reads the copy back, because clients can
//!   write the pool.
//! * Free blocks contain only zeros.
//! * The header of the pool shows the node's cluster, the view that the node is at, and the node's bars (`bars`).
//!   No other process writes the header.
//! * A fenced client gets no more blocks, and no log area.
//! * A log area has one session at a time (`log_areas`).
//! * If a session has given up a request and got the answer to a later one, the request given up has no effect any
//!   more. The same holds for the requests of a job that the master had given up before a later job was answered
//!   (`request_order`).
//! * A member of a cluster obeys no process of another cluster, and leaves its own cluster only if a master of that
//!   cluster says so ([`HeartbeatReply`]).
//! * Every request except `Alloc` can be repeated: the second execution changes nothing. A request marked *once* is
//!   refused the second time.
//! * Requests can contain any numbers. The numbers are checked before they are used.
//!
//! Offsets and sizes are in bytes; an offset counts from the start of the pool.

mod bars;
mod log_areas;
mod region;
mod request_order;

use std::collections::{BTreeMap, BTreeSet};

use bars::NodeBarState;
use fusee_control::master::{MasterReply, MasterReplyId};
use fusee_control::node::{
    AcceptedOrders, BlockId, Extent, MAX_ALLOC_REGIONS, MAX_CLIENTS, NodeDescription, NodeRefusal,
    NodeReply, NodeRequest, OwnedBlock, Usage, extent_align_bytes,
};
use fusee_core::data::Redundancy;
use fusee_core::ended_clients::{EndedClients, LiveClients};
use fusee_core::layout::{HeaderWord, LAYOUT_WORD, Slot, TableEntry, first_extent};
use fusee_core::mutant::{Mutant, removed};
use fusee_core::verbs::{ClientId, ClusterId};
use fusee_core::view::Geometry;
use log_areas::LentLogAreas;
use region::{NewBase, NodeRegion, WantedBlock};
use request_order::NodeRequestOrder;

/// An action that the host of the logic has to carry out before it replies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeEffect {
    /// Fill a part of the pool with zeros.
    ZeroPool {
        /// Offset of the part in the pool, in bytes.
        offset: u64,
        /// The length of the part, in bytes.
        bytes: u64,
    },
    /// Make the system provide the pages of a part of the pool. This changes nothing that other processes see. It can
    /// take long, so the server decides on other requests meanwhile.
    PopulatePool {
        /// Offset of the part in the pool, in bytes.
        offset: u64,
        /// The length of the part, in bytes.
        bytes: u64,
    },
    /// Write an entry of the block allocation table to the pool's copy of the table, little-endian and untorn.
    WriteTable {
        /// Offset of the table entry in the pool, in bytes.
        offset: u64,
        /// The entry.
        value: u64,
    },
    /// Write a word of the pool's header, little-endian and untorn.
    WriteHeader {
        /// The position of the word in the header.
        word: HeaderWord,
        /// The value of the word.
        value: u64,
    },
    /// Tell all fabrics which clients below a bound live. The fabrics refuse all other clients below the bound from
    /// then on.
    Living {
        /// The living clients, and the bound below which all other clients have ended.
        living: LiveClients,
    },
    /// Fence the client on all fabrics. The effect is complete when none of the client's verbs executes any more.
    Fence {
        /// The client to fence.
        client: ClientId,
    },
}

/// The node's decision on a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeDecision {
    /// The actions to carry out, in order, before the reply is sent.
    pub effects: Vec<NodeEffect>,
    /// The reply to the sender of the request.
    pub reply: NodeReply,
}

type NodeResult = Result<NodeReply, NodeRefusal>;

/// Limits on the blocks that an ALLOC takes.
#[derive(Clone, Copy)]
struct RegionChoice<'a> {
    orders: AcceptedOrders,
    /// Regions from which the ALLOC must not take a block, because they are frozen.
    frozen: &'a [u32],
    /// If not empty: the ALLOC takes a block only from these regions, and only from those with spare blocks.
    spare_of: &'a [u32],
}

#[derive(Clone, Copy, Debug)]
struct NodeSubtable {
    offset: u64,
    bytes: u64,
    /// The number of the view for which the subtable was reserved.
    since: u64,
}

/// The meaning of a master's answer to `Alive`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeartbeatReply {
    /// The master knows the node. The node repeats the master's note in its next heartbeat; the lease is in
    /// milliseconds.
    Noted(MasterReplyId, u64),
    /// The reply does not concern the node. The node goes on sending heartbeats.
    Nothing,
    /// The master does not know the node, and the node holds nothing of a cluster. The node joins again.
    JoinAgain,
    /// The master does not know the node, although the node holds something of the master's cluster: the master has
    /// started from an old copy of its store. The node keeps what it holds, and goes on sending heartbeats.
    Forgotten,
    /// The cluster goes on without the node, because it was silent for too long.
    Expelled,
    /// The node has been drained.
    Drained,
}

impl HeartbeatReply {
    /// Returns the meaning of a reply. `cluster` is the cluster of which the node holds something, if any. A master
    /// of another cluster replies with `WrongCluster`, which means `Nothing`.
    pub fn of(reply: &MasterReply, cluster: Option<ClusterId>) -> HeartbeatReply {
        match reply {
            MasterReply::Noted { note, lease_ms } => HeartbeatReply::Noted(*note, *lease_ms),
            MasterReply::Expelled => HeartbeatReply::Expelled,
            MasterReply::Drained => HeartbeatReply::Drained,
            MasterReply::Unknown if cluster.is_none() => HeartbeatReply::JoinAgain,
            MasterReply::Unknown => HeartbeatReply::Forgotten,
            _ => HeartbeatReply::Nothing,
        }
    }
}

/// The end of the pool from which a new extent is taken.
#[derive(Clone, Copy, PartialEq, Eq)]
enum PoolEnd {
    Below,
    Above,
}

/// The state of a memory node.
#[derive(Debug)]
pub struct NodeLogic {
    description: NodeDescription,
    /// The cluster that formatted this node, if any, and the number of that cluster's latest attempt to form.
    bound: Option<(ClusterId, u64)>,
    /// The view that the node is at, as the pool's header shows; 0 for none.
    stands_at: u64,
    /// The unreserved parts of the pool: the length of each part, by its start. No two parts touch.
    free: BTreeMap<u64, u64>,
    reserved_bytes: u64,
    regions: BTreeMap<u32, NodeRegion>,
    subtables: BTreeMap<u32, NodeSubtable>,
    /// The numbers of the regions whose primary is on this node. `turn` is the index of the next one to allocate
    /// from.
    primaries: Vec<u32>,
    turn: usize,
    over: EndedClients,
    turns: NodeRequestOrder,
    barring: NodeBarState,
    log_areas: LentLogAreas,
}

impl NodeLogic {
    /// The header word and its value that the host writes to a new pool before any other process can reach the
    /// pool.
    pub const FIRST_WORD: (HeaderWord, u64) = (HeaderWord::Layout, LAYOUT_WORD);

    /// Makes a node with a pool that is all zeros and belongs to no cluster. The pool consists of its header and of
    /// `description.pool_bytes` bytes from [`first_extent`] on.
    pub fn new(description: NodeDescription) -> NodeLogic {
        let free = all_free(&description);
        let log_areas = LentLogAreas::new(description.pool_bytes);
        NodeLogic {
            description,
            bound: None,
            stands_at: 0,
            free,
            reserved_bytes: 0,
            regions: BTreeMap::new(),
            subtables: BTreeMap::new(),
            primaries: Vec::new(),
            turn: 0,
            over: EndedClients::new(),
            turns: NodeRequestOrder::default(),
            barring: NodeBarState::default(),
            log_areas,
        }
    }

    /// Returns the cluster of which the node possibly holds something. A node that was bound to a cluster, and
    /// forgotten by the cluster before it got anything, holds nothing.
    pub fn held_cluster(&self) -> Option<ClusterId> {
        self.cluster().filter(|_| self.reserved_bytes > 0 || self.stands_at > 0)
    }

    /// Returns the cluster that the node serves, if any.
    pub fn cluster(&self) -> Option<ClusterId> {
        self.bound.map(|(cluster, _)| cluster)
    }

    /// Decides on a request. `asker` is the cluster of the request's sender, if the sender belongs to one. To
    /// processes of another cluster the node only describes itself: it neither obeys a foreign master nor serves a
    /// foreign cluster's clients.
    pub fn handle_from(&mut self, asker: Option<ClusterId>, request: NodeRequest) -> NodeDecision {
        if let (Some(asker), Some(own)) = (asker, self.cluster())
            && asker != own
            && request != NodeRequest::Describe
        {
            let refusal = NodeRefusal::OtherCluster { cluster: own };
            return NodeDecision { effects: Vec::new(), reply: NodeReply::Refused(refusal) };
        }
        self.handle(request)
    }

    /// Decides on a request to the control service.
    pub fn handle(&mut self, request: NodeRequest) -> NodeDecision {
        let mut effects = Vec::new();
        let answer = match request {
            NodeRequest::InTurn { client, turn, ended, request } => {
                return self.in_turn(client, turn, ended, request);
            }
            NodeRequest::OfJob { repairer, job, request } => {
                self.of_job(repairer, job, request, &mut effects)
            }
            NodeRequest::Describe => Ok(NodeReply::Description(self.description.clone())),
            NodeRequest::Format { cluster, attempt } => self.format(cluster, attempt, &mut effects),
            NodeRequest::Reserve {
                cluster,
                attempt,
                view,
                extent,
                bytes,
                block_bytes,
                redundancy,
            } => self.check_bound(cluster, attempt).and_then(|()| {
                self.reserve(view, extent, bytes, block_bytes, redundancy, &mut effects)
            }),
            NodeRequest::Alloc { client, redundancy, orders, frozen, spare_of } => {
                let choice = RegionChoice { orders, frozen: &frozen, spare_of: &spare_of };
                self.alloc(client, redundancy, choice, &mut effects)
            }
            NodeRequest::LogArea { client, number } => self.log_area(client, number, &mut effects),
            NodeRequest::LogAreasOf { clients } => self.log_areas_of(&clients),
            NodeRequest::SetOwner { from, unless_fenced: true, .. }
                if self.over.is_fenced(from) =>
            {
                Err(NodeRefusal::Fenced { client: from })
            }
            NodeRequest::SetOwner { block, from, to, base, unless_fenced: _, once } => self
                .check_not_fenced(to)
                .and_then(|()| self.check_once(once, block, to))
                .and_then(|()| self.replace_owner(block, from, to, base, &mut effects)),
            NodeRequest::OwnersOf { region } => self.owners_of(region),
            NodeRequest::BlocksOf { clients } => self.blocks_of(clients),
            NodeRequest::Fence { clients } => self.fence(&clients, &mut effects),
            NodeRequest::Living { living } => self.living(living, &mut effects),
            NodeRequest::Usage => Ok(NodeReply::Usage(self.usage())),
            NodeRequest::StandAt { cluster, view } => {
                self.check_cluster(cluster).map(|()| self.stand_at(view, &mut effects))
            }
            NodeRequest::Bar { client, node, view } => self.bar(client, node, view, &mut effects),
            NodeRequest::Unbar { cluster, bars } => {
                self.check_cluster(cluster).map(|()| self.unbar(&bars, &mut effects))
            }
        };
        NodeDecision { effects, reply: answer.unwrap_or_else(NodeReply::Refused) }
    }

    /// Moves the node to a view, unless the node is at that view or a later one already. The host must write the
    /// number to the pool's header before the reply.
    fn stand_at(&mut self, view: u64, effects: &mut Vec<NodeEffect>) -> NodeReply {
        if view > self.stands_at {
            self.stands_at = view;
            effects.push(NodeEffect::WriteHeader { word: HeaderWord::View, value: view });
            if removed(Mutant::BarsFallEarly) {
                self.forget_bars(effects);
            }
        }
        NodeReply::Bars(self.bars())
    }

    fn check_cluster(&self, cluster: ClusterId) -> Result<(), NodeRefusal> {
        match self.bound {
            Some((bound, _)) if bound == cluster => Ok(()),
            Some((bound, _)) => Err(NodeRefusal::OtherCluster { cluster: bound }),
            None => Err(bad("the node serves no cluster yet, and stands at no view")),
        }
    }

    fn check_bound(&self, cluster: ClusterId, attempt: u64) -> Result<(), NodeRefusal> {
        match self.bound {
            Some((bound, _)) if bound != cluster => {
                Err(NodeRefusal::OtherCluster { cluster: bound })
            }
            // A late request of an earlier attempt must not take memory that belongs to a later attempt.
            Some((_, latest)) if latest == attempt => Ok(()),
            _ => Err(bad("the node is not formatted for this attempt")),
        }
    }

    fn reserve(
        &mut self,
        view: u64,
        extent: Extent,
        bytes: u64,
        block_bytes: u64,
        redundancy: Redundancy,
        effects: &mut Vec<NodeEffect>,
    ) -> NodeResult {
        let offset = match (extent, self.existing(extent, bytes, block_bytes)?) {
            (_, Some(offset)) => {
                self.reserved_for(extent, view, redundancy);
                offset
            }
            (Extent::Region { region, primary }, None) => {
                let geometry = region_geometry(bytes, block_bytes)?;
                let offset = self.set_aside(bytes, PoolEnd::Below)?;
                effects.push(NodeEffect::PopulatePool { offset, bytes });
                let made = NodeRegion::new(offset, view, geometry, primary, redundancy);
                effects.extend(made.table_effects());
                self.regions.insert(region, made);
                if primary {
                    self.primaries.push(region);
                }
                offset
            }
            (Extent::Subtable { subtable }, None) => {
                let offset = self.set_aside(bytes, PoolEnd::Above)?;
                effects.push(NodeEffect::PopulatePool { offset, bytes });
                self.subtables.insert(subtable, NodeSubtable { offset, bytes, since: view });
                offset
            }
        };
        Ok(NodeReply::Reserved { offset })
    }

    /// Returns the offset of an extent that is reserved already; `None` if it is not reserved.
    fn existing(
        &self,
        extent: Extent,
        bytes: u64,
        block_bytes: u64,
    ) -> Result<Option<u64>, NodeRefusal> {
        let (offset, same) = match extent {
            Extent::Region { region, primary } => match self.regions.get(&region) {
                None => return Ok(None),
                Some(found) => {
                    let now = found.primary;
                    let geometry = &found.geometry;
                    let sizes = (geometry.region_bytes, geometry.block_bytes);
                    (found.offset, now == primary && sizes == (bytes, block_bytes))
                }
            },
            Extent::Subtable { subtable } => match self.subtables.get(&subtable) {
                None => return Ok(None),
                Some(found) => (found.offset, found.bytes == bytes),
            },
        };
        if same { Ok(Some(offset)) } else { Err(bad("the extent is reserved in another shape")) }
    }

    /// Records the view for which an extent is reserved again. A region that was never used can get another
    /// redundancy.
    fn reserved_for(&mut self, extent: Extent, view: u64, redundancy: Redundancy) {
        let since = match extent {
            Extent::Region { region, .. } => self.regions.get_mut(&region).map(|region| {
                if region.since <= view {
                    region.redundancy = redundancy;
                }
                &mut region.since
            }),
            Extent::Subtable { subtable } => {
                self.subtables.get_mut(&subtable).map(|subtable| &mut subtable.since)
            }
        };
        since.into_iter().for_each(|since| *since = view.max(*since));
    }

    fn set_aside(&mut self, bytes: u64, from: PoolEnd) -> Result<u64, NodeRefusal> {
        if bytes == 0 {
            return Err(bad("an extent has at least one byte"));
        }
        let align = extent_align_bytes(bytes);
        let fitting = |(start, length): (&u64, &u64)| {
            let end = start + length;
            let offset = match from {
                PoolEnd::Below => start.checked_next_multiple_of(align)?,
                PoolEnd::Above => end.checked_sub(bytes)? / align * align,
            };
            let fits = offset >= *start && offset.checked_add(bytes)? <= end;
            fits.then_some((*start, *length, offset))
        };
        let found = match from {
            PoolEnd::Below => self.free.iter().find_map(fitting),
            PoolEnd::Above => self.free.iter().rev().find_map(fitting),
        };
        let Some((start, length, offset)) = found else {
            let free_bytes = self.free.values().copied().max().unwrap_or(0);
            return Err(NodeRefusal::PoolFull { bytes, free_bytes });
        };
        self.free.remove(&start);
        let rest = (offset + bytes, start + length - (offset + bytes));
        let rests = [(start, offset - start), rest].into_iter();
        self.free.extend(rests.filter(|(_, length)| *length > 0));
        self.reserved_bytes += bytes;
        Ok(offset)
    }

    fn release(&mut self, extent: Extent, view: u64, effects: &mut Vec<NodeEffect>) -> NodeReply {
        let released = match extent {
            Extent::Region { region, .. } => {
                let found = self.regions.extract_if(region..=region, |_, r| r.since < view).next();
                found.map(|(_, found)| {
                    self.primaries.retain(|number| *number != region);
                    self.turn = 0;
                    (found.offset, found.geometry.region_bytes)
                })
            }
            Extent::Subtable { subtable } => {
                let all = subtable..=subtable;
                let found = self.subtables.extract_if(all, |_, s| s.since < view).next();
                found.map(|(_, found)| (found.offset, found.bytes))
            }
        };
        if let Some((offset, bytes)) = released {
            effects.push(NodeEffect::ZeroPool { offset, bytes });
            self.reserved_bytes -= bytes;
            self.give_back(offset, bytes);
        }
        NodeReply::Done
    }

    /// Marks a part of the pool as free, and merges it with the free parts that touch it.
    fn give_back(&mut self, mut offset: u64, mut bytes: u64) {
        if let Some(after) = self.free.remove(&(offset + bytes)) {
            bytes += after;
        }
        let before = self.free.range(..offset).next_back().map(|(start, length)| (*start, *length));
        if let Some((start, length)) = before.filter(|(start, length)| start + length == offset) {
            (offset, bytes) = (start, length + bytes);
        }
        self.free.insert(offset, bytes);
    }

    fn format(
        &mut self,
        cluster: ClusterId,
        attempt: u64,
        effects: &mut Vec<NodeEffect>,
    ) -> NodeResult {
        match self.bound {
            Some((bound, _)) if bound != cluster => {
                return Err(NodeRefusal::OtherCluster { cluster: bound });
            }
            Some((_, latest)) if attempt < latest => return Err(bad("a later attempt began")),
            Some((_, latest)) if attempt == latest => return Ok(NodeReply::Done),
            // A node at a view belongs to a cluster that has been formed. A master that goes on from an older store
            // does not know that.
            _ if self.stands_at > 0 => return Err(bad("the node stands at a view of its cluster")),
            _ => {}
        }
        if self.regions.values().any(|region| region.owned_bytes() > 0) {
            return Err(bad("clients own blocks here"));
        }
        // No client owned a block, so no client had a reason to write. The extents are zeroed nevertheless.
        let regions = std::mem::take(&mut self.regions).into_values();
        let regions = regions.map(|region| (region.offset, region.geometry.region_bytes));
        let subtables = std::mem::take(&mut self.subtables).into_values();
        let subtables = subtables.map(|subtable| (subtable.offset, subtable.bytes));
        let zero = |(offset, bytes)| NodeEffect::ZeroPool { offset, bytes };
        effects.extend(regions.chain(subtables).map(zero));
        self.primaries.clear();
        self.log_areas = LentLogAreas::new(self.description.pool_bytes);
        self.free = all_free(&self.description);
        (self.reserved_bytes, self.turn) = (0, 0);
        if self.bound.is_none() {
            effects
                .push(NodeEffect::WriteHeader { word: HeaderWord::Cluster, value: cluster.word() });
        }
        self.bound = Some((cluster, attempt));
        Ok(NodeReply::Done)
    }

    fn check_not_fenced(&self, client: ClientId) -> Result<(), NodeRefusal> {
        if self.over.has_ended(client) {
            return Err(NodeRefusal::Fenced { client });
        }
        Ok(())
    }

    /// Refuses a request marked *once* if `to` already owns the block. Then either the request was executed before,
    /// or `to` got the block from the pool meanwhile, so that the owner in the request is out of date.
    fn check_once(&self, once: bool, block: BlockId, to: ClientId) -> Result<(), NodeRefusal> {
        let owner = self.regions.get(&block.region).and_then(|region| region.owner_of(block).ok());
        if once && owner == Some(to) && !removed(Mutant::StaleOrphansTaken) {
            Err(NodeRefusal::NotOwner { owner: to })
        } else {
            Ok(())
        }
    }

    fn check_fenced(&self, client: ClientId) -> Result<(), NodeRefusal> {
        if !self.over.has_ended(client) {
            return Err(bad("blocks are taken back from fenced clients only"));
        }
        Ok(())
    }

    fn alloc(
        &mut self,
        client: ClientId,
        redundancy: Redundancy,
        choice: RegionChoice<'_>,
        effects: &mut Vec<NodeEffect>,
    ) -> NodeResult {
        check_client_id(client)?;
        self.check_not_fenced(client)?;
        let RegionChoice { orders, frozen, spare_of } = choice;
        if orders.least > orders.most {
            return Err(bad("an ALLOC accepts no order"));
        }
        if frozen.len().max(spare_of.len()) > MAX_ALLOC_REGIONS {
            return Err(bad("an ALLOC names too many regions"));
        }
        // Blocks are taken from the regions round-robin, to spread a client's blocks and their load.
        let max_order = self.regions.values().map(|region| region.geometry.max_order()).max();
        for wanted in WantedBlock::all(orders, max_order.unwrap_or(0)) {
            for _ in 0..self.primaries.len() {
                let number = self.primaries[self.turn];
                self.turn = (self.turn + 1) % self.primaries.len();
                if frozen.contains(&number) {
                    continue;
                }
                let region = self.regions.get_mut(&number).expect("a primary region is a region");
                let is_asked_for =
                    spare_of.is_empty() || spare_of.contains(&number) && region.has_spare();
                if region.redundancy != redundancy || !is_asked_for {
                    continue;
                }
                if let Some((frame, order)) = region.find_free(wanted) {
                    let block = BlockId { region: number, frame, order };
                    let base = region.give(block, client, effects);
                    return Ok(NodeReply::Allocated { block, base });
                }
            }
        }
        Err(NodeRefusal::NoFreeBlock)
    }

    fn replace_owner(
        &mut self,
        block: BlockId,
        from: ClientId,
        to: ClientId,
        base: Option<u16>,
        effects: &mut Vec<NodeEffect>,
    ) -> NodeResult {
        check_base(base)?;
        let region = self.region_with(block)?;
        let owner = region.owner_of(block).map_err(|owner| NodeRefusal::NotOwner { owner })?;
        if owner != from && owner != to {
            return Err(NodeRefusal::NotOwner { owner });
        }
        if owner == to && owner == ClientId::NOBODY {
            // The block is free, and possibly a part of a larger one by now.
            return Ok(NodeReply::Done);
        }
        let is_noted = from == ClientId::NOBODY || to == ClientId::NOBODY;
        let base = if is_noted { NewBase::Noted(base) } else { NewBase::Kept };
        region.set_owner(block, to, base, effects);
        Ok(NodeReply::Done)
    }

    /// Frees a block that its dead owner has never used.
    fn free_unused(
        &mut self,
        block: BlockId,
        from: ClientId,
        effects: &mut Vec<NodeEffect>,
    ) -> NodeResult {
        let region = self.region_with(block)?;
        match region.owner_of(block) {
            Ok(ClientId::NOBODY) => {}
            Ok(owner) if owner == from => {
                region.set_owner(block, ClientId::NOBODY, NewBase::Kept, effects);
            }
            Ok(owner) | Err(owner) => return Err(NodeRefusal::NotOwner { owner }),
        }
        Ok(NodeReply::Done)
    }

    fn region_with(&mut self, block: BlockId) -> Result<&mut NodeRegion, NodeRefusal> {
        let region = self.regions.get_mut(&block.region);
        let region = region.filter(|region| region.geometry.is_block(block.frame, block.order));
        region.ok_or(NodeRefusal::UnknownBlock { block })
    }

    fn owners_of(&self, region: u32) -> NodeResult {
        let found = self.regions.get(&region).ok_or_else(|| unknown_region(region))?;
        Ok(NodeReply::Owners(found.blocks().collect()))
    }

    fn set_owners(
        &mut self,
        region: u32,
        owners: &[(u32, TableEntry)],
        effects: &mut Vec<NodeEffect>,
    ) -> NodeResult {
        let found = self.regions.get_mut(&region).ok_or_else(|| unknown_region(region))?;
        if found.primary {
            return Err(bad("this node leads the region: its own table is the right one"));
        }
        owners.iter().try_for_each(|(_, entry)| check_base(entry.base))?;
        if !found.set_table(owners) {
            return Err(bad("the blocks do not cover the region"));
        }
        effects.extend(found.table_effects());
        Ok(NodeReply::Done)
    }

    fn lead(&mut self, regions: &[u32], view: u64) -> NodeResult {
        if let Some(region) = regions.iter().find(|region| !self.regions.contains_key(region)) {
            return Err(unknown_region(*region));
        }
        for number in regions {
            let region = self.regions.get_mut(number).expect("just seen");
            if region.since <= view && !std::mem::replace(&mut region.primary, true) {
                self.primaries.push(*number);
            }
        }
        Ok(NodeReply::Done)
    }

    fn blocks_of(&self, clients: Vec<ClientId>) -> NodeResult {
        check_clients(&clients)?;
        let clients = BTreeSet::from_iter(clients);
        let regions = self.regions.iter();
        let blocks = regions.flat_map(|(number, region)| {
            let owned = region.blocks().filter(|(_, entry)| clients.contains(&entry.owner));
            owned.map(|(frame, TableEntry { owner, order, base })| OwnedBlock {
                block: BlockId { region: *number, frame, order },
                owner,
                base,
            })
        });
        Ok(NodeReply::Blocks(blocks.collect()))
    }

    fn fence(&mut self, clients: &[ClientId], effects: &mut Vec<NodeEffect>) -> NodeResult {
        check_clients(clients)?;
        for client in clients {
            self.over.fence(*client);
            // A repeated request fences the client again, because the first fence is possibly not complete yet.
            effects.push(NodeEffect::Fence { client: *client });
        }
        Ok(NodeReply::Done)
    }

    fn living(&mut self, living: LiveClients, effects: &mut Vec<NodeEffect>) -> NodeResult {
        if !living.is_good() {
            return Err(bad("these are not clients that live below a bound"));
        }
        // A node without cluster is not told of living clients, because in another cluster the same ids belong to
        // other sessions.
        if self.bound.is_none() {
            return Err(bad("of no cluster, nobody is over"));
        }
        self.over.learn(&living);
        let over = &self.over;
        self.log_areas.take_back(|client| over.has_ended(client) && !over.is_fenced(client));
        effects.push(NodeEffect::Living { living });
        Ok(NodeReply::Done)
    }

    fn usage(&self) -> Usage {
        let regions: u64 = self.regions.values().map(|region| region.geometry.region_bytes).sum();
        let mut usage = Usage {
            pool_bytes: self.description.pool_bytes,
            reserved_bytes: self.reserved_bytes,
            // All reserved bytes outside of regions are in subtables, which are always in use.
            used_bytes: self.reserved_bytes.saturating_sub(regions),
            ..Usage::default()
        };
        (usage.log_areas, usage.log_areas_used) = self.log_areas.counts();
        for region in self.regions.values() {
            let owned = region.owned_bytes();
            usage.used_bytes += owned;
            if region.primary {
                usage.led_bytes += region.block_bytes();
                usage.led_bytes_owned += owned;
                usage.free_block_bytes += region.block_bytes() - owned;
            }
        }
        usage
    }
}

/// Returns the part of the pool that the node lends, as one free part.
fn all_free(description: &NodeDescription) -> BTreeMap<u64, u64> {
    BTreeMap::from([(first_extent(description.pool_bytes), description.pool_bytes)])
}

fn unknown_region(region: u32) -> NodeRefusal {
    NodeRefusal::UnknownBlock { block: BlockId { region, frame: 0, order: 0 } }
}

fn check_base(base: Option<u16>) -> Result<(), NodeRefusal> {
    if base.is_some_and(|base| base >= Slot::GENERATIONS) {
        return Err(bad("a base is a generation"));
    }
    Ok(())
}

fn bad(what: &str) -> NodeRefusal {
    NodeRefusal::BadRequest { what: what.to_owned() }
}

fn check_clients(clients: &[ClientId]) -> Result<(), NodeRefusal> {
    if clients.len() > MAX_CLIENTS {
        return Err(bad("too many clients are named"));
    }
    clients.iter().try_for_each(|client| check_client_id(*client))
}

fn check_client_id(client: ClientId) -> Result<(), NodeRefusal> {
    if client == ClientId::NOBODY { Err(bad("client 0 stands for nobody")) } else { Ok(()) }
}

/// Returns the geometry of a region with these sizes, or refuses the sizes. Key and value sizes are not checked,
/// because only clients use the contents of blocks.
fn region_geometry(region_bytes: u64, block_bytes: u64) -> Result<Geometry, NodeRefusal> {
    let smallest = Geometry { max_key_bytes: 1, max_value_bytes: 0, ..Geometry::default() };
    let geometry = Geometry { region_bytes, block_bytes, ..smallest };
    geometry.check().map_err(|error| bad(error.what))?;
    Ok(geometry)
}
