//! Client ids, the sessions that use them, and blocks that pass from one session to another.
//!
//! *Ids* are never used twice, not even after a restart of the master. They come from ranges of [`IDS_PER_RECORD`] ids;
//! each range is stored before its first id is assigned. A restart skips the rest of a range.
//!
//! *Records.* A session is stored before it learns its id, until it is closed or recovered. So a session without a
//! record has ended, and can be told so. Its expiry is stored before anything depends on that: an expired session never
//! becomes open again.
//!
//! *Given blocks.* When a session ends before it has said that it took over a block which the master *gave* it, the
//! block becomes an orphaned block again. This can be wrong, because the session possibly took the block over and gave
//! it back to the pool. The memory nodes refuse the next session that gets such a block, because their tables name
//! another owner or none. But if the block's former owner is open, it could have got the block again, and then the
//! tables would name that owner. So such a block waits in *limbo* until the former owner ends and itself says which
//! blocks it has. For the same reason a hand-over has a serial number, which is stored: a repeated hand-over changes
//! nothing.
//!
//! *Orphaned blocks.* An orphaned block is stored together with the end of its session, and its record is removed
//! before the block is given to another session. A master that crashes between these steps loses one block, and never
//! gives one block to two sessions, which would write to the same objects.
//!
//! All methods change the state in memory and return the writes for the store. The caller must not reveal the new state
//! before these writes are durable.

use std::collections::{BTreeMap, BTreeSet};

use fusee_control::master::{Orphan, SessionHeartbeat};
use fusee_control::node::BlockId;
use fusee_core::data::Transitions;
use fusee_core::layout::{BlockShape, SizeClass, Slot};
use fusee_core::stats::{Damage, SessionWork};
use fusee_core::verbs::ClientId;
use fusee_core::view::View;

use crate::record::{MasterRecord, RecordWrite, orphan_key, session_key};
use crate::request_kinds::HandOver;

/// The number of client ids that one write to the store reserves.
pub const IDS_PER_RECORD: u32 = 64;
/// The limit on the number of orphaned blocks. Further orphaned blocks are dropped.
const MAX_ORPHANS: usize = 1 << 18;

/// A block that a session was given, and the number of the session's request for it.
#[derive(Debug)]
struct GrantedOrphan {
    turn: u64,
    left: Orphan,
}

/// The master's record of an open session.
#[derive(Debug, Default)]
pub struct SessionState {
    /// Blocks that this process has given to the session, and that the session has not said to have taken over.
    given: Vec<GrantedOrphan>,
    /// The serial number of the session's last request `HandOn`.
    handed_on: u64,
    /// The number of the view by which the session was pinned at its last heartbeat, or when it was opened; 0 if the
    /// session is restored from the store and has sent this process no heartbeat.
    pub pinned_by: u64,
    /// See [`SessionHeartbeat::has_suspended`].
    pub has_suspended: bool,
    /// See [`SessionHeartbeat::damage`].
    damage: Damage,
    /// See [`SessionHeartbeat::transitions`].
    transitions: Transitions,
    /// See [`SessionHeartbeat::work`].
    work: SessionWork,
    /// See [`SessionHeartbeat::pinned_in`]; 0 if the session is restored from the store and has sent this process no
    /// heartbeat.
    pinned_in: u64,
    /// See [`SessionHeartbeat::frees_in`].
    frees_in: u64,
    /// The time of the session's last heartbeat, or of its opening, in listened milliseconds (see `failure_detector`);
    /// 0 if the session is restored from the store and has sent this process no heartbeat.
    pub heard_ms: u64,
    /// The time at which the session's process last asked for a piece of a view, in listened milliseconds (see
    /// `failure_detector`).
    pub fetched_ms: Option<u64>,
    /// The connection of the session's last heartbeat, if there was one.
    pub connection: Option<u64>,
    /// The time at which the session expires because its connection has closed, unless it uses another connection.
    pub gone_at_ms: Option<u64>,
}

/// The view and the epoch in which a session begins.
#[derive(Clone, Copy, Debug)]
pub struct SessionStart {
    /// The number of the view by which the session is pinned.
    pub view: u64,
    /// The epoch in which the session is pinned.
    pub epoch: u64,
}

/// The session that takes an orphaned block, with the number of its request.
#[derive(Clone, Copy, Debug)]
pub struct OrphanTaker {
    /// The session's id.
    pub client: ClientId,
    /// The number of the session's request for a block.
    pub turn: u64,
}

/// All sessions of the cluster, and the orphaned blocks.
#[derive(Debug)]
pub struct SessionRegistry {
    /// The next client id to assign, and the end of the range of ids that the store has reserved.
    next: u32,
    end: u32,
    open: BTreeMap<ClientId, SessionState>,
    /// Sessions that have expired and are not recovered yet.
    expired: BTreeMap<ClientId, SessionState>,
    orphans: BTreeMap<SizeClass, Vec<Orphan>>,
    /// The ids of all orphaned blocks.
    left: BTreeSet<BlockId>,
    /// Orphaned blocks with objects in use, and the times until which they are only given for their own size class. Not
    /// stored.
    used: BTreeMap<BlockId, u64>,
    /// For each open session: blocks that the session handed on, that the master gave to other sessions, and that those
    /// sessions have possibly not taken over. Not stored: when a master ends, these blocks are lost.
    limbo: BTreeMap<ClientId, Vec<Orphan>>,
    /// Damage found by all sessions, as far as they have reported it to this process.
    damage: Damage,
    /// Changes of redundancy by all sessions, as far as they have reported them to this process.
    transitions: Transitions,
    /// Counts of the operations of all sessions, as far as they have reported them to this process.
    work: SessionWork,
    /// The number of blocks that were handed on: see [`SessionRegistry::handed_on`].
    handed_on: u64,
    /// The number of sessions that have ended since this master began to lead.
    ended: u64,
}

impl SessionRegistry {
    /// Returns a registry without sessions, in which ids from `first` on are unused.
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
            ended: 0,
        }
    }

    /// Returns a count of events that can bring memory to other sessions: blocks handed on that are not known to be in
    /// use, and ends of sessions.
    pub fn handed_on(&self) -> u64 {
        self.handed_on
    }

    /// Restores from the store that client ids below `end` have possibly been assigned.
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

    /// Returns the time of the last heartbeat of each expired session, in listened milliseconds (see
    /// `failure_detector`).
    pub fn expired_heard_ms(&self) -> impl Iterator<Item = u64> + '_ {
        self.expired.values().map(|session| session.heard_ms)
    }

    /// Returns whether a session is open.
    pub fn is_open(&self, client: ClientId) -> bool {
        self.open.contains_key(&client)
    }

    /// Returns whether a client id has been assigned, possibly by an earlier master process.
    pub fn has_been(&self, client: ClientId) -> bool {
        client != ClientId::NOBODY && client.0 < self.next
    }

    /// Returns the number of sessions that have ended since this master began to lead.
    pub fn ended(&self) -> u64 {
        self.ended
    }

    /// Returns the first client id that has not been assigned.
    pub fn unused_from(&self) -> ClientId {
        ClientId(self.next)
    }

    /// Returns the orphaned blocks.
    pub fn orphans(&self) -> impl Iterator<Item = &Orphan> {
        self.orphans.values().flatten()
    }

    /// Returns the number of client ids that have been assigned.
    pub fn opened_count(&self) -> u64 {
        u64::from(self.next) - 1
    }

    /// Returns a new client id; `None` when all ids are used up.
    pub fn new_id(&mut self, writes: &mut Vec<RecordWrite>) -> Option<ClientId> {
        if self.next == self.end {
            self.end = self.end.checked_add(IDS_PER_RECORD)?;
            writes.push(RecordWrite::Put(MasterRecord::ClientIds { end: self.end }));
        }
        let client = ClientId(self.next);
        self.next += 1;
        Some(client)
    }

    /// Returns two epochs; `None` if there are no sessions. No operation of an epoch before the first epoch runs any
    /// more. Every object that operations of epochs before the second epoch had to free has been freed, or never will
    /// be. Expired sessions are included until they are recovered, because recovery can still complete their
    /// operations.
    pub fn epochs(&self) -> Option<(u64, u64)> {
        let all = self.open.values().chain(self.expired.values());
        let settled = all.clone().map(|session| session.frees_in.min(session.pinned_in)).min()?;
        Some((all.map(|session| session.pinned_in).min()?, settled))
    }

    /// Opens a session. Returns `None` when all client ids are used up.
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

    /// Records a session's heartbeat. Values in the heartbeat that are older than the recorded values change nothing.
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

    /// Returns the counts of the damage that all sessions have found.
    pub fn damage(&self) -> Damage {
        self.damage
    }

    /// Adds the counts of a session's operations to the totals.
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

    /// Returns the counts of the redundancy changes that all sessions have made.
    pub fn transitions(&self) -> Transitions {
        self.transitions
    }

    /// Adds the damage that a job has found to the totals.
    pub fn add_damage(&mut self, damage: Damage) {
        self.damage.add(damage);
    }

    /// Sets the time at which sessions expire whose last heartbeat came over a connection that is closed now.
    pub fn connection_closed(&mut self, connection: u64, gone_at_ms: u64) {
        let spoke = self.open.values_mut().filter(|s| s.connection == Some(connection));
        spoke.for_each(|session| session.gone_at_ms = Some(gone_at_ms));
    }

    /// Renews the sessions whose last heartbeat came over a connection, because their process fetches a view over this
    /// connection.
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
        // The session's recovery finds all blocks whose owner is this session according to the block tables.
        self.limbo.remove(&client);
        writes.push(RecordWrite::Put(MasterRecord::Session { client, expired: true, handed_on }));
        true
    }

    /// Gives an open session a block for which `may_use` holds, for objects of one class, or of any class. A block
    /// whose owner has expired is not given, because the owner's recovery finds it again.
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
        // A session that takes any class has no use for a block that it has just handed on itself.
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

    /// Records the blocks that a session has taken over, each with the number of the request that gave it. This can
    /// come late: the session was possibly given the same block once more since then, by a request with another number.
    pub fn note_adopted(&mut self, client: ClientId, blocks: &[(BlockId, u64)]) {
        if let Some(session) = self.open.get_mut(&client) {
            session.given.retain(|given| !blocks.contains(&(given.left.block, given.turn)));
        }
    }

    /// Forgets blocks that were given to other sessions, and blocks in limbo, if the records of these blocks are
    /// outdated.
    fn forget_grants_to_others(&mut self, client: ClientId, is_outdated: impl Fn(&Orphan) -> bool) {
        let sessions = self.open.iter_mut().chain(&mut self.expired);
        let others = sessions.filter(|(other, _)| **other != client);
        others.for_each(|(_, session)| session.given.retain(|given| !is_outdated(&given.left)));
        self.limbo.values_mut().for_each(|given| given.retain(|left| !is_outdated(left)));
    }

    /// Forgets that blocks were in use whose times are over, because some of their objects have possibly been freed
    /// since.
    pub fn forget_used(&mut self, now_ms: u64) {
        self.used.retain(|_, until_ms| *until_ms > now_ms);
    }

    /// Keeps the blocks that an open session hands on as orphaned blocks. Repeating this changes nothing. Until
    /// `used_until_ms`, used blocks are given only to sessions that need objects of the block's class. The error says
    /// that the session is not open, or names the last block that was dropped.
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
        // If the session expires later, the blocks handed on must not become orphaned blocks once more.
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

    /// Closes a session, and keeps the blocks that it hands on as orphaned blocks. Repeating this, or closing an
    /// expired session, changes nothing. The error says that the id was never used, or names the last block that was
    /// dropped. If a block was dropped, the session is closed nevertheless.
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
        self.ended += 1;
        self.handed_on += 1;
        writes.push(RecordWrite::Remove(session_key(client)));
        let own = blocks_owned_by(client, orphans);
        self.forget_grants_to_others(client, |left| own.contains(&left.block));
        let kept = self.keep_all(client, orphans, &session.given, view, writes);
        let said = |left: &Orphan| orphans.iter().any(|other| other.block == left.block);
        self.return_given(client, &session.given, said, view, writes);
        for left in self.limbo.remove(&client).unwrap_or_default() {
            if !said(&left) && !self.left.contains(&left.block) {
                // A block that is dropped costs room, but does no other harm.
                let _dropped = self.keep(client, &left, None, view, writes);
            }
        }
        kept
    }

    /// Makes blocks that an ended session was given orphaned blocks again, except blocks that it is known to have
    /// handed on or taken over (`is_known`).
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
                // If the block is orphaned already, a later hand-over describes it. If its former owner has expired,
                // that owner's recovery finds the block if the tables name this owner: it possibly got the block back
                // from the pool and wrote there.
            } else if self.open.contains_key(&left.owner) {
                self.limbo.entry(left.owner).or_default().push(*left);
            } else {
                // A block that is dropped costs room, but does no other harm.
                let _dropped = self.keep(client, left, Some(left), view, writes);
            }
        }
    }

    /// Removes an expired session that is recovered. `owned` are the blocks that it owned on all replicas. Blocks that
    /// it was given and had not taken over become orphaned blocks again.
    pub fn recovered(
        &mut self,
        client: ClientId,
        owned: &[BlockId],
        orphans: &[Orphan],
        view: &View,
        writes: &mut Vec<RecordWrite>,
    ) {
        let Some(SessionState { given, .. }) = self.expired.remove(&client) else { return };
        self.ended += 1;
        self.handed_on += 1;
        writes.push(RecordWrite::Remove(session_key(client)));
        // This includes blocks that the recovery does not hand on, because their headers are unreadable or all their
        // objects were free. Free blocks went back to the pool during the recovery. So before the recovery's end is
        // reported, other sessions have possibly got these blocks from the pool, and handed them on.
        let own = blocks_owned_by(client, orphans);
        let had: BTreeSet<BlockId> = owned.iter().copied().collect();
        self.forget_grants_to_others(client, |left| {
            own.contains(&left.block) || (left.owner == client && had.contains(&left.block))
        });
        let orphans = orphans.iter().filter(|left| !self.is_handed_on(client, left.block));
        let orphans: Vec<Orphan> = orphans.copied().collect();
        for orphan in &orphans {
            // A block that is dropped costs room, but does no other harm.
            let before = before(&given, orphan);
            let _dropped = self.keep(client, orphan, before, view, writes);
        }
        let is_owned = |left: &Orphan| owned.contains(&left.block);
        self.return_given(client, &given, is_owned, view, writes);
    }

    /// Returns whether a session has handed on a block that no other session was given since. The tables still name the
    /// session, so its recovery finds the block. But the session told more about the block than the recovery knows:
    /// which objects were never allocated, and whether its free bitmap is complete.
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
        let Orphan { block, owner, class, first, base, marked: _ } = *orphan;
        let region = view.regions.get(block.region as usize);
        if region.is_none() || !view.geometry.is_block(block.frame, block.order) {
            return Err("no such block");
        }
        if base.is_some_and(|base| base >= Slot::GENERATIONS) {
            return Err("a base is a generation");
        }
        // Decoding the message has not checked the size class.
        let class = SizeClass::from_code(class.code()).ok_or("no such size class")?;
        let shape = BlockShape::new(block.bytes(&view.geometry), class);
        if first > shape.ok_or("no object of this class fits in a block")?.objects {
            return Err("the block has no such object");
        }
        // A session that hands on a block as its own is allowed to describe it in any state, because it possibly gave
        // the block back to the pool and got it from there again.
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
            // A former owner had handed the block on, later took it over again and returned it to the pool, from where
            // this session got it.
            self.orphans.values_mut().for_each(|left| left.retain(|l| l.block != block));
        }
        writes.push(RecordWrite::Put(MasterRecord::Orphan(*orphan)));
        self.orphans.entry(class).or_default().push(*orphan);
        Ok(())
    }
}

/// Returns the blocks that a session hands on and that name it as their owner.
fn blocks_owned_by(client: ClientId, orphans: &[Orphan]) -> BTreeSet<BlockId> {
    orphans.iter().filter(|left| left.owner == client).map(|left| left.block).collect()
}

/// Returns the state in which a session was given a block that it now hands on; `None` if the block was not given to
/// it.
fn before<'g>(given: &'g [GrantedOrphan], orphan: &Orphan) -> Option<&'g Orphan> {
    given.iter().map(|given| &given.left).find(|before| before.block == orphan.block)
}

#[cfg(test)]
mod tests;
