//! Machines that lend memory without FUSEE's master and protocol: hardware for measurements of other systems.

use std::cell::Cell;

use fusee_core::verbs::{ClientId, MnId};

use crate::engine::{Nanos, ProcessId, Sim};
use crate::fabric::SimFabric;
use crate::hardware::MachineId;
use crate::network::{Network, NetworkOptions};

/// Memory nodes of a testbed that only lend memory, and clients with access to these nodes.
///
/// [`SimHardware::server`](crate::SimHardware::server) adds machines with processors that clients can
/// [call](crate::SimHardware::call).
pub struct Rack {
    sim: Sim,
    network: Network,
    nodes: Vec<MnId>,
    sessions: Cell<u32>,
}

impl Rack {
    /// Makes `memory_nodes` memory nodes, each with `pool_bytes` bytes of zeros.
    pub fn new(sim: &Sim, network: NetworkOptions, memory_nodes: u16, pool_bytes: u64) -> Rack {
        let network = Network::new(sim, network);
        let nodes: Vec<MnId> = (0..memory_nodes).map(MnId).collect();
        for node in &nodes {
            let process = sim.process(format!("memory node {node}"));
            network.memories().add(*node, process, vec![0; pool_bytes as usize]);
        }
        Rack { sim: sim.clone(), network, nodes, sessions: Cell::new(0) }
    }

    /// Returns the simulator run that the rack belongs to.
    pub fn sim(&self) -> &Sim {
        &self.sim
    }

    /// Returns the network, which has the pools of the memory nodes and the machines of the testbed.
    pub fn network(&self) -> &Network {
        &self.network
    }

    /// Returns the ids of the memory nodes.
    pub fn nodes(&self) -> &[MnId] {
        &self.nodes
    }

    /// Crashes a memory node after `delay`. The contents of its memory are lost.
    pub fn crash_after(&self, node: MnId, delay: Nanos) {
        let network = self.network.clone();
        self.sim.after(delay, move || network.memories().remove(node));
    }

    /// Makes a client process with one session, on this machine.
    pub fn client_on(&self, machine: MachineId) -> (ProcessId, SimFabric) {
        let number = self.sessions.get() + 1;
        self.sessions.set(number);
        let process = self.sim.process(format!("client {number}"));
        let client = ClientId(number);
        self.network.hardware().place(process, machine);
        self.network.hardware().on_machines(|machines| machines.seat(client, process));
        (process, SimFabric::new(&self.network, client))
    }
}

impl SimFabric {
    /// Returns the client whose fabric this is.
    pub fn client(&self) -> ClientId {
        self.client
    }
}

impl Drop for Rack {
    /// Drops all scheduled events. They hold the network, so this breaks the cycle of references.
    fn drop(&mut self) {
        self.sim.forget_events();
    }
}
