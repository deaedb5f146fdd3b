//! Names of slices. They start with an index, so that the scheduler, which sorts by name, sees devices in the pool's order.

/// The number of digits of an index, unless there are more slices than that can count.
const WIDTH: usize = 5;
/// The length to which an API server cuts `generateName` before it adds random characters.
const MAX_PREFIX: usize = 58;

/// Returns the number of digits that the indices of this many slices have.
pub(super) fn width(slices: usize) -> usize {
    let highest = slices.saturating_sub(1);
    let digits = (usize::BITS - highest.leading_zeros()).div_ceil(4) as usize;
    digits.max(WIDTH)
}

/// Returns the prefix of a slice's name (`generateName`).
pub(super) fn prefix(index: usize, width: usize, driver: &str, owner: Option<&str>) -> String {
    let mut prefix = format!("{index:0width$x}-{}-", driver.to_ascii_lowercase());
    if let Some(owner) = owner {
        prefix.push_str(owner);
        prefix.push('-');
    }
    // As the API server does. The index comes first, so it is never cut off.
    prefix.truncate(MAX_PREFIX);
    prefix
}

/// Returns the index in a slice's name, if it has one of this width.
pub(super) fn index(name: &str, width: usize) -> Option<usize> {
    let (index, _) = name.split_once('-')?;
    if index.len() != width || !index.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    usize::from_str_radix(index, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_width_grows_only_when_it_must() {
        for (slices, digits) in [(0, 5), (1, 5), (0xf_ffff, 5), (0x10_0000, 5), (0x10_0001, 6), (0x100_0001, 7)] {
            assert_eq!(width(slices), digits, "{slices:#x}");
        }
    }

    #[test]
    fn indices_are_hexadecimal() {
        for (number, width, text) in
            [(0, 5, "00000"), (10, 5, "0000a"), (35, 5, "00023"), (100_000, 5, "186a0"), (0x10_0000, 6, "100000")]
        {
            let name = prefix(number, width, "gpu.example.com", Some("node-1"));
            assert_eq!(name, format!("{text}-gpu.example.com-node-1-"));
            assert_eq!(index(&format!("{name}x7k2p"), width), Some(number));
        }
        assert_eq!(prefix(0, 5, "gpu.example.com", None), "00000-gpu.example.com-");
    }

    #[test]
    fn an_index_survives_a_long_name() {
        let name = prefix(7, 5, &"d".repeat(63), Some(&"n".repeat(253)));
        assert_eq!((name.len(), index(&name, 5)), (58, Some(7)));
    }

    #[test]
    fn other_names_have_no_index() {
        for name in
            ["", "00000", "0000-a", "000000-a", "0000g-a", "-0001-a", "+0001-a", "ffffffffffffffffff-a", "node-1-x"]
        {
            assert_eq!(index(name, 5), None, "{name}");
        }
        assert_eq!(index("ffffffffffffffffff-a", 18), None, "too large");
    }
}
