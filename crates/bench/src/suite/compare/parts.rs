//! The part of the program to which an instruction belongs, by its source file.
//!
//! For each function callgrind writes lines with the instructions of one line of source, and names the source file
//! wherever it changes, also within a function that has others inlined. Inlined code of the standard library is counted
//! for the function that contains it.

use std::collections::BTreeMap;

use clap::ValueEnum;
use serde::Serialize;

/// The parts of the program, in the order in which reports show them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum ProgramPart {
    /// The steps of the protocol in one operation.
    Protocol,
    /// Computations on bytes: words, headers, keys and views.
    Layouts,
    /// The allocation of blocks and objects, and free bitmaps.
    Memory,
    /// The pinning of views and epochs by operations.
    Epochs,
    /// The batch of an operation, and its execution.
    Verbs,
    /// Copying of bytes.
    Copies,
    /// Computation of CRCs.
    Checksum,
    /// The index cache.
    IndexCache,
    /// The other work of a session: futures, statistics, waiting.
    Session,
    /// The heap allocator of the system's library.
    Heap,
    /// System calls, and all other work of the kernel.
    Kernel,
    /// The calling code, and all other code.
    Rest,
}

impl ProgramPart {
    /// Returns the name of the part.
    pub fn name(self) -> String {
        self.to_possible_value().expect("none is skipped").get_name().replace('-', " ")
    }

    /// Returns the part to which a source file belongs; `None` if the file does not decide that.
    pub fn of_file(file: &str) -> Option<ProgramPart> {
        const FILES: [(&str, ProgramPart); 15] = [
            ("crates/fabric/src/copy", ProgramPart::Copies),
            ("crates/fabric/", ProgramPart::Verbs),
            ("crates/core/src/verbs", ProgramPart::Verbs),
            ("crates/core/src/slab", ProgramPart::Memory),
            ("crates/core/src/store/memory/", ProgramPart::Memory),
            ("crates/core/src/store/session/pinned", ProgramPart::Epochs),
            ("crates/core/src/host", ProgramPart::Epochs),
            ("crates/core/src/store/", ProgramPart::Protocol),
            ("crates/core/", ProgramPart::Layouts),
            ("crates/client/src/logic/cache", ProgramPart::IndexCache),
            ("crates/client/", ProgramPart::Session),
            ("/crc-fast-", ProgramPart::Checksum),
            ("/crc32c-", ProgramPart::Checksum),
            ("memmove", ProgramPart::Copies),
            ("malloc", ProgramPart::Heap),
        ];
        FILES.iter().find(|(part_of, _)| file.contains(part_of)).map(|(_, part)| *part)
    }

    /// Returns the part to which a function belongs, if its source file is not known.
    pub fn of_function(function: &str) -> ProgramPart {
        const FUNCTIONS: [(&str, ProgramPart); 7] = [
            ("mem", ProgramPart::Copies),
            ("__mem", ProgramPart::Copies),
            ("malloc", ProgramPart::Heap),
            ("free", ProgramPart::Heap),
            ("_int_", ProgramPart::Heap),
            ("realloc", ProgramPart::Heap),
            ("crc", ProgramPart::Checksum),
        ];
        let found = FUNCTIONS.iter().find(|(begins, _)| function.starts_with(begins));
        found.map_or(ProgramPart::Rest, |(_, part)| *part)
    }
}

/// Instructions or samples, by part.
pub type ProgramPartCounts = BTreeMap<ProgramPart, u64>;

/// Adds up the instructions in callgrind's output, by part.
///
/// # Errors
///
/// Returns the first line that does not have callgrind's format.
pub fn parse_callgrind(written: &str) -> Result<ProgramPartCounts, String> {
    let mut names = CallgrindNames::default();
    let mut parts = ProgramPartCounts::new();
    let mut own = ProgramPart::Rest;
    let mut here = None;
    let mut file = None;
    let mut is_inclusive = false;
    for line in written.lines() {
        let wrong = || format!("not of callgrind: {line:?}");
        if let Some((what, name)) = line.split_once('=') {
            match what {
                "fl" => {
                    file = ProgramPart::of_file(
                        names.of(CallgrindNameKind::File, name).ok_or_else(wrong)?,
                    );
                    here = file;
                }
                "fi" | "fe" => {
                    here = ProgramPart::of_file(
                        names.of(CallgrindNameKind::File, name).ok_or_else(wrong)?,
                    );
                }
                "fn" => {
                    let function = names.of(CallgrindNameKind::Function, name).ok_or_else(wrong)?;
                    own = file.unwrap_or_else(|| ProgramPart::of_function(function));
                }
                "cfi" | "cfl" => drop(names.of(CallgrindNameKind::File, name).ok_or_else(wrong)?),
                "cfn" => drop(names.of(CallgrindNameKind::Function, name).ok_or_else(wrong)?),
                // The next line has the cost of the whole call, which the callee's own lines contain as well. Therefore
                // the next line is skipped.
                "calls" => is_inclusive = true,
                _ => {}
            }
        } else if line.starts_with(|first: char| first.is_ascii_digit() || "+-*".contains(first))
            && !std::mem::take(&mut is_inclusive)
        {
            let count = line.split(' ').nth(1).and_then(|count| count.parse::<u64>().ok());
            *parts.entry(here.unwrap_or(own)).or_default() += count.ok_or_else(wrong)?;
        }
    }
    Ok(parts)
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum CallgrindNameKind {
    File,
    Function,
}

/// Names in callgrind's output, which writes each name in full once, with a number, and later only the number.
#[derive(Default)]
struct CallgrindNames(BTreeMap<(CallgrindNameKind, String), String>);

impl CallgrindNames {
    fn of(&mut self, kind: CallgrindNameKind, written: &str) -> Option<&str> {
        let Some((number, name)) = written.strip_prefix('(').and_then(|rest| rest.split_once(')'))
        else {
            let key = (kind, written.to_owned());
            return Some(self.0.entry(key).or_insert_with(|| written.to_owned()));
        };
        let key = (kind, number.to_owned());
        if let Some(name) = name.strip_prefix(' ') {
            self.0.insert(key.clone(), name.to_owned());
        }
        self.0.get(&key).map(String::as_str)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instructions_count_where_their_source_is() {
        let written = "\
version: 1
events: Ir

fl=(1) /a/crates/core/src/store/write/mod.rs
fn=(1) fusee_core::store::write
10 5
fi=(2) /rustc/library/core/src/option.rs
3 7
fe=(1)
cfi=(3) /a/crates/fabric/src/copy.rs
cfn=(2) fusee_fabric::copy::write
calls=1 4
11 100
+1 2

fl=(3)
fn=(2)
4 90
fi=(4) /a/crates/core/src/verbs.rs
* 10

fl=(5) ???
fn=(3) malloc
0 4
";
        let found = parse_callgrind(written).unwrap();
        // Work of the standard library that is inlined into `write` is counted for `write`.
        let expected = [
            (ProgramPart::Protocol, 14),
            (ProgramPart::Verbs, 10),
            (ProgramPart::Copies, 90),
            (ProgramPart::Heap, 4),
        ];
        assert_eq!(found, ProgramPartCounts::from(expected));
    }

    #[test]
    fn what_is_not_of_callgrind_is_an_error() {
        for wrong in ["fl=(1)", "fn=(7)\n", "fl=a\nfn=b\n10 many", "fl=a\nfn=b\n10"] {
            assert!(parse_callgrind(wrong).unwrap_err().contains("not of callgrind"), "{wrong}");
        }
    }
}
