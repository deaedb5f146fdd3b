//! Names of devices: DNS labels that follow from what the device is.
//!
//! A name that follows from the hardware alone is the same after a restart, and the device of an allocated claim is found
//! again without any record.

/// The longest name of a device: a DNS label.
pub const MAX_NAME: usize = 63;

/// Returns `PREFIX-TEXT SUFFIX` as a DNS label. A text that does not fit, or that is not `is_exact` and so may lose something in
/// a label, gets a hash: names of different devices differ. Prefix and suffix are labels themselves, and short.
pub fn label(prefix: &str, text: &str, suffix: &str, is_exact: bool) -> String {
    let plain = |letter: char| if letter.is_ascii_alphanumeric() { letter.to_ascii_lowercase() } else { '-' };
    let plain: String = text.chars().map(plain).collect();
    let room = MAX_NAME.saturating_sub(prefix.len() + 1 + suffix.len());
    if is_exact && plain.len() <= room {
        return format!("{prefix}-{plain}{suffix}");
    }
    let start = &plain[..plain.len().min(room.saturating_sub(9))];
    format!("{prefix}-{start}-{:08x}{suffix}", hash(text))
}

/// Returns whether a text loses nothing in a label: it has small letters, digits and some other characters only.
pub fn is_exact(text: &str, others: &str) -> bool {
    text.chars().all(|letter| letter.is_ascii_lowercase() || letter.is_ascii_digit() || others.contains(letter))
}

/// FNV-1a: stable across releases of the standard library, and no secret depends on it.
fn hash(text: &str) -> u32 {
    text.bytes().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

#[cfg(test)]
mod tests {
    use drakkar_metadata::name::DeviceName;

    use super::*;

    #[test]
    fn names_are_valid_and_differ() {
        assert_eq!(label("pci", "0000:65:00.0", "-3", true), "pci-0000-65-00-0-3");
        let long = |end: &str| label("mdev", &format!("{}{end}", "Long_Type".repeat(20)), "-4294967295", false);
        assert_ne!(long("a"), long("b"));
        assert_ne!(label("net", "Eth", "", is_exact("Eth", "-")), label("net", "eth", "", is_exact("eth", "-")));
        for name in [long("a"), label("net", "é.1", "", false), label("net", "", "", false)] {
            DeviceName::new(name).unwrap();
        }
    }
}
