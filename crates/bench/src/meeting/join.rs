//! How drivers find each other: one opens the meeting, the others sit down.
//!
//! A meeting is joined only while its first driver lives, that is, while that driver's page changes
//! before our eyes. One that was left over by a driver that died is taken over: its id is replaced,
//! and everything else of a meeting stands under its id. Two drivers that take it over at once read
//! the id again after [`SETTLE`]; the one whose id is not there joins the other. Should one be so
//! late that it replaces the id of a meeting that has begun, then the first driver of that meeting
//! notices, and ends it.

use std::time::{Duration, Instant};

use fusee_cli::failure::Failure;
use fusee_cli::interrupt;
use fusee_client::Client;
use serde_json::{Map, Value};

use super::book::{Book, Page};

/// Drivers of a meeting, at most.
pub const MAX_DRIVERS: u16 = 256;
/// A first driver whose page has not changed for so long is dead. More than [`super::SILENCE`]: by
/// then the other drivers of that meeting have noticed as well.
pub const LEFT_OVER: Duration = Duration::from_secs(10);
/// After a meeting was taken over, others may do the same for so long.
const SETTLE: Duration = Duration::from_millis(500);
/// How often to look.
const LOOK: Duration = Duration::from_millis(50);

/// Who comes together, and for what.
pub struct Invitation<'a> {
    /// The name of the meeting.
    pub name: &'a str,
    /// So many drivers.
    pub drivers: usize,
    /// What all of them must be told to do.
    pub settings: Map<String, Value>,
    /// How long to wait for the others.
    pub timeout: Duration,
}

/// A seat at a meeting.
pub struct Seat {
    /// What the meeting keeps.
    pub book: Book,
    /// Which driver this is; the first has opened the meeting.
    pub number: usize,
    /// Its page.
    pub page: Page,
}

/// Joins the meeting of this name, or opens it.
pub fn sit_down(client: &Client, invitation: &Invitation<'_>) -> Result<Seat, Failure> {
    let end = Instant::now() + invitation.timeout;
    let page = Page::new(invitation.settings.clone());
    let own = Book::new(client.clone(), invitation.name, rand::random());
    loop {
        let Some(id) = own.open_id()? else {
            if open(&own, &page)? {
                return Ok(Seat { book: own, number: 0, page });
            }
            continue;
        };
        let book = Book::new(client.clone(), invitation.name, id);
        match watch(&book)? {
            First::Gone => {}
            First::LeftOver if take_over(&own, &book, &page)? => {
                return Ok(Seat { book: own, number: 0, page });
            }
            First::LeftOver => {}
            First::Lives(first) => {
                // One that has begun or ends is waited for: runs may follow each other.
                if first.end.is_none() && first.interrupted.is_none() && first.step == 0 {
                    compare(&invitation.settings, &first)?;
                    for number in 1..invitation.drivers {
                        if book.sit_down(number, &page)? {
                            return Ok(Seat { book, number, page });
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

fn open(own: &Book, page: &Page) -> Result<bool, Failure> {
    // The page comes first: who finds the meeting finds its first driver.
    own.sit_down(0, page)?;
    let opened = own.open();
    if !matches!(opened, Ok(true)) {
        own.leave(0)?;
    }
    opened
}

fn take_over(own: &Book, left_over: &Book, page: &Page) -> Result<bool, Failure> {
    own.sit_down(0, page)?;
    own.take_over()?;
    std::thread::sleep(SETTLE);
    if own.open_id()? != Some(own.id()) {
        own.leave(0)?;
        return Ok(false);
    }
    // The id there is not that of the meeting any more: only what stands under its id goes.
    left_over.remove_all(MAX_DRIVERS.into())?;
    Ok(true)
}

enum First {
    Lives(Page),
    LeftOver,
    Gone,
}

/// Looks at the first driver until it shows that it lives, or that it does not.
fn watch(book: &Book) -> Result<First, Failure> {
    let begun = Instant::now();
    let before = book.page(0)?;
    loop {
        pause()?;
        if book.open_id()? != Some(book.id()) {
            return Ok(First::Gone);
        }
        match (book.page(0)?, &before) {
            (Some(page), Some(before)) if page.beat != before.beat => {
                return Ok(First::Lives(page));
            }
            _ if begun.elapsed() > LEFT_OVER => return Ok(First::LeftOver),
            _ => {}
        }
    }
}

fn pause() -> Result<(), Failure> {
    std::thread::sleep(LOOK);
    interrupt::failure().map_or(Ok(()), Err)
}

/// Refuses other settings than the first driver's.
fn compare(own: &Map<String, Value>, first: &Page) -> Result<(), Failure> {
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
        let first = Page::new(settings(json!({"pair_bytes": 1024, "seconds": 5.0})));
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
