//! Wrappers of RDMA devices, of memory that the devices can access, and of queue pairs. All wrappers clean up on drop.
//!
//! Every value made from a [`Device`] keeps the device open. A queue pair is destroyed before the memory that its
//! NIC can write to is freed. A [`Responder`] reaches the pool, a `Requester` (in the module `requester`) only its
//! own arena; the owner of each keeps the memory and drops it after the queue pair.

mod completions;
mod memory;
mod queue_pair;

use std::collections::HashMap;
use std::ffi::{CStr, c_int};
use std::fmt;
use std::io;
use std::net::IpAddr;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use super::ffi::{self, GidEntry, Library, Pd, PortAttr, RawContext};
use super::ports::{self, DeviceChoice, Gid, GidKind, Port, SelectedPort};
use crate::error::RdmaError;
use crate::fork::PerProcess;
pub(super) use completions::CompletionQueue;
pub(super) use memory::RegisteredMemory;
pub(super) use queue_pair::{QueuePair, Responder, SendQueueSize};

/// The vendor number of rxe, the kernel's software RoCE. The number stands for no vendor.
const SOFTWARE_VENDOR: u32 = 0xff_ffff;
/// The largest number of READs and atomics in flight on one queue pair.
const MAX_DEPTH: c_int = 128;

/// An open device, with one protection domain for all its objects.
pub(super) struct Device {
    library: &'static Library,
    context: NonNull<RawContext>,
    pd: NonNull<Pd>,
    pub(super) name: String,
    ports: Vec<Port>,
    /// Whether the NIC's atomics and the processor's are atomic with each other.
    pub(super) shares_atomics: bool,
    /// Whether the device is the kernel's software RoCE, which copies bytes, not words.
    pub(super) is_software: bool,
    pub(super) max_verbs: u32,
    /// The numbers of READs and atomics that the device can have in flight: as a session's device, and as a memory
    /// node's.
    depths: (u8, u8),
}

// SAFETY: libibverbs can be called from any thread, and the value holds nothing that is bound to one thread.
unsafe impl Send for Device {}
// SAFETY: as for `Send`.
unsafe impl Sync for Device {}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Device").field("name", &self.name).finish()
    }
}

/// The devices that are open in this process, by name.
static OPEN: PerProcess<Mutex<HashMap<String, Weak<Device>>>> = PerProcess::new();

/// Chooses device, port and address. `near` is the address of this end of the connection to the other party.
pub(super) fn choose(near: Option<IpAddr>) -> Result<(Arc<Device>, SelectedPort), RdmaError> {
    let wanted = DeviceChoice::from_environment()?;
    let devices = all()?;
    let ports: Vec<Port> = devices.iter().flat_map(|device| device.ports.clone()).collect();
    let selected = ports::select(&ports, &wanted, near)?;
    let device = devices.into_iter().find(|device| device.name == selected.port.device);
    let device = device.expect("a port belongs to a device");
    Ok((device, selected))
}

/// A device of this machine for verbs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RdmaDevice {
    /// The device's name.
    pub device: String,
    /// The IP address of the device's port, if the port has one.
    pub address: Option<IpAddr>,
    /// Whether the device is software RoCE (rxe). It copies bytes, so words can tear, and it is good for tests
    /// only.
    pub is_software: bool,
}

/// Returns the device that is used on this machine unless the environment or a connection chooses another one. The
/// error says why there is none.
pub fn default_device() -> Result<RdmaDevice, RdmaError> {
    choose(None).map(|(device, selected)| RdmaDevice {
        device: device.name.clone(),
        address: selected.gid.address(),
        is_software: device.is_software,
    })
}

/// Opens all devices of this machine. Leaves out devices that cannot be opened; if no device can be opened, returns the
/// error.
fn all() -> Result<Vec<Arc<Device>>, RdmaError> {
    let library = ffi::library()?;
    let mut open = OPEN.get().lock().unwrap_or_else(PoisonError::into_inner);
    open.retain(|_, device| device.strong_count() > 0);
    let mut count = 0;
    // SAFETY: the call fills in the count; the list is freed below.
    let list = unsafe { (library.get_device_list)(&raw mut count) };
    if list.is_null() {
        return Err(RdmaError::NoDevice);
    }
    let mut devices = Vec::new();
    let mut failure = None;
    for at in 0..usize::try_from(count).unwrap_or(0) {
        // SAFETY: the list has `count` entries, each of which is a device until the list is freed.
        let (raw, name) = unsafe {
            let raw = *list.add(at);
            (raw, CStr::from_ptr((library.get_device_name)(raw)).to_string_lossy().into_owned())
        };
        let known = open.get(&name).and_then(Weak::upgrade);
        match known.map_or_else(|| Device::open(library, raw, &name).map(Arc::new), Ok) {
            Ok(device) => {
                open.insert(name, Arc::downgrade(&device));
                devices.push(device);
            }
            // The error is returned only if no other device can be used.
            Err(error) => {
                tracing::debug!(%error, "an RDMA device cannot be used");
                failure.get_or_insert(error);
            }
        }
    }
    // SAFETY: the list is not used any more; open devices stay valid without it.
    unsafe { (library.free_device_list)(list) };
    match failure {
        Some(failure) if devices.is_empty() => Err(failure),
        _ => Ok(devices),
    }
}

impl Device {
    fn open(
        library: &'static Library,
        raw: *mut ffi::RawDevice,
        name: &str,
    ) -> Result<Device, RdmaError> {
        let failed = |what, error: io::Error| RdmaError::Call {
            device: name.to_owned(),
            what,
            cause: error.to_string(),
        };
        // SAFETY: the device is in a list that is not freed yet.
        let context = NonNull::new(unsafe { (library.open_device)(raw) })
            .ok_or_else(|| failed("open it", io::Error::last_os_error()))?;
        // SAFETY: the context is open.
        let Some(pd) = NonNull::new(unsafe { (library.alloc_pd)(context.as_ptr()) }) else {
            let error = failed("make a protection domain", io::Error::last_os_error());
            // SAFETY: the context is open, and nothing has been made from it.
            unsafe { (library.close_device)(context.as_ptr()) };
            return Err(error);
        };
        // From here on, dropping `device` cleans up.
        let name = name.to_owned();
        let mut device = Device {
            library,
            context,
            pd,
            name,
            ports: Vec::new(),
            shares_atomics: false,
            is_software: false,
            max_verbs: 0,
            depths: (0, 0),
        };
        // SAFETY: all zeros is a valid value, because the structure consists of plain numbers.
        let mut attr: ffi::DeviceAttr = unsafe { std::mem::zeroed() };
        // SAFETY: the context is open; the structure has the library's length.
        let result = unsafe { (library.query_device)(context.as_ptr(), &raw mut attr) };
        device.check("query it", result)?;
        if attr.atomic_cap == ffi::ATOMIC_NONE {
            return Err(RdmaError::NoAtomics { device: device.name.clone() });
        }
        let depth = |depth: c_int| depth.clamp(1, MAX_DEPTH) as u8;
        device.shares_atomics = attr.atomic_cap == ffi::ATOMIC_GLOB;
        device.is_software = attr.vendor_id == SOFTWARE_VENDOR;
        device.max_verbs = attr.max_qp_wr.min(attr.max_cqe).max(1) as u32;
        device.depths = (depth(attr.max_qp_init_rd_atom), depth(attr.max_qp_rd_atom));
        for number in 1..=attr.phys_port_cnt {
            let port = device.port(number)?;
            device.ports.push(port);
        }
        Ok(device)
    }

    fn port(&self, number: u8) -> Result<Port, RdmaError> {
        // SAFETY: all zeros is a valid value, because the structure consists of plain numbers.
        let mut attr: PortAttr = unsafe { std::mem::zeroed() };
        // SAFETY: the context is open; the library fills in no more than the structure has.
        let result =
            unsafe { (self.library.query_port)(self.context.as_ptr(), number, &raw mut attr) };
        self.check("query a port", result)?;
        let gids = (0..attr.gid_tbl_len.clamp(0, 256) as u32).filter_map(|index| {
            let mut entry = GidEntry::default();
            let context = self.context.as_ptr();
            let port = u32::from(number);
            let bytes = size_of::<GidEntry>();
            // SAFETY: the context is open; the library is told the structure's length.
            let result = unsafe {
                (self.library.query_gid_ex)(context, port, index, &raw mut entry, 0, bytes)
            };
            let kind = match entry.gid_type {
                ffi::GID_IB => GidKind::InfiniBand,
                ffi::GID_ROCE_V1 => GidKind::RoceV1,
                ffi::GID_ROCE_V2 => GidKind::RoceV2,
                _ => return None,
            };
            // For an empty entry, the query fails or returns zeros.
            let is_there = result == 0 && entry.gid != [0; 16];
            is_there.then_some(Gid { index: index as u8, kind, bytes: entry.gid })
        });
        Ok(Port {
            device: self.name.clone(),
            number,
            is_up: attr.state == ffi::PORT_ACTIVE,
            is_ethernet: attr.link_layer == ffi::LINK_LAYER_ETHERNET,
            lid: attr.lid,
            mtu: attr.active_mtu.clamp(1, 5) as u8,
            max_message_bytes: attr.max_msg_sz,
            gids: gids.collect(),
        })
    }

    /// Turns an error number of the library into an error.
    fn check(&self, what: &'static str, result: c_int) -> Result<(), RdmaError> {
        // Some calls return the error number, some its negative, and some -1 with the number in errno.
        let cause = match result {
            0 => return Ok(()),
            -1 => io::Error::last_os_error(),
            number => io::Error::from_raw_os_error(number.abs()),
        };
        Err(RdmaError::Call { device: self.name.clone(), what, cause: cause.to_string() })
    }

    fn last_error(&self, what: &'static str) -> RdmaError {
        let cause = io::Error::last_os_error().to_string();
        RdmaError::Call { device: self.name.clone(), what, cause }
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // SAFETY: every value made from the device held an `Arc` of the device, so all were dropped before.
        let results = unsafe {
            [
                (self.library.dealloc_pd)(self.pd.as_ptr()),
                (self.library.close_device)(self.context.as_ptr()),
            ]
        };
        if results != [0; 2] {
            tracing::error!(device = self.name, ?results, "cannot close an RDMA device");
        }
    }
}
