//! Tests of the keeper in virtual time, with a master that gives the answers of the test.

// Promise API-2

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use fusee_client::logic::{Keeper, KeeperEnvironment, KeeperTiming, SessionGate};
use fusee_client::{ClientId, Geometry, MnId, View};
use fusee_control::master::{ClusterEpochs, MasterReply, MasterRequest, Orphan, SessionHeartbeat};
use fusee_control::node::BlockId;
use fusee_control::rpc::RpcError;
use fusee_core::data::Region;
use fusee_core::host::PinnedOperations;
use fusee_core::layout::SizeClass;
use fusee_core::race::HashKey;
use fusee_core::verbs::ClusterId;
use fusee_core::view::change::NewReplica;
use fusee_core::view::update::ViewUpdate;
use fusee_core::view::{Member, PoolPlace, Subtable};
use tokio::sync::oneshot;

const MS: Duration = Duration::from_millis(1);

type Answer = Result<MasterReply, RpcError>;

/// A heartbeat that the keeper has sent to the master.
struct Asked {
    at: Duration,
    sessions: Vec<SessionHeartbeat>,
    newer_than: u64,
    acked: u64,
}

/// Virtual time, and a master whose answers the test controls.
#[derive(Default)]
struct World {
    now: Cell<Duration>,
    timers: RefCell<BTreeMap<(Duration, u64), Waker>>,
    next_timer: Cell<u64>,
    asked: RefCell<Vec<Asked>>,
    /// The answer to every heartbeat. If there is none, the master holds its answers until the test gives them.
    at_once: RefCell<Option<Answer>>,
    held: RefCell<Vec<oneshot::Sender<Answer>>>,
    handed_on: RefCell<Vec<(ClientId, Vec<Orphan>)>>,
    /// Those blocks of the latest hand-on request in which objects are in use.
    used: RefCell<Vec<BlockId>>,
    /// Whether the master acknowledges blocks that the keeper hands on.
    hears: Cell<bool>,
}

struct Outside(Rc<World>);

impl KeeperEnvironment for Outside {
    fn now(&self) -> Duration {
        self.0.now.get()
    }

    async fn sleep(&self, time: Duration) {
        let world = &self.0;
        let due = (world.now.get() + time, world.next_timer.get());
        world.next_timer.set(due.1 + 1);
        std::future::poll_fn(|context| {
            if world.now.get() >= due.0 {
                return Poll::Ready(());
            }
            world.timers.borrow_mut().insert(due, context.waker().clone());
            Poll::Pending
        })
        .await;
    }

    async fn ask_master(&self, request: MasterRequest, _: Duration) -> Answer {
        let (sessions, newer_than, acked) = match request {
            MasterRequest::Heartbeat { sessions, newer_than, acked, .. } => {
                (sessions, newer_than, acked)
            }
            MasterRequest::HandOn { client, orphans, used, serial: _ } => {
                self.0.handed_on.borrow_mut().push((client, orphans));
                *self.0.used.borrow_mut() = used;
                return if self.0.hears.get() {
                    Ok(MasterReply::Done)
                } else {
                    Err(RpcError::TimedOut { addr: "the master".into() })
                };
            }
            other => panic!("{other:?}"),
        };
        let at = self.0.now.get();
        self.0.asked.borrow_mut().push(Asked { at, sessions, newer_than, acked });
        if let Some(answer) = &*self.0.at_once.borrow() {
            return answer.clone();
        }
        let (answer, answered) = oneshot::channel();
        self.0.held.borrow_mut().push(answer);
        answered.await.expect("the test answers")
    }
}

struct Flag(AtomicBool);

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// A running keeper and its environment.
struct Rig {
    world: Rc<World>,
    keeper: Arc<Keeper>,
    woken: Arc<Flag>,
    work: Pin<Box<dyn Future<Output = ()>>>,
}

impl Rig {
    fn new() -> Rig {
        let world = Rc::<World>::default();
        let keeper =
            Arc::new(Keeper::new(view(1), KeeperTiming::for_lease(Duration::from_secs(1))));
        let kept = keeper.clone();
        let outside = Outside(world.clone());
        let work = Box::pin(async move { kept.keep(&outside).await });
        Rig { world, keeper, woken: Arc::new(Flag(AtomicBool::new(true))), work }
    }

    /// Makes a rig with a master that answers every heartbeat at once.
    fn answering(answer: Answer) -> Rig {
        let rig = Rig::new();
        *rig.world.at_once.borrow_mut() = Some(answer);
        rig
    }

    fn open(&self, client: u32) -> Arc<SessionGate> {
        let gate = Arc::new(SessionGate::new(ClientId(client), Arc::new(view(1)), 0));
        self.keeper.open(gate.clone());
        gate
    }

    /// Polls the keeper until no task or event wakes it any more.
    fn settle(&mut self) {
        let waker = Waker::from(self.woken.clone());
        while self.woken.0.swap(false, Ordering::SeqCst) {
            let polled = self.work.as_mut().poll(&mut Context::from_waker(&waker));
            assert!(polled.is_pending(), "a keeper never ends");
        }
    }

    /// Lets `time` pass, and runs the keeper whenever a timer wakes it.
    fn pass(&mut self, time: Duration) {
        let end = self.world.now.get() + time;
        loop {
            self.settle();
            let next = self.world.timers.borrow_mut().pop_first();
            match next {
                Some(((due, _), waker)) if due <= end => {
                    self.world.now.set(due.max(self.world.now.get()));
                    waker.wake();
                }
                next => {
                    self.world.timers.borrow_mut().extend(next);
                    break;
                }
            }
        }
        self.world.now.set(end);
        self.settle();
    }

    /// Gives the answer to the heartbeat that the keeper sent last.
    fn answer(&mut self, answer: Answer) {
        let held = self.world.held.borrow_mut().pop().expect("a question is held");
        held.send(answer).expect("the keeper waits for the answer");
        self.settle();
    }

    fn count(&self) -> usize {
        self.world.asked.borrow().len()
    }

    /// Returns the time of the keeper's last heartbeat, and the sessions in it, each with the view in which its
    /// operations are pinned.
    fn last(&self) -> (Duration, Vec<(u32, u64)>) {
        let asked = self.world.asked.borrow();
        let last = asked.last().expect("the keeper has asked");
        (last.at, last.sessions.iter().map(|p| (p.client.0, p.pinned_by)).collect())
    }
}

fn view(number: u64) -> View {
    let member = Member {
        node: MnId(0),
        identity: 7,
        control: "somewhere".into(),
        tcp: None,
        shm: None,
        verbs: None,
        pool_bytes: 1 << 40,
    };
    let place = |offset| PoolPlace { node: MnId(0), offset };
    let view = View {
        number,
        cluster: ClusterId::from_word(1).unwrap(),
        hash_key: HashKey::new([7; 16]),
        geometry: Geometry::default(),
        members: vec![member],
        regions: vec![Region::replicated(vec![place(1 << 32)], 1)],
        directory: vec![0],
        subtables: vec![Subtable::new(0, vec![place(0)])],
        change: None,
    };
    view.check().unwrap();
    view
}

fn renewed(view: impl Into<Option<View>>, expelled: &[u32]) -> Answer {
    let expelled = expelled.iter().copied().map(ClientId).collect();
    let view = view.into().map(ViewUpdate::from);
    let epochs = ClusterEpochs::default();
    Ok(MasterReply::Heartbeat {
        view,
        expelled,
        epochs,
        mark: 0,
        short: 0,
        spared: None,
        lease_ms: 1_000,
        behind_ms: 0,
    })
}

fn pinned(oldest: u64) -> PinnedOperations {
    PinnedOperations { oldest: Some(oldest), suspended: 0 }
}

const IDLE: PinnedOperations = PinnedOperations { oldest: None, suspended: 0 };

#[test]
fn sessions_are_renewed_as_soon_as_the_master_lets_go_of_its_answer() {
    let mut rig = Rig::new();
    rig.pass(1000 * MS);
    assert_eq!(rig.count(), 0, "there is nobody to speak for");
    rig.open(5);
    rig.settle();
    assert_eq!(rig.last(), (1000 * MS, vec![(5, 1)]));
    assert_eq!(rig.world.asked.borrow()[0].newer_than, 1);
    for round in 1..4 {
        rig.pass(250 * MS);
        assert_eq!(rig.count(), round, "its answer is held");
        rig.answer(renewed(None, &[]));
        assert_eq!((rig.count(), rig.last().0), (round + 1, (1000 + 250 * round as u32) * MS));
    }
}

fn block(number: u32) -> Orphan {
    let order = Geometry::default().max_order();
    Orphan {
        block: BlockId { region: 0, frame: number << order, order },
        owner: ClientId(5),
        class: SizeClass::from_code(1).unwrap(),
        first: 0,
        base: Some(0),
        marked: Some(1),
    }
}

#[test]
fn what_an_older_operation_frees_is_told() {
    for is_marking in [false, true] {
        let gate = SessionGate::new(ClientId(5), Arc::new(view(1)), 1);
        let pinned = |oldest| gate.publish(PinnedOperations { oldest, suspended: 0 });
        pinned(Some(0));
        gate.publish_epoch(2);
        // An operation of the second epoch has freed an object; after that an operation of the first epoch frees
        // another one.
        gate.freed.publish_older(gate.local_epoch());
        assert!(!is_marking || gate.freed.may_set_free());
        gate.freed.publish_older(0);
        pinned(None);
        let told = || (gate.heartbeat().pinned_in, gate.heartbeat().frees_in);
        assert_eq!(told(), (2, 1), "{is_marking}");
        gate.freed.publish(is_marking.then_some(0));
        assert_eq!(told(), if is_marking { (2, 1) } else { (2, 2) });
        assert!(gate.freed.may_set_free());
        gate.freed.publish(None);
        assert_eq!(told(), (2, 2));
    }
}

/// If the objects were revoked, a comparison with the index would set the bits that the session is just setting.
#[test]
fn what_is_being_marked_is_waited_for_however_long_it_takes() {
    for is_marking in [false, true] {
        let gate = SessionGate::new(ClientId(5), Arc::new(view(1)), 1);
        gate.freed.publish(Some(0));
        assert!(!is_marking || gate.freed.may_set_free());
        for epoch in 2..100 {
            gate.publish_epoch(epoch);
            gate.heartbeat();
        }
        assert_eq!(gate.heartbeat().frees_in, if is_marking { 1 } else { 99 });
        assert_eq!(gate.freed.may_set_free(), is_marking);
    }
}

#[test]
fn what_a_session_has_no_use_for_is_handed_on_at_once() {
    let mut rig = Rig::new();
    let gate = rig.open(5);
    rig.pass(10 * MS);
    gate.offer(vec![block(1)], vec![block(2), block(3)]);
    rig.pass(10 * MS);
    assert_eq!(*rig.world.handed_on.borrow(), [(ClientId(5), vec![block(2), block(3)])]);
    assert_eq!(*rig.world.used.borrow(), [block(2).block, block(3).block]);
    // The blocks are handed on again until the master has acknowledged them.
    rig.world.hears.set(true);
    rig.answer(renewed(None, &[]));
    rig.pass(100 * MS);
    assert_eq!(rig.world.handed_on.borrow().len(), 2);
    rig.answer(renewed(None, &[]));
    rig.pass(100 * MS);
    assert_eq!(rig.world.handed_on.borrow().len(), 2);
    assert_eq!(gate.offers.take_back(), [block(2).block, block(3).block]);
    // Blocks that the session takes back before they are handed on stay with the session.
    gate.offer(vec![], vec![block(1)]);
    assert_eq!(gate.offers.take_back(), []);
    rig.pass(100 * MS);
    assert_eq!(rig.world.handed_on.borrow().len(), 2);
}

/// Returns an answer to a heartbeat with a call for memory, whose number is `short`.
fn called(short: u64) -> Result<MasterReply, RpcError> {
    called_but(short, None)
}

/// Returns an answer to a heartbeat with a call for memory, for which the session `spared` hands on nothing.
fn called_but(short: u64, spared: Option<ClientId>) -> Result<MasterReply, RpcError> {
    match renewed(None, &[]) {
        Ok(MasterReply::Heartbeat { view, expelled, epochs, mark, .. }) => {
            Ok(MasterReply::Heartbeat {
                view,
                expelled,
                epochs,
                mark,
                short,
                spared,
                lease_ms: 1_000,
                behind_ms: 0,
            })
        }
        other => panic!("{other:?}"),
    }
}

/// A session that has found memory makes an offer, from which blocks are handed on for the call for memory that came
/// meanwhile. But the keeper delays the call's acknowledgement for that offer for a limited time only.
#[test]
fn a_call_waits_for_a_session_that_looks_for_memory_itself() {
    let acked = |rig: &Rig| rig.world.asked.borrow().last().unwrap().acked;
    for ends in [true, false] {
        let mut rig = Rig::new();
        rig.world.hears.set(true);
        let looking = rig.open(5);
        let other = rig.open(6);
        other.offer(vec![block(7)], vec![]);
        assert_eq!(looking.offers.take_back(), []);
        rig.pass(10 * MS);
        rig.answer(called(17));
        assert_eq!(*rig.world.handed_on.borrow(), [(ClientId(6), vec![block(7)])]);
        rig.pass(60 * MS);
        assert_eq!(acked(&rig), 0);
        if ends {
            looking.offer((1..10).map(block).collect(), vec![]);
            rig.answer(called(17));
            rig.pass(20 * MS);
            assert_eq!(rig.world.handed_on.borrow()[1], (ClientId(5), vec![block(1), block(2)]));
            assert_eq!(acked(&rig), 17);
            continue;
        }
        for _ in 0..4 {
            rig.answer(called(17));
            rig.pass(100 * MS);
        }
        assert_eq!(acked(&rig), 17, "it was waited for long enough");
        assert_eq!(rig.world.handed_on.borrow().len(), 1);
        // Blocks of a later offer are handed on for the next call for memory.
        looking.offer(vec![block(1)], vec![]);
        rig.answer(called(0));
        rig.pass(100 * MS);
        assert_eq!(rig.world.handed_on.borrow().len(), 1);
        rig.answer(called(18));
        assert_eq!(rig.world.handed_on.borrow()[1], (ClientId(5), vec![block(1)]));
    }
}

/// The only session that is short of memory keeps what it could spare, for its own evacuation.
#[test]
fn nothing_of_the_only_session_that_is_short_is_handed_on() {
    let mut rig = Rig::new();
    rig.world.hears.set(true);
    for (session, first) in [(5, 1), (6, 11)] {
        rig.open(session).offer((first..first + 9).map(block).collect(), vec![]);
    }
    rig.pass(10 * MS);
    rig.answer(called_but(17, Some(ClientId(5))));
    rig.pass(100 * MS);
    assert_eq!(*rig.world.handed_on.borrow(), [(ClientId(6), vec![block(11), block(12)])]);
    assert_eq!(rig.world.asked.borrow().last().unwrap().acked, 17);
    rig.answer(called(18));
    let handed_on = rig.world.handed_on.borrow();
    assert!(handed_on[1..].iter().any(|(client, _)| *client == ClientId(5)), "{handed_on:?}");
}

/// A session at work gives a part of its blocks for every call for memory; a session that was idle since the first call
/// gives all the rest for the second call.
// Promise MEM-21
#[test]
fn what_an_idle_session_can_spare_is_handed_on_by_the_second_call() {
    for is_idle in [true, false] {
        let mut rig = Rig::new();
        rig.world.hears.set(true);
        let gate = rig.open(5);
        gate.offer((1..10).map(block).collect(), vec![]);
        rig.pass(10 * MS);
        rig.answer(called(17));
        rig.pass(100 * MS);
        assert_eq!(*rig.world.handed_on.borrow(), [(ClientId(5), vec![block(1), block(2)])]);
        if !is_idle {
            assert_eq!(gate.offers.take_back().len(), 2);
            gate.offer((3..10).map(block).collect(), vec![]);
        }
        rig.answer(called(18));
        rig.pass(100 * MS);
        let rest = if is_idle { 3..10 } else { 3..4 };
        assert_eq!(rig.world.handed_on.borrow()[1], (ClientId(5), rest.map(block).collect()));
    }
}

#[test]
fn what_a_session_can_spare_is_handed_on_once_for_every_call() {
    let mut rig = Rig::new();
    let gate = rig.open(5);
    gate.offer((1..10).map(block).collect(), vec![]);
    rig.pass(10 * MS);
    assert!(rig.world.handed_on.borrow().is_empty(), "nobody is short");
    // The master does not acknowledge the blocks, so they are handed on again, and the keeper does not acknowledge the
    // call for memory yet.
    rig.answer(called(17));
    let acked = |rig: &Rig| rig.world.asked.borrow().last().unwrap().acked;
    assert_eq!(*rig.world.handed_on.borrow(), [(ClientId(5), vec![block(1), block(2)])]);
    assert_eq!(acked(&rig), 0);
    rig.world.hears.set(true);
    rig.answer(called(17));
    rig.pass(100 * MS);
    assert_eq!(acked(&rig), 17);
    assert_eq!(rig.world.handed_on.borrow().len(), 2);
    // Blocks of a later offer are kept until the next call for memory.
    assert_eq!(gate.offers.take_back(), [block(1).block, block(2).block]);
    assert_eq!(gate.offers.take_back(), []);
    gate.offer(vec![block(3)], vec![]);
    rig.pass(100 * MS);
    rig.answer(called(0));
    rig.pass(100 * MS);
    rig.answer(called(17));
    assert_eq!(rig.world.handed_on.borrow().len(), 2);
    assert_eq!(gate.offers.take_back(), []);
    rig.pass(100 * MS);
    rig.answer(called(18));
    assert_eq!(rig.world.handed_on.borrow().len(), 2, "it was taken back before");
    gate.offer(vec![block(3)], vec![]);
    rig.pass(100 * MS);
    rig.answer(called(19));
    assert_eq!(rig.world.handed_on.borrow()[2], (ClientId(5), vec![block(3)]));
    assert_eq!(gate.offers.take_back(), [block(3).block]);
}

#[test]
fn a_master_that_answers_at_once_is_not_flooded() {
    let broken = View { directory: Vec::new(), ..view(2) };
    let stranger = View { cluster: ClusterId::from_word(2).unwrap(), ..view(2) };
    for news in [None, Some(view(1)), Some(broken), Some(stranger)] {
        let mut rig = Rig::answering(renewed(news, &[]));
        let gate = rig.open(5);
        gate.publish(pinned(1));
        rig.pass(1000 * MS);
        assert!((20..=21).contains(&rig.count()), "{} questions", rig.count());
        assert_eq!((gate.view().number, rig.keeper.view().number), (1, 1));
    }
}

#[test]
fn a_new_session_does_not_wait_for_an_answer_that_is_held() {
    let mut rig = Rig::new();
    rig.open(5);
    rig.pass(100 * MS);
    rig.open(6);
    rig.settle();
    assert_eq!(rig.last(), (100 * MS, vec![(5, 1), (6, 1)]));
    // Many new sessions cause one heartbeat every 10 ms, not one heartbeat each.
    let before = rig.count();
    for client in 7..107 {
        rig.open(client);
        rig.pass(MS);
    }
    rig.pass(10 * MS);
    assert!((10..=12).contains(&(rig.count() - before)), "{} questions", rig.count() - before);
    assert_eq!(rig.last().1.len(), 102);
}

#[test]
fn a_view_is_acknowledged_once_no_operation_acts_by_an_older_one() {
    let mut rig = Rig::new();
    let busy = rig.open(5);
    let idle = rig.open(6);
    rig.pass(100 * MS);
    busy.publish(pinned(busy.local_epoch()));
    rig.answer(renewed(view(2), &[]));
    for gate in [&busy, &idle] {
        assert_eq!(gate.newer_view(1).map(|view| view.number), Some(2));
    }
    assert_eq!(rig.keeper.view().number, 2);
    rig.pass(20 * MS);
    assert_eq!(rig.last().1, [(5, 1), (6, 2)], "the lease lives meanwhile");
    let now = rig.world.now.get();
    let before = rig.count();
    busy.publish(pinned(busy.local_epoch()));
    rig.pass(5 * MS);
    assert_eq!((rig.count(), rig.last().1), (before + 1, vec![(5, 2), (6, 2)]));
    assert!(rig.last().0 <= now + MS, "the keeper looks every millisecond");
    assert_eq!(rig.world.asked.borrow().last().unwrap().newer_than, 2);
}

#[test]
fn sessions_that_are_idle_acknowledge_at_once() {
    let mut rig = Rig::new();
    rig.open(5).publish(IDLE);
    rig.pass(100 * MS);
    rig.answer(renewed(view(2), &[]));
    assert_eq!((rig.count(), rig.last()), (2, (100 * MS, vec![(5, 2)])));
}

#[test]
fn a_switch_is_acknowledged_when_nobody_has_to_look_any_more() {
    let frozen = || {
        let mut frozen = view(1);
        frozen.members.push(Member { node: MnId(1), ..frozen.members[0].clone() });
        let joining = PoolPlace { node: MnId(1), offset: 0 };
        let gain = NewReplica { of: 0, joining, leaving: None };
        let frozen = frozen.growing(&[gain], &[]);
        frozen.check().unwrap();
        frozen
    };
    let mut rig = Rig::new();
    let gate = rig.open(5);
    rig.settle();
    gate.publish(PinnedOperations { oldest: None, suspended: 1 });
    rig.answer(renewed(frozen(), &[]));
    assert_eq!(rig.last().1, [(5, 2)], "who is stopped acts by nothing");
    rig.answer(renewed(frozen().advanced().advanced(), &[]));
    rig.pass(20 * MS);
    let before = rig.count();
    rig.pass(100 * MS);
    assert_eq!(rig.count(), before);
    assert!(rig.world.asked.borrow().last().unwrap().sessions[0].has_suspended);
    gate.publish(IDLE);
    rig.pass(2 * MS);
    assert_eq!(rig.count(), before + 1);
    assert!(!rig.world.asked.borrow().last().unwrap().sessions[0].has_suspended);
}

/// A view that comes with a new session reaches another session only with an answer about that other session. A node of
/// this view possibly joined after the other session was fenced, recovered and forgotten, and would not know of the
/// fence.
// Promise CHG-26: A forgotten fenced session hears of no later node.
#[test]
fn a_view_that_comes_with_a_session_reaches_the_others_once_they_are_known_to_live() {
    for is_fenced in [false, true] {
        let mut rig = Rig::new();
        let old = rig.open(5);
        let other = rig.open(6);
        rig.settle();
        let new = Arc::new(SessionGate::new(ClientId(7), Arc::new(view(3)), 0));
        rig.keeper.open(new.clone());
        let views = || [&old, &other, &new].map(|gate| gate.view().number);
        assert_eq!((views(), rig.keeper.view().number), ([1, 1, 3], 3));
        // The answer belongs to a heartbeat that was sent before the view came.
        rig.answer(renewed(None, &[]));
        assert_eq!(views(), [1, 1, 3]);
        rig.pass(20 * MS);
        assert_eq!(rig.last().1, [(5, 1), (6, 1), (7, 3)]);
        let asked = rig.world.asked.borrow().last().unwrap().newer_than;
        assert_eq!(asked, 1, "the master is to answer at once");
        // A session that begins with an older view than the keeper's is not named in the heartbeat that is being
        // answered.
        let late = rig.open(8);
        rig.answer(renewed(view(3), if is_fenced { &[5] } else { &[] }));
        assert_eq!((old.is_expelled(), other.is_expelled()), (is_fenced, false));
        assert_eq!(views(), if is_fenced { [1, 3, 3] } else { [3, 3, 3] });
        assert_eq!(late.view().number, 1);
        rig.pass(20 * MS);
        let asked = rig.world.asked.borrow().last().unwrap().newer_than;
        assert_eq!(asked, 1, "the master is to answer at once");
        rig.answer(renewed(view(3), &[]));
        assert_eq!(late.view().number, 3);
        assert_eq!(views(), if is_fenced { [1, 3, 3] } else { [3, 3, 3] });
    }
}

/// A view that other sessions have not acknowledged yet does not make the keeper send more heartbeats to a master that
/// does not answer.
#[test]
fn a_view_that_waits_for_an_answer_is_no_reason_to_ask_again() {
    let mut rig = Rig::new();
    rig.open(5);
    rig.settle();
    rig.keeper.open(Arc::new(SessionGate::new(ClientId(7), Arc::new(view(3)), 0)));
    rig.pass(20 * MS);
    let before = rig.count();
    rig.pass(200 * MS);
    assert_eq!(rig.count(), before);
}

#[test]
fn nothing_ends_while_the_master_is_away() {
    let mut rig = Rig::answering(Err(RpcError::Closed { addr: "master".into() }));
    let gate = rig.open(5);
    rig.pass(3600 * 1000 * MS);
    let gaps: Vec<Duration> = {
        let asked = rig.world.asked.borrow();
        asked.windows(2).map(|pair| pair[1].at - pair[0].at).collect()
    };
    assert_eq!(gaps[..7], [5, 10, 20, 40, 80, 160, 200].map(|ms| ms * MS));
    assert!(gaps[7..].iter().all(|gap| *gap == 200 * MS));
    assert!(!gate.is_expelled());
    *rig.world.at_once.borrow_mut() = None;
    rig.pass(200 * MS);
    rig.answer(renewed(view(2), &[]));
    assert_eq!((gate.view().number, rig.last().1), (2, vec![(5, 2)]));
}

#[test]
fn who_is_fenced_hears_of_it_and_holds_up_nobody() {
    let mut rig = Rig::new();
    let out = rig.open(5);
    let other = rig.open(6);
    out.publish(pinned(1));
    rig.pass(100 * MS);
    rig.answer(renewed(view(2), &[5, 99]));
    assert!(out.is_expelled() && !other.is_expelled());
    rig.pass(50 * MS);
    assert_eq!(rig.last().1, [(6, 2)]);
    rig.answer(renewed(None, &[6]));
    let before = rig.count();
    rig.pass(1000 * MS);
    assert_eq!(rig.count(), before, "nobody is left");
}

#[test]
fn who_has_left_is_not_named_and_not_confused_with_who_comes() {
    let mut rig = Rig::new();
    let left = rig.open(5);
    rig.open(6);
    rig.pass(100 * MS);
    rig.keeper.close(ClientId(5));
    let new = rig.open(7);
    // The answer to the heartbeat that still names the closed session comes late.
    rig.answer(renewed(None, &[5]));
    rig.pass(100 * MS);
    assert_eq!(rig.last().1, [(6, 1), (7, 1)]);
    assert!(!left.is_expelled() && !new.is_expelled());
    rig.keeper.close(ClientId(6));
    rig.keeper.close(ClientId(7));
    rig.answer(renewed(None, &[]));
    let before = rig.count();
    rig.pass(1000 * MS);
    assert_eq!(rig.count(), before);
}

/// The master answers with differences between views. After one that does not lead to a valid view, the keeper asks for
/// a whole view.
// Promise CHG-17
#[test]
fn differences_are_applied_and_those_that_do_not_fit_are_replaced_by_a_whole_view() {
    let grown = |number: u64, nodes: u16| {
        let member = |n| Member { node: MnId(n), ..view(1).members[0].clone() };
        View { number, members: (0..nodes).map(member).collect(), ..view(1) }
    };
    let told = |update: ViewUpdate| -> Answer {
        let expelled = Vec::new();
        let epochs = ClusterEpochs::default();
        Ok(MasterReply::Heartbeat {
            view: Some(update),
            expelled,
            epochs,
            mark: 0,
            short: 0,
            spared: None,
            lease_ms: 1_000,
            behind_ms: 0,
        })
    };
    let mut rig = Rig::new();
    let gate = rig.open(5);
    rig.settle();
    rig.answer(told(ViewUpdate::to(&grown(2, 2), Some(&view(1)))));
    assert_eq!(*gate.view(), grown(2, 2));
    // A difference from another view than the keeper's, and a difference to an invalid view.
    let without_primary = View { members: Vec::new(), ..view(3) };
    for misfit in [
        ViewUpdate::to(&grown(4, 3), Some(&grown(3, 1))),
        ViewUpdate::to(&without_primary, Some(&grown(2, 2))),
    ] {
        assert!(matches!(misfit, ViewUpdate::Difference(_)));
        rig.pass(100 * MS);
        let before = rig.count();
        rig.answer(told(misfit));
        rig.pass(100 * MS);
        assert_eq!((gate.view().number, rig.count()), (2, before + 1));
        assert_eq!(rig.world.asked.borrow().last().unwrap().newer_than, 0, "told whole, please");
        rig.answer(renewed(grown(2, 2), &[]));
        rig.pass(100 * MS);
        assert_eq!(rig.world.asked.borrow().last().unwrap().newer_than, 2);
    }
    rig.answer(told(ViewUpdate::to(&grown(4, 3), None)));
    assert_eq!(*gate.view(), grown(4, 3));
    // If a session has brought a newer view meanwhile, a difference from the older one is ignored, without an error.
    let newer = Arc::new(SessionGate::new(ClientId(6), Arc::new(grown(6, 3)), 0));
    rig.keeper.open(newer);
    for shown in [4, 6] {
        rig.answer(told(ViewUpdate::to(&grown(7, 2), Some(&grown(4, 3)))));
        assert_eq!(gate.view().number, shown);
        rig.pass(100 * MS);
        assert_eq!(rig.world.asked.borrow().last().unwrap().newer_than, shown);
    }
    rig.answer(told(ViewUpdate::to(&grown(7, 2), Some(&grown(6, 3)))));
    assert_eq!(*gate.view(), grown(7, 2));
}
