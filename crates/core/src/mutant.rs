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
    /// INSERT commits without having looked for another entry of its key.
    InsertDoesNotLook,

    // Recovery of clients, and settling after the loss of a memory node.
    /// Recovery reads the backups' slots before the primary's.
    RecoveryReadsBackupsFirst,
    /// Recovery commits an INSERT that may have been about to find a duplicate.
    RecoveryCommitsTentative,
    /// Recovery takes an INSERT that was withdrawing for one that has withdrawn.
    RecoveryIgnoresAbortedCopies,
    /// Recovery confirms or withdraws an INSERT on the primary, and not on all backups before.
    RecoveryLeavesOwnBackups,
    /// Recovery commits while a backup holds the word of a writer that lost.
    RecoveryLeavesForeignBackups,
    /// Recovery decides by Rule 3 without having read the primary again.
    RecoverySkipsTheReadOfRule3,
    /// Recovery takes an object whose log entry has an old value for committed.
    RecoveryTrustsTheLog,
    /// Recovery examines only the last object of every size class.
    RecoveryExaminesLastObjectsOnly,
    /// Recovery hands an object on that the dead client has used.
    RecoveryHandsOnTheLastObject,
    /// Settling takes the word of a primary that is left, not that of a backup.
    SettleTakesThePrimary,
    /// Settling keeps a tentative word.
    SettleKeepsTentative,
    /// Settling keeps a word that its INSERT had begun to withdraw.
    SettleIgnoresWithdrawal,
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

    pub(crate) fn removed(mutant: Mutant) -> bool {
        ACTIVE.load(Ordering::Relaxed) == mutant as u32 + 1
    }
}

#[cfg(feature = "mutants")]
pub use switch::activate;
#[cfg(feature = "mutants")]
pub(crate) use switch::removed;

/// Whether this countermeasure is taken out.
#[cfg(not(feature = "mutants"))]
pub(crate) const fn removed(_: Mutant) -> bool {
    false
}
