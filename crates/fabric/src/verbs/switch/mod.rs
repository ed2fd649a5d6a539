//! A switch on a wire between NICs. It forwards RoCE v2 between two interfaces of this machine.
//!
//! Frames that come in at one interface leave at the other one unchanged, except steered READs, whose address and
//! checksum change. So the switch is invisible to other traffic on the wire. When the switch ends, the wire is cut.
//! `packet` decodes frames, `icrc` computes checksums, `connection_table` keeps the connections.

mod connection_table;
mod icrc;
pub(crate) mod packet;

use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use fusee_switch::{ForgetScope, Switch, SwitchConnection, SwitchCounts, SwitchMemory};
use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token, Waker};

use crate::error::ServeError;
use crate::sys;
use connection_table::{FrameDecision, RoceConnectionTable};

/// The time between two looks at a held frame. After `HELD_TIMES` looks the frame is forwarded in any case, long before
/// NICs repeat a request.
const HELD: Duration = Duration::from_micros(50);
const HELD_TIMES: u32 = 20;
/// The largest number of frames held on one connection, and of connections with held frames. A connection that reaches
/// the former gets all its frames forwarded; further connections get no frame held.
const HELD_FRAMES: usize = 64;
const HELD_CONNECTIONS: usize = 64;
/// The number of frames taken from one side before the other side gets its turn.
const AT_ONCE: usize = 64;
/// The length in bytes of the system's header before each frame. It says which checksums are still to be computed,
/// and which segments still to be cut.
const OFFLOADS: usize = sys::OFFLOAD_BYTES;
/// The length in bytes of the longest frame, including frames that a NIC would still have to cut.
const FRAME_BYTES: usize = (64 << 10) + OFFLOADS + 256;
const WAKER: Token = Token(2);

/// The point at which a test damages a frame.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TamperStage {
    /// The frame has arrived, and the switch has not seen it.
    Came,
    /// The switch has handled the frame.
    Goes,
}

/// A function that damages frames, for tests.
#[doc(hidden)]
pub type Tamper = dyn FnMut(&mut [u8], TamperStage) + Send;

/// A running switch on a wire. Dropping it cuts the wire.
pub struct WireSwitch {
    shared: Arc<WireSwitchShared>,
    waker: Waker,
    thread: Option<JoinHandle<()>>,
}

struct WireSwitchShared {
    path: Mutex<RoceConnectionTable>,
    lost: AtomicU64,
    is_over: AtomicBool,
}

impl WireSwitchShared {
    fn path(&self) -> MutexGuard<'_, RoceConnectionTable> {
        self.path.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl WireSwitch {
    /// Puts a switch between two network interfaces, given by name. Needs the capability `CAP_NET_RAW`.
    pub fn start(
        interfaces: [&str; 2],
        switch: Box<dyn Switch + Send>,
    ) -> Result<WireSwitch, ServeError> {
        WireSwitch::start_tampering(interfaces, switch, Box::new(|_, _| ()))
    }

    /// Starts a switch like `start`, whose frames `tamper` damages.
    #[doc(hidden)]
    pub fn start_tampering(
        interfaces: [&str; 2],
        switch: Box<dyn Switch + Send>,
        tamper: Box<Tamper>,
    ) -> Result<WireSwitch, ServeError> {
        let open = |interface: &str| {
            let io = |source| ServeError::Io { at: interface.to_owned(), source };
            sys::packet_socket(interface).map(File::from).map_err(io)
        };
        let sides = [open(interfaces[0])?, open(interfaces[1])?];
        let io = |source| ServeError::Io { at: "this host".to_owned(), source };
        let poll = Poll::new().map_err(io)?;
        for (token, side) in sides.iter().enumerate() {
            let fd = side.as_raw_fd();
            let registry = poll.registry();
            registry.register(&mut SourceFd(&fd), Token(token), Interest::READABLE).map_err(io)?;
        }
        let waker = Waker::new(poll.registry(), WAKER).map_err(io)?;
        let shared = Arc::new(WireSwitchShared {
            path: Mutex::new(RoceConnectionTable::new(switch)),
            lost: AtomicU64::new(0),
            is_over: AtomicBool::new(false),
        });
        let wire = WireSwitchLoop { sides, shared: shared.clone(), held: BTreeMap::new(), tamper };
        let spawned =
            thread::Builder::new().name("fusee-wire".into()).spawn(move || wire.run(poll));
        Ok(WireSwitch { shared, waker, thread: Some(spawned.map_err(io)?) })
    }

    /// Returns the counts of the switch's work so far.
    pub fn counts(&self) -> SwitchCounts {
        self.shared.path().switch().counts()
    }

    /// Returns the memory that the switch's knowledge takes.
    pub fn bytes(&self) -> SwitchMemory {
        let mut path = self.shared.path();
        let bytes = path.switch().bytes();
        SwitchMemory { connections: bytes.connections + path.bytes(), ..bytes }
    }

    /// Returns the number of known connections between queue pairs. The switch has observed the beginning of each,
    /// and not the end.
    pub fn connections(&self) -> usize {
        self.shared.path().connections()
    }

    /// Returns the number of frames that an interface did not accept.
    pub fn lost(&self) -> u64 {
        self.shared.lost.load(Ordering::Relaxed)
    }

    /// Makes the switch forget all that it knows of slots and writes.
    pub fn forget(&self) {
        self.shared.path().switch().forget(ForgetScope::All);
    }
}

impl Drop for WireSwitch {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::Relaxed);
        if let Err(error) = self.waker.wake() {
            tracing::warn!(%error, "cannot end the switch on the wire");
            return;
        }
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// A frame with the system's header before it, and the side at which it came in.
struct WireFrame {
    from: usize,
    bytes: Vec<u8>,
}

/// The state of the switch's thread.
struct WireSwitchLoop {
    sides: [File; 2],
    shared: Arc<WireSwitchShared>,
    /// For each connection with held frames: the number of looks at the first frame, and all held frames in order.
    held: BTreeMap<SwitchConnection, (u32, VecDeque<WireFrame>)>,
    tamper: Box<Tamper>,
}

impl WireSwitchLoop {
    fn run(mut self, mut poll: Poll) {
        let mut events = Events::with_capacity(8);
        let mut buffer = vec![0; FRAME_BYTES];
        let mut again = Instant::now();
        // For each side of the wire, whether its interface possibly has more frames.
        let mut full = [false; 2];
        while !self.shared.is_over.load(Ordering::Relaxed) {
            let wait = match (full.contains(&true), self.held.is_empty()) {
                (true, _) => Some(Duration::ZERO),
                (false, false) => Some(HELD),
                (false, true) => None,
            };
            if let Err(error) = poll.poll(&mut events, wait)
                && error.kind() != io::ErrorKind::Interrupted
            {
                tracing::error!(%error, "the switch on the wire stops");
                return;
            }
            for event in events.iter().filter(|event| event.token() != WAKER) {
                full[event.token().0] = true;
            }
            for (from, full) in full.iter_mut().enumerate() {
                *full = *full && self.take(from, &mut buffer);
            }
            if !self.held.is_empty() && again.elapsed() >= HELD {
                again = Instant::now();
                self.ask_again();
            }
        }
    }

    /// Takes frames that have come in at a side. Returns whether more frames are possibly there.
    fn take(&mut self, from: usize, buffer: &mut [u8]) -> bool {
        for _ in 0..AT_ONCE {
            match self.sides[from].read(buffer) {
                Ok(len) if len > OFFLOADS => self.came(from, &mut buffer[..len]),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return false,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // The interface is possibly down, and can come up again.
                Err(error) => {
                    tracing::warn!(%error, "an interface of the wire");
                    thread::sleep(Duration::from_secs(1));
                    return true;
                }
            }
        }
        true
    }

    fn came(&mut self, from: usize, bytes: &mut [u8]) {
        (self.tamper)(&mut bytes[OFFLOADS..], TamperStage::Came);
        let shared = self.shared.clone();
        let mut path = shared.path();
        if !self.held.is_empty()
            && let Some(connection) = path.connection(&bytes[OFFLOADS..])
            && let Some((_, waiting)) = self.held.get_mut(&connection)
        {
            waiting.push_back(WireFrame { from, bytes: bytes.to_vec() });
            if waiting.len() == HELD_FRAMES {
                self.go_on(&mut path, connection, true);
            }
            return;
        }
        match path.pass(&mut bytes[OFFLOADS..]) {
            FrameDecision::Waits if self.held.len() < HELD_CONNECTIONS => {
                let connection = path.connection(&bytes[OFFLOADS..]).expect("it has just waited");
                let frame = WireFrame { from, bytes: bytes.to_vec() };
                self.held.insert(connection, (0, [frame].into()));
            }
            FrameDecision::On | FrameDecision::Waits => self.send(from, bytes),
        }
    }

    /// Asks the switch about the held frames again.
    fn ask_again(&mut self) {
        let shared = self.shared.clone();
        let mut path = shared.path();
        let held: Vec<SwitchConnection> = self.held.keys().copied().collect();
        for connection in held {
            let (times, _) = self.held.get_mut(&connection).expect("it is held");
            *times += 1;
            let is_enough = *times == HELD_TIMES;
            self.go_on(&mut path, connection, is_enough);
        }
    }

    /// Sends the frames held on a connection, up to the next frame that has to wait, or all of them if `all` is
    /// true.
    fn go_on(&mut self, path: &mut RoceConnectionTable, connection: SwitchConnection, all: bool) {
        let Some((times, mut waiting)) = self.held.remove(&connection) else { return };
        let mut times = times;
        while let Some(mut frame) = waiting.pop_front() {
            if path.pass(&mut frame.bytes[OFFLOADS..]) == FrameDecision::Waits && !all {
                waiting.push_front(frame);
                self.held.insert(connection, (times, waiting));
                return;
            }
            times = 0;
            self.send(frame.from, &mut frame.bytes);
        }
    }

    fn send(&mut self, from: usize, bytes: &mut [u8]) {
        (self.tamper)(&mut bytes[OFFLOADS..], TamperStage::Goes);
        // Like any network, this wire can lose frames, and NICs repeat them.
        if let Err(error) = self.sides[1 - from].write(bytes) {
            self.shared.lost.fetch_add(1, Ordering::Relaxed);
            tracing::debug!(%error, "a frame is lost");
        }
    }
}
