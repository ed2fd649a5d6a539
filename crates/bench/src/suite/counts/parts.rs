//! The part of the program that an instruction belongs to, by its source file.
//!
//! callgrind writes, for each function, lines with the instructions of one line of source, and names the file where
//! that changes, also within a function that others are inlined into. Code of the standard library that is inlined
//! counts to the function that contains it.

use std::collections::BTreeMap;

use serde::Serialize;

/// The parts of the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Part {
    /// Steps of the protocol, of one operation.
    Protocol,
    /// Words, headers, keys, views: computations on bytes.
    Layouts,
    /// Blocks, objects, free bits.
    Memory,
    /// The pins of views and epochs.
    Epochs,
    /// The batch of an operation, and its execution.
    Verbs,
    /// Copies of bytes.
    Copies,
    /// CRCs.
    Checksum,
    /// The index cache.
    IndexCache,
    /// The other work of a session: futures, statistics, waiting.
    Session,
    /// The heap, in the system's library.
    Heap,
    /// System calls, and all other work of the kernel.
    Kernel,
    /// The caller, and all other code.
    Rest,
}

impl Part {
    /// All, in the order in which they are shown.
    pub const ALL: [Part; 12] = [
        Part::Protocol,
        Part::Layouts,
        Part::Memory,
        Part::Epochs,
        Part::Verbs,
        Part::Copies,
        Part::Checksum,
        Part::IndexCache,
        Part::Session,
        Part::Heap,
        Part::Kernel,
        Part::Rest,
    ];

    /// Returns the name of the part.
    pub fn name(self) -> &'static str {
        match self {
            Part::Protocol => "protocol",
            Part::Layouts => "layouts",
            Part::Memory => "memory",
            Part::Epochs => "epochs",
            Part::Verbs => "verbs",
            Part::Copies => "copies",
            Part::Checksum => "checksum",
            Part::IndexCache => "index cache",
            Part::Session => "session",
            Part::Heap => "heap",
            Part::Kernel => "kernel",
            Part::Rest => "rest",
        }
    }

    /// Returns the part of a source file, if the file decides it.
    pub fn of_file(file: &str) -> Option<Part> {
        const FILES: [(&str, Part); 16] = [
            ("crates/fabric/src/copy", Part::Copies),
            ("crates/fabric/", Part::Verbs),
            ("crates/core/src/verbs", Part::Verbs),
            ("crates/core/src/slab", Part::Memory),
            ("crates/core/src/store/reclaim", Part::Memory),
            ("crates/core/src/store/room", Part::Memory),
            ("crates/core/src/store/pinned", Part::Epochs),
            ("crates/core/src/host", Part::Epochs),
            ("crates/core/src/store/", Part::Protocol),
            ("crates/core/", Part::Layouts),
            ("crates/client/src/logic/cache", Part::IndexCache),
            ("crates/client/", Part::Session),
            ("/crc-fast-", Part::Checksum),
            ("/crc32c-", Part::Checksum),
            ("memmove", Part::Copies),
            ("malloc", Part::Heap),
        ];
        FILES.iter().find(|(part_of, _)| file.contains(part_of)).map(|(_, part)| *part)
    }

    /// Returns the part of a function whose file is not known.
    pub fn of_function(function: &str) -> Part {
        const FUNCTIONS: [(&str, Part); 7] = [
            ("mem", Part::Copies),
            ("__mem", Part::Copies),
            ("malloc", Part::Heap),
            ("free", Part::Heap),
            ("_int_", Part::Heap),
            ("realloc", Part::Heap),
            ("crc", Part::Checksum),
        ];
        let found = FUNCTIONS.iter().find(|(begins, _)| function.starts_with(begins));
        found.map_or(Part::Rest, |(_, part)| *part)
    }
}

/// Instructions by part.
pub type Parts = BTreeMap<Part, u64>;

/// Reads what callgrind has written.
///
/// # Errors
/// The line that is not of its format.
pub fn parts(written: &str) -> Result<Parts, String> {
    let mut names = Names::default();
    let mut parts = Parts::new();
    let mut own = Part::Rest;
    let mut here = None;
    let mut file = None;
    let mut is_inclusive = false;
    for line in written.lines() {
        let wrong = || format!("not of callgrind: {line:?}");
        if let Some((what, name)) = line.split_once('=') {
            match what {
                "fl" => {
                    file = Part::of_file(names.of(Kind::File, name).ok_or_else(wrong)?);
                    here = file;
                }
                "fi" | "fe" => {
                    here = Part::of_file(names.of(Kind::File, name).ok_or_else(wrong)?);
                }
                "fn" => {
                    let function = names.of(Kind::Function, name).ok_or_else(wrong)?;
                    own = file.unwrap_or_else(|| Part::of_function(function));
                }
                "cfi" | "cfl" => drop(names.of(Kind::File, name).ok_or_else(wrong)?),
                "cfn" => drop(names.of(Kind::Function, name).ok_or_else(wrong)?),
                // The next line has the cost of the call, which the callee's own lines have as well.
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
enum Kind {
    File,
    Function,
}

/// A name is written once, with a number, and then by its number.
#[derive(Default)]
struct Names(BTreeMap<(Kind, String), String>);

impl Names {
    fn of(&mut self, kind: Kind, written: &str) -> Option<&str> {
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

fl=(1) /a/crates/core/src/store/write.rs
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
        let found = parts(written).unwrap();
        // Work of the standard library inside of `write` counts as that of `write`.
        let expected =
            [(Part::Protocol, 14), (Part::Verbs, 10), (Part::Copies, 90), (Part::Heap, 4)];
        assert_eq!(found, Parts::from(expected));
    }

    #[test]
    fn what_is_not_of_callgrind_is_an_error() {
        for wrong in ["fl=(1)", "fn=(7)\n", "fl=a\nfn=b\n10 many", "fl=a\nfn=b\n10"] {
            assert!(parts(wrong).unwrap_err().contains("not of callgrind"), "{wrong}");
        }
    }
}
