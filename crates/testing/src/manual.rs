//! Checks of a program's help texts and manual pages.

use std::fs;
use std::path::Path;

use clap::Command;

/// Panics unless the help of each command without subcommands has an example.
pub fn expect_examples(command: &mut Command) {
    if command.get_subcommands().next().is_none() {
        let help = command.render_long_help().to_string();
        assert!(help.contains("Example"), "{}", command.get_name());
    }
    command.get_subcommands_mut().for_each(expect_examples);
}

/// Panics if an option in the manual pages of a directory has no text behind its name. Returns the number of pages.
pub fn expect_texts(directory: &Path) -> usize {
    let pages: Vec<_> = fs::read_dir(directory).unwrap().map(|page| page.unwrap().path()).collect();
    for path in &pages {
        let page = fs::read_to_string(path).unwrap();
        let lines: Vec<&str> = page.lines().collect();
        let is_option = |line: &str| line.starts_with("\\fB\\-");
        let bare = lines.windows(2).find(|two| is_option(two[0]) && two[1].starts_with('.'));
        assert!(bare.is_none(), "{}: {bare:?}", path.display());
    }
    pages.len()
}
