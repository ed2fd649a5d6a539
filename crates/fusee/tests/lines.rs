//! Lines of source and documentation are so short that two files can be read side by side.
//!
//! Lines of source have at most 100 columns by rustfmt, or 120 where rustfmt does not break: comments and strings.
//! Lines of documentation have at most 100, or 160 where Markdown cannot break: table rows, code blocks, and lines that
//! are one link or one piece of code. Columns are characters, not bytes.
//!
//! The test works in any checkout, with git or without it. It skips build directories and hidden ones.

// Promise API-7: Lines of source and docs are short.

use std::fs::{read_dir, read_to_string};
use std::path::{Path, PathBuf};

/// Largest number of columns of a line of source.
const SOURCE: usize = 120;
/// Largest number of columns of a line of text.
const TEXT: usize = 100;
/// Largest number of columns of a line of Markdown that cannot be broken.
const UNBROKEN: usize = 160;
/// Files that `tests/campaign` has written. These files contain long command lines of `tests/campaign`.
pub const GENERATED: [&str; 2] = ["docs/results/campaign.md", "docs/results/switches.md"];

/// The list of too long lines that the tests expect: an empty one.
const NONE: [usize; 0] = [];

#[test]
fn lines_are_short() {
    let root = root();
    let mut files = Vec::new();
    collect(&root, &mut files);
    assert!(files.len() > 100, "only {} files below {}", files.len(), root.display());
    files.sort();
    let mut long = Vec::new();
    for path in files {
        let name = path.strip_prefix(&root).expect("it was found there").display().to_string();
        if GENERATED.contains(&name.as_str()) {
            continue;
        }
        let text = read_to_string(&path).unwrap_or_else(|error| panic!("{name}: {error}"));
        let found = if name.ends_with(".md") { too_long_text(&text) } else { too_long(&text) };
        long.extend(found.into_iter().map(|(line, columns, most)| {
            format!("{name}:{line}: {columns} columns, at most {most}")
        }));
    }
    assert!(long.is_empty(), "{} lines are too long:\n{}", long.len(), long.join("\n"));
}

#[test]
fn each_kind_of_line_has_its_limit() {
    let columns = |text: &str| -> Vec<usize> {
        too_long_text(text).into_iter().map(|(line, ..)| line).collect()
    };
    let word = "x".repeat(101);
    assert_eq!(columns(&"x".repeat(100)), NONE);
    assert_eq!(columns(&"é".repeat(100)), NONE);
    assert_eq!(columns(&word), [1]);
    assert_eq!(columns(&format!("| {word} |")), NONE);
    assert_eq!(columns(&format!("| {word}{word} |")), [1]);
    assert_eq!(columns(&format!("```\n{word}\n```\n{word}")), [4]);
    assert_eq!(columns(&format!("text\n\n    {word}")), NONE);
    assert_eq!(columns(&format!("* text\n  {word}")), [2]);
    assert_eq!(columns(&format!("* [{word}](a.md),")), NONE);
    assert_eq!(columns(&format!("[a](a.md) {word}")), [1]);
    assert_eq!(columns(&format!("`{word}`:")), NONE);
    assert_eq!(too_long(&"x".repeat(121)), [(1, 121, SOURCE)]);
}

/// Returns the root of the repository.
pub fn root() -> PathBuf {
    let package = std::env::var("CARGO_MANIFEST_DIR").ok();
    let package = package.or(option_env!("CARGO_MANIFEST_DIR").map(String::from));
    let package = PathBuf::from(package.expect("Cargo says where the package is"));
    package.ancestors().nth(2).expect("the package is crates/fusee").to_path_buf()
}

/// Adds all sources and documents below a directory.
pub fn collect(directory: &Path, files: &mut Vec<PathBuf>) {
    collect_all(directory, files);
    files.retain(|path| path.extension().is_some_and(|kind| kind == "md" || kind == "rs"));
}

/// Adds all files below a directory to `files`.
pub fn collect_all(directory: &Path, files: &mut Vec<PathBuf>) {
    let entries = read_dir(directory).unwrap_or_else(|e| panic!("{}: {e}", directory.display()));
    for entry in entries {
        let entry = entry.expect("the directory can be read");
        let path = entry.path();
        let name = entry.file_name().to_string_lossy().into_owned();
        if entry.file_type().expect("it is there").is_dir() {
            if name != "target" && !name.starts_with('.') {
                collect_all(&path, files);
            }
        } else {
            files.push(path);
        }
    }
}

/// Returns the lines of source that are too long, with the line's number, its columns, and the limit.
fn too_long(text: &str) -> Vec<(usize, usize, usize)> {
    let lines = text.lines().enumerate().map(|(i, line)| (i + 1, line.chars().count(), SOURCE));
    lines.filter(|(_, columns, most)| columns > most).collect()
}

/// Returns the lines of Markdown that are too long, with the line's number, its columns, and the limit.
fn too_long_text(text: &str) -> Vec<(usize, usize, usize)> {
    let mut long = Vec::new();
    let mut fenced = false;
    let mut listed = false;
    let mut blank = true;
    for (i, line) in text.lines().enumerate() {
        let trimmed = line.trim();
        let is_fence = trimmed.starts_with("```");
        fenced ^= is_fence;
        // Four spaces begin a code block after an empty line, but not in a list.
        let indented = line.starts_with("    ") && !listed && (blank || trimmed.is_empty());
        let unbroken = fenced || indented || trimmed.starts_with('|') || is_one_piece(trimmed);
        let most = if unbroken { UNBROKEN } else { TEXT };
        let columns = line.chars().count();
        if columns > most {
            long.push((i + 1, columns, most));
        }
        if !trimmed.is_empty() {
            let is_item = trimmed.starts_with(['*', '-']) || trimmed.starts_with(char::is_numeric);
            listed = is_item || listed && line.starts_with(' ');
        }
        blank = trimmed.is_empty() || indented;
    }
    long
}

/// Returns whether a line is one link or one piece of code, apart from a list mark and punctuation at its end.
fn is_one_piece(line: &str) -> bool {
    let line = line.trim_start_matches(['*', '-', ' ']).trim_end_matches([',', '.', ':', ';', ')']);
    let is_link = line.starts_with('[') && line.matches("](").count() == 1 && {
        let (_, target) = line.split_once("](").unwrap_or_default();
        !target.contains([' ', ')'])
    };
    let is_code = line.len() > 1 && line.starts_with('`') && line.ends_with('`');
    is_link || is_code && line.matches('`').count() == 2
}
