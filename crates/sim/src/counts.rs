//! Counters of the events of a run. They show that the faults happened: a fault that never happens proves nothing.

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
    /// Lanes of a batch that arrived after one of a later batch of the same client.
    reordered_batches,
    /// Lanes of a batch that took at least 16 times the usual.
    long_delays,
    /// Batches that executed but whose completions never came.
    lost_completions,
    /// Batches that a client had given up, and of which something could still execute.
    late_batches,
    /// Verbs of late batches that executed.
    late_verbs,
    /// Client processes that crashed.
    client_crashes,
    /// Batches of a crashed client that executed in part.
    cut_batches,
    /// Batches on an immediate network with other verbs executed, or possible, between their own.
    interrupted_batches,
    /// SEARCHes that were answered by `Store::search_now`.
    searches_now,
    /// Writes on an immediate network that took no more phases than `Op::write_now` does.
    writes_now,
    /// Writes on an immediate network that took the start of an object for a proof of an earlier word of a slot on
    /// another node.
    proofs_across_nodes,
    /// Batches that wrote an object and CASed backups for it: writes that began with a speculative write.
    speculations,
    /// Batches on a network of NICs that had a WRITE for some node, and behind it a READ.
    writes_before_reads,
    /// Verbs that had executed when a later one of their batch failed, on a network of NICs.
    unheard_verbs,
    /// Client processes killed by a fence.
    killed_by_fences,
    /// Verbs that a memory node refused because it had fenced the client.
    fenced_verbs,
    /// Looks of the master at memory that may be damaged.
    scrubs,
    /// Words of live objects that were damaged on one replica.
    damages,
    /// Memory nodes that crashed.
    node_crashes,
    /// Stops of clients, memory nodes or masters, each resumed later.
    stops,
    /// Processes cut off from the master for a while.
    partitions,
    /// Times that a client and a memory node were cut off together.
    common_partitions,
    /// Times that the master was away together with a primary, or while some clients did not reach a primary.
    silences,
    /// Reads of a memory node's view number by clients.
    views_asked,
    /// Bars that a memory node set or renewed against another one.
    bars,
    /// Control messages lost.
    lost_messages,
    /// Requests of the master's jobs that came late.
    late_orders,
    /// Masters that crashed and were restarted from their store.
    master_restarts,
    /// Masters without a cluster, or of another one, that replaced the cluster's own for a while.
    foreign_masters,
    /// Recoveries of clients.
    client_recoveries,
    /// Changes of the view that made replicas equal, or filled new ones.
    transformations,
    /// Changes of the view that split subtables, to their ends.
    splits,
    /// Changes of the view that brought new regions.
    additions,
    /// Changes of the view by which replicas moved from one memory node to another.
    moves,
    /// Pairs that got another redundancy.
    moved_pairs,
    /// Moves that lost to other writes.
    overtaken_moves,
    /// Gets that took the value of a running set, and posted no verb.
    rides,
    /// Gets that READ only a slot, and took the value of a running request.
    compared_words,
    /// Gets that followed a request in vain.
    followed_in_vain,
    /// Sets that were acknowledged together with a later one of their process.
    absorbed_sets,
    /// READs that a switch may steer.
    steered_reads,
    /// Steered READs that brought the right object.
    steered_right,
    /// Steered READs that a switch sent to a wrong place.
    steered_wrong,
    /// Times that a switch forgot something.
    forgotten,
    /// Times that a switch held a verb.
    held_verbs,
    /// Objects that sessions left to the next comparison with the index.
    left_to_comparison,
    /// Memory nodes that were lost with pairs without redundancy.
    nodes_lost_with_pairs,
    /// Slot words of values lost with such nodes that sessions met.
    gone_words,
    /// Memory nodes that were drained, and ended.
    drained_nodes,
    /// Masters that crashed during a job.
    recovery_crashes,
    /// Sessions that were fenced while their process lived.
    expelled_sessions,
    /// Memory nodes that joined a formed cluster.
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
