//! What a claim's directory is called, and whose directory one is.
//!
//! | claim | name |
//! |---|---|
//! | namespace and name fit together | `{namespace}_{claim}`, as with the Go framework |
//! | they do not fit into 255 bytes | `{namespace}_{start of the claim's name}_{hash of both}`, 255 bytes |
//!
//! Names of the API have no underscore, so none of the first kind is one of the second. The second does not tell the
//! claim's whole name: the claim's record does, and is believed where it leads back to the directory that it lies in.

use std::fmt::Write as _;

use drakkar_metadata::name::{ClaimName, Namespace};
use drakkar_metadata::path::claim_directory;
use sha2::{Digest as _, Sha256};

/// The longest name that a directory entry can have on Linux.
pub(super) const NAME_MAX: usize = 255;
/// How much of the hash there is in a name, in bytes and as text.
const HASH_BYTES: usize = 16;
const HASH_TEXT: usize = 2 * HASH_BYTES;

/// The name of a claim's directory.
pub(super) fn directory_name(namespace: &Namespace, name: &ClaimName) -> String {
    claim_directory(namespace, name).unwrap_or_else(|_too_long| {
        let length = NAME_MAX - namespace.as_str().len() - HASH_TEXT - "__".len();
        // A name that does not fit is longer than this, and ASCII, so any byte is the start of a character.
        let start = name.as_str().get(..length).unwrap_or_default();
        format!("{namespace}_{start}_{}", hash(namespace, name))
    })
}

/// The claim that a directory's name is for, for as long as nothing else is known: of a long name it has the start.
pub(super) fn claim_of(directory: &str) -> Option<(Namespace, ClaimName)> {
    let (namespace, rest) = directory.split_once('_')?;
    let name = match rest.rsplit_once('_') {
        None => rest,
        Some((start, hash)) => {
            let is_hash = hash.len() == HASH_TEXT && hash.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
            if !is_hash || directory.len() != NAME_MAX {
                return None;
            }
            // The name may have been cut behind a dash or a dot, at which no name ends.
            start.trim_end_matches(['-', '.'])
        }
    };
    Some((namespace.parse().ok()?, name.parse().ok()?))
}

fn hash(namespace: &Namespace, name: &ClaimName) -> String {
    let mut hash = Sha256::new();
    hash.update(namespace.as_str());
    // Neither can have this byte, so no two claims are hashed as the same text.
    hash.update([0]);
    hash.update(name.as_str());
    let mut text = String::with_capacity(HASH_TEXT);
    for byte in hash.finalize().iter().take(HASH_BYTES) {
        // A string takes every text.
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
    fn a_name_that_fits_stays_what_it_was() {
        assert_eq!(directory_name(&"default".parse().unwrap(), &"train".parse().unwrap()), "default_train");
        let longest = directory_name(&namespace(63), &name(191));
        assert_eq!(longest.len(), NAME_MAX);
        assert_eq!(claim_of(&longest), Some((namespace(63), name(191))));
    }

    #[test]
    fn a_name_that_does_not_fit_is_cut_and_told_apart_by_its_hash() {
        let directory = directory_name(&namespace(63), &name(192));
        let hash = "713a629f797dd50f4680532364890c82";
        assert_eq!(directory, format!("{}_{}_{hash}", "n".repeat(63), "c".repeat(158)));
        let all: HashSet<String> = (192..=253).map(|length| directory_name(&namespace(63), &name(length))).collect();
        assert_eq!(all.len(), 62);
        assert!(all.iter().all(|directory| directory.len() == NAME_MAX && directory.split('_').count() == 3));
    }

    #[test]
    fn a_cut_name_tells_its_namespace_and_how_the_claim_begins() {
        for cut_behind in ["-", "."] {
            let claim: ClaimName = format!("{}{cut_behind}{}", "a".repeat(218), "b".repeat(34)).parse().unwrap();
            let directory = directory_name(&"nn".parse().unwrap(), &claim);
            let (namespace, start) = claim_of(&directory).unwrap();
            assert_eq!((namespace.as_str(), start.as_str()), ("nn", &*"a".repeat(218)));
        }
    }

    #[test]
    fn what_is_not_the_directory_of_a_claim_is_nobodys() {
        let long = directory_name(&namespace(63), &name(253));
        for directory in
            ["README", "default_", "_train", "a_b_c", "Default_train", &long[1..], &long.replace("_c", "_C")]
        {
            assert_eq!(claim_of(directory), None, "{directory}");
        }
        let upper = format!("{}{}", &long[..NAME_MAX - HASH_TEXT], long[NAME_MAX - HASH_TEXT..].to_uppercase());
        assert_eq!(claim_of(&upper), None);
    }
}
