//! The scenarios in which mutants are hunted.
//!
//! Each scenario notices some mutant sooner than every other scenario does. The scenarios of `support` run step by
//! step, or are as short as those that do. The timed scenarios, most of them those of `fusee-bench sim`, are a few
//! hundred times longer.

use fusee_sim::{RunOptions, run};

use crate::support::{
    bars, block_bases, changes, copy_words, crowded, failures, frozen_grant, gone, in_doubt,
    late_repairs, moved_pairs, placements, rates, refill, reuse, scenarios, scripted, scrub,
    settled_set, silent_column, speculations, stale_moves, stale_orphan, steered, steered_changes,
    steered_recovery, steered_reuse, suspended, turns, unheard,
};

/// A family of runs, one for each seed.
pub struct MutantScenario {
    pub name: &'static str,
    /// Runs a seed. Panics if the run breaks a promise.
    pub run: fn(u64),
}

const fn named(name: &'static str, run: fn(u64)) -> MutantScenario {
    MutantScenario { name, run }
}

pub const MIXED: MutantScenario = named("mixed", scenarios::mixed);
pub const FIGHT: MutantScenario = named("fight", scenarios::fight);
pub const BURSTS: MutantScenario = named("bursts", scenarios::bursts);
pub const ROUNDS: MutantScenario = named("rounds", scenarios::rounds);
pub const CRASH: MutantScenario = named("crash", scenarios::crash);
pub const BURSTS_CRASH: MutantScenario = named("bursts+crash", scenarios::bursts_crash);
pub const STANDSTILL: MutantScenario = named("standstill", |seed| {
    steered::standstill(seed);
});
pub const EARLY_LOOK: MutantScenario = named("early look", |seed| {
    steered::early_look(seed);
});
pub const FREED_SLOT: MutantScenario = named("freed slot", |seed| {
    steered::freed_slot(seed);
});
pub const SPECULATED_ENTRY: MutantScenario = named("speculated entry", |seed| {
    steered::speculated_entry(seed);
});
pub const EARLY_PREFIX: MutantScenario = named("early prefix", |seed| {
    steered::early_prefix(seed);
});
pub const CLIENT_CRASH: MutantScenario = named("client crash", |seed| {
    failures::client_crash(seed);
});
pub const INSERT_CRASH: MutantScenario = named("insert crash", |seed| {
    failures::insert_crash(seed);
});
pub const INDEX_LOSS: MutantScenario = named("index loss", |seed| {
    failures::index_node_loss(seed);
});
pub const STALE_ORPHAN: MutantScenario =
    named("stale orphan", |seed| stale_orphan::stale_orphan(seed, false));
/// In this scenario, more regions are copied than one ALLOC message names.
pub const FROZEN_GRANT: MutantScenario = named("frozen grant", frozen_grant::frozen_grant);
pub const OWN_ORPHAN: MutantScenario =
    named("own orphan", |seed| stale_orphan::stale_orphan(seed, true));
pub const LATE_INSERT: MutantScenario = named("late insert", |seed| {
    steered_recovery::late_insert_crash(seed);
});
pub const OVERTAKEN: MutantScenario = named("overtaken", |seed| {
    steered_recovery::recovery_overtaken(seed);
});

pub const NODE_LOSS: MutantScenario = named("node loss", |seed| {
    changes::node_loss(seed);
});

pub const SPLITS: MutantScenario = named("splits", |seed| {
    changes::splits(seed);
});

pub const MOVES: MutantScenario = named("moves", |seed| {
    changes::moves(seed);
});

pub const CUT_OFF_PRIMARY: MutantScenario = named("cut off primary", |seed| {
    changes::cut_off_primary(seed);
});

pub const CUT_OFF_SINGLE: MutantScenario = named("cut off single", |seed| {
    changes::cut_off_single(seed);
});

pub const DOUBTFUL_BACKUPS: MutantScenario = named("doubtful", |seed| {
    steered_changes::doubtful_backups(seed);
});

pub const SETTLER_DIES: MutantScenario = named("settler dies", |seed| {
    steered_changes::settler_dies(seed);
});

pub const LEFT_BEHIND: MutantScenario = named("left behind", |seed| {
    steered_changes::left_behind(seed);
});

pub const LOST_REPLICA: MutantScenario = named("lost replica", |seed| {
    steered_changes::beside_lost_replica(seed);
});

pub const IN_DOUBT: MutantScenario = named("in doubt", |seed| {
    in_doubt::in_doubt(seed);
});

pub const GONE: MutantScenario = named("gone", gone::gone);
pub const SPLIT_ONCE: MutantScenario = named("split once", turns::split_once);
pub const REPLICAS_HAVE_TURNS: MutantScenario =
    named("replicas have turns", turns::replicas_have_turns);
pub const FORGOTTEN_SPLIT: MutantScenario = named("forgotten split", turns::forgotten_split);
pub const MANY_DEATHS: MutantScenario = named("many deaths", turns::many_deaths);
pub const STARVED_MASTER: MutantScenario = named("starved master", turns::starved_master);
pub const UNHEARD_NODES: MutantScenario = named("unheard nodes", turns::unheard_nodes);
pub const CROWDED: MutantScenario = named("crowded", crowded::crowded);
pub const ASKS_TOO_MUCH: MutantScenario = named("asks too much", crowded::asks_too_much);

pub const REUSE: MutantScenario = named("reuse", |seed| {
    reuse::reuse(seed);
});

pub const BLOCK_SIZES: MutantScenario = named("block sizes", |seed| {
    reuse::block_sizes(seed);
});

pub const SMALL_BLOCKS: MutantScenario = named("small blocks", refill::small_blocks);

pub const BLOCK_BASES: MutantScenario = named("block bases", block_bases::block_bases);

pub const EARLY_MARK: MutantScenario = named("early mark", |seed| {
    steered_reuse::early_mark(seed);
});

pub const LATE_REPAIRS: MutantScenario = named("late repairs", |seed| {
    late_repairs::late_repairs(seed);
});

/// In this scenario, requests of the master's jobs arrive late.
pub const LATE_ORDERS: MutantScenario = named("late orders", |seed| {
    late_repairs::late_orders(seed);
});

pub const SPECULATION_CRASH: MutantScenario = named("speculation crash", |seed| {
    speculations::crash(seed);
});

pub const SPECULATION_INDEX_LOSS: MutantScenario = named("speculation index", |seed| {
    speculations::index_loss(seed);
});

pub const SPECULATION_LOSS: MutantScenario = named("speculation loss", |seed| {
    speculations::loss(seed);
});

pub const SPECULATION_MOVES: MutantScenario = named("speculation moves", |seed| {
    speculations::moves(seed);
});

pub const SPECULATION_REUSE: MutantScenario = named("speculation reuse", |seed| {
    speculations::used_again(seed);
});

pub const SPECULATION_RECURS: MutantScenario = named("speculation recurs", |seed| {
    speculations::recurring_word(seed);
});

pub const RECURRING_TURN: MutantScenario = named("recurring turn", speculations::recurring_turn);

pub const SPECULATION_HALF_MOVED: MutantScenario = named("half moved", |seed| {
    speculations::half_moved(seed);
});

pub const DELETED_BESIDE_BAR: MutantScenario =
    named("deleted beside bar", bars::a_delete_is_settled);
pub const HALF_DELETED: MutantScenario = named("half deleted", speculations::half_deleted);

pub const LEFT_MARKS: MutantScenario = named("left marks", scripted::marks::left_behind);
pub const SEEN_ELSEWHERE: MutantScenario = named("seen elsewhere", scripted::marks::seen_elsewhere);
pub const LATE_MARK: MutantScenario = named("late mark", scripted::marks::late_mark);
pub const BESIDE_A_WRITE: MutantScenario =
    named("beside a write", scripted::doubts::beside_a_write);
pub const LOST_WORD: MutantScenario = named("lost word", scripted::doubts::lost_word);
pub const LATE_REPAIR: MutantScenario = named("late repair", scripted::doubts::late_repair);
pub const LATE_OBJECT: MutantScenario = named("late object", scripted::doubts::late_object);
pub const OWN_MEMORY_FIRST: MutantScenario =
    named("own memory first", scripted::doubts::own_memory_first);
pub const UNANSWERED_READ: MutantScenario =
    named("unanswered read", scripted::doubts::unanswered_read);
pub const DROPPED_WRITE: MutantScenario = named("dropped write", scripted::doubts::dropped_write);
pub const HALF_WRITTEN: MutantScenario =
    named("half written", scripted::speculations::half_written);
pub const NEWER_VIEW: MutantScenario = named("newer view", scripted::speculations::of_a_newer_view);
pub const SILENT_CHUNK: MutantScenario = named("silent chunk", moved_pairs::silent_chunk);
pub const GIVEN_BACK: MutantScenario = named("given back", scripted::generations::given_back);
pub const TAKEOVER: MutantScenario = named("takeover", scripted::generations::takeover);
pub const LOST_SINGLE: MutantScenario = named("lost single", speculations::lost_single);
pub const EMPTIED: MutantScenario = named("emptied", scripted::generations::emptied);
pub const LAGGARD: MutantScenario = named("laggard", scripted::generations::laggard);
pub const WRAPPED: MutantScenario = named("wrapped", scripted::generations::wrapped);
pub const DIES_EMPTY: MutantScenario =
    named("dies empty", scripted::generations::dies_when_it_is_empty);

pub const LEAVES: MutantScenario = named("leaves", scripted::seals::leaves);
pub const ZEROS: MutantScenario = named("zeros", scripted::seals::zeros);
pub const HALF_SEALED: MutantScenario = named("half sealed", scripted::seals::half_sealed);
pub const TORN: MutantScenario = named("torn", scripted::seals::torn);
pub const UNREAD: MutantScenario = named("unread", scripted::seals::unread);

pub const DAMAGE: MutantScenario = named("damage", scenarios::damage);

pub const DAMAGED_SPLITS: MutantScenario = named("damaged splits", |seed| {
    changes::damaged_splits(seed);
});

pub const DAMAGED_MOVES: MutantScenario = named("damaged moves", |seed| {
    changes::damaged_moves(seed);
});

pub const SCRUB: MutantScenario = named("scrub", |seed| {
    let bit = seed as usize % 64;
    scrub::settles(seed, 2 + seed as u8 % 2, bit..bit + 1);
});

pub const FREE_WORDS: MutantScenario = named("free words", |seed| {
    scrub::free_words(seed, 2 + seed as u8 % 2);
});

pub const UNHEARD: MutantScenario = named("unheard", |seed| {
    unheard::unheard(seed);
});

pub const MOVED_PAIRS: MutantScenario =
    named("moved pairs", |seed| moved_pairs::moved_pairs(seed, false));
pub const TURNED_PAIRS: MutantScenario =
    named("turned pairs", |seed| moved_pairs::turned_pairs(seed, false));
pub const COPIES_COMPARED: MutantScenario = named("copies compared", moved_pairs::copies_compared);
pub const TWO_NODES_LOST: MutantScenario = named("two nodes lost", moved_pairs::two_nodes_lost);
pub const SILENT_COLUMN: MutantScenario = named("silent column", silent_column::silent_column);
pub const STALE_MOVE: MutantScenario = named("stale move", stale_moves::stale_move);
pub const SUSPENDED_COMMIT: MutantScenario = named("suspended commit", suspended::suspended_commit);
pub const LEFT_COPY_WORD: MutantScenario = named("left copy word", copy_words::left_copy_word);
pub const RESTING_BLOCK: MutantScenario = named("resting block", moved_pairs::resting_block);
pub const OLDER_PARITY: MutantScenario = named("older parity", moved_pairs::older_parity);
pub const UNREAD_DATA: MutantScenario = named("unread data", moved_pairs::unread_data);
pub const TORN_HEADERS: MutantScenario = named("torn headers", moved_pairs::torn_headers);
pub const MOVED_PAIRS_LOSS: MutantScenario =
    named("moved pairs, loss", |seed| moved_pairs::moved_pairs(seed, true));

pub const MOVED_AT_ONCE: MutantScenario = named("moved at once", moved_pairs::moved_at_once);

pub const STALE_HINT: MutantScenario = named("stale hint", placements::stale_hint);

pub const PLACED_EARLIER: MutantScenario = named("placed earlier", placements::newer_view);

pub const MOVED_MEANWHILE: MutantScenario = named("moved meanwhile", placements::moved_meanwhile);
pub const NAMED_LOSER: MutantScenario = named("named loser", placements::named_loser);

pub const DEMOTION_RATE: MutantScenario = named("demotion rate", rates::demotion);
pub const PROMOTION_RATE: MutantScenario = named("promotion rate", rates::promotion);
pub const COUNTERS: MutantScenario = named("counters", rates::counters);

pub const BARS: MutantScenario = named("bars", bars::bars);

/// Every scenario that runs step by step, and the scenarios in virtual time that are as short.
pub const STEPWISE: [&MutantScenario; 99] = [
    &MOVED_MEANWHILE,
    &NAMED_LOSER,
    &UNREAD_DATA,
    &PLACED_EARLIER,
    &STALE_HINT,
    &SILENT_COLUMN,
    &LEFT_COPY_WORD,
    &STALE_MOVE,
    &SUSPENDED_COMMIT,
    &DEMOTION_RATE,
    &PROMOTION_RATE,
    &COUNTERS,
    &SETTLER_DIES,
    &HALF_SEALED,
    &WRAPPED,
    &CUT_OFF_SINGLE,
    &SETTLED_SET,
    &TWO_NODES_LOST,
    &OLDER_PARITY,
    &TORN_HEADERS,
    &RESTING_BLOCK,
    &MOVED_PAIRS,
    &MOVED_PAIRS_LOSS,
    &MOVED_AT_ONCE,
    &TURNED_PAIRS,
    &COPIES_COMPARED,
    &STALE_ORPHAN,
    &OWN_ORPHAN,
    &BARS,
    &LOST_WORD,
    &LEFT_MARKS,
    &SEEN_ELSEWHERE,
    &LATE_MARK,
    &BESIDE_A_WRITE,
    &LATE_REPAIR,
    &LATE_OBJECT,
    &OWN_MEMORY_FIRST,
    &UNANSWERED_READ,
    &DROPPED_WRITE,
    &HALF_WRITTEN,
    &NEWER_VIEW,
    &SILENT_CHUNK,
    &EARLY_MARK,
    &LOST_REPLICA,
    &IN_DOUBT,
    &GONE,
    &CROWDED,
    &SPLIT_ONCE,
    &REPLICAS_HAVE_TURNS,
    &FORGOTTEN_SPLIT,
    &STARVED_MASTER,
    &UNHEARD_NODES,
    &MANY_DEATHS,
    &ASKS_TOO_MUCH,
    &DAMAGE,
    &DAMAGED_SPLITS,
    &DAMAGED_MOVES,
    &UNHEARD,
    &SPECULATED_ENTRY,
    &SPECULATION_HALF_MOVED,
    &HALF_DELETED,
    &DELETED_BESIDE_BAR,
    &SPECULATION_CRASH,
    &SPECULATION_INDEX_LOSS,
    &SPECULATION_LOSS,
    &SPECULATION_MOVES,
    &SPECULATION_REUSE,
    &SPECULATION_RECURS,
    &RECURRING_TURN,
    &LOST_SINGLE,
    &TAKEOVER,
    &NODE_LOSS,
    &SPLITS,
    &MOVES,
    &CUT_OFF_PRIMARY,
    &DOUBTFUL_BACKUPS,
    &LEFT_BEHIND,
    &LATE_REPAIRS,
    &FROZEN_GRANT,
    &LATE_ORDERS,
    &REUSE,
    &BLOCK_SIZES,
    &SMALL_BLOCKS,
    &BLOCK_BASES,
    &MIXED,
    &FIGHT,
    &BURSTS,
    &ROUNDS,
    &CRASH,
    &BURSTS_CRASH,
    &STANDSTILL,
    &EARLY_LOOK,
    &FREED_SLOT,
    &EARLY_PREFIX,
    &CLIENT_CRASH,
    &INSERT_CRASH,
    &INDEX_LOSS,
    &LATE_INSERT,
    &OVERTAKEN,
];

pub const TIMED_MIXED: MutantScenario =
    named("timed mixed", |seed| timed(fusee_sim::Scenario::Mixed, seed));
pub const TIMED_INSERTS: MutantScenario =
    named("timed inserts", |seed| timed(fusee_sim::Scenario::Inserts, seed));
pub const TIMED_CRASHES: MutantScenario =
    named("timed crashes", |seed| timed(fusee_sim::Scenario::Crashes, seed));
pub const TIMED_LOSSES: MutantScenario =
    named("timed losses", |seed| timed(fusee_sim::Scenario::Losses, seed));
pub const TIMED_REUSE: MutantScenario =
    named("timed reuse", |seed| timed(fusee_sim::Scenario::Reuse, seed));
pub const TIMED_ELASTIC: MutantScenario =
    named("timed elastic", |seed| timed(fusee_sim::Scenario::Elastic, seed));

pub const TIMED_REDUNDANCY: MutantScenario =
    named("timed redundancy", |seed| timed(fusee_sim::Scenario::Redundancy, seed));

pub const TIMED_ORIENTED: MutantScenario =
    named("timed oriented", |seed| timed(fusee_sim::Scenario::Oriented, seed));

pub const TIMED_NONE: MutantScenario =
    named("timed none", |seed| timed(fusee_sim::Scenario::None, seed));

pub const TIMED_SCANS: MutantScenario =
    named("timed scans", |seed| timed(fusee_sim::Scenario::Scans, seed));

/// EC-oriented values change their redundancy. Of the faults, only delays, torn verbs and late requests of jobs happen.
pub const ORIENTED_QUIET: MutantScenario = named("oriented quiet", |seed| oriented(seed, &[]));

/// EC-oriented values change their redundancy as in `ORIENTED_QUIET`, and clients crash.
pub const ORIENTED_CRASHES: MutantScenario =
    named("oriented crashes", |seed| oriented(seed, &[fusee_sim::Fault::ClientCrash]));

fn oriented(seed: u64, with: &[fusee_sim::Fault]) {
    use fusee_sim::Fault::*;
    let options = RunOptions::new(fusee_sim::Scenario::Oriented, seed);
    let faults =
        [ClientCrash, NodeCrash, MasterRestart, RecoveryCrash, Join, Drain, LateVerb, Stop, Damage];
    let without = faults.into_iter().filter(|fault| !with.contains(fault)).collect();
    fail_if_broken(&RunOptions { operations: Some(400), without, ..options });
}
pub const CORRELATED: MutantScenario =
    named("correlated", |seed| timed(fusee_sim::Scenario::Correlated, seed));

/// A view change commits the word of a set.
pub const SETTLED_SET: MutantScenario = named("settled set", |_| settled_set::gives_no_value());

pub const TIMED_CUTS: MutantScenario =
    named("timed cuts", |seed| timed(fusee_sim::Scenario::Cuts, seed));

/// Clients that write coded values crash. Of the other faults, only delays, torn verbs and late requests of jobs
/// happen.
pub const CODED_CRASHES: MutantScenario = named("coded crashes", |seed| {
    use fusee_sim::Fault::*;
    let options = RunOptions::new(fusee_sim::Scenario::Redundancy, seed);
    let without = [NodeCrash, MasterRestart, RecoveryCrash, Join, Drain, LateVerb, Stop, Damage];
    fail_if_broken(&RunOptions { operations: Some(400), without: without.into(), ..options });
});

/// Memory nodes execute their last verbs without an answer before they are lost. No client crashes, so the lost objects
/// can be counted exactly.
pub const MUTED: MutantScenario = named("muted", |seed| {
    use fusee_sim::Fault::*;
    let options = RunOptions::new(fusee_sim::Scenario::Losses, seed);
    let without = [ClientCrash, RecoveryCrash].into();
    fail_if_broken(&RunOptions { with: [Mute].into(), without, ..options });
});

/// Short runs with scans, so that more of the scans happen while the index is being split.
pub const SHORT_SCANS: MutantScenario = named("short scans", |seed| {
    let options = RunOptions::new(fusee_sim::Scenario::Scans, seed);
    fail_if_broken(&RunOptions { operations: Some(400), ..options });
});

/// Sessions have little memory, and some of their control messages are lost.
pub const LOST_ANSWERS: MutantScenario = named("lost answers", |seed| {
    use fusee_sim::Fault::LostMessage;
    let options = RunOptions::new(fusee_sim::Scenario::Reuse, seed);
    let operations = Some(1_000);
    fail_if_broken(&RunOptions { operations, with: [LostMessage].into(), ..options });
});

/// Clients crash in short runs. A short run more often ends while leftovers of a crash remain, which the final checks
/// then see.
pub const TIMED_SHORT_CRASHES: MutantScenario = named("short crashes", |seed| {
    let options = RunOptions::new(fusee_sim::Scenario::Crashes, seed);
    fail_if_broken(&RunOptions { operations: Some(150), ..options });
});

pub const TIMED_SHORT_LOSSES: MutantScenario = named("short losses", |seed| {
    let options = RunOptions::new(fusee_sim::Scenario::Losses, seed);
    fail_if_broken(&RunOptions { operations: Some(200), ..options });
});

/// The scenarios in virtual time that are long: those of `fusee-bench sim`, and two of damage that a scrubber finds.
pub const TIMED: [&MutantScenario; 19] = [
    &SHORT_SCANS,
    &MUTED,
    &LOST_ANSWERS,
    &TIMED_SCANS,
    &TIMED_NONE,
    &CORRELATED,
    &SCRUB,
    &FREE_WORDS,
    &TIMED_CUTS,
    &TIMED_REDUNDANCY,
    &TIMED_ORIENTED,
    &TIMED_MIXED,
    &TIMED_INSERTS,
    &TIMED_CRASHES,
    &TIMED_LOSSES,
    &TIMED_REUSE,
    &TIMED_ELASTIC,
    &TIMED_SHORT_CRASHES,
    &TIMED_SHORT_LOSSES,
];

fn timed(scenario: fusee_sim::Scenario, seed: u64) {
    fail_if_broken(&RunOptions::new(scenario, seed));
}

fn fail_if_broken(options: &RunOptions) {
    if let Some(failure) = run(options).failure {
        panic!("{}", failure.what);
    }
}
