//! Testbeds: the parameters of the [model](crate::stations), for known hardware.
//!
//! The origin of each figure stands beside it: a source, the statement of a paper on which it was *fitted*, or that
//! it is only *assumed*.

use crate::engine::Nanos;

/// Hardware: machines that are all alike, and the network between them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Testbed {
    /// The name on the command line.
    pub name: &'static str,
    /// Nanoseconds from one machine's NIC to another's memory, or in the other direction, without load.
    pub one_way_ns: Nanos,
    /// Bits per second that a NIC sends, and as many that it receives; 0: no limit.
    pub bandwidth_bps: u64,
    /// Verbs per second that a NIC can post, and as many that it can serve; 0: no limit.
    pub verbs_per_s: u64,
    /// Bytes of a message besides its payload.
    pub header_bytes: u64,
    /// CAS and FAA per second that one atomic unit executes, one after the other; 0: no limit.
    pub atomics_per_s: u64,
    /// Atomic units of a NIC. The address of a word determines its unit.
    pub atomic_units: usize,
    /// Cores of a machine that runs clients.
    pub cores: usize,
    /// Time of a core that one operation of a client takes.
    pub operation_ns: Nanos,
    /// Additional time of a core that every verb of a client takes.
    pub post_ns: Nanos,
    /// Cores of a memory node.
    pub node_cores: usize,
    /// Time of such a core that a verb takes; 0 if a NIC executes the verbs.
    pub verb_ns: Nanos,
    /// Time of such a core that a control request takes, such as one for a block.
    pub request_ns: Nanos,
    /// Additional time of one way of a control message.
    pub message_ns: Nanos,
}

impl Testbed {
    /// A testbed in which only the way takes time.
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
    /// * `one_way_ns`: half of a small READ on such cards, which takes under 2 us (Kalia, Kaminsky, Andersen,
    ///   "Design Guidelines for High Performance RDMA Systems", ATC '16).
    /// * `operation_ns`, `post_ns`: *fitted* on YCSB-D, 8.8 million operations a second with one replica and 8.6 with
    ///   five (P §6.4). The fit uses as many memory nodes as five replicas take, so that only the clients are the
    ///   limit. The first figure gives a client's time for an operation, the second its time for the verbs of further
    ///   replicas.
    /// * `bandwidth_bps`: *fitted* on the gain of YCSB-C on two memory nodes with pairs of 256 bytes, also limited by
    ///   the clients, over pairs of 1,024 bytes: 55.9 % (P §6.3).
    /// * `verbs_per_s`, `atomics_per_s`, `atomic_units`: Kalia, Kaminsky and Andersen, for ConnectX-3.
    /// * `header_bytes`: of a reliable connection's packets, without the link's: base transport and extended headers,
    ///   and the checksums.
    /// * `request_ns`: *fitted* on the loss of YCSB-A if memory nodes allocate, 90.9 % (P §6.3).
    /// * `node_cores`: memory nodes have one or two weak cores (P §2.1).
    /// * `message_ns`: *assumed*: a datagram through two kernels.
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

    /// Machines with a 100 Gbit/s ConnectX-5, and cores like those of [`Testbed::CONNECTX_3`].
    ///
    /// * `one_way_ns`, `bandwidth_bps`: the card's product brief (Mellanox, "ConnectX-5 EN Card"): below 600 ns, 100
    ///   Gbit/s.
    /// * `atomic_units`: the address of a word determines its unit, and only atomic verbs of one address wait for
    ///   each other (S, of the same card). The number of units and the speed of each are *assumed*.
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
    /// * `header_bytes`: of Ethernet, IP and TCP with time stamps.
    /// * All else is *assumed*, at the order of magnitude of such machines. No published figure rests on it.
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

    /// Returns the testbed of a name.
    pub fn named(name: &str) -> Option<Testbed> {
        Testbed::ALL.into_iter().find(|testbed| testbed.name == name)
    }

    /// Returns the time of a payload, with its header, on the wire.
    pub(crate) fn wire_ns(&self, payload: u64) -> Nanos {
        let bits = (payload + self.header_bytes) * 8;
        (bits * 1_000_000_000).checked_div(self.bandwidth_bps).unwrap_or(0)
    }

    /// Returns the time for which a verb occupies the NIC that posts or serves it.
    pub(crate) fn per_verb_ns(&self) -> Nanos {
        1_000_000_000u64.checked_div(self.verbs_per_s).unwrap_or(0)
    }

    /// Returns the time for which an atomic verb occupies its unit.
    pub(crate) fn atomic_ns(&self) -> Nanos {
        1_000_000_000u64.checked_div(self.atomics_per_s).unwrap_or(0)
    }
}
