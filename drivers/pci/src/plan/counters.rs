//! Counters: how many units each part of a device takes.

use std::collections::BTreeMap;

/// The largest number of units of a device. Real devices stay far below it.
const MAX_UNITS: u64 = 1 << 40;

/// The units that an instance of each type takes.
///
/// With at most `max` instances of a type, an instance is the fraction `1/max` of the device. All fractions are whole numbers of
/// units if the device has as many units as the least common multiple of all `max`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Fractions {
    pub(super) total: u64,
    units: BTreeMap<String, u64>,
}

impl Fractions {
    /// Divides a device among types, by the largest number of instances of each. Types with none are left out.
    pub(super) fn new<'a>(types: impl IntoIterator<Item = (&'a str, u32)>) -> Self {
        let types: BTreeMap<&str, u64> =
            types.into_iter().filter(|(_, max)| *max > 0).map(|(id, max)| (id, u64::from(max))).collect();
        let total = types.values().fold(1, |multiple, max| least_common_multiple(multiple, *max).min(MAX_UNITS));
        if types.is_empty() {
            return Self::default();
        }
        // Rounded up where the multiple was cut off: rather one instance less than one too many.
        let units = types.into_iter().map(|(id, max)| (id.to_owned(), total.div_ceil(max))).collect();
        Self { total, units }
    }

    /// Returns the units of an instance of a type.
    pub(super) fn of(&self, type_id: &str) -> Option<u64> {
        self.units.get(type_id).copied()
    }
}

fn least_common_multiple(a: u64, b: u64) -> u64 {
    a / greatest_common_divisor(a, b).max(1) * b
}

fn greatest_common_divisor(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { greatest_common_divisor(b, a % b) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn types_of_different_sizes_share_a_device() {
        let fractions = Fractions::new([("big", 2), ("small", 16), ("odd", 3), ("none", 0)]);
        assert_eq!(fractions.total, 48);
        assert_eq!(fractions.of("big"), Some(24));
        assert_eq!(fractions.of("small"), Some(3));
        assert_eq!(fractions.of("odd"), Some(16));
        assert_eq!(fractions.of("none"), None);
        assert_eq!(Fractions::new([("none", 0)]), Fractions::default());
    }

    proptest! {
        /// Of one type alone, exactly as many fit as the kernel allows, unless the numbers are absurd; never more.
        #[test]
        fn never_more_instances_fit_than_the_kernel_allows(maxima in prop::collection::vec(1_u32..2000, 1..12)) {
            let names: Vec<String> = (0..maxima.len()).map(|index| index.to_string()).collect();
            let fractions = Fractions::new(names.iter().map(String::as_str).zip(maxima.iter().copied()));
            for (name, max) in names.iter().zip(&maxima) {
                let fit = fractions.total / fractions.of(name).unwrap();
                prop_assert!(fit <= u64::from(*max));
                prop_assert!(fractions.total == MAX_UNITS || fit == u64::from(*max));
            }
        }
    }
}
