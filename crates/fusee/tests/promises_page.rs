//! The tables of promises in docs/testing.md are generated from markers in the tests.
//!
//! `// Promise FAB-5: A silent node is noticed.` states a promise. Further tests of the promise have `// Promise
//! FAB-5`. A marker above a function, or above `name("...")` in a list of tests, is about that test. A marker above an
//! empty line is about the file. A marker with ` | text` at its end has that text in place of a test. Comments begin
//! with `//`, `#` or `\*`.
//!
//! `FUSEE_WRITE_DOCS=1 cargo test -p fusee --test commands promises_page::` writes the page. Text around tables stays.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use super::lines::{collect_all, root};

const PAGE: &str = "docs/testing.md";
/// Largest number of words of a test's name in a table.
const WORDS: usize = 3;

#[derive(Debug, Default, PartialEq)]
struct Promise {
    sentences: Vec<String>,
    /// The tests: first the one with the sentence, then the others by the name of their file.
    tests: Vec<Test>,
}

/// A test as tables show it: by its file and the name of its function, or by the text of its marker.
#[derive(Debug, PartialEq)]
struct Test {
    file: Option<String>,
    name: Option<String>,
}

/// All promises, by family and number.
#[derive(Default)]
struct Promises {
    all: BTreeMap<(String, usize), Promise>,
    mistakes: Vec<String>,
}

impl Promises {
    fn of_repository() -> Promises {
        let mut files = Vec::new();
        collect_all(&root(), &mut files);
        files.sort();
        let mut promises = Promises::default();
        for path in files.iter().filter(|path| path.extension().is_none_or(|e| e != "md")) {
            let name = path.strip_prefix(root()).expect("it was found there").display().to_string();
            let bytes = fs::read(path).unwrap_or_else(|error| panic!("{name}: {error}"));
            // Files that are not text, such as pictures, have no markers.
            if let Ok(text) = str::from_utf8(&bytes) {
                promises.read(&name, text);
            }
        }
        promises.check();
        promises
    }

    fn read(&mut self, file: &str, text: &str) {
        let lines: Vec<&str> = text.lines().map(str::trim).collect();
        for (at, line) in lines.iter().enumerate() {
            let Some((id, rest)) = marker(line) else { continue };
            let (sentence, shown) = match rest.split_once(" | ") {
                Some((sentence, shown)) => (sentence, Some(shown)),
                None => (rest, None),
            };
            let is_comment = |line: &&&str| line.starts_with("//") || line.starts_with('#');
            let below =
                lines[at + 1..].iter().find(|line| !is_comment(line)).copied().unwrap_or("");
            let test = match (shown, function(below)) {
                (Some(shown), _) => Test { file: None, name: Some(shown.to_owned()) },
                (None, Some(name)) => {
                    Test { file: Some(short_file(file)), name: Some(short_name(name)) }
                }
                (None, None) => {
                    if file.ends_with(".rs") && !below.is_empty() {
                        let place = format!("{file}:{}", at + 1);
                        self.mistakes
                            .push(format!("{place}: neither a function nor an empty line follows"));
                    }
                    Test { file: Some(short_file(file)), name: None }
                }
            };
            let promise = self.all.entry(id).or_default();
            match sentence.strip_prefix(": ") {
                Some(sentence) => {
                    promise.sentences.push(sentence.to_owned());
                    promise.tests.insert(0, test);
                }
                None if sentence.is_empty() => promise.tests.push(test),
                None => self.mistakes.push(format!("{file}:{}: no marker: {line}", at + 1)),
            }
        }
    }

    fn check(&mut self) {
        let mut expected = BTreeMap::new();
        for ((family, number), promise) in &self.all {
            let next = expected.entry(family).or_insert(1);
            if number != next {
                self.mistakes.push(format!("{family}-{next} is missing before {family}-{number}"));
            }
            *next = number + 1;
            if promise.sentences.len() != 1 {
                let found = &promise.sentences;
                self.mistakes
                    .push(format!("{family}-{number} has {} sentences: {found:?}", found.len()));
            }
        }
    }

    /// Returns the page with new tables. A section `## FAB: ...` has one table, which is that of the family.
    fn written_to(&self, page: &str) -> String {
        let mut written = String::new();
        let mut missing: BTreeSet<&str> = self.all.keys().map(|(family, _)| &family[..]).collect();
        let mut section = "";
        for line in page.lines() {
            if let Some(heading) = line.strip_prefix("## ") {
                section = heading.split_once(": ").map_or("", |(family, _)| family);
            }
            let is_family = self.all.keys().any(|(family, _)| family == section);
            if !is_family || !line.starts_with('|') {
                written = written + line + "\n";
            } else if missing.remove(section) {
                written += &self.table(section);
            }
        }
        assert!(missing.is_empty(), "{PAGE} has no section with a table for {missing:?}");
        written
    }

    fn table(&self, family: &str) -> String {
        let mut table = "| id | promise | tests |\n|---|---|---|\n".to_owned();
        for ((of, number), promise) in &self.all {
            if of == family {
                let sentence = promise.sentences.concat();
                table += &format!("| {family}-{number} | {sentence} | {} |\n", promise.shown());
            }
        }
        table
    }
}

impl Promise {
    /// Returns the tests as a cell of the table. A test in the same file as the previous one is named without the file.
    /// Tests of one file that begin alike are named once.
    fn shown(&self) -> String {
        let mut tests: Vec<&Test> = self.tests.iter().collect();
        tests.dedup();
        let mut shown: Vec<String> = Vec::new();
        let mut last = None;
        for Test { file, name } in tests {
            shown.push(match (file, name) {
                (Some(file), Some(name)) if last == Some(file) => format!("`{name}`"),
                (Some(file), Some(name)) => format!("`{file}::{name}`"),
                (Some(file), None) => format!("`{file}`"),
                (None, text) => text.clone().unwrap_or_default(),
            });
            last = file.as_ref();
        }
        shown.join(", ")
    }
}

/// Returns the id of a promise and the rest of the line, if a comment line is a marker.
fn marker(line: &str) -> Option<((String, usize), &str)> {
    let text = ["// ", "# ", "\\* "].iter().find_map(|start| line.strip_prefix(start))?;
    let (family, rest) = text.strip_prefix("Promise ")?.split_once('-')?;
    let is_family = family.len() == 3 && family.bytes().all(|letter| letter.is_ascii_uppercase());
    let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    let number = rest[..digits].parse().ok()?;
    is_family.then_some(((family.to_owned(), number), &rest[digits..]))
}

/// Returns the name that a line defines: of a function in Rust or in a script, or of a test in a list (`name("...")`).
fn function(line: &str) -> Option<&str> {
    let is_name = |name: &str| name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
    let name = match line.split_once("fn ") {
        Some((before, after)) => {
            let words = ["async", "const", "unsafe"];
            let is_definition = before
                .split_whitespace()
                .all(|word| words.contains(&word) || word.starts_with("pub"));
            is_definition.then(|| after.split(['(', '<']).next().unwrap_or_default())?
        }
        None => match line.split_once("name(\"") {
            Some((_, after)) => after.split('"').next()?,
            None => line.strip_suffix("() {")?,
        },
    };
    (!name.is_empty() && is_name(name)).then_some(name)
}

fn short_file(file: &str) -> String {
    file.trim_start_matches("crates/").trim_end_matches("/mod.rs").to_owned()
}

fn short_name(name: &str) -> String {
    match name.match_indices('_').nth(WORDS - 1) {
        Some((at, _)) => format!("{}_...", &name[..at]),
        None => name.to_owned(),
    }
}

#[test]
fn the_page_has_the_promises_of_the_tests() {
    let promises = Promises::of_repository();
    assert!(promises.mistakes.is_empty(), "{}", promises.mistakes.join("\n"));
    let path = root().join(PAGE);
    let page = fs::read_to_string(&path).expect("the page is there");
    let written = promises.written_to(&page);
    if std::env::var_os("FUSEE_WRITE_DOCS").is_some() {
        fs::write(&path, written).expect("the page can be written");
        return;
    }
    let is_in = |text: &str, line: &&str| text.lines().any(|other| other == *line);
    let old: Vec<&str> = page.lines().filter(|line| !is_in(&written, line)).collect();
    let new: Vec<&str> = written.lines().filter(|line| !is_in(&page, line)).collect();
    let (old, new) = (old.join("\n-"), new.join("\n+"));
    assert!(page == written, "{PAGE} differs; FUSEE_WRITE_DOCS=1 writes it:\n-{old}\n+{new}");
}

#[test]
fn markers_stand_for_what_follows() {
    let mut promises = Promises::default();
    let text = [
        "//! A file.",
        "",
        "// Promise ABC-1",
        "// Promise ABC-2: A file holds. | scenario `one`",
        "",
        "/// A test.",
        "// Promise ABC-1: A test holds.",
        "#[test]",
        "fn a_test_with_a_long_name_holds() {",
        "    fn a_test_with_a_short_name() {}",
        "    // Promise ABC-4",
        "    let promise = 1;",
    ];
    promises.read("crates/abc/src/mod.rs", &text.join("\n"));
    promises
        .read("tests/run", "# Promise ABC-4: Scripts hold.\nset -e\n# Promise ABC-4\ncheck() {");
    promises.check();
    let table = "| id | promise | tests |\n|---|---|---|\n\
        | ABC-1 | A test holds. | `abc/src::a_test_with_...`, `abc/src` |\n\
        | ABC-2 | A file holds. | scenario `one` |\n\
        | ABC-4 | Scripts hold. | `tests/run`, `abc/src`, `tests/run::check` |\n";
    assert_eq!(promises.table("ABC"), table);
    let mistakes = [
        "crates/abc/src/mod.rs:11: neither a function nor an empty line follows",
        "ABC-3 is missing before ABC-4",
    ];
    assert_eq!(promises.mistakes, mistakes);
    promises.read("more", "# Promise ABC-1: Another sentence.\n# Promise ABC-5");
    promises.mistakes.clear();
    promises.check();
    assert!(promises.mistakes[0].starts_with("ABC-1 has 2 sentences"), "{:?}", promises.mistakes);
    assert!(promises.mistakes[2].starts_with("ABC-5 has 0 sentences"), "{:?}", promises.mistakes);
    let page =
        "# Page\n\nText.\n\n## ABC: letters\n\n|old|\n|---|\n\nMore.\n\n## Others\n\n|kept|\n";
    let written = promises.written_to(page);
    assert!(written.starts_with("# Page\n\nText.\n\n## ABC: letters\n\n| id |"), "{written}");
    assert!(written.ends_with("|\n\nMore.\n\n## Others\n\n|kept|\n"), "{written}");
}
