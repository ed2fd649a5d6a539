//! The session store of a web service: a login stays valid when the web server that handled it ends, until the login
//! expires.
//!
//! `cargo run -p fusee-client --example session_store`

mod support;

use std::error::Error;
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fusee_client::{BlockingClient, ReadError, WriteError};

/// The logins. The key of a login is its token; its value is the time at which it expires, and the user's name.
#[derive(Clone)]
struct SessionStore {
    store: BlockingClient,
    lifetime: Duration,
}

impl SessionStore {
    /// Begins a login, and returns its token. A real service would choose random tokens.
    fn log_in(&self, user: &str) -> Result<String, WriteError> {
        for attempt in 0.. {
            let token = format!("login/{user}/{attempt}");
            match self.store.insert(token.as_bytes(), &self.record(user)) {
                Ok(()) => return Ok(token),
                // The token is in use, so another one is tried.
                Err(WriteError::AlreadyExists) => {}
                Err(error) => return Err(error),
            }
        }
        unreachable!("there is always another token")
    }

    /// Returns the user of a login; `None` if there is no such login, or it has expired.
    fn user(&self, token: &str) -> Result<Option<String>, ReadError> {
        self.store.get_with(token.as_bytes(), |record| {
            let (end, user) = record?.split_first_chunk()?;
            let is_alive = millis(SystemTime::now()) < u64::from_le_bytes(*end);
            is_alive.then(|| String::from_utf8_lossy(user).into_owned())
        })
    }

    fn log_out(&self, token: &str) -> Result<(), WriteError> {
        match self.store.delete(token.as_bytes()) {
            Err(WriteError::NotFound) => Ok(()),
            result => result,
        }
    }

    fn record(&self, user: &str) -> Vec<u8> {
        let end = millis(SystemTime::now() + self.lifetime);
        [&end.to_le_bytes(), user.as_bytes()].concat()
    }
}

fn millis(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

fn main() -> Result<(), Box<dyn Error>> {
    let logins = SessionStore { store: support::store()?, lifetime: Duration::from_secs(3600) };
    // Each thread acts as a web server: one handles the login, another one the next request.
    let server = logins.clone();
    let token = thread::spawn(move || server.log_in("ada")).join().expect("no panic")?;
    assert_eq!(logins.user(&token)?.as_deref(), Some("ada"));
    logins.log_out(&token)?;
    assert_eq!(logins.user(&token)?, None);

    let short = SessionStore { lifetime: Duration::ZERO, ..logins };
    let token = short.log_in("bob")?;
    assert_eq!(short.user(&token)?, None, "it expires at once");
    short.log_out(&token)?;
    println!("logins were shared, ended and expired");
    Ok(())
}
