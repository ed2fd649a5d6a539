//! Joining a meeting: one driver opens the meeting, and the other drivers take numbers in it.
//!
//! A driver joins a meeting only while the meeting's first driver lives, that is, while the first driver's status page
//! changes. A meeting that a dead driver left behind is taken over: its stored id is replaced by a new id, and all
//! other keys of a meeting contain the meeting's id. If two drivers take over a meeting at once, both read the id again
//! after [`SETTLE`], and the driver that does not find its own id joins the meeting of the other driver. If a driver is
//! so late that it replaces the id of a meeting that has begun, the first driver of that meeting notices the new id and
//! ends its meeting.

use std::time::{Duration, Instant};

use fusee_cli::failure::Failure;
use fusee_cli::interrupt;
use fusee_client::BlockingClient;
use serde_json::{Map, Value};

use super::keys::{DriverStatus, RendezvousKeys};

/// Maximum number of drivers of a meeting.
pub const MAX_DRIVERS: u16 = 256;
/// The time without a change of the first driver's status page after which another driver takes the first driver for
/// dead and its meeting for abandoned. It is longer than [`super::SILENCE`], so that the other drivers of that meeting
/// notice the death first.
pub const LEFT_OVER: Duration = Duration::from_secs(10);
/// The time that a driver waits after it has taken over a meeting, because other drivers possibly take over the same
/// meeting.
const SETTLE: Duration = Duration::from_millis(500);
/// The interval between two reads of an id or a status page.
const LOOK: Duration = Duration::from_millis(50);

/// The participants and the purpose of a meeting.
pub struct RendezvousOptions<'a> {
    /// The name of the meeting.
    pub name: &'a str,
    /// The number of drivers.
    pub drivers: usize,
    /// The settings, which all drivers must have in common.
    pub settings: Map<String, Value>,
    /// The time limit within which the other drivers have to join.
    pub timeout: Duration,
}

/// The membership of a driver in a meeting.
pub struct RendezvousMember {
    /// The meeting's keys in the store.
    pub book: RendezvousKeys,
    /// The number of this driver. The first driver, which has opened the meeting, is 0.
    pub number: usize,
    /// The status page of this driver.
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
                // If the meeting has begun or is ending, this driver waits for its end, and then joins or opens the
                // next one.
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
    // The status page is stored first, so that a driver that finds the meeting also finds its first driver's status
    // page.
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
    // The key `fusee-bench/NAME` no longer has the id of the abandoned meeting, so this removes only keys that contain
    // that id.
    left_over.remove_all(MAX_DRIVERS.into())?;
    Ok(true)
}

enum FirstDriverState {
    Lives(DriverStatus),
    LeftOver,
    Gone,
}

/// Watches the first driver's status page until the driver turns out to be alive or dead.
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

/// Refuses settings that differ from the settings of the first driver.
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
