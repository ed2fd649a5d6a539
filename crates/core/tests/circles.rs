//! The test that no files of the crate use each other in a circle.
//!
//! A file *uses* another one if it names an item that the other file defines, in a `use` or by a path in its code. An
//! item that a module re-exports (`pub use`) belongs to the file that defines it. A file that declares modules and the
//! files of these modules are parts of one whole: a lower file is allowed to name items of a file above it, and a
//! re-export does not count as a use. Tests and comments are ignored.

// Promise API-10: No files of core use each other in a circle.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{read_dir, read_to_string};
use std::path::{Path, PathBuf};

#[test]
fn no_files_use_each_other_in_a_circle() {
    let crate_dir = std::env::var("CARGO_MANIFEST_DIR").expect("Cargo says where the package is");
    let house = House::read(&PathBuf::from(crate_dir).join("src"));
    assert!(house.files.len() > 40, "only {} files", house.files.len());
    assert!(house.uses().values().map(BTreeMap::len).sum::<usize>() > 200, "hardly any use");
    let circles = house.circles();
    let circles: Vec<String> = circles.iter().map(|circle| house.describe(circle)).collect();
    assert!(circles.is_empty(), "{} circles of files:\n{}", circles.len(), circles.join("\n"));
}

#[test]
fn circles_are_found_whatever_way_a_name_is_written() {
    let circles = |files: &[(&str, &str)]| -> Vec<Vec<String>> {
        let circles = House::of(files.iter().copied()).circles();
        circles.into_iter().map(|circle| circle.into_iter().collect()).collect()
    };
    let root = ("lib.rs", "pub mod a;\npub mod b;\nmod c;\n");
    let b = ("b.rs", "use crate::a::A;\npub struct B(A);\npub struct C;\n");
    let found = [["a.rs", "b.rs"]];
    assert_eq!(circles(&[root, ("a.rs", "pub struct A;\n"), b]), [[""; 0]; 0]);
    assert_eq!(circles(&[root, ("a.rs", "use crate::{c::X, b::{self, B}};\n"), b]), found);
    assert_eq!(circles(&[root, ("a.rs", "use super::b::B as Other;\n"), b]), found);
    assert_eq!(circles(&[root, ("a.rs", "fn f<'a>(x: &'a crate::b::B) {}\n"), b]), found);
    let none =
        "// crate::b::B\nconst X: &str = \"crate::b::B \\\" crate::b::B\";\n/* crate::b */\n";
    assert_eq!(circles(&[root, ("a.rs", none), b]), [[""; 0]; 0]);
    let tested = "#[cfg(test)]\nmod tests {\n    use crate::b::B;\n    fn f() {}\n}\n";
    assert_eq!(circles(&[root, ("a.rs", tested), b]), [[""; 0]; 0]);
    // A use through a module that re-exports the item counts; a part is allowed to name items of the whole.
    let c = ("c.rs", "mod d;\npub use d::D;\npub struct Whole(D);\n");
    let d = ("c/d.rs", "use super::Whole;\nuse crate::a::A;\npub struct D;\n");
    assert_eq!(circles(&[root, ("a.rs", "use crate::c::D;\n"), c, d]), [["a.rs", "c/d.rs"]]);
    let whole = ("a.rs", "use crate::c::Whole;\n");
    assert_eq!(circles(&[root, whole, c, d]), [[""; 0]; 0]);
    let c = ("c.rs", "mod d;\nuse d::D;\npub struct Whole(D);\n");
    assert_eq!(circles(&[root, whole, c, d]), [["a.rs", "c.rs", "c/d.rs"]]);
}

/// A path of module and item names.
type Names = Vec<String>;

struct File {
    name: String,
    module: Names,
    /// The paths of the items that the file uses.
    paths: Vec<Names>,
    /// The names that the file re-exports, with the path of the item behind each name.
    exports: BTreeMap<String, Names>,
}

struct House {
    files: Vec<File>,
}

impl House {
    fn read(src: &Path) -> House {
        let mut files = Vec::new();
        collect(src, &mut files);
        let named = |path: &PathBuf| {
            let name = path.strip_prefix(src).expect("it was found there");
            let text = read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
            (name.to_string_lossy().replace('\\', "/"), text)
        };
        let files: Vec<(String, String)> = files.iter().map(named).collect();
        House::of(files.iter().map(|(name, text)| (&**name, &**text)))
    }

    fn of<'t>(files: impl Iterator<Item = (&'t str, &'t str)>) -> House {
        House { files: files.map(|(name, text)| File::parse(name, text)).collect() }
    }

    fn file(&self, module: &[String]) -> Option<&File> {
        self.files.iter().find(|file| file.module == module)
    }

    /// Returns the file that defines the item of a path, and the item's name; `None` if no file of this crate defines
    /// it.
    fn target(&self, from: &File, path: &[String]) -> Option<(&File, String)> {
        let mut base = from.module.clone();
        let rest = match path[0].as_str() {
            "crate" => {
                base.clear();
                &path[1..]
            }
            "self" => &path[1..],
            "super" => {
                let ups = path.iter().take_while(|name| *name == "super").count();
                base.truncate(base.len().saturating_sub(ups));
                &path[ups..]
            }
            child => {
                let is_child = self.file(&[&base[..], &[child.to_owned()]].concat()).is_some();
                if !is_child {
                    return None;
                }
                path
            }
        };
        let full = [&base[..], rest].concat();
        let file = (0..=full.len()).rev().find_map(|len| self.file(&full[..len]))?;
        let name = full.get(file.module.len());
        if let Some(export) = name.and_then(|name| file.exports.get(name)) {
            return self.target(file, export);
        }
        Some((file, name.cloned().unwrap_or_default()))
    }

    /// Returns for each file the other files that it uses, with the names that it uses of each.
    fn uses(&self) -> BTreeMap<&str, BTreeMap<&str, BTreeSet<String>>> {
        let mut uses: BTreeMap<&str, BTreeMap<&str, BTreeSet<String>>> = BTreeMap::new();
        for file in &self.files {
            for path in &file.paths {
                let Some((used, name)) = self.target(file, path) else { continue };
                // A file does not use itself, nor a file above it.
                if !file.module.starts_with(&used.module) {
                    let names = uses.entry(&file.name).or_default().entry(&used.name).or_default();
                    names.insert(name);
                }
            }
        }
        uses
    }

    /// Returns the sets of files in which each file uses, directly or through others, all files of the set.
    fn circles(&self) -> BTreeSet<BTreeSet<String>> {
        let uses = self.uses();
        let reached = |from: &str| {
            let mut reached: BTreeSet<&str> = BTreeSet::new();
            let mut open = vec![from];
            while let Some(file) = open.pop() {
                for used in uses.get(file).into_iter().flat_map(BTreeMap::keys) {
                    if reached.insert(used) {
                        open.push(used);
                    }
                }
            }
            reached
        };
        let all: BTreeMap<&str, BTreeSet<&str>> =
            self.files.iter().map(|file| (&*file.name, reached(&file.name))).collect();
        let circle = |(file, reached): (&&str, &BTreeSet<&str>)| {
            let circle = reached.iter().filter(|other| all[**other].contains(file));
            circle.map(|other| (*other).to_owned()).collect::<BTreeSet<String>>()
        };
        all.iter().map(circle).filter(|circle| !circle.is_empty()).collect()
    }

    fn describe(&self, circle: &BTreeSet<String>) -> String {
        let mut lines = vec![format!("{circle:?}")];
        for (file, used) in self.uses() {
            for (other, names) in used {
                if circle.contains(file) && circle.contains(other) {
                    lines.push(format!("  {file} uses of {other}: {names:?}"));
                }
            }
        }
        lines.join("\n")
    }
}

impl File {
    fn parse(name: &str, text: &str) -> File {
        let module = name.trim_end_matches(".rs").split('/').map(str::to_owned);
        let mut module: Names = module.collect();
        module.pop_if(|last| last == "mod" || name == "lib.rs");
        let mut file =
            File { name: name.to_owned(), module, paths: Vec::new(), exports: BTreeMap::new() };
        let tokens = without_tests(tokens(text));
        let mut at = 0;
        while at < tokens.len() {
            // `use<...>` in an `impl Trait` type lists captured parameters, and is not a `use` item.
            let is_use = tokens[at] == "use" && tokens.get(at + 1).is_some_and(|t| t != "<");
            if is_use {
                let is_handed_on = at > 0 && (tokens[at - 1] == "pub" || tokens[at - 1] == ")");
                let mut leaves = Vec::new();
                at = tree(&tokens, at + 1, &[], &mut leaves);
                for (path, alias) in leaves {
                    if is_handed_on {
                        file.exports.insert(alias, path.clone());
                    }
                    let is_outside = matches!(&*path[0], "crate" | "super");
                    if !is_handed_on || is_outside {
                        file.paths.push(path);
                    }
                }
            } else if matches!(&*tokens[at], "crate" | "super") {
                let mut path = vec![tokens[at].clone()];
                while tokens.get(at + 1).is_some_and(|t| t == "::")
                    && tokens.get(at + 2).is_some_and(|t| is_name(t))
                {
                    path.push(tokens[at + 2].clone());
                    at += 2;
                }
                if path.len() > 1 {
                    file.paths.push(path);
                }
            }
            at += 1;
        }
        file
    }
}

/// Reads the tree behind a `use`, beginning at token `from`, and collects every path with the name that it gets.
/// Returns the index of the token behind the tree.
fn tree(
    tokens: &[String],
    from: usize,
    base: &[String],
    leaves: &mut Vec<(Names, String)>,
) -> usize {
    let mut at = from;
    let mut path = base.to_vec();
    loop {
        match tokens.get(at).map(String::as_str) {
            Some("::") => at += 1,
            Some("{") => {
                at += 1;
                while tokens[at] != "}" {
                    at = tree(tokens, at, &path, leaves);
                    at += usize::from(tokens[at] == ",");
                }
                return at + 1;
            }
            Some("as") => {
                leaves.push((path, tokens[at + 1].clone()));
                return at + 2;
            }
            Some("self") if !path.is_empty() => at += 1,
            Some(name) if is_name(name) => {
                path.push(name.to_owned());
                at += 1;
            }
            Some("*") => at += 1,
            _ => {
                let alias = path.last().cloned().unwrap_or_default();
                leaves.push((path, alias));
                return at;
            }
        }
    }
}

fn is_name(token: &str) -> bool {
    token.starts_with(|c: char| c.is_alphabetic() || c == '_')
}

/// Returns the tokens that are outside of test modules.
fn without_tests(tokens: Vec<String>) -> Vec<String> {
    let marker = ["#", "[", "cfg", "(", "test", ")", "]"];
    let mut kept = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        let is_test = tokens[at..].iter().take(marker.len()).eq(marker.iter());
        if !is_test {
            kept.push(tokens[at].clone());
            at += 1;
            continue;
        }
        // Skips to the end of the item, which is a semicolon or the end of a block.
        let mut depth = 0;
        at += marker.len();
        while at < tokens.len() {
            depth += i32::from(tokens[at] == "{") - i32::from(tokens[at] == "}");
            at += 1;
            if depth == 0 && matches!(&*tokens[at - 1], ";" | "}") {
                break;
            }
        }
    }
    kept
}

/// Splits a text into names, `::`, and single characters, without comments and literals.
fn tokens(text: &str) -> Vec<String> {
    let text: Vec<char> = text.chars().chain(['\n'; 4]).collect();
    let mut tokens = Vec::new();
    let mut at = 0;
    while at + 4 < text.len() {
        let end_of = |from: usize, end: &str| {
            let end: Vec<char> = end.chars().collect();
            let found = (from..text.len()).find(|i| text[*i..].starts_with(&end));
            found.map_or(text.len(), |i| i + end.len())
        };
        let rest = &text[at..];
        at = match rest[0] {
            '/' if rest[1] == '/' => end_of(at, "\n"),
            '/' if rest[1] == '*' => end_of(at + 2, "*/"),
            'r' if rest[1] == '"' => end_of(at + 2, "\""),
            'r' if rest[1] == '#' && rest[2] == '"' => end_of(at + 3, "\"#"),
            '"' => end_of_string(&text, at + 1),
            '\'' if rest[1] == '\\' => end_of(at + 3, "'"),
            '\'' if rest[2] == '\'' => at + 3,
            ':' if rest[1] == ':' => {
                tokens.push("::".to_owned());
                at + 2
            }
            c if c.is_alphanumeric() || c == '_' => {
                let is_part = |c: &&char| c.is_alphanumeric() || **c == '_';
                let name: String = rest.iter().take_while(is_part).collect();
                let len = name.chars().count();
                tokens.push(name);
                at + len
            }
            c => {
                if !c.is_whitespace() {
                    tokens.push(c.to_string());
                }
                at + 1
            }
        };
    }
    tokens
}

fn end_of_string(text: &[char], from: usize) -> usize {
    let mut at = from;
    while at < text.len() && text[at] != '"' {
        at += 1 + usize::from(text[at] == '\\');
    }
    at + 1
}

/// Collects all sources below a directory, except tests.
fn collect(directory: &Path, files: &mut Vec<PathBuf>) {
    let entries = read_dir(directory).unwrap_or_else(|e| panic!("{}: {e}", directory.display()));
    for entry in entries {
        let path = entry.expect("the directory can be read").path();
        let is_source = path.extension().is_some_and(|end| end == "rs");
        if path.is_dir() {
            collect(&path, files);
        } else if is_source && path.file_name().is_some_and(|name| name != "tests.rs") {
            files.push(path);
        }
    }
}
