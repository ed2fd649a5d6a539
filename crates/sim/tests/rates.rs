//! Tests of the rates of Moves that sessions make for their policy, and of the counters of moved values.

// Promise CHK-11: Demotion and promotion keep their rates; counters are right.

use crate::support::rates;

#[test]
fn demotion_keeps_its_rate() {
    (0..4).for_each(rates::demotion);
}

#[test]
fn promotion_keeps_its_rate() {
    (0..4).for_each(rates::promotion);
}

#[test]
fn counters_say_what_has_moved() {
    (0..4).for_each(rates::counters);
}
