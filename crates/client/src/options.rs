//! Options of a client.
//!
//! A program starts from the defaults and changes single options, by methods or field by field. Such a program still
//! compiles when a new version adds options.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use fusee_auth::Keyring;
use fusee_core::data::RedundancyRules;
use fusee_fabric::{FabricKind, SwitchLocation};
use fusee_tls::TlsSettings;

/// The choice of the fabric between a client and the memory nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FabricChoice {
    /// Shared memory if every memory node lends its pool to processes of this host; else verbs if every memory node
    /// serves them and this host has an RDMA device; else TCP.
    #[default]
    Auto,
    /// The client uses this fabric, and fails to open if it cannot.
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

/// The treatment of correlated requests: requests for one key that several sessions of the client run at the same time.
/// `docs/decisions/0041-work-table.md` explains what a work table is good for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WorkTable {
    /// There is no work table: each request goes to the memory nodes by itself.
    #[default]
    Off,
    /// Concurrent gets of a key share one result, and of several puts or updates of a key that wait, only the last is
    /// executed, as far as every answer stays linearizable. This saves verbs and bytes, but no time: a get waits for a
    /// put of the same key that another session of the client runs.
    Strict,
    /// As in ElasticMem, requests share results even where the answers are not linearizable. A get is answered with the
    /// value of a put that still runs, even if that put never takes effect; or with the result of an earlier get, even
    /// if another process has completed a write since then. A write waits for gets of its key. Of two writes or
    /// redundancy changes of one key, the later one fails with
    /// [`WriteError::WriteUnderWay`](crate::WriteError::WriteUnderWay).
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
    /// The fabric between the client and the memory nodes. Default: [`FabricChoice::Auto`].
    pub fabric: FabricChoice,
    /// Capacity of one index cache, in keys. Over a network the client has one cache, over shared memory each session
    /// has one. 0 turns the cache off. Default: 100,000.
    pub cache_entries: usize,
    /// Whether each session has its own index cache over a network, too. Then writes of the client's other sessions
    /// make the session's hints wrong, as writes of other processes do. Default: no.
    pub cache_per_session: bool,
    /// Share of a key's accesses with a wrong hint, 0..=1, above which the hint is ignored and the key looked up in the
    /// index (P §4.6). With 1, hints are never ignored. Default: 0.5.
    ///
    /// A wrong hint costs the bytes of an object, but no round trip; a right hint saves a round trip. Lower the
    /// threshold if pairs are large and bandwidth is scarce. `docs/results` has measurements by `fusee-bench cache`.
    pub cache_threshold: f64,
    /// A switch in the path to the memory nodes; `fusee switch` runs one. A switch at a host and port is for TCP, and
    /// the client reaches memory nodes through that switch only. A switch on the wire between NICs is for verbs, and
    /// memory nodes have to allow it (`fusee memory-node --steered`). Joining by another fabric than the switch's fails
    /// ([`ConnectError::SwitchOfAnotherFabric`]). Correctness does not depend on the switch. Default: none.
    ///
    /// [`ConnectError::SwitchOfAnotherFabric`]: crate::ConnectError::SwitchOfAnotherFabric
    pub switch: Option<SwitchLocation>,
    /// Limit for the waits of one operation: for the winner of a conflict, for blocks of memory, for a newer view. The
    /// limit covers all waits of the operation together; the operation gives up when this time has passed since the
    /// first wait began. A single call can have its own limit
    /// ([`Client::with_op_timeout`](crate::Client::with_op_timeout)). Default: 5 s.
    pub op_timeout: Duration,
    /// Limit for the wait until the cluster has formed, and for the wait until its members answer. Default: 5 s.
    pub connect_timeout: Duration,
    /// Keys derived from the cluster's secret, with which client and servers authenticate each other. Default: none.
    pub keys: Option<Keyring>,
    /// TLS for connections to the master and, over TCP, to memory nodes; servers with TLS accept no connections
    /// without it. Needs the feature `tls`. Default: none.
    pub tls: Option<TlsSettings>,
    /// Rules for the redundancy of new pairs, unless the write names a redundancy; existing pairs keep theirs. Default:
    /// `None`, which means the cluster's rules, which the master sends.
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
    /// The treatment of correlated requests. Over shared memory a round trip costs no more than an access to the table,
    /// so a client with a work table cannot join ([`ConnectError::WorkTableOverShm`]). Default: [`WorkTable::Off`].
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
