//! Counts in messages.

/// Returns a count with its noun: `1 region`, `2 regions`.
pub fn counted<N: TryInto<u64>>(count: N, what: &str) -> String {
    let count = count.try_into().unwrap_or(u64::MAX);
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_of_something_is_not_many() {
        let texts = [counted(0usize, "region"), counted(1u8, "region"), counted(2u64, "region")];
        assert_eq!(texts, ["0 regions", "1 region", "2 regions"]);
    }
}
