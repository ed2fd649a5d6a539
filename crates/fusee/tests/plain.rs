//! Counts of what makes prose and names hard to read. Each crate has a budget, which is only ever lowered.
//!
//! The counts only prevent a relapse; whether a text is clear is for a reader to judge. `PLAIN=1 cargo test -p fusee
//! --test commands plain:: -- --nocapture` lists the places.

use std::collections::BTreeMap;
use std::fs::read_to_string;

use super::lines::{GENERATED, collect, root};

/// The counts of a crate: comment lines in which a person stands for a thing; first lines of docs that begin with a
/// question word; functions named as predicates that return no bool; parameters that are anonymous tuples; nested
/// results and options; match arms `true =>` and `false =>`.
const KINDS: [&str; 6] = ["person", "head", "predicate", "tuple", "nested", "bool arm"];
const BUDGETS: &[(&str, [usize; 6])] = &[
    ("auth", [0, 0, 0, 0, 0, 0]),
    ("baselines", [0, 0, 0, 0, 0, 0]),
    ("bench", [0, 0, 0, 0, 0, 0]),
    ("cli", [0, 0, 0, 0, 0, 0]),
    ("client", [0, 0, 0, 0, 0, 2]),
    ("control", [3, 0, 0, 0, 0, 0]),
    ("core", [0, 0, 0, 0, 0, 6]),
    ("export", [0, 0, 0, 0, 0, 0]),
    ("fabric", [0, 0, 0, 0, 0, 0]),
    ("fusee", [0, 0, 0, 0, 0, 0]),
    ("lab", [0, 0, 0, 0, 0, 0]),
    ("launch", [0, 0, 0, 0, 0, 0]),
    ("linearizability", [0, 0, 0, 0, 0, 0]),
    ("master", [0, 0, 0, 0, 0, 0]),
    ("memory-node", [0, 0, 0, 0, 0, 0]),
    ("report", [0, 0, 0, 0, 0, 0]),
    ("sim", [0, 0, 0, 0, 0, 0]),
    ("switch", [0, 0, 0, 0, 0, 0]),
    ("tls", [0, 0, 0, 0, 0, 0]),
    ("workload", [0, 0, 0, 0, 0, 0]),
];
/// Number of types in the sources that share their name with another type.
const SHARED_NAMES: usize = 12;
/// Number of words of Markdown, without generated pages.
const WORDS: usize = 55_765;

const PERSONS: [&str; 10] =
    ["who", "whoever", "whom", "nobody", "somebody", "anybody", "everybody", "he", "his", "him"];
const QUESTIONS: [&str; 7] = ["What", "Who", "How", "Where", "Which", "Whose", "Whom"];
const PREDICATES: [&str; 6] = ["is_", "has_", "may_", "can_", "needs_", "should_"];

#[derive(Default)]
struct RiddleCounts {
    by_crate: BTreeMap<String, [usize; 6]>,
    types: BTreeMap<String, Vec<String>>,
    words: usize,
}

impl RiddleCounts {
    fn of_repository() -> RiddleCounts {
        let root = root();
        let mut files = Vec::new();
        collect(&root, &mut files);
        files.sort();
        let mut counts = RiddleCounts::default();
        for path in files {
            let name = path.strip_prefix(&root).expect("it was found there").display().to_string();
            let text = read_to_string(&path).unwrap_or_else(|error| panic!("{name}: {error}"));
            if GENERATED.contains(&name.as_str()) {
                continue;
            }
            if name.ends_with(".md") {
                counts.words += text.split_whitespace().count();
            } else if let Some(of) = name.strip_prefix("crates/") {
                let (of, _) = of.split_once('/').expect("a crate is a directory");
                counts.read(of, &name, &text);
            }
        }
        counts
    }

    fn read(&mut self, of: &str, name: &str, text: &str) {
        let is_source = name.contains("/src/");
        let counted = self.by_crate.entry(of.to_owned()).or_default();
        let mut previous = "";
        for (line, text) in (1..).zip(text.lines().map(str::trim)) {
            for kind in kinds(previous, text, is_source) {
                counted[kind] += 1;
                if std::env::var_os("PLAIN").is_some() {
                    println!("{}: {name}:{line}: {text}", KINDS[kind]);
                }
            }
            if is_source && let Some(defined) = defined_type(text) {
                let places = self.types.entry(defined.to_owned()).or_default();
                places.push(format!("{name}:{line}"));
            }
            previous = text;
        }
    }

    fn shared_names(&self) -> usize {
        self.types.values().map(Vec::len).filter(|places| *places > 1).sum()
    }
}

/// Returns the kinds of unclear wording that a line contains, as indexes of [`KINDS`].
fn kinds(previous: &str, line: &str, is_source: bool) -> Vec<usize> {
    let mut found = Vec::new();
    let marker = ["//!", "///", "//"].into_iter().find(|marker| line.starts_with(marker));
    if let Some(marker) = marker {
        let text = line[marker.len()..].trim_start();
        let mut words = text.split(|c: char| !c.is_alphanumeric() && c != '_');
        if words.any(|word| PERSONS.iter().any(|person| word.eq_ignore_ascii_case(person))) {
            found.push(0);
        }
        let first = text.split(|c: char| !c.is_alphanumeric()).next().unwrap_or_default();
        let is_question = QUESTIONS.contains(&first) || text.starts_with("As [`");
        if marker != "//" && !previous.starts_with(marker) && is_question {
            found.push(1);
        }
        return found;
    }
    if !is_source {
        return found;
    }
    if is_odd_predicate(line) {
        found.push(2);
    }
    if line.contains("): (") && (line.contains("fn ") || line.starts_with('(')) {
        found.push(3);
    }
    if ["Result<Result", "Option<Option", "Result<Option<Result"].iter().any(|n| line.contains(n)) {
        found.push(4);
    }
    if line.starts_with("true =>") || line.starts_with("false =>") {
        found.push(5);
    }
    found
}

/// Returns whether a line defines a function whose name is a question, and which returns something other than a bool.
fn is_odd_predicate(line: &str) -> bool {
    let Some((before, after)) = line.split_once("fn ") else { return false };
    let is_definition = before
        .split_whitespace()
        .all(|word| ["const", "async", "unsafe"].contains(&word) || word.starts_with("pub"));
    let asks = PREDICATES.iter().any(|predicate| after.starts_with(predicate));
    if !is_definition || !asks || !line.ends_with(['{', ';']) {
        return false;
    }
    let result = after.rsplit_once(" -> ").map_or("", |(_, result)| result);
    let result = result.trim_end_matches(['{', ';', ' ']);
    !(result == "bool"
        || result.starts_with("Result<bool")
        || result == "impl Future<Output = bool>")
}

fn defined_type(line: &str) -> Option<&str> {
    let line = match line.strip_prefix("pub") {
        Some(rest) if rest.starts_with('(') => rest.split_once(") ")?.1,
        Some(rest) => rest.trim_start(),
        None => line,
    };
    let (kind, rest) = line.split_once(' ')?;
    let is_type = ["struct", "enum", "trait", "union"].contains(&kind);
    let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
    is_type.then_some(&rest[..end])
}

#[test]
fn counts_are_within_their_budgets() {
    let counts = RiddleCounts::of_repository();
    let mut mistakes = Vec::new();
    let mut compare = |what: String, found: usize, budget: usize| {
        if found > budget {
            mistakes.push(format!("{what}: {found}, at most {budget}: write it plainly"));
        } else if found < budget {
            mistakes
                .push(format!("{what}: {found}, budget {budget}: lower the budget, it only falls"));
        }
    };
    for (of, found) in &counts.by_crate {
        let budget =
            BUDGETS.iter().find(|(name, _)| name == of).map_or([0; 6], |(_, budget)| *budget);
        for kind in 0..KINDS.len() {
            compare(format!("{of}, {}", KINDS[kind]), found[kind], budget[kind]);
        }
    }
    compare("names of types that are not unique".to_owned(), counts.shared_names(), SHARED_NAMES);
    if counts.words > WORDS {
        mistakes.push(format!("{} words of Markdown, at most {WORDS}", counts.words));
    }
    let table: Vec<String> =
        counts.by_crate.iter().map(|(of, found)| format!("    ({of:?}, {found:?}),")).collect();
    assert!(mistakes.is_empty(), "{}\n\n{}", mistakes.join("\n"), table.join("\n"));
}

#[test]
fn each_kind_is_counted() {
    assert_eq!(kinds("", "// The one who reads", false), [0]);
    assert_eq!(kinds("", "/// What of it stays", false), [1]);
    assert!(kinds("/// A block.", "/// What of it stays", false).is_empty());
    assert!(kinds("", "/// A block that no session owns.", true).is_empty());
    assert_eq!(kinds("", "pub fn is_done(&self) -> Option<u64> {", true), [2]);
    assert!(kinds("", "pub fn is_done(&self) -> bool {", true).is_empty());
    assert_eq!(kinds("", "(view, epoch): (u64, u64),", true), [3]);
    assert_eq!(kinds("", ") -> Result<Result<u8, Full>, Error> {", true), [4]);
    assert_eq!(kinds("", "true => 1,", true), [5]);
    assert!(kinds("", "true => 1,", false).is_empty());
    assert_eq!(defined_type("pub(crate) struct Slot(u64);"), Some("Slot"));
    assert_eq!(defined_type("let found = 1;"), None);
}
