//! The tasks of a comparison, and the subjects that can do them.

use std::fmt;
use std::str::FromStr;

use clap::ValueEnum;
use fusee_client::FabricKind;
use fusee_workload::YcsbWorkload;
use serde::Serialize;

use crate::temporary::InstallableProgram;
use crate::verbs::RawVerb;

/// Bytes of an atomic operation.
pub const WORD_BYTES: u32 = 8;

/// A kind of work that subjects do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CompareTask {
    /// Operations of FUSEE, one at a time. Gets and updates are on random keys.
    Operation(MeasuredOperation),
    /// Verbs, one at a time, on memory in the processor's cache.
    Verb(RawVerb),
    /// A YCSB workload on Zipfian keys.
    Workload(YcsbWorkload),
}

/// An operation of FUSEE.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum MeasuredOperation {
    Get,
    Update,
    Insert,
    Delete,
}

/// Tasks that a subject does after one start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TaskFamily {
    Operations,
    Verbs,
    Workloads,
}

impl TaskFamily {
    pub const ALL: [TaskFamily; 3] =
        [TaskFamily::Operations, TaskFamily::Verbs, TaskFamily::Workloads];
}

impl CompareTask {
    pub fn family(self) -> TaskFamily {
        match self {
            CompareTask::Operation(_) => TaskFamily::Operations,
            CompareTask::Verb(_) => TaskFamily::Verbs,
            CompareTask::Workload(_) => TaskFamily::Workloads,
        }
    }
}

impl FromStr for CompareTask {
    type Err = String;

    fn from_str(text: &str) -> Result<CompareTask, String> {
        let bytes =
            |text: &str| text.parse::<u32>().ok().filter(|bytes| (1..=65_536).contains(bytes));
        let verb = match text.split_once(':') {
            None if text == "cas" => Some(RawVerb::Cas),
            None if text == "faa" => Some(RawVerb::Faa),
            Some(("read", length)) => bytes(length).map(RawVerb::Read),
            Some(("write", length)) => bytes(length).map(RawVerb::Write),
            _ => None,
        };
        let operation = || MeasuredOperation::from_str(text, false).ok();
        // Stores execute reads and updates of keys that exist, and nothing else.
        let workload = || match text.parse::<YcsbWorkload>().ok()? {
            YcsbWorkload::D | YcsbWorkload::Churn => None,
            workload => Some(workload),
        };
        let task = verb.map(CompareTask::Verb);
        let task = task.or_else(|| operation().map(CompareTask::Operation));
        task.or_else(|| workload().map(CompareTask::Workload)).ok_or_else(|| {
            format!(
                "`{text}` is none of get, update, insert, delete, read:BYTES, write:BYTES (up to \
                 65536), cas, faa, a, b, c, upd0 to upd100"
            )
        })
    }
}

impl fmt::Display for MeasuredOperation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.to_possible_value().expect("none is skipped").get_name())
    }
}

impl fmt::Display for CompareTask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CompareTask::Operation(operation) => write!(f, "{operation}"),
            CompareTask::Verb(RawVerb::Read(bytes)) => write!(f, "READ of {bytes} bytes"),
            CompareTask::Verb(RawVerb::Write(bytes)) => write!(f, "WRITE of {bytes} bytes"),
            CompareTask::Verb(RawVerb::Cas) => f.write_str("CAS"),
            CompareTask::Verb(RawVerb::Faa) => f.write_str("FAA"),
            CompareTask::Workload(workload) => {
                write!(f, "YCSB {}", workload.to_string().to_uppercase())
            }
        }
    }
}

/// A store, a transport or a part of FUSEE that takes part in a comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum CompareSubject {
    /// FUSEE over shared memory
    FuseeShm,
    /// FUSEE over TCP
    FuseeTcp,
    /// FUSEE over RDMA, only if named
    FuseeVerbs,
    /// The verbs without a store, over shared memory
    RawShm,
    /// The verbs without a store, over TCP
    RawTcp,
    /// The verbs without a store, over RDMA, only if named
    RawVerbs,
    /// A copy of a pair
    Memcpy,
    /// UCX over shared memory: ucx_perftest
    UcxPosix,
    /// libfabric over TCP: fi_pingpong, which listens on all addresses while it runs
    LibfabricTcp,
    Lmdb,
    MemcachedUnix,
    MemcachedTcp,
    RedisUnix,
    RedisTcp,
}

impl CompareSubject {
    /// Returns the name, as on the command line.
    pub fn name(self) -> String {
        self.to_possible_value().expect("none is skipped").get_name().to_owned()
    }

    /// Returns whether the subject takes part if no subject is named.
    pub fn is_default(self) -> bool {
        self.fabric() != Some(FabricKind::Verbs)
    }

    /// Returns the fabric of a subject that is FUSEE or its verbs.
    pub fn fabric(self) -> Option<FabricKind> {
        match self {
            CompareSubject::FuseeShm | CompareSubject::RawShm => Some(FabricKind::Shm),
            CompareSubject::FuseeTcp | CompareSubject::RawTcp => Some(FabricKind::Tcp),
            CompareSubject::FuseeVerbs | CompareSubject::RawVerbs => Some(FabricKind::Verbs),
            _ => None,
        }
    }

    /// Returns the program that has to be installed.
    pub fn program(self) -> Option<InstallableProgram> {
        let (name, package) = match self {
            CompareSubject::UcxPosix => ("ucx_perftest", "ucx-utils"),
            CompareSubject::LibfabricTcp => ("fi_pingpong", "libfabric-bin"),
            CompareSubject::MemcachedUnix | CompareSubject::MemcachedTcp => {
                ("memcached", "memcached")
            }
            CompareSubject::RedisUnix | CompareSubject::RedisTcp => {
                ("redis-server", "redis-server")
            }
            _ => return None,
        };
        Some(InstallableProgram { name, package })
    }

    pub fn is_fusee(self) -> bool {
        use CompareSubject::{FuseeShm, FuseeTcp, FuseeVerbs};
        matches!(self, FuseeShm | FuseeTcp | FuseeVerbs)
    }

    fn is_raw(self) -> bool {
        self.fabric().is_some() && !self.is_fusee()
    }

    fn is_transport(self) -> bool {
        matches!(self, CompareSubject::UcxPosix | CompareSubject::LibfabricTcp)
    }

    /// Returns whether the subject can do the task.
    pub fn can_do(self, task: CompareTask) -> bool {
        use MeasuredOperation::{Get, Update};
        match task {
            CompareTask::Operation(operation) => {
                let is_copied = operation == Get && self == CompareSubject::Memcpy;
                let has_raw_verbs = matches!(operation, Get | Update) && self.is_raw();
                self.is_fusee() || has_raw_verbs || is_copied
            }
            CompareTask::Verb(_) => self.is_raw() || self.is_transport(),
            CompareTask::Workload(_) => {
                !self.is_raw() && !self.is_transport() && self != CompareSubject::Memcpy
            }
        }
    }

    /// Returns whether the other subjects' results are divided by this subject's: the raw verbs of an operation, other
    /// transports' verbs, and FUSEE's workloads.
    pub fn is_reference(self, family: TaskFamily) -> bool {
        match family {
            TaskFamily::Operations => self.is_raw(),
            TaskFamily::Verbs => self.is_transport(),
            TaskFamily::Workloads => self.is_fusee(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_task_has_a_name_a_subject_and_a_reference() {
        for (text, shown) in [
            ("get", "get"),
            ("delete", "delete"),
            ("read:8", "READ of 8 bytes"),
            ("write:65536", "WRITE of 65536 bytes"),
            ("faa", "FAA"),
            ("a", "YCSB A"),
            ("upd5", "YCSB UPD5"),
        ] {
            let task: CompareTask = text.parse().unwrap();
            assert_eq!(task.to_string(), shown);
            let subjects = CompareSubject::value_variants().iter();
            let can: Vec<_> = subjects.filter(|subject| subject.can_do(task)).collect();
            assert!(can.len() >= 3, "{text}: {can:?}");
        }
        for text in ["", "read", "read:0", "write:65537", "cas:8", "d", "churn", "upd101"] {
            assert!(text.parse::<CompareTask>().unwrap_err().contains("none of"), "{text}");
        }
    }
}
