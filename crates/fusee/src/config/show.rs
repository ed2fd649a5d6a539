//! `fusee config show`: prints the settings that a server would start with.

use std::fmt;

use clap::Subcommand;
use fusee_cli::failure::Failure;
use fusee_cli::output;
use fusee_cli::quantity;
use serde::Serialize;
use serde_json::Value;

use crate::server::settings::{GivenSettings, ServerSettings, SettingOrigin, is_live};
use crate::server::{master, memory_node, switch};

/// Arguments of `fusee config show`.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  \
    fusee config show master --config /etc/fusee/master.toml\n  \
    fusee config show --json memory-node --config node.toml --pool 64GiB\n\n\
    The command line is that of the server, and so is the environment. What is shown is a file that sets the\n\
    same; behind each value is where it comes from.\n\n\
    Exit codes: 0 shown; 2 wrong usage, or settings that no server would take.")]
pub struct ConfigShowArgs {
    /// Print one JSON object
    #[arg(long)]
    json: bool,

    #[command(subcommand)]
    server: ServerCommandLine,
}

/// A server, with its command line.
#[derive(Subcommand, Debug)]
#[command(disable_help_subcommand = true)]
enum ServerCommandLine {
    /// Show the settings of a master
    #[command(after_help = "Example:\n  fusee config show master --config /etc/fusee/master.toml")]
    Master(GivenSettings<master::MasterServerSettings>),
    /// Show the settings of a memory node
    #[command(after_help = "Example:\n  fusee config show memory-node --pool 64GiB")]
    MemoryNode(GivenSettings<memory_node::MemoryNodeSettings>),
    /// Show the settings of a switch
    #[command(after_help = "Example:\n  fusee config show switch --slots 1000")]
    Switch(GivenSettings<switch::SwitchSettings>),
}

/// A row of the output: a setting with its value.
#[derive(Debug, Serialize)]
struct SettingRow {
    name: String,
    value: Value,
    #[serde(flatten)]
    origin: SettingOrigin,
    /// Whether a running server can take over a new value.
    live: bool,
}

/// Runs `fusee config show`.
pub fn run(args: &ConfigShowArgs) -> Result<(), Failure> {
    let rows = match &args.server {
        ServerCommandLine::Master(given) => rows(given)?,
        ServerCommandLine::MemoryNode(given) => rows(given)?,
        ServerCommandLine::Switch(given) => rows(given)?,
    };
    if args.json {
        let report = serde_json::json!({ "settings": rows });
        return output::line(&report.to_string());
    }
    output::text(&file(&rows))
}

fn rows<S: ServerSettings>(given: &GivenSettings<S>) -> Result<Vec<SettingRow>, Failure> {
    let effective = given.effective()?;
    effective.config()?;
    let row = |(name, value): (String, Value)| {
        let origin = effective.origin(&name);
        let live = is_live::<S>(&name);
        SettingRow { name, value, origin, live }
    };
    Ok(effective.values().into_iter().map(row).collect())
}

/// Returns the text of a file that sets the same values. Tables come last, because a file requires that.
fn file(rows: &[SettingRow]) -> String {
    let mut text = String::new();
    let is_below = |row: &&SettingRow| row.name.contains('.');
    for row in rows.iter().filter(|row| !is_below(row)) {
        text += &line(&row.name, row);
    }
    let mut table = "";
    for row in rows.iter().filter(is_below) {
        let (of, name) = row.name.split_once('.').expect("it is below a table");
        if of != table {
            text += &format!("\n[{of}]\n");
            table = of;
        }
        text += &line(name, row);
    }
    text
}

fn line(name: &str, row: &SettingRow) -> String {
    let origin = &row.origin;
    match &row.value {
        Value::Null => format!("# {name} is not set\n"),
        value => format!("{:<40} # {origin}\n", format!("{name} = {}", TomlValue { name, value })),
    }
}

/// A value in TOML. It is the value's JSON, except for objects, and for numbers of bytes, which get units.
struct TomlValue<'a> {
    name: &'a str,
    value: &'a Value,
}

impl fmt::Display for TomlValue<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_size =
            ["bytes", "bytes-per-s", "pool", "from"].iter().any(|end| self.name.ends_with(end));
        match self.value {
            Value::Number(number) if is_size => {
                let exact = quantity::exact(number.as_u64().unwrap_or_default());
                write!(f, "{}", Value::from(exact))
            }
            Value::Array(items) => {
                let shown = items.iter().map(|value| TomlValue { name: "", value }.to_string());
                write!(f, "[{}]", shown.collect::<Vec<_>>().join(", "))
            }
            Value::Object(fields) => {
                let field = |(name, value): (&String, &Value)| {
                    format!("{name} = {}", TomlValue { name, value })
                };
                write!(f, "{{ {} }}", fields.iter().map(field).collect::<Vec<_>>().join(", "))
            }
            other => write!(f, "{other}"),
        }
    }
}
