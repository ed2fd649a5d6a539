//! Exports of all pairs of a cluster to a file, and imports of such files.
//!
//! An [`Exporter`] runs while other clients write. It holds every pair that existed from its beginning to its end,
//! exactly once, with a value that the pair had in that time. It can be interrupted after every block and continued,
//! since each block holds the position of the scan behind it. An [`Importer`] writes the pairs into a cluster of any
//! geometry.
//!
//! [`mod@format`] describes the file. Its reader trusts no byte of a file: a file that is cut off or has changed
//! gives an error with the offset, and memory is taken for bytes that have been read, not for bytes that a length
//! announces.

mod exporter;
pub mod format;
mod importer;
#[doc(hidden)]
pub mod parsers;

pub use exporter::{ExportError, Exporter, ResumedExport};
pub use importer::{ExistingPairs, ImportError, ImportTotals, Importer, KeptOnImport};
