//! Memory that a card may reach: registered as long as the value lives.

use std::ffi::{c_int, c_uint};
use std::fmt;
use std::io;
use std::ptr::NonNull;
use std::sync::Arc;

use fusee_core::layout::POOL_HEADER_BYTES;

use super::Device;
use crate::error::RdmaError;
use crate::pool::Pool;
use crate::sys::Mapping;
use crate::verbs::ffi::{self, Mr};

/// What memory is registered.
enum Memory {
    /// A memory node's; sessions reach it.
    Pool(#[allow(dead_code, reason = "kept mapped")] Pool),
    /// A session's own.
    Arena(Mapping),
}

/// Memory that a card may reach.
pub(crate) struct Registered {
    mr: NonNull<Mr>,
    device: Arc<Device>,
    // After the registration has ended.
    memory: Memory,
    start: u64,
}

// SAFETY: registered memory belongs to no thread, and its key is only read.
unsafe impl Send for Registered {}
// SAFETY: as above.
unsafe impl Sync for Registered {}

impl fmt::Debug for Registered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Registered").field("device", &self.device).finish()
    }
}

impl Registered {
    /// What a pool holds behind its header, for sessions that have its key.
    ///
    /// # Panics
    /// If the pool is no longer than a header.
    pub(crate) fn pool(device: &Arc<Device>, pool: &Pool) -> Result<Registered, RdmaError> {
        let access = ffi::ACCESS_LOCAL_WRITE
            | ffi::ACCESS_REMOTE_READ
            | ffi::ACCESS_REMOTE_WRITE
            | ffi::ACCESS_REMOTE_ATOMIC;
        Registered::lent(device, pool, access)
    }

    /// The same memory once more, under a key of its own, by which it can only be READ.
    ///
    /// # Panics
    /// As for `pool`.
    pub(crate) fn steered(device: &Arc<Device>, pool: &Pool) -> Result<Registered, RdmaError> {
        Registered::lent(device, pool, ffi::ACCESS_REMOTE_READ)
    }

    fn lent(device: &Arc<Device>, pool: &Pool, access: c_uint) -> Result<Registered, RdmaError> {
        let (start, bytes) = pool.pin();
        let header_bytes = POOL_HEADER_BYTES as usize;
        let lent = bytes.checked_sub(header_bytes).expect("a pool is longer than its header");
        let range = (start.wrapping_add(header_bytes), lent);
        Registered::new(device, Memory::Pool(pool.clone()), range, access)
    }

    /// The header of a pool, which its key allows to read.
    pub(crate) fn header(device: &Arc<Device>, pool: &Pool) -> Result<Registered, RdmaError> {
        let range = (pool.pin().0, POOL_HEADER_BYTES as usize);
        Registered::new(device, Memory::Pool(pool.clone()), range, ffi::ACCESS_REMOTE_READ)
    }

    /// Fresh memory, for nobody but the card of this machine.
    pub(crate) fn arena(device: &Arc<Device>, bytes: usize) -> Result<Registered, RdmaError> {
        let mapping = Mapping::anonymous(bytes).map_err(|error| RdmaError::Register {
            device: device.name.clone(),
            bytes: bytes as u64,
            cause: error.to_string(),
        })?;
        let start = mapping.start();
        Registered::new(device, Memory::Arena(mapping), (start, bytes), ffi::ACCESS_LOCAL_WRITE)
    }

    fn new(
        device: &Arc<Device>,
        memory: Memory,
        (start, bytes): (*mut u8, usize),
        access: c_uint,
    ) -> Result<Registered, RdmaError> {
        // SAFETY: the range is mapped, and stays so until `memory` is dropped, after the registration.
        let mr = unsafe {
            (device.library.reg_mr)(device.pd.as_ptr(), start.cast(), bytes, access as c_int)
        };
        let mr = NonNull::new(mr).ok_or_else(|| RdmaError::Register {
            device: device.name.clone(),
            bytes: bytes as u64,
            cause: io::Error::last_os_error().to_string(),
        })?;
        Ok(Registered { mr, device: device.clone(), memory, start: start as u64 })
    }

    /// Where it starts, as the card counts.
    pub(crate) fn base(&self) -> u64 {
        self.start
    }

    /// The key for other machines.
    pub(crate) fn remote_key(&self) -> u32 {
        // SAFETY: registered until the drop.
        unsafe { self.mr.as_ref() }.rkey
    }

    /// The key for this machine's card.
    pub(crate) fn local_key(&self) -> u32 {
        // SAFETY: registered until the drop.
        unsafe { self.mr.as_ref() }.lkey
    }

    /// The arena's first byte.
    pub(crate) fn arena_start(&self) -> *mut u8 {
        match &self.memory {
            Memory::Arena(mapping) => mapping.start(),
            Memory::Pool(_) => unreachable!("a pool is accessed through its own functions"),
        }
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        // SAFETY: registered by us; queue pairs that could reach it are gone or have no key to it.
        let result = unsafe { (self.device.library.dereg_mr)(self.mr.as_ptr()) };
        if result != 0 {
            tracing::error!(device = self.device.name, result, "cannot end a registration");
        }
    }
}
