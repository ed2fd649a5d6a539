//! Tests of reads while the master and a primary are silent. Such reads use the backups if more than half of the
//! members bar the primary.

// Promise SIL-5: Without master and primary, backups are read, linearizably.

use crate::support::bars;

#[test]
fn without_master_and_primary_everything_is_read() {
    (0..20).for_each(bars::everything_is_read);
}

#[test]
fn the_master_settles_what_was_read_and_bars_are_taken_back() {
    (0..20).for_each(bars::the_master_settles);
}

#[test]
fn a_key_that_was_read_as_deleted_stays_deleted() {
    (0..20).for_each(bars::a_delete_is_settled);
}

#[test]
fn nobody_reads_anything_older_afterwards() {
    (0..120).for_each(bars::bars);
}
