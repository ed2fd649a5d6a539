//! Countermeasures that tests take out, one at a time.
//!
//! Every trap of the protocol has a countermeasure, and every countermeasure has a switch here. A
//! test removes one and expects the simulator to notice: a check that never fails proves nothing.
//!
//! The switches exist only with the feature `mutants`, which nothing but tests turns on. Without
//! it [`removed`] is the constant `false`, and the compiler drops the faulty branch.
//!
//! One switch per process: a test that sets it must be the only one that runs.

macro_rules! mutants {
    ($($(#[doc = $doc:literal])+ $name:ident,)+) => {
        /// A countermeasure, named after what is done without it.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u32)]
        pub enum Mutant {
            $($(#[doc = $doc])+ $name,)+
        }

        impl Mutant {
            /// All of them.
            pub const ALL: &[Mutant] = &[$(Mutant::$name,)+];

            /// What goes wrong without the countermeasure.
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
    /// Readers use the backups of a subtable whose primary is lost before everybody has left the
    /// primary.
    ReadsBackupsWhileFrozen,
    /// Objects are written to the replicas that are left while others may still read from a lost one,
    /// which is only cut off.
    WritesBesideLostReplicas,
    /// Readers of a subtable whose primary is lost answer although the backups may come to another
    /// word: if one more is lost, what was read has never been.
    ReadsDoubtfulBackups,
    /// A SEARCH of many keys takes the first backup of a subtable that has no primary for one.
    ManyReadsBackups,
    /// A loser waits on when the view changes: for a winner that is dead, and whose recovery waits
    /// for the change.
    LoserIgnoresNewView,
    /// A session does not tell that suspended writers have yet to look: others may overwrite what they
    /// look for.
    SuspendedIsForgotten,
    /// Blocks of a new region are handed out before everybody knows it: a slot leads readers
    /// nowhere.
    NewRegionLedAtOnce,
    /// A memory node gets the room of a replica back that some may still read from.
    PlaceGivenUpEarly,
    /// Objects are written to a region although some may still read from a replica that has left it.
    WritesWhereAReplicaLeaves,
    /// The master makes replicas equal before everybody has left the older views.
    ChangeDoesNotWait,
    /// The master lets writes go on before those that were suspended have looked, and before all
    /// readers have left the old places.
    SwitchDoesNotWait,
    /// A suspended writer looks before the replicas are equal.
    LooksBeforeTheSwitch,
    /// Settling writes the primary before the backups: readers see a word that is lost with the primary.
    SettlesPrimaryFirst,
    /// A writer stops for a change although something that it has posted may still execute.
    StopsInDoubt,
    /// A split clears the primary before the backups: where it is cut off in between, nobody clears them.
    ClearsPrimaryFirst,
    /// A region is copied with its free bitmap: when the copy comes first, bits of objects that are in
    /// use again count.
    CopiesBitmaps,

    // A word that recurs in a slot.
    /// DELETE leaves the same word every time: two deleters both win, and a CAS of an earlier
    /// round succeeds on the emptied slot.
    DeleteWritesZero,
    /// A withdrawing INSERT leaves the same word every time: a CAS of an earlier round succeeds
    /// on the slot.
    WithdrawalWritesZero,
    /// A withdrawing INSERT puts the old word back: its round seems to begin anew, and writers
    /// that lost it are mixed with writers that come later.
    WithdrawalRestoresOldWord,
    /// An attempt uses the object of the one before: what stands somewhere from the lost round is
    /// taken for a part of the new one.
    IdentityUsedAgain,
    /// An object that no CAS has mentioned is allocated again at once: it can run through all
    /// generations in one epoch.
    GivenBackAtOnce,
    /// The generations of an emptied block begin where those of its last owner did.
    BasesStay,
    /// An emptied block is overwritten by zeros before its header tells where generations go on: if its
    /// owner dies in between, they begin where they did before.
    ZeroesBeforeTheBase,
    /// The base of an emptied block leaves out that some of its objects are far behind the others.
    LaggardsForgotten,
    /// A block that was emptied without a base does not wait for a window.
    EmptiedDoesNotWait,
    /// Of the objects that a dead client had begun to write, recovery takes for new what is complete
    /// nowhere: the next owner writes the same identities.
    TornObjectsAreNew,
    /// Recovery takes objects for new that are zeros, though they had been allocated before.
    ZerosAreNew,
    /// In a wrapped block objects begin with the base again, whatever stands in their headers.
    WrappedLivesStartAnew,
    /// Of the headers of a block only the one that says most of its use tells what had been allocated.
    FreshFromBestHeader,
    /// A session marks objects of its own in blocks whose headers say that they are in use.
    MarksInUse,
    /// The header of a block is written before it was read: nobody learns of the base any more.
    SealsUnread,

    // Who is the last writer of a round.
    /// Half of the backups count as a majority: two writers win by Rule 2.
    HalfIsAMajority,
    /// The majority of another writer is overlooked: who has the smallest value wins beside it.
    MajorityOverlooked,
    /// Everybody wins by Rule 3, not only the smallest value.
    AnyValueWinsRule3,
    /// Rule 3 does not look at the primary: a round that is over is won once more.
    Rule3WithoutPrimary,
    /// The rules compare whole words: to those who come later a writer that confirms or withdraws
    /// is two.
    WholeWordsCompared,
    /// The winner leaves the backups alone that others took: they never agree again.
    BackupsNotFixed,

    // What a loser may say, and when.
    /// An INSERT that lost its slot to another key reports success: its pair is lost.
    InsertLoserSucceeds,
    /// A DELETE that lost to an UPDATE reports success: the key lives on.
    DeleteLoserSucceeds,
    /// An UPDATE that lost reports success before the winner commits: readers still see the value
    /// before both.
    LoserDoesNotWait,

    // Two INSERTs of one key into two slots.
    /// INSERT commits without having looked for another entry of its key.
    InsertDoesNotLook,
    /// INSERT looks on the primary, where entries on their way do not stand yet.
    LooksOnPrimary,
    /// INSERT looks before its CAS: two that look at the same time see nothing of each other.
    LooksBeforeItsCas,
    /// A look counts although the CAS before it failed: who looks next on that backup does not see
    /// this INSERT.
    LookOfALostCasCounts,
    /// A slot that was just freed on the backups is taken for free: the primary may still show the
    /// key as live there.
    FreedSlotNotDoubted,
    /// INSERT is never tentative: when the primary's node dies, an entry that was about to be
    /// withdrawn as a duplicate is taken for a committed one.
    NeverTentative,
    /// A withdrawing INSERT ends its round on the primary before its backups: the next writer of
    /// the slot meets what is left of it.
    WithdrawsPrimaryFirst,
    /// With one index replica, an entry that was tentative from the beginning is not looked into.
    TentativeIsKnown,
    /// With one index replica, readers see entries that may be withdrawn.
    ReadersSeeTentative,
    /// With one index replica, writers take an entry for the key that may be withdrawn.
    WritersSeeTentative,

    // Where a key is found.
    /// Buckets are read from a backup: operations see what is not committed.
    ReadsABackup,
    /// A hint is not compared with the slot: an old value is read, or a write of an old round is
    /// taken for a lost conflict.
    HintIsTrusted,
    /// Keys with the same fingerprint are taken for the same key.
    KeysNotCompared,
    /// The start of an object counts as a proof although it may have been read before the slot: while
    /// another object was there, or one half and half.
    PrefixReadEarly,
    /// A SEARCH on the spot does not compare its hint with the slot: it answers with an old value.
    SearchNowTrustsHint,
    /// A write on the spot does not look at what its CASes found: two writers win one round.
    WriteNowWinsUnseen,

    // Damage.
    /// An object that fails its CRC counts as another key's: an INSERT adds the key once more.
    DamagedIsAnotherKeys,
    /// So does one whose start shows another key, read without its CRC.
    OtherKeyByItsStart,
    /// A damaged replica stays as it is: when the good ones are lost, so is the pair.
    DamageStays,
    /// A repair that may still execute is taken for lost: it comes when the object is another one.
    RepairNotAwaited,
    /// What a word that is not committed leads to is repaired: it need not be elsewhere yet.
    RepairsUncommitted,
    /// What such a word leads to is taken for damage also where the view has no replica beside the word.
    NewerViewIsDamage,
    /// Of an EC-oriented pair the chunks that a silent node has count as lost.
    SilentChunkIsLost,
    /// A split believes the first replica of an object: an entry goes where its key is not looked for.
    SplitTrustsOneReplica,
    /// A split leaves entries where they are whose keys are longer than what it reads first.
    SplitReadsOnce,
    /// The clock of an operation begins anew with each of its waits.
    ClockBeginsAnew,
    /// A session asks for splits that leave all keys together which are in the way of a new one.
    SplitsSeparateNothing,
    /// The master splits what is much deeper than the rest of the index.
    DepthUnbounded,
    /// A region is copied from one replica, damage included.
    CopiesDamage,
    /// A region is copied without telling the node whose blocks are whose: should it lead, it gives them
    /// to others.
    CopiesNoOwners,
    /// A session takes a block of a region that is being copied: where the new replica's table was filled before, it
    /// stays free.
    FrozenGrantTaken,
    /// A memory node does what a job asks for that is over: it forgets whose blocks are whose since.
    LateJobsObeyed,

    /// A session takes a block over by what the master still has of an earlier owner, while another of its operations
    /// gets the block from the pool: it has it twice.
    StaleOrphansTaken,
    /// A session takes back what it has left itself, while another of its operations may be granted that by the pool.
    OwnOrphansTakenMeanwhile,

    // Moves.
    /// The loser of an UPDATE reports success though a Move has won, which wrote the old value (rule L).
    MoveLoserSucceeds,
    /// It goes by what a backup shows, not by what the primary shows when the round has ended.
    MoveLoserJudgesByBackups,
    /// A loser that was suspended finds the word of a Move, and takes itself for overwritten.
    StoppedMoveLoserSucceeds,
    /// A Move that loses frees its object and reports so before the round has ended.
    OvertakenMoveDoesNotWait,
    /// A Move does not wait for the end of a change of the view.
    MovesWhileFrozen,

    // The work table.
    /// A get takes what another one finds that was posted before it: a write in between is missed.
    GetJoinsPosted,
    /// A get takes the value of a set that has not replaced the word of its slot: others may have read the winner's.
    GetBelievesUncommittedSet,
    /// A get takes the value of a set whose commit was posted before it: somebody may have replaced that by now.
    GetRidesPostedSet,
    /// The same of a set that has posted none: a change of the view has put its word there, nobody knows when.
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
    /// A speculative write puts the word of a coded object on backups while its chunks are on their way: nobody
    /// completes it.
    StripeGuessed,
    /// A column is filled with the chunks of another one, as if they were replicas.
    RebuildsFromFirstPlace,
    /// A column that comes gets the chunks of its position, which another one may have.
    ChunkByPosition,
    /// A coded object is written to as many columns as it takes to read it: it is lost with one of them.
    ParityNotWritten,
    /// No chunk is made anew in a block whose header is half written on all columns.
    TornHeadersHideObjects,

    // Pairs without redundancy.
    /// A change that loses pairs without redundancy settles only the subtables that have lost a replica: a round that
    /// began from a lost pair goes on when others have seen that its key is gone.
    LossSettlesFew,
    /// A key is gone before the change has switched: others read its node, or win a round that began from its word.
    GoneBeforeTheSwitch,
    /// Recovery takes a slot whose pair is gone for one in use: what an INSERT has left there stays.
    RecoveryKnowsNothingGone,
    /// A get that compares words answers with a pair that is lost, as long as its word stands.
    FollowersReadWhatIsLost,

    // EC-oriented regions.
    /// The objects of a region whose places change get no parity: who has lost a chunk has lost the copy with it, or it
    /// is where another chunk comes.
    ParityNotCompleted,
    /// The parity of an object is written when its word has been put there: it has lost its copy without any.
    ParityAfterCas,
    /// Who moves an object in place sets its copy free before the word is committed.
    CopiesFreedBeforeCommit,
    /// Who loses the round of a Move in place sets the copy of the old word free as well.
    CopiesFreedByLoser,
    /// A word goes back to the turn before instead of the next one: it comes back.
    TurnGoesBack,
    /// An object is moved in place by who does not own its block.
    StrangerMovesInPlace,
    /// A Move in place goes by the word that it has read before another one of its session ended: both write one turn.
    MovesStaleInPlace,
    /// The header of a block is not told that an object in it is moved: recovery does not look for the word.
    RestingBlockNotWalked,
    /// Recovery looks for the first word of an object only.
    RecoveryKnowsOneTurn,
    /// The comparison with the index does not know that words keep copies.
    CompareIgnoresCopies,
    /// Who moves an object in place takes no heed of the copy word that is there.
    CopyWordsOverwritten,
    /// Who puts copy words looks at its first one only, and takes the others for its own.
    FirstCopyWordDecides,
    /// A chunk that is made anew gets no copy words: when the others are lost nobody knows where the copies are.
    ChunksWithoutCopyWords,
    /// The objects of a region get their parity only if its first column is lost: after another one they have none.
    FirstColumnAddsParity,
    /// Coded values are read from nodes that do not answer, although others have enough chunks.
    CodedReadsAskSilentNodes,
    /// The session that has freed an object does not free its copy.
    CopiesLeak,
    /// Who frees the copies of an object finds the first one only.
    SecondCopyLeaks,
    /// Both copies of an object are on one memory node: they are lost together.
    CopiesOnOneNode,
    /// Parity is made of an object's first copy only, which is lost together with a chunk.
    SealsFromFirstCopyOnly,
    /// Parity that does not agree with the data counts: it may be of what was there many lives before.
    OlderParityCounts,

    // Objects.
    /// An object is written to its first replica only: it is lost with that node.
    ObjectOnOneReplica,

    // Memory that is used again.
    /// A freed object is used again while operations run that know it. (And in the same generation,
    /// as if that had happened 32 times.)
    ReusedAtOnce,
    /// An object has the same generation every time it is used: a hint of its life before leads to it.
    GenerationStays,
    /// What a look sees set free counts as seen before the look: who began in between may know it.
    MarksBeforeTheLook,
    /// The generation of an object is learnt from its first replica: what stands on another comes back.
    LearnsFromOneReplica,
    /// The loser of a round frees its object while its word may still stand on a backup.
    LoserFreesAtOnce,
    /// A suspended write whose commit was posted frees nothing when it is resolved: what it has replaced is lost.
    ResolvedFreesNothing,
    /// A withdrawing INSERT frees its own object, which the slot still names.
    WithdrawnObjectFreed,
    /// What no slot keeps is used again although whoever freed it may still mark it.
    ComparedIsNotSettled,
    /// An operation is pinned while it waits for memory: what it could know never becomes free.
    WaitsWhileItActs,
    /// A keeper takes an epoch for over when the one before it is.
    EpochsPassEarly,
    /// A block goes back to the pool as soon as it is zeros: who has seen what was there meets what
    /// comes next, in the same generations.
    ZeroedBlockReturnedAtOnce,
    /// A comparison looks only at the first slots of every subtable.
    ComparesFewSlots,
    /// A comparison looks at primaries only: what a lost write has left on a backup may be settled on.
    ComparesPrimariesOnly,
    /// A comparison looks at blocks with writes under way: what no slot keeps yet is taken for garbage.
    ComparesBesideWrites,
    /// A session does not notice that the free bitmap of a block is elsewhere: bits that were lost with the
    /// old one are not missed.
    AnotherBitmapUnnoticed,
    /// What was seen on a free bitmap is cleared on the one that has come in its place.
    MarksOfAnotherBitmap,
    /// Who has set some bits and failed goes on setting bits, and says then that all are set.
    MarksHalfWay,
    /// A mark that may still come is taken for lost: who has settled on that sets the bit as well.
    LateVerbsNotAwaited,
    /// A block that nobody heard of is taken, although another request of the session may be about to hear of it.
    MissedBesideGrants,
    /// Who asks for a block is not pinned: the view by which it has it recorded may have ended.
    AsksUnpinned,
    /// Memory nodes take those for ended too that live among the first clients.
    LivingAreOver,
    /// A subtable is split once more for those who asked while it was being split.
    SplitsTwice,
    /// Whoever always wants a change keeps those away that come later in the line.
    NobodyYields,
    /// A writer that waits for a larger index asks for it once.
    AsksForSplitsOnce,
    /// A master that gets no more than moments never takes anybody for gone.
    GapsForgiveForEver,
    /// The time for which a master is away counts as listened in part.
    GapsAreListened,
    /// Who waits for a region that is to come does not look at what is free of its own.
    AwaitsOnlyThePool,

    // Recovery of clients, and settling after the loss of a memory node.
    /// Recovery reads the backups' slots before the primary's.
    RecoveryReadsBackupsFirst,
    /// Recovery commits an INSERT that may have been about to find a duplicate.
    RecoveryCommitsTentative,
    /// A session leaves in order though the WRITE of an object may still execute: it does in a block of
    /// somebody else's.
    LateObjectsForgotten,
    /// A write that fails since a READ had no answer keeps its object, though nothing is on its way.
    UnansweredReadsKeepObjects,
    /// A write that is dropped between two phases keeps its object, and its session leaves in order.
    DroppedAttemptsKeepObjects,
    /// Recovery takes an INSERT that was withdrawing for one that has withdrawn.
    RecoveryIgnoresWithdrawnCopies,
    /// Recovery confirms or withdraws an INSERT on the primary, and not on all backups before.
    RecoveryLeavesOwnBackups,
    /// Recovery commits while a backup holds the word of a writer that lost.
    RecoveryLeavesForeignBackups,
    /// Recovery decides by Rule 3 without having read the primary again.
    RecoverySkipsTheReadOfRule3,
    /// Recovery examines only the last object of every size class.
    RecoveryExaminesLastObjectsOnly,
    /// Recovery hands an object on that the dead client has used.
    RecoveryHandsOnTheLastObject,
    /// Settling keeps a tentative word.
    SettleKeepsTentative,

    // Speculative writes: an UPDATE or DELETE that CASes the backups before it has read the slot.
    /// A speculative write posts its CAS before the object: a word stands where its object is not.
    SpeculationCasesBeforeItWrites,
    /// A speculative write uses a hint however old it is: its word may have come back, on its way to the
    /// primary.
    SpeculationsByOldHints,
    /// A speculative write uses a hint whose pair was lost with its only memory node: the key does not exist, and the
    /// slot is free for others.
    SpeculatesOnLostPairs,
    /// An emptied block waits until the newest epoch says that its window is over, which jumps when another master
    /// takes over.
    JumpsEndWindows,
    /// Hints of EC-oriented pairs are good for as many epochs as others, though a life has several words there.
    TurnsAreLives,
    /// A speculative write is made wherever the object lies: if the word is all that is left of it, it leads nowhere.
    SpeculationsAnywhere,
    /// A speculative write that nothing has proved takes itself for the loser of a round that may have been over
    /// before it began.
    StaleSpeculationLoses,
    /// Recovery looks for objects on one replica of a block only.
    RecoveryWalksOneReplica,
    /// Recovery goes on with a round although its object is not on all replicas.
    RecoveryDoesNotComplete,
    /// Settling gives a slot a word whose object is not on all replicas.
    SettlingDoesNotComplete,
    /// Nor the log object of a DELETE: it seems new when what has it is lost, and is freed beside its next life.
    SettlingForgetsLogs,
    /// A replica of a region leaves with the only complete object of a dead client, whose word stays.
    RegionsCopiedIncomplete,

    // Memory that nobody reads.
    /// A scrubber says what it has seen, although the slot may hold another word by now.
    ScrubLooksOnce,
    /// Slots that differ are settled on words that lead to nothing.
    SettlesOnDamage,
    /// A free word of which nobody knows why it is there wins over an entry.
    FreeWordsCount,

    // Who is cut off together with a memory node.
    /// Who was not heard for a lease counts what it has read, whoever stands at which view.
    ReadsUnheard,
    /// Half of the members are enough to vouch for what was read.
    HalfVouches,
    /// A question to the members counts for operations that began after it.
    OldAskVouches,
    /// Members that do not answer are taken for such that show no later view.
    SilentNodesVouch,
    /// The list of a SEARCH of many keys is answered without asking.
    ManyReadUnheard,
    /// A write answers that the key exists, or does not, without asking.
    WritesAnswerUnheard,

    // Reads beside a barred primary.
    /// A primary counts as barred although no more than half of the members bar it.
    BarsOnHalf,
    /// Backups are read as soon as the primary is barred: others still count as heard, and read the primary.
    BarsDoNotWait,
    /// A master that hardly anybody hears grants leases.
    LeasesWithoutContact,
    /// Clocks stand still while a process sleeps: a master that wakes up grants leases from a contact of long ago.
    ClocksStandStill,
    /// A member that bars a primary vouches for what that has shown.
    BarredIsVouchedFor,
    /// The loser of an UPDATE is done although its winner may have been read before it began.
    LosersDoNotAsk,
    /// The same of a loser that was suspended by a change, or of a speculative write whose round may
    /// have been over before it began.
    SuspendedLoserEnds,
    /// Bars are taken back when a member hears of the change that is to settle what was read.
    BarsFallEarly,
    /// Who reads beside a primary does not ask whether a later view is there, of which its backups know nothing.
    BesideAsksNobody,
    /// While a change is settled more than half of those that are left are enough to vouch.
    LostBarsForgotten,

    // Scans.
    /// An entry that a split has not cleared yet is shown where it was.
    ScansUnclearedEntries,
    /// The halves of a subtable that is split while it is scanned are scanned from their beginning.
    ScansHalvesAnew,
    /// What an object is that proves nothing is not asked of its other places.
    ScansPassUnproved,
    /// A slot is passed over where a piece is full.
    ScansPassFullPieces,
    /// A part of a subtable that is split is dropped by a session that has not heard of the split.
    ScansDropPartsAhead,
    /// What was scanned counts without asking, when the master is not heard.
    ScansUnheard,

    // Switches.
    /// What a steered READ brings counts if it is an object of the key, perhaps an old one.
    SteeredByItsKey,

    // Rates and counters.
    /// Demotion is not charged to its rate.
    DemotionSpendsNothing,
    /// Promotion is not charged to its rate.
    PromotionSpendsNothing,
    /// The bytes that a session tells it has moved are its verbs.
    BytesAreVerbs,

    // Whoever calls recovery.
    /// A master does not fence the repairs that an earlier one had begun: their verbs execute
    /// among its own.
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

    /// Removes a countermeasure from everything that runs in this process, or none.
    pub fn activate(mutant: Option<Mutant>) {
        // Relaxed: set before the threads that read it are started.
        ACTIVE.store(mutant.map_or(0, |m| m as u32 + 1), Ordering::Relaxed);
    }

    /// Whether this countermeasure is taken out.
    pub fn removed(mutant: Mutant) -> bool {
        ACTIVE.load(Ordering::Relaxed) == mutant as u32 + 1
    }
}

#[cfg(feature = "mutants")]
pub use switch::{activate, removed};

/// Whether this countermeasure is taken out.
#[cfg(not(feature = "mutants"))]
pub const fn removed(_: Mutant) -> bool {
    false
}
