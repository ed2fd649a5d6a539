//! Numbers in messages from other processes, which may be shorter than they should be.

/// Returns the little-endian number at byte `at`; `None` if the bytes end before its end.
pub(crate) fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// Returns a number of 32 bits as [`u64_at`] does.
pub(crate) fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}
