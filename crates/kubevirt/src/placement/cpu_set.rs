//! Lists of CPUs and NUMA nodes, as the kernel and libvirt write them.

/// The maximum number of CPUs in a list.
const LIMIT: usize = 50_000;

/// Parses a list such as `0-3,8`.
pub(super) fn parse(text: &str) -> Result<Vec<u32>, String> {
    let mut numbers = Vec::new();
    let number = |text: &str| text.parse::<u32>().map_err(|error| format!("{text:?}: {error}"));
    for item in text.split(',') {
        let (first, last) = match item.split_once('-') {
            Some((first, last)) => (number(first)?, number(last)?),
            None => (number(item)?, number(item)?),
        };
        if usize::try_from(last.saturating_sub(first)).unwrap_or(usize::MAX) >= LIMIT - numbers.len().min(LIMIT) {
            return Err(format!("more than {LIMIT} numbers"));
        }
        numbers.extend(first..=last);
    }
    Ok(numbers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_has_numbers_and_ranges_and_a_limit() {
        assert_eq!(parse("0-3,8"), Ok(vec![0, 1, 2, 3, 8]));
        assert_eq!(parse("5"), Ok(vec![5]));
        for text in ["", "a", "1-", "0-4294967295", "1,,2", "^1", "-1"] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
