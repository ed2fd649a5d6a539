//! `fusee config check`: finds mistakes in a server's file of settings.

use std::path::{Path, PathBuf};

use clap::ValueEnum;
use fusee_cli::failure::Failure;
use fusee_cli::output;
use fusee_cli::quantity::count_with_noun;
use serde::Serialize;
use toml::de::DeTable;

use super::{ServerKind, SettingsQuery};
use crate::server::settings::problem::{SettingProblem, SettingProblems};
use crate::server::settings::{GivenSettings, ServerSettings, names};

/// Arguments of `fusee config check`.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  \
    fusee config check /etc/fusee/master.toml\n  \
    fusee config check --for switch settings.toml --json\n\n\
    The file is checked as the server would read it, alone: neither the environment nor flags count. What it\n\
    names, such as the secret, is read. Nothing is started or changed.\n\n\
    Exit codes: 0 nothing is wrong; 1 something is; 2 wrong usage.")]
pub struct ConfigCheckArgs {
    /// File to check
    file: PathBuf,

    /// Kind of server that the file configures [default: the kind that knows most of the file's settings]
    #[arg(long = "for", value_name = "SERVER")]
    server: Option<ServerKind>,

    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct ConfigCheckReport<'a> {
    file: &'a Path,
    server: &'a str,
    problems: &'a [SettingProblem],
}

/// Runs `fusee config check`.
pub fn run(args: &ConfigCheckArgs) -> Result<(), Failure> {
    let server = args.server.map_or_else(|| guess(&args.file), Ok)?;
    let SettingProblems(problems) = server.answer(FileCheckQuery(&args.file));
    let name = server.to_possible_value().map(|value| value.get_name().to_owned());
    let server = &*name.unwrap_or_default();
    let file = args.file.display();
    if args.json {
        let report = ConfigCheckReport { file: &args.file, server, problems: &problems };
        output::line(&serde_json::to_string(&report).expect("names and texts"))?;
    } else if problems.is_empty() {
        output::line(&format!("{file}: nothing is wrong with these settings of a {server}"))?;
    } else {
        problems.iter().try_for_each(|problem| output::line(&problem.to_string()))?;
    }
    match problems.len() {
        0 => Ok(()),
        many => Err(Failure::operation(format!(
            "{} in {file}, the settings of a {server}",
            count_with_noun(many as u64, "mistake")
        ))),
    }
}

struct FileCheckQuery<'a>(&'a Path);

impl SettingsQuery for FileCheckQuery<'_> {
    type Answer = SettingProblems;

    fn of<S: ServerSettings>(self) -> SettingProblems {
        GivenSettings::<S>::file(self.0.to_owned()).problems()
    }
}

/// Asks for the names of a server's settings.
struct SettingNamesQuery;

impl SettingsQuery for SettingNamesQuery {
    type Answer = Vec<String>;

    fn of<S: ServerSettings>(self) -> Vec<String> {
        names::<S>()
    }
}

/// Guesses the server for which a file is: the one that knows most of the names in the file.
fn guess(path: &Path) -> Result<ServerKind, Failure> {
    let wrong = |why: String| Failure::usage(format!("{}: {why}", path.display()));
    let text = std::fs::read_to_string(path);
    let text = text.map_err(|error| wrong(format!("cannot be read: {error}")))?;
    let (table, mistakes) = DeTable::parse_recoverable(&text);
    let known = |server: &ServerKind| {
        let names = server.answer(SettingNamesQuery);
        table.get_ref().keys().filter(|key| names.iter().any(|name| name == key.get_ref())).count()
    };
    let counts: Vec<(usize, ServerKind)> =
        ServerKind::value_variants().iter().map(|server| (known(server), *server)).collect();
    let most = counts.iter().map(|(known, _)| *known).max().unwrap_or(0);
    let best: Vec<ServerKind> =
        counts.iter().filter(|(known, _)| *known == most).map(|(_, server)| *server).collect();
    match best[..] {
        [server] => Ok(server),
        // A file that is not TOML is wrong for every server, so any server can report the mistake.
        [server, ..] if !mistakes.is_empty() => Ok(server),
        _ => Err(wrong(
            "its names are those of several servers; say with --for whether it is of a master, memory-node or switch"
                .into(),
        )),
    }
}
