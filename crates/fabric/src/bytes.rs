//! Numbers in messages from other processes. A message can be shorter than its format says.

/// Returns the little-endian number that starts at byte `at`; `None` if the bytes end too early.
pub(crate) fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// Returns the little-endian 32-bit number that starts at byte `at`; `None` if the bytes end too early.
pub(crate) fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}
