//! Joining a meeting: one driver opens it, the others take seats.
//!
//! A driver joins a meeting only while the first driver lives, that is, while it sees that driver's
//! page change. A meeting that a dead driver left behind is taken over: its id is replaced, and all
//! other keys of a meeting contain its id. Two drivers that take it over at once read the id again
//! after [`SETTLE`]; the one that does not find its own id joins the other. If one is so late that
//! it replaces the id of a meeting that has begun, the first driver of that meeting notices, and
//! ends it.

use std::time::{Duration, Instant};

use fusee_cli::failure::Failure;
use fusee_cli::interrupt;
use fusee_client::BlockingClient;
use serde_json::{Map, Value};

use super::keys::{DriverStatus, RendezvousKeys};

/// Drivers of a meeting, at most.
pub const MAX_DRIVERS: u16 = 256;
/// The silence after which a first driver is taken for dead. Longer than [`super::SILENCE`]: by
/// then the other drivers of that meeting have noticed as well.
pub const LEFT_OVER: Duration = Duration::from_secs(10);
/// The time after a takeover in which others may take over too.
const SETTLE: Duration = Duration::from_millis(500);
/// The period of looks.
const LOOK: Duration = Duration::from_millis(50);

/// The participants and the purpose of a meeting.
pub struct RendezvousOptions<'a> {
    /// The name of the meeting.
    pub name: &'a str,
    /// The number of drivers.
    pub drivers: usize,
    /// The settings, which must be the same for all drivers.
    pub settings: Map<String, Value>,
    /// The time limit for the others to come.
    pub timeout: Duration,
}

/// A seat at a meeting.
pub struct RendezvousMember {
    /// The keys of the meeting.
    pub book: RendezvousKeys,
    /// The number of this driver; the first, 0, has opened the meeting.
    pub number: usize,
    /// The page of this driver.
    pub page: DriverStatus,
}

/// Joins the meeting of this name, or opens it.
pub fn join_or_open(
    client: &BlockingClient,
    invitation: &RendezvousOptions<'_>,
) -> Result<RendezvousMember, Failure> {
    let end = Instant::now() + invitation.timeout;
    let page = DriverStatus::new(invitation.settings.clone());
    let own = RendezvousKeys::new(client.clone(), invitation.name, rand::random());
    loop {
        let Some(id) = own.open_id()? else {
            if open(&own, &page)? {
                return Ok(RendezvousMember { book: own, number: 0, page });
            }
            continue;
        };
        let book = RendezvousKeys::new(client.clone(), invitation.name, id);
        match watch(&book)? {
            FirstDriverState::Gone => {}
            FirstDriverState::LeftOver if take_over(&own, &book, &page)? => {
                return Ok(RendezvousMember { book: own, number: 0, page });
            }
            FirstDriverState::LeftOver => {}
            FirstDriverState::Lives(first) => {
                // A meeting that has begun or is ending is waited for: runs may follow each other.
                if first.end.is_none() && first.interrupted.is_none() && first.step == 0 {
                    compare(&invitation.settings, &first)?;
                    for number in 1..invitation.drivers {
                        if book.claim_number(number, &page)? {
                            return Ok(RendezvousMember { book, number, page });
                        }
                    }
                }
                if Instant::now() > end {
                    return Err(Failure::operation(format!(
                        "the meeting `{}` has its {} drivers already; the first is {first}. Wait \
                         until it has ended, or choose another --join-name",
                        invitation.name, invitation.drivers
                    )));
                }
            }
        }
        pause()?;
    }
}

fn open(own: &RendezvousKeys, page: &DriverStatus) -> Result<bool, Failure> {
    // The page comes first: a driver that finds the meeting then finds its first driver.
    own.claim_number(0, page)?;
    let opened = own.open();
    if !matches!(opened, Ok(true)) {
        own.leave(0)?;
    }
    opened
}

fn take_over(
    own: &RendezvousKeys,
    left_over: &RendezvousKeys,
    page: &DriverStatus,
) -> Result<bool, Failure> {
    own.claim_number(0, page)?;
    own.take_over()?;
    std::thread::sleep(SETTLE);
    if own.open_id()? != Some(own.id()) {
        own.leave(0)?;
        return Ok(false);
    }
    // The id in the first key is not that of the old meeting any more: only keys with its id are
    // removed.
    left_over.remove_all(MAX_DRIVERS.into())?;
    Ok(true)
}

enum FirstDriverState {
    Lives(DriverStatus),
    LeftOver,
    Gone,
}

/// Watches the first driver until it turns out to be alive or dead.
fn watch(book: &RendezvousKeys) -> Result<FirstDriverState, Failure> {
    let begun = Instant::now();
    let before = book.page(0)?;
    loop {
        pause()?;
        if book.open_id()? != Some(book.id()) {
            return Ok(FirstDriverState::Gone);
        }
        match (book.page(0)?, &before) {
            (Some(page), Some(before)) if page.beat != before.beat => {
                return Ok(FirstDriverState::Lives(page));
            }
            _ if begun.elapsed() > LEFT_OVER => return Ok(FirstDriverState::LeftOver),
            _ => {}
        }
    }
}

fn pause() -> Result<(), Failure> {
    std::thread::sleep(LOOK);
    interrupt::failure().map_or(Ok(()), Err)
}

/// Refuses settings that differ from the first driver's.
fn compare(own: &Map<String, Value>, first: &DriverStatus) -> Result<(), Failure> {
    let names = own.keys().chain(first.settings.keys());
    for name in names {
        let of = |settings: &Map<String, Value>| settings.get(name).cloned().unwrap_or_default();
        let here = of(own);
        let there = of(&first.settings);
        if here != there {
            let told = |value: &Value| match value {
                Value::Null => "not given".to_owned(),
                Value::String(text) => text.clone(),
                other => other.to_string(),
            };
            return Err(Failure::usage(format!(
                "--{} is {} here, and {} at the first driver ({first}); all drivers of a meeting \
                 are told the same",
                name.replace('_', "-"),
                told(&here),
                told(&there),
            )));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn other_settings_are_refused_by_their_name() {
        let settings = |value: Value| value.as_object().cloned().unwrap();
        let first = DriverStatus::new(settings(json!({"pair_bytes": 1024, "seconds": 5.0})));
        let told = |own: Value| compare(&settings(own), &first).map_err(|f| f.to_string());
        assert_eq!(told(json!({"pair_bytes": 1024, "seconds": 5.0})), Ok(()));
        for (own, says) in [
            (json!({"pair_bytes": 512, "seconds": 5.0}), "--pair-bytes is 512 here, and 1024 at"),
            (json!({"pair_bytes": 1024}), "--seconds is not given here, and 5.0 at the first"),
            (
                json!({"pair_bytes": 1024, "seconds": 5.0, "keep": true}),
                "--keep is true here, and not given at",
            ),
        ] {
            let error = told(own).unwrap_err();
            assert!(error.starts_with(says) && error.contains(&first.to_string()), "{error}");
        }
    }
}
