//! The commands of the shell.

use super::line;
use crate::cli::known_as;

/// The text of `help`.
pub const HELP: &str = "\
Commands:
  get KEY             show the value
  insert KEY VALUE    add a key that does not exist
  update KEY VALUE    replace the value of a key that exists
  put KEY VALUE       add a key, or replace its value
  delete KEY          remove a key that exists
  keys [PREFIX]       show all keys, or those that begin so
  count [PREFIX]      count all pairs, or those whose keys begin so
  status              show the cluster
  help                show this
  quit                leave
Quote what has blanks: put \"my key\" 'my value'. Bytes can be written like \\x00 and \\n.
";

/// Names that the shell completes.
pub const NAMES: [&str; 10] =
    ["get", "insert", "update", "put", "delete", "keys", "count", "status", "help", "quit"];

/// A parsed command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ShellCommand {
    /// Show a value.
    Get(Vec<u8>),
    /// Add a key that does not exist.
    Insert(Vec<u8>, Vec<u8>),
    /// Replace the value of a key that exists.
    Update(Vec<u8>, Vec<u8>),
    /// Add a key, or replace its value.
    Put(Vec<u8>, Vec<u8>),
    /// Remove a key.
    Delete(Vec<u8>),
    /// Show keys with a prefix.
    Keys(Vec<u8>),
    /// Count the pairs whose keys have a prefix.
    Count(Vec<u8>),
    /// Show the status of the cluster.
    Status,
    /// Show the commands.
    Help,
    /// Leave the shell.
    Quit,
}

impl ShellCommand {
    /// Parses a line. Returns `None` for an empty line and for a comment, which starts with `#`.
    pub fn parse(text: &str) -> Result<Option<ShellCommand>, String> {
        if text.trim_start().starts_with('#') {
            return Ok(None);
        }
        let words = line::words(text)?;
        let Some((name, arguments)) = words.split_first() else { return Ok(None) };
        let name = String::from_utf8_lossy(name).to_ascii_lowercase();
        let command = match (name.as_str(), arguments) {
            ("get", [key]) => ShellCommand::Get(key.clone()),
            ("insert", [key, value]) => ShellCommand::Insert(key.clone(), value.clone()),
            ("update", [key, value]) => ShellCommand::Update(key.clone(), value.clone()),
            ("put", [key, value]) => ShellCommand::Put(key.clone(), value.clone()),
            ("delete", [key]) => ShellCommand::Delete(key.clone()),
            ("keys", []) => ShellCommand::Keys(Vec::new()),
            ("keys", [prefix]) => ShellCommand::Keys(prefix.clone()),
            ("count", []) => ShellCommand::Count(Vec::new()),
            ("count", [prefix]) => ShellCommand::Count(prefix.clone()),
            ("status", []) => ShellCommand::Status,
            ("help" | "?", _) => ShellCommand::Help,
            ("quit" | "exit", []) => ShellCommand::Quit,
            ("get" | "delete", _) => return Err(format!("write it as: {name} KEY")),
            ("insert" | "update" | "put", _) => {
                return Err(format!("write it as: {name} KEY VALUE (quote what has blanks)"));
            }
            ("keys" | "count", _) => return Err(format!("write it as: {name} [PREFIX]")),
            ("status" | "quit" | "exit", _) => return Err(format!("write it as: {name}")),
            _ => {
                let known = known_as(&name).filter(|known| NAMES.contains(known));
                let meant = known.map(|known| format!(": did you mean `{known}`?"));
                let meant = meant.unwrap_or_else(|| "; `help` shows them all".into());
                return Err(format!("no command is called `{name}`{meant}"));
            }
        };
        Ok(Some(command))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_become_commands() {
        let put = ShellCommand::Put(b"a b".to_vec(), b"c".to_vec());
        assert_eq!(ShellCommand::parse("PUT 'a b' c"), Ok(Some(put)));
        assert_eq!(ShellCommand::parse("get k"), Ok(Some(ShellCommand::Get(b"k".to_vec()))));
        assert_eq!(ShellCommand::parse("exit"), Ok(Some(ShellCommand::Quit)));
        assert_eq!(ShellCommand::parse("  # a remark"), Ok(None));
        assert_eq!(ShellCommand::parse("   "), Ok(None));
    }

    #[test]
    fn wrong_lines_say_how_to_write_them() {
        for (line, says) in [
            ("put k", "put KEY VALUE"),
            ("put k a b", "quote what has blanks"),
            ("get", "get KEY"),
            ("status x", "write it as: status"),
            ("set k v", "did you mean `put`?"),
            ("frob k", "`help` shows"),
            ("count a b", "count [PREFIX]"),
            ("get 'k", "not closed"),
        ] {
            let error = ShellCommand::parse(line).unwrap_err();
            assert!(error.contains(says), "{line}: {error}");
        }
    }

    #[test]
    fn the_help_names_every_command() {
        assert!(NAMES.iter().all(|name| HELP.contains(&format!("\n  {name}"))));
    }
}
