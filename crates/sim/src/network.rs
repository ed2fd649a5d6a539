//! The network of a run, which joins memories, links and machines, and the times of verbs.
//!
//! The time of a verb comes from one of two models. *Delays* are random and adversarial: each link between a client and
//! a node has a pace that changes now and then by a factor of up to 64. On a [testbed](crate::Testbed), verbs queue up
//! for the testbed's [machines](crate::stations), and throughput in virtual time is meaningful.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use fusee_core::verbs::{ClientId, MnId};
use fusee_core::view::View;

use crate::check::checkers::MemoryCheckers;
use crate::damage::ReplicaDamage;
use crate::engine::{Nanos, Sim};
use crate::hardware::SimHardware;
use crate::links::SimLinks;
use crate::memories::SimMemories;
use crate::switches::Switches;
use crate::testbed::Testbed;

/// Time of a message over a link, in one direction, in nanoseconds, if there is no testbed.
const WIRE_NS: Nanos = 800;

/// Options of the network.
#[derive(Clone, Copy, Debug)]
pub struct NetworkOptions {
    /// The hardware whose limits decide the times, if any. With a testbed nothing is random: there are no delays, no
    /// torn verbs, no verbs that are given up, and no held links.
    pub testbed: Option<Testbed>,
    /// Whether latencies vary at random. If not, all latencies are equal.
    pub delays: bool,
    /// Whether some READs and WRITEs are cut into pieces.
    pub tearing: bool,
    /// Whether a stopped memory node stops executing verbs, as a software NIC does. With real NICs and over shared
    /// memory, verbs continue.
    pub nic_in_process: bool,
    /// Time after which a client without a completion treats the node as unreachable.
    pub verb_timeout_ns: Nanos,
    /// One of this many lanes (a batch's verbs for one node) loses its completion; 0: no lane does.
    pub lost_completions_one_in: usize,
    /// Whether verbs that a client has given up (because their link was held, or their node was stopped) still execute
    /// when they reach their node. Verbs of a fenced session never do.
    pub late_verbs: bool,
    /// Whether the client's processor executes verbs, as over shared memory: in the order in which they were posted,
    /// even for different nodes, and only while the client lives. Then links and NICs have no effect.
    pub immediate: bool,
    /// Whether a fence kills the process of the fenced session, on an [immediate](NetworkOptions::immediate) network.
    pub fences_kill: bool,
    /// Whether NICs execute the verbs, as over RDMA. There a WRITE, CAS or FAA would wait for a READ that is posted
    /// before it, so operations post their READs last where they are free to choose. One completion reports all verbs
    /// of a batch for one node: if one verb fails, the client does not know which of the verbs have executed.
    pub cards: bool,
    /// Whether no time passes: each poll of a waiting operation executes one piece of one of its verbs, and messages
    /// arrive after some idle steps. For tests that count steps ([`Stepper`](crate::Stepper)).
    pub stepwise: bool,
}

impl Default for NetworkOptions {
    fn default() -> NetworkOptions {
        NetworkOptions {
            testbed: None,
            delays: true,
            tearing: true,
            nic_in_process: false,
            verb_timeout_ns: 1_000_000,
            lost_completions_one_in: 0,
            late_verbs: false,
            immediate: false,
            fences_kill: false,
            cards: false,
            stepwise: false,
        }
    }
}

/// The memory nodes and the links to them. Clones share the network.
#[derive(Clone)]
pub struct Network(Rc<NetworkInner>);

struct NetworkInner {
    sim: Sim,
    options: Cell<NetworkOptions>,
    memories: Rc<SimMemories>,
    checkers: Rc<MemoryCheckers>,
    damage: ReplicaDamage,
    links: SimLinks,
    hardware: SimHardware,
    /// Clients whose processes must be killed because of a fence.
    condemned: RefCell<Vec<ClientId>>,
    /// The switches on the links, if there are any.
    switches: RefCell<Option<Rc<Switches>>>,
}

impl Network {
    pub(crate) fn new(sim: &Sim, options: NetworkOptions) -> Network {
        let memories = Rc::new(SimMemories::new(sim));
        let checkers = Rc::new(MemoryCheckers::new(&memories));
        Network(Rc::new(NetworkInner {
            sim: sim.clone(),
            options: Cell::new(options),
            damage: ReplicaDamage::new(sim, &memories, &checkers),
            memories,
            checkers,
            links: SimLinks::new(sim),
            hardware: SimHardware::new(sim, options.testbed),
            condemned: RefCell::default(),
            switches: RefCell::default(),
        }))
    }

    pub(crate) fn sim(&self) -> &Sim {
        &self.0.sim
    }

    /// Returns the memories of the memory nodes.
    pub fn memories(&self) -> &SimMemories {
        &self.0.memories
    }

    /// Returns the checkers of the memories.
    pub(crate) fn checkers(&self) -> &MemoryCheckers {
        &self.0.checkers
    }

    /// Returns the damage to replicas of live objects.
    pub fn damage(&self) -> &ReplicaDamage {
        &self.0.damage
    }

    /// Returns the links between clients and memory nodes.
    pub fn links(&self) -> &SimLinks {
        &self.0.links
    }

    /// Returns the machines of the testbed.
    pub fn hardware(&self) -> &SimHardware {
        &self.0.hardware
    }

    /// Puts switches on the links. An [immediate](NetworkOptions::immediate) network does not use the switches.
    pub fn put_switches(&self, switches: Switches) {
        self.0.switches.replace(Some(Rc::new(switches)));
    }

    /// Returns the switches, if there are any.
    pub fn switches(&self) -> Option<Rc<Switches>> {
        self.0.switches.borrow().clone()
    }

    /// Returns the current options.
    pub fn options(&self) -> NetworkOptions {
        self.0.options.get()
    }

    /// Sets the options of the network.
    pub fn set_options(&self, options: NetworkOptions) {
        let before = self.0.options.replace(options);
        if before.testbed != options.testbed {
            self.0.hardware.replace(options.testbed);
        }
    }

    /// Fences a client at a node: from then on none of the client's verbs executes there.
    pub fn fence(&self, node: MnId, client: ClientId) {
        let options = self.options();
        let is_new = self.0.memories.fence(node, client);
        if is_new && options.immediate && options.fences_kill {
            self.0.condemned.borrow_mut().push(client);
        }
    }

    /// Takes the list of clients that were fenced where fences kill. Their processes must not take another step.
    pub(crate) fn take_condemned(&self) -> Vec<ClientId> {
        self.0.condemned.take()
    }

    /// Attaches a session to the members of its newest view. The session's links to former members break.
    pub(crate) fn adopted(&self, client: ClientId, view: &View) {
        self.0.links.attach(client, &self.0.memories.nodes(), view);
    }

    /// Draws the time of a message over a link, in one direction.
    pub(crate) fn wire(&self, client: ClientId, node: MnId) -> Nanos {
        let options = self.options();
        if options.delays { self.0.links.draw_delay(client, node, WIRE_NS) } else { WIRE_NS }
    }
}
