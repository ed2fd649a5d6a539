//! Countermeasures that tests remove, one at a time.
//!
//! Every trap of the protocol has a countermeasure, and every countermeasure has a switch here. A test removes one and
//! expects the simulator to notice: a check that never fails proves nothing.
//!
//! The switches exist only with the feature `mutants`, which only tests turn on. Without it [`removed`] is the
//! constant `false`, and the compiler drops the faulty branch.
//!
//! One switch per process: a test that sets it must be the only one that runs.

macro_rules! mutants {
    ($($(#[doc = $doc:literal])+ $name:ident,)+) => {
        /// A countermeasure, named after the fault that its removal causes.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u32)]
        pub enum Mutant {
            $($(#[doc = $doc])+ $name,)+
        }

        impl Mutant {
            /// All countermeasures.
            pub const ALL: &[Mutant] = &[$(Mutant::$name,)+];

            /// Returns a description of the fault.
            pub fn description(self) -> &'static str {
                match self {
                    $(Mutant::$name => concat!($($doc,)+).trim_ascii(),)+
                }
            }
        }
    };
}

mutants! {
    // Changes of the view.
    /// Writers do not wait while their subtable or region is frozen.
    WritesWhileFrozen,
    /// Readers use the backups of a subtable whose primary is lost, before all sessions have left the primary.
    ReadsBackupsWhileFrozen,
    /// Objects are written to the remaining replicas while other sessions may still read from a lost one, which is
    /// only cut off.
    WritesBesideLostReplicas,
    /// Readers of a subtable whose primary is lost answer although the backups may be settled on another word: if one
    /// more backup is lost, the word that was read never existed.
    ReadsDoubtfulBackups,
    /// A SEARCH of many keys treats the first backup of a subtable without primary as its primary.
    ManyReadsBackups,
    /// A loser keeps waiting when the view changes, for a dead winner whose recovery waits for the change.
    LoserIgnoresNewView,
    /// A session does not report that suspended writes have yet to read their slots: other sessions may overwrite the
    /// words they look for.
    SuspendedIsForgotten,
    /// Blocks of a new region are handed out before all sessions know the region: a slot leads readers nowhere.
    NewRegionLedAtOnce,
    /// A memory node gets the room of a replica back while sessions may still read from it.
    PlaceGivenUpEarly,
    /// Objects are written to a region although sessions may still read from a replica that has left it.
    WritesWhereAReplicaLeaves,
    /// The master makes replicas equal before all sessions have left the older views.
    ChangeDoesNotWait,
    /// The master lets writes go on before suspended writes have read their slots, and before all readers have left
    /// the old places.
    SwitchDoesNotWait,
    /// A suspended write reads its slot before the replicas are equal.
    LooksBeforeTheSwitch,
    /// Settling writes the primary before the backups: readers see a word that is lost with the primary.
    SettlesPrimaryFirst,
    /// A write stops for a change although a verb that it posted may still execute.
    StopsInDoubt,
    /// A split clears the primary before the backups: if it is cut off in between, the backups are never cleared.
    ClearsPrimaryFirst,
    /// A region is copied with its free bitmap: if the copy becomes the primary, bits of objects that are in use again
    /// count.
    CopiesBitmaps,

    // Words that recur in a slot.
    /// DELETE leaves the same word every time: two deleters both win, and a CAS of an earlier
    /// round succeeds on the emptied slot.
    DeleteWritesZero,
    /// A withdrawing INSERT leaves the same word every time: a CAS of an earlier round succeeds
    /// on the slot.
    WithdrawalWritesZero,
    /// A withdrawing INSERT puts the old word back: its round seems to begin anew, and writers that lost it are mixed
    /// with later writers.
    WithdrawalRestoresOldWord,
    /// An attempt uses the object of the previous attempt: words that remain from the lost round seem to be part of
    /// the new one.
    IdentityUsedAgain,
    /// An object whose identity was in no CAS is allocated again at once: it can run through all generations in one
    /// epoch.
    GivenBackAtOnce,
    /// The generations of an emptied block begin where those of its last owner did.
    BasesStay,
    /// An emptied block is overwritten by zeros before its header says where generations go on: if its owner dies in
    /// between, they begin where they did before.
    ZeroesBeforeTheBase,
    /// The base of an emptied block ignores that some of its objects are far behind the others.
    LaggardsForgotten,
    /// A block that was emptied without a base does not wait for a window.
    EmptiedDoesNotWait,
    /// Recovery takes objects that a dead client had begun to write, and that are complete nowhere, for new: the next
    /// owner writes the same identities.
    TornObjectsAreNew,
    /// Recovery takes objects for new because they are zeros, though they had been allocated before.
    ZerosAreNew,
    /// The objects of a wrapped block begin with the base again, whatever their headers contain.
    WrappedLivesStartAnew,
    /// Only the header that shows the most use of a block decides which objects had been allocated.
    FreshFromBestHeader,
    /// A session sets the free bits of its own objects in blocks whose headers say that they are in use.
    MarksInUse,
    /// The header of a block is written before it was read: its base is lost.
    SealsUnread,

    // Winners of rounds.
    /// Half of the backups count as a majority: two writers win by Rule 2.
    HalfIsAMajority,
    /// The majority of another writer is overlooked: the writer with the smallest value wins as well.
    MajorityOverlooked,
    /// Every writer wins by Rule 3, not only the one with the smallest value.
    AnyValueWinsRule3,
    /// Rule 3 does not read the primary: a round that has ended is won once more.
    Rule3WithoutPrimary,
    /// The rules compare whole words: a writer that confirms or withdraws counts as two writers.
    WholeWordsCompared,
    /// The winner leaves other writers' words on the backups: the replicas never agree again.
    BackupsNotFixed,

    // Answers of losers, and their time.
    /// An INSERT that lost its slot to another key reports success: its pair is lost.
    InsertLoserSucceeds,
    /// A DELETE that lost to an UPDATE reports success: the key lives on.
    DeleteLoserSucceeds,
    /// An UPDATE that lost reports success before the winner commits: readers still see the value
    /// before both.
    LoserDoesNotWait,

    // INSERTs of one key into two slots.
    /// An INSERT commits without having looked for another entry of its key.
    InsertDoesNotLook,
    /// An INSERT looks on the primary, which does not show entries yet that are not committed.
    LooksOnPrimary,
    /// An INSERT looks before its CAS: two that look at the same time do not see each other.
    LooksBeforeItsCas,
    /// A look counts although the CAS before it failed: the next INSERT that looks on that backup does not see this
    /// one.
    LookOfALostCasCounts,
    /// A slot that was just freed on the backups counts as free: the primary may still show the key as live there.
    FreedSlotNotDoubted,
    /// An INSERT is never tentative: when the primary's node dies, an entry that was about to be withdrawn as a
    /// duplicate is taken for a committed one.
    NeverTentative,
    /// A withdrawing INSERT ends its round on the primary before its backups: the next writer of the slot finds its
    /// words there.
    WithdrawsPrimaryFirst,
    /// With one index replica, an INSERT does not check an entry that was tentative at its first READ.
    TentativeIsKnown,
    /// With one index replica, readers see entries that may be withdrawn.
    ReadersSeeTentative,
    /// With one index replica, writers take an entry that may be withdrawn for the key.
    WritersSeeTentative,

    // Places where a key is found.
    /// Buckets are read from a backup: operations see words that are not committed.
    ReadsABackup,
    /// A hint is not compared with the slot: an old value is read, or a write of an old round is
    /// taken for a lost conflict.
    HintIsTrusted,
    /// Keys with the same fingerprint are taken for the same key.
    KeysNotCompared,
    /// The start of an object counts as a proof although it may have been read before the slot: at that time the
    /// memory may have held another object, or parts of both.
    PrefixReadEarly,
    /// A synchronous SEARCH does not compare its hint with the slot: it answers with an old value.
    SearchNowTrustsHint,
    /// A synchronous write ignores the results of its CASes: two writers win one round.
    WriteNowWinsUnseen,

    // Damage.
    /// An object that fails its CRC counts as another key's: an INSERT adds the key once more.
    DamagedIsAnotherKeys,
    /// An object whose start shows another key, and whose CRC was not checked, counts as another key's.
    OtherKeyByItsStart,
    /// A damaged replica stays damaged: when the good ones are lost, so is the pair.
    DamageStays,
    /// A repair that may still execute counts as lost: it executes when its place holds another object.
    RepairNotAwaited,
    /// The object of a word that is not committed is repaired: it may not be on its other replicas yet.
    RepairsUncommitted,
    /// The object of a word that is not committed counts as damaged even if the view has none of its replicas on the
    /// word's node.
    NewerViewIsDamage,
    /// Chunks of an EC-oriented pair on a silent node count as lost.
    SilentChunkIsLost,
    /// A split believes the first replica of an object: an entry goes to a subtable where its key is not looked for.
    SplitTrustsOneReplica,
    /// A split does not move entries whose keys are longer than its first READ.
    SplitReadsOnce,
    /// Each wait of an operation restarts its clock.
    ClockBeginsAnew,
    /// A session asks for splits that keep all keys together that occupy a new key's slots.
    SplitsSeparateNothing,
    /// The master splits subtables that are much deeper than the rest of the index.
    DepthUnbounded,
    /// A region is copied from one replica, damage included.
    CopiesDamage,
    /// A region is copied without a list of its block owners: a new primary gives their blocks to other sessions.
    // Promise CHG-6 | mutant `CopiesNoOwners`
    CopiesNoOwners,
    /// A session takes a block of a region that is being copied: if the new replica's table was filled before, the
    /// block is free there.
    // Promise MEM-28 | mutant `FrozenGrantTaken`
    FrozenGrantTaken,
    /// A memory node obeys a late request of a job that has ended: it forgets owners recorded since then.
    LateJobsObeyed,

    /// A session takes a block over from an earlier owner, by an outdated record of the master, while another of its
    /// operations gets the block from the pool: the session has it twice.
    StaleOrphansTaken,
    /// A session takes back its own orphaned block while another of its operations may get that block from the pool.
    OwnOrphansTakenMeanwhile,

    // Moves.
    /// The loser of an UPDATE reports success though a Move has won, which wrote the old value (rule L).
    MoveLoserSucceeds,
    /// The loser of an UPDATE judges the winner by a backup, not by the primary after the end of the round.
    MoveLoserJudgesByBackups,
    /// A suspended loser finds the word of a Move, and counts itself as overwritten.
    StoppedMoveLoserSucceeds,
    /// A Move that loses frees its object and reports the loss before the round has ended.
    OvertakenMoveDoesNotWait,
    /// A Move does not wait for the end of a change of the view.
    MovesWhileFrozen,

    // The work table.
    /// A get takes the result of another get that was posted before it: it misses a write in between.
    GetJoinsPosted,
    /// A get takes the value of a set that has not replaced the word of its slot: other readers may have seen the
    /// winner's value.
    GetBelievesUncommittedSet,
    /// A get takes the value of a set whose commit was posted before the get began: another write may have replaced
    /// it.
    GetRidesPostedSet,
    /// A get takes the value of a set that a change of the view committed at an unknown time.
    GetBelievesSettledSet,
    /// A get does not compare the word that it READs with the one that its leader has found.
    GetComparesNoWords,
    /// A set is acknowledged with one that was posted before it.
    PostedSetAbsorbs,
    /// An UPDATE is acknowledged with an UPSERT: it succeeds without a key.
    OtherSetsAbsorb,
    /// A set is acknowledged with one that has failed.
    FailedSetAbsorbs,

    // Coded regions.
    /// A speculative write puts the word of a coded object on backups before its chunks are complete: nothing
    /// completes the object.
    StripeGuessed,
    /// A column is filled with the chunks of another one, as if they were replicas.
    RebuildsFromFirstPlace,
    /// A joining column gets the chunks of its position, which another column may have.
    ChunkByPosition,
    /// A coded object is written only to as many columns as a reader needs: one lost column loses the object.
    ParityNotWritten,
    /// No chunk is rebuilt in a block whose header is incomplete on all columns.
    TornHeadersHideObjects,

    // Pairs without redundancy.
    /// A change that loses pairs without redundancy settles only the subtables that have lost a replica: a round that
    /// began from a lost pair goes on when other sessions have seen that its key is gone.
    LossSettlesFew,
    /// A key counts as gone before the change has switched: other sessions read its node, or win a round that began
    /// from its word.
    GoneBeforeTheSwitch,
    /// Recovery takes a slot whose pair is gone for one in use: the words that an INSERT has left there stay.
    RecoveryKnowsNothingGone,
    /// A get that compares words answers with a lost pair, as long as the pair's word stands.
    FollowersReadWhatIsLost,

    // EC-oriented regions.
    /// The objects of a region whose places change get no parity: a lost chunk takes the copy with it, or the copy
    /// lies where another chunk comes.
    ParityNotCompleted,
    /// The parity of an object is written after its word has been put there: the object loses its copy and has no
    /// parity yet.
    ParityAfterCas,
    /// A Move in place frees the copy of the object before the new word is committed.
    CopiesFreedBeforeCommit,
    /// The loser of a Move in place frees the copy of the old word as well.
    CopiesFreedByLoser,
    /// A Move in place goes back to the previous turn instead of the next one: a word recurs.
    TurnGoesBack,
    /// A session that does not own a block moves an object of the block in place.
    StrangerMovesInPlace,
    /// A Move in place relies on a word that it read before another Move of its session ended: both write one turn.
    MovesStaleInPlace,
    /// The header of a block does not say that an object of the block is being moved: recovery does not look for the
    /// word.
    RestingBlockNotWalked,
    /// Recovery looks for the first word of an object only.
    RecoveryKnowsOneTurn,
    /// The comparison with the index does not know that words keep copies.
    CompareIgnoresCopies,
    /// A Move in place overwrites existing copy words.
    CopyWordsOverwritten,
    /// A session that puts copy words checks only the first one, and takes the others for its own.
    FirstCopyWordDecides,
    /// A rebuilt chunk gets no copy words: when the other chunks are lost, the copies cannot be found.
    ChunksWithoutCopyWords,
    /// The objects of a region get their parity only if its first column is lost: the loss of another column leaves
    /// them without.
    FirstColumnAddsParity,
    /// Coded values are read from nodes that do not answer, although others have enough chunks.
    CodedReadsAskSilentNodes,
    /// The session that has freed an object does not free its copy.
    CopiesLeak,
    /// A session that frees the copies of an object finds only the first one.
    SecondCopyLeaks,
    /// Both copies of an object are on one memory node: they are lost together.
    CopiesOnOneNode,
    /// Parity is made of an object's first copy only, which is lost together with a chunk.
    SealsFromFirstCopyOnly,
    /// Parity counts although it does not agree with the data: it may be of a life many lives
    /// before, whose identity recurs now.
    // Promise RED-12 | mutant `OlderParityCounts`
    OlderParityCounts,

    // Objects.
    /// An object is written to its first replica only: it is lost with that node.
    ObjectOnOneReplica,

    // Memory that is used again.
    /// A freed object is used again while operations that know it run. (In the same generation, as if this had
    /// happened 32 times.)
    ReusedAtOnce,
    /// An object has the same generation at every use: a hint of an earlier life leads to it.
    GenerationStays,
    /// Bits that a READ of the free bitmap shows count as seen before that READ: an operation that began in between
    /// may know the objects.
    MarksBeforeTheLook,
    /// The generation of an object is learnt from its first replica: a generation that stands on another replica
    /// recurs.
    LearnsFromOneReplica,
    /// The loser of a round frees its object while its word may still stand on a backup.
    LoserFreesAtOnce,
    /// A suspended write whose commit was posted frees nothing when it is resolved: the object that it replaced leaks.
    ResolvedFreesNothing,
    /// A withdrawing INSERT frees its own object, which the slot still names.
    WithdrawnObjectFreed,
    /// An object that no slot keeps is used again although the session that freed it may still set its bit.
    ComparedIsNotSettled,
    /// An operation stays pinned while it waits for memory: objects that it may know never become reclaimable.
    WaitsWhileItActs,
    /// A keeper takes an epoch for ended when the epoch before it has ended.
    EpochsPassEarly,
    /// A block goes back to the pool as soon as it is zeros: an operation that knows one of its objects meets another
    /// object in the same generation.
    ZeroedBlockReturnedAtOnce,
    /// A comparison looks only at the first slots of every subtable.
    ComparesFewSlots,
    /// A comparison looks at primaries only: a word that a lost write has left on a backup may be settled on.
    ComparesPrimariesOnly,
    /// A comparison includes blocks with running writes: objects that no slot keeps yet count as garbage.
    ComparesBesideWrites,
    /// A session does not notice that a block has another free bitmap: bits that were lost with the old one are not
    /// missed.
    AnotherBitmapUnnoticed,
    /// Bits that were seen in one free bitmap are cleared in the bitmap that has replaced it.
    MarksOfAnotherBitmap,
    /// A session that failed after it had set some bits goes on setting bits, and reports then that all are set.
    MarksHalfWay,
    /// A verb that sets a bit counts as lost although it may still execute: a comparison sets the bit as well.
    LateVerbsNotAwaited,
    /// A session takes a missed block, although another of its requests may be about to get the answer that grants it.
    MissedBesideGrants,
    /// An operation asks for a block without being pinned: the view by which the block was recorded may have ended.
    AsksUnpinned,
    /// Memory nodes take also those sessions for ended that live below the bound.
    LivingAreOver,
    /// A subtable is split once more for sessions that asked during its split.
    SplitsTwice,
    /// A kind of change that is always wanted keeps later kinds from their turn.
    NobodyYields,
    /// A writer that waits for a larger index asks for it only once.
    AsksForSplitsOnce,
    /// A master that never listens for long never takes a member or session for gone.
    GapsForgiveForEver,
    /// A part of the time for which a master is away counts as listened.
    GapsAreListened,
    /// An operation that waits for a new region does not use memory of its session that becomes free.
    AwaitsOnlyThePool,

    // Recovery of clients, and settling after the loss of a memory node.
    /// Recovery reads the backups' slots before the primary's.
    RecoveryReadsBackupsFirst,
    /// Recovery commits an INSERT that may have been about to find a duplicate.
    RecoveryCommitsTentative,
    /// A session ends in order although the WRITE of an object may still execute, in a block that has another owner by
    /// then.
    LateObjectsForgotten,
    /// A write that fails because a READ had no answer keeps its object, although none of its verbs can still execute.
    UnansweredReadsKeepObjects,
    /// A write that is dropped between two phases keeps its object, and its session leaves in order.
    DroppedAttemptsKeepObjects,
    /// Recovery takes an INSERT that was withdrawing for one that has withdrawn.
    RecoveryIgnoresWithdrawnCopies,
    /// Recovery confirms or withdraws an INSERT on the primary, and not on all backups before.
    RecoveryLeavesOwnBackups,
    /// Recovery commits while a backup holds the word of a writer that lost.
    RecoveryLeavesForeignBackups,
    /// Recovery decides by Rule 3 without another READ of the primary.
    RecoverySkipsTheReadOfRule3,
    /// Recovery examines only the last object of every size class.
    RecoveryExaminesLastObjectsOnly,
    /// Recovery hands on an object that the dead client has used.
    RecoveryHandsOnTheLastObject,
    /// Settling keeps a tentative word.
    SettleKeepsTentative,

    // Speculative writes: UPDATEs and DELETEs that CAS the backups before they have read the slot.
    /// A speculative write posts its CAS before the object: its word stands on a node that lacks the object.
    SpeculationCasesBeforeItWrites,
    /// A speculative write uses a hint of any age: the hint's word may have recurred, on its way to the primary.
    SpeculationsByOldHints,
    /// A speculative write uses a hint whose pair was lost with its only memory node: the key does not exist, and
    /// other keys may use the slot.
    SpeculatesOnLostPairs,
    /// The newest epoch decides when the window of an emptied block is over; that epoch jumps when another master
    /// takes over.
    JumpsEndWindows,
    /// Hints of EC-oriented pairs count for as many epochs as others, though one life has several words there.
    TurnsAreLives,
    /// A speculative write ignores where its object lies: if only the word survives, it leads nowhere.
    SpeculationsAnywhere,
    /// A speculative write without proof that its hint was right takes itself for the loser of a round that may have
    /// ended before it began.
    StaleSpeculationLoses,
    /// Recovery looks for objects on one replica of a block only.
    RecoveryWalksOneReplica,
    /// Recovery goes on with a round although its object is not on all replicas.
    RecoveryDoesNotComplete,
    /// Settling gives a slot a word whose object is not on all replicas.
    SettlingDoesNotComplete,
    /// Settling does not complete the log object of a DELETE: it seems new when its only replica is lost, and is freed
    /// while its next life is in use.
    SettlingForgetsLogs,
    /// A replica of a region leaves with the only complete object of a dead client, whose word stays in the index.
    RegionsCopiedIncomplete,

    // Memory that no operation reads.
    /// A scrubber reports damage although the slot may hold another word by now.
    ScrubLooksOnce,
    /// Slots that differ are settled on words that lead to nothing.
    SettlesOnDamage,
    /// A free word of unknown origin wins over an entry.
    FreeWordsCount,

    // Sessions that are cut off together with a memory node.
    /// A session without a valid lease counts its reads, whatever the views of the members.
    ReadsUnheard,
    /// Half of the members are enough to vouch for reads.
    HalfVouches,
    /// A question to the members counts for operations that began after it was asked.
    OldAskVouches,
    /// Members that do not answer count as members that show no later view.
    SilentNodesVouch,
    /// A SEARCH of many keys answers without asking the members.
    ManyReadUnheard,
    /// A write answers that the key exists, or does not, without asking the members.
    WritesAnswerUnheard,

    // Backup reads.
    /// A primary counts as barred although no more than half of the members bar it.
    BarsOnHalf,
    /// Backups are read as soon as the primary is barred: other sessions still have valid leases, and read the
    /// primary.
    BarsDoNotWait,
    /// A master that only a few members hear grants leases.
    LeasesWithoutContact,
    /// Clocks stand still while a process sleeps: a master that wakes up grants leases from an old contact.
    ClocksStandStill,
    /// A member that bars a primary vouches for reads from that primary.
    BarredIsVouchedFor,
    /// The loser of an UPDATE is acknowledged although its winner may have been read before the UPDATE began.
    LosersDoNotAsk,
    /// A suspended loser, or a speculative write whose round may have ended before it began, is acknowledged
    /// although its winner may have been read before.
    SuspendedLoserEnds,
    /// Bars are taken back when a member hears of the change that is to settle the slots that were read under
    /// them.
    BarsFallEarly,
    /// A backup read does not ask for a later view, of which its backups know nothing.
    BesideAsksNobody,
    /// During a change, more than half of the remaining members are enough to vouch.
    LostBarsForgotten,

    // Scans.
    /// An entry that a split has not cleared yet is shown where it was.
    ScansUnclearedEntries,
    /// The halves of a subtable that is split during a scan are scanned from their beginning.
    ScansHalvesAnew,
    /// An object that does not match its slot on one replica is not read from the others.
    ScansPassUnproved,
    /// A slot is skipped where a piece is full.
    ScansPassFullPieces,
    /// A session that has not heard of a split drops the parts of the cursor that lie in the halves.
    ScansDropPartsAhead,
    /// A scan without a valid lease counts its reads without asking the members.
    ScansUnheard,

    // Switches.
    /// The result of a steered READ counts if it is an object of the key, perhaps an old one.
    SteeredByItsKey,

    // Rates and counters.
    /// Demotion is not charged to its rate.
    DemotionSpendsNothing,
    /// Promotion is not charged to its rate.
    PromotionSpendsNothing,
    /// The bytes that a session reports as moved are its number of verbs.
    BytesAreVerbs,

    // Callers of recovery.
    /// A master does not fence the repairs of an earlier master: their verbs execute among its own.
    EarlierRepairerGoesOn,
    /// A client is recovered before it is fenced: verbs that it has posted execute afterwards.
    RecoveryBeforeTheFence,
}

#[cfg(feature = "mutants")]
mod switch {
    use core::sync::atomic::{AtomicU32, Ordering};

    use super::Mutant;

    /// 0, or the number of the mutant plus 1.
    static ACTIVE: AtomicU32 = AtomicU32::new(0);

    /// Removes one countermeasure, or none, in the whole process.
    pub fn activate(mutant: Option<Mutant>) {
        // Relaxed: set before the threads that read it are started.
        ACTIVE.store(mutant.map_or(0, |m| m as u32 + 1), Ordering::Relaxed);
    }

    /// Returns whether this countermeasure is removed.
    pub fn removed(mutant: Mutant) -> bool {
        ACTIVE.load(Ordering::Relaxed) == mutant as u32 + 1
    }
}

#[cfg(feature = "mutants")]
pub use switch::{activate, removed};

/// Returns whether this countermeasure is removed.
#[cfg(not(feature = "mutants"))]
pub const fn removed(_: Mutant) -> bool {
    false
}
