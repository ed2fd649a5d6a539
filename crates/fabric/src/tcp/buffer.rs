//! A queue of bytes between a socket and the code that handles frames.
//!
//! Bytes enter at the back and leave at the front. The bytes in the queue are one slice, so that frames are parsed
//! where they were received. A buffer grows with the bytes that arrive, never with a length that a peer announces.
//! It never grows beyond the arriving frame and one read from the socket, and gives the memory of a large frame
//! back when the frame is consumed.

use std::io::{self, Read, Write};

/// The least room in bytes that a read from a socket gets.
const READ_BYTES: usize = 64 << 10;
/// The largest capacity in bytes that a buffer keeps when it is empty or nearly so.
const KEEP_BYTES: usize = 1 << 20;
/// The capacity in bytes up to which [`Buffer::reserve`] doubles a buffer. It enlarges a larger buffer by exactly what
/// is needed.
const DOUBLING_BYTES: usize = 1 << 20;
/// The capacity in bytes up to which [`Buffer::fill`] doubles a buffer. It enlarges a larger buffer by at most as many
/// bytes as are queued in it.
const FILL_DOUBLING_BYTES: usize = 2 * READ_BYTES;

/// A queue of received bytes, or of bytes to send.
#[derive(Debug, Default)]
pub(super) struct Buffer {
    bytes: Vec<u8>,
    start: usize,
    end: usize,
}

/// The outcome of a read or write on a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SocketProgress {
    /// The socket possibly has more bytes, or room for more.
    More,
    /// The socket has no more bytes, or no more room, for now.
    Blocked,
    /// The peer has closed its side.
    End,
}

impl Buffer {
    pub(super) fn len(&self) -> usize {
        self.end - self.start
    }

    pub(super) fn is_empty(&self) -> bool {
        self.start == self.end
    }

    pub(super) fn filled(&self) -> &[u8] {
        &self.bytes[self.start..self.end]
    }

    /// Removes `len` bytes from the front of the queue.
    pub(super) fn consume(&mut self, len: usize) {
        assert!(len <= self.len(), "more consumed than there is");
        self.start += len;
        if self.is_empty() {
            (self.start, self.end) = (0, 0);
        }
        if self.bytes.len() > KEEP_BYTES && self.len() <= KEEP_BYTES / 2 {
            let left = if self.is_empty() { 0 } else { KEEP_BYTES };
            self.move_to(left);
        }
    }

    /// Returns the bytes of memory that the buffer holds.
    pub(super) fn capacity(&self) -> usize {
        self.bytes.len()
    }

    /// Moves the queued bytes to the front of newly allocated memory with this capacity.
    fn move_to(&mut self, capacity: usize) {
        let mut bytes = vec![0; capacity];
        bytes[..self.len()].copy_from_slice(self.filled());
        (self.end, self.start) = (self.len(), 0);
        self.bytes = bytes;
    }

    /// Returns the capacity with which `len` more bytes fit, if the buffer doubles up to a capacity of `most` and
    /// not beyond.
    fn capacity_with(&self, len: usize, most: usize) -> usize {
        let capacity = self.bytes.len();
        let needed = self.len() + len;
        if capacity - self.end >= len {
            return capacity;
        }
        // Moves are amortized: the buffer moves bytes only if enough bytes were consumed since the last move, or if it
        // is not allowed to grow any more.
        let may_move = self.start * 4 >= self.len() || capacity >= most;
        if needed <= capacity && may_move {
            return capacity;
        }
        needed.max(capacity.saturating_mul(2).min(most)).max(capacity)
    }

    /// Makes room for at least `len` bytes at the back, and returns that room.
    fn room(&mut self, len: usize, most: usize) -> &mut [u8] {
        if self.bytes.len() - self.end < len {
            let capacity = self.capacity_with(len, most);
            if capacity == self.bytes.len() {
                self.bytes.copy_within(self.start..self.end, 0);
                (self.start, self.end) = (0, self.end - self.start);
            } else {
                self.move_to(capacity);
            }
        }
        &mut self.bytes[self.end..]
    }

    /// Returns the capacity that the buffer will have after [`Buffer::reserve`].
    pub(super) fn capacity_to_append(&self, len: usize) -> usize {
        self.capacity_with(len, DOUBLING_BYTES)
    }

    /// Makes room for `len` bytes at the back, and for few more.
    pub(super) fn reserve(&mut self, len: usize) {
        self.room(len, DOUBLING_BYTES);
    }

    /// Returns the largest capacity that the buffer needs to receive the `wanted` bytes that a frame still lacks,
    /// and one read beyond the frame's end.
    pub(super) fn capacity_to_fill(&self, wanted: usize) -> usize {
        let most = self.len() + wanted + READ_BYTES;
        self.capacity_with(self.step(wanted), FILL_DOUBLING_BYTES).max(most)
    }

    /// Returns the length of the next read: at most as much as has arrived so far (but at least `READ_BYTES`), so a
    /// header that announces a long frame costs no memory.
    fn step(&self, wanted: usize) -> usize {
        wanted.min(self.len()).max(READ_BYTES)
    }

    /// Adds `len` bytes at the back and returns them. They hold old bytes, which the caller has to overwrite.
    pub(super) fn extend(&mut self, len: usize) -> &mut [u8] {
        self.room(len, usize::MAX);
        self.end += len;
        &mut self.bytes[self.end - len..self.end]
    }

    /// Appends bytes to the queue.
    pub(super) fn append(&mut self, bytes: &[u8]) {
        self.extend(bytes.len()).copy_from_slice(bytes);
    }

    /// Reads once from a socket. `wanted` is the number of bytes that the frame at the front still lacks.
    pub(super) fn fill(
        &mut self,
        from: &mut impl Read,
        wanted: usize,
    ) -> io::Result<SocketProgress> {
        let room = self.room(self.step(wanted), FILL_DOUBLING_BYTES);
        let room_bytes = room.len();
        match from.read(room) {
            Ok(0) => Ok(SocketProgress::End),
            Ok(read) => {
                self.end += read;
                // A short read has emptied the socket. The next event tells when to read again.
                Ok(if read < room_bytes { SocketProgress::Blocked } else { SocketProgress::More })
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(SocketProgress::Blocked),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(SocketProgress::More),
            Err(error) => Err(error),
        }
    }

    /// Writes as much as a socket takes, including bytes that a layer above the socket (TLS) keeps. Returns `More`
    /// if all bytes were written.
    pub(super) fn drain(&mut self, to: &mut impl Write) -> io::Result<SocketProgress> {
        loop {
            let written = if self.is_empty() {
                to.flush().map(|()| None)
            } else {
                to.write(self.filled()).map(Some)
            };
            match written {
                Ok(None) => return Ok(SocketProgress::More),
                Ok(Some(0)) => return Ok(SocketProgress::End),
                Ok(Some(written)) => self.consume(written),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return Ok(SocketProgress::Blocked);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_come_out_in_the_order_they_went_in() {
        let mut buffer = Buffer::default();
        let mut next_in = 0u8;
        let mut next_out = 0u8;
        for round in 0..2000usize {
            for _ in 0..round * 7 % 1000 {
                buffer.append(&[next_in]);
                next_in = next_in.wrapping_add(1);
            }
            let take = (round * 11 % 1200).min(buffer.len());
            for byte in &buffer.filled()[..take] {
                assert_eq!(*byte, next_out);
                next_out = next_out.wrapping_add(1);
            }
            buffer.consume(take);
        }
    }

    #[test]
    fn an_announced_length_costs_no_memory() {
        let mut buffer = Buffer::default();
        let mut small: &[u8] = &[1; 16];
        assert_eq!(buffer.fill(&mut small, 16 << 20).unwrap(), SocketProgress::Blocked);
        assert!(buffer.bytes.len() <= 2 * READ_BYTES);
    }

    #[test]
    fn a_frame_never_costs_more_than_its_length() {
        let mut buffer = Buffer::default();
        let frame = 3 << 20;
        let piece = [1; 10_000];
        // Earlier frames have left the start of the bytes somewhere inside the memory.
        buffer.append(&[0; 50_000]);
        buffer.consume(49_000);
        while buffer.len() < frame {
            let wanted = frame - buffer.len();
            let promised = buffer.capacity_to_fill(wanted);
            buffer.fill(&mut &piece[..], wanted).unwrap();
            assert!(buffer.capacity() <= promised);
            assert!(
                buffer.capacity()
                    <= (2 * buffer.len() + 3 * READ_BYTES).min(frame + 2 * READ_BYTES)
            );
        }
        buffer.consume(frame);
        assert!(buffer.capacity() <= KEEP_BYTES);
    }

    #[test]
    fn what_is_promised_for_bytes_to_append_holds() {
        let mut buffer = Buffer::default();
        for round in 0..2000usize {
            let len = round * 7919 % 100_000;
            let promised = buffer.capacity_to_append(len);
            buffer.reserve(len);
            buffer.extend(len);
            assert!(
                buffer.capacity() <= promised
                    && promised <= 2 * (buffer.len() + READ_BYTES).max(2 << 20)
            );
            buffer.consume((round * 104_729 % 110_000).min(buffer.len()));
        }
    }

    #[test]
    fn a_large_frame_leaves_no_memory_behind() {
        let mut buffer = Buffer::default();
        buffer.append(&vec![7; 8 << 20]);
        let mut out = Vec::new();
        assert_eq!(buffer.drain(&mut out).unwrap(), SocketProgress::More);
        assert_eq!(out.len(), 8 << 20);
        assert!(buffer.bytes.capacity() <= KEEP_BYTES);
    }
}
