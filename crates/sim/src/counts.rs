//! What happened in a run, counted: a fault that never happens proves nothing.

use std::cell::Cell;

use fusee_core::layout::HeaderWord;
use fusee_core::verbs::Verb;

macro_rules! counts {
    ($($(#[doc = $doc:literal])+ $name:ident,)+) => {
        /// Counters of a run.
        #[derive(Debug, Default)]
        pub struct Counts {
            $($(#[doc = $doc])+ pub $name: Cell<u64>,)+
        }

        impl Counts {
            /// Name and value of each.
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
    /// Verbs of these that executed.
    late_verbs,
    /// Client processes that crashed.
    client_crashes,
    /// Batches of a crashed client that executed in part.
    cut_batches,
    /// Batches on an immediate network between whose verbs others did something, or could have.
    interrupted_batches,
    /// SEARCHes that were answered by `Store::search_now`.
    searches_now,
    /// Writes on an immediate network that took no more phases than `Op::write_now` does.
    writes_now,
    /// Writes on an immediate network that took the start of an object for a proof of what a slot on
    /// another node showed before.
    proofs_across_nodes,
    /// Batches that wrote an object and took backups for it: writes that began with a speculative write.
    speculations,
    /// Batches on a network of cards that had a WRITE for some node, and behind it a READ.
    writes_before_reads,
    /// Verbs that had executed when a later one of their batch failed, on a network of cards.
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
    /// Clients, memory nodes or masters stopped, and resumed later.
    stops,
    /// Processes cut off from the master for a while.
    partitions,
    /// Times that a client and a memory node were cut off together.
    common_partitions,
    /// Times that the master was gone, and a primary with it or for some clients.
    silences,
    /// Questions of clients at which view a memory node stands.
    views_asked,
    /// Times that a memory node barred another one, or said once more that it does.
    bars,
    /// Control messages lost.
    lost_messages,
    /// Requests of the master's jobs that came late.
    late_orders,
    /// Masters that crashed and were restarted from their store.
    master_restarts,
    /// Masters of no cluster, or of another one, that were in the place of the cluster's own for a while.
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
    /// Gets that took the value of a set which was under way, and posted no verb.
    rides,
    /// Gets that READ a slot only, and took the value of a request which was under way.
    compared_words,
    /// Gets that followed a request in vain.
    followed_in_vain,
    /// Sets that were acknowledged with a later one of their process.
    absorbed_sets,
    /// READs that were to be steered.
    steered_reads,
    /// Those that brought the object that was looked for.
    steered_right,
    /// Those that a switch had go anywhere.
    steered_wrong,
    /// Times that a switch forgot something.
    forgotten,
    /// Times that a switch held a verb.
    held_verbs,
    /// Objects that sessions left to the next comparison with the index.
    left_to_comparison,
    /// Memory nodes that were lost with pairs without redundancy.
    nodes_lost_with_pairs,
    /// Times that sessions met words whose pairs were lost so.
    gone_words,
    /// Memory nodes that were drained, and ended.
    drained_nodes,
    /// Masters that crashed while they repaired something.
    recovery_crashes,
    /// Sessions that were fenced though their process lived.
    expelled_sessions,
    /// Memory nodes that joined a formed cluster.
    joined_nodes,
    /// Sessions that ended in an orderly way.
    sessions_closed,
}

/// Adds one.
pub(crate) fn count(counter: &Cell<u64>) {
    counter.set(counter.get() + 1);
}

impl Counts {
    /// A verb has executed.
    pub(crate) fn note_verb(&self, verb: &Verb) {
        count(&self.verbs);
        if verb.offset == HeaderWord::View.offset() {
            count(&self.views_asked);
        }
    }
}
