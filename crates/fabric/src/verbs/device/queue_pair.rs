//! Queue pairs: a session's, which posts verbs, and a memory node's, which only answers verbs.

use std::ffi::c_int;
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::ptr::{self, NonNull};
use std::sync::Arc;

use super::{CompletionQueue, Device};
use crate::error::RdmaError;
use crate::verbs::ffi::{self, Qp};
use crate::verbs::ports::SelectedPort;
use crate::verbs::wire::QueuePairAddress;

/// The timeout after which a session's NIC repeats a request that was not acknowledged. 15 stands for 4.096 µs ·
/// 2^15 = 134 ms; a NIC can take up to four times that (IBTA vol. 1, 9.7.6.1.3).
const TIMEOUT: u8 = 15;
/// The number of times that a session's NIC repeats a request. All repetitions together take 0.9 to 3.8 s, and a verb
/// executes within that time or never. 7 is avoided because some NICs treat it as infinity.
const RETRIES: u8 = 6;
/// The largest number of routers that a packet can pass.
const HOPS: u8 = 64;

/// The size of a queue pair's send queue.
#[derive(Clone, Copy)]
pub(crate) struct SendQueueSize {
    /// The largest number of verbs in flight.
    pub(crate) verbs: u32,
    /// The longest WRITE in bytes that can be posted inline, if the NIC allows that much.
    pub(crate) inline_bytes: u32,
}

/// A queue pair of kind "reliable connection".
pub(crate) struct QueuePair {
    qp: NonNull<Qp>,
    port: SelectedPort,
    address: QueuePairAddress,
    pub(crate) max_inline: u32,
    is_destroyed: bool,
    device: Arc<Device>,
}

// SAFETY: the library allows any thread to use the queue pair, one at a time. Methods that change it borrow it
// exclusively.
unsafe impl Send for QueuePair {}

impl fmt::Debug for QueuePair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QueuePair").field("address", &self.address).finish()
    }
}

impl QueuePair {
    /// Makes a queue pair for `depth` READs and atomics in flight. `completions` must outlive the queue pair.
    fn new(
        device: &Arc<Device>,
        port: &SelectedPort,
        completions: &CompletionQueue,
        size: SendQueueSize,
        depth: u8,
    ) -> Result<QueuePair, RdmaError> {
        let mut init = ffi::QpInitAttr {
            qp_context: ptr::null_mut(),
            send_cq: completions.cq.as_ptr(),
            recv_cq: completions.cq.as_ptr(),
            srq: ptr::null_mut(),
            cap: ffi::QpCap {
                max_send_wr: size.verbs,
                max_recv_wr: 1,
                max_send_sge: 1,
                max_recv_sge: 1,
                max_inline_data: size.inline_bytes,
            },
            qp_type: ffi::QPT_RC,
            sq_sig_all: 0,
        };
        // SAFETY: protection domain and completion queue are alive and belong to one device.
        let qp = unsafe { (device.library.create_qp)(device.pd.as_ptr(), &raw mut init) };
        let qp = NonNull::new(qp).ok_or_else(|| device.last_error("make a queue pair"))?;
        // The first packet number is random, so that packets of an earlier queue pair with the same queue pair number
        // are not mistaken for packets of this one.
        let first_packet = RandomState::new().hash_one(0) as u32 & 0xff_ffff;
        let address = QueuePairAddress {
            // SAFETY: the queue pair is alive.
            queue_pair: unsafe { qp.as_ref() }.qp_num,
            first_packet,
            lid: port.port.lid,
            mtu: port.port.mtu,
            depth,
            gid: port.gid.bytes,
        };
        let max_inline = init.cap.max_inline_data;
        let port = port.clone();
        let device = device.clone();
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

    /// Returns the address of this queue pair, to be sent to the other end.
    pub(crate) fn address(&self) -> QueuePairAddress {
        self.address
    }

    fn modify(
        &mut self,
        what: &'static str,
        attr: &mut ffi::QpAttr,
        mask: c_int,
    ) -> Result<(), RdmaError> {
        // SAFETY: the queue pair is alive; the structure has the library's length.
        let result = unsafe { (self.device.library.modify_qp)(self.qp.as_ptr(), attr, mask) };
        self.device.check(what, result)
    }

    /// Lets the queue pair accept verbs of the other end from now on.
    fn make_ready_to_receive(&mut self, peer: &QueuePairAddress) -> Result<(), RdmaError> {
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
                // Within one InfiniBand subnet, the LID is the address.
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

    /// Lets the queue pair post verbs from now on. Must be called after [`QueuePair::make_ready_to_receive`].
    fn make_ready_to_send(&mut self, peer: &QueuePairAddress) -> Result<(), RdmaError> {
        let mut attr = ffi::QpAttr {
            qp_state: ffi::QPS_RTS,
            timeout: TIMEOUT,
            retry_cnt: RETRIES,
            // Neither end sends messages for which the other end would have to post a receive.
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

    /// Returns the library's queue pair, on which `requester` posts.
    pub(crate) fn raw(&mut self) -> *mut Qp {
        self.qp.as_ptr()
    }

    /// Makes the queue pair of a session, which posts verbs.
    pub(crate) fn requester(
        device: &Arc<Device>,
        port: &SelectedPort,
        completions: &CompletionQueue,
        size: SendQueueSize,
    ) -> Result<QueuePair, RdmaError> {
        // A NIC that allows less inline data refuses the queue pair, and does not tell how much it allows.
        let depth = device.depths.0;
        QueuePair::new(device, port, completions, size, depth).or_else(|_| {
            let size = SendQueueSize { inline_bytes: 0, ..size };
            QueuePair::new(device, port, completions, size, depth)
        })
    }

    /// Connects to a memory node's queue pair.
    pub(crate) fn connect(&mut self, peer: &QueuePairAddress) -> Result<(), RdmaError> {
        self.make_ready_to_receive(peer)?;
        self.make_ready_to_send(peer)
    }
}

impl QueuePair {
    /// Stops and destroys the queue pair. When this returns without an error, the NIC has stopped using the queue
    /// pair.
    fn destroy(&mut self) -> Result<(), RdmaError> {
        if self.is_destroyed {
            return Ok(());
        }
        let mut attr = ffi::QpAttr { qp_state: ffi::QPS_ERR, ..ffi::QpAttr::default() };
        // Best effort: it is enough that the queue pair is destroyed.
        if let Err(error) = self.modify("stop a queue pair", &mut attr, ffi::QP_STATE) {
            tracing::debug!(%error, "a queue pair is destroyed without being stopped");
        }
        // SAFETY: this value owns the queue pair, which is not destroyed yet; its completion queue and memory are
        // alive.
        let result = unsafe { (self.device.library.destroy_qp)(self.qp.as_ptr()) };
        self.device.check("destroy a queue pair", result)?;
        self.is_destroyed = true;
        Ok(())
    }
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        // A queue pair that is left behind overwrites no other memory, because registered memory stays allocated
        // until its registration has ended.
        if let Err(error) = self.destroy() {
            tracing::error!(%error, "a queue pair is left behind");
        }
    }
}

/// A memory node's end of a session. Verbs are answered by the NIC alone.
#[derive(Debug)]
pub(crate) struct Responder {
    // Fields drop in order: first the queue pair, then its completion queue.
    pair: QueuePair,
    _completions: CompletionQueue,
}

impl Responder {
    /// Makes a queue pair that lets a session reach the memory that is registered with the device.
    pub(crate) fn new(
        device: &Arc<Device>,
        port: &SelectedPort,
        peer: &QueuePairAddress,
    ) -> Result<Responder, RdmaError> {
        let completions = CompletionQueue::new(device, 1, false)?;
        let size = SendQueueSize { verbs: 1, inline_bytes: 0 };
        let mut pair = QueuePair::new(device, port, &completions, size, device.depths.1)?;
        // The queue pair is not made ready to send, because it only answers.
        pair.make_ready_to_receive(peer)?;
        Ok(Responder { pair, _completions: completions })
    }

    /// Returns the address of the queue pair, to be sent to the session.
    pub(crate) fn address(&self) -> QueuePairAddress {
        self.pair.address()
    }

    /// Destroys the queue pair. When this returns without an error, no verb of the session executes here any more,
    /// because the driver destroys a queue pair only after the NIC has stopped using it.
    pub(crate) fn end(mut self) -> Result<(), RdmaError> {
        self.pair.destroy()
    }
}
