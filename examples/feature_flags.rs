//! Feature flags: an operator turns features on and off, and every service sees the change with its next request.
//!
//! `cargo run -p fusee-client --example feature_flags`

mod support;

use std::error::Error;
use std::hash::{DefaultHasher, Hash, Hasher};

use fusee_client::{BatchWrite, BlockingClient, ReadError};

/// A flag's name in the store, and the share of users that have the feature, in percent.
const FLAGS: [(&str, u8); 3] = [("flag/dark-mode", 100), ("flag/search-v2", 0), ("flag/beta", 50)];

/// The features of one user.
#[derive(Debug, PartialEq)]
struct Features {
    dark_mode: bool,
    search_v2: bool,
    beta: bool,
}

/// Reads all flags for a user, in one round trip. A flag that is not in the store is off.
fn features(store: &BlockingClient, user: &str) -> Result<Features, ReadError> {
    let shares = store.get_many(&FLAGS.map(|flag| flag.0))?;
    let mut hasher = DefaultHasher::new();
    user.hash(&mut hasher);
    let place = (hasher.finish() % 100) as u8;
    let is_on = |flag: usize| shares[flag].as_deref().is_some_and(|share| place < share[0]);
    Ok(Features { dark_mode: is_on(0), search_v2: is_on(1), beta: is_on(2) })
}

fn main() -> Result<(), Box<dyn Error>> {
    let store = support::store()?;
    let shares = FLAGS.map(|flag| [flag.1]);
    let first: Vec<BatchWrite<'_>> =
        FLAGS.iter().zip(&shares).map(|(flag, share)| BatchWrite::put(flag.0, share)).collect();
    store.write_many(&first).into_iter().collect::<Result<(), _>>()?;

    let before = features(&store, "ada")?;
    assert!(before.dark_mode && !before.search_v2);
    // The operator uses `update`, so that a mistyped name is an error and does not make a new flag.
    store.update(b"flag/search-v2", &[100])?;
    store.update(b"flag/serach-v2", &[100]).expect_err("there is no such flag");
    assert!(features(&store, "ada")?.search_v2, "it is seen at once");

    let users: Vec<String> = (0..1000).map(|n| format!("user {n}")).collect();
    let mut beta = 0;
    for user in &users {
        beta += usize::from(features(&store, user)?.beta);
    }
    println!("{beta} of {} users are in the beta", users.len());
    Ok(())
}
