//! `fusee shell`: reads and executes commands, one a line.
//!
//! On a terminal it has a prompt, a history in the user's state directory, and completion of commands' names, and shows
//! the time of each command. From a pipe it reads the same commands without these features. It continues after a failed
//! command, and at the end it fails if a command has failed.

mod command;
mod line;

use std::fs;
use std::io::{BufRead, ErrorKind, IsTerminal, stdin};
use std::path::PathBuf;
use std::time::Instant;

use fusee_cli::connect::ConnectArgs;
use fusee_cli::failure::Failure;
use fusee_cli::quantity::count_with_noun;
use fusee_cli::{output, stderr};
use fusee_client::BlockingClient;
use rustyline::completion::Completer;
use rustyline::error::ReadlineError;
use rustyline::history::DefaultHistory;
use rustyline::{Context, Editor, Helper, Highlighter, Hinter, Validator};

use self::command::{HELP, NAMES, ShellCommand};
use crate::backup::keys;
use crate::{kv, status};

/// Arguments of `fusee shell`.
#[derive(clap::Args, Debug)]
#[command(after_help = format!(
    "Examples:\n  fusee shell\n  printf 'put k \"a b\"\\nget k\\n' | fusee shell\n\n{HELP}\n\
     Exit code 1 if a command from a pipe failed."
))]
pub struct ShellArgs {
    #[command(flatten)]
    connect: ConnectArgs,

    /// Show how long each command took, also if commands come from a pipe
    #[arg(long)]
    timing: bool,
}

struct CommandShell {
    client: BlockingClient,
    master: String,
    timing: bool,
    failures: u64,
}

/// Reads and executes commands until the end of the input.
pub fn run(args: &ShellArgs) -> Result<(), Failure> {
    let interactive = stdin().is_terminal();
    let client = args.connect.connect()?;
    let timing = args.timing || interactive;
    let mut shell =
        CommandShell { client, master: args.connect.master.clone(), timing, failures: 0 };
    if interactive {
        return shell.interact();
    }
    for line in stdin().lock().split(b'\n') {
        let line =
            line.map_err(|e| Failure::operation(format!("cannot read standard input: {e}")))?;
        if shell.execute(&line::text(&line))? {
            break;
        }
    }
    match shell.failures {
        0 => Ok(()),
        1 => Err(Failure::operation("1 command failed")),
        n => Err(Failure::operation(format!("{n} commands failed"))),
    }
}

impl CommandShell {
    fn interact(&mut self) -> Result<(), Failure> {
        let broken = |error: ReadlineError| Failure::operation(format!("the terminal: {error}"));
        let mut editor: Editor<ShellCompleter, DefaultHistory> = Editor::new().map_err(broken)?;
        editor.set_helper(Some(ShellCompleter));
        let history = history_file();
        if let Some(path) = &history {
            // Before the first run there is no history file.
            let _ = editor.load_history(path);
        }
        output::line("type `help` for the commands, Ctrl-D to leave")?;
        loop {
            match editor.readline("fusee> ") {
                Ok(line) => {
                    let _ = editor.add_history_entry(line.as_str());
                    if self.execute(&line)? {
                        break;
                    }
                }
                Err(ReadlineError::Interrupted) => {}
                Err(ReadlineError::Io(error)) if error.kind() == ErrorKind::InvalidData => {
                    stderr::tell(&format!("error: {error}; write other bytes like \\x00"));
                }
                Err(ReadlineError::Eof) => break,
                Err(error) => return Err(broken(error)),
            }
        }
        if let Some(path) = &history
            && let Err(error) = editor.save_history(path)
        {
            tracing::warn!(path = %path.display(), %error, "cannot keep the history");
        }
        Ok(())
    }

    /// Executes a line. Returns whether the shell has to end.
    fn execute(&mut self, line: &str) -> Result<bool, Failure> {
        let start = Instant::now();
        let result = match ShellCommand::parse(line) {
            Ok(None) => return Ok(false),
            Ok(Some(ShellCommand::Quit)) => return Ok(true),
            Ok(Some(command)) => self.answer(&command),
            Err(what) => Err(Failure::usage(what)),
        };
        let elapsed = start.elapsed();
        match result {
            Ok(text) => output::line(text.trim_end_matches('\n'))?,
            Err(failure) => {
                self.failures += 1;
                stderr::tell(&format!("error: {failure}"));
            }
        }
        if self.timing {
            output::line(&format!("({:.1} us)", elapsed.as_nanos() as f64 / 1000.0))?;
        }
        // If the output is closed, the shell ends without the remaining commands.
        Ok(!output::is_read())
    }

    fn answer(&self, command: &ShellCommand) -> Result<String, Failure> {
        let explain = |key: &[u8], error| kv::explain(&line::show(key), error);
        let done = |()| "ok".to_string();
        match command {
            ShellCommand::Get(key) => match self.client.get(key)? {
                Some(value) => Ok(line::show(&value)),
                None => Err(kv::absent(&line::show(key))),
            },
            ShellCommand::Insert(key, value) => {
                self.client.insert(key, value).map(done).map_err(|e| explain(key, e))
            }
            ShellCommand::Update(key, value) => {
                self.client.update(key, value).map(done).map_err(|e| explain(key, e))
            }
            ShellCommand::Put(key, value) => {
                self.client.put(key, value).map(done).map_err(|e| explain(key, e))
            }
            ShellCommand::Delete(key) => {
                self.client.delete(key).map(done).map_err(|e| explain(key, e))
            }
            ShellCommand::Keys(prefix) => self.keys(prefix),
            ShellCommand::Count(prefix) => {
                let mut pairs = 0u64;
                let damaged = keys::each(&self.client, prefix, |_| pairs += 1)?;
                keys::missing(damaged).map(|()| count_with_noun(pairs, "pair"))
            }
            ShellCommand::Status => status::table(&self.master),
            ShellCommand::Help | ShellCommand::Quit => Ok(HELP.to_string()),
        }
    }
}

/// Largest number of keys that `keys` shows.
const MOST_KEYS: usize = 1000;

impl CommandShell {
    fn keys(&self, prefix: &[u8]) -> Result<String, Failure> {
        let mut shown = Vec::new();
        let mut more = 0u64;
        let damaged = keys::each(&self.client, prefix, |pair| {
            if shown.len() < MOST_KEYS { shown.push(line::show(pair.key)) } else { more += 1 }
        })?;
        if more > 0 {
            shown.push(format!("({more} more; `fusee keys` shows all of them)"));
        }
        keys::missing(damaged).map(|()| shown.join("\n"))
    }
}

/// Returns the path of the history file; `None` if the user has no home directory.
fn history_file() -> Option<PathBuf> {
    let set = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let state = set("XDG_STATE_HOME").or_else(|| Some(set("HOME")?.join(".local/state")))?;
    let directory = state.join("fusee");
    fs::create_dir_all(&directory).ok()?;
    Some(directory.join("history"))
}

/// Completes the name of a command in the first word of a line.
#[derive(Helper, Hinter, Highlighter, Validator)]
struct ShellCompleter;

impl Completer for ShellCompleter {
    type Candidate = String;

    fn complete(
        &self,
        line: &str,
        position: usize,
        _: &Context<'_>,
    ) -> rustyline::Result<(usize, Vec<String>)> {
        let typed = line[..position].trim_start();
        let start = position - typed.len();
        let candidates = NAMES.iter().filter(|name| name.starts_with(typed));
        Ok((start, candidates.map(|name| format!("{name} ")).collect()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn complete(line: &str) -> (usize, Vec<String>) {
        let history = DefaultHistory::new();
        ShellCompleter.complete(line, line.len(), &Context::new(&history)).unwrap()
    }

    #[test]
    fn commands_are_completed_and_keys_are_not() {
        assert_eq!(complete("g"), (0, vec!["get ".to_string()]));
        assert_eq!(complete("  pu"), (2, vec!["put ".to_string()]));
        assert_eq!(complete("").1.len(), NAMES.len());
        assert_eq!(complete("get pu").1, Vec::<String>::new());
    }
}
