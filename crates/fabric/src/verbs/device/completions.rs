//! The completion queue of a queue pair, and the channel on which to sleep until completions come.

use std::ffi::{CStr, c_int, c_uint};
use std::fmt;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use super::Device;
use crate::error::RdmaError;
use crate::sys;
use crate::verbs::ffi::{self, Cq};

/// The completion queue of a queue pair, and the events that announce completions.
pub(crate) struct CompletionQueue {
    pub(super) cq: NonNull<Cq>,
    channel: Option<NonNull<ffi::CompChannel>>,
    /// The number of events taken and not acknowledged. The queue cannot be destroyed before they are acknowledged.
    events: u32,
    device: Arc<Device>,
}

// SAFETY: the library allows any thread to use the queue, one at a time. Methods that change it borrow it
// exclusively.
unsafe impl Send for CompletionQueue {}

impl fmt::Debug for CompletionQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Completions").field("device", &self.device).finish()
    }
}

impl CompletionQueue {
    /// Makes a queue for `room` completions, with a channel to sleep on if `has_events` is true.
    pub(crate) fn new(
        device: &Arc<Device>,
        room: u32,
        has_events: bool,
    ) -> Result<CompletionQueue, RdmaError> {
        let library = device.library;
        let context = device.context.as_ptr();
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
                // SAFETY: the channel was just made, and no queue uses it.
                unsafe { (library.destroy_comp_channel)(channel.as_ptr()) };
            }
            return Err(error);
        };
        let completions = CompletionQueue { cq, channel, events: 0, device: device.clone() };
        if let Some(fd) = completions.fd() {
            sys::set_nonblocking(fd).map_err(|error| RdmaError::Call {
                device: device.name.clone(),
                what: "set up a completion channel",
                cause: error.to_string(),
            })?;
        }
        Ok(completions)
    }

    /// Returns the descriptor of the channel to sleep on; `None` without channel.
    pub(crate) fn fd(&self) -> Option<c_int> {
        // SAFETY: the channel is alive until this value is dropped.
        self.channel.map(|channel| unsafe { channel.as_ref() }.fd)
    }

    /// Asks for an event at the next completion. After this call, the caller must poll for completions that came
    /// before it.
    pub(crate) fn arm(&mut self) -> Result<(), RdmaError> {
        // SAFETY: the queue is alive and borrowed exclusively, and has a channel.
        let result = unsafe { ffi::req_notify_cq(self.cq.as_ptr()) };
        self.device.check("ask for completion events", result)
    }

    /// Takes all events that have come so far.
    pub(crate) fn take_events(&mut self) {
        let Some(channel) = self.channel else { return };
        let mut cq = ptr::null_mut();
        let mut context = ptr::null_mut();
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

    /// Acknowledges the events taken. Called seldom, because the call takes a lock.
    fn acknowledge(&mut self) {
        // SAFETY: the queue is alive, and `events` events of it have been taken.
        unsafe { (self.device.library.ack_cq_events)(self.cq.as_ptr(), self.events) };
        self.events = 0;
    }

    /// Takes completions into `into`. Returns their number.
    pub(crate) fn poll(&mut self, into: &mut [ffi::Wc]) -> Result<usize, RdmaError> {
        // SAFETY: the queue is alive and borrowed exclusively.
        let found = unsafe { ffi::poll_cq(self.cq.as_ptr(), into) };
        usize::try_from(found).map_err(|_| RdmaError::Call {
            device: self.device.name.clone(),
            what: "poll for completions",
            cause: format!("the driver gives {found}"),
        })
    }

    /// Returns the meaning of a completion's status.
    pub(crate) fn describe(&self, status: c_uint) -> String {
        // SAFETY: the library returns a constant C string for any number.
        let text = unsafe { CStr::from_ptr((self.device.library.wc_status_str)(status)) };
        text.to_string_lossy().into_owned()
    }
}

impl Drop for CompletionQueue {
    fn drop(&mut self) {
        self.acknowledge();
        // SAFETY: the queue pairs that use the queue were destroyed before: their owners drop them first.
        let mut results = unsafe { [(self.device.library.destroy_cq)(self.cq.as_ptr()), 0] };
        if let Some(channel) = self.channel {
            // SAFETY: the only queue that used the channel was destroyed.
            results[1] = unsafe { (self.device.library.destroy_comp_channel)(channel.as_ptr()) };
        }
        if results != [0; 2] {
            let device = &self.device.name;
            tracing::error!(device, ?results, "cannot destroy a completion queue");
        }
    }
}
