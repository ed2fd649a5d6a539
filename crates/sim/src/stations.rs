//! The model of a testbed: stations at which verbs, messages and operations queue up.
//!
//! A *station* serves requests in the order of their arrival. A machine has one for what its NIC sends, one for what
//! the NIC receives, one for each atomic unit of the NIC, and its cores. Memory nodes and clients may share a
//! machine.
//!
//! ```text
//! client's machine            memory node's machine                    client's machine core -> transmit -> way ->
//! receive -> atomic unit or core -> transmit  -> way -> receive
//! ```
//!
//! A READ takes its bytes on the way back, a WRITE on the way there; each message has a header. Received bytes pass
//! through as they arrive: a free station is done when the last byte arrives. Nothing is random: equal runs are equal
//! to the nanosecond. The busy time of each station tells which of them saturates.

use std::collections::BTreeMap;

use fusee_core::verbs::{ClientId, MnId, Verb, VerbOp};

use crate::engine::{Nanos, ProcessId};
use crate::testbed::Testbed;

/// A queue with one server, or with several servers side by side.
#[derive(Clone, Debug)]
pub(crate) struct Station {
    /// The time at which each server becomes free.
    free: Vec<Nanos>,
    /// The busy time of all servers together.
    busy: Nanos,
}

impl Station {
    /// Makes a station with at least one server.
    fn new(servers: usize) -> Station {
        Station { free: vec![0; servers.max(1)], busy: 0 }
    }

    /// Serves a request that arrives now. Returns when it is done.
    fn serve(&mut self, now: Nanos, service: Nanos) -> Nanos {
        let free = self.free.iter_mut().min().expect("a station has servers");
        *free = now.max(*free) + service;
        self.busy += service;
        *free
    }

    /// Passes a message through whose last byte arrives now. Returns when it is done.
    fn pass(&mut self, now: Nanos, service: Nanos) -> Nanos {
        let free = self.free.iter_mut().min().expect("a station has servers");
        *free = now.max(*free + service);
        self.busy += service;
        *free
    }
}

/// One machine.
#[derive(Clone, Debug)]
struct TestbedMachine {
    transmit: Station,
    receive: Station,
    atomic: Vec<Station>,
    cores: Station,
    /// Number of sessions on this machine.
    threads: usize,
}

impl TestbedMachine {
    fn new(testbed: &Testbed, cores: usize) -> TestbedMachine {
        TestbedMachine {
            transmit: Station::new(1),
            receive: Station::new(1),
            atomic: vec![Station::new(1); testbed.atomic_units.max(1)],
            cores: Station::new(cores),
            threads: 0,
        }
    }
}

/// The busy time of a part of a machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BusyTime {
    /// The kind and number of the machine.
    pub machine: String,
    /// The name of the part.
    pub part: &'static str,
    /// Number of such parts side by side.
    pub servers: usize,
    /// The time for which all of them together were busy since the last look.
    pub ns: Nanos,
}

/// The place of a session or a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct TestbedThread {
    machine: usize,
    /// Whether it belongs to a session. Otherwise it belongs to a job.
    is_session: bool,
    /// The time at which its thread is free. A session has one thread, regardless of the machine's cores.
    free: Nanos,
}

/// All machines of a testbed, with the processes on them.
#[derive(Clone, Debug)]
pub(crate) struct TestbedMachines {
    testbed: Testbed,
    machines: Vec<TestbedMachine>,
    /// The name of each machine.
    names: Vec<String>,
    /// The machine of each memory node.
    nodes: Vec<Option<usize>>,
    /// The seat of each session or job.
    seats: Vec<Option<TestbedThread>>,
    /// The machine for the sessions of each process.
    processes: BTreeMap<ProcessId, usize>,
    /// Verbs that sessions have posted since the last call of `take_posted`.
    posted: PostedTotals,
}

/// Verbs that sessions have posted, without those of the master's jobs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PostedTotals {
    /// Number of verbs.
    pub verbs: u64,
    /// Bytes of pools that the verbs touched.
    pub bytes: u64,
}

impl TestbedMachines {
    pub fn new(testbed: Testbed) -> TestbedMachines {
        TestbedMachines {
            testbed,
            machines: Vec::new(),
            names: Vec::new(),
            nodes: Vec::new(),
            seats: Vec::new(),
            processes: BTreeMap::new(),
            posted: PostedTotals::default(),
        }
    }

    pub fn testbed(&self) -> &Testbed {
        &self.testbed
    }

    /// Adds a machine with this number of cores.
    pub fn add(&mut self, name: String, cores: usize) -> usize {
        self.machines.push(TestbedMachine::new(&self.testbed, cores));
        self.names.push(name);
        self.machines.len() - 1
    }

    /// Adds a machine for clients.
    pub fn add_for_clients(&mut self) -> usize {
        let number = self.machines.len();
        self.add(format!("clients {number}"), self.testbed.cores)
    }

    /// Places the sessions of this process on this machine.
    pub fn place(&mut self, process: ProcessId, machine: usize) {
        self.processes.insert(process, machine);
    }

    /// Gives a session of this process its seat.
    pub fn seat(&mut self, client: ClientId, process: ProcessId) {
        let machine = match self.processes.get(&process) {
            Some(machine) => *machine,
            None => {
                let machine = self.add_for_clients();
                self.place(process, machine);
                machine
            }
        };
        self.machines[machine].threads += 1;
        *entry(&mut self.seats, client.0 as usize) =
            Some(TestbedThread { machine, is_session: true, free: 0 });
    }

    /// Returns a client's seat. A client without one gets a machine of its own.
    fn seat_of(&mut self, client: ClientId) -> &mut TestbedThread {
        if entry(&mut self.seats, client.0 as usize).is_none() {
            let machine = self.add_for_clients();
            self.machines[machine].threads = 1;
            self.seats[client.0 as usize] =
                Some(TestbedThread { machine, is_session: false, free: 0 });
        }
        self.seats[client.0 as usize].as_mut().expect("just seated")
    }

    /// Returns the machine of a memory node.
    pub fn node(&mut self, node: MnId) -> usize {
        if let Some(machine) = *entry(&mut self.nodes, node.0.into()) {
            return machine;
        }
        let machine = self.add(node.to_string(), self.testbed.node_cores);
        self.nodes[usize::from(node.0)] = Some(machine);
        machine
    }

    /// Occupies the thread of a session for `time`. Returns when it is done. If there are more threads than cores,
    /// each thread gets an equal part of the cores, all the time.
    pub fn work(&mut self, client: ClientId, now: Nanos, time: Nanos) -> Nanos {
        let TestbedThread { machine, free, .. } = *self.seat_of(client);
        let TestbedMachine { threads, cores, .. } = &mut self.machines[machine];
        let longer = time * (*threads).max(cores.free.len()) as u64 / cores.free.len() as u64;
        cores.busy += time;
        let done = now.max(free) + longer;
        self.seat_of(client).free = done;
        done
    }

    /// Posts a client's verbs for one node. Returns when the last of them arrives there.
    pub fn post<'v>(
        &mut self,
        client: ClientId,
        verbs: impl Iterator<Item = &'v Verb>,
        now: Nanos,
    ) -> Nanos {
        let testbed = self.testbed;
        let TestbedThread { machine, is_session, .. } = *self.seat_of(client);
        let per_verb = testbed.per_verb_ns();
        let mut posted = 0;
        let mut service = 0;
        for verb in verbs {
            posted += 1;
            if is_session {
                self.posted.verbs += 1;
                self.posted.bytes += u64::from(verb.bytes());
            }
            service += testbed.wire_ns(request_bytes(verb)).max(per_verb);
        }
        let posted = match testbed.post_ns {
            0 => now,
            each => self.work(client, now, each * posted),
        };
        self.machines[machine].transmit.serve(posted, service) + testbed.one_way_ns
    }

    /// Serves verbs that have arrived at their node. Returns when the answer is back at the client's NIC.
    pub fn serve<'v>(
        &mut self,
        node: MnId,
        verbs: impl Iterator<Item = &'v Verb> + Clone,
        now: Nanos,
    ) -> Nanos {
        let testbed = self.testbed;
        let number = self.node(node);
        let machine = &mut self.machines[number];
        let per_verb = testbed.per_verb_ns();
        let receiving = |verb: &Verb| testbed.wire_ns(request_bytes(verb)).max(per_verb);
        let mut done = machine.receive.pass(now, verbs.clone().map(receiving).sum());
        if testbed.verb_ns > 0 {
            done = machine.cores.serve(done, testbed.verb_ns * verbs.clone().count() as u64);
        }
        if testbed.atomics_per_s > 0 {
            let units = machine.atomic.len();
            for verb in verbs.clone().filter(|verb| verb.is_atomic()) {
                let unit = (verb.offset / 8) as usize % units;
                done = machine.atomic[unit].serve(done, testbed.atomic_ns());
            }
        }
        let answering = |verb: &Verb| testbed.wire_ns(answer_bytes(verb));
        machine.transmit.serve(done, verbs.map(answering).sum()) + testbed.one_way_ns
    }

    /// Receives the answer to these verbs. Returns when the client knows it.
    pub fn hear<'v>(
        &mut self,
        client: ClientId,
        verbs: impl Iterator<Item = &'v Verb>,
        now: Nanos,
    ) -> Nanos {
        let testbed = self.testbed;
        let machine = self.seat_of(client).machine;
        let service = verbs.map(|verb| testbed.wire_ns(answer_bytes(verb))).sum();
        self.machines[machine].receive.pass(now, service)
    }

    /// Sends a client's request of this length. Returns when it arrives.
    pub fn ask(&mut self, client: ClientId, bytes: u64, now: Nanos) -> Nanos {
        let testbed = self.testbed;
        let machine = self.seat_of(client).machine;
        let posted = match testbed.post_ns {
            0 => now,
            each => self.work(client, now, each),
        };
        self.machines[machine].transmit.serve(posted, testbed.wire_ns(bytes)) + testbed.one_way_ns
    }

    /// Serves a request that has arrived at a server and takes a core for `takes`. Returns when it is done.
    pub fn work_on(&mut self, server: usize, bytes: u64, takes: Nanos, now: Nanos) -> Nanos {
        let machine = &mut self.machines[server];
        let there = machine.receive.pass(now, self.testbed.wire_ns(bytes));
        machine.cores.serve(there, takes)
    }

    /// Sends a server's reply of this length. Returns when it is at the client's NIC.
    pub fn reply(&mut self, server: usize, bytes: u64, now: Nanos) -> Nanos {
        let service = self.testbed.wire_ns(bytes);
        self.machines[server].transmit.serve(now, service) + self.testbed.one_way_ns
    }

    /// Receives a reply. Returns when the client knows it.
    pub fn hear_reply(&mut self, client: ClientId, bytes: u64, now: Nanos) -> Nanos {
        let machine = self.seat_of(client).machine;
        self.machines[machine].receive.pass(now, self.testbed.wire_ns(bytes))
    }

    /// Serves a control request at a memory node. Returns when its processor is done.
    pub fn request(&mut self, node: MnId, now: Nanos) -> Nanos {
        let testbed = self.testbed;
        let machine = self.node(node);
        self.machines[machine].cores.serve(now, testbed.request_ns)
    }

    /// Takes the verbs that sessions have posted since the last call.
    pub fn take_posted(&mut self) -> PostedTotals {
        std::mem::take(&mut self.posted)
    }

    /// Takes the busy times since the last call.
    pub fn take_busy(&mut self) -> Vec<BusyTime> {
        let mut all = Vec::new();
        for (machine, name) in self.machines.iter_mut().zip(&self.names) {
            let mut add = |part, stations: &mut [Station]| {
                let servers = stations.iter().map(|station| station.free.len()).sum();
                let ns = stations.iter_mut().map(|s| std::mem::take(&mut s.busy)).sum();
                all.push(BusyTime { machine: name.clone(), part, servers, ns });
            };
            add("transmit", std::slice::from_mut(&mut machine.transmit));
            add("receive", std::slice::from_mut(&mut machine.receive));
            add("atomics", &mut machine.atomic);
            add("cores", std::slice::from_mut(&mut machine.cores));
        }
        all
    }
}

/// Returns the entry of this number, which may be new.
fn entry<T: Clone>(all: &mut Vec<Option<T>>, number: usize) -> &mut Option<T> {
    if all.len() <= number {
        all.resize(number + 1, None);
    }
    &mut all[number]
}

/// Returns the payload on the way there.
fn request_bytes(verb: &Verb) -> u64 {
    match verb.op {
        VerbOp::Write { buf } => buf.len.into(),
        VerbOp::Read { .. } => 0,
        VerbOp::Cas { .. } => 16,
        VerbOp::Faa { .. } => 8,
    }
}

/// Returns the payload on the way back.
fn answer_bytes(verb: &Verb) -> u64 {
    match verb.op {
        VerbOp::Read { buf, .. } => buf.len.into(),
        VerbOp::Write { .. } => 0,
        VerbOp::Cas { .. } | VerbOp::Faa { .. } => 8,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_station_serves_in_order() {
        let mut one = Station::new(1);
        assert_eq!([one.serve(10, 5), one.serve(11, 5), one.serve(30, 5)], [15, 20, 35]);
        let mut two = Station::new(2);
        assert_eq!([two.serve(0, 5), two.serve(0, 5), two.serve(0, 5)], [5, 5, 10]);
        assert_eq!((one.busy, two.busy), (15, 15));
    }

    #[test]
    fn what_passes_through_a_free_station_is_there_with_its_last_byte() {
        let mut station = Station::new(1);
        assert_eq!(station.pass(100, 40), 100);
        // Both come from elsewhere at full speed: the second one has to wait for the first.
        assert_eq!([station.pass(110, 40), station.pass(115, 40)], [140, 180]);
    }

    #[test]
    fn a_session_is_one_thread() {
        let mut machines = TestbedMachines::new(Testbed { cores: 8, ..Testbed::UNLIMITED });
        let machine = machines.add_for_clients();
        let process = ProcessId(0);
        machines.place(process, machine);
        let [one, two] = [1, 2].map(ClientId);
        [one, two].into_iter().for_each(|client| machines.seat(client, process));
        assert_eq!([one, one, two].map(|client| machines.work(client, 0, 10)), [10, 20, 10]);
        // With more threads than cores.
        let mut machines = TestbedMachines::new(Testbed { cores: 1, ..Testbed::UNLIMITED });
        let machine = machines.add_for_clients();
        machines.place(process, machine);
        [one, two].into_iter().for_each(|client| machines.seat(client, process));
        assert_eq!([one, two].map(|client| machines.work(client, 0, 10)), [20, 20]);
    }
}
