//! etcd's messages (version 3 of its API), as far as they are used here.
//!
//! They are written by hand, so that no build needs a compiler for protocol buffers. The field numbers are those of
//! `rpc.proto` and `kv.proto` in etcd, where they never change their meaning. A field that is missing here is never
//! sent, so etcd uses zero for it; when it arrives, it is skipped.

use prost::{Enumeration, Message, Oneof};

/// A key with its value and revisions.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct KeyValue {
    #[prost(bytes = "vec", tag = "1")]
    pub key: Vec<u8>,
    #[prost(int64, tag = "2")]
    pub create_revision: i64,
    #[prost(int64, tag = "3")]
    pub mod_revision: i64,
    #[prost(bytes = "vec", tag = "5")]
    pub value: Vec<u8>,
}

/// The header of every answer.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub(crate) struct ResponseHeader {
    /// The revision of the whole store at the time of the answer.
    #[prost(int64, tag = "3")]
    pub revision: i64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Enumeration)]
#[repr(i32)]
pub(crate) enum SortOrder {
    None = 0,
    Ascend = 1,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Enumeration)]
#[repr(i32)]
pub(crate) enum SortTarget {
    Key = 0,
    CreateRevision = 2,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct RangeRequest {
    #[prost(bytes = "vec", tag = "1")]
    pub key: Vec<u8>,
    /// The first key behind the range to read; empty to read a single key.
    #[prost(bytes = "vec", tag = "2")]
    pub range_end: Vec<u8>,
    /// The limit on the number of keys to return; 0 for no limit.
    #[prost(int64, tag = "3")]
    pub limit: i64,
    /// The revision at which to read; 0 for the newest.
    #[prost(int64, tag = "4")]
    pub revision: i64,
    #[prost(enumeration = "SortOrder", tag = "5")]
    pub sort_order: i32,
    #[prost(enumeration = "SortTarget", tag = "6")]
    pub sort_target: i32,
    #[prost(bool, tag = "9")]
    pub count_only: bool,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct RangeResponse {
    #[prost(message, optional, tag = "1")]
    pub header: Option<ResponseHeader>,
    #[prost(message, repeated, tag = "2")]
    pub kvs: Vec<KeyValue>,
    /// Whether the range has more keys than the limit allowed to return.
    #[prost(bool, tag = "3")]
    pub more: bool,
    /// The number of keys in the range, whatever the limit.
    #[prost(int64, tag = "4")]
    pub count: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct PutRequest {
    #[prost(bytes = "vec", tag = "1")]
    pub key: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    pub value: Vec<u8>,
    /// The lease with whose end the key is deleted; 0 for none.
    #[prost(int64, tag = "3")]
    pub lease: i64,
}

/// Deletes one key.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct DeleteRangeRequest {
    #[prost(bytes = "vec", tag = "1")]
    pub key: Vec<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Enumeration)]
#[repr(i32)]
pub(crate) enum CompareTarget {
    Version = 0,
    CreateRevision = 1,
    ModRevision = 2,
    Value = 3,
}

/// A condition: the key has exactly this value, version or revision. The field for other relations than "equal" is left
/// out, because its value for "equal" is zero.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Compare {
    #[prost(enumeration = "CompareTarget", tag = "2")]
    pub target: i32,
    #[prost(bytes = "vec", tag = "3")]
    pub key: Vec<u8>,
    #[prost(oneof = "CompareOperand", tags = "5, 6, 7")]
    pub to: Option<CompareOperand>,
}

#[derive(Clone, PartialEq, Oneof)]
pub(crate) enum CompareOperand {
    /// The key's revision of creation; 0 for a key that does not exist.
    #[prost(int64, tag = "5")]
    CreateRevision(i64),
    #[prost(int64, tag = "6")]
    ModRevision(i64),
    #[prost(bytes, tag = "7")]
    Value(Vec<u8>),
}

impl Compare {
    pub fn equal(key: impl Into<Vec<u8>>, to: CompareOperand) -> Compare {
        // If the operand does not fit the target, etcd compares with 0, so both have to be set.
        let target = match to {
            CompareOperand::CreateRevision(_) => CompareTarget::CreateRevision,
            CompareOperand::ModRevision(_) => CompareTarget::ModRevision,
            CompareOperand::Value(_) => CompareTarget::Value,
        };
        Compare { target: target.into(), key: key.into(), to: Some(to) }
    }
}

/// One step of a transaction.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct RequestOp {
    #[prost(oneof = "TxnOperation", tags = "1, 2, 3, 4")]
    pub operation: Option<TxnOperation>,
}

#[derive(Clone, PartialEq, Oneof)]
pub(crate) enum TxnOperation {
    #[prost(message, tag = "1")]
    Range(RangeRequest),
    #[prost(message, tag = "2")]
    Put(PutRequest),
    #[prost(message, tag = "3")]
    Delete(DeleteRangeRequest),
    #[prost(message, tag = "4")]
    Txn(TxnRequest),
}

impl RequestOp {
    pub fn get(key: impl Into<Vec<u8>>) -> RequestOp {
        TxnOperation::Range(RangeRequest { key: key.into(), ..RangeRequest::default() }).into()
    }

    pub fn put(key: impl Into<Vec<u8>>, value: impl Into<Vec<u8>>) -> RequestOp {
        RequestOp::put_leased(key, value, 0)
    }

    pub fn put_leased(key: impl Into<Vec<u8>>, value: impl Into<Vec<u8>>, lease: i64) -> RequestOp {
        TxnOperation::Put(PutRequest { key: key.into(), value: value.into(), lease }).into()
    }

    pub fn delete(key: impl Into<Vec<u8>>) -> RequestOp {
        TxnOperation::Delete(DeleteRangeRequest { key: key.into() }).into()
    }

    /// Returns a transaction inside of another one, without conditions of its own.
    pub fn all(success: Vec<RequestOp>) -> RequestOp {
        TxnOperation::Txn(TxnRequest { success, ..TxnRequest::default() }).into()
    }
}

impl From<TxnOperation> for RequestOp {
    fn from(operation: TxnOperation) -> RequestOp {
        RequestOp { operation: Some(operation) }
    }
}

/// A transaction: carries out `success` if all conditions hold, otherwise `failure`, as one atomic step.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct TxnRequest {
    #[prost(message, repeated, tag = "1")]
    pub compare: Vec<Compare>,
    #[prost(message, repeated, tag = "2")]
    pub success: Vec<RequestOp>,
    #[prost(message, repeated, tag = "3")]
    pub failure: Vec<RequestOp>,
}

/// The answer to one step of a transaction: the result of a read. Answers to other steps are skipped.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct ResponseOp {
    #[prost(message, optional, tag = "1")]
    pub range: Option<RangeResponse>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct TxnResponse {
    /// Whether all conditions of the transaction held.
    #[prost(bool, tag = "2")]
    pub succeeded: bool,
    /// One answer for each step of the transaction that was carried out (`success` or `failure`).
    #[prost(message, repeated, tag = "3")]
    pub responses: Vec<ResponseOp>,
}

#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub(crate) struct LeaseGrantRequest {
    #[prost(int64, tag = "1")]
    pub ttl_s: i64,
}

#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub(crate) struct LeaseGrantResponse {
    #[prost(int64, tag = "2")]
    pub id: i64,
    /// The granted time in seconds, possibly longer than the requested one.
    #[prost(int64, tag = "3")]
    pub ttl_s: i64,
}

#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub(crate) struct LeaseRevokeRequest {
    #[prost(int64, tag = "1")]
    pub id: i64,
}

#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub(crate) struct LeaseRevokeResponse {}

#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub(crate) struct LeaseKeepAliveRequest {
    #[prost(int64, tag = "1")]
    pub id: i64,
}

#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub(crate) struct LeaseKeepAliveResponse {
    /// The remaining time in seconds; 0 if the lease does not exist any more.
    #[prost(int64, tag = "3")]
    pub ttl_s: i64,
}

/// A message on a stream of watches. Of the kinds of such messages, only the creation of a watch is used.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct WatchRequest {
    #[prost(message, optional, tag = "1")]
    pub create: Option<WatchCreateRequest>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct WatchCreateRequest {
    #[prost(bytes = "vec", tag = "1")]
    pub key: Vec<u8>,
    /// The first key behind the range to watch.
    #[prost(bytes = "vec", tag = "2")]
    pub range_end: Vec<u8>,
    /// The first revision to report, possibly one in the past.
    #[prost(int64, tag = "3")]
    pub start_revision: i64,
}

/// An answer on the stream of a watch. The events in it are skipped, because the receiver reads all candidates anew.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub(crate) struct WatchResponse {
    /// Whether the watch has just begun; then this message has no event.
    #[prost(bool, tag = "3")]
    pub created: bool,
    /// Whether the watch has ended, or never began.
    #[prost(bool, tag = "4")]
    pub canceled: bool,
}
