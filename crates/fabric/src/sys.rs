//! System calls without a wrapper in a library that this crate uses: memfd and mmap, pidfd, descriptor passing and
//! flags, membarrier, memory that a fork wipes, packet sockets.
//!
//! Each function is a thin, safe wrapper. It takes owned or borrowed descriptors, turns -1 into [`io::Error`], and
//! keeps the memory behind the pointers that it passes to the kernel alive during the call. The callers document
//! the purposes.

use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};
use std::time::Duration;

use libc::{c_int, c_void};

use crate::fork::OriginProcess;

/// The size of the huge pages that are asked for, in bytes.
const HUGE_PAGE_BYTES: u64 = 2 << 20;
const PAGE_BYTES: usize = 4096;

fn check(result: c_int) -> io::Result<c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

fn check_long(result: libc::c_long) -> io::Result<c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result as c_int) }
}

/// Takes ownership of a descriptor that the kernel has just made.
fn own(fd: c_int) -> OwnedFd {
    // SAFETY: the kernel has just returned this descriptor, so no other code owns it.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

/// A mapping of memory, page-aligned. Dropping it unmaps the memory.
pub(crate) struct Mapping {
    start: *mut u8,
    len: usize,
    origin: OriginProcess,
}

// SAFETY: the mapping is plain memory that belongs to no thread, and all accesses to it are atomic.
unsafe impl Send for Mapping {}
// SAFETY: as for `Send`.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Returns the first byte of the mapping, page-aligned.
    pub(crate) fn start(&self) -> *mut u8 {
        self.start
    }

    fn new(file: &OwnedFd, len: usize) -> io::Result<Mapping> {
        Mapping::map(len, libc::MAP_SHARED, file.as_raw_fd())
    }

    /// Makes private memory of this process that is all zeros.
    pub(crate) fn anonymous(len: usize) -> io::Result<Mapping> {
        Mapping::map(len, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1)
    }

    /// Makes the first `len` bytes read-only. `len` must be a multiple of the page size.
    pub(crate) fn protect_start(&self, len: usize) -> io::Result<()> {
        assert!(len <= self.len, "outside of the mapping");
        // SAFETY: the range is in this mapping. A write there, in spite of the checks, kills the process.
        check(unsafe { libc::mprotect(self.start.cast(), len, libc::PROT_READ) }).map(drop)
    }

    fn map(len: usize, flags: c_int, file: RawFd) -> io::Result<Mapping> {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: the kernel chooses the address, so the new mapping replaces no other memory.
        let start = unsafe { libc::mmap(ptr::null_mut(), len, access, flags, file, 0) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let mapping = Mapping { start: start.cast(), len, origin: OriginProcess::here() };
        // SAFETY: the range is this mapping, and the advice does not change its contents. A forked child gets no
        // mapping of a pool, because a fence of this process has to be sure that no copy of the process goes on.
        // And a fork must not copy memory that a NIC writes to, because the NIC does not know of the copies.
        check(unsafe { libc::madvise(start, len, libc::MADV_DONTFORK) })?;
        Ok(mapping)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // A forked child does not have the mapping, but can have other memory at that address.
        if self.origin.is_here() {
            // SAFETY: the mapping is this process's, and every access borrows `self`, so none follows.
            unsafe { libc::munmap(self.start.cast(), self.len) };
        }
    }
}

/// Makes a memfd of `bytes` bytes that can be neither shrunk nor grown, and maps it.
pub(crate) fn make_memfd(bytes: u64, huge: bool) -> io::Result<(OwnedFd, Mapping)> {
    let mut flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    let mut len = bytes;
    if huge {
        flags |= libc::MFD_HUGETLB | libc::MFD_HUGE_2MB;
        len = bytes.next_multiple_of(HUGE_PAGE_BYTES);
    }
    let overflow = |_| io::Error::from(io::ErrorKind::OutOfMemory);
    let file_len = libc::off_t::try_from(len).map_err(overflow)?;
    // SAFETY: the name is a C string, alive during the call.
    let file = own(check(unsafe { libc::memfd_create(c"fusee-pool".as_ptr(), flags) })?);
    // SAFETY: the call takes numbers only; the descriptor is open.
    check(unsafe { libc::ftruncate(file.as_raw_fd(), file_len) })?;
    let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
    // SAFETY: the call takes numbers only; the descriptor is open.
    check(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seals) })?;
    let map_len = usize::try_from(len).map_err(overflow)?;
    let mapping = Mapping::new(&file, map_len)?;
    Ok((file, mapping))
}

/// Gives whole pages of a shared mapping back to the system. The pages read as zeros afterwards. Returns whether
/// the system took them.
///
/// # Safety
/// The range is in a live shared mapping, and its start is a multiple of the page size.
pub(crate) unsafe fn discard_pages(start: *mut u64, bytes: usize) -> bool {
    // SAFETY: the caller vouches that the range is live. The call changes its contents as a write of zeros would.
    unsafe { libc::madvise(start.cast(), bytes, libc::MADV_REMOVE) == 0 }
}

/// Makes the system provide the pages of a shared mapping, as writes to them would, but without changing them. Returns
/// an error if the system has no memory left, or is too old for this call (`InvalidInput`, before Linux 5.14).
///
/// # Safety
/// The range is in a live shared mapping, and its start is a multiple of the page size.
pub(crate) unsafe fn populate_pages(start: *mut u64, bytes: usize) -> io::Result<()> {
    // SAFETY: the caller vouches that the range is live. The call does not change its contents.
    check(unsafe { libc::madvise(start.cast(), bytes, libc::MADV_POPULATE_WRITE) }).map(drop)
}

/// Maps a memfd that another process made, if it is sealed against shrinking and at least `bytes` long.
pub(crate) fn map_sealed(file: &OwnedFd, bytes: u64) -> io::Result<Mapping> {
    // SAFETY: the call takes numbers only; the descriptor is open.
    let seals = check(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GET_SEALS) })?;
    if seals & libc::F_SEAL_SHRINK == 0 {
        return Err(io::Error::other("the pool is not sealed against shrinking"));
    }
    let file_bytes = std::fs::File::from(file.try_clone()?).metadata()?.len();
    if file_bytes < bytes {
        return Err(io::Error::other("the pool is shorter than its memory node says"));
    }
    let overflow = |_| io::Error::from(io::ErrorKind::OutOfMemory);
    // Huge pages can only be unmapped whole, so the whole file is mapped.
    Mapping::new(file, usize::try_from(file_bytes).map_err(overflow)?)
}

/// Makes a vector of `len` copies of a value, in huge pages if the system has free ones. Meant for large tables that
/// are read at random places, because such reads spend most of their time on address translation.
pub fn huge_page_vec<T: Copy>(value: T, len: usize) -> Vec<T> {
    let mut filled: Vec<T> = Vec::with_capacity(len);
    let bytes = len * size_of::<T>();
    if bytes >= 2 * HUGE_PAGE_BYTES as usize {
        let start = filled.as_mut_ptr().cast::<u8>();
        let skipped = start.align_offset(PAGE_BYTES);
        let whole = (bytes - skipped) / PAGE_BYTES * PAGE_BYTES;
        // SAFETY: the range is whole pages in the vector's memory, and the advice does not change their contents.
        let advised = unsafe {
            libc::madvise(start.wrapping_add(skipped).cast(), whole, libc::MADV_HUGEPAGE)
        };
        if let Err(error) = check(advised) {
            tracing::debug!(%error, "no huge pages");
        }
    }
    filled.resize(len, value);
    filled
}

static REGISTERED: OnceLock<bool> = OnceLock::new();

/// Registers this process for [`barrier_everywhere`], once. Returns whether [`barrier_everywhere`] can be used.
pub(crate) fn can_barrier_everywhere() -> bool {
    *REGISTERED.get_or_init(|| {
        let registered = membarrier(libc::MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED);
        registered.inspect_err(|error| tracing::debug!(%error, "no membarrier")).is_ok()
    })
}

/// Registers this process, a forked child, for membarrier if its parent was registered.
pub(crate) fn register_again() {
    if REGISTERED.get() == Some(&true) {
        let again = membarrier(libc::MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED);
        again.expect("what the parent could register the child can");
    }
}

/// Returns a word that is set to zero in the child by every fork.
pub(crate) fn word_wiped_by_forks() -> &'static AtomicU32 {
    let known = WIPED.load(Ordering::Acquire);
    // SAFETY: the pointer is null, or leads to a word that is never unmapped.
    unsafe { known.as_ref() }.unwrap_or_else(make_wiped_word)
}

static WIPED: AtomicPtr<AtomicU32> = AtomicPtr::new(ptr::null_mut());

#[cold]
fn make_wiped_word() -> &'static AtomicU32 {
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: the kernel chooses the address, so the new mapping replaces no other memory.
    let page = unsafe { libc::mmap(ptr::null_mut(), PAGE_BYTES, access, flags, -1, 0) };
    assert!(page != libc::MAP_FAILED, "no memory for a word: {}", io::Error::last_os_error());
    // SAFETY: the range is the new mapping, which no other code uses yet.
    let wiped = check(unsafe { libc::madvise(page, PAGE_BYTES, libc::MADV_WIPEONFORK) });
    let null = ptr::null_mut();
    let word = page.cast::<AtomicU32>();
    // Release: pairs with the acquire loads of `WIPED`.
    let made = WIPED.compare_exchange(null, word, Ordering::AcqRel, Ordering::Acquire);
    let word = match made {
        Ok(_) => word,
        Err(found) => {
            // SAFETY: the range is the new mapping, which no other code has seen.
            unsafe { libc::munmap(page, PAGE_BYTES) };
            found
        }
    };
    if let (Err(error), Ok(_)) = (wiped, made) {
        tracing::debug!(%error, "the kernel wipes no memory in children");
        // SAFETY: the handler only stores to a word that is never unmapped, which is allowed in a child.
        let failure = unsafe { libc::pthread_atfork(None, None, Some(wipe)) };
        assert_eq!(failure, 0, "children could not be told from their parents");
    }
    // SAFETY: the word is aligned and never unmapped. Its zero bytes are a valid value.
    unsafe { &*word }
}

/// Sets the word to zero in a forked child, on kernels that do not do this themselves.
extern "C" fn wipe() {
    // SAFETY: the pointer is null, or leads to a word that is never unmapped.
    if let Some(word) = unsafe { WIPED.load(Ordering::Relaxed).as_ref() } {
        word.store(0, Ordering::Relaxed);
    }
}

/// Makes every running thread of this process pass a full memory barrier.
///
/// # Panics
/// If [`can_barrier_everywhere`] returns false.
pub(crate) fn barrier_everywhere() {
    membarrier(libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED).expect("registered, so it cannot fail");
}

fn membarrier(command: c_int) -> io::Result<()> {
    // SAFETY: the call takes numbers only.
    check_long(unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) }).map(drop)
}

/// Makes reads from a descriptor fail if no data are there, instead of waiting for data.
pub(crate) fn set_nonblocking(fd: RawFd) -> io::Result<()> {
    // SAFETY: the calls take numbers only.
    unsafe {
        let flags = check(libc::fcntl(fd, libc::F_GETFL))?;
        check(libc::fcntl(fd, libc::F_SETFL, flags | libc::O_NONBLOCK)).map(drop)
    }
}

/// Lets a listener queue `backlog` connections that are not accepted yet, and one more.
#[cfg(test)]
pub(crate) fn set_backlog(listener: &impl AsRawFd, backlog: c_int) -> io::Result<()> {
    // SAFETY: the call takes numbers only.
    check(unsafe { libc::listen(listener.as_raw_fd(), backlog) }).map(drop)
}

/// Sets a socket option whose value is an integer.
fn set_option(socket: &impl AsRawFd, level: c_int, name: c_int, value: c_int) -> io::Result<()> {
    set_plain(socket, level, name, &value)
}

/// Sets a socket option. `T` must be the type that the kernel expects for the option.
fn set_plain<T: Copy>(
    socket: &impl AsRawFd,
    level: c_int,
    name: c_int,
    value: &T,
) -> io::Result<()> {
    let value = ptr::from_ref(value).cast();
    let len = size_of::<T>() as libc::socklen_t;
    // SAFETY: the value has `len` bytes and outlives the call, which only reads it.
    check(unsafe { libc::setsockopt(socket.as_raw_fd(), level, name, value, len) }).map(drop)
}

/// The length in bytes of the header before each frame of [`packet_socket`]: `struct virtio_net_hdr`.
pub(crate) const OFFLOAD_BYTES: usize = 10;
/// The size in bytes of the socket's buffer for frames that have not been received yet.
const PACKET_BUFFER_BYTES: c_int = 8 << 20;

/// Opens a socket that receives all frames of a network interface and can send frames there. Each frame is preceded
/// by [`OFFLOAD_BYTES`] that tell which offloads are still to be done, so a received frame can be sent on at
/// another interface.
pub(crate) fn packet_socket(interface: &str) -> io::Result<OwnedFd> {
    let name = std::ffi::CString::new(interface)?;
    // SAFETY: the name is a C string, alive during the call.
    let index = unsafe { libc::if_nametoindex(name.as_ptr()) };
    if index == 0 {
        return Err(io::Error::last_os_error());
    }
    let kind = libc::SOCK_RAW | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    // SAFETY: the call takes numbers only. The protocol is 0, so that no frames arrive before the bind.
    let socket = own(check(unsafe { libc::socket(libc::AF_PACKET, kind, 0) })?);
    set_option(&socket, libc::SOL_PACKET, libc::PACKET_VNET_HDR, 1)?;
    // The socket ignores frames that leave through the interface.
    set_option(&socket, libc::SOL_PACKET, libc::PACKET_IGNORE_OUTGOING, 1)?;
    // Only privileged processes can exceed the system's limit; others get up to that limit.
    set_option(&socket, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, PACKET_BUFFER_BYTES)
        .or_else(|_| set_option(&socket, libc::SOL_SOCKET, libc::SO_RCVBUF, PACKET_BUFFER_BYTES))?;
    let all = libc::packet_mreq {
        mr_ifindex: index as c_int,
        mr_type: libc::PACKET_MR_PROMISC as libc::c_ushort,
        mr_alen: 0,
        mr_address: [0; 8],
    };
    set_plain(&socket, libc::SOL_PACKET, libc::PACKET_ADD_MEMBERSHIP, &all)?;
    // SAFETY: all zeros is a valid `sockaddr_ll`.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    address.sll_family = libc::AF_PACKET as libc::c_ushort;
    address.sll_protocol = (libc::ETH_P_ALL as u16).to_be();
    address.sll_ifindex = index as c_int;
    let address = (&raw const address).cast();
    let len = size_of::<libc::sockaddr_ll>();
    // SAFETY: the address has `len` bytes and outlives the call.
    check(unsafe { libc::bind(socket.as_raw_fd(), address, len as libc::socklen_t) })?;
    Ok(socket)
}

/// Makes the system check whether the machine at the other end of an idle TCP connection still answers. The
/// connection breaks after two minutes without an answer.
pub(crate) fn keep_alive(socket: &impl AsRawFd) -> io::Result<()> {
    let set = |level: c_int, name: c_int, value: c_int| set_option(socket, level, name, value);
    set(libc::SOL_SOCKET, libc::SO_KEEPALIVE, 1)?;
    set(libc::IPPROTO_TCP, libc::TCP_KEEPIDLE, 60)?;
    set(libc::IPPROTO_TCP, libc::TCP_KEEPINTVL, 10)?;
    set(libc::IPPROTO_TCP, libc::TCP_KEEPCNT, 6)?;
    // Two minutes are also the limit for sent data that is not acknowledged.
    set(libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT, 120_000)
}

/// A process, identified by a pidfd, because process numbers are used again.
#[derive(Debug)]
pub(crate) struct Process {
    pub(crate) pid: u32,
    pidfd: OwnedFd,
}

impl Process {
    /// Returns the process that connected this Unix socket, if that process still lives.
    pub(crate) fn of_peer(socket: &impl AsRawFd) -> io::Result<Process> {
        let pid = peer_pid(socket)?;
        // SAFETY: the call takes numbers only.
        let pidfd = own(check_long(unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) })?);
        // Before the call above, the process has possibly ended, and another process has got its number. But if the
        // connection is still open, the process that made it still lived after the call.
        if ready(socket.as_raw_fd(), 0, Duration::ZERO)? {
            return Err(io::Error::from(io::ErrorKind::ConnectionReset));
        }
        Ok(Process { pid, pidfd })
    }

    fn signal(&self, signal: c_int) -> io::Result<()> {
        let fd = self.pidfd.as_raw_fd();
        let info = ptr::null::<c_void>();
        // SAFETY: the call takes numbers and a null pointer, which asks for the default signal information.
        let done = unsafe { libc::syscall(libc::SYS_pidfd_send_signal, fd, signal, info, 0) };
        check_long(done).map(drop)
    }

    /// Returns whether this process has permission to kill the process.
    pub(crate) fn killable(&self) -> bool {
        self.signal(0).is_ok()
    }

    /// Kills the process. Succeeds if the process is dead already.
    pub(crate) fn kill(&self) -> io::Result<()> {
        match self.signal(libc::SIGKILL) {
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => Ok(()),
            result => result,
        }
    }

    /// Waits until all threads of the process have ended, for at most `wait`. Returns whether they have ended.
    pub(crate) fn ended(&self, wait: Duration) -> io::Result<bool> {
        ready(self.pidfd.as_raw_fd(), libc::POLLIN, wait)
    }
}

impl AsRawFd for Process {
    fn as_raw_fd(&self) -> RawFd {
        self.pidfd.as_raw_fd()
    }
}

/// Returns the number of the process at the other end of this Unix socket.
fn peer_pid(socket: &impl AsRawFd) -> io::Result<u32> {
    match u32::try_from(peer(socket)?.pid) {
        Ok(pid) if pid > 0 => Ok(pid),
        _ => Err(io::Error::other("the peer is in a process namespace that we cannot see")),
    }
}

/// Returns the user of the process at the other end of this Unix socket, at the time of its connect or listen.
pub(crate) fn peer_uid(socket: &impl AsRawFd) -> io::Result<u32> {
    Ok(peer(socket)?.uid)
}

/// Returns the effective user of this process.
pub(crate) fn own_uid() -> u32 {
    // SAFETY: the call takes no arguments and cannot fail.
    unsafe { libc::geteuid() }
}

fn peer(socket: &impl AsRawFd) -> io::Result<libc::ucred> {
    let mut credentials = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: `credentials` has `len` bytes and is plain data; the kernel writes at most `len` bytes.
    check(unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut credentials).cast(),
            &raw mut len,
        )
    })?;
    Ok(credentials)
}

/// Waits until a descriptor has one of `events`, an error or a hang-up, for at most `wait`. Returns whether it has.
fn ready(fd: RawFd, events: libc::c_short, wait: Duration) -> io::Result<bool> {
    let mut poll = libc::pollfd { fd, events, revents: 0 };
    let wait = c_int::try_from(wait.as_millis()).unwrap_or(c_int::MAX);
    // SAFETY: the pointer is to one live structure, as the count says.
    match check(unsafe { libc::poll(&raw mut poll, 1, wait) }) {
        Ok(ready) => Ok(ready > 0),
        Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(false),
        Err(error) => Err(error),
    }
}

/// A buffer for the control message that carries one descriptor, aligned as the kernel requires.
#[repr(align(8))]
struct ControlMessageBuffer([u8; 64]);

fn message(data: &mut libc::iovec, control: &mut ControlMessageBuffer) -> libc::msghdr {
    // SAFETY: all zeros is a valid, empty message header.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = data;
    message.msg_iovlen = 1;
    message.msg_control = control.0.as_mut_ptr().cast();
    // SAFETY: the function only computes a length. (The type of the length differs with musl.)
    message.msg_controllen = unsafe { libc::CMSG_SPACE(size_of::<c_int>() as u32) } as _;
    message
}

/// Sends `bytes` together with a descriptor.
pub(crate) fn send_with_fd(to: &impl AsRawFd, bytes: &[u8], fd: &impl AsFd) -> io::Result<usize> {
    let mut control = ControlMessageBuffer([0; 64]);
    let mut data = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    let message = message(&mut data, &mut control);
    // SAFETY: the header describes `control`, which has room for one descriptor, so `CMSG_FIRSTHDR` is not null and
    // the writes are in bounds. `sendmsg` only reads `bytes`.
    let sent = unsafe {
        let header = libc::CMSG_FIRSTHDR(&raw const message);
        (*header).cmsg_level = libc::SOL_SOCKET;
        (*header).cmsg_type = libc::SCM_RIGHTS;
        (*header).cmsg_len = libc::CMSG_LEN(size_of::<c_int>() as u32) as _;
        libc::CMSG_DATA(header).cast::<c_int>().write_unaligned(fd.as_fd().as_raw_fd());
        libc::sendmsg(to.as_raw_fd(), &raw const message, libc::MSG_NOSIGNAL)
    };
    usize::try_from(sent).map_err(|_| io::Error::last_os_error())
}

/// Receives bytes, and the descriptor that came with them, if there was one.
pub(crate) fn receive_with_fd(
    from: &impl AsRawFd,
    bytes: &mut [u8],
) -> io::Result<(usize, Option<OwnedFd>)> {
    let mut control = ControlMessageBuffer([0; 64]);
    let mut data = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    let mut message = message(&mut data, &mut control);
    // SAFETY: the kernel writes into `bytes` and `control`, at most the lengths given.
    let received =
        unsafe { libc::recvmsg(from.as_raw_fd(), &raw mut message, libc::MSG_CMSG_CLOEXEC) };
    let received = usize::try_from(received).map_err(|_| io::Error::last_os_error())?;
    // SAFETY: the kernel has filled in the header. Null means that no control message came. A message with one
    // descriptor has one valid, new descriptor behind its header.
    let fd = unsafe {
        let header = libc::CMSG_FIRSTHDR(&raw const message);
        let one = libc::CMSG_LEN(size_of::<c_int>() as u32) as _;
        let descriptor = !header.is_null()
            && (*header).cmsg_level == libc::SOL_SOCKET
            && (*header).cmsg_type == libc::SCM_RIGHTS
            && (*header).cmsg_len == one;
        descriptor.then(|| own(libc::CMSG_DATA(header).cast::<c_int>().read_unaligned()))
    };
    Ok((received, fd))
}
