//! Blocks that pass from one session to another, and sessions that close normally.

use fusee_control::master::{MasterReply, Orphan};
use fusee_core::layout::BlockShape;
use fusee_core::verbs::ClientId;

use super::context::EventContext;
use super::facts::ClusterFacts;
use super::refused;
use crate::request_kinds::{HandOver, OrphanRequest};
use crate::sessions::OrphanTaker;

/// The time for which the master gives a block only for its own size class, because a session has seen objects of the
/// block in use.
const USED_FOR_MS: u64 = 1_000;

/// Gives a session an orphaned block, if one is suitable. Returns `None` if there is no view.
///
/// A block of a region that is being copied is not given: the copy of the region's table was possibly made already, and
/// would not record the new owner. A session that is pinned by an older view gets no block either: it would not record
/// itself as owner on a replica that was added since, and its objects would be taken for those of a block that it never
/// took over. (Before another replica is added, the master waits for the sessions that are pinned by this view.)
pub(super) fn take_orphan(
    ctx: &mut EventContext<'_>,
    cluster: &mut ClusterFacts,
    request: &OrphanRequest,
) -> Option<MasterReply> {
    let OrphanRequest { client, turn, class, redundancy, full, view: by, .. } = *request;
    let ClusterFacts { view, sessions, .. } = cluster;
    let view = view.as_ref()?;
    if by != view.number {
        return Some(MasterReply::Orphan { orphan: None, owner_lives: false });
    }
    let mut writes = Vec::new();
    let geometry = view.geometry;
    // A session that needs room at once cannot use a block whose objects were all allocated already.
    let has_room = |orphan: &Orphan| {
        let shape = BlockShape::new(orphan.block.bytes(&geometry), orphan.class);
        shape.is_some_and(|shape| orphan.first < shape.objects)
    };
    let may_use = |orphan: &Orphan| {
        let region = view.regions.get(orphan.block.region as usize);
        region.is_some_and(|region| region.redundancy() == redundancy && region.is_there())
            && !view.is_region_frozen(orphan.block.region)
    };
    // A session that accepts a block of any class gets a block without room if there is one. So blocks with room are
    // left to sessions that can use them.
    let has_room = |orphan: &Orphan| has_room(orphan) == class.is_some();
    let first = |orphan: &Orphan| may_use(orphan) && has_room(orphan);
    let taker = OrphanTaker { client, turn };
    sessions.forget_used(ctx.now_ms);
    let mut orphan = sessions.take_orphan(taker, class, first, &mut writes);
    if orphan.is_none() && full {
        // A session that needs a class gets no block whose free bitmap possibly lacks bits: its free objects would be
        // found only by a comparison with the index, for which a session takes a block of any class when memory is
        // short.
        let is_marked = |left: &Orphan| class.is_none() || left.marked.is_some();
        let may_use = |orphan: &Orphan| may_use(orphan) && is_marked(orphan);
        orphan = sessions.take_orphan(taker, class, may_use, &mut writes);
    }
    ctx.persist(writes);
    let owner_lives = orphan.is_some_and(|left| sessions.is_open(left.owner));
    Some(MasterReply::Orphan { orphan, owner_lives })
}

/// Takes over the blocks that an open session hands on.
pub(super) fn hand_on(
    ctx: &mut EventContext<'_>,
    cluster: &mut ClusterFacts,
    hand_over: &HandOver,
) -> MasterReply {
    let ClusterFacts { view: Some(view), sessions, .. } = cluster else {
        return refused("no session has been opened yet");
    };
    let mut writes = Vec::new();
    let used_until_ms = ctx.now_ms + USED_FOR_MS;
    let handed = sessions.hand_on(hand_over, used_until_ms, view, &mut writes);
    ctx.persist(writes);
    match handed {
        Ok(()) => MasterReply::Done,
        Err(reason) => {
            ctx.complain(format!("{}: {reason}", hand_over.client));
            refused(reason)
        }
    }
}

/// Ends a session that closes normally, and takes over the blocks that it hands on.
pub(super) fn close(
    ctx: &mut EventContext<'_>,
    cluster: &mut ClusterFacts,
    client: ClientId,
    orphans: &[Orphan],
) -> MasterReply {
    let ClusterFacts { view: Some(view), sessions, .. } = cluster else {
        return refused("no session has been opened yet");
    };
    let mut writes = Vec::new();
    let closed = sessions.close(client, orphans, view, &mut writes);
    ctx.persist(writes);
    match closed {
        Ok(()) => MasterReply::Done,
        Err(reason) => {
            ctx.complain(format!("end of {client}: {reason}"));
            refused(reason)
        }
    }
}
