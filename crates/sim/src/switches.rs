//! Switches on the links between clients and memory nodes.
//!
//! A switch is half-way between a client and a node, and both verbs and answers pass it. The adversarial network has
//! several switches, and each link has one of them or none. These switches forget and err at random: they do anything
//! that a correct switch is allowed to do, whatever they know. A testbed has one switch, which makes no mistakes. In
//! some tests switches also do what is forbidden, see [`unsound_cas`](crate::unsound_cas).

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};

use fusee_core::verbs::{ClientId, MnId, Verb, VerbOp};
use fusee_core::view::PoolPlace;
use fusee_switch::{
    CasAnswer, ForgetScope, Switch, SwitchConnection, SwitchCounts, SwitchDecision, SwitchRequest,
};

use crate::counts::{SimCounts, count};
use crate::engine::Nanos;
use crate::rng::Rng;
use crate::unsound_cas::{ForgedCas, Forger, UnsoundCas};

/// Time after which a held verb is offered to the switch again.
pub(crate) const HELD_NS: Nanos = 200;
/// The greatest number of times that a switch can hold the verbs of one lane.
pub(crate) const HELD_TIMES: u32 = 40;

/// The rates at which switches in an adversarial network make mistakes.
#[derive(Clone, Copy, Debug)]
pub struct SwitchMistakes {
    /// A switch forgets part of its knowledge before one of this many verbs; 0: never.
    pub forgets_one_in: usize,
    /// One of this many steerable verbs is sent to a wrong place; 0: none is. At the same rate, an
    /// [unsound](Switches::unsound) switch acts as if its knowledge were so old that slot words have recurred.
    pub errs_one_in: usize,
}

/// The switches of a network.
pub struct Switches {
    all: RefCell<Vec<Box<dyn Switch>>>,
    /// The switch of each link that was used so far; `None`: the link has no switch.
    links: RefCell<HashMap<(ClientId, MnId), Option<usize>>>,
    adversary: Option<SwitchAdversary>,
    /// The state of forbidden behaviour, if the switches have any.
    forger: RefCell<Option<Forger>>,
    /// The number of the next verb that passes a switch.
    number: Cell<u64>,
}

struct SwitchAdversary {
    mistakes: SwitchMistakes,
    rng: Rng,
    /// The places of the latest WRITEs that passed any of the switches.
    written: RefCell<VecDeque<PoolPlace>>,
}

/// The greatest number of WRITEs' places that the adversary remembers.
const WRITTEN: usize = 24;

impl Switches {
    /// Makes one switch, which all verbs pass.
    pub fn one(switch: Box<dyn Switch>) -> Switches {
        Switches::new(vec![switch], None)
    }

    /// Makes switches that err now and then. Each link has one of these switches, or none.
    pub fn adversarial(all: Vec<Box<dyn Switch>>, mistakes: SwitchMistakes, rng: Rng) -> Switches {
        Switches::new(all, Some(SwitchAdversary { mistakes, rng, written: RefCell::default() }))
    }

    fn new(all: Vec<Box<dyn Switch>>, adversary: Option<SwitchAdversary>) -> Switches {
        Switches {
            all: RefCell::new(all),
            links: RefCell::default(),
            adversary,
            forger: RefCell::default(),
            number: Cell::new(1),
        }
    }

    /// Adds this forbidden behaviour to the switches, if it is not `None`.
    pub fn unsound(self, unsound: Option<UnsoundCas>) -> Switches {
        let forger = unsound.map(|unsound| Forger::new(unsound, self.all.borrow().len()));
        Switches { forger: RefCell::new(forger), ..self }
    }

    /// Returns the sums of the counts of all switches.
    pub fn counts(&self) -> SwitchCounts {
        let mut sum = SwitchCounts::default();
        for counts in self.all.borrow().iter().map(|switch| switch.counts()) {
            sum.seen += counts.seen;
            sum.asked += counts.asked;
            sum.steered += counts.steered;
            sum.held += counts.held;
            sum.forgot += counts.forgot;
        }
        sum
    }

    /// Returns the total size of the switches' states, in bytes.
    pub fn bytes(&self) -> u64 {
        self.all.borrow().iter().map(|switch| switch.bytes().sum()).sum()
    }

    /// Reserves numbers for this many verbs, and returns the first one.
    pub(crate) fn number(&self, verbs: usize) -> u64 {
        self.number.replace(self.number.get() + verbs as u64)
    }

    /// Returns whether a link has a switch. Draws the link's switch at its first use.
    pub(crate) fn is_on(&self, client: ClientId, node: MnId) -> bool {
        self.on(client, node).is_some()
    }

    fn on(&self, client: ClientId, node: MnId) -> Option<usize> {
        let Some(adversary) = &self.adversary else { return Some(0) };
        let draw = || adversary.rng.below(self.all.borrow().len() + 1).checked_sub(1);
        *self.links.borrow_mut().entry((client, node)).or_insert_with(draw)
    }

    /// Passes a verb through the switch of its link. Returns `false` if the switch holds the verb. A steered verb gets
    /// a new offset.
    pub(crate) fn pass(
        &self,
        counts: &SimCounts,
        client: ClientId,
        verb: &mut Verb,
        bytes: &[u8],
        number: u64,
    ) -> bool {
        let Some(at) = self.on(client, verb.node) else { return true };
        let place = PoolPlace { node: verb.node, offset: verb.offset };
        let connection = connection(client, verb.node);
        let kind = match verb.op {
            VerbOp::Read { buf, steered: false } => fusee_switch::SwitchVerb::Read(buf.len),
            VerbOp::Read { buf, steered: true } => fusee_switch::SwitchVerb::Steered(buf.len),
            VerbOp::Write { buf } => fusee_switch::SwitchVerb::Write(buf.len, &bytes[buf.range()]),
            VerbOp::Cas { expected, swap, .. } => fusee_switch::SwitchVerb::Cas { expected, swap },
            VerbOp::Faa { .. } => fusee_switch::SwitchVerb::Faa,
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
        let request = SwitchRequest { connection, number, place, verb: kind };
        match self.all.borrow_mut()[at].request(&request) {
            SwitchDecision::Forward => {
                if let Some(forger) = &mut *self.forger.borrow_mut() {
                    let is_old = self.adversary.as_ref().is_some_and(SwitchAdversary::errs_now);
                    forger.request(at, number, verb, is_old);
                }
                true
            }
            SwitchDecision::Steer(offset) => {
                verb.offset = offset;
                true
            }
            SwitchDecision::Hold => {
                count(&counts.held_verbs);
                false
            }
        }
    }

    /// Passes the answer to a verb through the switch of its link.
    pub(crate) fn come_back(&self, client: ClientId, verb: &Verb, number: u64) {
        let Some(at) = self.on(client, verb.node) else { return };
        let VerbOp::Cas { found, .. } = verb.op else { return };
        if verb.result.is_ok() {
            let connection = connection(client, verb.node);
            self.all.borrow_mut()[at].answer(&CasAnswer { connection, number, found });
            if let Some(forger) = &mut *self.forger.borrow_mut() {
                forger.answer(at, verb);
            }
        }
    }

    /// Returns the change that a switch has made to the CAS with this number, if a switch has.
    pub(crate) fn forged(&self, number: u64) -> Option<ForgedCas> {
        self.forger.borrow().as_ref()?.forged(number)
    }

    fn forget(&self, at: usize, what: ForgetScope) {
        self.all.borrow_mut()[at].forget(what);
        if let (Some(forger), ForgetScope::All) = (&mut *self.forger.borrow_mut(), what) {
            forger.forget(at);
        }
    }
}

fn connection(client: ClientId, node: MnId) -> SwitchConnection {
    SwitchConnection(u64::from(client.0) << 16 | u64::from(node.0))
}

impl SwitchAdversary {
    /// Draws whether the switch of a connection forgets now, and which part of its knowledge.
    fn forgets(&self, connection: SwitchConnection) -> Option<ForgetScope> {
        let one_in = self.mistakes.forgets_one_in;
        let forgets = one_in > 0 && self.rng.one_in(one_in);
        forgets.then(|| self.rng.pick(&[ForgetScope::All, ForgetScope::Connection(connection)]))
    }

    fn errs_now(&self) -> bool {
        let one_in = self.mistakes.errs_one_in;
        one_in > 0 && self.rng.one_in(one_in)
    }

    /// Draws whether a steerable verb is sent to a wrong place, and which: the place of a recent WRITE, or any word in
    /// the pool or beyond it.
    fn errs(&self, verb: &Verb) -> Option<u64> {
        let mut written = self.written.borrow_mut();
        match verb.op {
            VerbOp::Write { .. } => {
                if written.len() == WRITTEN {
                    written.pop_front();
                }
                written.push_back(PoolPlace { node: verb.node, offset: verb.offset });
                None
            }
            VerbOp::Read { steered: true, .. } => {
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
