//! The thread that carries control messages.
//!
//! Connections, their timers and the servers run on this thread, so a caller needs no runtime of its own: it can await
//! a call under any executor, or block on it. The runtime and its thread end when the last clone of [`Runtime`] is
//! dropped. Clients and servers do not keep the runtime alive, because a task that holds a client would then keep its
//! own runtime from ending. After the end, calls fail with `RpcError::Closed`.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use fusee_auth::Keyring;
use fusee_tls::TlsSettings;
use tokio::runtime::{Builder, Handle};

/// The time for which the end of a runtime waits for work that cannot be interrupted.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);

/// The thread that carries control messages, with the keys and certificates for its connections.
#[derive(Clone, Debug)]
pub struct Runtime {
    owned: Arc<OwnedRuntime>,
    trust: RpcCredentials,
}

/// The keys and certificates by which connections prove their identity, and check their peers.
#[derive(Clone, Debug, Default)]
pub(super) struct RpcCredentials {
    pub(super) keys: Option<Arc<Keyring>>,
    pub(super) tls: Option<TlsSettings>,
}

#[derive(Debug)]
struct OwnedRuntime {
    runtime: Option<tokio::runtime::Runtime>,
}

impl Runtime {
    /// Starts the thread. Debuggers and `/proc` show it under `name`.
    pub fn start(name: &str) -> io::Result<Runtime> {
        Runtime::with_keys(name, None)
    }

    /// Starts the thread. If there are keys, all connections prove that they have them, and demand the same of their
    /// peers.
    pub fn with_keys(name: &str, keys: Option<Keyring>) -> io::Result<Runtime> {
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name(name)
            .enable_io()
            .enable_time()
            .build()?;
        let owned = Arc::new(OwnedRuntime { runtime: Some(runtime) });
        Ok(Runtime { owned, trust: RpcCredentials { keys: keys.map(Arc::new), tls: None } })
    }

    /// Sets the certificates. All outgoing connections then use TLS, and a server demands TLS of all incoming ones.
    pub fn with_tls(mut self, tls: Option<TlsSettings>) -> Runtime {
        self.trust.tls = tls;
        self
    }

    /// Returns the keys of the runtime's connections.
    pub fn keys(&self) -> Option<&Arc<Keyring>> {
        self.trust.keys.as_ref()
    }

    /// Returns the certificates of the runtime's connections.
    pub fn tls(&self) -> Option<&TlsSettings> {
        self.trust.tls.as_ref()
    }

    pub(super) fn trust(&self) -> &RpcCredentials {
        &self.trust
    }

    /// Returns the handle by which tasks are spawned.
    pub fn handle(&self) -> &Handle {
        let runtime = self.owned.runtime.as_ref();
        runtime.expect("only the end of the last clone takes the runtime").handle()
    }

    /// Blocks the calling thread until a future is ready.
    ///
    /// # Panics
    /// If the calling thread belongs to an async runtime.
    pub fn block_on<F: Future>(&self, future: F) -> F::Output {
        self.handle().block_on(future)
    }
}

impl Drop for OwnedRuntime {
    fn drop(&mut self) {
        let Some(runtime) = self.runtime.take() else { return };
        // A runtime must not wait for itself, so a task that drops the last clone does not wait.
        if Handle::try_current().is_ok() {
            runtime.shutdown_background();
        } else {
            runtime.shutdown_timeout(STOP_TIMEOUT);
        }
    }
}
