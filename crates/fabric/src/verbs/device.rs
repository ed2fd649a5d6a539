//! Devices, memory that they may reach, and queue pairs, as values that clean up after themselves.
//!
//! Who makes something from a [`Device`] keeps it open. A queue pair is destroyed before the memory that
//! its card may write to is given back: [`Responder`] reaches the pool, `Requester` (in the module
//! `requester`) its own arena only, and each of them owns what it reaches.

use std::collections::HashMap;
use std::ffi::{CStr, c_int, c_uint};
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::net::IpAddr;
use std::ptr::{self, NonNull};
use std::sync::{Arc, LazyLock, Mutex, PoisonError, Weak};

use fusee_core::layout::POOL_HEADER_BYTES;

use super::ffi::{self, Context, Cq, GidEntry, Library, Mr, Pd, PortAttr, Qp};
use super::ports::{self, Gid, GidKind, Port, Selected, Wanted};
use super::wire::Address;
use crate::error::RdmaError;
use crate::pool::Pool;
use crate::sys::Mapping;

/// A session's card repeats what is not acknowledged after 4.096 µs · 2^15, 134 ms, or up to four times
/// that (IBTA vol. 1, 9.7.6.1.3)...
const TIMEOUT: u8 = 15;
/// ...so many times. So a verb executes within 0.9 to 3.8 s or never. Not 7: some take that for ever.
const RETRIES: u8 = 6;
/// Routers that a packet may pass.
const HOPS: u8 = 64;
/// The vendor that rxe, the kernel's software RoCE, gives for itself: it has none.
const SOFTWARE_VENDOR: u32 = 0xff_ffff;
/// READs and atomics under way on one queue pair, at most.
const MAX_DEPTH: c_int = 128;

/// An open device, with one protection domain for all that is made from it.
pub(super) struct Device {
    library: &'static Library,
    context: NonNull<Context>,
    pd: NonNull<Pd>,
    pub(super) name: String,
    ports: Vec<Port>,
    /// Whether its atomics and the processor's see each other.
    pub(super) shares_atomics: bool,
    /// Whether it is the kernel's software RoCE, which copies bytes, not words.
    pub(super) is_software: bool,
    pub(super) max_verbs: u32,
    /// READs and atomics that it can have under way as a session's, and as a memory node's.
    depths: (u8, u8),
}

// SAFETY: libibverbs may be called from any thread; what one thread only may use is not in here.
unsafe impl Send for Device {}
// SAFETY: as above.
unsafe impl Sync for Device {}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Device").field("name", &self.name).finish()
    }
}

/// The devices that are open in this process.
static OPEN: LazyLock<Mutex<HashMap<String, Weak<Device>>>> = LazyLock::new(Mutex::default);

/// The device, port and address to use; `near` is this end of the connection to the other party.
pub(super) fn choose(near: Option<IpAddr>) -> Result<(Arc<Device>, Selected), RdmaError> {
    let wanted = Wanted::from_environment()?;
    let devices = all()?;
    let ports: Vec<Port> = devices.iter().flat_map(|device| device.ports.clone()).collect();
    let selected = ports::select(&ports, &wanted, near)?;
    let device = devices.into_iter().find(|device| device.name == selected.port.device);
    let device = device.expect("a port belongs to a device");
    Ok((device, selected))
}

/// What a machine has for verbs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// The device's name.
    pub device: String,
    /// The IP address of its port, if it has one.
    pub address: Option<IpAddr>,
    /// It is software RoCE (rxe): good for tests. It copies bytes, so that words may tear.
    pub is_software: bool,
}

/// What is used on this machine unless something else is near or wanted; the error says why nothing is.
pub fn default_device() -> Result<Found, RdmaError> {
    choose(None).map(|(device, selected)| Found {
        device: device.name.clone(),
        address: selected.gid.address(),
        is_software: device.is_software,
    })
}

/// All devices, opened.
fn all() -> Result<Vec<Arc<Device>>, RdmaError> {
    let library = ffi::library()?;
    let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
    open.retain(|_, device| device.strong_count() > 0);
    let mut count = 0;
    // SAFETY: the call fills in the count; the list is freed below.
    let list = unsafe { (library.get_device_list)(&raw mut count) };
    if list.is_null() {
        return Err(RdmaError::NoDevice);
    }
    let (mut devices, mut failure) = (Vec::new(), None);
    for at in 0..usize::try_from(count).unwrap_or(0) {
        // SAFETY: the list has `count` entries, and each is a device while the list is not freed.
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
            // Another one may do.
            Err(error) => {
                tracing::debug!(%error, "an RDMA device cannot be used");
                failure.get_or_insert(error);
            }
        }
    }
    // SAFETY: open devices stay valid without the list.
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
        // SAFETY: the device is in a list that is alive.
        let context = NonNull::new(unsafe { (library.open_device)(raw) })
            .ok_or_else(|| failed("open it", io::Error::last_os_error()))?;
        // SAFETY: the context is open.
        let Some(pd) = NonNull::new(unsafe { (library.alloc_pd)(context.as_ptr()) }) else {
            let error = failed("make a protection domain", io::Error::last_os_error());
            // SAFETY: nothing has been made from it.
            unsafe { (library.close_device)(context.as_ptr()) };
            return Err(error);
        };
        // From here on its drop cleans up.
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
        // SAFETY: all zeros is a valid value of plain numbers.
        let mut attr: ffi::DeviceAttr = unsafe { std::mem::zeroed() };
        // SAFETY: the context is open; the structure is as long as the library's.
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
        // SAFETY: all zeros is a valid value of plain numbers.
        let mut attr: PortAttr = unsafe { std::mem::zeroed() };
        // SAFETY: the context is open; the library fills in no more than the structure has.
        let result =
            unsafe { (self.library.query_port)(self.context.as_ptr(), number, &raw mut attr) };
        self.check("query a port", result)?;
        let gids = (0..attr.gid_tbl_len.clamp(0, 256) as u32).filter_map(|index| {
            let mut entry = GidEntry::default();
            let (context, port) = (self.context.as_ptr(), u32::from(number));
            let bytes = size_of::<GidEntry>();
            // SAFETY: the context is open; the library is told how long the structure is.
            let result = unsafe {
                (self.library.query_gid_ex)(context, port, index, &raw mut entry, 0, bytes)
            };
            let kind = match entry.gid_type {
                ffi::GID_IB => GidKind::InfiniBand,
                ffi::GID_ROCE_V1 => GidKind::RoceV1,
                ffi::GID_ROCE_V2 => GidKind::RoceV2,
                _ => return None,
            };
            // Empty entries are errors, or zeros.
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

    /// Turns the library's error numbers into errors.
    fn check(&self, what: &'static str, result: c_int) -> Result<(), RdmaError> {
        // Some calls give the number, some its negative, and some -1 and leave it in errno.
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
        // SAFETY: whatever was made from it held an `Arc` of it, and has gone.
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

/// What memory is registered.
enum Memory {
    /// A memory node's; sessions reach it.
    Pool(#[allow(dead_code, reason = "kept mapped")] Pool),
    /// A session's own.
    Arena(Mapping),
}

/// Memory that a card may reach.
pub(super) struct Registered {
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
    pub(super) fn pool(device: &Arc<Device>, pool: &Pool) -> Result<Registered, RdmaError> {
        let access = ffi::ACCESS_LOCAL_WRITE
            | ffi::ACCESS_REMOTE_READ
            | ffi::ACCESS_REMOTE_WRITE
            | ffi::ACCESS_REMOTE_ATOMIC;
        let (start, bytes) = pool.pin();
        let header_bytes = POOL_HEADER_BYTES as usize;
        let lent = bytes.checked_sub(header_bytes).expect("a pool is longer than its header");
        let range = (start.wrapping_add(header_bytes), lent);
        Registered::new(device, Memory::Pool(pool.clone()), range, access)
    }

    /// The header of a pool, which its key allows to read.
    pub(super) fn header(device: &Arc<Device>, pool: &Pool) -> Result<Registered, RdmaError> {
        let range = (pool.pin().0, POOL_HEADER_BYTES as usize);
        Registered::new(device, Memory::Pool(pool.clone()), range, ffi::ACCESS_REMOTE_READ)
    }

    /// Fresh memory, for nobody but the card of this machine.
    pub(super) fn arena(device: &Arc<Device>, bytes: usize) -> Result<Registered, RdmaError> {
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
    pub(super) fn base(&self) -> u64 {
        self.start
    }

    /// The key for other machines.
    pub(super) fn remote_key(&self) -> u32 {
        // SAFETY: registered until the drop.
        unsafe { self.mr.as_ref() }.rkey
    }

    /// The key for this machine's card.
    pub(super) fn local_key(&self) -> u32 {
        // SAFETY: registered until the drop.
        unsafe { self.mr.as_ref() }.lkey
    }

    /// The arena's first byte.
    pub(super) fn arena_start(&self) -> *mut u8 {
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

/// Where the completions of a queue pair come, and the events that tell of them.
pub(super) struct Completions {
    cq: NonNull<Cq>,
    channel: Option<NonNull<ffi::CompChannel>>,
    /// Events taken and not acknowledged: the queue cannot be destroyed before.
    events: u32,
    device: Arc<Device>,
}

// SAFETY: it may be used from any thread, one at a time: what changes it takes it exclusively.
unsafe impl Send for Completions {}

impl fmt::Debug for Completions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Completions").field("device", &self.device).finish()
    }
}

impl Completions {
    /// Room for so many. `has_events`: with a channel to sleep on.
    pub(super) fn new(
        device: &Arc<Device>,
        room: u32,
        has_events: bool,
    ) -> Result<Completions, RdmaError> {
        let (library, context) = (device.library, device.context.as_ptr());
        let mut channel = None;
        if has_events {
            // SAFETY: the context is open.
            let made = NonNull::new(unsafe { (library.create_comp_channel)(context) });
            channel = Some(made.ok_or_else(|| device.last_error("make a completion channel"))?);
        }
        let raw_channel = channel.map_or(ptr::null_mut(), NonNull::as_ptr);
        // SAFETY: context and channel are alive.
        let cq =
            unsafe { (library.create_cq)(context, room as c_int, ptr::null_mut(), raw_channel, 0) };
        let Some(cq) = NonNull::new(cq) else {
            let error = device.last_error("make a completion queue");
            if let Some(channel) = channel {
                // SAFETY: nothing uses it.
                unsafe { (library.destroy_comp_channel)(channel.as_ptr()) };
            }
            return Err(error);
        };
        let completions = Completions { cq, channel, events: 0, device: device.clone() };
        if let Some(fd) = completions.fd() {
            crate::sys::set_nonblocking(fd).map_err(|error| RdmaError::Call {
                device: device.name.clone(),
                what: "set up a completion channel",
                cause: error.to_string(),
            })?;
        }
        Ok(completions)
    }

    /// The descriptor to sleep on.
    pub(super) fn fd(&self) -> Option<c_int> {
        // SAFETY: alive until the drop.
        self.channel.map(|channel| unsafe { channel.as_ref() }.fd)
    }

    /// Asks for an event at the next completion; what is there already must be looked for after that.
    pub(super) fn arm(&mut self) -> Result<(), RdmaError> {
        // SAFETY: alive, and ours alone.
        let result = unsafe { ffi::req_notify_cq(self.cq.as_ptr()) };
        self.device.check("ask for completion events", result)
    }

    /// Takes all events that have come.
    pub(super) fn take_events(&mut self) {
        let Some(channel) = self.channel else { return };
        let (mut cq, mut context) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: the channel is alive and does not block; the call fills in two pointers.
        while unsafe {
            (self.device.library.get_cq_event)(channel.as_ptr(), &raw mut cq, &raw mut context)
        } == 0
        {
            self.events += 1;
        }
        if self.events >= 1 << 20 {
            self.acknowledge();
        }
    }

    /// Takes a lock, so it is done seldom.
    fn acknowledge(&mut self) {
        // SAFETY: so many events of this queue have been taken.
        unsafe { (self.device.library.ack_cq_events)(self.cq.as_ptr(), self.events) };
        self.events = 0;
    }

    /// Takes completions; gives their number.
    pub(super) fn poll(&mut self, into: &mut [ffi::Wc]) -> Result<usize, RdmaError> {
        // SAFETY: alive, and ours alone.
        let found = unsafe { ffi::poll_cq(self.cq.as_ptr(), into) };
        usize::try_from(found).map_err(|_| RdmaError::Call {
            device: self.device.name.clone(),
            what: "poll for completions",
            cause: format!("the driver gives {found}"),
        })
    }

    /// What the status of a completion means.
    pub(super) fn describe(&self, status: c_uint) -> String {
        // SAFETY: the library gives a constant string for any number.
        let text = unsafe { CStr::from_ptr((self.device.library.wc_status_str)(status)) };
        text.to_string_lossy().into_owned()
    }
}

impl Drop for Completions {
    fn drop(&mut self) {
        self.acknowledge();
        // SAFETY: queue pairs that use it have gone before: they own it or share it.
        let mut results = unsafe { [(self.device.library.destroy_cq)(self.cq.as_ptr()), 0] };
        if let Some(channel) = self.channel {
            // SAFETY: its queue has gone.
            results[1] = unsafe { (self.device.library.destroy_comp_channel)(channel.as_ptr()) };
        }
        if results != [0; 2] {
            let device = &self.device.name;
            tracing::error!(device, ?results, "cannot destroy a completion queue");
        }
    }
}

/// A queue pair of kind "reliable connection".
pub(super) struct QueuePair {
    qp: NonNull<Qp>,
    port: Selected,
    address: Address,
    pub(super) max_inline: u32,
    is_destroyed: bool,
    device: Arc<Device>,
}

// SAFETY: it may be used from any thread, one at a time: what changes it takes it exclusively.
unsafe impl Send for QueuePair {}

impl fmt::Debug for QueuePair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QueuePair").field("address", &self.address).finish()
    }
}

impl QueuePair {
    /// A queue pair that posts so many verbs at a time, of which those are sent inline that have at most
    /// `inline` bytes, or as many as the card takes. The completions must outlive it.
    fn new(
        device: &Arc<Device>,
        port: &Selected,
        completions: &Completions,
        (verbs, inline, depth): (u32, u32, u8),
    ) -> Result<QueuePair, RdmaError> {
        let mut init = ffi::QpInitAttr {
            qp_context: ptr::null_mut(),
            send_cq: completions.cq.as_ptr(),
            recv_cq: completions.cq.as_ptr(),
            srq: ptr::null_mut(),
            cap: ffi::QpCap {
                max_send_wr: verbs,
                max_recv_wr: 1,
                max_send_sge: 1,
                max_recv_sge: 1,
                max_inline_data: inline,
            },
            qp_type: ffi::QPT_RC,
            sq_sig_all: 0,
        };
        // SAFETY: protection domain and queue are alive, and of one device.
        let qp = unsafe { (device.library.create_qp)(device.pd.as_ptr(), &raw mut init) };
        let qp = NonNull::new(qp).ok_or_else(|| device.last_error("make a queue pair"))?;
        // Packets of an earlier queue pair of this number must not be taken for this one's.
        let first_packet = RandomState::new().hash_one(0) as u32 & 0xff_ffff;
        let address = Address {
            // SAFETY: alive.
            queue_pair: unsafe { qp.as_ref() }.qp_num,
            first_packet,
            lid: port.port.lid,
            mtu: port.port.mtu,
            depth,
            gid: port.gid.bytes,
        };
        let max_inline = init.cap.max_inline_data;
        let (port, device) = (port.clone(), device.clone());
        let mut pair = QueuePair { qp, port, address, max_inline, is_destroyed: false, device };
        let mut attr = ffi::QpAttr {
            qp_state: ffi::QPS_INIT,
            port_num: pair.port.port.number,
            qp_access_flags: ffi::ACCESS_REMOTE_READ
                | ffi::ACCESS_REMOTE_WRITE
                | ffi::ACCESS_REMOTE_ATOMIC,
            ..ffi::QpAttr::default()
        };
        let mask = ffi::QP_STATE | ffi::QP_PKEY_INDEX | ffi::QP_PORT | ffi::QP_ACCESS_FLAGS;
        pair.modify("initialise a queue pair", &mut attr, mask)?;
        Ok(pair)
    }

    /// Where others find it.
    pub(super) fn address(&self) -> Address {
        self.address
    }

    fn modify(
        &mut self,
        what: &'static str,
        attr: &mut ffi::QpAttr,
        mask: c_int,
    ) -> Result<(), RdmaError> {
        // SAFETY: alive; the structure is as long as the library's.
        let result = unsafe { (self.device.library.modify_qp)(self.qp.as_ptr(), attr, mask) };
        self.device.check(what, result)
    }

    /// Takes verbs of the other end from now on.
    fn hear(&mut self, peer: &Address) -> Result<(), RdmaError> {
        let mut attr = ffi::QpAttr {
            qp_state: ffi::QPS_RTR,
            path_mtu: u32::from(self.address.mtu.min(peer.mtu)),
            dest_qp_num: peer.queue_pair,
            rq_psn: peer.first_packet,
            max_dest_rd_atomic: self.address.depth,
            min_rnr_timer: 12,
            ah_attr: ffi::AhAttr {
                dgid: peer.gid,
                sgid_index: self.port.gid.index,
                hop_limit: HOPS,
                dlid: peer.lid,
                // Within one InfiniBand subnet the LID is the address.
                is_global: u8::from(self.port.port.is_ethernet || peer.lid == 0),
                port_num: self.port.port.number,
                ..ffi::AhAttr::default()
            },
            ..ffi::QpAttr::default()
        };
        let mask = ffi::QP_STATE
            | ffi::QP_AV
            | ffi::QP_PATH_MTU
            | ffi::QP_DEST_QPN
            | ffi::QP_RQ_PSN
            | ffi::QP_MAX_DEST_RD_ATOMIC
            | ffi::QP_MIN_RNR_TIMER;
        self.modify("connect a queue pair", &mut attr, mask)
    }

    /// Posts verbs from now on; after [`QueuePair::hear`].
    fn speak(&mut self, peer: &Address) -> Result<(), RdmaError> {
        let mut attr = ffi::QpAttr {
            qp_state: ffi::QPS_RTS,
            timeout: TIMEOUT,
            retry_cnt: RETRIES,
            // Nobody sends messages that would need a receiver.
            rnr_retry: 0,
            sq_psn: self.address.first_packet,
            max_rd_atomic: self.device.depths.0.min(peer.depth),
            ..ffi::QpAttr::default()
        };
        let mask = ffi::QP_STATE
            | ffi::QP_TIMEOUT
            | ffi::QP_RETRY_CNT
            | ffi::QP_RNR_RETRY
            | ffi::QP_SQ_PSN
            | ffi::QP_MAX_QP_RD_ATOMIC;
        self.modify("start a queue pair", &mut attr, mask)
    }

    /// For `requester`, which posts on it.
    pub(super) fn raw(&mut self) -> *mut Qp {
        self.qp.as_ptr()
    }

    /// The queue pair of a session: it posts verbs.
    pub(super) fn requester(
        device: &Arc<Device>,
        port: &Selected,
        completions: &Completions,
        (verbs, inline): (u32, u32),
    ) -> Result<QueuePair, RdmaError> {
        // A card that takes less inline refuses, and does not say how much it takes.
        let made = QueuePair::new(device, port, completions, (verbs, inline, device.depths.0));
        made.or_else(|_| QueuePair::new(device, port, completions, (verbs, 0, device.depths.0)))
    }

    /// Connects it to a memory node's.
    pub(super) fn connect(&mut self, peer: &Address) -> Result<(), RdmaError> {
        self.hear(peer)?;
        self.speak(peer)
    }
}

impl QueuePair {
    /// Stops and destroys it. The card has let go of it when this returns without an error.
    fn destroy(&mut self) -> Result<(), RdmaError> {
        if self.is_destroyed {
            return Ok(());
        }
        let mut attr = ffi::QpAttr { qp_state: ffi::QPS_ERR, ..ffi::QpAttr::default() };
        // Best effort: what counts is that it is destroyed.
        if let Err(error) = self.modify("stop a queue pair", &mut attr, ffi::QP_STATE) {
            tracing::debug!(%error, "a queue pair is destroyed without being stopped");
        }
        // SAFETY: ours, and not destroyed yet; its completions and memory are still there.
        let result = unsafe { (self.device.library.destroy_qp)(self.qp.as_ptr()) };
        self.device.check("destroy a queue pair", result)?;
        self.is_destroyed = true;
        Ok(())
    }
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        // What is registered stays in memory until its registration has ended, so nothing is overwritten
        // even then.
        if let Err(error) = self.destroy() {
            tracing::error!(%error, "a queue pair is left behind");
        }
    }
}

/// A memory node's end of a session: it only answers, by the network card alone.
#[derive(Debug)]
pub(super) struct Responder {
    // In the order in which they are to go.
    pair: QueuePair,
    _completions: Completions,
}

impl Responder {
    /// Lets a session's queue pair reach what is registered with the device.
    pub(super) fn new(
        device: &Arc<Device>,
        port: &Selected,
        peer: &Address,
    ) -> Result<Responder, RdmaError> {
        let completions = Completions::new(device, 1, false)?;
        let mut pair = QueuePair::new(device, port, &completions, (1, 0, device.depths.1))?;
        // It never becomes ready to send: it has nothing to say but answers.
        pair.hear(peer)?;
        Ok(Responder { pair, _completions: completions })
    }

    /// Where the session finds it.
    pub(super) fn address(&self) -> Address {
        self.pair.address()
    }

    /// Ends it. No verb of the session executes here any more when this returns without an error: the driver
    /// destroys a queue pair only after the card has let go of it.
    pub(super) fn end(mut self) -> Result<(), RdmaError> {
        self.pair.destroy()
    }
}
