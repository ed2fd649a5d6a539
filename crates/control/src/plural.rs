//! Counts with their nouns, for the texts of messages.

/// Returns a count with its noun: `1 region`, `2 regions`.
pub fn count_with_noun<N: TryInto<u64>>(count: N, what: &str) -> String {
    let count = count.try_into().unwrap_or(u64::MAX);
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_of_something_is_not_many() {
        let texts = [
            count_with_noun(0usize, "region"),
            count_with_noun(1u8, "region"),
            count_with_noun(2u64, "region"),
        ];
        assert_eq!(texts, ["0 regions", "1 region", "2 regions"]);
    }
}
