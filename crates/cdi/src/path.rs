//! Paths in a spec: what we demand of those that we write.
//!
//! Runtimes take any text that is not empty. A relative path then means something different to each of them, and one
//! with `..` is a mount somewhere else than the text says.

/// What is wrong with a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PathProblem {
    /// It does not begin with a slash.
    #[error("must be absolute")]
    Relative,
    /// It has `.`, `..`, an empty component or a slash at the end.
    #[error("must be clean: no '.' or '..', no slash doubled or at the end")]
    NotClean,
    /// It is `/`.
    #[error("must not be the root directory")]
    Root,
    /// It has a control character, or another that runtimes cannot read.
    #[error("must have no control characters")]
    Control,
    /// It is not UTF-8, which JSON needs.
    #[error("must be UTF-8")]
    NotUtf8,
    /// It is in a file system of the kernel, where no mount is to be.
    #[error("must not be in /proc or /sys")]
    Kernel,
}

/// A path that means the same to everybody who reads the spec.
pub(crate) fn check(path: &str) -> Result<(), PathProblem> {
    let Some(rest) = path.strip_prefix('/') else { return Err(PathProblem::Relative) };
    if rest.is_empty() {
        return Err(PathProblem::Root);
    }
    if rest.split('/').any(|part| matches!(part, "" | "." | "..")) {
        return Err(PathProblem::NotClean);
    }
    if path.chars().any(|c| c.is_control() || is_unreadable(c)) { Err(PathProblem::Control) } else { Ok(()) }
}

/// The same for the target of a mount in a container.
pub(crate) fn check_target(path: &str) -> Result<(), PathProblem> {
    check(path)?;
    let below =
        |directory: &str| path.strip_prefix(directory).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
    if below("/proc") || below("/sys") { Err(PathProblem::Kernel) } else { Ok(()) }
}

/// Characters that JSON (and Go's writer) leaves as they are, but for which runtimes refuse the whole file: they read
/// JSON with a YAML parser, and YAML does not have these.
pub(crate) fn is_unreadable(c: char) -> bool {
    matches!(c, '\u{7f}'..='\u{84}' | '\u{86}'..='\u{9f}' | '\u{fffe}' | '\u{ffff}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_component_may_begin_or_end_with_dots() {
        for path in ["/a/..b", "/a/b..", "/...", "/.hidden/x", "/a b/ü"] {
            assert_eq!(check_target(path), Ok(()), "{path}");
        }
    }

    #[test]
    fn only_the_target_of_a_mount_must_stay_out_of_the_kernels_file_systems() {
        for path in ["/proc", "/proc/1", "/sys", "/sys/class"] {
            assert_eq!(check(path), Ok(()), "{path}");
            assert_eq!(check_target(path), Err(PathProblem::Kernel), "{path}");
        }
        for path in ["/proc2", "/system", "/x/proc", "/x/sys"] {
            assert_eq!(check_target(path), Ok(()), "{path}");
        }
    }

    #[test]
    fn next_line_is_the_one_control_character_of_its_block_that_yaml_has() {
        let unreadable: Vec<u32> =
            (0..=u32::from(char::MAX)).filter(|code| char::from_u32(*code).is_some_and(is_unreadable)).collect();
        let expected = (0x7f..=0x9f).filter(|code| *code != 0x85).chain([0xfffe, 0xffff]);
        assert_eq!(unreadable, expected.collect::<Vec<u32>>());
    }
}
