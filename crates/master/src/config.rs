//! The configuration of a master at its start.
//!
//! The configuration is one flat table, so that a file, the environment and flags can all set every field by its name;
//! unknown names are errors. Every field has a default that fits a small cluster on one machine. Fields that concern
//! the process take effect at every start. Fields that concern the cluster ([`ClusterSettings`]) take effect when the
//! cluster is formed, and are part of the view from then on.
//!
//! Sizes are in bytes.

use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use fusee_auth::Keyring;
use fusee_core::data::Policy;
use fusee_core::view::Geometry;
use fusee_tls::TlsSettings;
use serde::{Deserialize, Serialize};

use crate::settings::{
    ClusterSettings, DEFAULT_LEASE_MS, DEFAULT_MOVE_BYTES_PER_S, DEFAULT_SCRUB_BYTES_PER_S,
    LeaseSettings,
};
use crate::store::address::{StoreAddress, StoreAddressError, StoreTls};

#[cfg(feature = "etcd")]
type SharedStore = StoreAddress;
#[cfg(not(feature = "etcd"))]
type SharedStore = std::convert::Infallible;

/// Returns the default directory of the store: `/var/lib/fusee/master` for root, and for other users `fusee/master` in
/// `XDG_STATE_HOME`, or in `.local/state` of the home directory. `None` without a home directory. The result does not
/// depend on the working directory, because a master that is started elsewhere must find its cluster again.
pub fn default_data_dir() -> Option<PathBuf> {
    let is_root = std::fs::metadata("/proc/self").is_ok_and(|process| process.uid() == 0);
    if is_root {
        return Some("/var/lib/fusee/master".into());
    }
    let named = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let state = named("XDG_STATE_HOME").or_else(|| Some(named("HOME")?.join(".local/state")));
    Some(state?.join("fusee/master"))
}

/// The configuration of a master. Fields before `memory_nodes` concern the process. The others take effect when a
/// cluster is formed. Changing them afterwards is a mistake, except for fields whose description allows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct MasterConfig {
    /// Keys from the cluster's secret, which other processes have to prove that they know. None by default: then every
    /// process that reaches the port can send requests.
    #[serde(skip)]
    pub keys: Option<Keyring>,
    /// Certificates: with them, all connections use TLS. None by default.
    #[serde(skip)]
    pub tls: Option<TlsSettings>,
    /// Host and port to listen at; `127.0.0.1:7400` by default.
    pub listen: String,
    /// Directory of the master's store; [`default_data_dir`] by default, and empty where there is no such default.
    pub data_dir: PathBuf,
    /// A store that several masters share, and in which they elect a leader: for example
    /// `etcd://10.0.0.5:2379,10.0.0.6:2379/fusee`. None by default: `data_dir` holds the store.
    pub store: Option<String>,
    /// With a shared store: the file of the certificate authorities that sign the certificates of its members, which
    /// are then reached over TLS. None by default.
    pub store_ca: Option<PathBuf>,
    /// With `store_ca`: the file of this master's certificate, if the store demands one. Then `store_key` is needed,
    /// too.
    pub store_cert: Option<PathBuf>,
    /// File with the private key that belongs to `store_cert`.
    pub store_key: Option<PathBuf>,
    /// Host and port under which others reach this master; the listening address by default. With a shared store,
    /// masters that do not lead refer all clients to this address when this master leads.
    pub advertise: Option<String>,
    /// With a shared store: the time for which a leader that has died remains the leader, 2..=60 seconds; 3 by default.
    pub lease_ttl_s: u64,
    /// The number of memory nodes that must have joined before the cluster is formed; 3 by default.
    pub memory_nodes: u32,
    /// The number of replicas of each subtable of the index, 1..=5 and at most `memory_nodes`; 3 by default.
    pub index_replicas: u8,
    /// The number of replicas of each replicated region, 1..=5 and at most `memory_nodes`; 2 by default.
    pub data_replicas: u8,
    /// The number of keys that the index is sized for; 1,000,000 by default.
    pub index_keys: u64,
    /// The sizes of regions, blocks and subtables. Regions are 256 MiB by default instead of the paper's 2 GiB, so that
    /// pools of a few GiB hold several and are used well.
    pub geometry: Geometry,
    /// The silence, in milliseconds, after which a session or memory node counts as dead; 1,000 by default.
    pub lease_ms: u64,
    /// The limit on bytes a second that move between memory nodes to even out their shares, or off a drained one; 512
    /// MiB by default. Can be changed at every start.
    pub move_bytes_per_s: u64,
    /// The limit on bytes a second that are read to find damage in memory that no client reads, 0 for none; 4 MiB by
    /// default. Can be changed at every start.
    pub scrub_bytes_per_s: u64,
    /// The redundancy of written values, and the rules for its changes; all values are replicated by default. Can be
    /// changed at every start; of several masters, the leader's setting is in force.
    pub redundancy: Policy,
}

impl Default for MasterConfig {
    fn default() -> MasterConfig {
        MasterConfig {
            keys: None,
            tls: None,
            listen: "127.0.0.1:7400".into(),
            data_dir: default_data_dir().unwrap_or_default(),
            store: None,
            store_ca: None,
            store_cert: None,
            store_key: None,
            advertise: None,
            lease_ttl_s: 3,
            memory_nodes: 3,
            index_replicas: 3,
            data_replicas: 2,
            index_keys: 1_000_000,
            geometry: Geometry { region_bytes: 256 << 20, ..Geometry::default() },
            lease_ms: DEFAULT_LEASE_MS,
            move_bytes_per_s: DEFAULT_MOVE_BYTES_PER_S,
            scrub_bytes_per_s: DEFAULT_SCRUB_BYTES_PER_S,
            redundancy: Policy::default(),
        }
    }
}

impl MasterConfig {
    /// Returns the settings of the cluster that the configuration contains.
    pub fn settings(&self) -> ClusterSettings {
        ClusterSettings {
            memory_nodes: self.memory_nodes,
            index_replicas: self.index_replicas,
            data_replicas: self.data_replicas,
            index_keys: self.index_keys,
            geometry: self.geometry,
            lease: LeaseSettings { lease_ms: self.lease_ms, ..LeaseSettings::default() },
            move_bytes_per_s: self.move_bytes_per_s,
            scrub_bytes_per_s: self.scrub_bytes_per_s,
            redundancy: self.redundancy,
        }
    }

    /// Checks the settings of the shared store, without contacting it.
    pub fn check_store(&self) -> Result<(), StoreAddressError> {
        self.shared_store().map(drop)
    }

    fn store_tls(&self) -> Result<Option<StoreTls>, StoreAddressError> {
        let (ca, identity) = match (&self.store_ca, &self.store_cert, &self.store_key) {
            (None, None, None) => return Ok(None),
            (Some(ca), None, None) => (ca, None),
            (Some(ca), Some(cert), Some(key)) => (ca, Some((cert.clone(), key.clone()))),
            _ => return Err(StoreAddressError::Files),
        };
        // Errors in the files show at the start, and not only at the first election.
        let read = match &identity {
            None => TlsSettings::of_client(ca),
            Some((cert, key)) => TlsSettings::of_server(ca, cert, key),
        };
        read.map_err(|error| StoreAddressError::Tls(error.to_string()))?;
        Ok(Some(StoreTls { ca: ca.clone(), identity }))
    }

    /// Returns the address of the store that this master shares with others; `None` if it has a store of its own. Fails
    /// if the settings name a shared store and the program was built without etcd.
    pub(crate) fn shared_store(&self) -> Result<Option<SharedStore>, StoreAddressError> {
        let tls = self.store_tls()?;
        let Some(text) = &self.store else {
            return if tls.is_none() { Ok(None) } else { Err(StoreAddressError::Files) };
        };
        let address = StoreAddress { tls, ..StoreAddress::parse(text)? };
        if !(2..=60).contains(&self.lease_ttl_s) {
            return Err(StoreAddressError::LeaseTtl { ttl_s: self.lease_ttl_s });
        }
        #[cfg(feature = "etcd")]
        return Ok(Some(address));
        #[cfg(not(feature = "etcd"))]
        {
            drop(address);
            Err(StoreAddressError::NotBuilt { text: text.clone() })
        }
    }
}
