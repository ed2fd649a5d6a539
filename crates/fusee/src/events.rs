//! `fusee events`: prints the events of the cluster, which the master stores.

use std::thread::sleep;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fusee_cli::connect::{self, DEFAULT_MASTER};
use fusee_cli::failure::Failure;
use fusee_cli::{output, secret};
use fusee_control::events::{ClusterEvent, Level, Topic};
use fusee_control::master::{MasterReply, MasterRequest};
use fusee_control::rpc::{MasterClient, RpcError};
use serde::Serialize;

/// Deadline of each answer of the master.
const TIMEOUT: Duration = Duration::from_secs(3);
/// Pause between two requests to the master, with `--follow`.
const PERIOD: Duration = Duration::from_millis(500);
/// Time for which `--follow` continues while the master is unreachable.
const PATIENCE: Duration = Duration::from_secs(60);

/// Arguments of `fusee events`.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  fusee events\n  \
    fusee events --follow                      and what happens from now on, until Ctrl-C\n  \
    fusee events --last 20 --topic loss,repair\n  \
    fusee events --warnings --json | jq -r .text\n\n\
    The master keeps the newest 500 or so in its store, so they outlast it; of several masters the next\n\
    one goes on. Times are the master's. `--json` prints one object a line: serial, time, at_ms, level,\n\
    topic, text.")]
pub struct EventsArgs {
    /// Go on with new events, until interrupted
    #[arg(long, short)]
    follow: bool,

    /// Begin with this many of the newest events
    #[arg(long, value_name = "N")]
    last: Option<usize>,

    /// Print only warnings
    #[arg(long)]
    warnings: bool,

    /// Print only events of these topics
    #[arg(long, value_delimiter = ',', value_parser = topic, value_name = "TOPIC,..")]
    topic: Vec<Topic>,

    /// Print one JSON object a line
    #[arg(long)]
    json: bool,

    /// Address of the master; of several masters, their addresses, separated by commas
    #[arg(long, env = "FUSEE_MASTER", default_value = DEFAULT_MASTER, value_name = "HOST:PORT,..")]
    master: String,
}

fn topic(text: &str) -> Result<Topic, String> {
    Topic::ALL.into_iter().find(|topic| topic.name() == text).ok_or_else(|| {
        let names: Vec<&str> = Topic::ALL.iter().map(|topic| topic.name()).collect();
        format!("one of {}", names.join(", "))
    })
}

/// An event in JSON.
#[derive(Debug, Serialize)]
pub struct EventReport<'a> {
    /// Time of the event in RFC 3339, in UTC.
    time: String,
    #[serde(flatten)]
    event: &'a ClusterEvent,
}

impl<'a> From<&'a ClusterEvent> for EventReport<'a> {
    fn from(event: &'a ClusterEvent) -> EventReport<'a> {
        EventReport { time: time(event.at_ms), event }
    }
}

/// Formats a time as RFC 3339, in UTC, with milliseconds.
fn time(at_ms: u64) -> String {
    // The time comes from the network. A time after the year 9999 is shown as the end of that year.
    let at = UNIX_EPOCH.checked_add(Duration::from_millis(at_ms.min(253_402_300_799_999)));
    humantime::format_rfc3339_millis(at.unwrap_or(SystemTime::UNIX_EPOCH)).to_string()
}

fn line(event: &ClusterEvent) -> String {
    let mark = if event.level == Level::Warn { "WARN" } else { "" };
    // The text possibly quotes a memory node, so it can contain control characters.
    let text: String = event.text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    format!("{}  {:<7} {mark:<4} {text}\n", time(event.at_ms), event.topic.name())
}

/// Returns all events of the master with serials above `after`. If the master's newest serial is lower, its store has
/// been replaced, and all its events are returned.
pub async fn ask(master: &MasterClient, after: u64) -> Result<Vec<ClusterEvent>, RpcError> {
    let mut known = after;
    let mut all = Vec::new();
    loop {
        match master.call(MasterRequest::Events { after: known }).await {
            Ok(MasterReply::Events { newest, .. }) if newest < known => known = 0,
            Ok(MasterReply::Events { events, newest }) => {
                let Some(last) = events.last().map(|event| event.serial) else { return Ok(all) };
                all.extend(events);
                if last <= known || last >= newest {
                    return Ok(all);
                }
                known = last;
            }
            Ok(other) => {
                let addr = master.answered_by();
                let what = format!("it answered with {other:?}");
                return Err(RpcError::Protocol { addr, what });
            }
            Err(error) => return Err(error),
        }
    }
}

/// Prints events.
pub fn run(args: &EventsArgs) -> Result<(), Failure> {
    connect::check_address(&args.master)?;
    let runtime = secret::runtime("fusee-events")?;
    let master = MasterClient::new(&runtime, &args.master[..]).with_deadline(TIMEOUT);
    let wanted = |event: &&ClusterEvent| {
        (args.topic.is_empty() || args.topic.contains(&event.topic))
            && (!args.warnings || event.level == Level::Warn)
    };
    let mut known = 0;
    let mut first = true;
    let mut heard = std::time::Instant::now();
    loop {
        match runtime.block_on(ask(&master, known)) {
            Ok(events) => {
                heard = std::time::Instant::now();
                known = events.last().map_or(known, |event| event.serial);
                let shown: Vec<&ClusterEvent> = events.iter().filter(wanted).collect();
                let skipped = match args.last.filter(|_| first) {
                    Some(last) => shown.len().saturating_sub(last),
                    None => 0,
                };
                first = false;
                let text: String = shown[skipped..].iter().map(|event| show(args, event)).collect();
                output::text(&text)?;
            }
            // The master is possibly restarting, or another master is about to lead.
            Err(_) if !first && heard.elapsed() < PATIENCE => {}
            Err(error) => return Err(connect::explain(&args.master, &error)),
        }
        if !args.follow || !output::is_read() {
            return Ok(());
        }
        sleep(PERIOD);
    }
}

fn show(args: &EventsArgs, event: &ClusterEvent) -> String {
    if args.json {
        serde_json::to_string(&EventReport::from(event)).expect("plain data") + "\n"
    } else {
        line(event)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_utc_and_never_too_much() {
        assert_eq!(time(0), "1970-01-01T00:00:00.000Z");
        assert_eq!(time(u64::MAX), "9999-12-31T23:59:59.999Z");
    }

    #[test]
    fn texts_cannot_move_the_cursor() {
        let text = "a\x1b[2Jb\nc".into();
        let event =
            ClusterEvent { serial: 1, at_ms: 0, level: Level::Warn, topic: Topic::Loss, text };
        assert_eq!(line(&event), "1970-01-01T00:00:00.000Z  loss    WARN a [2Jb c\n");
    }
}
