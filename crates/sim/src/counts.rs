//! Counters of the events of a run. They show that the injected faults really happened, because a fault that never
//! happens proves nothing.

use std::cell::Cell;

use fusee_core::layout::HeaderWord;
use fusee_core::verbs::Verb;

macro_rules! counts {
    ($($(#[doc = $doc:literal])+ $name:ident,)+) => {
        /// Counters of a run.
        #[derive(Debug, Default)]
        pub struct SimCounts {
            $($(#[doc = $doc])+ pub $name: Cell<u64>,)+
        }

        impl SimCounts {
            /// Returns the name and value of each counter.
            pub fn all(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($name), self.$name.get()),)+]
            }
        }
    };
}

counts! {
    /// Verbs that executed.
    verbs,
    /// READs and WRITEs that executed in several pieces.
    torn_verbs,
    /// Lanes (the verbs of a batch for one node) that overtook a lane of an earlier batch of the same client.
    reordered_batches,
    /// Messages over a link that took at least 16 times the usual time in one direction.
    long_delays,
    /// Lanes (the verbs of a batch for one node) that executed, but whose completions never reached the client.
    lost_completions,
    /// Lanes (the verbs of a batch for one node) that a client had given up while some of their verbs could still
    /// execute.
    late_batches,
    /// Verbs that executed after the client had given up their batch.
    late_verbs,
    /// Client processes that crashed.
    client_crashes,
    /// Lanes of a crashed client that executed only in part; over simulated shared memory, batches.
    cut_batches,
    /// Batches over simulated shared memory that paused between two pieces, so that other processes could run.
    interrupted_batches,
    /// SEARCHes that were answered by `search_now`.
    searches_now,
    /// Writes over simulated shared memory that took no more phases than `Op::write_now`, the path without waits,
    /// takes.
    writes_now,
    /// Writes over simulated shared memory that READ a slot on one node and then, on another node, the first bytes of
    /// the hint's object, as proof that the slot is the key's.
    proofs_across_nodes,
    /// Batches that wrote an object and CASed backups with its word: writes that began as speculative writes.
    speculations,
    /// Batches on a network of NICs that had, for one node, a READ behind a WRITE.
    writes_before_reads,
    /// Verbs on a network of NICs that had executed when a later verb of their batch failed.
    unheard_verbs,
    /// Client processes killed by a fence.
    killed_by_fences,
    /// Verbs that a memory node refused because it had fenced the client's session.
    fenced_verbs,
    /// Times that the scrubber of the master read memory.
    scrubs,
    /// Words of live objects that were damaged on one replica.
    damages,
    /// Memory nodes that crashed.
    node_crashes,
    /// Stops of clients, memory nodes or masters, each resumed later.
    stops,
    /// Times that a process was cut off from the master for a while.
    partitions,
    /// Times that a client and a memory node were cut off together.
    common_partitions,
    /// Times that the master was away while a primary crashed, or while some clients did not reach a primary.
    silences,
    /// READs of a memory node's view number by clients.
    views_asked,
    /// Bars that a memory node set or renewed against another node.
    bars,
    /// Control messages that were lost.
    lost_messages,
    /// Requests of the master's jobs that were delayed.
    late_orders,
    /// Masters that crashed between two actions, as planned, and were restarted from their store.
    master_restarts,
    /// Masters without a cluster, or of another cluster, that replaced the cluster's own master for a while.
    foreign_masters,
    /// Recoveries of clients.
    client_recoveries,
    /// View changes that made replicas equal, or filled new replicas.
    transformations,
    /// View changes that split subtables and reached their ends.
    splits,
    /// Times that the master stored a view whose change adds regions.
    additions,
    /// View changes that moved replicas from one memory node to another.
    moves,
    /// Pairs that a Move of the workload gave another redundancy.
    moved_pairs,
    /// Moves of the workload that lost their conflict round to another write.
    overtaken_moves,
    /// Gets that took the value of a running set and posted no verb.
    rides,
    /// Gets that READ only a slot and took the value of a running request.
    compared_words,
    /// Gets that waited for another request and could not use its result.
    followed_in_vain,
    /// Sets that were acknowledged together with a later set of their process.
    absorbed_sets,
    /// READs that a switch is allowed to steer.
    steered_reads,
    /// Steered READs that returned the right object.
    steered_right,
    /// Steered READs that a switch sent to a wrong place.
    steered_wrong,
    /// Times that a switch forgot part of its knowledge.
    forgotten,
    /// Times that a switch held a verb.
    held_verbs,
    /// Objects that sessions left to the next comparison with the index instead of freeing them.
    left_to_comparison,
    /// Memory nodes that were lost together with pairs without redundancy.
    nodes_lost_with_pairs,
    /// Times that a session found a slot word that leads to a pair lost with its only memory node.
    gone_words,
    /// Memory nodes that were drained and then ended.
    drained_nodes,
    /// Masters that crashed during a job.
    recovery_crashes,
    /// Sessions that were fenced while their process lived.
    expelled_sessions,
    /// Memory nodes that were started after the cluster had formed.
    joined_nodes,
    /// Sessions that ended in an orderly way.
    sessions_closed,
}

/// Adds one to a counter.
pub(crate) fn count(counter: &Cell<u64>) {
    counter.set(counter.get() + 1);
}

impl SimCounts {
    /// Counts a verb that has executed.
    pub(crate) fn note_verb(&self, verb: &Verb) {
        count(&self.verbs);
        if verb.offset == HeaderWord::View.offset() {
            count(&self.views_asked);
        }
    }
}
