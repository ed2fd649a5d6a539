//! Settings of a TOML file: all that is wrong in it at once, each with its place.
//!
//! The file is parsed into a table that knows where everything stands. Each setting is then read by
//! itself, as the struct of the server's settings has it, so one mistake hides no other.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use toml::Spanned;
use toml::de::{DeArray, DeTable, DeValue, Deserializer, ValueDeserializer};

use super::problem::{Problem, Problems};
use super::{Origin, Place};

/// What a file sets.
#[derive(Debug, Default)]
pub struct File {
    /// By name; tables are objects.
    pub values: Map<String, Value>,
    /// Where each name stands; names of a table are `table.name`.
    pub places: BTreeMap<String, Place>,
}

/// Reads the file of these settings.
pub fn read<S: DeserializeOwned>(path: &Path) -> Result<File, Problems> {
    let text = std::fs::read_to_string(path).map_err(|error| {
        let origin = Origin::File { file: path.to_owned(), place: None };
        let message = format!("cannot be read: {error}");
        Problems(vec![Problem { setting: None, origin, message }])
    })?;
    parse::<S>(path, &text)
}

/// The settings in the text of a file.
pub fn parse<S: DeserializeOwned>(path: &Path, text: &str) -> Result<File, Problems> {
    let problem = |setting: Option<String>, offset: Option<usize>, message: &str| {
        let place = offset.map(|offset| Place::of(text, offset));
        let message = match &setting {
            Some(setting) if !message.contains("unknown field") => format!("{setting}: {message}"),
            _ => message.to_owned(),
        };
        Problem { setting, origin: Origin::File { file: path.to_owned(), place }, message }
    };
    let (table, errors) = DeTable::parse_recoverable(text);
    let said = |error: &toml::de::Error| {
        let offset = error.span().map(|span| span.start);
        problem(None, offset, error.message())
    };
    if !errors.is_empty() {
        return Err(Problems(errors.iter().map(said).collect()));
    }
    let mut problems = Vec::new();
    for (name, single) in singles(table.get_ref()) {
        if let Err(error) = S::deserialize(Deserializer::from(Spanned::new(table.span(), single))) {
            let offset = error.span().map(|span| span.start);
            problems.push(problem(Some(name), offset, error.message()));
        }
    }
    if !problems.is_empty() {
        problems.sort_by_key(|problem| match &problem.origin {
            Origin::File { place, .. } => place.map(|place| (place.line, place.column)),
            _ => None,
        });
        return Err(Problems(problems));
    }
    let mut places = BTreeMap::new();
    note_places(text, "", table.get_ref(), &mut places);
    let whole = DeValue::Table(table.get_ref().clone());
    let whole = ValueDeserializer::from(Spanned::new(table.span(), whole));
    match Value::deserialize(whole) {
        Ok(Value::Object(values)) => Ok(File { values, places }),
        Ok(_) => unreachable!("a document is a table"),
        Err(error) => Err(Problems(vec![said(&error)])),
    }
}

/// The parts of a table that are right or wrong by themselves, each as a table with nothing else in
/// it: names, names of tables in it, elements of lists.
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

fn note_places(text: &str, above: &str, table: &DeTable<'_>, into: &mut BTreeMap<String, Place>) {
    for (key, value) in table {
        let name = format!("{above}{}", key.get_ref());
        if let DeValue::Table(inner) = value.get_ref() {
            note_places(text, &format!("{name}."), inner, into);
        }
        into.insert(name, Place::of(text, key.span().start));
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::Example;
    use super::*;

    fn problems(text: &str) -> Vec<String> {
        let problems = parse::<Example>(Path::new("f"), text).unwrap_err();
        problems.0.iter().map(Problem::to_string).collect()
    }

    #[test]
    fn every_mistake_is_named_with_its_place() {
        let found = problems(
            "counts = \"many\"\nnope = 1\n\n  size = \"3 X\"\nnames = [\"a\", 1, 2]\n\
             [inner]\nfew = 300\nwhat = 1\n",
        );
        let expected = [
            "f:1:10: counts: invalid type: string \"many\", expected u32",
            "f:2:1: unknown field `nope`, expected one of ",
            "f:4:10: size: `3 X` is no number of bytes; write it like 512MiB or 1.5GiB",
            "f:5:15: names: invalid type: integer `1`, expected a string",
            "f:5:18: names: invalid type: integer `2`, expected a string",
            "f:7:7: inner.few: invalid value: integer `300`, expected u8",
            "f:8:1: unknown field `what`, expected ",
        ];
        assert_eq!(found.len(), expected.len(), "{found:#?}");
        for (found, expected) in found.iter().zip(expected) {
            assert!(found.starts_with(expected), "{found}");
        }
    }

    #[test]
    fn what_is_no_toml_is_named_with_its_place() {
        let found = problems("counts = 1\ncounts = 2\n= 5\n");
        assert!(found[0].starts_with("f:2:1: duplicate key"), "{found:?}");
        assert!(found[1].starts_with("f:3:"), "{found:?}");
    }

    #[test]
    fn columns_are_characters() {
        assert_eq!(Place::of("é = ö\n", 5), Place { line: 1, column: 5 });
    }
}
