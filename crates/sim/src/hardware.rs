//! The machines of a testbed: which process runs on which machine, and for how long processes use the parts of
//! machines.

use std::cell::RefCell;

use fusee_core::verbs::{ClientId, MnId};

use crate::engine::{Nanos, ProcessId, Sim};
use crate::stations::{BusyTime, PostedTotals, TestbedMachines};
use crate::testbed::Testbed;

/// A machine of the testbed, either for client processes or a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MachineId(usize);

/// The machines of the testbed with their processes. Without a testbed, the machines have no limits.
pub struct SimHardware {
    sim: Sim,
    machines: RefCell<TestbedMachines>,
}

impl SimHardware {
    pub(crate) fn new(sim: &Sim, testbed: Option<Testbed>) -> SimHardware {
        let testbed = testbed.unwrap_or(Testbed::UNLIMITED);
        SimHardware { sim: sim.clone(), machines: RefCell::new(TestbedMachines::new(testbed)) }
    }

    /// Replaces all machines by unused machines of this testbed.
    pub(crate) fn replace(&self, testbed: Option<Testbed>) {
        let testbed = testbed.unwrap_or(Testbed::UNLIMITED);
        self.machines.replace(TestbedMachines::new(testbed));
    }

    /// Calls `f` with the machines of the testbed.
    pub(crate) fn on_machines<R>(&self, f: impl FnOnce(&mut TestbedMachines) -> R) -> R {
        f(&mut self.machines.borrow_mut())
    }

    /// Returns the time that a message takes on a testbed between a client and a switch, or between a switch and a
    /// node.
    pub(crate) fn half_way(&self) -> Nanos {
        self.on_machines(|machines| machines.testbed().one_way_ns / 2)
    }

    /// Adds a machine for client processes. A client process that is not placed has a machine to itself.
    pub fn machine(&self) -> MachineId {
        MachineId(self.on_machines(|machines| machines.add_for_clients()))
    }

    /// Adds a server machine with this number of cores that serve requests.
    pub fn server(&self, name: &str, cores: usize) -> MachineId {
        MachineId(self.on_machines(|machines| machines.add(name.into(), cores)))
    }

    /// Returns the machine of a memory node.
    pub fn machine_of(&self, node: MnId) -> MachineId {
        MachineId(self.on_machines(|machines| machines.node(node)))
    }

    /// Waits for some time.
    pub async fn pause(&self, time: Nanos) {
        self.wait_until(self.sim.now() + time).await;
    }

    /// Places the sessions that this process opens later on this machine.
    pub fn place(&self, process: ProcessId, machine: MachineId) {
        self.on_machines(|machines| machines.place(process, machine.0));
    }

    /// Occupies a session's thread for the CPU time of one operation. To be called before the operation begins.
    pub async fn work(&self, session: ClientId) {
        let done = self.on_machines(|machines| {
            let time = machines.testbed().operation_ns;
            machines.work(session, self.sim.now(), time)
        });
        self.wait_until(done).await;
    }

    /// Sends a session's request to a server and waits for the reply. Both messages use the NICs of both machines. The
    /// request occupies a core of the server for `takes`. Cores serve requests in order of arrival.
    pub async fn call<R>(
        &self,
        session: ClientId,
        server: MachineId,
        takes: Nanos,
        bytes: MessageLengths,
        serve: impl FnOnce() -> R,
    ) -> R {
        let now = || self.sim.now();
        let there = self.on_machines(|m| m.ask(session, bytes.request, now()));
        self.wait_until(there).await;
        let done = self.on_machines(|m| m.work_on(server.0, bytes.request, takes, now()));
        self.wait_until(done).await;
        let reply = serve();
        let back = self.on_machines(|m| m.reply(server.0, bytes.reply, now()));
        self.wait_until(back).await;
        let known = self.on_machines(|m| m.hear_reply(session, bytes.reply, now()));
        self.wait_until(known).await;
        reply
    }

    async fn wait_until(&self, then: Nanos) {
        let now = self.sim.now();
        if then > now {
            self.sim.sleep(then - now).await;
        }
    }

    /// Returns the numbers of verbs and bytes that sessions on the testbed have posted since the last call.
    pub fn take_posted(&self) -> PostedTotals {
        self.on_machines(|machines| machines.take_posted())
    }

    /// Returns the time for which each part of the testbed was busy since the last call of this function.
    pub fn take_busy(&self) -> Vec<BusyTime> {
        self.on_machines(|machines| machines.take_busy())
    }
}

/// Lengths of a request and of its reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MessageLengths {
    /// Bytes of the request.
    pub request: u64,
    /// Bytes of the reply.
    pub reply: u64,
}
