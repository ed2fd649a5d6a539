//! Operations that only read (SEARCH, SEARCH of many keys, SCAN), and the READs that writes need.
//!
//! ```text
//! SEARCH          hint ------> Lookup::of_hint, of_switch -+-> found
//! (search)                                                 +-> Lookup::of_word --+-> found
//!                 buckets ---> Lookup::of_word of each candidate ----------------+-> KeyReread (damage)
//! SEARCH of many  the same lookups, those of all keys in shared phases; keys without an answer get a SEARCH each
//! (search_many)
//! SCAN            slots -----> their objects --------------------------------------> PairReread (damage)
//! (scan)
//! ```
//!
//! The order of calls is the same everywhere:
//!
//! 1. The operation is pinned in a view in which the slots can be read (`await_readable`).
//! 2. It *posts* READs into its batch, executes the phase, and *advances*: it evaluates the answers. It does this once
//!    or several times.
//! 3. It uses the result if the session has a valid lease or the members vouch for the view; otherwise it begins anew.
//!
//! If a memory node does not answer, the operation begins anew, and reads from other nodes or waits.
//!
//! [`Lookup`](lookup::Lookup) is the state of one key while a hint or a word is followed to the key's object. It
//! executes no phase. Its callers execute phases on the spot (`search`, on an immediate fabric), await them
//! ([`KeySearch`]), or await one phase for many keys (`search_many`).
//!
//! | file | holds |
//! |---|---|
//! | `target` | the places to READ for a hint or a word |
//! | `lookup` | [`Lookup`](lookup::Lookup) |
//! | `steered` | steered READs: their results, and whether they are worth their cost |
//! | `search` | SEARCH: awaited, or on the spot |
//! | `key_search` | [`KeySearch`], the search for one key as a part of an operation: by its hint, then by its buckets |
//! | `search_many` | SEARCH of many keys |
//! | `scan_cursor`, `scan` | SCAN: the rest of a scan; one piece of a scan |
//! | `backup_reads` | reads of slots from backups, while the primary is barred or lost |
//! | `damage` | the re-read of an object that proves nothing, and its repair |

mod backup_reads;
mod damage;
mod key_search;
mod lookup;
mod scan;
mod scan_cursor;
mod search;
mod search_many;
mod steered;
mod target;

pub use scan::{ScanLimits, ScannedPair};
pub use scan_cursor::{ParseCursorError, ScanCursor};
pub use search::SearchResult;
pub use search_many::SearchKey;

pub(super) use damage::{KeyReread, reread_for_key};
pub(super) use key_search::{KeySearch, SearchAttempt};
pub(super) use lookup::LocatedPair;
pub(super) use steered::SteeredRead;
pub(super) use target::{HintTarget, class_of, live, may_hold, replica};

use alloc::sync::Arc;

use backup_reads::BackupReads;
use steered::Steering;

use crate::host::Host;
use crate::view::View;

/// The part of a session's state that only reads use.
#[derive(Debug, Default)]
pub(super) struct ReadState {
    /// The barred primaries, whose slots are read from the backups instead.
    backups: BackupReads,
    /// Counts of steered READs and of those that were useful.
    steering: Steering,
}

impl ReadState {
    /// Returns whether a session without a valid lease is allowed to read a subtable's slots from its backups in this
    /// view. If not, further members are possibly asked to bar the primary, so that the caller can try again later.
    pub async fn may_read_backups(
        &self,
        host: &impl Host,
        subtable: u32,
        view: &Arc<View>,
    ) -> bool {
        self.backups.request(host, subtable, view).await
    }
}
