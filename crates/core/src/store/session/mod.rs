//! The relation of an operation to its session: its view and epoch, its traces, and the validity of its results.
//!
//! The session owns [`DeleteLog`], [`FollowedView`], [`LocalEpochs`], [`SilentNodes`] and [`VouchRequests`]; each
//! operation owns an [`OperationPin`] with its traces. The order of calls, over the life of an operation:
//!
//! 1. The operation begins *pinned* in the newest view and epoch ([`pinned`]).
//! 2. Before it posts verbs for a key, it waits until the key's subtable can be read or written ([`resolve`]).
//! 3. A DELETE takes a number, and a place for its record ([`delete_log`]).
//! 4. Each phase notes which memory nodes did not answer ([`silent_nodes`]), and which verbs can still execute
//!    ([`traces`]).
//! 5. A result that depends on READs alone is valid if the session has a valid lease or the members *vouch*
//!    ([`vouch`]).
//! 6. A write whose outcome is unknown is *suspended*, and *resolved* in a newer view ([`resolve`]).
//! 7. At the end the operation is unpinned. If it has left a write half-way, it stays pinned, and its session has to be
//!    recovered.

mod delete_log;
mod followed_view;
mod pinned;
mod resolve;
mod silent_nodes;
mod traces;
mod vouch;

pub(super) use delete_log::{DeleteLog, DeleteNumber};
pub(super) use followed_view::{FollowedView, ViewRef};
pub(super) use pinned::{LocalEpochs, OperationPin};
pub(super) use resolve::{SuspendedOperation, may_write_now};
pub(super) use silent_nodes::SilentNodes;
pub(super) use vouch::{
    VouchRequests, are_vouched_for, has_valid_lease, is_vouched_for, is_vouched_for_backups,
    is_vouched_for_in, is_vouched_for_now,
};
