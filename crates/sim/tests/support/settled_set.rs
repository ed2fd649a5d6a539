//! A view change has committed a set, while a get of the same process waits for the set's value.
//!
//! The time of the commit is unknown: before the get began, another session has possibly read the word and replaced it.
//! In a whole cluster this happens only if a change settles a slot on the word of a set, and a get, and another
//! session's write, run before the set ends. Therefore this test uses only the work table.

use std::sync::Arc;

use fusee_client::logic::work_table::{GetRole, RequestTable, SetKind, SetRole};
use fusee_core::layout::{Address, Opcode, SizeClass, Slot};
use fusee_core::store::{Hint, HintTrust};
use fusee_core::view::SlotRef;
use futures_util::future::FutureExt;

/// Runs the set and the get on a work table.
///
/// # Panics
/// If the get takes the value of a set that has not posted its commit, or does not take the value of a set that has.
pub fn gives_no_value() {
    for has_committed in [true, false] {
        let table = Arc::new(RequestTable::new(false));
        let slot = SlotRef { subtable: 0, slot: 1 };
        let kind = SetKind { opcode: Opcode::Update, placement: None, value_bytes: None };
        let SetRole::Lead(set, _) = table.set(kind, b"key", Some(b"value"), Some(slot), 1) else {
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
