//! Client ids, the sessions that use them, and the blocks that pass from one session to another.
//!
//! Ids are never used twice, not even across restarts of the master: they are drawn from ranges of
//! [`IDS_PER_RECORD`] that are recorded before their first id is handed out. A restart skips what
//! is left of the range.
//!
//! A session is recorded before it is told its id, until it is closed or recovered. So whatever is
//! not recorded is gone, and may be told so. That a session has expired is recorded before
//! anything follows from it: it never comes back.
//!
//! What a session was *given* is returned if it ends before it has said that it took it over. That may
//! come too late: it had taken it over, and given it back to the pool. Whoever gets such a block is refused
//! by the memory nodes, whose tables name another owner, or nobody. But an owner that has not ended could
//! have got its block again, and would not be asked: what is to be returned under the name of such a
//! session waits in *limbo* until that ends, and says itself what it has. For the same reason what a
//! session hands on has a serial, which is recorded: repeated, it changes nothing.
//!
//! An orphaned block is recorded with the end of its session, and its record is removed before it is
//! handed out: a master that crashes in between loses one block, and never hands one
//! out twice, to two clients that would write to the same objects.
//!
//! All methods change what is in memory and return what has to be written; the caller lets nobody
//! see the former before the latter is durable.

use std::collections::{BTreeMap, BTreeSet};

use fusee_control::master::{Orphan, SessionHeartbeat};
use fusee_control::node::BlockId;
use fusee_core::data::Transitions;
use fusee_core::layout::{BlockShape, SizeClass};
use fusee_core::stats::{Damage, Work};
use fusee_core::verbs::ClientId;
use fusee_core::view::View;

use crate::record::{Record, Write, orphan_key, session_key};

/// Ids per write to the store.
pub const IDS_PER_RECORD: u32 = 64;
/// Orphaned blocks kept at most; beyond, they are forgotten.
const MAX_ORPHANS: usize = 1 << 16;

/// What a session was given, in answer to which of its requests.
#[derive(Debug)]
struct Gift {
    turn: u64,
    left: Orphan,
}

/// An open session.
#[derive(Debug, Default)]
pub struct SessionState {
    /// What it was given since this process runs, and has not said that it took over.
    given: Vec<Gift>,
    /// The serial of what it handed on last.
    handed_on: u64,
    /// Its last heartbeat; views before the first count as not acknowledged.
    pub pinned_by: u64,
    /// As in the heartbeat.
    pub has_suspended: bool,
    /// As in the heartbeat.
    damage: Damage,
    /// As in the heartbeat.
    transitions: Transitions,
    /// As in the heartbeat.
    work: Work,
    /// As in the heartbeat; 0 if this process has not heard it.
    pinned_in: u64,
    /// As in the heartbeat.
    frees_in: u64,
    /// When it was heard last, in the time for which the master has listened; 0 if not yet by this process.
    pub heard_ms: u64,
    /// When its process asked for a piece of a view last, by the same clock.
    pub fetched_ms: Option<u64>,
    /// The connection over which it spoke last, if it has.
    pub connection: Option<u64>,
    /// When it expires, unless it speaks over another connection.
    pub gone_at_ms: Option<u64>,
}

/// All sessions.
#[derive(Debug)]
pub struct Sessions {
    /// The next id, and the end of the recorded range.
    next: u32,
    end: u32,
    open: BTreeMap<ClientId, SessionState>,
    /// Expired, not recovered yet.
    expired: BTreeMap<ClientId, SessionState>,
    orphans: BTreeMap<SizeClass, Vec<Orphan>>,
    /// The blocks of all orphaned blocks.
    left: BTreeSet<BlockId>,
    /// Those of them in which objects were in use, and until when nobody is to look again. Not stored.
    used: BTreeMap<BlockId, u64>,
    /// By open session: what others were given under its name, and perhaps did not take over. Not stored:
    /// a master that dies loses these blocks.
    limbo: BTreeMap<ClientId, Vec<Orphan>>,
    /// What all sessions found damaged, as far as this process has heard.
    damage: Damage,
    /// What all sessions did about redundancy, as far as this process has heard.
    transitions: Transitions,
    /// What the operations of all sessions came to, as far as this process has heard.
    work: Work,
    /// See [`Sessions::handed_on`].
    handed_on: u64,
}

impl Sessions {
    /// No session; ids from `first` on are unused.
    pub fn new(first: u32) -> Sessions {
        let first = first.max(1);
        Sessions {
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
            work: Work::default(),
            handed_on: 0,
        }
    }

    /// Counts blocks that sessions hand on, but for those that are known to be in use, and sessions that end:
    /// either may bring memory to others.
    pub fn handed_on(&self) -> u64 {
        self.handed_on
    }

    /// From the store: ids below `end` may be in use.
    pub fn restore_ids(&mut self, end: u32) {
        (self.next, self.end) = (end.max(1), end.max(1));
    }

    /// From the store: a session.
    pub fn restore_session(&mut self, client: ClientId, expired: bool, handed_on: u64) {
        let session = SessionState { handed_on, ..SessionState::default() };
        if expired {
            self.expired.insert(client, session);
        } else {
            self.open.insert(client, session);
        }
    }

    /// From the store: an orphaned block.
    pub fn restore_orphan(&mut self, orphan: Orphan) {
        self.left.insert(orphan.block);
        self.orphans.entry(orphan.class).or_default().push(orphan);
    }

    /// The open sessions.
    pub fn open_sessions(&self) -> impl Iterator<Item = (ClientId, &SessionState)> {
        self.open.iter().map(|(client, session)| (*client, session))
    }

    /// The sessions that have expired and are not recovered.
    pub fn expired(&self) -> impl Iterator<Item = ClientId> + '_ {
        self.expired.keys().copied()
    }

    /// When these were heard last.
    pub fn expired_heard_ms(&self) -> impl Iterator<Item = u64> + '_ {
        self.expired.values().map(|session| session.heard_ms)
    }

    /// Whether it may go on.
    pub fn is_open(&self, client: ClientId) -> bool {
        self.open.contains_key(&client)
    }

    /// Whether an id has been handed out, perhaps by an earlier process.
    pub fn has_been(&self, client: ClientId) -> bool {
        client != ClientId::NOBODY && client.0 < self.next
    }

    /// Ids from this one on have not been handed out.
    pub fn unused_from(&self) -> ClientId {
        ClientId(self.next)
    }

    /// The blocks that wait for somebody to go on with them.
    pub fn orphans(&self) -> impl Iterator<Item = &Orphan> {
        self.orphans.values().flatten()
    }

    /// Ids used up.
    pub fn opened_count(&self) -> u64 {
        u64::from(self.next) - 1
    }

    /// A new id; `None` when all are used up.
    pub fn new_id(&mut self, writes: &mut Vec<Write>) -> Option<ClientId> {
        if self.next == self.end {
            self.end = self.end.checked_add(IDS_PER_RECORD)?;
            writes.push(Write::Put(Record::ClientIds { end: self.end }));
        }
        let client = ClientId(self.next);
        self.next += 1;
        Some(client)
    }

    /// Before which epoch no operation runs any more: of open sessions, and of those that somebody
    /// may still have to put an end to. And before which one what was freed is set free.
    pub fn epochs(&self) -> Option<(u64, u64)> {
        let all = self.open.values().chain(self.expired.values());
        let settled = all.clone().map(|session| session.frees_in.min(session.pinned_in)).min()?;
        Some((all.map(|session| session.pinned_in).min()?, settled))
    }

    /// Opens a session, pinned by the view of this number, in this epoch; `None` when all ids
    /// are used up.
    pub fn open(
        &mut self,
        heard_ms: u64,
        connection: u64,
        (view, epoch): (u64, u64),
        writes: &mut Vec<Write>,
    ) -> Option<ClientId> {
        let client = self.new_id(writes)?;
        writes.push(Write::Put(Record::Session { client, expired: false, handed_on: 0 }));
        let session = SessionState {
            pinned_by: view,
            pinned_in: epoch,
            frees_in: epoch,
            heard_ms,
            connection: Some(connection),
            ..SessionState::default()
        };
        self.open.insert(client, session);
        Some(client)
    }

    /// A session says by what it is pinned. An older heartbeat than the last one changes nothing.
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
        self.worked(heartbeat.client, &heartbeat.work);
    }

    /// What all sessions found damaged.
    pub fn damage(&self) -> Damage {
        self.damage
    }

    /// A session says what its operations came to so far.
    pub fn worked(&mut self, client: ClientId, work: &Work) {
        let Some(session) = self.open.get_mut(&client) else { return };
        let news = work.since(&session.work);
        self.work.add(&news);
        session.work.add(&news);
    }

    /// What the operations of all sessions came to.
    pub fn work(&self) -> Work {
        self.work
    }

    /// What all sessions did about redundancy.
    pub fn transitions(&self) -> Transitions {
        self.transitions
    }

    /// Somebody else found damage.
    pub fn add_damage(&mut self, damage: Damage) {
        self.damage.add(damage);
    }

    /// A connection was closed: who spoke over it last has until `gone_at_ms`.
    pub fn connection_closed(&mut self, connection: u64, gone_at_ms: u64) {
        let spoke = self.open.values_mut().filter(|s| s.connection == Some(connection));
        spoke.for_each(|session| session.gone_at_ms = Some(gone_at_ms));
    }

    /// Who spoke over a connection last fetches a view over it.
    pub fn fetching(&mut self, heard_ms: u64, connection: u64) {
        let spoke = self.open.values_mut().filter(|s| s.connection == Some(connection));
        for session in spoke {
            (session.heard_ms, session.fetched_ms) = (heard_ms, Some(heard_ms));
        }
    }

    /// Gives an open session up; whether it was open.
    pub fn expire(&mut self, client: ClientId, writes: &mut Vec<Write>) -> bool {
        let Some(session) = self.open.remove(&client) else { return false };
        let handed_on = session.handed_on;
        self.expired.insert(client, session);
        // Its recovery finds all that the tables say is its.
        self.limbo.remove(&client);
        writes.push(Write::Put(Record::Session { client, expired: true, handed_on }));
        true
    }

    /// Gives an open session a block for objects of a class, or of any, of which `may_use` holds. None
    /// whose owner is about to be recovered: that finds it again.
    pub fn take_orphan(
        &mut self,
        (client, turn): (ClientId, u64),
        class: Option<SizeClass>,
        may_use: impl Fn(&Orphan) -> bool,
        writes: &mut Vec<Write>,
    ) -> Option<Orphan> {
        let session = self.open.get_mut(&client)?;
        let of_class = |(known, _): &(&SizeClass, _)| class.is_none_or(|class| class == **known);
        let expired = &self.expired;
        let used = &self.used;
        let is_of_use = |left: &Orphan| class.is_some() || !used.contains_key(&left.block);
        // What it has just handed on itself is of no use for another class.
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
        session.given.push(Gift { turn, left: orphan });
        writes.push(Write::Remove(orphan_key(orphan.block)));
        Some(orphan)
    }

    /// A session has taken over what it was given in answer to these requests. It may have been given the same
    /// block once more since: this may come late.
    pub fn has_adopted(&mut self, client: ClientId, blocks: &[(BlockId, u64)]) {
        if let Some(session) = self.open.get_mut(&client) {
            session.given.retain(|given| !blocks.contains(&(given.left.block, given.turn)));
        }
    }

    /// A session says which blocks are its: whatever others were given of them, also under its name, is of the past.
    fn is_had(&mut self, client: ClientId, had: impl IntoIterator<Item = BlockId>) {
        let had: BTreeSet<BlockId> = had.into_iter().collect();
        let sessions = self.open.iter_mut().chain(&mut self.expired);
        let others = sessions.filter(|(other, _)| **other != client);
        others.for_each(|(_, session)| {
            session.given.retain(|given| !had.contains(&given.left.block))
        });
        self.limbo.values_mut().for_each(|given| given.retain(|left| !had.contains(&left.block)));
    }

    /// Some may have become free since.
    pub fn forget_used(&mut self, now_ms: u64) {
        self.used.retain(|_, until_ms| *until_ms > now_ms);
    }

    /// Keeps what an open session hands on. Repeating it changes nothing. Until then those orphaned blocks that
    /// are `used` are for who needs objects of their class. An error says what was wrong with some.
    pub fn hand_on(
        &mut self,
        (client, serial): (ClientId, u64),
        orphans: &[Orphan],
        (used, until_ms): (&[BlockId], u64),
        view: &View,
        writes: &mut Vec<Write>,
    ) -> Result<(), String> {
        let Some(session) = self.open.get_mut(&client) else {
            return Err("it is not open, and hands nothing on".into());
        };
        if serial <= session.handed_on {
            return Ok(());
        }
        session.handed_on = serial;
        let is_hope = |left: &&Orphan| !used.contains(&left.block);
        self.handed_on += orphans.iter().filter(is_hope).count() as u64;
        writes.push(Write::Put(Record::Session { client, expired: false, handed_on: serial }));
        // What it had been given it may not return once more, should it expire.
        let handed_on = |given: &Gift| orphans.iter().any(|left| left.block == given.left.block);
        let (gone, given): (Vec<Gift>, _) =
            std::mem::take(&mut session.given).into_iter().partition(handed_on);
        session.given = given;
        self.is_had(client, own(client, orphans));
        let kept = self.keep_all(client, orphans, &gone, view, writes);
        let left = used.iter().filter(|block| self.left.contains(block));
        self.used.extend(left.map(|block| (*block, until_ms)));
        kept
    }

    fn keep_all(
        &mut self,
        client: ClientId,
        orphans: &[Orphan],
        given: &[Gift],
        view: &View,
        writes: &mut Vec<Write>,
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

    /// Closes a session and keeps the orphaned blocks that it may hand on. Repeating it changes
    /// nothing; nor does it if the session has expired. An error says what was wrong; the session
    /// is closed all the same.
    pub fn close(
        &mut self,
        client: ClientId,
        orphans: &[Orphan],
        view: &View,
        writes: &mut Vec<Write>,
    ) -> Result<(), String> {
        if !self.has_been(client) {
            return Err(format!("{client} has never been opened"));
        }
        let Some(session) = self.open.remove(&client) else { return Ok(()) };
        self.handed_on += 1;
        writes.push(Write::Remove(session_key(client)));
        self.is_had(client, own(client, orphans));
        let kept = self.keep_all(client, orphans, &session.given, view, writes);
        let said = |left: &Orphan| orphans.iter().any(|other| other.block == left.block);
        self.return_given(client, &session.given, said, view, writes);
        for left in self.limbo.remove(&client).unwrap_or_default() {
            if !said(&left) && !self.left.contains(&left.block) {
                // What is dropped is room, no more.
                let _dropped = self.keep(client, &left, None, view, writes);
            }
        }
        kept
    }

    /// A session has ended, and does not say what became of all that it was given.
    fn return_given(
        &mut self,
        client: ClientId,
        given: &[Gift],
        is_known: impl Fn(&Orphan) -> bool,
        view: &View,
        writes: &mut Vec<Write>,
    ) {
        for left in given.iter().map(|given| &given.left).filter(|left| !is_known(left)) {
            if self.left.contains(&left.block) || self.expired.contains_key(&left.owner) {
                // Somebody has said since what there is; or the recovery of its owner finds what the tables say is
                // its, as it is by then: it may have got the block back from the pool, and written there.
            } else if self.open.contains_key(&left.owner) {
                self.limbo.entry(left.owner).or_default().push(*left);
            } else {
                // What is dropped is room, no more.
                let _dropped = self.keep(client, left, Some(left), view, writes);
            }
        }
    }

    /// A session that had expired is recovered. `owned` are the blocks that it had taken over on
    /// all replicas; what it was given and had not taken over goes to somebody else.
    pub fn recovered(
        &mut self,
        client: ClientId,
        owned: &[BlockId],
        orphans: &[Orphan],
        view: &View,
        writes: &mut Vec<Write>,
    ) {
        let Some(SessionState { given, .. }) = self.expired.remove(&client) else { return };
        self.handed_on += 1;
        writes.push(Write::Remove(session_key(client)));
        // Also of those that its recovery does not hand on, since their headers cannot be read, or as all was free.
        self.is_had(client, owned.iter().copied().chain(own(client, orphans)));
        let orphans = orphans.iter().filter(|left| !self.is_handed_on(client, left.block));
        let orphans: Vec<Orphan> = orphans.copied().collect();
        for orphan in &orphans {
            // What is dropped is room, no more.
            let before = before(&given, orphan);
            let _dropped = self.keep(client, orphan, before, view, writes);
        }
        let is_owned = |left: &Orphan| owned.contains(&left.block);
        self.return_given(client, &given, is_owned, view, writes);
    }

    /// Whether a session has handed a block on, and nobody was given it since. The tables still name the
    /// session, so its recovery finds the block, but knows less of it than the session told:
    /// where it is new, and whether its free bitmap tells what is free.
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
        writes: &mut Vec<Write>,
    ) -> Result<(), &'static str> {
        let Orphan { block, owner, class, first, marked: _ } = *orphan;
        let region = view.regions.get(block.region as usize);
        if region.is_none() || block.block >= view.geometry.blocks_per_region() {
            return Err("no such block");
        }
        // The class came over a wire that checks only its type.
        let class = SizeClass::from_code(class.code()).ok_or("no such size class")?;
        let shape = BlockShape::new(view.geometry.block_bytes, class);
        if first > shape.ok_or("no object of this class fits in a block")?.objects {
            return Err("the block has no such object");
        }
        // What is its own it may have given back to the pool since, and got from there again.
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
            // Of an owner who has given it back to the pool since, from where this one got it.
            self.orphans.values_mut().for_each(|left| left.retain(|l| l.block != block));
        }
        writes.push(Write::Put(Record::Orphan(*orphan)));
        self.orphans.entry(class).or_default().push(*orphan);
        Ok(())
    }
}

/// The blocks of what a session hands on as its own.
fn own(client: ClientId, orphans: &[Orphan]) -> impl Iterator<Item = BlockId> + use<'_> {
    orphans.iter().filter(move |left| left.owner == client).map(|left| left.block)
}

/// How a session was given a block that it hands on.
fn before<'g>(given: &'g [Gift], orphan: &Orphan) -> Option<&'g Orphan> {
    given.iter().map(|given| &given.left).find(|before| before.block == orphan.block)
}
