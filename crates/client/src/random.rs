//! Random numbers for jitter and names. Not for secrets.

use std::hash::{BuildHasher as _, RandomState};

/// Returns a random number from 0 to 1.
pub fn random() -> f64 {
    // 32 bits are more than enough for jitter, and a float holds them exactly.
    f64::from(u32::try_from(bits() >> 32).unwrap_or_default()) / f64::from(u32::MAX)
}

/// Returns a random UUID of version 4.
pub fn uuid() -> String {
    let bits = (u128::from(bits()) << 64) | u128::from(bits());
    let bits = bits & !(0xf << 76) & !(0x3 << 62) | (0x4 << 76) | (0x2 << 62);
    let hex = format!("{bits:032x}");
    format!("{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..])
}

fn bits() -> u64 {
    // Every `RandomState` has keys of its own, so equal inputs hash to different values.
    RandomState::new().hash_one(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uuids_are_of_version_4_and_differ() {
        let one = uuid();
        assert_ne!(one, uuid());
        assert_eq!((one.len(), &one[14..15]), (36, "4"));
        assert!(matches!(&one[19..20], "8" | "9" | "a" | "b"), "{one}");
    }

    #[test]
    fn random_numbers_are_between_0_and_1_and_differ() {
        let numbers: Vec<f64> = (0..1000).map(|_| random()).collect();
        assert!(numbers.iter().all(|number| (0.0..=1.0).contains(number)));
        assert!(numbers.iter().any(|number| *number < 0.1) && numbers.iter().any(|number| *number > 0.9));
    }
}
