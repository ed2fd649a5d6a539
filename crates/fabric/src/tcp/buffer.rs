//! A queue of bytes between a socket and the frames.
//!
//! Bytes come in at the back and leave at the front; the memory in between is one slice, so that
//! frames are parsed where they were received. It grows with what really arrives, never with what
//! a peer announces, and gives the memory of a large frame back once it is empty.

use std::io::{self, Read, Write};

/// The least room to offer to a read from a socket, in bytes.
const READ_BYTES: usize = 64 << 10;
/// An empty buffer keeps at most this much memory, in bytes.
const KEEP_BYTES: usize = 1 << 20;

/// A queue of bytes.
#[derive(Debug, Default)]
pub(super) struct Buffer {
    bytes: Vec<u8>,
    start: usize,
    end: usize,
}

/// What came of a read or write on a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// The socket may have more to give or take.
    More,
    /// It has not, for now.
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

    /// Drops bytes at the front.
    pub(super) fn consume(&mut self, len: usize) {
        assert!(len <= self.len(), "more consumed than there is");
        self.start += len;
        if self.is_empty() {
            (self.start, self.end) = (0, 0);
            if self.bytes.len() > KEEP_BYTES {
                self.bytes = Vec::new();
            }
        }
    }

    /// Room for at least `len` bytes at the back.
    fn room(&mut self, len: usize) -> &mut [u8] {
        if self.bytes.len() - self.end < len {
            // Moving is paid for by the bytes consumed since the last move.
            if self.start >= self.len() {
                self.bytes.copy_within(self.start..self.end, 0);
                (self.start, self.end) = (0, self.end - self.start);
            }
            if self.bytes.len() - self.end < len {
                let grown = (self.end + len).max(self.bytes.len() * 2);
                self.bytes.resize(grown, 0);
            }
        }
        &mut self.bytes[self.end..]
    }

    /// Adds `len` bytes at the back, to be filled by the caller. They hold old bytes.
    pub(super) fn extend(&mut self, len: usize) -> &mut [u8] {
        self.room(len);
        self.end += len;
        &mut self.bytes[self.end - len..self.end]
    }

    /// Adds bytes at the back.
    pub(super) fn append(&mut self, bytes: &[u8]) {
        self.extend(bytes.len()).copy_from_slice(bytes);
    }

    /// One read from a socket. `wanted`: what the frame at the front still needs, in bytes.
    pub(super) fn fill(&mut self, from: &mut impl Read, wanted: usize) -> io::Result<Progress> {
        // At most as much again as has arrived: a header alone costs no memory.
        let len = wanted.min(self.len()).max(READ_BYTES);
        let room = self.room(len);
        let room_bytes = room.len();
        match from.read(room) {
            Ok(0) => Ok(Progress::End),
            Ok(read) => {
                self.end += read;
                // A short read of a stream has emptied it: the next event says when to go on.
                Ok(if read < room_bytes { Progress::Blocked } else { Progress::More })
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(Progress::Blocked),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(Progress::More),
            Err(error) => Err(error),
        }
    }

    /// Writes as much as a socket takes. `More`: all of it.
    pub(super) fn drain(&mut self, to: &mut impl Write) -> io::Result<Progress> {
        while !self.is_empty() {
            match to.write(self.filled()) {
                Ok(0) => return Ok(Progress::End),
                Ok(written) => self.consume(written),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return Ok(Progress::Blocked);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(Progress::More)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_come_out_in_the_order_they_went_in() {
        let mut buffer = Buffer::default();
        let (mut next_in, mut next_out) = (0u8, 0u8);
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
        assert_eq!(buffer.fill(&mut small, 16 << 20).unwrap(), Progress::Blocked);
        assert!(buffer.bytes.len() <= 2 * READ_BYTES);
    }

    #[test]
    fn a_large_frame_leaves_no_memory_behind() {
        let mut buffer = Buffer::default();
        buffer.append(&vec![7; 8 << 20]);
        let mut out = Vec::new();
        assert_eq!(buffer.drain(&mut out).unwrap(), Progress::More);
        assert_eq!(out.len(), 8 << 20);
        assert!(buffer.bytes.capacity() <= KEEP_BYTES);
    }
}
