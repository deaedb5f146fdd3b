//! The names of the sockets.
//!
//! | | single instance | rolling update |
//! |---|---|---|
//! | registration | `<driver>@reg.sock` | the first that fits of `<driver>-<pod UID>@reg.sock`, `<driver>-<hash of UID>@reg.sock`, `dra-<hash of driver and UID>@reg.sock` |
//! | DRA | `dra@kubelet.sock` | the first that fits of `dra@<pod UID>.sock`, `dra@<hash of UID>.sock`, `d@<hash of UID>.sock` |
//!
//! The `@` is required. A kubelet sends the percent-encoded path of the registration socket as HTTP/2 authority, and older
//! ones (1.33.13 does, 1.37.1 does not) that of the DRA socket too. Rust's HTTP stack rejects a `%` there unless an `@`
//! follows, which makes everything before it the user info. The Go framework uses `-reg.sock`, `dra.sock` and
//! `dra-<pod UID>.sock` instead; the hashes are the same.

use std::fmt;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use drakkar_metadata::name::DriverName;
use sha2::{Digest as _, Sha256};

/// The longest path that a socket can be bound to: the kernel has 108 bytes, including a NUL.
pub(super) const MAX_PATH: usize = 107;
/// The suffix of our registration sockets.
pub(super) const REGISTRATION_SUFFIX: &str = "@reg.sock";

/// The UID of the pod that an instance runs in. It distinguishes instances that run at the same time.
///
/// Consists of letters, digits, `-`, `_` and `.` and starts with a letter or digit, so it is safe in a file name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PodUid(String);

/// A text that is not the UID of a pod.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "pod UID {0:?}: must be 1 to 128 letters, digits, '-', '_' and '.', starting with a letter or digit: use the pod's metadata.uid"
)]
pub(crate) struct PodUidError(String);

impl PodUid {
    /// Checks that a UID is safe in a file name.
    pub(crate) fn new(uid: impl Into<String>) -> Result<Self, PodUidError> {
        let uid = uid.into();
        let safe = uid.len() <= 128
            && uid.starts_with(|first: char| first.is_ascii_alphanumeric())
            && uid.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte));
        if safe { Ok(Self(uid)) } else { Err(PodUidError(uid)) }
    }

    /// Returns the UID as text.
    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for PodUid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

/// A directory that cannot have a socket.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum SocketNameError {
    /// The kubelet would resolve a relative path differently.
    #[error("{socket} socket: its directory {} must be an absolute path", .directory.display())]
    NotAbsolute { socket: &'static str, directory: PathBuf },
    /// The path is sent to the kubelet in a protobuf string.
    #[error("{socket} socket: its directory {} must be valid UTF-8", .directory.display())]
    NotUtf8 { socket: &'static str, directory: PathBuf },
    /// No name is short enough for the directory.
    #[error(
        "{socket} socket: {} has {} bytes and a socket's path can have {MAX_PATH}: use {remedy}",
        .path.display(),
        .path.as_os_str().len()
    )]
    TooLong { socket: &'static str, path: PathBuf, remedy: String },
}

/// Returns the path of the registration socket in the kubelet's registry directory.
pub(crate) fn registration_socket(
    registry: &Path,
    driver: &DriverName,
    pod: Option<&PodUid>,
) -> Result<PathBuf, SocketNameError> {
    let stems = match pod {
        None => vec![driver.to_string()],
        Some(pod) => vec![
            format!("{driver}-{pod}"),
            format!("{driver}-{}", hash_of_pod(pod)),
            format!("dra-{}", hash_of_instance(driver, pod)),
        ],
    };
    first_that_fits("registration", registry, stems.iter().map(|stem| format!("{stem}{REGISTRATION_SUFFIX}")))
}

/// Returns the path of the DRA socket in the driver's own directory.
pub(crate) fn dra_socket(directory: &Path, pod: Option<&PodUid>) -> Result<PathBuf, SocketNameError> {
    let names = match pod {
        None => vec!["dra@kubelet.sock".to_owned()],
        Some(pod) => {
            let hash = hash_of_pod(pod);
            vec![format!("dra@{pod}.sock"), format!("dra@{hash}.sock"), format!("d@{hash}.sock")]
        }
    };
    first_that_fits("DRA", directory, names.into_iter())
}

/// Returns the name of a socket that does not listen yet: a dot, so that the kubelet ignores it; three characters that
/// distinguish drivers; and three that distinguish sockets of a driver. It is not longer than the shortest final name, so
/// it fits wherever a final name does.
pub(super) fn staging_name(driver: &DriverName, random: u64) -> String {
    let random = BASE64_URL_SAFE_NO_PAD.encode(random.to_le_bytes());
    format!("{}{}", staging_prefix(driver), &random[..3])
}

/// Returns the prefix of a driver's staging names; three more characters follow.
pub(super) fn staging_prefix(driver: &DriverName) -> String {
    format!(".@{}", &hash::<8>(&[driver.as_str()])[..3])
}

fn hash_of_pod(pod: &PodUid) -> String {
    hash::<8>(&[pod.as_str()])
}

fn hash_of_instance(driver: &DriverName, pod: &PodUid) -> String {
    hash::<16>(&[driver.as_str(), "\0", pod.as_str()])
}

/// Returns the first bytes of the SHA-256 of the texts, in URL-safe base64.
fn hash<const BYTES: usize>(texts: &[&str]) -> String {
    let mut digest = Sha256::new();
    for text in texts {
        digest.update(text);
    }
    BASE64_URL_SAFE_NO_PAD.encode(&digest.finalize()[..BYTES])
}

/// Joins the directory with the first name for which the path has at most [`MAX_PATH`] bytes. There is at least one name,
/// and the last is the shortest.
fn first_that_fits(
    socket: &'static str,
    directory: &Path,
    names: impl Iterator<Item = String>,
) -> Result<PathBuf, SocketNameError> {
    if !directory.is_absolute() {
        return Err(SocketNameError::NotAbsolute { socket, directory: directory.to_owned() });
    }
    if directory.to_str().is_none() {
        return Err(SocketNameError::NotUtf8 { socket, directory: directory.to_owned() });
    }
    let mut shortest = PathBuf::new();
    for name in names {
        let path = directory.join(&name);
        if path.as_os_str().len() <= MAX_PATH {
            return Ok(path);
        }
        shortest = path;
    }
    let excess = shortest.as_os_str().len() - MAX_PATH;
    let remedy = match directory.as_os_str().len().checked_sub(excess) {
        Some(length) if length > 0 => format!("a directory of at most {length} bytes"),
        _ => "a shorter driver name".to_owned(),
    };
    Err(SocketNameError::TooLong { socket, path: shortest, remedy })
}

#[cfg(test)]
mod tests {
    use super::*;

    const REGISTRY: &str = "/var/lib/kubelet/plugins_registry";
    const EXAMPLE: &str = "gpu.dra-example-driver.sigs.k8s.io";
    const UID: &str = "ad4af911-5bcd-47c5-a554-f35cea869472";

    fn driver(name: &str) -> DriverName {
        DriverName::new(name).unwrap()
    }

    fn pod(uid: &str) -> PodUid {
        PodUid::new(uid).unwrap()
    }

    fn registration_name(registry: &str, name: &str, uid: Option<&str>) -> String {
        let path = registration_socket(Path::new(registry), &driver(name), uid.map(pod).as_ref()).unwrap();
        assert!(path.as_os_str().len() <= MAX_PATH, "{}", path.display());
        assert_eq!(path.parent(), Some(Path::new(registry)));
        path.file_name().unwrap().to_str().unwrap().to_owned()
    }

    /// A.5, and the test vectors of the contract's section 1.3: the hashes are those of the Go framework.
    #[test]
    fn registration_sockets_have_the_first_name_that_fits() {
        let long = "d".repeat(63);
        let deep = format!("{REGISTRY}/{}", "x".repeat(30));
        let cases = [
            (REGISTRY, "gpu.example.com", None, "gpu.example.com@reg.sock"),
            (REGISTRY, "gpu.example.com", Some(UID), "gpu.example.com-ad4af911-5bcd-47c5-a554-f35cea869472@reg.sock"),
            (REGISTRY, EXAMPLE, Some(UID), "gpu.dra-example-driver.sigs.k8s.io-Jk8-oymVURI@reg.sock"),
            (&deep, EXAMPLE, Some(UID), "dra-i1uYBA3g7FMHZvgPIxSbNw@reg.sock"),
            (REGISTRY, &long, None, &format!("{long}@reg.sock")),
        ];
        for (registry, name, uid, expected) in cases {
            assert_eq!(registration_name(registry, name, uid), expected);
            assert_eq!(registration_name(registry, name, uid), expected, "it is the same every time");
        }
        let hashed = registration_name(REGISTRY, &long, Some(UID));
        assert!(hashed.starts_with("dra-") && !hashed.contains(&long) && !hashed.contains(UID), "{hashed}");
    }

    /// G2: the limit is 107 bytes, not 108. With a driver name of 28 bytes (53 with a hashed UID) in the default directory the
    /// Go framework chooses a path that cannot be bound.
    #[test]
    fn a_registration_path_of_107_bytes_is_used_and_one_of_108_is_not() {
        let path_length = |length: usize| {
            let name = registration_name(REGISTRY, &"d".repeat(length), Some(UID));
            (REGISTRY.len() + 1 + name.len(), name.contains(UID), name.starts_with("ddd"))
        };
        assert_eq!(path_length(27), (107, true, true));
        assert_eq!(path_length(28), (83, false, true));
        assert_eq!(path_length(52), (107, false, true));
        assert_eq!(path_length(53), (69, false, false));
    }

    /// G3: the DRA socket's name is shortened too.
    #[test]
    fn dra_sockets_have_the_first_name_that_fits() {
        let name = |directory: &str, uid: Option<&str>| {
            let path = dra_socket(Path::new(directory), uid.map(pod).as_ref()).unwrap();
            assert!(path.as_os_str().len() <= MAX_PATH, "{}", path.display());
            path.file_name().unwrap().to_str().unwrap().to_owned()
        };
        let plugins = |length: usize| format!("/var/lib/kubelet/plugins/{}", "d".repeat(length));
        assert_eq!(name(&plugins(63), None), "dra@kubelet.sock");
        assert_eq!(name(&plugins(36), Some(UID)), format!("dra@{UID}.sock"));
        assert_eq!(name(&plugins(37), Some(UID)), "dra@Jk8-oymVURI.sock");
        assert_eq!(name(&plugins(61), Some(UID)), "dra@Jk8-oymVURI.sock");
        assert_eq!(name(&plugins(63), Some(UID)), "d@Jk8-oymVURI.sock");
    }

    #[test]
    fn other_drivers_and_other_pods_have_other_names() {
        for directory in [REGISTRY.to_owned(), format!("{REGISTRY}/{}", "x".repeat(30))] {
            let mut names = vec![];
            for name in ["a.example.com", "b.example.com", EXAMPLE] {
                for uid in [UID, "ad4af911-5bcd-47c5-a554-f35cea869473"] {
                    names.push(registration_name(&directory, name, Some(uid)));
                }
            }
            names.sort();
            names.dedup();
            assert_eq!(names.len(), 6, "{names:?}");
        }
    }

    #[test]
    fn a_directory_in_which_no_name_fits_is_an_error_with_a_remedy() {
        let directory = format!("/{}", "x".repeat(80));
        let error = registration_socket(Path::new(&directory), &driver(EXAMPLE), Some(&pod(UID))).unwrap_err();
        assert_eq!(
            error.to_string(),
            format!(
                "registration socket: {directory}/dra-i1uYBA3g7FMHZvgPIxSbNw@reg.sock has 117 bytes and a socket's path can \
                 have 107: use a directory of at most 71 bytes"
            )
        );
        let directory = format!("/{}", "x".repeat(90));
        let error = dra_socket(Path::new(&directory), None).unwrap_err();
        assert!(
            error
                .to_string()
                .ends_with("has 108 bytes and a socket's path can have 107: use a directory of at most 90 bytes")
        );
        assert!(dra_socket(Path::new(&directory[..90]), None).is_ok());
    }

    #[test]
    fn a_directory_that_the_kubelet_cannot_resolve_is_an_error() {
        use std::os::unix::ffi::OsStrExt as _;
        let error = registration_socket(Path::new("registry"), &driver(EXAMPLE), None).unwrap_err();
        assert_eq!(error.to_string(), "registration socket: its directory registry must be an absolute path");
        let bytes = std::ffi::OsStr::from_bytes(b"/plugins/\xff");
        assert!(matches!(dra_socket(Path::new(bytes), None), Err(SocketNameError::NotUtf8 { .. })));
    }

    #[test]
    fn a_pod_uid_that_could_leave_its_directory_is_refused() {
        for bad in ["", "..", "../x", "a/b", "a b", "-a", "a@b", "a\0b", &"a".repeat(129)] {
            assert!(PodUid::new(bad).is_err(), "{bad:?}");
        }
        for good in [UID, "0123456789abcdef0123456789abcdef", "pod-1"] {
            assert_eq!(pod(good).as_str(), good);
        }
    }

    /// A staging name must fit wherever a final name does.
    #[test]
    fn staging_names_are_no_longer_than_the_shortest_final_name() {
        for random in [0, 1, u64::MAX] {
            let name = staging_name(&driver("d"), random);
            assert!(name.len() <= "dra@kubelet.sock".len() && name.starts_with('.'), "{name}");
        }
    }
}
