//! Who runs on which machine of a testbed, and for how long.

use fusee_core::verbs::ClientId;

use crate::cluster::{Client, Cluster};
use crate::engine::ProcessId;
use crate::stations::Busy;

/// A machine of the testbed that client processes run on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MachineId(usize);

impl Cluster {
    /// One more machine of the testbed, for client processes. Those that are placed nowhere have one each.
    pub fn machine(&self) -> MachineId {
        MachineId(self.network().on_machines(|machines| machines.add_for_clients()))
    }

    /// The sessions that this process opens from now on run on this machine.
    pub fn place(&self, process: ProcessId, machine: MachineId) {
        self.network().on_machines(|machines| machines.place(process, machine.0));
    }

    /// A session works as long as an operation takes its thread, before it begins with one.
    pub async fn work(&self, session: ClientId) {
        let now = self.sim().now();
        let done = self.network().on_machines(|machines| {
            let time = machines.testbed().operation_ns;
            machines.work(session, now, time)
        });
        if done > now {
            self.sim().sleep(done - now).await;
        }
    }

    /// For how long each part of the testbed was busy since this was asked last.
    pub fn take_busy(&self) -> Vec<Busy> {
        self.network().on_machines(|machines| machines.take_busy())
    }

    /// A client process with a session, on a machine of the testbed.
    ///
    /// # Panics
    /// If the master does not open one.
    pub fn client_on(&self, machine: MachineId) -> Client {
        let process = self.client_process();
        self.place(process, machine);
        self.client_in(process)
    }
}
