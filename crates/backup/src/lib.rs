//! Exports: all pairs of a cluster in a file, and back.
//!
//! An export is made while others write ([`Export`]): it holds every pair that was there from its beginning to its
//! end, exactly once, with a value that it had meanwhile. It can be interrupted after every block and gone on with,
//! since each block says where the scan was behind it. An import ([`Import`]) puts the pairs into whichever cluster, of
//! whichever geometry.
//!
//! [`mod@format`] says what is in the file. Its reader trusts nothing that it reads: what was cut off, or has changed,
//! is told, with the place; memory is taken for bytes that came, not for bytes announced.

mod export;
pub mod format;
mod import;
#[doc(hidden)]
pub mod parsers;

pub use export::{Export, ExportError, Resumed};
pub use import::{Existing, Import, ImportError, Imported, Kept};
