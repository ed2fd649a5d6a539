//! Options of a client.
//!
//! Options grow: a program starts from the defaults and changes what it needs, with the methods or
//! field by field. It goes on compiling when there are more.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use fusee_auth::Keys;
use fusee_core::data::RedundancyRules;
use fusee_fabric::{FabricKind, SwitchAt};
use fusee_tls::Tls;

/// Which fabric a client uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FabricChoice {
    /// Shared memory if every memory node lends it on this host; else verbs if every memory node serves
    /// them and this host has an RDMA device; else TCP.
    #[default]
    Auto,
    /// This one.
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

/// What a client does with correlated requests: those on one key that its sessions have under way at one time.
/// `docs/decisions/0041-work-table.md` has what it is good for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WorkTable {
    /// Each goes to the memory nodes.
    #[default]
    Off,
    /// Gets are served with what others find or write, and sets that wait are absorbed by the last of them, as far as
    /// every answer is linearizable all the same. It saves verbs and bytes, not time: a get that meets a set of its
    /// process waits for it.
    Strict,
    /// As ElasticMem's, and not linearizable. A get is answered with the value of a set that is under way, whether or
    /// not that ever takes effect, and with what an earlier get finds, though another process may have acknowledged
    /// a write in between. A write waits for gets. Of two writes or transitions of one key the later one fails with
    /// [`Error::WriteUnderWay`](crate::Error::WriteUnderWay).
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
    /// Which fabric to use. Default: [`FabricChoice::Auto`].
    pub fabric: FabricChoice,
    /// Keys whose place a client remembers, over shared memory each of its sessions; 0 turns the index cache off.
    /// Default: 100,000.
    pub cache_entries: usize,
    /// Whether each session has an index cache of its own over a network, too: what other sessions of the client
    /// write makes its hints wrong then, as that of other processes does. Default: no.
    pub cache_per_session: bool,
    /// A key whose hint was wrong in more than this share of its accesses is looked up
    /// in the index instead (P §4.6). 0..=1; 1 never bypasses the cache. Default: 0.5.
    ///
    /// A wrong hint costs the bytes of an object and no round trip, a right one saves a round trip: lower
    /// it if pairs are large and bandwidth is short. `docs/results` has what `fusee bench cache` measured.
    pub cache_threshold: f64,
    /// A switch in the path to the memory nodes; `fusee switch` runs one. At a host and port it is for TCP, and
    /// without it the memory nodes are not reached. On the wire between network cards it is for verbs, and memory
    /// nodes have to allow it (`fusee memory-node --steered`). With another fabric the client is refused
    /// ([`ConnectError::SwitchOfAnotherFabric`]). Nothing rests on what it knows. Default: none.
    ///
    /// [`ConnectError::SwitchOfAnotherFabric`]: crate::ConnectError::SwitchOfAnotherFabric
    pub switch: Option<SwitchAt>,
    /// How long an operation waits for others before it gives up: for the winner of a conflict, a memory node's
    /// answer to ALLOC, a newer view; all its waits together, from the first on. A call may have a time of its own
    /// ([`Client::with_op_timeout`](crate::Client::with_op_timeout)). Default: 5 s.
    pub op_timeout: Duration,
    /// How long to wait for a cluster that is still forming, and for each of its members.
    /// Default: 5 s.
    pub connect_timeout: Duration,
    /// Keys of the cluster's secret, which its servers want to be proved, and prove themselves. Default: none.
    pub keys: Option<Keys>,
    /// What connections have TLS by, to the master and to memory nodes over TCP; servers that speak it hear nobody
    /// without. Needs the feature `tls`. Default: none.
    pub tls: Option<Tls>,
    /// The redundancy of new pairs, where the program does not name one; pairs that exist keep what they have.
    /// Default: `None`, as the cluster's rules say, which are its master's to tell.
    ///
    /// ```
    /// use fusee_client::{Options, RedundancyRules};
    ///
    /// // Values of 16 KiB and more stand on six memory nodes, any four of which make the value.
    /// let rules = RedundancyRules::from_length(16 << 10, "ec:4+2".parse()?);
    /// let options = Options::default().with_redundancy(rules);
    /// # Ok::<(), fusee_client::ParseRedundancyError>(())
    /// ```
    pub redundancy: Option<RedundancyRules>,
    /// What to do with correlated requests. Not over shared memory, where a round trip costs no more than the table:
    /// there a client with a work table is refused ([`ConnectError::WorkTableOverShm`]). Default: [`WorkTable::Off`].
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
    pub fn with_switch(self, switch: impl Into<SwitchAt>) -> Options {
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

    /// Sets [`Options::redundancy`], whatever the cluster's rules say.
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
    /// use fusee_client::{Client, Keys, Options};
    ///
    /// let keys = Keys::of_client(Path::new("/etc/fusee/client.key"))?;
    /// let client = Client::connect_with("10.0.0.1:7400", Options::default().with_keys(keys))?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn with_keys(self, keys: impl Into<Option<Keys>>) -> Options {
        Options { keys: keys.into(), ..self }
    }

    /// Sets [`Options::tls`].
    ///
    /// ```no_run
    /// use std::path::Path;
    ///
    /// use fusee_client::{Client, Options, Tls};
    ///
    /// let tls = Tls::of_client(Path::new("/etc/fusee/ca.pem"))?;
    /// let client = Client::connect_with("store-1:7400", Options::default().with_tls(tls))?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn with_tls(self, tls: impl Into<Option<Tls>>) -> Options {
        Options { tls: tls.into(), ..self }
    }

    /// Sets [`Options::connect_timeout`].
    pub fn with_connect_timeout(self, connect_timeout: Duration) -> Options {
        Options { connect_timeout, ..self }
    }
}
