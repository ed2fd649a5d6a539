//! The keys and values of a meeting in the store.
//!
//! ```text
//! fusee-bench/NAME               the id of the meeting; the driver that inserts this key opens the meeting
//! fusee-bench/NAME/ID/N          the status page of driver N, which that driver alone writes
//! fusee-bench/NAME/ID/N/results  a piece of driver N's results, until the first driver takes it
//! ```
//!
//! The store is linearizable, and an INSERT never creates a key that exists. Therefore exactly one of several drivers
//! opens the meeting, and each driver number is taken once.

use std::fmt;

use fusee_cli::failure::Failure;
use fusee_client::{BlockingClient, WriteError};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// Maximum bytes of a piece of results.
const PIECE_BYTES: usize = 1 << 20;
/// Bytes of a piece before the results: the piece's number, and whether it is the last piece.
const PIECE_HEADER_BYTES: usize = 5;

/// The status page of a driver, which shows its state to the other drivers.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct DriverStatus {
    /// A counter that the driver increases while it lives.
    pub beat: u64,
    /// The host of the driver.
    pub host: String,
    /// The process id of the driver.
    pub pid: u32,
    /// The arguments of the driver.
    pub settings: Map<String, Value>,
    /// The last step, counted from 1, for which the driver is ready. On the first driver's status page: the last step
    /// that has begun.
    pub step: u32,
    /// The driver whose user has ended the run, if there is one.
    pub interrupted: Option<usize>,
    /// The end of the meeting as this driver sees it, if it has ended.
    pub end: Option<RendezvousEnd>,
}

/// The end of a meeting.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub enum RendezvousEnd {
    /// The run is over. The first driver's status page adds the run's problem, if it had one.
    Done(Option<String>),
    /// The driver cannot go on, for this reason.
    Failed(String),
}

impl DriverStatus {
    /// Builds the status page of this process.
    pub fn new(settings: Map<String, Value>) -> DriverStatus {
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        let host = host.trim().to_owned();
        DriverStatus { host, pid: std::process::id(), settings, ..DriverStatus::default() }
    }
}

impl fmt::Display for DriverStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, pid {}", self.host, self.pid)
    }
}

/// The keys in the store that serve one meeting.
#[derive(Clone)]
pub struct RendezvousKeys {
    client: BlockingClient,
    name: String,
    id: u64,
}

/// A piece of results.
pub struct ReportPiece {
    /// The number of the piece, from 0.
    pub number: u32,
    /// Whether this is the last piece.
    pub is_last: bool,
    /// The results in this piece.
    pub bytes: Vec<u8>,
}

impl RendezvousKeys {
    /// Returns the keys of the meeting with this id; the meeting need not exist.
    pub fn new(client: BlockingClient, name: &str, id: u64) -> RendezvousKeys {
        RendezvousKeys { client, name: name.to_owned(), id }
    }

    /// Returns the id of the meeting.
    pub fn id(&self) -> u64 {
        self.id
    }

    fn head_key(&self) -> Vec<u8> {
        format!("fusee-bench/{}", self.name).into_bytes()
    }

    fn page_key(&self, driver: usize) -> Vec<u8> {
        format!("fusee-bench/{}/{:016x}/{driver}", self.name, self.id).into_bytes()
    }

    fn results_key(&self, driver: usize) -> Vec<u8> {
        format!("fusee-bench/{}/{:016x}/{driver}/results", self.name, self.id).into_bytes()
    }

    /// Returns the id of the open meeting, if there is one.
    pub fn open_id(&self) -> Result<Option<u64>, Failure> {
        self.read(&self.head_key())
    }

    /// Opens this meeting, unless another meeting of this name is open. Returns whether this meeting is open.
    pub fn open(&self) -> Result<bool, Failure> {
        match self.client.insert(&self.head_key(), &json(&self.id)?) {
            Ok(()) => Ok(true),
            Err(WriteError::AlreadyExists) => Ok(false),
            // The INSERT has possibly taken effect, which the stored id shows.
            Err(error) => match self.open_id() {
                Ok(Some(id)) => Ok(id == self.id),
                _ => Err(cannot("open", &error)),
            },
        }
    }

    /// Opens this meeting in place of an abandoned meeting of the same name.
    pub fn take_over(&self) -> Result<(), Failure> {
        match self.client.update(&self.head_key(), &json(&self.id)?) {
            Ok(()) | Err(WriteError::NotFound) => Ok(()),
            Err(error) => Err(cannot("take over", &error)),
        }
    }

    /// Takes a driver number by storing the driver's status page. Returns `false` if another driver has the number.
    pub fn claim_number(&self, driver: usize, page: &DriverStatus) -> Result<bool, Failure> {
        match self.client.insert(&self.page_key(driver), &json(page)?) {
            Ok(()) => Ok(true),
            Err(WriteError::AlreadyExists) => Ok(false),
            Err(error) => Err(cannot("join", &error)),
        }
    }

    /// Writes a driver's status page; returns `false` if the status page has been removed.
    pub fn write(&self, driver: usize, page: &DriverStatus) -> Result<bool, Failure> {
        match self.client.update(&self.page_key(driver), &json(page)?) {
            Ok(()) => Ok(true),
            Err(WriteError::NotFound) => Ok(false),
            Err(error) => Err(cannot("tell", &error)),
        }
    }

    /// Returns the status page of a driver, if it has one.
    pub fn page(&self, driver: usize) -> Result<Option<DriverStatus>, Failure> {
        self.read(&self.page_key(driver))
    }

    /// Stores a piece of results, unless the driver's previous piece has not been taken yet. Returns whether the piece
    /// was stored.
    pub fn store_piece(&self, driver: usize, piece: &ReportPiece) -> Result<bool, Failure> {
        let header = piece.number.to_le_bytes();
        let value = [&header[..], &[piece.is_last.into()], &piece.bytes].concat();
        match self.client.insert(&self.results_key(driver), &value) {
            Ok(()) => Ok(true),
            Err(WriteError::AlreadyExists) => Ok(false),
            Err(error) => Err(cannot("hand over results", &error)),
        }
    }

    /// Takes and removes a piece of results, if there is one.
    pub fn take_piece(&self, driver: usize) -> Result<Option<ReportPiece>, Failure> {
        let key = self.results_key(driver);
        let value = self.client.get(&key).map_err(|error| cannot("take results", &error))?;
        let Some(value) = value else { return Ok(None) };
        self.remove(&key)?;
        let Some((header, bytes)) = value.split_first_chunk::<PIECE_HEADER_BYTES>() else {
            return Err(Failure::operation(format!("the results of driver {driver} are damaged")));
        };
        let [number @ .., is_last] = *header;
        let number = u32::from_le_bytes(number);
        Ok(Some(ReportPiece { number, is_last: is_last != 0, bytes: bytes.to_vec() }))
    }

    /// Returns the maximum length of a piece.
    pub fn piece_bytes(&self) -> usize {
        let max = self.client.view().geometry.max_value_bytes as usize;
        max.saturating_sub(PIECE_HEADER_BYTES).clamp(1, PIECE_BYTES)
    }

    /// Removes the keys of one driver.
    pub fn leave(&self, driver: usize) -> Result<(), Failure> {
        self.remove(&self.results_key(driver))?;
        self.remove(&self.page_key(driver))
    }

    /// Removes all keys of a meeting with this number of drivers. The key with the meeting's id is removed first, so
    /// that no driver joins any more.
    pub fn remove_all(&self, drivers: usize) -> Result<(), Failure> {
        if self.open_id()? == Some(self.id) {
            self.remove(&self.head_key())?;
        }
        (0..drivers).try_for_each(|driver| self.leave(driver))
    }

    fn remove(&self, key: &[u8]) -> Result<(), Failure> {
        match self.client.delete(key) {
            Ok(()) | Err(WriteError::NotFound) => Ok(()),
            Err(error) => Err(cannot("clean up", &error)),
        }
    }

    fn read<T: DeserializeOwned>(&self, key: &[u8]) -> Result<Option<T>, Failure> {
        let value = self.client.get(key).map_err(|error| cannot("hear", &error))?;
        let Some(value) = value else { return Ok(None) };
        let read = serde_json::from_slice(&value);
        read.map(Some).map_err(|error| {
            let key = String::from_utf8_lossy(key);
            Failure::operation(format!(
                "`{key}` is not what this version writes there ({error}); remove it, or choose \
                 another --join-name"
            ))
        })
    }
}

fn json(value: &impl Serialize) -> Result<Vec<u8>, Failure> {
    serde_json::to_vec(value)
        .map_err(|error| Failure::operation(format!("cannot write a page: {error}")))
}

fn cannot(what: &str, error: &impl fmt::Display) -> Failure {
    Failure::operation(format!("cannot {what} at the meeting of the drivers: {error}"))
}
