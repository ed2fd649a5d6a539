//! System calls without a wrapper in a library that we use: memfd and mmap, pidfd, descriptor passing and flags,
//! membarrier, memory that a fork wipes, packet sockets.
//!
//! Each function is a thin, safe wrapper: it takes owned or borrowed descriptors, turns -1 into [`io::Error`],
//! and keeps the pointers it hands to the kernel alive for the call. The callers document the purposes.

use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};
use std::time::Duration;

use libc::{c_int, c_void};

use crate::fork::OriginProcess;

/// Pages of this size are asked for as huge pages.
const HUGE_PAGE_BYTES: u64 = 2 << 20;
const PAGE_BYTES: usize = 4096;

fn check(result: c_int) -> io::Result<c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

fn check_long(result: libc::c_long) -> io::Result<c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result as c_int) }
}

/// Takes a descriptor that the kernel has just made.
fn own(fd: c_int) -> OwnedFd {
    // SAFETY: the kernel has just given us this descriptor, and no other code knows it.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

/// A shared mapping; unmapped on drop.
pub(crate) struct Mapping {
    start: *mut u8,
    len: usize,
    origin: OriginProcess,
}

// SAFETY: the mapping is plain memory that belongs to no thread; all accesses are atomic.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// The first byte, page-aligned.
    pub(crate) fn start(&self) -> *mut u8 {
        self.start
    }

    fn new(file: &OwnedFd, len: usize) -> io::Result<Mapping> {
        Mapping::map(len, libc::MAP_SHARED, file.as_raw_fd())
    }

    /// Fresh memory of this process alone, all zeros.
    pub(crate) fn anonymous(len: usize) -> io::Result<Mapping> {
        Mapping::map(len, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1)
    }

    /// Makes the first `len` bytes read-only. `len` is a multiple of the page size.
    pub(crate) fn protect_start(&self, len: usize) -> io::Result<()> {
        assert!(len <= self.len, "outside of the mapping");
        // SAFETY: the range is our mapping. A write there, in spite of the checks, kills the process.
        check(unsafe { libc::mprotect(self.start.cast(), len, libc::PROT_READ) }).map(drop)
    }

    fn map(len: usize, flags: c_int, file: RawFd) -> io::Result<Mapping> {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice disturbs no other memory.
        let start = unsafe { libc::mmap(ptr::null_mut(), len, access, flags, file, 0) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let mapping = Mapping { start: start.cast(), len, origin: OriginProcess::here() };
        // A child has no mapping of a pool: a fence of this process must be sure that no copy of the process
        // goes on. And a fork must not make copies, unknown to the NIC, of memory that a NIC writes to.
        // SAFETY: the range is our mapping.
        check(unsafe { libc::madvise(start, len, libc::MADV_DONTFORK) })?;
        Ok(mapping)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // A child does not have the mapping, but may have other memory at that address by now.
        if self.origin.is_here() {
            // SAFETY: there are no more uses of the mapping: every access borrows it.
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
    // SAFETY: the name is a C string.
    let file = own(check(unsafe { libc::memfd_create(c"fusee-pool".as_ptr(), flags) })?);
    // SAFETY: plain call on our descriptor.
    check(unsafe { libc::ftruncate(file.as_raw_fd(), file_len) })?;
    let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
    // SAFETY: plain call on our descriptor.
    check(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seals) })?;
    let map_len = usize::try_from(len).map_err(overflow)?;
    let mapping = Mapping::new(&file, map_len)?;
    Ok((file, mapping))
}

/// Gives whole pages of a shared mapping back to the system; they read as zeros afterwards. Returns whether the
/// system took them.
///
/// # Safety
/// The range is in a live shared mapping, and its start is a multiple of the page size.
pub(crate) unsafe fn discard_pages(start: *mut u64, bytes: usize) -> bool {
    // SAFETY: by the caller. The call changes the contents as a write of zeros would.
    unsafe { libc::madvise(start.cast(), bytes, libc::MADV_REMOVE) == 0 }
}

/// Maps a memfd that another process made, if it is sealed and at least `bytes` long.
pub(crate) fn map_sealed(file: &OwnedFd, bytes: u64) -> io::Result<Mapping> {
    // SAFETY: plain call on our descriptor.
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

/// Makes a vector of `len` copies of a value, in huge pages if the system has some free. It is for large tables
/// with random reads, which spend most of their time on address translation.
pub fn huge_page_vec<T: Copy>(value: T, len: usize) -> Vec<T> {
    let mut filled: Vec<T> = Vec::with_capacity(len);
    let bytes = len * size_of::<T>();
    if bytes >= 2 * HUGE_PAGE_BYTES as usize {
        let start = filled.as_mut_ptr().cast::<u8>();
        let skipped = start.align_offset(PAGE_BYTES);
        let whole = (bytes - skipped) / PAGE_BYTES * PAGE_BYTES;
        // SAFETY: whole pages in the vector's memory, and the advice changes no contents.
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

/// Registers this process for [`barrier_everywhere`], once. Returns whether it can be used.
pub(crate) fn can_barrier_everywhere() -> bool {
    *REGISTERED.get_or_init(|| {
        let registered = membarrier(libc::MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED);
        registered.inspect_err(|error| tracing::debug!(%error, "no membarrier")).is_ok()
    })
}

/// Registers this process, a child, for membarrier if its parent is registered.
pub(crate) fn register_again() {
    if REGISTERED.get() == Some(&true) {
        let again = membarrier(libc::MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED);
        again.expect("what the parent could register the child can");
    }
}

/// Returns a word that every fork sets to zero in the child.
pub(crate) fn word_wiped_by_forks() -> &'static AtomicU32 {
    let known = WIPED.load(Ordering::Acquire);
    // SAFETY: null, or a word that stays for ever.
    unsafe { known.as_ref() }.unwrap_or_else(make_wiped_word)
}

static WIPED: AtomicPtr<AtomicU32> = AtomicPtr::new(ptr::null_mut());

#[cold]
fn make_wiped_word() -> &'static AtomicU32 {
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a new mapping at an address of the kernel's choice disturbs no other memory.
    let page = unsafe { libc::mmap(ptr::null_mut(), PAGE_BYTES, access, flags, -1, 0) };
    assert!(page != libc::MAP_FAILED, "no memory for a word: {}", io::Error::last_os_error());
    // SAFETY: the range is our mapping.
    let wiped = check(unsafe { libc::madvise(page, PAGE_BYTES, libc::MADV_WIPEONFORK) });
    let null = ptr::null_mut();
    let word = page.cast::<AtomicU32>();
    // Release: pairs with the acquires.
    let made = WIPED.compare_exchange(null, word, Ordering::AcqRel, Ordering::Acquire);
    let word = match made {
        Ok(_) => word,
        Err(found) => {
            // SAFETY: our mapping, which no other code knows.
            unsafe { libc::munmap(page, PAGE_BYTES) };
            found
        }
    };
    if let (Err(error), Ok(_)) = (wiped, made) {
        tracing::debug!(%error, "the kernel wipes no memory in children");
        // SAFETY: the handler stores one word, which stays for ever.
        let failure = unsafe { libc::pthread_atfork(None, None, Some(wipe)) };
        assert_eq!(failure, 0, "children could not be told from their parents");
    }
    // SAFETY: the word is mapped for ever. Its zero bytes are a valid value.
    unsafe { &*word }
}

/// Sets the word to zero in a child, where the kernel does not.
extern "C" fn wipe() {
    // SAFETY: as in `word_wiped_by_forks`.
    if let Some(word) = unsafe { WIPED.load(Ordering::Relaxed).as_ref() } {
        word.store(0, Ordering::Relaxed);
    }
}

/// Makes every running thread of this process pass a full memory barrier.
///
/// # Panics
/// If [`can_barrier_everywhere`] is false.
pub(crate) fn barrier_everywhere() {
    membarrier(libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED).expect("registered, so it cannot fail");
}

fn membarrier(command: c_int) -> io::Result<()> {
    // SAFETY: the call takes numbers only.
    check_long(unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) }).map(drop)
}

/// Makes reads of a descriptor fail when there are no data, instead of waiting for some.
pub(crate) fn set_nonblocking(fd: RawFd) -> io::Result<()> {
    // SAFETY: plain calls that take numbers only.
    unsafe {
        let flags = check(libc::fcntl(fd, libc::F_GETFL))?;
        check(libc::fcntl(fd, libc::F_SETFL, flags | libc::O_NONBLOCK)).map(drop)
    }
}

/// Lets a listener queue `backlog` connections that are not accepted yet, and one more.
#[cfg(test)]
pub(crate) fn set_backlog(listener: &impl AsRawFd, backlog: c_int) -> io::Result<()> {
    // SAFETY: a plain call that takes numbers only.
    check(unsafe { libc::listen(listener.as_raw_fd(), backlog) }).map(drop)
}

/// Sets a socket option whose value is an integer.
fn set_option(socket: &impl AsRawFd, level: c_int, name: c_int, value: c_int) -> io::Result<()> {
    set_plain(socket, level, name, &value)
}

/// Sets a socket option. `T` is the type that the kernel expects for it.
fn set_plain<T: Copy>(
    socket: &impl AsRawFd,
    level: c_int,
    name: c_int,
    value: &T,
) -> io::Result<()> {
    let value = ptr::from_ref(value).cast();
    let len = size_of::<T>() as libc::socklen_t;
    // SAFETY: the value has so many bytes, and outlives the call, which only reads it.
    check(unsafe { libc::setsockopt(socket.as_raw_fd(), level, name, value, len) }).map(drop)
}

/// Length of the header before each frame of [`packet_socket`]: `struct virtio_net_hdr`.
pub(crate) const OFFLOAD_BYTES: usize = 10;
/// The socket's buffer for frames that have not been received yet.
const PACKET_BUFFER_BYTES: c_int = 8 << 20;

/// Opens a socket that receives all frames of a network interface and can send some there. Each frame begins
/// with [`OFFLOAD_BYTES`] that tell which offloads are still to be done, so a received frame can be sent on at
/// another interface.
pub(crate) fn packet_socket(interface: &str) -> io::Result<OwnedFd> {
    let name = std::ffi::CString::new(interface)?;
    // SAFETY: the name is a C string.
    let index = unsafe { libc::if_nametoindex(name.as_ptr()) };
    if index == 0 {
        return Err(io::Error::last_os_error());
    }
    let kind = libc::SOCK_RAW | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    // Without a protocol, so that no frames arrive before the bind.
    // SAFETY: a plain call that takes numbers only.
    let socket = own(check(unsafe { libc::socket(libc::AF_PACKET, kind, 0) })?);
    set_option(&socket, libc::SOL_PACKET, libc::PACKET_VNET_HDR, 1)?;
    // Frames that leave through the interface are not wanted.
    set_option(&socket, libc::SOL_PACKET, libc::PACKET_IGNORE_OUTGOING, 1)?;
    // Only privileged processes may exceed the system's limit.
    set_option(&socket, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, PACKET_BUFFER_BYTES)
        .or_else(|_| set_option(&socket, libc::SOL_SOCKET, libc::SO_RCVBUF, PACKET_BUFFER_BYTES))?;
    let all = libc::packet_mreq {
        mr_ifindex: index as c_int,
        mr_type: libc::PACKET_MR_PROMISC as libc::c_ushort,
        mr_alen: 0,
        mr_address: [0; 8],
    };
    set_plain(&socket, libc::SOL_PACKET, libc::PACKET_ADD_MEMBERSHIP, &all)?;
    // SAFETY: all zeros is a valid address.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    address.sll_family = libc::AF_PACKET as libc::c_ushort;
    address.sll_protocol = (libc::ETH_P_ALL as u16).to_be();
    address.sll_ifindex = index as c_int;
    let address = (&raw const address).cast();
    let len = size_of::<libc::sockaddr_ll>();
    // SAFETY: the address has so many bytes, and outlives the call.
    check(unsafe { libc::bind(socket.as_raw_fd(), address, len as libc::socklen_t) })?;
    Ok(socket)
}

/// Makes the system check whether the machine at the other end of an idle TCP connection still answers. After
/// two minutes without an answer the connection breaks.
pub(crate) fn keep_alive(socket: &impl AsRawFd) -> io::Result<()> {
    let set = |level: c_int, name: c_int, value: c_int| set_option(socket, level, name, value);
    set(libc::SOL_SOCKET, libc::SO_KEEPALIVE, 1)?;
    set(libc::IPPROTO_TCP, libc::TCP_KEEPIDLE, 60)?;
    set(libc::IPPROTO_TCP, libc::TCP_KEEPINTVL, 10)?;
    set(libc::IPPROTO_TCP, libc::TCP_KEEPCNT, 6)?;
    // The same limit for sent data that is not acknowledged.
    set(libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT, 120_000)
}

/// A process, identified by a pidfd: process numbers are used again.
#[derive(Debug)]
pub(crate) struct Process {
    pub(crate) pid: u32,
    pidfd: OwnedFd,
}

impl Process {
    /// Returns the process that connected this Unix socket, if it still lives.
    pub(crate) fn of_peer(socket: &impl AsRawFd) -> io::Result<Process> {
        let pid = peer_pid(socket)?;
        // SAFETY: the call takes numbers only.
        let pidfd = own(check_long(unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) })?);
        // The number may have been used again before we opened it. But if the connection still stands, then the
        // process that made it still lived after that.
        if ready(socket.as_raw_fd(), 0, Duration::ZERO)? {
            return Err(io::Error::from(io::ErrorKind::ConnectionReset));
        }
        Ok(Process { pid, pidfd })
    }

    fn signal(&self, signal: c_int) -> io::Result<()> {
        let fd = self.pidfd.as_raw_fd();
        let info = ptr::null::<c_void>();
        // SAFETY: a null pointer asks for the default signal information.
        let done = unsafe { libc::syscall(libc::SYS_pidfd_send_signal, fd, signal, info, 0) };
        check_long(done).map(drop)
    }

    /// Returns whether we may kill the process.
    pub(crate) fn killable(&self) -> bool {
        self.signal(0).is_ok()
    }

    /// Kills the process. Succeeds if it is dead already.
    pub(crate) fn kill(&self) -> io::Result<()> {
        match self.signal(libc::SIGKILL) {
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => Ok(()),
            result => result,
        }
    }

    /// Waits for the end of all threads of the process. Returns whether they have ended.
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

/// Returns the user of the process at the other end of this Unix socket, as of its connect or listen.
pub(crate) fn peer_uid(socket: &impl AsRawFd) -> io::Result<u32> {
    Ok(peer(socket)?.uid)
}

/// Returns the effective user of this process.
pub(crate) fn own_uid() -> u32 {
    // SAFETY: the call takes nothing and cannot fail.
    unsafe { libc::geteuid() }
}

fn peer(socket: &impl AsRawFd) -> io::Result<libc::ucred> {
    let mut credentials = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes into a plain structure of that size.
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

/// Waits until a descriptor has one of `events`, or an error or hang-up. Returns whether it has.
fn ready(fd: RawFd, events: libc::c_short, wait: Duration) -> io::Result<bool> {
    let mut poll = libc::pollfd { fd, events, revents: 0 };
    let wait = c_int::try_from(wait.as_millis()).unwrap_or(c_int::MAX);
    // SAFETY: one valid structure, as the count says.
    match check(unsafe { libc::poll(&raw mut poll, 1, wait) }) {
        Ok(ready) => Ok(ready > 0),
        Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(false),
        Err(error) => Err(error),
    }
}

/// Room for the control message that carries one descriptor, aligned as the kernel wants it.
#[repr(align(8))]
struct ControlMessageBuffer([u8; 64]);

fn message(data: &mut libc::iovec, control: &mut ControlMessageBuffer) -> libc::msghdr {
    // SAFETY: all zeros are a valid, empty message header.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = data;
    message.msg_iovlen = 1;
    message.msg_control = control.0.as_mut_ptr().cast();
    // SAFETY: pure arithmetic. (Its type is another one with musl.)
    message.msg_controllen = unsafe { libc::CMSG_SPACE(size_of::<c_int>() as u32) } as _;
    message
}

/// Sends `bytes` together with a descriptor.
pub(crate) fn send_with_fd(to: &impl AsRawFd, bytes: &[u8], fd: &impl AsFd) -> io::Result<usize> {
    let mut control = ControlMessageBuffer([0; 64]);
    let mut data = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    let message = message(&mut data, &mut control);
    // SAFETY: the header describes `control`, which has room for one descriptor; `sendmsg` only
    // reads `bytes`.
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

/// Receives bytes, and the descriptor that came with them, if one did.
pub(crate) fn receive_with_fd(
    from: &impl AsRawFd,
    bytes: &mut [u8],
) -> io::Result<(usize, Option<OwnedFd>)> {
    let mut control = ControlMessageBuffer([0; 64]);
    let mut data = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    let mut message = message(&mut data, &mut control);
    // SAFETY: the kernel writes into `bytes` and `control`, within the lengths given.
    let received =
        unsafe { libc::recvmsg(from.as_raw_fd(), &raw mut message, libc::MSG_CMSG_CLOEXEC) };
    let received = usize::try_from(received).map_err(|_| io::Error::last_os_error())?;
    // SAFETY: the kernel has filled in the header; null means that no control message came along.
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
