//! Operations that only read: SEARCH, SEARCH of many keys, SCAN; and what writes need of them.
//!
//! ```text
//! SEARCH          hint ------> Lookup::of_hint, of_switch -+-> found
//! (search)                                                 +-> Lookup::of_word --+-> found
//!                 buckets ---> Lookup::of_word of each candidate ----------------+-> PairReread (damage)
//! SEARCH of many  the same lookups, those of all keys in shared phases; what is left goes to a SEARCH
//! (search_many)
//! SCAN            slots -----> their objects --------------------------------------> PairReread
//! (scan)
//! ```
//!
//! The order of calls is the same everywhere: an operation is pinned by a view that may be read
//! (`await_readable`), *posts* READs into its batch, executes the phase, *advances* by its answers, and counts what
//! it has found only if the session has a valid lease or the members vouch for it. A memory node that did not answer
//! begins the operation anew: it reads elsewhere, or waits.
//!
//! [`Lookup`](lookup::Lookup) is the one state of following a hint or a word to an object of the key. It executes no
//! phase: its callers execute them on the spot (`search`, on an immediate fabric), await them ([`KeySearch`]), or await
//! those of many keys together (`search_many`).
//!
//! | file | holds |
//! |---|---|
//! | `target` | where a hint or a word leads: the places to READ |
//! | `lookup` | the state of a lookup |
//! | `steered` | steered READs: the result, and whether they are worth it |
//! | `search` | SEARCH: awaited, or on the spot |
//! | `key_search` | the search for one key, as a part of an operation: its hint, then its buckets |
//! | `search_many` | SEARCH of many keys |
//! | `scan_cursor`, `scan` | SCAN: the rest of a scan; one piece |
//! | `backup_reads` | reads of slots from backups, while the primary is lost or barred |
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

use backup_reads::BackupReads;
use steered::Steering;

/// The state of a session that only reads use.
#[derive(Debug, Default)]
pub(super) struct ReadState {
    /// Barred primaries, whose slots are read from backups.
    backups: BackupReads,
    /// Results of steered READs.
    steering: Steering,
}
