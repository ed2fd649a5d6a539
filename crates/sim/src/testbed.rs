//! Testbeds: parameters of the [model](crate::stations) for known hardware.
//!
//! The doc of each testbed states the origin of every figure: a source, the statement of a paper to which the figure
//! was *fitted*, or that the figure is only *assumed*. P, E and S are papers, listed in `docs/README.md`.

use crate::engine::Nanos;

/// The hardware of a simulation: machines, all of them alike, and the network between them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Testbed {
    /// The testbed's name on the command line.
    pub name: &'static str,
    /// Nanoseconds from the NIC of one machine to the memory of another machine, or back, without load.
    pub one_way_ns: Nanos,
    /// Bits per second that a NIC can send, and that it can receive at the same time; 0: no limit.
    pub bandwidth_bps: u64,
    /// Verbs per second that a NIC can post, and that it can serve at the same time; 0: no limit.
    pub verbs_per_s: u64,
    /// Bytes of each message besides its payload.
    pub header_bytes: u64,
    /// CASes and FAAs per second that one atomic unit of a NIC can execute, one after the other; 0: no limit.
    pub atomics_per_s: u64,
    /// Number of atomic units of a NIC. The address of a word determines the unit.
    pub atomic_units: usize,
    /// Number of cores of a machine that runs clients.
    pub cores: usize,
    /// CPU time per client operation, in nanoseconds, without the time for its verbs.
    pub operation_ns: Nanos,
    /// CPU time per client verb, in nanoseconds.
    pub post_ns: Nanos,
    /// Number of cores of a memory node.
    pub node_cores: usize,
    /// CPU time per verb on a memory node, in nanoseconds; 0 if a NIC executes the verbs.
    pub verb_ns: Nanos,
    /// CPU time per control request on a memory node, such as a request for a block, in nanoseconds.
    pub request_ns: Nanos,
    /// Nanoseconds that a control message takes one way.
    pub message_ns: Nanos,
}

impl Testbed {
    /// A testbed in which only messages take time: verbs on the wire, and control messages.
    pub const UNLIMITED: Testbed = Testbed {
        name: "unlimited",
        one_way_ns: 800,
        bandwidth_bps: 0,
        verbs_per_s: 0,
        header_bytes: 0,
        atomics_per_s: 0,
        atomic_units: 1,
        cores: 0,
        operation_ns: 0,
        post_ns: 0,
        node_cores: 0,
        verb_ns: 0,
        request_ns: 0,
        message_ns: 5_000,
    };

    /// The paper's testbed (P §6.1): machines with eight cores of a Xeon E5-2450 and a 56 Gbit/s ConnectX-3.
    ///
    /// * `one_way_ns`: half the time of a small READ on such cards, which takes under 2 us (Kalia, Kaminsky, Andersen,
    ///   "Design Guidelines for High Performance RDMA Systems", ATC '16).
    /// * `operation_ns`, `post_ns`: *fitted* to the throughput of YCSB-D, 8.8 million operations per second with one
    ///   replica and 8.6 with five (P §6.4). The fit uses as many memory nodes as five replicas need, so that the
    ///   clients are the only limit. `operation_ns` follows from the first number, and `post_ns` from the difference,
    ///   which is the time for the verbs of the additional replicas.
    /// * `bandwidth_bps`: *fitted* to the gain of YCSB-C with pairs of 256 bytes over pairs of 1,024 bytes, on two
    ///   memory nodes: 55.9 % (P §6.3). The clients are a limit here too.
    /// * `verbs_per_s`, `atomics_per_s`, `atomic_units`: Kalia, Kaminsky and Andersen, for ConnectX-3.
    /// * `header_bytes`: the headers of a reliable connection's packets (base transport and extended headers) and the
    ///   checksums, without the headers of the link.
    /// * `request_ns`: *fitted* to the loss of throughput of YCSB-A when memory nodes allocate, 90.9 % (P §6.3).
    /// * `node_cores`: memory nodes have one or two weak cores (P §2.1).
    /// * `message_ns`: *assumed*, for a datagram through two kernels.
    pub const CONNECTX_3: Testbed = Testbed {
        name: "connectx-3",
        one_way_ns: 800,
        bandwidth_bps: 28_000_000_000,
        verbs_per_s: 26_000_000,
        header_bytes: 30,
        atomics_per_s: 2_700_000,
        atomic_units: 1,
        cores: 8,
        operation_ns: 13_100,
        post_ns: 550,
        node_cores: 1,
        verb_ns: 0,
        request_ns: 11_800,
        message_ns: 10_000,
    };

    /// Machines with a 100 Gbit/s ConnectX-5, and with cores like those of [`Testbed::CONNECTX_3`].
    ///
    /// * `one_way_ns`, `bandwidth_bps`: the card's product brief (Mellanox, "ConnectX-5 EN Card"): below 600 ns, 100
    ///   Gbit/s.
    /// * `atomic_units`: the address of a word determines the unit, and only atomic verbs on one address wait for each
    ///   other (S, of the same card). The number of units, and the speed of each, are *assumed*.
    /// * `verbs_per_s` is *assumed*.
    pub const CONNECTX_5: Testbed = Testbed {
        name: "connectx-5",
        one_way_ns: 600,
        bandwidth_bps: 100_000_000_000,
        verbs_per_s: 100_000_000,
        atomic_units: 4_096,
        ..Testbed::CONNECTX_3
    };

    /// Ordinary machines with 10 Gbit/s Ethernet, on which a thread of the memory node executes the verbs.
    ///
    /// * `header_bytes`: the headers of Ethernet, IP, and TCP with time stamps.
    /// * All other figures are *assumed*, with the order of magnitude of such machines. No published figure depends on
    ///   this testbed.
    pub const TCP_10G: Testbed = Testbed {
        name: "tcp-10g",
        one_way_ns: 12_000,
        bandwidth_bps: 10_000_000_000,
        verbs_per_s: 0,
        header_bytes: 66,
        atomics_per_s: 0,
        atomic_units: 1,
        cores: 8,
        operation_ns: 10_000,
        post_ns: 0,
        node_cores: 8,
        verb_ns: 2_000,
        request_ns: 10_000,
        message_ns: 12_000,
    };

    /// All named testbeds.
    pub const ALL: [Testbed; 4] =
        [Testbed::CONNECTX_3, Testbed::CONNECTX_5, Testbed::TCP_10G, Testbed::UNLIMITED];

    /// Returns the testbed with this name.
    pub fn named(name: &str) -> Option<Testbed> {
        Testbed::ALL.into_iter().find(|testbed| testbed.name == name)
    }

    /// Returns the time that a payload of this many bytes, with its header, takes on the wire.
    pub(crate) fn wire_ns(&self, payload: u64) -> Nanos {
        let bits = (payload + self.header_bytes) * 8;
        (bits * 1_000_000_000).checked_div(self.bandwidth_bps).unwrap_or(0)
    }

    /// Returns the time for which a verb occupies the NIC that posts or serves it.
    pub(crate) fn per_verb_ns(&self) -> Nanos {
        1_000_000_000u64.checked_div(self.verbs_per_s).unwrap_or(0)
    }

    /// Returns the time for which an atomic verb occupies its atomic unit.
    pub(crate) fn atomic_ns(&self) -> Nanos {
        1_000_000_000u64.checked_div(self.atomics_per_s).unwrap_or(0)
    }
}
