//! Memory that a NIC can access. The memory is registered as long as its value lives.

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

/// The owner of the memory that is registered.
enum MemoryBacking {
    /// The pool of a memory node.
    Pool(#[allow(dead_code, reason = "kept mapped")] Pool),
    /// The arena of a session's queue pair.
    Arena(Mapping),
}

/// Memory that is registered with a NIC.
pub(crate) struct RegisteredMemory {
    mr: NonNull<Mr>,
    device: Arc<Device>,
    // Fields drop after `drop` has ended the registration.
    memory: MemoryBacking,
    start: u64,
}

// SAFETY: registered memory belongs to no thread, and `mr` is only read.
unsafe impl Send for RegisteredMemory {}
// SAFETY: as for `Send`.
unsafe impl Sync for RegisteredMemory {}

impl fmt::Debug for RegisteredMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Registered").field("device", &self.device).finish()
    }
}

impl RegisteredMemory {
    /// Registers the part of a pool behind the header. Sessions with the RDMA key can READ, WRITE, CAS and FAA that
    /// part.
    ///
    /// # Panics
    /// If the pool is shorter than a header.
    pub(crate) fn pool(device: &Arc<Device>, pool: &Pool) -> Result<RegisteredMemory, RdmaError> {
        let access = ffi::ACCESS_LOCAL_WRITE
            | ffi::ACCESS_REMOTE_READ
            | ffi::ACCESS_REMOTE_WRITE
            | ffi::ACCESS_REMOTE_ATOMIC;
        RegisteredMemory::lent(device, pool, access)
    }

    /// Registers the part of a pool behind the header, like `pool`, but with an RDMA key that allows READs only.
    ///
    /// # Panics
    /// If the pool is shorter than a header.
    pub(crate) fn steered(
        device: &Arc<Device>,
        pool: &Pool,
    ) -> Result<RegisteredMemory, RdmaError> {
        RegisteredMemory::lent(device, pool, ffi::ACCESS_REMOTE_READ)
    }

    fn lent(
        device: &Arc<Device>,
        pool: &Pool,
        access: c_uint,
    ) -> Result<RegisteredMemory, RdmaError> {
        let (start, bytes) = pool.pin();
        let header_bytes = POOL_HEADER_BYTES as usize;
        let lent = bytes.checked_sub(header_bytes).expect("a pool is longer than its header");
        let start = start.wrapping_add(header_bytes);
        RegisteredMemory::new(device, MemoryBacking::Pool(pool.clone()), start, lent, access)
    }

    /// Registers the header of a pool, with an RDMA key that allows READs only.
    pub(crate) fn header(device: &Arc<Device>, pool: &Pool) -> Result<RegisteredMemory, RdmaError> {
        let (start, _) = pool.pin();
        RegisteredMemory::new(
            device,
            MemoryBacking::Pool(pool.clone()),
            start,
            POOL_HEADER_BYTES as usize,
            ffi::ACCESS_REMOTE_READ,
        )
    }

    /// Allocates memory and registers it for this machine's NIC, without access by other machines.
    pub(crate) fn arena(device: &Arc<Device>, bytes: usize) -> Result<RegisteredMemory, RdmaError> {
        let mapping = Mapping::anonymous(bytes).map_err(|error| RdmaError::Register {
            device: device.name.clone(),
            bytes: bytes as u64,
            cause: error.to_string(),
        })?;
        let start = mapping.start();
        RegisteredMemory::new(
            device,
            MemoryBacking::Arena(mapping),
            start,
            bytes,
            ffi::ACCESS_LOCAL_WRITE,
        )
    }

    fn new(
        device: &Arc<Device>,
        memory: MemoryBacking,
        start: *mut u8,
        bytes: usize,
        access: c_uint,
    ) -> Result<RegisteredMemory, RdmaError> {
        // SAFETY: the range is mapped, and stays mapped until `memory` is dropped, after the registration has
        // ended.
        let mr = unsafe {
            (device.library.reg_mr)(device.pd.as_ptr(), start.cast(), bytes, access as c_int)
        };
        let mr = NonNull::new(mr).ok_or_else(|| RdmaError::Register {
            device: device.name.clone(),
            bytes: bytes as u64,
            cause: io::Error::last_os_error().to_string(),
        })?;
        Ok(RegisteredMemory { mr, device: device.clone(), memory, start: start as u64 })
    }

    /// Returns the start address of the memory, as the NIC uses it.
    pub(crate) fn base(&self) -> u64 {
        self.start
    }

    /// Returns the RDMA key for other machines (rkey).
    pub(crate) fn remote_key(&self) -> u32 {
        // SAFETY: the registration is alive until this value is dropped.
        unsafe { self.mr.as_ref() }.rkey
    }

    /// Returns the key for this machine's NIC (lkey).
    pub(crate) fn local_key(&self) -> u32 {
        // SAFETY: the registration is alive until this value is dropped.
        unsafe { self.mr.as_ref() }.lkey
    }

    /// Returns the arena's first byte.
    pub(crate) fn arena_start(&self) -> *mut u8 {
        match &self.memory {
            MemoryBacking::Arena(mapping) => mapping.start(),
            MemoryBacking::Pool(_) => unreachable!("a pool is accessed through its own functions"),
        }
    }
}

impl Drop for RegisteredMemory {
    fn drop(&mut self) {
        // SAFETY: this value made the registration. Queue pairs that could use it are destroyed or have no key to
        // it.
        let result = unsafe { (self.device.library.dereg_mr)(self.mr.as_ptr()) };
        if result != 0 {
            tracing::error!(device = self.device.name, result, "cannot end a registration");
        }
    }
}
