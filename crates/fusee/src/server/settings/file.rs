//! Settings in a TOML file. All mistakes are found at once, each with its position.
//!
//! The file is parsed into a table that records the position of each value. Then the struct of the server's settings
//! reads each setting separately, so no mistake hides another.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use toml::Spanned;
use toml::de::{DeArray, DeTable, DeValue, Deserializer, ValueDeserializer};

use super::problem::{SettingProblem, SettingProblems};
use super::{FilePosition, SettingOrigin};

/// Settings in a file.
#[derive(Debug, Default)]
pub struct SettingsFile {
    /// Values by the setting's name. Tables are objects.
    pub values: Map<String, Value>,
    /// Positions of the settings by name. Settings in a table are named `table.name`.
    pub places: BTreeMap<String, FilePosition>,
}

/// Reads a file of settings. Returns the correct settings, and the mistakes.
pub fn read<S: DeserializeOwned>(path: &Path) -> (SettingsFile, SettingProblems) {
    match std::fs::read_to_string(path) {
        Ok(text) => parse::<S>(path, &text),
        Err(error) => {
            let origin = SettingOrigin::File { file: path.to_owned(), place: None };
            let message = format!("cannot be read: {error}");
            (
                SettingsFile::default(),
                SettingProblems(vec![SettingProblem { setting: None, origin, message }]),
            )
        }
    }
}

/// Parses the text of a file. Returns the correct settings, and the mistakes.
pub fn parse<S: DeserializeOwned>(path: &Path, text: &str) -> (SettingsFile, SettingProblems) {
    let problem = |setting: Option<String>, offset: Option<usize>, message: &str| {
        let place = offset.map(|offset| FilePosition::of(text, offset));
        let message = match (&setting, unknown(message)) {
            (_, Some(unknown)) => unknown,
            (Some(setting), None) => format!("{setting}: {message}"),
            (None, None) => message.to_owned(),
        };
        SettingProblem {
            setting,
            origin: SettingOrigin::File { file: path.to_owned(), place },
            message,
        }
    };
    let (table, errors) = DeTable::parse_recoverable(text);
    let said = |error: &toml::de::Error| {
        let offset = error.span().map(|span| span.start);
        problem(None, offset, error.message())
    };
    if !errors.is_empty() {
        return (SettingsFile::default(), SettingProblems(errors.iter().map(said).collect()));
    }
    let mut problems = Vec::new();
    let mut wrong = BTreeSet::new();
    for (name, single) in singles(table.get_ref()) {
        if let Err(error) = S::deserialize(Deserializer::from(Spanned::new(table.span(), single))) {
            let offset = error.span().map(|span| span.start);
            wrong.insert(name.clone());
            problems.push(problem(Some(name), offset, error.message()));
        }
    }
    problems.sort_by_key(SettingProblem::place);
    let right = without(table.get_ref(), "", &wrong);
    let mut places = BTreeMap::new();
    note_places(text, "", &right, &mut places);
    let whole = ValueDeserializer::from(Spanned::new(table.span(), DeValue::Table(right)));
    match Value::deserialize(whole) {
        Ok(Value::Object(values)) => (SettingsFile { values, places }, SettingProblems(problems)),
        Ok(_) => unreachable!("a document is a table"),
        Err(error) => (SettingsFile::default(), SettingProblems(vec![said(&error)])),
    }
}

/// Returns the table without the settings that have these names.
fn without<'i>(table: &DeTable<'i>, above: &str, wrong: &BTreeSet<String>) -> DeTable<'i> {
    let mut right = DeTable::new();
    for (key, value) in table {
        let name = format!("{above}{}", key.get_ref());
        let part = match value.get_ref() {
            _ if wrong.contains(&name) => continue,
            DeValue::Table(inner) => DeValue::Table(without(inner, &format!("{name}."), wrong)),
            other => other.clone(),
        };
        right.insert(key.clone(), Spanned::new(value.span(), part));
    }
    right
}

/// Rewords an error about an unknown name, to suggest the most similar name instead of listing all.
fn unknown(message: &str) -> Option<String> {
    let rest = message.strip_prefix("unknown field ")?;
    let mut quoted = rest.split('`').skip(1).step_by(2);
    let name = quoted.next()?;
    let like = |known: &str| if known.starts_with(name) { 1 } else { distance(name, known) };
    let near = quoted.map(|known| (like(known), known)).min();
    let near = near.filter(|(unlike, known)| *unlike <= known.len().max(name.len()).div_ceil(3));
    Some(match near {
        Some((_, known)) => format!("unknown field `{name}`: did you mean `{known}`?"),
        None => format!("unknown field `{name}`: `fusee config show` shows all that there are"),
    })
}

/// Returns the edit distance of two names, in bytes.
fn distance(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.bytes().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, y) in b.bytes().enumerate() {
            let best = (diagonal + usize::from(x != y)).min(row[j] + 1).min(row[j + 1] + 1);
            diagonal = std::mem::replace(&mut row[j + 1], best);
        }
    }
    row[b.len()]
}

/// Returns the parts of a table that are right or wrong independently of each other, each in a table of its own:
/// settings, settings in inner tables, and elements of lists.
fn singles<'i>(table: &DeTable<'i>) -> Vec<(String, DeTable<'i>)> {
    let mut all = Vec::new();
    for (key, value) in table {
        let name = key.get_ref().to_string();
        let mut add = |name: String, part: DeValue<'i>| {
            let mut single = DeTable::new();
            single.insert(key.clone(), Spanned::new(value.span(), part));
            all.push((name, single));
        };
        match value.get_ref() {
            DeValue::Table(inner) if !inner.is_empty() => {
                for (below, single) in singles(inner) {
                    add(format!("{name}.{below}"), DeValue::Table(single));
                }
            }
            DeValue::Array(items) if items.len() > 1 => {
                for item in items.iter() {
                    let mut single = DeArray::new();
                    single.push(item.clone());
                    add(name.clone(), DeValue::Array(single));
                }
            }
            other => add(name, other.clone()),
        }
    }
    all
}

fn note_places(
    text: &str,
    above: &str,
    table: &DeTable<'_>,
    into: &mut BTreeMap<String, FilePosition>,
) {
    for (key, value) in table {
        let name = format!("{above}{}", key.get_ref());
        if let DeValue::Table(inner) = value.get_ref() {
            note_places(text, &format!("{name}."), inner, into);
        }
        into.insert(name, FilePosition::of(text, key.span().start));
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::ExampleSettings;
    use super::*;

    fn problems(text: &str) -> Vec<String> {
        let (_, problems) = parse::<ExampleSettings>(Path::new("f"), text);
        problems.0.iter().map(SettingProblem::to_string).collect()
    }

    #[test]
    fn every_mistake_is_named_with_its_place() {
        let found = problems(
            "counts = \"many\"\nnope = 1\n\n  size = \"3 X\"\nnames = [\"a\", 1, 2]\n\
             [inner]\nfew = 300\nwhat = 1\n",
        );
        let expected = [
            "f:1:10: counts: invalid type: string \"many\", expected u32",
            "f:2:1: unknown field `nope`: `fusee config show` shows all that there are",
            "f:4:10: size: `3 X` is no number of bytes; write it like 512MiB or 1.5GiB",
            "f:5:15: names: invalid type: integer `1`, expected a string",
            "f:5:18: names: invalid type: integer `2`, expected a string",
            "f:7:7: inner.few: invalid value: integer `300`, expected u8",
            "f:8:1: unknown field `what`: ",
        ];
        assert_eq!(found.len(), expected.len(), "{found:#?}");
        for (found, expected) in found.iter().zip(expected) {
            assert!(found.starts_with(expected), "{found}");
        }
    }

    #[test]
    fn the_name_that_was_meant_is_named() {
        for (text, says) in [
            ("count = 1", "unknown field `count`: did you mean `counts`?"),
            ("ohter = \"x\"", "unknown field `ohter`: did you mean `other`?"),
            ("[inner]\nfew-of = 3", "unknown field `few-of`: `fusee config show`"),
        ] {
            assert!(problems(text)[0].contains(says), "{:?}", problems(text));
        }
        assert_eq!(distance("pool", "pol"), 1);
    }

    #[test]
    fn what_is_right_beside_a_mistake_is_read() {
        let (file, problems) = parse::<ExampleSettings>(
            Path::new("f"),
            "counts = 7\nnope = 1\n[inner]\nfew = 300\nmore = 2",
        );
        assert_eq!(problems.0.len(), 2);
        assert_eq!(file.values["counts"], 7);
        assert_eq!(file.values["inner"]["more"], 2);
        assert_eq!(file.places.keys().collect::<Vec<_>>(), ["counts", "inner", "inner.more"]);
    }

    #[test]
    fn what_is_no_toml_is_named_with_its_place() {
        let found = problems("counts = 1\ncounts = 2\n= 5\n");
        assert!(found[0].starts_with("f:2:1: duplicate key"), "{found:?}");
        assert!(found[1].starts_with("f:3:"), "{found:?}");
    }

    #[test]
    fn columns_are_characters() {
        assert_eq!(FilePosition::of("é = ö\n", 5), FilePosition { line: 1, column: 5 });
    }
}
