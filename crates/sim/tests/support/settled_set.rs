//! A set that a view change has committed, while a get of the same process rides on it.
//!
//! The time of that commit is unknown: before the get began, another session may have READ the word and replaced it.
//! In whole clusters this takes a change that settles on the word of a set, and a get and a write of others between
//! that and the end of the set. So this test uses the table alone.

use std::sync::Arc;

use fusee_client::logic::work_table::{GetRole, RequestTable, SetRole};
use fusee_core::layout::{Address, Opcode, SizeClass, Slot};
use fusee_core::store::{Hint, HintTrust};
use fusee_core::view::SlotRef;
use futures_util::future::FutureExt;

/// # Panics
/// If the get takes the set's value.
pub fn gives_no_value() {
    for has_committed in [true, false] {
        let table = Arc::new(RequestTable::new(false));
        let slot = SlotRef { subtable: 0, slot: 1 };
        let SetRole::Lead(set, _) =
            table.set(Opcode::Update, b"key", Some(b"value"), Some(slot), 1)
        else {
            panic!("nobody else is there");
        };
        let GetRole::Ride(followed) = table.get(b"key", Some(slot), 1) else {
            panic!("its commit is not posted");
        };
        if has_committed {
            set.commits();
        }
        let word = Slot::new(1, SizeClass::from_code(1).unwrap(), Address::new(64), 0);
        set.land_set(Ok(Some(Hint { slot, word, seen: HintTrust::Unverified })), b"value");
        let landed = followed.landing.now_or_never().expect("the set has ended");
        assert_eq!(
            landed.is_ok(),
            has_committed,
            "a get believes a set that others have committed"
        );
    }
}
