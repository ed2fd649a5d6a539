//! A test of the tests: every countermeasure of the protocol is taken out, one at a time, and the simulator must
//! notice.
//!
//! `cargo test -p fusee-sim --test mutants -- --nocapture` prints, for each countermeasure, its scenario, the first
//! failing seed, and the failure. A new countermeasure needs a scenario here; `survey` shows which scenarios notice it,
//! and how often.
//!
//! Without `FUSEE_TESTS=all` (and without `ONLY`) only every eighth countermeasure is taken out, so that the tests of
//! the workspace end soon.

mod hunt;
mod scenarios;
#[path = "../support/mod.rs"]
mod support;

use fusee_core::mutant::{Mutant, activate};
use fusee_sim::{RunOptions, run, shrink};

use hunt::{FailingSeed, attempt, hunt, switch};
use scenarios::MutantScenario;

/// Number of seeds that are tried for each mutant. The rarest failures occur once in a few hundred seeds.
const SEEDS: u64 = 20_000;

/// Number of seeds for scenarios in virtual time, whose runs are a few hundred times longer.
const TIMED_SEEDS: u64 = 40;

/// Number of seeds of each scenario that must pass without any mutant. Most scenarios have a test of their own with
/// more seeds.
const SEEDS_UNHARMED: u64 = 250;
const TIMED_SEEDS_UNHARMED: u64 = 10;
/// Number of seeds without a mutant for the scenarios in `LONG`, which take ten times as long as others.
const SEEDS_UNHARMED_LONG: u64 = 25;
const LONG: [&str; 4] = ["copies compared", "forgotten split", "demotion rate", "small blocks"];

/// Without `FUSEE_TESTS=all`, one of this many mutants is tried.
const SAMPLED: usize = 8;

/// The number of seeds in `survey`, and below it the number in `survey_timed`.
const SURVEYED: u64 = 600;
const SURVEYED_TIMED: u64 = 60;

/// Returns the scenario that must notice a mutant: the one in which the most seeds fail.
fn scenario(mutant: Mutant) -> &'static MutantScenario {
    use Mutant::*;
    match mutant {
        DeleteWritesZero | InsertLoserSucceeds | DeleteLoserSucceeds | ReadersSeeTentative
        | WritersSeeTentative | TentativeIsKnown => &scenarios::FIGHT,
        HalfIsAMajority | MajorityOverlooked | AnyValueWinsRule3 | Rule3WithoutPrimary
        | BackupsNotFixed | LoserDoesNotWait => &scenarios::ROUNDS,
        WithdrawalWritesZero
        | WithdrawalRestoresOldWord
        | IdentityUsedAgain
        | WholeWordsCompared
        | WithdrawsPrimaryFirst => &scenarios::STANDSTILL,
        LooksOnPrimary | LooksBeforeItsCas | LookOfALostCasCounts => &scenarios::EARLY_LOOK,
        FreedSlotNotDoubted => &scenarios::FREED_SLOT,
        NeverTentative | SettleKeepsTentative => &scenarios::BURSTS_CRASH,
        ObjectOnOneReplica => &scenarios::CRASH,
        InsertDoesNotLook | ReadsABackup => &scenarios::BURSTS,
        RecoveryCommitsTentative => &scenarios::LATE_INSERT,
        RecoverySkipsTheReadOfRule3 => &scenarios::OVERTAKEN,
        RecoveryIgnoresWithdrawnCopies | RecoveryLeavesOwnBackups | WithdrawnObjectFreed => {
            &scenarios::INSERT_CRASH
        }
        RecoveryReadsBackupsFirst
        | RecoveryLeavesForeignBackups
        | RecoveryExaminesLastObjectsOnly
        | RecoveryHandsOnTheLastObject => &scenarios::CLIENT_CRASH,
        HintIsTrusted | KeysNotCompared | SearchNowTrustsHint | WriteNowWinsUnseen => {
            &scenarios::MIXED
        }
        PrefixReadEarly => &scenarios::EARLY_PREFIX,
        LoserIgnoresNewView | SuspendedIsForgotten | LooksBeforeTheSwitch => &scenarios::NODE_LOSS,
        WritesBesideLostReplicas => &scenarios::LOST_REPLICA,
        StopsInDoubt => &scenarios::IN_DOUBT,
        LivingAreOver => &scenarios::MANY_DEATHS,
        SplitsTwice => &scenarios::SPLIT_ONCE,
        NobodyYields => &scenarios::REPLICAS_HAVE_TURNS,
        AsksForSplitsOnce => &scenarios::FORGOTTEN_SPLIT,
        GapsForgiveForEver => &scenarios::STARVED_MASTER,
        GapsAreListened => &scenarios::UNHEARD_NODES,
        SplitsSeparateNothing => &scenarios::CROWDED,
        ClockBeginsAnew => &scenarios::GONE,
        DepthUnbounded => &scenarios::ASKS_TOO_MUCH,
        ReadsBackupsWhileFrozen => &scenarios::CUT_OFF_PRIMARY,
        ReadsDoubtfulBackups | ManyReadsBackups => &scenarios::DOUBTFUL_BACKUPS,
        DemotionSpendsNothing => &scenarios::DEMOTION_RATE,
        PromotionSpendsNothing => &scenarios::PROMOTION_RATE,
        BytesAreVerbs => &scenarios::COUNTERS,
        SettlesPrimaryFirst => &scenarios::SETTLER_DIES,
        WrappedLivesStartAnew => &scenarios::WRAPPED,
        FreshFromBestHeader => &scenarios::HALF_SEALED,
        EarlierRepairerGoesOn => &scenarios::LATE_REPAIRS,
        PlaceGivenUpEarly | CopiesBitmaps => &scenarios::MOVES,
        WritesWhereAReplicaLeaves => &scenarios::LEFT_BEHIND,
        NewRegionLedAtOnce => &scenarios::TIMED_ELASTIC,
        ReusedAtOnce | ComparedIsNotSettled | WaitsWhileItActs => &scenarios::REUSE,
        MarksBeforeTheLook => &scenarios::EARLY_MARK,
        GenerationStays | LearnsFromOneReplica => &scenarios::SPECULATION_REUSE,
        WritesWhileFrozen | ChangeDoesNotWait | SwitchDoesNotWait | LoserFreesAtOnce
        | ClearsPrimaryFirst => &scenarios::SPLITS,
        RecoveryBeforeTheFence => &scenarios::TIMED_SHORT_CRASHES,
        ReadsUnheard | HalfVouches | OldAskVouches | SilentNodesVouch | ManyReadUnheard
        | WritesAnswerUnheard | ScansUnheard => &scenarios::UNHEARD,
        BarsOnHalf | BarsDoNotWait | LeasesWithoutContact | ClocksStandStill
        | BarredIsVouchedFor | LosersDoNotAsk | SuspendedLoserEnds | BarsFallEarly
        | BesideAsksNobody | LostBarsForgotten => &scenarios::BARS,
        SpeculationCasesBeforeItWrites
        | RecoveryWalksOneReplica
        | RecoveryDoesNotComplete
        | StaleSpeculationLoses => &scenarios::SPECULATION_CRASH,
        RecoverySkipsRecords => &scenarios::HALF_DELETED,
        NumberRefutedByPrimary => &scenarios::DELETED_BESIDE_BAR,
        RecordsComeLate => &scenarios::SPECULATION_CRASH,
        SettlingDoesNotComplete | SpeculationsAnywhere => &scenarios::SPECULATION_INDEX_LOSS,
        RegionsCopiedIncomplete => &scenarios::SPECULATION_HALF_MOVED,
        SpeculationsByOldHints => &scenarios::SPECULATION_RECURS,
        TurnsAreLives => &scenarios::RECURRING_TURN,
        SpeculatesOnLostPairs => &scenarios::LOST_SINGLE,
        JumpsEndWindows => &scenarios::TAKEOVER,
        ScansUnclearedEntries | ScansHalvesAnew | ScansPassUnproved | ScansPassFullPieces => {
            &scenarios::TIMED_SCANS
        }
        ScansDropPartsAhead => &scenarios::SHORT_SCANS,
        DamagedIsAnotherKeys | OtherKeyByItsStart | DamageStays => &scenarios::DAMAGE,
        SplitTrustsOneReplica | SplitReadsOnce => &scenarios::DAMAGED_SPLITS,
        CopiesDamage => &scenarios::DAMAGED_MOVES,
        ScrubLooksOnce | SteeredByItsKey => &scenarios::TIMED_MIXED,
        SettlesOnDamage => &scenarios::SCRUB,
        FreeWordsCount => &scenarios::FREE_WORDS,
        ComparesFewSlots => &scenarios::REUSE,
        ComparesPrimariesOnly => &scenarios::LOST_WORD,
        ComparesBesideWrites => &scenarios::BESIDE_A_WRITE,
        AnotherBitmapUnnoticed => &scenarios::LEFT_MARKS,
        MarksOfAnotherBitmap => &scenarios::SEEN_ELSEWHERE,
        MarksHalfWay | LateVerbsNotAwaited => &scenarios::LATE_MARK,
        AsksUnpinned => &scenarios::BESIDE_A_WRITE,
        AwaitsOnlyThePool => &scenarios::OWN_MEMORY_FIRST,
        RepairNotAwaited => &scenarios::LATE_REPAIR,
        LateObjectsForgotten => &scenarios::LATE_OBJECT,
        UnansweredReadsKeepObjects => &scenarios::UNANSWERED_READ,
        DroppedAttemptsKeepObjects => &scenarios::DROPPED_WRITE,
        RepairsUncommitted => &scenarios::HALF_WRITTEN,
        NewerViewIsDamage => &scenarios::NEWER_VIEW,
        SilentChunkIsLost => &scenarios::SILENT_CHUNK,
        GivenBackAtOnce => &scenarios::GIVEN_BACK,
        MixedDoesNotWait => &scenarios::SMALL_BLOCKS,
        MergedTakesLargerBase | HalvesStartAnew | ReturnsNoBase => &scenarios::BLOCK_BASES,
        BasesStay => &scenarios::EMPTIED,
        LaggardsForgotten | EmptiedDoesNotWait => &scenarios::LAGGARD,
        ZeroesBeforeTheBase => &scenarios::DIES_EMPTY,
        TornObjectsAreNew => &scenarios::TORN,
        MarksInUse => &scenarios::LEAVES,
        ZerosAreNew => &scenarios::ZEROS,
        SealsUnread => &scenarios::UNREAD,
        CopiesNoOwners => &scenarios::TIMED_ELASTIC,
        FrozenGrantTaken => &scenarios::FROZEN_GRANT,
        LateJobsObeyed => &scenarios::LATE_ORDERS,
        RebuildsFromFirstPlace | ChunkByPosition | ParityNotWritten => &scenarios::TIMED_REDUNDANCY,
        StripeGuessed => &scenarios::CODED_CRASHES,
        MoveLoserSucceeds | MoveLoserJudgesByBackups => &scenarios::MOVED_PAIRS,
        StoppedMoveLoserSucceeds | MovesWhileFrozen => &scenarios::MOVED_PAIRS_LOSS,
        OvertakenMoveDoesNotWait => &scenarios::MOVED_AT_ONCE,
        GoneBeforeTheSwitch
        | LossSettlesFew
        | RecoveryKnowsNothingGone
        | FollowersReadWhatIsLost => &scenarios::CUT_OFF_SINGLE,
        ParityNotCompleted | ParityAfterCas | CopiesFreedBeforeCommit | CopiesFreedByLoser => {
            &scenarios::TIMED_ORIENTED
        }
        CompareIgnoresCopies => &scenarios::COPIES_COMPARED,
        CopiesLeak | SecondCopyLeaks => &scenarios::ORIENTED_QUIET,
        CopiesOnOneNode | SealsFromFirstCopyOnly => &scenarios::TWO_NODES_LOST,
        OlderParityCounts => &scenarios::OLDER_PARITY,
        HintedReadsTrustParity => &scenarios::UNREAD_DATA,
        TornHeadersHideObjects => &scenarios::TORN_HEADERS,
        RestingBlockNotWalked => &scenarios::RESTING_BLOCK,
        TurnGoesBack | StrangerMovesInPlace | CopyWordsOverwritten => &scenarios::TURNED_PAIRS,
        MovesStaleInPlace => &scenarios::STALE_MOVE,
        CodedReadsAskSilentNodes => &scenarios::SILENT_COLUMN,
        FirstCopyWordDecides => &scenarios::LEFT_COPY_WORD,
        ChunksWithoutCopyWords | FirstColumnAddsParity => &scenarios::TIMED_ORIENTED,
        StaleHintPlaces => &scenarios::STALE_HINT,
        OlderViewPlaces => &scenarios::PLACED_EARLIER,
        FirstFoundPlaces => &scenarios::MOVED_MEANWHILE,
        RedundancyLoserSucceeds => &scenarios::NAMED_LOSER,
        MissedBesideGrants => &scenarios::LOST_ANSWERS,
        ResolvedFreesNothing => &scenarios::SUSPENDED_COMMIT,
        RecoveryKnowsOneTurn => &scenarios::ORIENTED_CRASHES,
        GetJoinsPosted
        | GetBelievesUncommittedSet
        | GetRidesPostedSet
        | GetComparesNoWords
        | PostedSetAbsorbs
        | OtherSetsAbsorb
        | FailedSetAbsorbs => &scenarios::CORRELATED,
        GetBelievesSettledSet => &scenarios::SETTLED_SET,
        StaleOrphansTaken => &scenarios::STALE_ORPHAN,
        OwnOrphansTakenMeanwhile => &scenarios::OWN_ORPHAN,
        EpochsPassEarly | ZeroedBlockReturnedAtOnce => &scenarios::TIMED_REUSE,
    }
}

/// Returns the seed at which the hunt for a mutant begins. For rare failures this is shortly before a seed that is
/// known to fail. If another seed fails first, the hunt takes longer; `first_seeds` finds a new beginning.
fn begin(mutant: Mutant, scenario: &MutantScenario) -> u64 {
    use Mutant::*;
    match (mutant, scenario.name) {
        (OvertakenMoveDoesNotWait, "moved at once") => 11_600,
        (ComparedIsNotSettled, "reuse") => 9_950,
        (PlaceGivenUpEarly, "moves") => 7_825,
        (ComparesFewSlots, "reuse") => 6_600,
        (GapsForgiveForEver, "starved master") => 2_230,
        (RecoveryKnowsOneTurn, "oriented crashes") => 2_025,
        (StripeGuessed, "coded crashes") => 1_605,
        (ReadersSeeTentative, "fight") => 1_600,
        (NeverTentative, "bursts+crash") => 1_040,
        (RecoveryIgnoresWithdrawnCopies, "insert crash") => 545,
        (LearnsFromOneReplica, "speculation reuse") => 490,
        (LoserFreesAtOnce, "splits") => 455,
        (NobodyYields, "replicas have turns") => 450,
        (SpeculationsAnywhere, "speculation index") => 415,
        (SettlingDoesNotComplete, "speculation index") => 270,
        (ScansDropPartsAhead, "short scans") => 255,
        (MissedBesideGrants, "lost answers") => 250,
        (FirstColumnAddsParity, "timed oriented") => 125,
        (ResolvedFreesNothing, "muted") => 75,
        (FailedSetAbsorbs, "correlated") => 100,
        (EpochsPassEarly, "timed reuse") => 75,
        (ChangeDoesNotWait, "timed losses") => 15,
        _ => 0,
    }
}

/// Returns the scenario in virtual time that must notice the mutant as well; `None` if no such scenario notices the
/// mutant with many seeds.
fn timed_scenario(mutant: Mutant) -> Option<&'static MutantScenario> {
    use Mutant::*;
    Some(match mutant {
        DeleteWritesZero | HalfIsAMajority | MajorityOverlooked | AnyValueWinsRule3
        | InsertDoesNotLook | LooksOnPrimary | DeleteLoserSucceeds | TentativeIsKnown => {
            &scenarios::TIMED_INSERTS
        }
        BackupsNotFixed | LoserDoesNotWait | HintIsTrusted | KeysNotCompared
        | ObjectOnOneReplica | ReadsABackup | ReadersSeeTentative | WritersSeeTentative
        | SearchNowTrustsHint | WriteNowWinsUnseen => &scenarios::TIMED_MIXED,
        WholeWordsCompared
        | NeverTentative
        | RecoveryHandsOnTheLastObject
        | RecoveryLeavesOwnBackups
        | RecoveryLeavesForeignBackups
        | RecoveryExaminesLastObjectsOnly => &scenarios::TIMED_CRASHES,
        InsertLoserSucceeds | ChangeDoesNotWait => &scenarios::TIMED_LOSSES,
        ResolvedFreesNothing => &scenarios::MUTED,
        _ => return None,
    })
}

// Promise LIN-16: Without any one countermeasure, a test fails.
#[test]
fn every_mutant_is_caught() {
    let _switch = switch();
    let mut missed = Vec::new();
    println!("{:32} {:13} {:>6}  noticed", "countermeasure", "scenario", "seeds");
    for mutant in mutants() {
        let stepwise = Some((scenario(*mutant), SEEDS));
        let timed = timed_scenario(*mutant).map(|scenario| (scenario, TIMED_SEEDS));
        for (scenario, seeds) in stepwise.into_iter().chain(timed) {
            let begin = begin(*mutant, scenario);
            match hunt(Some(*mutant), scenario, begin..begin + seeds) {
                Some(caught) => {
                    print(*mutant, scenario, &caught);
                    let unharmed = attempt(scenario, caught.seed);
                    assert_eq!(unharmed, Ok(()), "{}, seed {}", scenario.name, caught.seed);
                }
                None => missed.push((mutant, mutant.description(), scenario.name)),
            }
        }
    }
    assert!(missed.is_empty(), "not caught: {missed:#?}");
}

/// Returns whether the tests are to take as long as they need.
fn are_all() -> bool {
    std::env::var("FUSEE_TESTS").is_ok_and(|value| value == "all")
}

/// Returns the mutants whose names contain `ONLY`. Without `ONLY`, returns all mutants or a sample.
fn mutants() -> Vec<&'static Mutant> {
    let only = std::env::var("ONLY").unwrap_or_default();
    let is_whole = !only.is_empty() || are_all();
    if !is_whole {
        println!("SKIPPED: {} of {SAMPLED} mutants; FUSEE_TESTS=all tries all", SAMPLED - 1);
    }
    let named = Mutant::ALL.iter().filter(|mutant| format!("{mutant:?}").contains(&only));
    let mutants: Vec<_> = named.step_by(if is_whole { 1 } else { SAMPLED }).collect();
    assert!(!mutants.is_empty(), "no mutant has {only:?} in its name");
    mutants
}

/// With every countermeasure in place, no seed fails.
#[test]
fn without_a_mutant_nothing_is_caught() {
    let _switch = switch();
    let stepwise = scenarios::STEPWISE.map(|scenario| (scenario, SEEDS_UNHARMED));
    let timed = scenarios::TIMED.map(|scenario| (scenario, TIMED_SEEDS_UNHARMED));
    for (scenario, seeds) in stepwise.into_iter().chain(timed) {
        let seeds = if LONG.contains(&scenario.name) { SEEDS_UNHARMED_LONG } else { seeds };
        let seeds = if are_all() { seeds } else { seeds / 5 };
        if let Some(FailingSeed { seed, noticed }) = hunt(None, scenario, 0..seeds) {
            panic!("{}, seed {seed}: {noticed}", scenario.name);
        }
    }
}

/// A failing run is shortened. The shortened run fails in one way, however often it runs.
#[test]
fn a_failure_is_shortened() {
    let _switch = switch();
    let mutant = Mutant::InsertLoserSucceeds;
    let caught =
        hunt(Some(mutant), &scenarios::TIMED_INSERTS, 0..TIMED_SEEDS).expect("it is caught");
    activate(Some(mutant));
    let found = RunOptions::new(fusee_sim::Scenario::Inserts, caught.seed);
    let (short, outcome) = shrink(&found, 60);
    let again = run(&short);
    activate(None);
    let failure = outcome.failure.expect("the shortened run fails");
    assert_eq!(again.failure.expect("it fails again").what, failure.what);
    assert_eq!(again.trace.digest(), outcome.trace.digest());
    assert!(short.operations.is_some_and(|n| n < 500), "{short:?}");
    assert!(short.without.len() + usize::from(short.clients.is_some()) > 0, "{short:?}");
    let told = !failure.what.contains("no order") || (2..40).contains(&failure.history.len());
    assert!(told, "{failure:?}");
}

/// Prints the number of failing seeds of every scenario under every mutant. Takes minutes; `ONLY` selects mutants, `IN`
/// scenarios.
#[test]
#[ignore = "tells which scenario to choose, and tests nothing"]
fn survey() {
    survey_of(&scenarios::STEPWISE, SURVEYED);
}

/// Prints the numbers of failing seeds for the scenarios in virtual time. Takes many minutes.
#[test]
#[ignore = "tells which scenario to choose, and tests nothing"]
fn survey_timed() {
    survey_of(&scenarios::TIMED, SURVEYED_TIMED);
}

/// Prints the first of `SEEDS` seeds with which each scenario of `IN` fails, under each mutant of `ONLY`, or without a
/// mutant.
#[test]
#[ignore = "tells how rare a failure is, and tests nothing"]
fn first_seeds() {
    let _switch = switch();
    let var = |name| std::env::var(name).unwrap_or_default();
    let only = var("ONLY");
    let wanted = var("IN");
    let seeds = var("SEEDS").parse().unwrap_or(1000);
    let is_named = |m: &&Mutant| only.split(',').any(|named| named == format!("{m:?}"));
    let mutants = Mutant::ALL.iter().filter(is_named).copied().map(Some);
    let mutants: Vec<_> = mutants.chain(only.is_empty().then_some(None)).collect();
    let scenarios = scenarios::STEPWISE.into_iter().chain(scenarios::TIMED);
    for scenario in scenarios.filter(|s| wanted.split(',').any(|named| named == s.name)) {
        for mutant in &mutants {
            match hunt(*mutant, scenario, 0..seeds) {
                Some(FailingSeed { seed, noticed }) => {
                    println!("{mutant:?} {}, {seed}: {noticed}", scenario.name)
                }
                None => println!("{mutant:?} {}, none of {seeds}", scenario.name),
            }
        }
    }
}

fn survey_of(scenarios: &[&MutantScenario], seeds: u64) {
    let _switch = switch();
    for mutant in Mutant::ALL
        .iter()
        .filter(|m| format!("{m:?}").contains(&std::env::var("ONLY").unwrap_or_default()))
    {
        print!("{:32}", format!("{mutant:?}"));
        let wanted = std::env::var("IN").unwrap_or_default();
        let is_wanted =
            |s: &&&MutantScenario| wanted.is_empty() || wanted.split(',').any(|w| w == s.name);
        for scenario in scenarios.iter().filter(is_wanted) {
            let failing = hunt::count(Some(*mutant), scenario, seeds);
            print!(" {} {failing},", scenario.name);
        }
        println!(" of {seeds}");
    }
}

fn print(mutant: Mutant, scenario: &MutantScenario, caught: &FailingSeed) {
    let (mutant, FailingSeed { seed, noticed }) = (format!("{mutant:?}"), caught);
    println!("{mutant:32} {:13} {:6}  {noticed:.90}", scenario.name, seed + 1);
}
