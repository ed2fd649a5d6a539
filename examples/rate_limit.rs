//! Rate limits without atomic operations: each gateway counts the requests that it lets through in its own row, and
//! adds up the rows of all gateways before it lets another request through. Requests that gateways let through at the
//! same moment can exceed the limit.
//!
//! `cargo run -p fusee-client --example rate_limit`

mod support;

use std::error::Error;
use std::thread;

use fusee_client::{BlockingClient, WriteError};

const GATEWAYS: usize = 3;
const LIMIT: u32 = 100;

/// One gateway. Only this gateway writes its rows.
struct Gateway {
    store: BlockingClient,
    number: usize,
}

/// Returns the key of a gateway's row for a user, in one time window (for instance a minute).
fn row(user: &str, window: u64, gateway: usize) -> String {
    format!("rate/{user}/{window}/{gateway}")
}

impl Gateway {
    /// Returns whether a request is allowed to pass, and counts it if so.
    fn lets_through(&self, user: &str, window: u64) -> Result<bool, WriteError> {
        let keys: Vec<String> = (0..GATEWAYS).map(|n| row(user, window, n)).collect();
        let rows = self.store.get_many(&keys)?;
        let count = |row: &Option<Vec<u8>>| -> u32 {
            row.as_deref().and_then(|row| row.try_into().ok()).map_or(0, u32::from_le_bytes)
        };
        if rows.iter().map(count).sum::<u32>() >= LIMIT {
            return Ok(false);
        }
        let own = count(&rows[self.number]) + 1;
        self.store.put(keys[self.number].as_bytes(), &own.to_le_bytes())?;
        Ok(true)
    }
}

/// Removes the rows of a time window that is over.
fn forget(store: &BlockingClient, user: &str, window: u64) -> Result<(), WriteError> {
    for gateway in 0..GATEWAYS {
        match store.delete(row(user, window, gateway).as_bytes()) {
            Ok(()) | Err(WriteError::NotFound) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let store = support::store()?;
    forget(&store, "ada", 1)?;
    let passed: usize = thread::scope(|scope| {
        let gateways: Vec<_> = (0..GATEWAYS)
            .map(|number| {
                let gateway = Gateway { store: store.clone(), number };
                let pass = move |_: &u32| gateway.lets_through("ada", 1).unwrap_or(false);
                scope.spawn(move || (0..LIMIT).filter(pass).count())
            })
            .collect();
        gateways.into_iter().map(|gateway| gateway.join().expect("no panic")).sum()
    });
    println!("{passed} of {} requests passed", GATEWAYS as u32 * LIMIT);
    let most = LIMIT as usize + GATEWAYS - 1;
    assert!((LIMIT as usize..=most).contains(&passed), "{passed}");
    forget(&store, "ada", 1)?;
    Ok(())
}
