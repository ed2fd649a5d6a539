//! Bindings to libibverbs, which is loaded at run time.
//!
//! The same binary starts on machines without the library: the library is opened at the first use of the `verbs`
//! fabric, and if it is missing, the error names the package. So the library's functions are pointers in
//! [`Library`], and the used parts of its structures are declared here.
//!
//! The declarations follow rdma-core's `infiniband/verbs.h`, whose layout is the library's binary interface since
//! IBVERBS_1.1. Sizes and offsets below are those that a C compiler computes from that header on 64-bit Linux; they
//! are checked at compile time. Fields that are not used here have names that start with an underscore.
//!
//! Three calls are not functions of the library: the header inlines each as a call through a table in the device's
//! context. [`post_send`], [`poll_cq`] and [`req_notify_cq`] call through the same table.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::OnceLock;

use crate::error::RdmaError;

/// The library's name, with the version of its binary interface.
const LIBRARY: &CStr = c"libibverbs.so.1";

/// A device that can be opened (`ibv_device`).
#[repr(C)]
pub(super) struct RawDevice {
    _private: [u8; 0],
}

/// A protection domain (`ibv_pd`).
#[repr(C)]
pub(super) struct Pd {
    _private: [u8; 0],
}

/// The table of functions in a context. Entries that are not used are skipped.
#[repr(C)]
struct Ops {
    _before_poll: [*const c_void; 11],
    poll_cq: unsafe extern "C" fn(*mut Cq, c_int, *mut Wc) -> c_int,
    req_notify_cq: unsafe extern "C" fn(*mut Cq, c_int) -> c_int,
    _between: [*const c_void; 12],
    post_send: unsafe extern "C" fn(*mut Qp, *mut SendWr, *mut *mut SendWr) -> c_int,
    _after_post: [*const c_void; 6],
}

/// An open device (`ibv_context`).
#[repr(C)]
pub(super) struct RawContext {
    _device: *const c_void,
    ops: Ops,
    // The library's structure has more fields, which are not used.
}

/// A completion queue (`ibv_cq`).
#[repr(C)]
pub(super) struct Cq {
    context: *mut RawContext,
    // The library's structure has more fields, which are not used.
}

/// A queue pair (`ibv_qp`).
#[repr(C)]
pub(super) struct Qp {
    context: *mut RawContext,
    _pointers: [*const c_void; 5],
    _handle: u32,
    pub(super) qp_num: u32,
    // The library's structure has more fields, which are not used.
}

/// Registered memory (`ibv_mr`).
#[repr(C)]
pub(super) struct Mr {
    _context: *mut RawContext,
    _pd: *mut Pd,
    _addr: *mut c_void,
    _length: usize,
    _handle: u32,
    pub(super) lkey: u32,
    pub(super) rkey: u32,
}

/// A channel for events of completion queues.
#[repr(C)]
pub(super) struct CompChannel {
    _context: *mut RawContext,
    pub(super) fd: c_int,
    _refcnt: c_int,
}

/// The properties and limits of a device.
#[repr(C)]
pub(super) struct DeviceAttr {
    _versions: [u64; 12],
    pub(super) vendor_id: u32,
    _part: [u32; 3],
    pub(super) max_qp_wr: c_int,
    _caps: [c_int; 4],
    pub(super) max_cqe: c_int,
    _mr: [c_int; 2],
    pub(super) max_qp_rd_atom: c_int,
    _rd: [c_int; 2],
    pub(super) max_qp_init_rd_atom: c_int,
    _ee: c_int,
    pub(super) atomic_cap: c_uint,
    _more: [c_int; 14],
    _max_pkeys: u16,
    _local_ca_ack_delay: u8,
    pub(super) phys_port_cnt: u8,
}

/// The state and limits of a port.
#[repr(C)]
pub(super) struct PortAttr {
    pub(super) state: c_uint,
    _max_mtu: c_uint,
    pub(super) active_mtu: c_uint,
    pub(super) gid_tbl_len: c_int,
    _port_cap_flags: u32,
    pub(super) max_msg_sz: u32,
    _counters: [u32; 2],
    _pkey_tbl_len: u16,
    pub(super) lid: u16,
    _sm_lid: u16,
    _bytes: [u8; 8],
    pub(super) link_layer: u8,
    _flags: u8,
    _port_cap_flags2: u16,
}

/// An entry of a port's table of addresses (GIDs).
#[repr(C, align(8))]
#[derive(Default)]
pub(super) struct GidEntry {
    pub(super) gid: [u8; 16],
    _gid_index: u32,
    _port_num: u32,
    pub(super) gid_type: u32,
    _ndev_ifindex: u32,
}

/// The sizes of a queue pair's queues.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct QpCap {
    pub(super) max_send_wr: u32,
    pub(super) max_recv_wr: u32,
    pub(super) max_send_sge: u32,
    pub(super) max_recv_sge: u32,
    pub(super) max_inline_data: u32,
}

/// The properties of a new queue pair.
#[repr(C)]
pub(super) struct QpInitAttr {
    pub(super) qp_context: *mut c_void,
    pub(super) send_cq: *mut Cq,
    pub(super) recv_cq: *mut Cq,
    pub(super) srq: *mut c_void,
    pub(super) cap: QpCap,
    pub(super) qp_type: c_uint,
    pub(super) sq_sig_all: c_int,
}

/// The route to another port. Aligned to 8, because the address (`dgid`) is a union with 64-bit numbers in the
/// header.
#[repr(C, align(8))]
#[derive(Clone, Copy, Default)]
pub(super) struct AhAttr {
    pub(super) dgid: [u8; 16],
    pub(super) flow_label: u32,
    pub(super) sgid_index: u8,
    pub(super) hop_limit: u8,
    pub(super) traffic_class: u8,
    pub(super) pad: u8,
    pub(super) dlid: u16,
    pub(super) sl: u8,
    pub(super) src_path_bits: u8,
    pub(super) static_rate: u8,
    pub(super) is_global: u8,
    pub(super) port_num: u8,
    pub(super) end: u8,
}

/// The attributes of a queue pair that `modify_qp` changes.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct QpAttr {
    pub(super) qp_state: c_uint,
    pub(super) cur_qp_state: c_uint,
    pub(super) path_mtu: c_uint,
    pub(super) path_mig_state: c_uint,
    pub(super) qkey: u32,
    pub(super) rq_psn: u32,
    pub(super) sq_psn: u32,
    pub(super) dest_qp_num: u32,
    pub(super) qp_access_flags: c_uint,
    pub(super) cap: QpCap,
    pub(super) ah_attr: AhAttr,
    pub(super) alt_ah_attr: AhAttr,
    pub(super) pkey_index: u16,
    pub(super) alt_pkey_index: u16,
    pub(super) en_sqd_async_notify: u8,
    pub(super) sq_draining: u8,
    pub(super) max_rd_atomic: u8,
    pub(super) max_dest_rd_atomic: u8,
    pub(super) min_rnr_timer: u8,
    pub(super) port_num: u8,
    pub(super) timeout: u8,
    pub(super) retry_cnt: u8,
    pub(super) rnr_retry: u8,
    pub(super) alt_port_num: u8,
    pub(super) alt_timeout: u8,
    pub(super) rate_limit: u32,
}

/// A range of local memory (`ibv_sge`).
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct Sge {
    pub(super) addr: u64,
    pub(super) length: u32,
    pub(super) lkey: u32,
}

/// A work request: a verb for the NIC.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct SendWr {
    pub(super) wr_id: u64,
    pub(super) next: *mut SendWr,
    pub(super) sg_list: *mut Sge,
    pub(super) num_sge: c_int,
    pub(super) opcode: c_uint,
    pub(super) send_flags: c_uint,
    pub(super) imm_data: u32,
    pub(super) wr: Operands,
    pub(super) rest: [u64; 7],
}

/// The operands of a work request.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) union Operands {
    pub(super) rdma: Rdma,
    pub(super) atomic: Atomic,
}

/// The remote range of a READ or WRITE.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Rdma {
    pub(super) remote_addr: u64,
    pub(super) rkey: u32,
}

/// The remote word and the operands of a CAS or FAA.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Atomic {
    pub(super) remote_addr: u64,
    pub(super) compare_add: u64,
    pub(super) swap: u64,
    pub(super) rkey: u32,
}

impl SendWr {
    /// A work request whose fields are all zero.
    pub(super) const EMPTY: SendWr = SendWr {
        wr_id: 0,
        next: std::ptr::null_mut(),
        sg_list: std::ptr::null_mut(),
        num_sge: 0,
        opcode: 0,
        send_flags: 0,
        imm_data: 0,
        wr: Operands { atomic: Atomic { remote_addr: 0, compare_add: 0, swap: 0, rkey: 0 } },
        rest: [0; 7],
    };
}

/// The completion of a work request.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Wc {
    pub(super) wr_id: u64,
    pub(super) status: c_uint,
    _opcode: c_uint,
    pub(super) vendor_err: u32,
    _byte_len: u32,
    _imm_data: u32,
    _qp_num: u32,
    _src_qp: u32,
    _wc_flags: c_uint,
    _ends: [u16; 4],
}

// Values of the header's enumerations.
pub(super) const ACCESS_LOCAL_WRITE: c_uint = 1;
pub(super) const ACCESS_REMOTE_WRITE: c_uint = 2;
pub(super) const ACCESS_REMOTE_READ: c_uint = 4;
pub(super) const ACCESS_REMOTE_ATOMIC: c_uint = 8;
pub(super) const ATOMIC_NONE: c_uint = 0;
pub(super) const ATOMIC_GLOB: c_uint = 2;
pub(super) const GID_IB: u32 = 0;
pub(super) const GID_ROCE_V1: u32 = 1;
pub(super) const GID_ROCE_V2: u32 = 2;
pub(super) const LINK_LAYER_ETHERNET: u8 = 2;
pub(super) const PORT_ACTIVE: c_uint = 4;
pub(super) const QPS_INIT: c_uint = 1;
pub(super) const QPS_RTR: c_uint = 2;
pub(super) const QPS_RTS: c_uint = 3;
pub(super) const QPS_ERR: c_uint = 6;
pub(super) const QPT_RC: c_uint = 2;
pub(super) const SEND_SIGNALED: c_uint = 2;
pub(super) const SEND_INLINE: c_uint = 8;
pub(super) const WC_SUCCESS: c_uint = 0;
pub(super) const WR_RDMA_WRITE: c_uint = 0;
pub(super) const WR_RDMA_READ: c_uint = 4;
pub(super) const WR_ATOMIC_CMP_AND_SWP: c_uint = 5;
pub(super) const WR_ATOMIC_FETCH_AND_ADD: c_uint = 6;
pub(super) const QP_STATE: c_int = 1;
pub(super) const QP_ACCESS_FLAGS: c_int = 1 << 3;
pub(super) const QP_PKEY_INDEX: c_int = 1 << 4;
pub(super) const QP_PORT: c_int = 1 << 5;
pub(super) const QP_AV: c_int = 1 << 7;
pub(super) const QP_PATH_MTU: c_int = 1 << 8;
pub(super) const QP_TIMEOUT: c_int = 1 << 9;
pub(super) const QP_RETRY_CNT: c_int = 1 << 10;
pub(super) const QP_RNR_RETRY: c_int = 1 << 11;
pub(super) const QP_RQ_PSN: c_int = 1 << 12;
pub(super) const QP_MAX_QP_RD_ATOMIC: c_int = 1 << 13;
pub(super) const QP_MIN_RNR_TIMER: c_int = 1 << 15;
pub(super) const QP_SQ_PSN: c_int = 1 << 16;
pub(super) const QP_MAX_DEST_RD_ATOMIC: c_int = 1 << 17;
pub(super) const QP_DEST_QPN: c_int = 1 << 20;

/// Declares the functions of the library as fields of `Library`. `open` looks each of them up by its name.
macro_rules! library {
    ($($field:ident = $symbol:literal: fn($($argument:ty),*) -> $result:ty;)*) => {
        /// The functions of libibverbs.
        pub(super) struct Library {
            $(pub(super) $field: unsafe extern "C" fn($($argument),*) -> $result,)*
        }

        impl Library {
            /// Opens a library by its name and looks up all functions.
            fn open(name: &CStr) -> Result<Library, RdmaError> {
                // SAFETY: the name is a C string. Opening runs the constructors of a system library, which is
                // trusted.
                let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW) };
                if handle.is_null() {
                    return Err(RdmaError::NoLibrary { cause: last_error() });
                }
                Ok(Library {
                    $($field: {
                        const NAME: &CStr = $symbol;
                        // SAFETY: the handle is open and is never closed; the name is a C string.
                        let symbol = unsafe { libc::dlsym(handle, NAME.as_ptr()) };
                        if symbol.is_null() {
                            return Err(RdmaError::NoLibrary { cause: last_error() });
                        }
                        // SAFETY: the symbol is the function of this name, whose signature is that of the header.
                        unsafe {
                            std::mem::transmute::<
                                *mut c_void,
                                unsafe extern "C" fn($($argument),*) -> $result,
                            >(symbol)
                        }
                    },)*
                })
            }
        }
    };
}

library! {
    get_device_list = c"ibv_get_device_list": fn(*mut c_int) -> *mut *mut RawDevice;
    free_device_list = c"ibv_free_device_list": fn(*mut *mut RawDevice) -> ();
    get_device_name = c"ibv_get_device_name": fn(*mut RawDevice) -> *const c_char;
    open_device = c"ibv_open_device": fn(*mut RawDevice) -> *mut RawContext;
    close_device = c"ibv_close_device": fn(*mut RawContext) -> c_int;
    query_device = c"ibv_query_device": fn(*mut RawContext, *mut DeviceAttr) -> c_int;
    query_port = c"ibv_query_port": fn(*mut RawContext, u8, *mut PortAttr) -> c_int;
    query_gid_ex = c"_ibv_query_gid_ex": fn(*mut RawContext, u32, u32, *mut GidEntry, u32, usize) -> c_int;
    alloc_pd = c"ibv_alloc_pd": fn(*mut RawContext) -> *mut Pd;
    dealloc_pd = c"ibv_dealloc_pd": fn(*mut Pd) -> c_int;
    reg_mr = c"ibv_reg_mr": fn(*mut Pd, *mut c_void, usize, c_int) -> *mut Mr;
    dereg_mr = c"ibv_dereg_mr": fn(*mut Mr) -> c_int;
    create_comp_channel = c"ibv_create_comp_channel": fn(*mut RawContext) -> *mut CompChannel;
    destroy_comp_channel = c"ibv_destroy_comp_channel": fn(*mut CompChannel) -> c_int;
    create_cq = c"ibv_create_cq": fn(*mut RawContext, c_int, *mut c_void, *mut CompChannel, c_int) -> *mut Cq;
    destroy_cq = c"ibv_destroy_cq": fn(*mut Cq) -> c_int;
    get_cq_event = c"ibv_get_cq_event": fn(*mut CompChannel, *mut *mut Cq, *mut *mut c_void) -> c_int;
    ack_cq_events = c"ibv_ack_cq_events": fn(*mut Cq, c_uint) -> ();
    create_qp = c"ibv_create_qp": fn(*mut Pd, *mut QpInitAttr) -> *mut Qp;
    modify_qp = c"ibv_modify_qp": fn(*mut Qp, *mut QpAttr, c_int) -> c_int;
    destroy_qp = c"ibv_destroy_qp": fn(*mut Qp) -> c_int;
    wc_status_str = c"ibv_wc_status_str": fn(c_uint) -> *const c_char;
}

/// Returns the last error of `dlopen` or `dlsym`.
fn last_error() -> String {
    // SAFETY: `dlerror` returns null or a C string of this thread, which is copied before another call can replace
    // it.
    let text = unsafe {
        let text = libc::dlerror();
        (!text.is_null()).then(|| CStr::from_ptr(text).to_string_lossy().into_owned())
    };
    text.unwrap_or_else(|| "no reason given".into())
}

/// Returns the library. It is opened once for the process and never closed, because devices can have threads in it.
pub(super) fn library() -> Result<&'static Library, RdmaError> {
    static LOADED: OnceLock<Result<Library, RdmaError>> = OnceLock::new();
    if cfg!(target_endian = "big") {
        // Words of the pool are little-endian, and NICs add in the byte order of their host.
        return Err(RdmaError::NoLibrary { cause: "a big-endian machine is not supported".into() });
    }
    LOADED.get_or_init(|| Library::open(LIBRARY)).as_ref().map_err(Clone::clone)
}

/// Hands a list of work requests to the NIC, with one doorbell.
///
/// # Safety
/// The queue pair is alive, and no other thread uses it. The list ends in null. The memory that its requests refer
/// to is registered, and stays registered until the verbs complete.
pub(super) unsafe fn post_send(qp: *mut Qp, first: *mut SendWr) -> c_int {
    let mut bad = std::ptr::null_mut();
    // SAFETY: the caller vouches for queue pair and list; the table is filled in by the device's driver.
    unsafe { ((*(*qp).context).ops.post_send)(qp, first, &raw mut bad) }
}

/// Takes completions. Returns their number, or a negative number for an error.
///
/// # Safety
/// The queue is alive, and no other thread uses it.
pub(super) unsafe fn poll_cq(cq: *mut Cq, into: &mut [Wc]) -> c_int {
    let room = c_int::try_from(into.len()).unwrap_or(c_int::MAX);
    // SAFETY: the caller vouches for the queue. The driver writes at most `room` completions, which `into` has room
    // for.
    unsafe { ((*(*cq).context).ops.poll_cq)(cq, room, into.as_mut_ptr()) }
}

/// Asks for an event at the next completion.
///
/// # Safety
/// The queue is alive and has a channel, and no other thread uses it.
pub(super) unsafe fn req_notify_cq(cq: *mut Cq) -> c_int {
    // SAFETY: the caller vouches for the queue.
    unsafe { ((*(*cq).context).ops.req_notify_cq)(cq, 0) }
}

/// Checks the layout of the structures against what a C compiler's `offsetof` and `sizeof` give for the header.
#[cfg(target_pointer_width = "64")]
const _: () = {
    use std::mem::offset_of;
    assert!(size_of::<Ops>() == 256);
    assert!(offset_of!(Ops, poll_cq) == 88);
    assert!(offset_of!(Ops, req_notify_cq) == 96);
    assert!(offset_of!(Ops, post_send) == 200);
    assert!(offset_of!(RawContext, ops) == 8);
    assert!(offset_of!(Qp, qp_num) == 52);
    assert!(size_of::<Mr>() == 48);
    assert!(offset_of!(Mr, lkey) == 36);
    assert!(offset_of!(Mr, rkey) == 40);
    assert!(offset_of!(CompChannel, fd) == 8);
    assert!(size_of::<DeviceAttr>() == 232);
    assert!(offset_of!(DeviceAttr, vendor_id) == 96);
    assert!(offset_of!(DeviceAttr, max_qp_wr) == 112);
    assert!(offset_of!(DeviceAttr, max_cqe) == 132);
    assert!(offset_of!(DeviceAttr, max_qp_rd_atom) == 144);
    assert!(offset_of!(DeviceAttr, max_qp_init_rd_atom) == 156);
    assert!(offset_of!(DeviceAttr, atomic_cap) == 164);
    assert!(offset_of!(DeviceAttr, phys_port_cnt) == 227);
    assert!(size_of::<PortAttr>() == 52);
    assert!(offset_of!(PortAttr, gid_tbl_len) == 12);
    assert!(offset_of!(PortAttr, max_msg_sz) == 20);
    assert!(offset_of!(PortAttr, lid) == 34);
    assert!(offset_of!(PortAttr, link_layer) == 46);
    assert!(size_of::<GidEntry>() == 32);
    assert!(offset_of!(GidEntry, gid_type) == 24);
    assert!(size_of::<QpCap>() == 20);
    assert!(size_of::<QpInitAttr>() == 64);
    assert!(offset_of!(QpInitAttr, cap) == 32);
    assert!(offset_of!(QpInitAttr, qp_type) == 52);
    assert!(size_of::<AhAttr>() == 32);
    assert!(offset_of!(AhAttr, sgid_index) == 20);
    assert!(offset_of!(AhAttr, dlid) == 24);
    assert!(offset_of!(AhAttr, is_global) == 29);
    assert!(size_of::<QpAttr>() == 144);
    assert!(offset_of!(QpAttr, rq_psn) == 20);
    assert!(offset_of!(QpAttr, qp_access_flags) == 32);
    assert!(offset_of!(QpAttr, ah_attr) == 56);
    assert!(offset_of!(QpAttr, pkey_index) == 120);
    assert!(offset_of!(QpAttr, max_rd_atomic) == 126);
    assert!(offset_of!(QpAttr, port_num) == 129);
    assert!(offset_of!(QpAttr, rnr_retry) == 132);
    assert!(offset_of!(QpAttr, rate_limit) == 136);
    assert!(size_of::<Sge>() == 16);
    assert!(size_of::<SendWr>() == 128);
    assert!(offset_of!(SendWr, opcode) == 28);
    assert!(offset_of!(SendWr, wr) == 40);
    assert!(offset_of!(Rdma, rkey) == 8);
    assert!(offset_of!(Atomic, swap) == 16);
    assert!(offset_of!(Atomic, rkey) == 24);
    assert!(size_of::<Wc>() == 48);
    assert!(offset_of!(Wc, vendor_err) == 16);
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_the_library_the_error_says_what_to_install() {
        let error = Library::open(c"libibverbs-that-is-not-there.so.1").err().expect("not there");
        let text = error.to_string();
        assert!(text.contains("apt install libibverbs1 ibverbs-providers"), "{text}");
        assert!(text.contains("libibverbs-that-is-not-there"), "{text}");
    }

    #[test]
    fn another_library_is_not_taken_for_it() {
        let error = Library::open(c"libc.so.6").err().expect("has no ibv_get_device_list");
        assert!(error.to_string().contains("ibv_get_device_list"), "{error}");
    }
}
