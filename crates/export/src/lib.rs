//! Exports of all pairs of a cluster to a file, and imports of such files.
//!
//! An [`Exporter`] runs while other clients write. The export has every pair that existed from its beginning to its end
//! exactly once, with a value that the pair had during that time. An export can be interrupted after every block and
//! continued, because each block holds the position of the scan behind it. An [`Importer`] writes the pairs into a
//! cluster, which can have other numbers of memory nodes and replicas.
//!
//! [`mod@format`] describes the file. Its reader trusts no byte of a file: for a file that is cut off or has changed,
//! it returns an error with the offset. It allocates memory for bytes that it has read, not for a length that the file
//! announces.

mod exporter;
pub mod format;
mod importer;
#[doc(hidden)]
pub mod parsers;

pub use exporter::{ExportError, Exporter, ResumedExport};
pub use importer::{ExistingPairs, ImportError, ImportTotals, Importer, KeptOnImport};
