//! Switches on the links between clients and memory nodes.
//!
//! Half of the way from a client to a node its verbs pass a switch, and half of the way back the answers do. In the
//! adversarial network there are several of them, each link has one or none, and they forget and err at random: what
//! a switch may do whatever it knows, it does. On a testbed there is one, and it does what it should. What a switch
//! must not do, it does if a test wants it to: [`unsound`](crate::unsound).

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};

use fusee_core::verbs::{ClientId, MnId, Op, Verb};
use fusee_core::view::Place;
use fusee_switch::{Answer, Connection, Counts, Forget, Request, Switch, Verdict};

use crate::counts::{Counts as RunCounts, count};
use crate::engine::Nanos;
use crate::rng::Rng;
use crate::unsound::{Forged, Forger, Unsound};

/// So long a verb that is held waits before the switch is asked again.
pub(crate) const HELD_NS: Nanos = 200;
/// So often it is asked at most.
pub(crate) const HELD_TIMES: u32 = 40;

/// How wrong the switches of an adversarial network are.
#[derive(Clone, Copy, Debug)]
pub struct Mistakes {
    /// Before one of so many verbs they forget something; 0: never.
    pub forgets_one_in: usize,
    /// One of so many verbs that may be steered goes anywhere; 0: none. What [unsound](Switches::unsound) switches
    /// know is as often older than the words that it is made of.
    pub errs_one_in: usize,
}

/// The switches of a network.
pub struct Switches {
    all: RefCell<Vec<Box<dyn Switch>>>,
    /// Which one a link has, as far as that was drawn.
    links: RefCell<HashMap<(ClientId, MnId), Option<usize>>>,
    adversary: Option<Adversary>,
    /// What they do that no switch must do.
    forger: RefCell<Option<Forger>>,
    /// The next number of a verb.
    number: Cell<u64>,
}

struct Adversary {
    mistakes: Mistakes,
    rng: Rng,
    /// Where something was written lately.
    written: RefCell<VecDeque<Place>>,
}

/// Places that an adversary remembers.
const WRITTEN: usize = 24;

impl Switches {
    /// One that all verbs pass.
    pub fn one(switch: Box<dyn Switch>) -> Switches {
        Switches::new(vec![switch], None)
    }

    /// Some that are wrong now and then. Each link has one of them, or none.
    pub fn adversarial(all: Vec<Box<dyn Switch>>, mistakes: Mistakes, rng: Rng) -> Switches {
        Switches::new(all, Some(Adversary { mistakes, rng, written: RefCell::default() }))
    }

    fn new(all: Vec<Box<dyn Switch>>, adversary: Option<Adversary>) -> Switches {
        Switches {
            all: RefCell::new(all),
            links: RefCell::default(),
            adversary,
            forger: RefCell::default(),
            number: Cell::new(1),
        }
    }

    /// Besides, they do what no switch must do, if it is anything.
    pub fn unsound(self, unsound: Option<Unsound>) -> Switches {
        let forger = unsound.map(|unsound| Forger::new(unsound, self.all.borrow().len()));
        Switches { forger: RefCell::new(forger), ..self }
    }

    /// What all of them together have done.
    pub fn counts(&self) -> Counts {
        let mut sum = Counts::default();
        for counts in self.all.borrow().iter().map(|switch| switch.counts()) {
            sum.seen += counts.seen;
            sum.asked += counts.asked;
            sum.steered += counts.steered;
            sum.held += counts.held;
            sum.forgot += counts.forgot;
        }
        sum
    }

    /// Bytes that all of them take for what they know.
    pub fn bytes(&self) -> u64 {
        self.all.borrow().iter().map(|switch| switch.bytes().sum()).sum()
    }

    /// So many verbs get numbers, from this one on.
    pub(crate) fn number(&self, verbs: usize) -> u64 {
        self.number.replace(self.number.get() + verbs as u64)
    }

    /// Whether there is one on a link.
    pub(crate) fn is_on(&self, client: ClientId, node: MnId) -> bool {
        self.on(client, node).is_some()
    }

    fn on(&self, client: ClientId, node: MnId) -> Option<usize> {
        let Some(adversary) = &self.adversary else { return Some(0) };
        let draw = || adversary.rng.below(self.all.borrow().len() + 1).checked_sub(1);
        *self.links.borrow_mut().entry((client, node)).or_insert_with(draw)
    }

    /// A verb comes to the switch on its link. Whether it goes on; if it is steered, its offset has changed.
    pub(crate) fn pass(
        &self,
        counts: &RunCounts,
        client: ClientId,
        verb: &mut Verb,
        bytes: &[u8],
        number: u64,
    ) -> bool {
        let Some(at) = self.on(client, verb.node) else { return true };
        let place = Place { node: verb.node, offset: verb.offset };
        let connection = connection(client, verb.node);
        let kind = match verb.op {
            Op::Read { buf, steered: false } => fusee_switch::Verb::Read(buf.len),
            Op::Read { buf, steered: true } => fusee_switch::Verb::Steered(buf.len),
            Op::Write { buf } => fusee_switch::Verb::Write(buf.len, &bytes[buf.range()]),
            Op::Cas { expected, swap, .. } => fusee_switch::Verb::Cas { expected, swap },
            Op::Faa { .. } => fusee_switch::Verb::Faa,
        };
        if let Some(adversary) = &self.adversary {
            if let Some(what) = adversary.forgets(connection) {
                self.forget(at, what);
                count(&counts.forgotten);
            }
            if let Some(offset) = adversary.errs(verb) {
                count(&counts.steered_wrong);
                verb.offset = offset;
                return true;
            }
        }
        let request = Request { connection, number, place, verb: kind };
        match self.all.borrow_mut()[at].request(&request) {
            Verdict::Forward => {
                if let Some(forger) = &mut *self.forger.borrow_mut() {
                    let is_old = self.adversary.as_ref().is_some_and(Adversary::errs_now);
                    forger.request(at, number, verb, is_old);
                }
                true
            }
            Verdict::Steer(offset) => {
                verb.offset = offset;
                true
            }
            Verdict::Hold => {
                count(&counts.held_verbs);
                false
            }
        }
    }

    /// The answer to a verb comes to the switch on its link.
    pub(crate) fn come_back(&self, client: ClientId, verb: &Verb, number: u64) {
        let Some(at) = self.on(client, verb.node) else { return };
        let Op::Cas { found, .. } = verb.op else { return };
        if verb.result.is_ok() {
            let connection = connection(client, verb.node);
            self.all.borrow_mut()[at].answer(&Answer { connection, number, found });
            if let Some(forger) = &mut *self.forger.borrow_mut() {
                forger.answer(at, verb);
            }
        }
    }

    /// What has become of the verb of this number, if it is another one.
    pub(crate) fn forged(&self, number: u64) -> Option<Forged> {
        self.forger.borrow().as_ref()?.forged(number)
    }

    fn forget(&self, at: usize, what: Forget) {
        self.all.borrow_mut()[at].forget(what);
        if let (Some(forger), Forget::All) = (&mut *self.forger.borrow_mut(), what) {
            forger.forget(at);
        }
    }
}

fn connection(client: ClientId, node: MnId) -> Connection {
    Connection(u64::from(client.0) << 16 | u64::from(node.0))
}

impl Adversary {
    /// Perhaps a switch forgets something.
    fn forgets(&self, connection: Connection) -> Option<Forget> {
        let one_in = self.mistakes.forgets_one_in;
        let forgets = one_in > 0 && self.rng.one_in(one_in);
        forgets.then(|| self.rng.pick(&[Forget::All, Forget::Connection(connection)]))
    }

    fn errs_now(&self) -> bool {
        let one_in = self.mistakes.errs_one_in;
        one_in > 0 && self.rng.one_in(one_in)
    }

    /// Perhaps a verb that may be steered goes anywhere: to what somebody has written, or to any word, in the pool or
    /// beyond.
    fn errs(&self, verb: &Verb) -> Option<u64> {
        let mut written = self.written.borrow_mut();
        match verb.op {
            Op::Write { .. } => {
                if written.len() == WRITTEN {
                    written.pop_front();
                }
                written.push_back(Place { node: verb.node, offset: verb.offset });
                None
            }
            Op::Read { steered: true, .. } => {
                if !self.errs_now() {
                    return None;
                }
                let any = 8 * self.rng.below_u64(1 << 18);
                if written.is_empty() || self.rng.one_in(4) {
                    return Some(any);
                }
                Some(written[self.rng.below(written.len())].offset)
            }
            _ => None,
        }
    }
}
