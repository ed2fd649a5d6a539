//! A survey of the memory: its owners, the sizes of objects, and how much of it waits to be reused.
//!
//! A survey READs the block tables, headers and free bitmaps of all regions, and asks the master for the owners of
//! blocks and the memory nodes for their usage. It neither stops nor delays other sessions. They write during the
//! survey, so each block is reported as it was at some moment, but possibly no moment exists at which all blocks were
//! as reported. The sums still hold ([`report`]), because each block is counted once.
//!
//! *Cost*: a survey reads 1/512 of the memory that has owners, and 8 bytes for every frame.
//!
//! *Limits*: an object that was allocated before and whose free bit is not set is possibly in use; a survey cannot
//! tell. An open session has collected free bits, and only that session knows which objects it is allowed to allocate
//! again. Up to 15 freed objects wait in a session until their bits are set; if the session dies, or is idle for long,
//! some bits are never set. Only a search of the whole index would tell.
//!
//! A group of blocks is read again if a newer view moved the primary of one of its regions meanwhile.

pub(crate) mod pairs;
mod read;
mod report;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use fusee_control::master::{BlockOwners, MasterReply, MasterRequest, Orphan};
use fusee_control::node::{BlockId, Usage};
use fusee_core::data::Region;
use fusee_core::verbs::{ClientId, FailedVerb, MnId, VerbError};
use fusee_core::view::View;

use crate::context::ClientContext;
use crate::error::ConnectError;
use crate::session::Session;
pub use pairs::{FoundPair, RedundancyMemory};
use read::{SurveyGroup, SurveyPosition, SurveyReader};
pub use report::{
    BlockBytes, ClassMemory, MemorySurvey, NodeMemory, OwnerMemory, OwnerState, PoolUse,
};
use report::{OwnerCounts, SurveyTally};

/// Limit of further attempts to read one group of blocks, after view changes have moved its regions.
const ATTEMPTS: u32 = 16;
/// Interval between checks for a newer view, while a memory node does not answer.
const POLL: Duration = Duration::from_millis(1);

/// Errors of a survey.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SurveyError {
    /// No session could be opened, or the master did not give the answers that the survey needs.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// A memory node does not answer, and no view without that node arrived in time.
    #[error("memory node {node} does not answer: {error}")]
    Unreachable {
        /// The memory node that did not answer.
        node: MnId,
        /// The error of the verb that the node did not answer.
        error: VerbError,
    },
    /// The session that read was fenced, because the cluster took the session for dead.
    #[error("the cluster has fenced this session while it read; try again")]
    Expelled,
    /// During every attempt to read a group of blocks, view changes moved the group's regions to other memory nodes.
    #[error("the regions moved faster than they were read; try again")]
    Moving,
}

/// Asks the master for the sessions that possibly own blocks, and for the orphaned blocks.
pub(crate) fn owners(shared: &ClientContext) -> Result<BlockOwners, ConnectError> {
    let master = shared.master.clone();
    match shared.wait(async move { master.call(MasterRequest::Owners).await })? {
        MasterReply::Owners(owners) => Ok(owners),
        MasterReply::NotReady { joined, expected } => {
            Err(ConnectError::NotReady { joined, expected })
        }
        MasterReply::Refused { reason } => Err(ConnectError::Refused(reason)),
        _ => Err(ConnectError::Protocol("another answer than to Owners")),
    }
}

/// Counts from block tables, headers and bitmaps, and the newest view that was used to find these.
pub(crate) struct SurveyFindings {
    view: Arc<View>,
    tally: SurveyTally,
}

/// Reads all regions. `orphans` are the orphaned blocks that the master knew before the read.
pub(crate) async fn read_all(
    session: &Session,
    orphans: &[Orphan],
) -> Result<SurveyFindings, SurveyError> {
    let orphans: BTreeMap<BlockId, Orphan> = orphans.iter().map(|l| (l.block, *l)).collect();
    let mut view = session.adopt_newest();
    let mut at = SurveyPosition::default();
    let mut tally = SurveyTally::default();
    let mut attempts = 0;
    while let Some(group) = SurveyGroup::next(&view, at) {
        let reader = SurveyReader::new(session.verbs(), &view, &orphans);
        let part = reader.read(&group).await;
        if let Err(failure) = part {
            outlive(session, &view, failure).await?;
        }
        // Memory that a region has left is not reused before this session has acknowledged the newer view, or is
        // fenced. So the bytes are valid if, after the read, the session is not lost and the newest view has the same
        // primaries.
        if session.is_lost() {
            return Err(SurveyError::Expelled);
        }
        let newest = session.adopt_newest();
        match part {
            Ok(part) if group.is_same_in(&view, &newest) => {
                tally.add(part);
                (at, attempts) = (group.end, 0);
            }
            _ if attempts == ATTEMPTS => return Err(SurveyError::Moving),
            _ => attempts += 1,
        }
        view = newest;
    }
    Ok(SurveyFindings { view, tally })
}

/// Waits for a view without the memory node that did not answer.
async fn outlive(session: &Session, view: &View, failure: FailedVerb) -> Result<(), SurveyError> {
    let FailedVerb { node, error } = failure;
    let end = Instant::now() + session.patience();
    while session.newer_view(view.number).is_none() {
        if error != VerbError::Unreachable || session.is_lost() || Instant::now() >= end {
            return Err(match error {
                VerbError::Fenced => SurveyError::Expelled,
                _ => SurveyError::Unreachable { node, error },
            });
        }
        session.report_unreachable(node);
        session.sleep(POLL).await;
    }
    Ok(())
}

/// Composes a survey of the findings, of the owners that the master knew after the read, and of the usage of the memory
/// nodes.
pub(crate) fn survey(
    SurveyFindings { view, tally }: SurveyFindings,
    owners: &BlockOwners,
    usage: &[(MnId, Result<Usage, String>)],
) -> MemorySurvey {
    let sum = |of: fn(&report::NodeBlockCounts) -> u64| tally.nodes.values().map(of).sum();
    let (known, unknown): (Vec<_>, Vec<_>) =
        tally.owners.iter().partition(|(owner, _)| **owner < owners.unused_from);
    let classes = tally.classes.iter().map(|(class, of)| ClassMemory {
        class: *class,
        object_bytes: class.bytes(),
        blocks: of.blocks,
        bytes: of.bytes,
        objects: of.objects,
        marked: of.marked,
        new: of.new,
    });
    MemorySurvey {
        view: view.number,
        nodes: nodes(&view, &tally, usage),
        classes: classes.collect(),
        owners: named(&known, owners),
        redundancies: Vec::new(),
        block_use: tally.block_use,
        blocks: sum(|of| of.blocks),
        led_bytes: sum(|of| of.bytes),
        free_blocks: sum(|of| of.free_blocks),
        free_block_bytes: sum(|of| of.free_bytes),
        blank_blocks: tally.blank,
        unreadable_headers: tally.unreadable,
        unreadable_owners: unknown.iter().map(|(_, of)| of.blocks).sum(),
        stray_marks: tally.stray_marks,
        lost_regions: view.lost_pairs(),
    }
}

fn named(known: &[(&ClientId, &OwnerCounts)], owners: &BlockOwners) -> Vec<OwnerMemory> {
    let open: BTreeSet<ClientId> = owners.open.iter().copied().collect();
    let expired: BTreeSet<ClientId> = owners.expired.iter().copied().collect();
    let named = |(owner, of): &(&ClientId, &OwnerCounts)| OwnerMemory {
        owner: **owner,
        state: match () {
            () if open.contains(owner) => OwnerState::Open,
            () if expired.contains(owner) => OwnerState::Expired,
            () => OwnerState::Departed,
        },
        blocks: of.blocks,
        bytes: of.bytes,
        handed_on: of.handed_on,
        marked_bytes: of.marked_bytes,
    };
    known.iter().map(named).collect()
}

/// Describes the members of the view, and the nodes that held a region's primary when it was read but have left since.
fn nodes(
    view: &View,
    tally: &SurveyTally,
    usage: &[(MnId, Result<Usage, String>)],
) -> Vec<NodeMemory> {
    let mut names: BTreeSet<MnId> = view.members.iter().map(|member| member.node).collect();
    names.extend(tally.nodes.keys());
    let describe = |node: MnId| {
        let subtables = view.subtables_on(node);
        let regions = view.regions_on(node);
        let is_single = |region: &&Region| region.has_single_pairs() && region.lies_on(node);
        let single = view.regions.iter().filter(is_single).count() as u64;
        let usage = usage.iter().find(|(of, _)| *of == node);
        let usage = usage.and_then(|(_, usage)| usage.as_ref().ok());
        let blocks = tally.nodes.get(&node).copied().unwrap_or_default();
        NodeMemory {
            node,
            pool_bytes: view.member(node).map_or(0, |member| member.pool_bytes),
            subtables,
            subtable_bytes: subtables * view.geometry.subtable_bytes(),
            regions,
            region_bytes: regions * view.geometry.region_bytes,
            single_region_bytes: single * view.geometry.region_bytes,
            reserved_bytes: usage.map(|usage| usage.reserved_bytes),
            led_bytes: blocks.bytes,
            free_block_bytes: blocks.free_bytes,
        }
    };
    names.into_iter().map(describe).collect()
}
