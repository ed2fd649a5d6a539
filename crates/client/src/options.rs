//! Options of a client.
//!
//! A program starts from the defaults and changes single options, by methods or field by field. It still
//! compiles when options are added.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use fusee_auth::Keyring;
use fusee_core::data::RedundancyRules;
use fusee_fabric::{FabricKind, SwitchLocation};
use fusee_tls::TlsSettings;

/// The fabric of a client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FabricChoice {
    /// Shared memory if every memory node lends it on this host; else verbs if every memory node serves them
    /// and this host has an RDMA device; else TCP.
    #[default]
    Auto,
    /// The given fabric.
    Only(FabricKind),
}

impl From<FabricKind> for FabricChoice {
    fn from(kind: FabricKind) -> FabricChoice {
        FabricChoice::Only(kind)
    }
}

impl FromStr for FabricChoice {
    type Err = String;

    fn from_str(name: &str) -> Result<FabricChoice, String> {
        match name {
            "auto" => Ok(FabricChoice::Auto),
            _ => FabricKind::from_str(name)
                .map(FabricChoice::Only)
                .map_err(|_| format!("no fabric is called {name:?}: use auto, shm, tcp or verbs")),
        }
    }
}

impl fmt::Display for FabricChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FabricChoice::Auto => f.write_str("auto"),
            FabricChoice::Only(kind) => kind.fmt(f),
        }
    }
}

/// The treatment of correlated requests: requests on one key that sessions of the client run at one time.
/// `docs/decisions/0041-work-table.md` says what this is good for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WorkTable {
    /// Each request goes to the memory nodes.
    #[default]
    Off,
    /// Gets share the results of concurrent requests, and waiting sets are absorbed by the last of them, as far
    /// as every answer stays linearizable. This saves verbs and bytes, not time: a get that meets a set of its
    /// process waits for it.
    Strict,
    /// Like ElasticMem's, and not linearizable. A get is answered with the value of a running set, even if that
    /// set never takes effect, and with the result of an earlier get, even if another process has had a write
    /// acknowledged in between. A write waits for gets. Of two writes or transitions of one key the later one
    /// fails with [`WriteError::WriteUnderWay`](crate::WriteError::WriteUnderWay).
    Relaxed,
}

impl FromStr for WorkTable {
    type Err = String;

    fn from_str(name: &str) -> Result<WorkTable, String> {
        match name {
            "off" => Ok(WorkTable::Off),
            "strict" => Ok(WorkTable::Strict),
            "relaxed" => Ok(WorkTable::Relaxed),
            _ => Err(format!("no work table is called {name:?}: use off, strict or relaxed")),
        }
    }
}

impl fmt::Display for WorkTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            WorkTable::Off => "off",
            WorkTable::Strict => "strict",
            WorkTable::Relaxed => "relaxed",
        })
    }
}

/// Options of a client.
///
/// ```
/// use std::time::Duration;
///
/// use fusee_client::{FabricKind, Options};
///
/// let options = Options::default()
///     .with_fabric(FabricKind::Tcp)
///     .with_op_timeout(Duration::from_secs(1));
/// assert_eq!(options.cache_entries, 100_000);
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Options {
    /// The fabric. Default: [`FabricChoice::Auto`].
    pub fabric: FabricChoice,
    /// Capacity of an index cache, in keys: of the client's, or over shared memory of each session's; 0 turns
    /// the cache off. Default: 100,000.
    pub cache_entries: usize,
    /// Whether each session has its own index cache also over a network. Writes of the client's other sessions
    /// then make its hints wrong, as writes of other processes do. Default: no.
    pub cache_per_session: bool,
    /// A key is looked up in the index instead if its hint was wrong in more than this share of its accesses
    /// (P §4.6). 0..=1; 1 never bypasses the cache. Default: 0.5.
    ///
    /// A wrong hint costs the bytes of an object and no round trip; a right one saves a round trip. Lower it if
    /// pairs are large and bandwidth is scarce. `docs/results` has measurements by `fusee-bench cache`.
    pub cache_threshold: f64,
    /// A switch in the path to the memory nodes; `fusee switch` runs one. A switch at a host and port is for
    /// TCP, and memory nodes are reached through it only. A switch on the wire between NICs is for verbs, and
    /// memory nodes have to allow it (`fusee memory-node --steered`). With another fabric the client is refused
    /// ([`ConnectError::SwitchOfAnotherFabric`]). Correctness does not depend on the switch. Default: none.
    ///
    /// [`ConnectError::SwitchOfAnotherFabric`]: crate::ConnectError::SwitchOfAnotherFabric
    pub switch: Option<SwitchLocation>,
    /// Limit for the waits of one operation: for the winner of a conflict, a memory node's answer to ALLOC, a
    /// newer view. It covers all waits of the operation together, from the first on; then the operation gives
    /// up. A call may have a limit of its own ([`Client::with_op_timeout`](crate::Client::with_op_timeout)).
    /// Default: 5 s.
    pub op_timeout: Duration,
    /// Limit for the wait for a cluster that is still forming, and for each of its members. Default: 5 s.
    pub connect_timeout: Duration,
    /// Keys of the cluster's secret, by which client and servers authenticate each other. Default: none.
    pub keys: Option<Keyring>,
    /// TLS for connections to the master and, over TCP, to memory nodes; servers with TLS accept no connections
    /// without it. Needs the feature `tls`. Default: none.
    pub tls: Option<TlsSettings>,
    /// Redundancy of new pairs, unless the program names one; existing pairs keep theirs. Default: `None`,
    /// which means the cluster's rules, as its master tells them.
    ///
    /// ```
    /// use fusee_client::{Options, RedundancyRules};
    ///
    /// // Values of 16 KiB and more are stored on six memory nodes, any four of which restore the value.
    /// let rules = RedundancyRules::from_length(16 << 10, "ec:4+2".parse()?);
    /// let options = Options::default().with_redundancy(rules);
    /// # Ok::<(), fusee_client::ParseRedundancyError>(())
    /// ```
    pub redundancy: Option<RedundancyRules>,
    /// The treatment of correlated requests. Over shared memory a round trip costs no more than the table, so a
    /// client with a work table is refused there ([`ConnectError::WorkTableOverShm`]). Default:
    /// [`WorkTable::Off`].
    ///
    /// [`ConnectError::WorkTableOverShm`]: crate::ConnectError::WorkTableOverShm
    pub work_table: WorkTable,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            fabric: FabricChoice::Auto,
            switch: None,
            cache_entries: 100_000,
            cache_per_session: false,
            cache_threshold: 0.5,
            op_timeout: Duration::from_secs(5),
            connect_timeout: Duration::from_secs(5),
            keys: None,
            tls: None,
            redundancy: None,
            work_table: WorkTable::Off,
        }
    }
}

impl Options {
    /// Sets [`Options::switch`]: `wire`, or host and port.
    pub fn with_switch(self, switch: impl Into<SwitchLocation>) -> Options {
        Options { switch: Some(switch.into()), ..self }
    }

    /// Sets [`Options::fabric`].
    pub fn with_fabric(self, fabric: impl Into<FabricChoice>) -> Options {
        Options { fabric: fabric.into(), ..self }
    }

    /// Sets [`Options::cache_entries`].
    pub fn with_cache_entries(self, cache_entries: usize) -> Options {
        Options { cache_entries, ..self }
    }

    /// Sets [`Options::cache_per_session`].
    pub fn with_cache_per_session(self, cache_per_session: bool) -> Options {
        Options { cache_per_session, ..self }
    }

    /// Sets [`Options::cache_threshold`], 0..=1.
    pub fn with_cache_threshold(self, cache_threshold: f64) -> Options {
        Options { cache_threshold, ..self }
    }

    /// Sets [`Options::op_timeout`].
    pub fn with_op_timeout(self, op_timeout: Duration) -> Options {
        Options { op_timeout, ..self }
    }

    /// Sets [`Options::redundancy`], which replaces the cluster's rules.
    pub fn with_redundancy(self, redundancy: RedundancyRules) -> Options {
        Options { redundancy: Some(redundancy), ..self }
    }

    /// Sets [`Options::work_table`].
    pub fn with_work_table(self, work_table: WorkTable) -> Options {
        Options { work_table, ..self }
    }

    /// Sets [`Options::keys`].
    ///
    /// ```no_run
    /// use std::path::Path;
    ///
    /// use fusee_client::{Client, Keyring, Options};
    ///
    /// let keys = Keyring::of_client(Path::new("/etc/fusee/client.key"))?;
    /// let client = Client::connect_with("10.0.0.1:7400", Options::default().with_keys(keys))?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn with_keys(self, keys: impl Into<Option<Keyring>>) -> Options {
        Options { keys: keys.into(), ..self }
    }

    /// Sets [`Options::tls`].
    ///
    /// ```no_run
    /// use std::path::Path;
    ///
    /// use fusee_client::{Client, Options, TlsSettings};
    ///
    /// let tls = TlsSettings::of_client(Path::new("/etc/fusee/ca.pem"))?;
    /// let client = Client::connect_with("store-1:7400", Options::default().with_tls(tls))?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn with_tls(self, tls: impl Into<Option<TlsSettings>>) -> Options {
        Options { tls: tls.into(), ..self }
    }

    /// Sets [`Options::connect_timeout`].
    pub fn with_connect_timeout(self, connect_timeout: Duration) -> Options {
        Options { connect_timeout, ..self }
    }
}
