//! Client ids, the sessions that use them, and blocks that pass from one session to another.
//!
//! *Ids* are never used twice, not even after a restart of the master. They come from ranges of [`IDS_PER_RECORD`],
//! each recorded before its first id is handed out. A restart skips the rest of a range.
//!
//! *Records.* A session is recorded before it is told its id, until it is closed or recovered. So a session without a
//! record has ended, and may be told so. Expiry is recorded before anything follows from it: an expired session never
//! comes back.
//!
//! *Gifts.* A block that a session was *given* is returned if the session ends before it has said that it took the
//! block over. The return may be wrong: the session may have taken the block over and given it back to the pool. The
//! next session to get such a block is refused by the memory nodes, whose tables name another owner or none. But if the
//! block's former owner is open, it could have got the block again, and the tables would then agree with the return. So
//! such a block waits in *limbo* until that owner ends, and itself says which blocks it has. For the same reason a
//! hand-over has a serial, which is recorded: a repeated one changes nothing.
//!
//! *Orphaned blocks.* An orphaned block is recorded together with the end of its session, and its record is removed
//! before the block is handed out. A master that crashes in between loses one block, and never gives one block to two
//! sessions, which would write to the same objects.
//!
//! All methods change the state in memory and return the writes for the store. The caller must not reveal the new state
//! before the writes are durable.

use std::collections::{BTreeMap, BTreeSet};

use fusee_control::master::{Orphan, SessionHeartbeat};
use fusee_control::node::BlockId;
use fusee_core::data::Transitions;
use fusee_core::layout::{BlockShape, SizeClass};
use fusee_core::stats::{Damage, SessionWork};
use fusee_core::verbs::ClientId;
use fusee_core::view::View;

use crate::record::{MasterRecord, RecordWrite, orphan_key, session_key};
use crate::request_kinds::HandOver;

/// The ids of one write to the store.
pub const IDS_PER_RECORD: u32 = 64;
/// The limit on orphaned blocks; more are dropped.
const MAX_ORPHANS: usize = 1 << 16;

/// A block that a session was given, and the number of the request that this answered.
#[derive(Debug)]
struct GrantedOrphan {
    turn: u64,
    left: Orphan,
}

/// An open session.
#[derive(Debug, Default)]
pub struct SessionState {
    /// Blocks that this process has given to it, and that it has not said that it took over.
    given: Vec<GrantedOrphan>,
    /// The serial of its last hand-over.
    handed_on: u64,
    /// The view of its last heartbeat. Before the first heartbeat, no view counts as acknowledged.
    pub pinned_by: u64,
    /// See [`SessionHeartbeat::has_suspended`].
    pub has_suspended: bool,
    /// See [`SessionHeartbeat::damage`].
    damage: Damage,
    /// See [`SessionHeartbeat::transitions`].
    transitions: Transitions,
    /// See [`SessionHeartbeat::work`].
    work: SessionWork,
    /// See [`SessionHeartbeat::pinned_in`]; 0 if this process has not heard the session.
    pinned_in: u64,
    /// See [`SessionHeartbeat::frees_in`].
    frees_in: u64,
    /// The time at which it was last heard, in listened milliseconds; 0 if this process has not heard it.
    pub heard_ms: u64,
    /// The time at which its process last asked for a piece of a view, by the same clock.
    pub fetched_ms: Option<u64>,
    /// The connection over which it last reported, if it has.
    pub connection: Option<u64>,
    /// The time at which it expires, unless it reports over another connection.
    pub gone_at_ms: Option<u64>,
}

/// The view and the epoch in which a session begins.
#[derive(Clone, Copy, Debug)]
pub struct SessionStart {
    /// The number of the view that pins it.
    pub view: u64,
    /// The epoch that pins it.
    pub epoch: u64,
}

/// The session that takes an orphaned block.
#[derive(Clone, Copy, Debug)]
pub struct OrphanTaker {
    /// The session.
    pub client: ClientId,
    /// The number of its request.
    pub turn: u64,
}

/// All sessions.
#[derive(Debug)]
pub struct SessionRegistry {
    /// The next id, and the end of the recorded range.
    next: u32,
    end: u32,
    open: BTreeMap<ClientId, SessionState>,
    /// Sessions that have expired, and are not recovered yet.
    expired: BTreeMap<ClientId, SessionState>,
    orphans: BTreeMap<SizeClass, Vec<Orphan>>,
    /// The blocks of all orphans.
    left: BTreeSet<BlockId>,
    /// Orphaned blocks with objects in use, and the times until which other size classes need not try them. Not stored.
    used: BTreeMap<BlockId, u64>,
    /// By open session: blocks that others were given under its name, and perhaps did not take over. Not stored: a
    /// master that dies loses these blocks.
    limbo: BTreeMap<ClientId, Vec<Orphan>>,
    /// Damage found by all sessions, as far as this process has heard.
    damage: Damage,
    /// Changes of redundancy by all sessions, as far as this process has heard.
    transitions: Transitions,
    /// Counts of the operations of all sessions, as far as this process has heard.
    work: SessionWork,
    /// See [`SessionRegistry::handed_on`].
    handed_on: u64,
}

impl SessionRegistry {
    /// Returns a state without sessions, in which ids from `first` on are unused.
    pub fn new(first: u32) -> SessionRegistry {
        let first = first.max(1);
        SessionRegistry {
            next: first,
            end: first,
            open: BTreeMap::new(),
            expired: BTreeMap::new(),
            orphans: BTreeMap::new(),
            left: BTreeSet::new(),
            used: BTreeMap::new(),
            limbo: BTreeMap::new(),
            damage: Damage::default(),
            transitions: Transitions::default(),
            work: SessionWork::default(),
            handed_on: 0,
        }
    }

    /// Returns the number of blocks handed on that are not known to be in use, and of sessions that have ended: either
    /// may bring memory to other sessions.
    pub fn handed_on(&self) -> u64 {
        self.handed_on
    }

    /// Restores from the store: ids below `end` may be in use.
    pub fn restore_ids(&mut self, end: u32) {
        (self.next, self.end) = (end.max(1), end.max(1));
    }

    /// Restores a session from the store.
    pub fn restore_session(&mut self, client: ClientId, expired: bool, handed_on: u64) {
        let session = SessionState { handed_on, ..SessionState::default() };
        if expired {
            self.expired.insert(client, session);
        } else {
            self.open.insert(client, session);
        }
    }

    /// Restores an orphaned block from the store.
    pub fn restore_orphan(&mut self, orphan: Orphan) {
        self.left.insert(orphan.block);
        self.orphans.entry(orphan.class).or_default().push(orphan);
    }

    /// Returns the open sessions.
    pub fn open_sessions(&self) -> impl Iterator<Item = (ClientId, &SessionState)> {
        self.open.iter().map(|(client, session)| (*client, session))
    }

    /// Returns the sessions that have expired and are not recovered.
    pub fn expired(&self) -> impl Iterator<Item = ClientId> + '_ {
        self.expired.keys().copied()
    }

    /// Returns the times at which these were last heard.
    pub fn expired_heard_ms(&self) -> impl Iterator<Item = u64> + '_ {
        self.expired.values().map(|session| session.heard_ms)
    }

    /// Returns whether a session is open.
    pub fn is_open(&self, client: ClientId) -> bool {
        self.open.contains_key(&client)
    }

    /// Returns whether an id has been handed out, perhaps by an earlier process.
    pub fn has_been(&self, client: ClientId) -> bool {
        client != ClientId::NOBODY && client.0 < self.next
    }

    /// Returns the first id that has not been handed out.
    pub fn unused_from(&self) -> ClientId {
        ClientId(self.next)
    }

    /// Returns the orphaned blocks.
    pub fn orphans(&self) -> impl Iterator<Item = &Orphan> {
        self.orphans.values().flatten()
    }

    /// Returns the number of ids used up.
    pub fn opened_count(&self) -> u64 {
        u64::from(self.next) - 1
    }

    /// Returns a new id; `None` when all are used up.
    pub fn new_id(&mut self, writes: &mut Vec<RecordWrite>) -> Option<ClientId> {
        if self.next == self.end {
            self.end = self.end.checked_add(IDS_PER_RECORD)?;
            writes.push(RecordWrite::Put(MasterRecord::ClientIds { end: self.end }));
        }
        let client = ClientId(self.next);
        self.next += 1;
        Some(client)
    }

    /// Returns two epochs; `None` without sessions. No operation of an epoch before the first one runs any more. Every
    /// object that operations of epochs before the second one had to free is free, or never will be. Expired sessions
    /// count until they are recovered, since operations of theirs may still be completed.
    pub fn epochs(&self) -> Option<(u64, u64)> {
        let all = self.open.values().chain(self.expired.values());
        let settled = all.clone().map(|session| session.frees_in.min(session.pinned_in)).min()?;
        Some((all.map(|session| session.pinned_in).min()?, settled))
    }

    /// Opens a session. Returns `None` when all ids are used up.
    pub fn open(
        &mut self,
        heard_ms: u64,
        connection: u64,
        start: SessionStart,
        writes: &mut Vec<RecordWrite>,
    ) -> Option<ClientId> {
        let client = self.new_id(writes)?;
        writes.push(RecordWrite::Put(MasterRecord::Session {
            client,
            expired: false,
            handed_on: 0,
        }));
        let session = SessionState {
            pinned_by: start.view,
            pinned_in: start.epoch,
            frees_in: start.epoch,
            heard_ms,
            connection: Some(connection),
            ..SessionState::default()
        };
        self.open.insert(client, session);
        Some(client)
    }

    /// Takes a session's heartbeat. A heartbeat that is older than the last one changes nothing.
    pub fn heartbeat(&mut self, heard_ms: u64, connection: u64, heartbeat: &SessionHeartbeat) {
        let Some(session) = self.open.get_mut(&heartbeat.client) else { return };
        session.heard_ms = heard_ms;
        session.connection = Some(connection);
        session.gone_at_ms = None;
        if heartbeat.pinned_by >= session.pinned_by {
            session.pinned_by = heartbeat.pinned_by;
            session.has_suspended = heartbeat.has_suspended;
        }
        let Damage { found, repaired } = session.damage;
        self.damage.add(Damage {
            found: heartbeat.damage.found.saturating_sub(found),
            repaired: heartbeat.damage.repaired.saturating_sub(repaired),
        });
        session.damage.found = found.max(heartbeat.damage.found);
        session.damage.repaired = repaired.max(heartbeat.damage.repaired);
        let news = heartbeat.transitions.since(session.transitions);
        self.transitions.add(news);
        session.transitions.add(news);
        session.pinned_in = session.pinned_in.max(heartbeat.pinned_in);
        session.frees_in = session.frees_in.max(heartbeat.frees_in);
        self.add_work(heartbeat.client, &heartbeat.work);
    }

    /// Returns the damage that all sessions found.
    pub fn damage(&self) -> Damage {
        self.damage
    }

    /// Adds the operations of a session to the counts.
    pub fn add_work(&mut self, client: ClientId, work: &SessionWork) {
        let Some(session) = self.open.get_mut(&client) else { return };
        let news = work.since(&session.work);
        self.work.add(&news);
        session.work.add(&news);
    }

    /// Returns the counts of the operations of all sessions.
    pub fn work(&self) -> SessionWork {
        self.work
    }

    /// Returns the changes of redundancy by all sessions.
    pub fn transitions(&self) -> Transitions {
        self.transitions
    }

    /// Adds damage that a job found.
    pub fn add_damage(&mut self, damage: Damage) {
        self.damage.add(damage);
    }

    /// Gives the sessions that last reported over a closed connection until `gone_at_ms`.
    pub fn connection_closed(&mut self, connection: u64, gone_at_ms: u64) {
        let spoke = self.open.values_mut().filter(|s| s.connection == Some(connection));
        spoke.for_each(|session| session.gone_at_ms = Some(gone_at_ms));
    }

    /// Renews the sessions that last reported over a connection: their process fetches a view over it.
    pub fn fetching(&mut self, heard_ms: u64, connection: u64) {
        let spoke = self.open.values_mut().filter(|s| s.connection == Some(connection));
        for session in spoke {
            (session.heard_ms, session.fetched_ms) = (heard_ms, Some(heard_ms));
        }
    }

    /// Expires an open session; returns whether it was open.
    pub fn expire(&mut self, client: ClientId, writes: &mut Vec<RecordWrite>) -> bool {
        let Some(session) = self.open.remove(&client) else { return false };
        let handed_on = session.handed_on;
        self.expired.insert(client, session);
        // Its recovery finds all blocks that the tables call its own.
        self.limbo.remove(&client);
        writes.push(RecordWrite::Put(MasterRecord::Session { client, expired: true, handed_on }));
        true
    }

    /// Gives an open session a block for objects of a class, or of any class, for which `may_use` holds. A block whose
    /// owner has expired is not given: the owner's recovery finds it again.
    pub fn take_orphan(
        &mut self,
        taker: OrphanTaker,
        class: Option<SizeClass>,
        may_use: impl Fn(&Orphan) -> bool,
        writes: &mut Vec<RecordWrite>,
    ) -> Option<Orphan> {
        let OrphanTaker { client, turn } = taker;
        let session = self.open.get_mut(&client)?;
        let of_class = |(known, _): &(&SizeClass, _)| class.is_none_or(|class| class == **known);
        let expired = &self.expired;
        let used = &self.used;
        let is_of_use = |left: &Orphan| class.is_some() || !used.contains_key(&left.block);
        // For another class, a block that it has just handed on itself is of no use.
        let is_its_own = |left: &Orphan| class.is_none() && left.owner == client;
        let may_use = |left: &Orphan| {
            !expired.contains_key(&left.owner)
                && is_of_use(left)
                && !is_its_own(left)
                && may_use(left)
        };
        let orphan = self.orphans.iter_mut().filter(of_class).find_map(|(_, left)| {
            let at = left.iter().rposition(may_use)?;
            Some(left.remove(at))
        })?;
        self.left.remove(&orphan.block);
        self.used.remove(&orphan.block);
        session.given.retain(|given| given.left.block != orphan.block);
        session.given.push(GrantedOrphan { turn, left: orphan });
        writes.push(RecordWrite::Remove(orphan_key(orphan.block)));
        Some(orphan)
    }

    /// Notes the blocks that a session has taken over, each with the number of the request that gave it. This may come
    /// late: since then the session may have been given the same block once more.
    pub fn note_adopted(&mut self, client: ClientId, blocks: &[(BlockId, u64)]) {
        if let Some(session) = self.open.get_mut(&client) {
            session.given.retain(|given| !blocks.contains(&(given.left.block, given.turn)));
        }
    }

    /// Forgets gifts to other sessions, and blocks in limbo, that are out of date.
    fn forget_grants_to_others(&mut self, client: ClientId, is_outdated: impl Fn(&Orphan) -> bool) {
        let sessions = self.open.iter_mut().chain(&mut self.expired);
        let others = sessions.filter(|(other, _)| **other != client);
        others.for_each(|(_, session)| session.given.retain(|given| !is_outdated(&given.left)));
        self.limbo.values_mut().for_each(|given| given.retain(|left| !is_outdated(left)));
    }

    /// Forgets that blocks were in use whose time is over: some of their objects may have been freed since.
    pub fn forget_used(&mut self, now_ms: u64) {
        self.used.retain(|_, until_ms| *until_ms > now_ms);
    }

    /// Keeps the blocks that an open session hands on. Repeating it changes nothing. Used blocks go only to
    /// sessions that need objects of their class, until `used_until_ms`. The error says that the session is not open,
    /// or names the last block that was dropped.
    pub fn hand_on(
        &mut self,
        hand_over: &HandOver,
        used_until_ms: u64,
        view: &View,
        writes: &mut Vec<RecordWrite>,
    ) -> Result<(), String> {
        let HandOver { client, serial, orphans, used } = hand_over;
        let (client, serial) = (*client, *serial);
        let Some(session) = self.open.get_mut(&client) else {
            return Err("it is not open, and hands nothing on".into());
        };
        if serial <= session.handed_on {
            return Ok(());
        }
        session.handed_on = serial;
        let is_hope = |left: &&Orphan| !used.contains(&left.block);
        self.handed_on += orphans.iter().filter(is_hope).count() as u64;
        writes.push(RecordWrite::Put(MasterRecord::Session {
            client,
            expired: false,
            handed_on: serial,
        }));
        // These gifts must not be returned once more, should the session expire.
        let handed_on =
            |given: &GrantedOrphan| orphans.iter().any(|left| left.block == given.left.block);
        let (gone, given): (Vec<GrantedOrphan>, _) =
            std::mem::take(&mut session.given).into_iter().partition(handed_on);
        session.given = given;
        let own = blocks_owned_by(client, orphans);
        self.forget_grants_to_others(client, |left| own.contains(&left.block));
        let kept = self.keep_all(client, orphans, &gone, view, writes);
        let left = used.iter().filter(|block| self.left.contains(block));
        self.used.extend(left.map(|block| (*block, used_until_ms)));
        kept
    }

    fn keep_all(
        &mut self,
        client: ClientId,
        orphans: &[Orphan],
        given: &[GrantedOrphan],
        view: &View,
        writes: &mut Vec<RecordWrite>,
    ) -> Result<(), String> {
        let mut dropped = None;
        for orphan in orphans {
            let before = before(given, orphan);
            if let Err(what) = self.keep(client, orphan, before, view, writes) {
                dropped = Some(format!("{orphan:?} is dropped: {what}"));
            }
        }
        dropped.map_or(Ok(()), Err)
    }

    /// Closes a session, and keeps the blocks that it hands on. Repeating it changes nothing, nor does closing an
    /// expired session. The error says that the id was never used, or names the last block that was dropped; in the
    /// latter case the session is closed all the same.
    pub fn close(
        &mut self,
        client: ClientId,
        orphans: &[Orphan],
        view: &View,
        writes: &mut Vec<RecordWrite>,
    ) -> Result<(), String> {
        if !self.has_been(client) {
            return Err(format!("{client} has never been opened"));
        }
        let Some(session) = self.open.remove(&client) else { return Ok(()) };
        self.handed_on += 1;
        writes.push(RecordWrite::Remove(session_key(client)));
        let own = blocks_owned_by(client, orphans);
        self.forget_grants_to_others(client, |left| own.contains(&left.block));
        let kept = self.keep_all(client, orphans, &session.given, view, writes);
        let said = |left: &Orphan| orphans.iter().any(|other| other.block == left.block);
        self.return_given(client, &session.given, said, view, writes);
        for left in self.limbo.remove(&client).unwrap_or_default() {
            if !said(&left) && !self.left.contains(&left.block) {
                // A block that is dropped is lost room, and no more.
                let _dropped = self.keep(client, &left, None, view, writes);
            }
        }
        kept
    }

    /// Gives back the blocks that an ended session was given, except those that it is known to have handed on or taken
    /// over (`is_known`).
    fn return_given(
        &mut self,
        client: ClientId,
        given: &[GrantedOrphan],
        is_known: impl Fn(&Orphan) -> bool,
        view: &View,
        writes: &mut Vec<RecordWrite>,
    ) {
        for left in given.iter().map(|given| &given.left).filter(|left| !is_known(left)) {
            if self.left.contains(&left.block) || self.expired.contains_key(&left.owner) {
                // A later report tells what there is. Or the owner's recovery finds what the tables call its own by
                // then: the owner may have got the block back from the pool, and written there.
            } else if self.open.contains_key(&left.owner) {
                self.limbo.entry(left.owner).or_default().push(*left);
            } else {
                // A block that is dropped is lost room, and no more.
                let _dropped = self.keep(client, left, Some(left), view, writes);
            }
        }
    }

    /// Removes a session that had expired and is recovered. `owned` are the blocks that it had taken over on all
    /// replicas. Gifts that it had not taken over go to other sessions.
    pub fn recovered(
        &mut self,
        client: ClientId,
        owned: &[BlockId],
        orphans: &[Orphan],
        view: &View,
        writes: &mut Vec<RecordWrite>,
    ) {
        let Some(SessionState { given, .. }) = self.expired.remove(&client) else { return };
        self.handed_on += 1;
        writes.push(RecordWrite::Remove(session_key(client)));
        // Also blocks that the recovery does not hand on, since their headers are unreadable or all their objects were
        // free. The latter went back to the pool in the course of the recovery: other sessions may have got them from
        // there, and handed them on, before its end is heard.
        let own = blocks_owned_by(client, orphans);
        let had: BTreeSet<BlockId> = owned.iter().copied().collect();
        self.forget_grants_to_others(client, |left| {
            own.contains(&left.block) || (left.owner == client && had.contains(&left.block))
        });
        let orphans = orphans.iter().filter(|left| !self.is_handed_on(client, left.block));
        let orphans: Vec<Orphan> = orphans.copied().collect();
        for orphan in &orphans {
            // A block that is dropped is lost room, and no more.
            let before = before(&given, orphan);
            let _dropped = self.keep(client, orphan, before, view, writes);
        }
        let is_owned = |left: &Orphan| owned.contains(&left.block);
        self.return_given(client, &given, is_owned, view, writes);
    }

    /// Returns whether a session has handed a block on that no other session was given since. The tables still name the
    /// session, so its recovery finds the block. But the recovery knows less of it than the session has told: where the
    /// block is new, and whether its free bitmap is complete.
    fn is_handed_on(&self, client: ClientId, block: BlockId) -> bool {
        let mut left = self.orphans();
        self.left.contains(&block) && left.any(|left| left.block == block && left.owner == client)
    }

    fn keep(
        &mut self,
        client: ClientId,
        orphan: &Orphan,
        before: Option<&Orphan>,
        view: &View,
        writes: &mut Vec<RecordWrite>,
    ) -> Result<(), &'static str> {
        let Orphan { block, owner, class, first, marked: _ } = *orphan;
        let region = view.regions.get(block.region as usize);
        if region.is_none() || block.block >= view.geometry.blocks_per_region() {
            return Err("no such block");
        }
        // The message was decoded without a check of the class's value.
        let class = SizeClass::from_code(class.code()).ok_or("no such size class")?;
        let shape = BlockShape::new(view.geometry.block_bytes, class);
        if first > shape.ok_or("no object of this class fits in a block")?.objects {
            return Err("the block has no such object");
        }
        // The session may have given a block of its own back to the pool, and got it from there again.
        match before.filter(|before| before.owner == owner && owner != client) {
            Some(before) if class != before.class || first < before.first => {
                return Err("it was given to the session in another state");
            }
            None if owner != client => return Err("the block is not the session's"),
            _ => {}
        }
        if self.left.len() == MAX_ORPHANS && !self.left.contains(&block) {
            return Err("there are too many");
        }
        if !self.left.insert(block) {
            if owner != client {
                return Err("it has been handed on already");
            }
            // A former owner had handed it on, and given it back to the pool since, from where this session got it.
            self.orphans.values_mut().for_each(|left| left.retain(|l| l.block != block));
        }
        writes.push(RecordWrite::Put(MasterRecord::Orphan(*orphan)));
        self.orphans.entry(class).or_default().push(*orphan);
        Ok(())
    }
}

/// Returns the blocks that a session hands on as its own.
fn blocks_owned_by(client: ClientId, orphans: &[Orphan]) -> BTreeSet<BlockId> {
    orphans.iter().filter(|left| left.owner == client).map(|left| left.block).collect()
}

/// Returns the state in which a session was given a block that it hands on.
fn before<'g>(given: &'g [GrantedOrphan], orphan: &Orphan) -> Option<&'g Orphan> {
    given.iter().map(|given| &given.left).find(|before| before.block == orphan.block)
}

#[cfg(test)]
mod tests;
