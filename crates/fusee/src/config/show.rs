//! `fusee config show`: prints the settings in force.

use std::fmt;

use clap::Subcommand;
use fusee_cli::failure::Failure;
use fusee_cli::output;
use fusee_cli::quantity;
use serde::Serialize;
use serde_json::Value;

use crate::server::settings::{Given, Origin, Settings, is_live};
use crate::server::{master, memory_node, switch};

/// Arguments of `fusee config show`.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  \
    fusee config show master --config /etc/fusee/master.toml\n  \
    fusee config show --json memory-node --config node.toml --pool 64GiB\n\n\
    The command line is that of the server, and so is the environment. What is shown is a file that sets the\n\
    same; behind each value is where it comes from.\n\n\
    Exit codes: 0 shown; 2 wrong usage, or settings that no server would take.")]
pub struct Args {
    /// Print one JSON object
    #[arg(long)]
    json: bool,

    #[command(subcommand)]
    server: Server,
}

/// A server, with its command line.
#[derive(Subcommand, Debug)]
#[command(disable_help_subcommand = true)]
enum Server {
    /// Show the settings of a master
    #[command(after_help = "Example:\n  fusee config show master --config /etc/fusee/master.toml")]
    Master(Given<master::Settings>),
    /// Show the settings of a memory node
    #[command(after_help = "Example:\n  fusee config show memory-node --pool 64GiB")]
    MemoryNode(Given<memory_node::Settings>),
    /// Show the settings of a switch
    #[command(after_help = "Example:\n  fusee config show switch --slots 1000")]
    Switch(Given<switch::Settings>),
}

/// A setting.
#[derive(Debug, Serialize)]
struct Row {
    name: String,
    value: Value,
    #[serde(flatten)]
    origin: Origin,
    /// Whether a running server can take over a new value.
    live: bool,
}

/// Runs `fusee config show`.
pub fn run(args: &Args) -> Result<(), Failure> {
    let rows = match &args.server {
        Server::Master(given) => rows(given)?,
        Server::MemoryNode(given) => rows(given)?,
        Server::Switch(given) => rows(given)?,
    };
    if args.json {
        let report = serde_json::json!({ "settings": rows });
        return output::line(&report.to_string());
    }
    output::text(&file(&rows))
}

fn rows<S: Settings>(given: &Given<S>) -> Result<Vec<Row>, Failure> {
    let effective = given.effective()?;
    effective.config()?;
    let row = |(name, value): (String, Value)| {
        let origin = effective.origin(&name);
        let live = is_live::<S>(&name);
        Row { name, value, origin, live }
    };
    Ok(effective.values().into_iter().map(row).collect())
}

/// Returns a file that sets the same values. Tables come last, each with its names.
fn file(rows: &[Row]) -> String {
    let mut text = String::new();
    let is_below = |row: &&Row| row.name.contains('.');
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

fn line(name: &str, row: &Row) -> String {
    let origin = &row.origin;
    match &row.value {
        Value::Null => format!("# {name} is not set\n"),
        value => format!("{:<40} # {origin}\n", format!("{name} = {}", Shown { name, value })),
    }
}

/// A value as TOML: its JSON, except for objects, and for numbers of bytes, which get units.
struct Shown<'a> {
    name: &'a str,
    value: &'a Value,
}

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_size =
            ["bytes", "bytes-per-s", "pool", "from"].iter().any(|end| self.name.ends_with(end));
        match self.value {
            Value::Number(number) if is_size => {
                let exact = quantity::exact(number.as_u64().unwrap_or_default());
                write!(f, "{}", Value::from(exact))
            }
            Value::Array(items) => {
                let shown = items.iter().map(|value| Shown { name: "", value }.to_string());
                write!(f, "[{}]", shown.collect::<Vec<_>>().join(", "))
            }
            Value::Object(fields) => {
                let field = |(name, value): (&String, &Value)| {
                    format!("{name} = {}", Shown { name, value })
                };
                write!(f, "{{ {} }}", fields.iter().map(field).collect::<Vec<_>>().join(", "))
            }
            other => write!(f, "{other}"),
        }
    }
}
