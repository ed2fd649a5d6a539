//! Countermeasures of the protocol that tests remove, one at a time.
//!
//! Every known hazard of the protocol has a countermeasure, and every countermeasure has a switch here, a *mutant*. A
//! test removes one countermeasure and expects the simulator to notice a violation: a check that never fails proves
//! nothing. The description of a mutant says what the code does wrong without the countermeasure.
//!
//! The switches exist only with the feature `mutants`, which only tests turn on. Without the feature, [`removed`] is
//! the constant `false`, and the compiler drops the faulty branch.
//!
//! The switch is global to the process. A test that sets a mutant must therefore be the only test that runs in its
//! process.

macro_rules! mutants {
    ($($(#[doc = $doc:literal])+ $name:ident,)+) => {
        /// A removed countermeasure, named after the fault that its removal causes.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u32)]
        pub enum Mutant {
            $($(#[doc = $doc])+ $name,)+
        }

        impl Mutant {
            /// All mutants.
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
    // Faults in changes of the view.
    /// Lets writers go on in a subtable or region that a view change has frozen.
    WritesWhileFrozen,
    /// Lets readers use the backups of a subtable whose primary is lost before all sessions have stopped using the
    /// primary.
    ReadsBackupsWhileFrozen,
    /// Writes objects only to the remaining replicas of a region, although a lost replica is possibly only cut off and
    /// other sessions still read it.
    WritesBesideLostReplicas,
    /// Answers reads of a subtable whose primary is lost although its backups can still be settled on another word:
    /// after the loss of one more backup, the key can have a value from before the word that was read.
    ReadsDoubtfulBackups,
    /// Lets a SEARCH of many keys read the first backup of a subtable without a primary as if that backup were the
    /// primary.
    ManyReadsBackups,
    /// Lets the loser of a round ignore a new view and go on waiting for a dead winner. The recovery of that winner
    /// waits for the view change to end, so neither ends.
    LoserIgnoresNewView,
    /// Omits from a session's report that its suspended writes have not yet read their slots again. Other sessions can
    /// then overwrite the words that these writes look for.
    SuspendedIsForgotten,
    /// Hands out blocks of a new region before all sessions know the region: a slot then leads a reader to an unknown
    /// place.
    NewRegionLedAtOnce,
    /// Returns the memory of a removed replica to its memory node while sessions can still read the replica.
    PlaceGivenUpEarly,
    /// Writes objects to a region although sessions can still read from a replica that has left the region.
    WritesWhereAReplicaLeaves,
    /// Lets the master make replicas equal before all sessions have left the older views.
    ChangeDoesNotWait,
    /// Lets the master release writes before suspended writes have read their slots, and before all readers have left
    /// the replicas' old places.
    SwitchDoesNotWait,
    /// Lets a suspended write read its slot again before the replicas are equal.
    LooksBeforeTheSwitch,
    /// Settles a slot on the primary before the backups: if the primary is lost, a word that readers have seen is lost
    /// too.
    SettlesPrimaryFirst,
    /// Suspends a write because of a view change although a verb that the write has posted can still execute.
    StopsInDoubt,
    /// Lets a split clear moved slots of the old subtable first on the primary, then on the backups. If the split is
    /// interrupted between these steps, the backups are never cleared, because the primary no longer shows which slots
    /// were moved.
    ClearsPrimaryFirst,
    /// Copies a region together with its free bitmap: if the copy becomes the primary, its bitmap has bits of objects
    /// that are in use again.
    CopiesBitmaps,

    // Faults that let words recur in a slot.
    /// Lets every DELETE leave the same word: two sessions that delete one key both win, and a CAS of an earlier round
    /// succeeds on the emptied slot.
    DeleteWritesZero,
    /// Lets every withdrawing INSERT leave the same word: a CAS of an earlier round succeeds on the slot.
    WithdrawalWritesZero,
    /// Lets a withdrawing INSERT put the old word back: the round for that word seems to begin anew, and writers that
    /// have lost the round are mixed with later writers.
    WithdrawalRestoresOldWord,
    /// Uses the object of the previous attempt again for the next attempt of a write: words that remain from the lost
    /// round seem to be part of the new round.
    IdentityUsedAgain,
    /// Allocates an object again at once if no CAS has named its identity, so that the object can use up all
    /// generations within one epoch.
    GivenBackAtOnce,
    /// Lets the generations of an emptied block begin at the base that its last owner used, so that slot words recur
    /// too early.
    BasesStay,
    /// Overwrites an emptied block with zeros before its header says where generations go on: if the owner dies between
    /// the two steps, the generations begin again where they began before.
    ZeroesBeforeTheBase,
    /// Computes the base of an emptied block although some of the block's objects are many generations behind its other
    /// objects.
    LaggardsForgotten,
    /// Lets a block that was emptied without a new base be used before a window of epochs has passed.
    EmptiedDoesNotWait,
    /// Lets a block that was merged from blocks with different bases be used before a window of epochs has passed.
    MixedDoesNotWait,
    /// Gives a block that is merged from blocks with different bases the larger base.
    MergedTakesLargerBase,
    /// Lets the halves of a split block begin with generation 0 instead of the block's base.
    HalvesStartAnew,
    /// Lets memory nodes keep the base with which they gave a block out when the block comes back.
    ReturnsNoBase,
    /// Lets recovery treat objects that a dead client had begun to write, and that no replica holds whole, as never
    /// allocated: the next owner of the block writes the same identities.
    TornObjectsAreNew,
    /// Lets recovery treat objects that contain only zeros as never allocated, although some of them have been
    /// allocated.
    ZerosAreNew,
    /// Lets the objects of a wrapped block (one that was emptied without a new base) begin with its old base again,
    /// whatever generations their headers contain.
    WrappedLivesStartAnew,
    /// Lets recovery decide by a single header of a block which objects of the block had been allocated, although the
    /// header on another replica possibly shows more allocated objects.
    FreshFromBestHeader,
    /// Lets a session set the free bits of its own objects in blocks whose headers still say that the blocks are in
    /// use.
    MarksInUse,
    /// Writes the header of a block before the header was read: the base in the header is lost.
    SealsUnread,

    // Faults in the choice of the winner of a round.
    /// Counts half of the backups as a majority: two writers win by Rule 2.
    HalfIsAMajority,
    /// Overlooks that another writer has a majority of the backups: the writer with the smallest identity wins as well.
    MajorityOverlooked,
    /// Lets every writer win by Rule 3, not only the writer with the smallest identity.
    AnyValueWinsRule3,
    /// Applies Rule 3 without a READ of the primary: a round that has ended gets a second winner.
    Rule3WithoutPrimary,
    /// Compares whole words in the rules instead of identities, so that the two words of a writer that confirms or
    /// withdraws count as words of two writers.
    WholeWordsCompared,
    /// Lets the winner leave other writers' words on the backups: the replicas never become equal again.
    BackupsNotFixed,

    // Faults in what losing writes report, and in when they report it.
    /// Reports success for an INSERT that lost its slot to another key: the pair of the INSERT is lost.
    InsertLoserSucceeds,
    /// Reports success for a DELETE that lost its round to an UPDATE, although the key still exists.
    DeleteLoserSucceeds,
    /// Reports success for a losing UPDATE before the winner commits: readers still see the value from before both
    /// UPDATEs.
    LoserDoesNotWait,

    // Faults that let INSERTs put one key into two slots.
    /// Commits an INSERT without a look for another entry of its key.
    InsertDoesNotLook,
    /// Lets an INSERT look for its key on the primary, which does not yet show entries that are not committed.
    LooksOnPrimary,
    /// Lets an INSERT look for its key before its own CAS: two INSERTs that look at one time do not see each other.
    LooksBeforeItsCas,
    /// Accepts an INSERT's look at a backup although the INSERT's CAS on that backup failed: the next INSERT that looks
    /// at that backup does not see this INSERT.
    LookOfALostCasCounts,
    /// Treats a slot that has just become free on the backups as free, although the primary possibly still shows the
    /// key there.
    FreedSlotNotDoubted,
    /// Inserts without the tentative bit: when the primary's node dies, an entry that was about to be withdrawn as a
    /// duplicate is treated as a committed one.
    NeverTentative,
    /// Lets a withdrawing INSERT end its round on the primary before the backups: the next writer of the slot finds
    /// words of the INSERT on the backups.
    WithdrawsPrimaryFirst,
    /// With one index replica: lets an INSERT skip the check of an entry that was tentative when the INSERT first read
    /// it.
    TentativeIsKnown,
    /// With one index replica: shows readers entries that can still be withdrawn.
    ReadersSeeTentative,
    /// With one index replica: lets writers use an entry that can still be withdrawn as the entry of the key.
    WritersSeeTentative,

    // Faults in the search for a key.
    /// Reads buckets from a backup: operations see words that are not committed.
    ReadsABackup,
    /// Uses a hint without comparing its word with the slot: a get returns an old value, or a write joins a round that
    /// is over, and is reported as its loser.
    HintIsTrusted,
    /// Treats keys with equal fingerprints as one key, without comparing them.
    KeysNotCompared,
    /// Accepts the first bytes of an object as proof of its key although they were possibly read before the slot, when
    /// the memory possibly held another object, or parts of two objects.
    PrefixReadEarly,
    /// Lets a synchronous SEARCH use its hint without comparing the hint with the slot: the SEARCH returns an old
    /// value.
    SearchNowTrustsHint,
    /// Lets a synchronous write ignore the results of its CASes: two writers win one round.
    WriteNowWinsUnseen,

    // Faults in the handling of damage, and in limits of time and of splits.
    /// Treats an object that fails its CRC as the object of another key: an INSERT adds the key a second time.
    DamagedIsAnotherKeys,
    /// Treats an object as another key's because its first bytes show another key, although its CRC was not checked.
    OtherKeyByItsStart,
    /// Leaves a damaged replica damaged: when the good replicas are lost, the pair is lost.
    DamageStays,
    /// Treats a repair that was not answered as a repair that never executes. The repair can execute after another
    /// object was allocated at that place.
    RepairNotAwaited,
    /// Repairs the object of a word that is not committed, although the object possibly is not yet on its other
    /// replicas.
    RepairsUncommitted,
    /// Reports the object of an uncommitted word as damaged although its only complete replica is possibly on a node
    /// that has a replica of the object only in a newer view.
    NewerViewIsDamage,
    /// Treats chunks of an EC-oriented pair on a silent node as lost.
    SilentChunkIsLost,
    /// Lets a split believe the first replica of an object without a check: the entry moves to a subtable in which its
    /// key is not looked for.
    SplitTrustsOneReplica,
    /// Lets a split read only the first bytes of objects, and leave entries with longer keys in the old subtable.
    SplitReadsOnce,
    /// Restarts an operation's time limit at each of its waits.
    ClockBeginsAnew,
    /// Lets a session ask for splits that do not separate the keys in a new key's buckets.
    SplitsSeparateNothing,
    /// Lets the master split subtables that are already much deeper than the rest of the index.
    DepthUnbounded,
    /// Copies a region from one replica without checking its objects, damage included.
    CopiesDamage,
    /// Copies a region without its table of block owners: the new primary gives owned blocks to other sessions.
    // Promise CHG-6 | mutant `CopiesNoOwners`
    CopiesNoOwners,
    /// Lets a session take a block of a region that is being copied: if the table of the new replica was filled before,
    /// that table shows the block as free.
    // Promise MEM-28 | mutant `FrozenGrantTaken`
    FrozenGrantTaken,
    /// Lets a memory node obey a late request of a job that has ended: the node forgets owners that were recorded after
    /// the job.
    LateJobsObeyed,

    /// Lets a session take a block over from an earlier owner, by an outdated record of the master, while another
    /// operation of the session gets that block from the pool: the session has the block twice.
    StaleOrphansTaken,
    /// Lets a session take back its own orphaned block while another of its operations can get that block from the
    /// pool.
    OwnOrphansTakenMeanwhile,

    // Faults in Moves.
    /// Reports success for a losing UPDATE although the winner is a Move, which wrote the old value again (breaks Rule
    /// L of `docs/protocol.md`).
    MoveLoserSucceeds,
    /// Lets a losing UPDATE look at a backup to see whether the winner is a Move, instead of at the primary after the
    /// end of the round.
    MoveLoserJudgesByBackups,
    /// Lets a suspended write that lost its round report success, as if it had been overwritten, although the winner is
    /// a Move.
    StoppedMoveLoserSucceeds,
    /// Lets a losing Move free its object, and report that it has lost, before the round has ended.
    OvertakenMoveDoesNotWait,
    /// Lets a Move begin before a view change has ended.
    MovesWhileFrozen,

    // Faults in the redundancy of writes.
    /// Lets a write with an outdated hint give its pair the redundancy of the hint's pair, although the policy has to
    /// decide, because the value cannot have the redundancy of the present pair.
    StaleHintPlaces,
    /// Lets a write use its hint in a newer view than the view by which it chose its slab: the hint's pair is possibly
    /// in a region that the older view did not have.
    OlderViewPlaces,
    /// Lets a write that keeps its pair's redundancy do so according to the pair that it found first, although the pair
    /// has got another redundancy since.
    FirstFoundPlaces,
    /// Lets a losing write that would have changed the pair's redundancy succeed, although the winner has kept the
    /// redundancy.
    RedundancyLoserSucceeds,

    // Faults in the work table.
    /// Lets a get share the result of another get that was posted earlier: the get misses a write that ended before the
    /// get began.
    GetJoinsPosted,
    /// Lets a get take the value of a set that has not replaced the word of its slot: other readers have possibly seen
    /// the value of the winner.
    GetBelievesUncommittedSet,
    /// Lets a get take the value of a set whose commit was posted before the get began: another write has possibly
    /// replaced that value.
    GetRidesPostedSet,
    /// Lets a get take the value of a set that a view change has committed at an unknown time.
    GetBelievesSettledSet,
    /// Lets a get accept its leader's value without comparing the word that the get READs with the word that the leader
    /// found.
    GetComparesNoWords,
    /// Acknowledges the sets that waited for a running set when the running set ends, although the verbs of the running
    /// set were posted before the waiting sets began.
    PostedSetAbsorbs,
    /// Lets a waiting UPDATE be absorbed by an UPSERT: the UPDATE succeeds although the key did not exist.
    OtherSetsAbsorb,
    /// Acknowledges sets that were absorbed by a set that fails.
    FailedSetAbsorbs,

    // Faults in coded regions.
    /// Lets a speculative write put the word of a coded object on backups before the object's chunks are complete: no
    /// job can complete the object.
    StripeGuessed,
    /// Fills a column with the chunks of another column, as if columns were replicas.
    RebuildsFromFirstPlace,
    /// Gives a joining column the chunk number of its position, although another column possibly has this number
    /// already.
    ChunkByPosition,
    /// Writes a coded object only to as many columns as a reader needs: the loss of one column loses the object.
    ParityNotWritten,
    /// Rebuilds no chunk of a block whose header is incomplete on all columns.
    TornHeadersHideObjects,

    // Faults in the loss of pairs without redundancy.
    /// After the loss of pairs without redundancy, settles only those subtables that have lost a replica: a round whose
    /// old word leads to a lost pair goes on after other sessions have seen that the key does not exist.
    LossSettlesFew,
    /// Treats a key as lost before the view change has switched: other sessions still read the lost node, or win a
    /// round that began from the key's word.
    GoneBeforeTheSwitch,
    /// Lets recovery treat a slot whose pair is lost as occupied: the words that a dead INSERT has left in that slot
    /// remain.
    RecoveryKnowsNothingGone,
    /// Lets a get that takes its leader's value after a comparison of words return the value of a lost pair, as long as
    /// the pair's word is in the slot.
    FollowersReadWhatIsLost,

    // Faults in EC-oriented regions.
    /// Changes the places of a region with EC-oriented objects without writing their parity. An object then loses a
    /// chunk together with its copy, or its copy comes to lie on the node of another chunk.
    ParityNotCompleted,
    /// Writes the parity of an object after its new word has been put in the slot: the object loses its copy before it
    /// has parity.
    ParityAfterCas,
    /// Lets a Move in place free the copy of the object before the new word is committed.
    CopiesFreedBeforeCommit,
    /// Lets the loser of a Move in place free the copy of the old word as well.
    CopiesFreedByLoser,
    /// Lets a Move in place go back to the previous turn instead of on to the next one: a slot word recurs.
    TurnGoesBack,
    /// Lets a session move an object in place although another session owns the block.
    StrangerMovesInPlace,
    /// Lets a Move in place rely on a word that was read before another Move of the session ended: both Moves write the
    /// same turn.
    MovesStaleInPlace,
    /// Does not write into a block's header that one of the block's objects is being moved: recovery does not look for
    /// the Move's word.
    RestingBlockNotWalked,
    /// Lets recovery look for only the first word of an object, not for the words of its later turns.
    RecoveryKnowsOneTurn,
    /// Lets a comparison with the index overlook that slot words keep copies in use.
    CompareIgnoresCopies,
    /// Lets a Move in place overwrite existing copy words.
    CopyWordsOverwritten,
    /// Lets a session that writes copy words check only the first copy word, and treat the other copy words as its own.
    FirstCopyWordDecides,
    /// Rebuilds a chunk without its copy words: when the other chunks are lost, the copies cannot be found.
    ChunksWithoutCopyWords,
    /// Writes the missing parity of a region only if its first column is lost: after the loss of another column the
    /// region's objects remain without parity.
    FirstColumnAddsParity,
    /// Reads coded values also from nodes that do not answer, although other nodes have enough chunks.
    CodedReadsAskSilentNodes,
    /// Lets the session that frees an object keep the object's copy allocated.
    CopiesLeak,
    /// Lets a session that frees the copies of an object find only the first copy.
    SecondCopyLeaks,
    /// Puts both copies of an object on one memory node: the copies are lost together.
    CopiesOnOneNode,
    /// Computes parity from an object's first copy only, which is lost together with a chunk.
    SealsFromFirstCopyOnly,
    /// Accepts parity that does not agree with the data: the parity possibly belongs to a much earlier object at that
    /// address, whose generation has recurred.
    // Promise RED-12 | mutant `OlderParityCounts`
    OlderParityCounts,
    /// Lets a READ by a hint restore an EC-oriented value from parity alone, although the object possibly lacks its
    /// parity, and that of a much earlier object is in its place.
    HintedReadsTrustParity,

    // Faults in writes of objects.
    /// Writes an object to its first replica only: the object is lost with that node.
    ObjectOnOneReplica,

    // Faults in the reuse of memory.
    /// Reuses a freed object while operations that know the object run. The object keeps its generation, as if it had
    /// been reused so often that the generation recurs.
    ReusedAtOnce,
    /// Gives every use of an object the same generation: a hint of an earlier use leads to the new object.
    GenerationStays,
    /// Dates the bits that a READ of the free bitmap shows to the time before that READ: an operation that began
    /// between that time and the READ possibly knows the objects.
    MarksBeforeTheLook,
    /// Learns the generation of an object from its first replica only: a generation that is on another replica recurs.
    LearnsFromOneReplica,
    /// Lets the loser of a round free its object while the loser's word is possibly still on a backup.
    LoserFreesAtOnce,
    /// Lets a suspended write whose commit was posted free no object when it is resolved: the object that it replaced
    /// leaks.
    ResolvedFreesNothing,
    /// Lets a withdrawing INSERT free its own object, which the slot still names.
    WithdrawnObjectFreed,
    /// Reuses objects that a comparison has found to be garbage, although the session that freed them can still set
    /// their free bits.
    ComparedIsNotSettled,
    /// Keeps an operation pinned while it waits for memory, so that objects which the operation possibly knows never
    /// become reclaimable.
    WaitsWhileItActs,
    /// Lets a keeper treat an epoch as ended when only the epoch before it has ended.
    EpochsPassEarly,
    /// Returns a block to the pool as soon as it is overwritten with zeros: an operation that knows an object of the
    /// block meets another object with the same generation.
    ZeroedBlockReturnedAtOnce,
    /// Compares only the first slots of every subtable.
    ComparesFewSlots,
    /// Compares blocks only with the primaries of the index, although a slot can still be settled on a word that a lost
    /// write has left on a backup.
    ComparesPrimariesOnly,
    /// Compares blocks with running writes as well, so that objects to which no slot leads yet are treated as garbage.
    ComparesBesideWrites,
    /// Lets a session overlook that a block has another free bitmap than before: the session does not look for free
    /// objects whose bits were lost with the old bitmap.
    AnotherBitmapUnnoticed,
    /// Clears bits that were seen in one free bitmap in the bitmap that has replaced it.
    MarksOfAnotherBitmap,
    /// Lets a session go on after a failure to set some of its free bits, and then report that all bits are set.
    MarksHalfWay,
    /// Treats a verb that sets a free bit and had no answer as one that never executes: a comparison sets the same bit,
    /// and the verb possibly sets that bit a second time afterwards.
    LateVerbsNotAwaited,
    /// Lets a session take a block whose grant it has missed, although another request of the session is possibly about
    /// to get the answer that grants this block.
    MissedBesideGrants,
    /// Lets an operation ask for a block without being pinned, so that the view in which the block was granted has
    /// possibly ended.
    AsksUnpinned,
    /// Lets memory nodes treat all sessions with ids below the bound of the master's report as ended, even those that
    /// the report lists as living.
    LivingAreOver,
    /// Splits a subtable a second time for sessions that asked during its first split.
    SplitsTwice,
    /// Always begins with the same kinds of view changes: a kind that is always wanted keeps the kinds behind it from
    /// ever being executed.
    NobodyYields,
    /// Lets a writer that waits for a larger index ask for the split only once.
    AsksForSplitsOnce,
    /// Lets the master treat no member or session as dead as long as it never listens for the length of a lease without
    /// a gap.
    GapsForgiveForEver,
    /// Counts too much of the time for which a master was away as time in which it listened.
    GapsAreListened,
    /// Keeps an operation that waits for a new region from using memory of its own session that becomes free.
    AwaitsOnlyThePool,

    // Faults in the recovery of clients, and in settling after the loss of a memory node.
    /// Lets recovery read the backups' slots before the primary's.
    RecoveryReadsBackupsFirst,
    /// Lets recovery commit a tentative INSERT, which was possibly about to find a duplicate.
    RecoveryCommitsTentative,
    /// Lets a session end in order although the WRITE of an object can still execute, possibly when the block already
    /// has another owner.
    LateObjectsForgotten,
    /// Lets a write that fails because a READ was not answered keep its object allocated, although no verb of the write
    /// can still execute.
    UnansweredReadsKeepObjects,
    /// Lets a write that is dropped between two phases keep its object allocated, although its session leaves in order.
    DroppedAttemptsKeepObjects,
    /// Lets recovery treat an INSERT that was withdrawing as an INSERT whose word has been withdrawn on all replicas.
    RecoveryIgnoresWithdrawnCopies,
    /// Lets recovery confirm or withdraw an INSERT on the primary without doing so on all backups first.
    RecoveryLeavesOwnBackups,
    /// Lets recovery commit while a backup holds the word of a writer that lost.
    RecoveryLeavesForeignBackups,
    /// Lets recovery decide by Rule 3 without another READ of the primary.
    RecoverySkipsTheReadOfRule3,
    /// Lets recovery examine only the last object of every size class.
    RecoveryExaminesLastObjectsOnly,
    /// Lets recovery count an object that the dead client has used among the never-used objects of its block.
    RecoveryHandsOnTheLastObject,
    /// Settles slots on tentative words.
    SettleKeepsTentative,

    // Faults in speculative writes: UPDATEs and DELETEs that CAS the backups before they have read the slot.
    /// Lets a speculative write post its CAS before the object: its word is then on a node that lacks the object.
    SpeculationCasesBeforeItWrites,
    /// Lets a speculative write use a hint of any age, although the hint's word has possibly recurred in the slot and
    /// is about to be committed.
    SpeculationsByOldHints,
    /// Lets a speculative write use a hint whose pair was lost with its only memory node: the key does not exist, and
    /// another key possibly uses the slot.
    SpeculatesOnLostPairs,
    /// Lets the newest epoch decide when the window of an emptied block has passed. That epoch jumps when another
    /// master takes over.
    JumpsEndWindows,
    /// Trusts hints of EC-oriented pairs for as many epochs as hints of other pairs, although the objects of
    /// EC-oriented pairs have several slot words, which recur sooner.
    TurnsAreLives,
    /// Lets a speculative write ignore which nodes its object is on: if only the word survives a loss, the word leads
    /// nowhere.
    SpeculationsAnywhere,
    /// Lets a speculative write without proof that its hint was right end as the loser of a round that possibly ended
    /// before the write began.
    StaleSpeculationLoses,
    /// Lets recovery look for objects on only one replica of a block.
    RecoveryWalksOneReplica,
    /// Lets recovery complete a round although its object is not on all replicas.
    RecoveryDoesNotComplete,
    /// Settles a slot on a word whose object is not on all replicas.
    SettlingDoesNotComplete,
    /// Posts the record of a DELETE behind the CASes of the backups: if the session dies between the two, a backup
    /// shows a number that recovery does not know, and the slot stays blocked.
    RecordsComeLate,
    /// Recovers dead clients without reading their log areas: the numbers of their DELETEs stay on backups.
    RecoverySkipsRecords,
    /// Settles a slot on the entry that only the primary shows, although all backups show the number of a DELETE: a
    /// session that read the backups beside a barred primary has possibly answered that the key does not exist.
    NumberRefutedByPrimary,
    /// Drops a replica of a region that has the only complete object of a dead client, although the object's word
    /// remains in the index.
    RegionsCopiedIncomplete,

    // Faults in the scrubber, and in settling of damage that it has found.
    /// Lets the scrubber report damage without a second READ of the slot, although the slot possibly contains another
    /// word by then.
    ScrubLooksOnce,
    /// If the replicas of a slot differ, settles the slot even on a word that leads to a damaged or missing object.
    SettlesOnDamage,
    /// Lets a free word of unknown origin win over an entry when a slot is settled.
    FreeWordsCount,

    // Faults in reads of sessions that are cut off together with a memory node.
    /// Lets a session without a valid lease return what it has read, whatever views the members show.
    ReadsUnheard,
    /// Accepts half of the members as enough to vouch for reads.
    HalfVouches,
    /// Uses the members' answers to one request to vouch also for operations that began after that request.
    OldAskVouches,
    /// Treats members that do not answer as members that show no later view.
    SilentNodesVouch,
    /// Lets a SEARCH of many keys return without asking the members.
    ManyReadUnheard,
    /// Lets a write report that the key exists, or does not exist, without asking the members.
    WritesAnswerUnheard,

    // Faults in backup reads.
    /// Treats a primary as barred although no more than half of the members bar it.
    BarsOnHalf,
    /// Reads backups as soon as the primary is barred, while other sessions still have valid leases and read the
    /// primary.
    BarsDoNotWait,
    /// Lets a master grant leases although only a few members receive its messages.
    LeasesWithoutContact,
    /// Stops the clock of a process while the process sleeps: a master that wakes up grants leases from an old contact.
    ClocksStandStill,
    /// Lets a member that bars a primary vouch for reads from that primary.
    BarredIsVouchedFor,
    /// Acknowledges a losing UPDATE although the winner's value was possibly read before the UPDATE began.
    LosersDoNotAsk,
    /// Acknowledges a suspended loser, or a speculative write whose round possibly ended before the write began,
    /// although the winner's value was possibly read before the write began.
    SuspendedLoserEnds,
    /// Removes a bar as soon as the barring member learns of the view change, instead of after the change has settled
    /// the slots that were read because of the bar.
    BarsFallEarly,
    /// Lets a backup read return without asking the members whether they show a later view: the backups of an outdated
    /// view possibly show outdated words.
    BesideAsksNobody,
    /// During a change, lets more than half of the remaining members vouch, instead of more than half of all members
    /// including the lost ones.
    LostBarsForgotten,

    // Faults in scans.
    /// Shows an entry of a split subtable in its old slot, which the split has not cleared yet.
    ScansUnclearedEntries,
    /// If a subtable is split during a scan, scans the two halves from their beginning, so that pairs are shown twice.
    ScansHalvesAnew,
    /// Skips an object that does not match its slot on one replica, without reading the other replicas.
    ScansPassUnproved,
    /// Skips the first slot whose object has no room in a piece.
    ScansPassFullPieces,
    /// Lets a session that does not know of a split yet drop those parts of the cursor that refer to the two halves.
    ScansDropPartsAhead,
    /// Lets a scan without a valid lease return what it has read without asking the members.
    ScansUnheard,

    // Faults in steered READs.
    /// Accepts the result of a steered READ if it is any object of the key, perhaps an old one.
    SteeredByItsKey,

    // Faults in rates and counters.
    /// Demotes pairs without charging them to the demotion rate.
    DemotionSpendsNothing,
    /// Promotes pairs without charging them to the promotion rate.
    PromotionSpendsNothing,
    /// Reports a session's number of verbs as the number of bytes that it has moved.
    BytesAreVerbs,

    // Faults in the order of fences and jobs of the master.
    /// Lets a master start its jobs without fencing the repair sessions of an earlier master, so that verbs of both
    /// masters' jobs execute at one time.
    EarlierRepairerGoesOn,
    /// Recovers a client before it is fenced: verbs that the client has posted execute after the recovery.
    RecoveryBeforeTheFence,
}

#[cfg(feature = "mutants")]
mod switch {
    use core::sync::atomic::{AtomicU32, Ordering};

    use super::Mutant;

    /// 0, or the number of the active mutant plus 1.
    static ACTIVE: AtomicU32 = AtomicU32::new(0);

    /// Removes one countermeasure, or none, in the whole process.
    pub fn activate(mutant: Option<Mutant>) {
        // Relaxed is enough, because the value is set before the threads that read it are started.
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

/// Returns whether a guard acts: its condition holds, and the countermeasure is not removed.
#[inline(always)]
pub fn guard(mutant: Mutant, condition: bool) -> bool {
    condition && !removed(mutant)
}

/// Returns whether a check passes: its condition holds, or the countermeasure is removed.
#[inline(always)]
pub fn passes(mutant: Mutant, condition: bool) -> bool {
    condition || removed(mutant)
}

/// Returns the right value; the faulty one if the countermeasure is removed.
#[inline(always)]
pub fn right_or<T>(mutant: Mutant, right: T, faulty: T) -> T {
    if removed(mutant) { faulty } else { right }
}
