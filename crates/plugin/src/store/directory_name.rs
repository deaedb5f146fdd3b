//! Maps claims to the names of their directories, and back.
//!
//! | claim | directory name |
//! |---|---|
//! | namespace and name fit into 255 bytes | `{namespace}_{claim}`, as with the Go framework |
//! | they do not fit | `{namespace}_{start of the claim's name}_{hash of both}`, 255 bytes |
//!
//! Names in the API have no underscore, so the two forms never collide. The second form does not contain the whole name of the
//! claim: the claim's record does, and is trusted if it maps back to the directory that contains it.

use std::fmt::Write as _;

use drakkar_metadata::name::{ClaimName, Namespace};
use drakkar_metadata::path::claim_directory;
use sha2::{Digest as _, Sha256};

/// The maximum length of a directory entry's name on Linux.
pub(super) const NAME_MAX: usize = 255;
/// The length of the hash in a name, in bytes and as text.
const HASH_BYTES: usize = 16;
const HASH_TEXT: usize = 2 * HASH_BYTES;

/// Returns the name of a claim's directory.
pub(crate) fn directory_name(namespace: &Namespace, name: &ClaimName) -> String {
    claim_directory(namespace, name).unwrap_or_else(|_too_long| {
        let length = NAME_MAX - namespace.as_str().len() - HASH_TEXT - "__".len();
        // A name that does not fit is longer than this, and it is ASCII, so every byte is a character boundary.
        let start = name.as_str().get(..length).unwrap_or_default();
        format!("{namespace}_{start}_{}", hash(namespace, name))
    })
}

/// Returns the claim of a directory according to its name. A long claim name is cut off.
pub(super) fn claim_from_directory(directory: &str) -> Option<(Namespace, ClaimName)> {
    let (namespace, rest) = directory.split_once('_')?;
    let name = match rest.rsplit_once('_') {
        None => rest,
        Some((start, hash)) => {
            let is_hash = hash.len() == HASH_TEXT && hash.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
            if !is_hash || directory.len() != NAME_MAX {
                return None;
            }
            // The name may have been cut after a dash or a dot, with which no valid name ends.
            start.trim_end_matches(['-', '.'])
        }
    };
    Some((namespace.parse().ok()?, name.parse().ok()?))
}

fn hash(namespace: &Namespace, name: &ClaimName) -> String {
    let mut hash = Sha256::new();
    hash.update(namespace.as_str());
    // No name contains this byte, so no two claims have the same hash input.
    hash.update([0]);
    hash.update(name.as_str());
    let mut text = String::with_capacity(HASH_TEXT);
    for byte in hash.finalize().iter().take(HASH_BYTES) {
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
    }
    text
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn namespace(length: usize) -> Namespace {
        "n".repeat(length).parse().unwrap()
    }

    fn name(length: usize) -> ClaimName {
        "c".repeat(length).parse().unwrap()
    }

    #[test]
    fn a_name_that_fits_is_not_changed() {
        assert_eq!(directory_name(&"default".parse().unwrap(), &"train".parse().unwrap()), "default_train");
        let longest = directory_name(&namespace(63), &name(191));
        assert_eq!(longest.len(), NAME_MAX);
        assert_eq!(claim_from_directory(&longest), Some((namespace(63), name(191))));
    }

    #[test]
    fn a_name_that_does_not_fit_is_cut_and_made_unique_by_a_hash() {
        let directory = directory_name(&namespace(63), &name(192));
        let hash = "713a629f797dd50f4680532364890c82";
        assert_eq!(directory, format!("{}_{}_{hash}", "n".repeat(63), "c".repeat(158)));
        let all: HashSet<String> = (192..=253).map(|length| directory_name(&namespace(63), &name(length))).collect();
        assert_eq!(all.len(), 62);
        assert!(all.iter().all(|directory| directory.len() == NAME_MAX && directory.split('_').count() == 3));
    }

    #[test]
    fn a_cut_name_maps_back_to_its_namespace_and_the_start_of_the_claims_name() {
        for separator in ["-", "."] {
            let claim: ClaimName = format!("{}{separator}{}", "a".repeat(218), "b".repeat(34)).parse().unwrap();
            let directory = directory_name(&"nn".parse().unwrap(), &claim);
            let (namespace, start) = claim_from_directory(&directory).unwrap();
            assert_eq!((namespace.as_str(), start.as_str()), ("nn", &*"a".repeat(218)));
        }
    }

    #[test]
    fn a_name_that_is_not_a_claims_directory_maps_to_no_claim() {
        let long = directory_name(&namespace(63), &name(253));
        for directory in
            ["README", "default_", "_train", "a_b_c", "Default_train", &long[1..], &long.replace("_c", "_C")]
        {
            assert_eq!(claim_from_directory(directory), None, "{directory}");
        }
        let upper = format!("{}{}", &long[..NAME_MAX - HASH_TEXT], long[NAME_MAX - HASH_TEXT..].to_uppercase());
        assert_eq!(claim_from_directory(&upper), None);
    }
}
