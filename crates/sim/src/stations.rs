//! The model of a testbed: stations at which verbs, messages and operations queue up.
//!
//! A *station* serves requests in the order of their arrival. A machine has one station for what its NIC sends, one for
//! what the NIC receives, one for each atomic unit of the NIC, and one for its cores. A memory node and clients can
//! share a machine.
//!
//! ```text
//! client's machine              memory node's machine                                  client's machine
//! core -> transmit -> wire ->   receive -> atomic unit or core -> transmit -> wire ->   receive
//! ```
//!
//! The payload of a READ travels with the answer, that of a WRITE with the request, and each message has a header. A
//! station that only passes bytes through works while they arrive: if it is free, it is done when the last byte
//! arrives. Nothing is random: equal runs are equal to the nanosecond. The busy times show which station saturates.

use std::collections::BTreeMap;

use fusee_core::verbs::{ClientId, MnId, Verb, VerbOp};

use crate::engine::{Nanos, ProcessId};
use crate::testbed::Testbed;

/// A queue with one server, or with several equal servers.
#[derive(Clone, Debug)]
pub(crate) struct Station {
    /// For each server, the time at which it becomes free.
    free: Vec<Nanos>,
    /// The sum of the busy times of all servers.
    busy: Nanos,
}

impl Station {
    /// Makes a station with at least one server.
    fn new(servers: usize) -> Station {
        Station { free: vec![0; servers.max(1)], busy: 0 }
    }

    /// Serves a request that arrives at `now`. Returns the time at which the service ends.
    fn serve(&mut self, now: Nanos, service: Nanos) -> Nanos {
        let free = self.free.iter_mut().min().expect("a station has servers");
        *free = now.max(*free) + service;
        self.busy += service;
        *free
    }

    /// Passes a message through whose last byte arrives at `now`. Returns the time at which the whole message has
    /// passed.
    fn pass(&mut self, now: Nanos, service: Nanos) -> Nanos {
        let free = self.free.iter_mut().min().expect("a station has servers");
        *free = now.max(*free + service);
        self.busy += service;
        *free
    }
}

/// One machine of a testbed, with its stations.
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

/// The busy time of one part of a machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BusyTime {
    /// The name of the machine: its kind and number.
    pub machine: String,
    /// The name of the part, such as `cores`.
    pub part: &'static str,
    /// Number of equal servers that the part has.
    pub servers: usize,
    /// The sum of the busy times of all servers of the part, since the last measurement.
    pub ns: Nanos,
}

/// The thread of a session or a job, and its machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct TestbedThread {
    machine: usize,
    /// Whether the thread belongs to a session; if not, it belongs to a job.
    is_session: bool,
    /// The time at which the thread becomes free. A session has one thread, however many cores the machine has.
    free: Nanos,
}

/// All machines of a testbed, and the threads on these machines.
#[derive(Clone, Debug)]
pub(crate) struct TestbedMachines {
    testbed: Testbed,
    machines: Vec<TestbedMachine>,
    /// The name of each machine.
    names: Vec<String>,
    /// The machine of each memory node, by its id.
    nodes: Vec<Option<usize>>,
    /// The thread of each session or job, by its client id.
    seats: Vec<Option<TestbedThread>>,
    /// The machine on which each process's sessions run.
    processes: BTreeMap<ProcessId, usize>,
    /// Verbs that sessions have posted since the last call of `take_posted`.
    posted: PostedTotals,
}

/// Totals of the verbs that sessions have posted. Verbs of the master's jobs are left out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PostedTotals {
    /// Number of verbs that sessions posted.
    pub verbs: u64,
    /// Bytes of pools that these verbs read or wrote.
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

    /// Adds a machine with this number of cores, and returns its number.
    pub fn add(&mut self, name: String, cores: usize) -> usize {
        self.machines.push(TestbedMachine::new(&self.testbed, cores));
        self.names.push(name);
        self.machines.len() - 1
    }

    /// Adds a machine for client processes, and returns its number.
    pub fn add_for_clients(&mut self) -> usize {
        let number = self.machines.len();
        self.add(format!("clients {number}"), self.testbed.cores)
    }

    /// Places the sessions of this process on this machine.
    pub fn place(&mut self, process: ProcessId, machine: usize) {
        self.processes.insert(process, machine);
    }

    /// Gives a session of this process a thread on the process's machine.
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

    /// Returns a client's thread. A client that has none is a job, and gets a machine to itself.
    fn seat_of(&mut self, client: ClientId) -> &mut TestbedThread {
        if entry(&mut self.seats, client.0 as usize).is_none() {
            let machine = self.add_for_clients();
            self.machines[machine].threads = 1;
            self.seats[client.0 as usize] =
                Some(TestbedThread { machine, is_session: false, free: 0 });
        }
        self.seats[client.0 as usize].as_mut().expect("just seated")
    }

    /// Returns the number of a memory node's machine.
    pub fn node(&mut self, node: MnId) -> usize {
        if let Some(machine) = *entry(&mut self.nodes, node.0.into()) {
            return machine;
        }
        let machine = self.add(node.to_string(), self.testbed.node_cores);
        self.nodes[usize::from(node.0)] = Some(machine);
        machine
    }

    /// Occupies the thread of a session for `time` of CPU work. Returns the time at which the work ends. If a machine
    /// has more threads than cores, each thread gets an equal share of the cores, even while other threads are
    /// idle.
    pub fn work(&mut self, client: ClientId, now: Nanos, time: Nanos) -> Nanos {
        let TestbedThread { machine, free, .. } = *self.seat_of(client);
        let TestbedMachine { threads, cores, .. } = &mut self.machines[machine];
        let longer = time * (*threads).max(cores.free.len()) as u64 / cores.free.len() as u64;
        cores.busy += time;
        let done = now.max(free) + longer;
        self.seat_of(client).free = done;
        done
    }

    /// Posts a client's verbs for one node. Returns the time at which the last of these verbs arrives at the node.
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

    /// Serves verbs that have arrived at their node. Returns the time at which the answer arrives at the client's NIC.
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

    /// Receives the answer to these verbs. Returns the time at which the client has the answer.
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

    /// Sends a client's request of this length. Returns the time at which the request arrives at the server.
    pub fn ask(&mut self, client: ClientId, bytes: u64, now: Nanos) -> Nanos {
        let testbed = self.testbed;
        let machine = self.seat_of(client).machine;
        let posted = match testbed.post_ns {
            0 => now,
            each => self.work(client, now, each),
        };
        self.machines[machine].transmit.serve(posted, testbed.wire_ns(bytes)) + testbed.one_way_ns
    }

    /// Serves a request that has arrived at a server and takes a core for `takes`. Returns the time at which the core
    /// is done.
    pub fn work_on(&mut self, server: usize, bytes: u64, takes: Nanos, now: Nanos) -> Nanos {
        let machine = &mut self.machines[server];
        let there = machine.receive.pass(now, self.testbed.wire_ns(bytes));
        machine.cores.serve(there, takes)
    }

    /// Sends a server's reply of this length. Returns the time at which the reply arrives at the client's NIC.
    pub fn reply(&mut self, server: usize, bytes: u64, now: Nanos) -> Nanos {
        let service = self.testbed.wire_ns(bytes);
        self.machines[server].transmit.serve(now, service) + self.testbed.one_way_ns
    }

    /// Receives a reply. Returns the time at which the client has the reply.
    pub fn hear_reply(&mut self, client: ClientId, bytes: u64, now: Nanos) -> Nanos {
        let machine = self.seat_of(client).machine;
        self.machines[machine].receive.pass(now, self.testbed.wire_ns(bytes))
    }

    /// Serves a control request at a memory node. Returns the time at which the node's processor is done.
    pub fn request(&mut self, node: MnId, now: Nanos) -> Nanos {
        let testbed = self.testbed;
        let machine = self.node(node);
        self.machines[machine].cores.serve(now, testbed.request_ns)
    }

    /// Returns the totals of verbs posted since the last call.
    pub fn take_posted(&mut self) -> PostedTotals {
        std::mem::take(&mut self.posted)
    }

    /// Returns the busy times since the last call.
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

/// Returns the element with this number. Extends the list if it is too short.
fn entry<T: Clone>(all: &mut Vec<Option<T>>, number: usize) -> &mut Option<T> {
    if all.len() <= number {
        all.resize(number + 1, None);
    }
    &mut all[number]
}

/// Returns the payload bytes of a verb's request.
fn request_bytes(verb: &Verb) -> u64 {
    match verb.op {
        VerbOp::Write { buf } => buf.len.into(),
        VerbOp::Read { .. } => 0,
        VerbOp::Cas { .. } => 16,
        VerbOp::Faa { .. } => 8,
    }
}

/// Returns the payload bytes of a verb's answer.
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
        // The last byte of each message arrives before the station has passed the bytes before it, so both messages
        // have to wait.
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
        // On this machine there are more threads than cores.
        let mut machines = TestbedMachines::new(Testbed { cores: 1, ..Testbed::UNLIMITED });
        let machine = machines.add_for_clients();
        machines.place(process, machine);
        [one, two].into_iter().for_each(|client| machines.seat(client, process));
        assert_eq!([one, two].map(|client| machines.work(client, 0, 10)), [20, 20]);
    }
}
