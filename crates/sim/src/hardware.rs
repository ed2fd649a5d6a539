//! Who runs on which machine of a testbed, and for how long.

use fusee_core::verbs::{ClientId, MnId};

use crate::cluster::{Client, Cluster};
use crate::engine::{Nanos, ProcessId};
use crate::network::Network;
use crate::stations::{Busy, Posted};

/// A machine of the testbed: one that client processes run on, or a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MachineId(usize);

impl Network {
    /// One more machine of the testbed, for client processes. Those that are placed nowhere have one each.
    pub fn machine(&self) -> MachineId {
        MachineId(self.on_machines(|machines| machines.add_for_clients()))
    }

    /// One more machine, with so many cores for what others ask of it.
    pub fn server(&self, name: &str, cores: usize) -> MachineId {
        MachineId(self.on_machines(|machines| machines.add(name.into(), cores)))
    }

    /// The machine of a memory node, with its cores.
    pub fn machine_of(&self, node: MnId) -> MachineId {
        MachineId(self.on_machines(|machines| machines.node(node)))
    }

    /// Nothing for so long.
    pub async fn pause(&self, time: Nanos) {
        self.wait_until(self.sim().now() + time).await;
    }

    /// The sessions that this process opens from now on run on this machine.
    pub fn place(&self, process: ProcessId, machine: MachineId) {
        self.on_machines(|machines| machines.place(process, machine.0));
    }

    /// A session works as long as an operation takes its thread, before it begins with one.
    pub async fn work(&self, session: ClientId) {
        let done = self.on_machines(|machines| {
            let time = machines.testbed().operation_ns;
            machines.work(session, self.sim().now(), time)
        });
        self.wait_until(done).await;
    }

    /// A session has a server do something, which takes a core of it so long, by messages over the NICs of both. It
    /// is done when the core has worked, in the order in which requests come.
    pub async fn call<R>(
        &self,
        session: ClientId,
        server: MachineId,
        takes: Nanos,
        bytes: Message,
        serve: impl FnOnce() -> R,
    ) -> R {
        let now = || self.sim().now();
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
        let now = self.sim().now();
        if then > now {
            self.sim().sleep(then - now).await;
        }
    }

    /// What sessions on the testbed have posted since this was asked last.
    pub fn take_posted(&self) -> Posted {
        self.on_machines(|machines| machines.take_posted())
    }

    /// For how long each part of the testbed was busy since this was asked last.
    pub fn take_busy(&self) -> Vec<Busy> {
        self.on_machines(|machines| machines.take_busy())
    }
}

/// How long a request is, and its reply, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message {
    /// To the server.
    pub request: u64,
    /// Back.
    pub reply: u64,
}

impl Cluster {
    /// A client process with a session, on a machine of the testbed.
    ///
    /// # Panics
    /// If the master does not open one.
    pub fn client_on(&self, machine: MachineId) -> Client {
        let process = self.client_process();
        self.network().place(process, machine);
        self.client_in(process)
    }
}
