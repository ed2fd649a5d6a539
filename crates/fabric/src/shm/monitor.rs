//! The thread of a client process that watches the process's memory nodes and carries out their fences.
//!
//! Mapped memory does not fail when the node that lent it dies. One thread of the process waits for the ends of the
//! sessions' connections, and shuts the gate of a session whose node has ended. So the path of a verb needs no
//! system call to notice the end.
//!
//! A node that fences a session sends a message on the session's connection. The monitor shuts the gate, waits
//! until the session is outside, and says goodbye. From then on none of the session's verbs executes. The rest of
//! the process goes on. If the monitor cannot say goodbye in time, the node kills the process.
//!
//! A forked child has no such thread, and starts one with its first session.

use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream as StdStream;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use fusee_core::verbs::ClientId;
use mio::net::UnixStream;
use mio::{Events, Interest, Poll, Registry, Token};

use super::gate::{Gate, GateShutReason};
use super::wire::{FENCED, GOODBYE};
use crate::fork::PerProcess;

static MONITOR: PerProcess<LazyMonitor> = PerProcess::new();

/// The monitor of a process; empty before it is started.
#[derive(Default)]
struct LazyMonitor {
    start: Mutex<()>,
    monitor: OnceLock<Monitor>,
}

struct Monitor {
    registry: Registry,
    watched: Mutex<MonitoredSessions>,
}

#[derive(Default)]
struct MonitoredSessions {
    next: usize,
    sessions: HashMap<Token, MonitoredSession>,
}

/// A session with a memory node of another process.
struct MonitoredSession {
    socket: UnixStream,
    client: ClientId,
    gate: Arc<Gate>,
}

/// A connection under watch. Dropping it says goodbye to the node, so the session must be unable to execute verbs
/// by then.
#[derive(Debug)]
pub(super) struct MonitorGuard(Token);

/// Watches a connection: shuts the gate when the memory node closes the connection or fences the client. If the
/// watch cannot be set up, says goodbye.
pub(super) fn watch(
    socket: UnixStream,
    client: ClientId,
    gate: Arc<Gate>,
) -> io::Result<MonitorGuard> {
    let mut session = MonitoredSession { socket, client, gate };
    let registered = monitor().and_then(|monitor| {
        let mut watched = monitor.watched();
        let token = Token(watched.next);
        watched.next += 1;
        monitor.registry.register(&mut session.socket, token, Interest::READABLE)?;
        Ok((watched, token))
    });
    match registered {
        Ok((mut watched, token)) => {
            watched.sessions.insert(token, session);
            Ok(MonitorGuard(token))
        }
        Err(error) => {
            session.say_goodbye();
            Err(error)
        }
    }
}

impl MonitoredSession {
    /// Says goodbye. Returns whether the connection accepted the message.
    fn say_goodbye(&mut self) -> bool {
        self.socket.write_all(&[GOODBYE]).is_ok()
    }
}

impl MonitorGuard {
    /// Says goodbye. Returns the connection, which the node closes when it has received the message.
    pub(super) fn end_session(self) -> Option<StdStream> {
        self.end().map(StdStream::from)
    }

    fn end(&self) -> Option<UnixStream> {
        let mut session = MONITOR.get().monitor.get()?.watched().sessions.remove(&self.0)?;
        session.say_goodbye().then_some(session.socket)
    }
}

impl Drop for MonitorGuard {
    fn drop(&mut self) {
        self.end();
    }
}

fn monitor() -> io::Result<&'static Monitor> {
    let place = MONITOR.get();
    let _one_at_a_time = place.start.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(monitor) = place.monitor.get() {
        return Ok(monitor);
    }
    let poll = Poll::new()?;
    let monitor = Monitor { registry: poll.registry().try_clone()?, watched: Mutex::default() };
    std::thread::Builder::new()
        .name("fusee-monitor".into())
        .spawn(move || run(poll, place.monitor.wait()))?;
    Ok(place.monitor.get_or_init(|| monitor))
}

fn run(mut poll: Poll, monitor: &Monitor) {
    let mut events = Events::with_capacity(64);
    loop {
        match poll.poll(&mut events, None) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            // Without the monitor no session would learn of the loss of a node, so all gates are shut.
            Err(error) => {
                let shut = |session: &MonitoredSession| session.gate.shut(GateShutReason::Gone);
                monitor.watched().sessions.values().for_each(shut);
                tracing::error!(%error, "cannot watch memory nodes any more");
                return;
            }
            Ok(()) => {}
        }
        let mut fenced = Vec::new();
        let mut watched = monitor.watched();
        for event in &events {
            let Some(session) = watched.sessions.get_mut(&event.token()) else { continue };
            match read_event(&mut session.socket) {
                None => {}
                Some(MonitorEvent::Fenced) => {
                    session.gate.shut(GateShutReason::Fenced);
                    fenced.extend(watched.sessions.remove(&event.token()));
                }
                Some(MonitorEvent::Gone) => {
                    session.gate.shut(GateShutReason::Gone);
                    watched.sessions.remove(&event.token());
                }
            }
        }
        drop(watched);
        // The lock is released first, because a thread inside a gate can be about to take it.
        let parted: Vec<ClientId> = fenced.into_iter().filter_map(leave_fenced_session).collect();
        if !parted.is_empty() {
            // The log can block, and the fences of other sessions must not wait for it. If no thread can be
            // started, nothing is logged, but the session's next verb fails as fenced.
            let say = || parted.into_iter().for_each(say_fenced);
            let _ = std::thread::Builder::new().name("fusee-fenced".into()).spawn(say);
        }
    }
}

/// Waits until no verb of a fenced session is inside its shut gate, then says goodbye to the node. Returns the
/// client if the connection accepted the message.
fn leave_fenced_session(mut session: MonitoredSession) -> Option<ClientId> {
    Gate::wait_empty([&*session.gate].into_iter());
    session.say_goodbye().then_some(session.client)
}

fn say_fenced(client: ClientId) {
    tracing::warn!(
        %client,
        "a memory node has fenced this session, since the cluster has taken it for dead: it ends, the process goes on"
    );
}

/// An event on the connection to a memory node.
enum MonitorEvent {
    /// The node has fenced the client.
    Fenced,
    /// The node has ended, or has sent a wrong message.
    Gone,
}

fn read_event(socket: &mut UnixStream) -> Option<MonitorEvent> {
    let mut byte = [0];
    loop {
        return match socket.read(&mut byte) {
            Ok(1) if byte == [FENCED] => Some(MonitorEvent::Fenced),
            Ok(_) => Some(MonitorEvent::Gone),
            Err(error) => match error.kind() {
                io::ErrorKind::Interrupted => continue,
                io::ErrorKind::WouldBlock => None,
                _ => Some(MonitorEvent::Gone),
            },
        };
    }
}

impl Monitor {
    fn watched(&self) -> MutexGuard<'_, MonitoredSessions> {
        self.watched.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
