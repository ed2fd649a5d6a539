//! `fusee config show`.

use std::fmt;

use clap::Subcommand;
use fusee_cli::failure::Failure;
use fusee_cli::output;
use fusee_cli::quantity;
use serde::Serialize;
use serde_json::Value;

use crate::server::settings::{Given, Origin, Settings, is_live};
use crate::server::{master, memory_node, switch};

/// Of which server.
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

/// Whose settings, and its command line.
#[derive(Subcommand, Debug)]
#[command(disable_help_subcommand = true)]
enum Server {
    /// Of a master
    #[command(after_help = "Example:\n  fusee config show master --config /etc/fusee/master.toml")]
    Master(Given<master::Settings>),
    /// Of a memory node
    #[command(after_help = "Example:\n  fusee config show memory-node --pool 64GiB")]
    MemoryNode(Given<memory_node::Settings>),
    /// Of a switch
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
    /// Whether a running server takes another value over.
    live: bool,
}

/// Shows them.
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

/// As a file that sets the same: names of tables come last, in their table.
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

/// A value as TOML. JSON is that too, but for objects and numbers of bytes that people read.
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
