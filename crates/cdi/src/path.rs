//! The strict rules for paths in a spec.
//!
//! Runtimes accept any text that is not empty. They resolve a relative path differently, and a path with `..` is mounted
//! elsewhere than its text suggests.

/// The rule that a path breaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PathProblem {
    /// It does not start with a slash.
    #[error("must be absolute")]
    Relative,
    /// It has `.`, `..`, an empty component or a trailing slash.
    #[error("must be clean: no '.' or '..', no doubled or trailing slash")]
    NotClean,
    /// It is `/`.
    #[error("must not be the root directory")]
    Root,
    /// It has a control character, or another character that runtimes cannot parse.
    #[error("must have no control characters")]
    Control,
    /// It is not UTF-8, which JSON needs.
    #[error("must be UTF-8")]
    NotUtf8,
    /// It is in `/proc` or `/sys`, where nothing may be mounted.
    #[error("must not be in /proc or /sys")]
    Kernel,
}

/// Checks a path that every runtime resolves in the same way.
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

/// Checks the target of a mount in a container.
pub(crate) fn check_target(path: &str) -> Result<(), PathProblem> {
    check(path)?;
    let below =
        |directory: &str| path.strip_prefix(directory).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
    if below("/proc") || below("/sys") { Err(PathProblem::Kernel) } else { Ok(()) }
}

/// Returns whether a character makes runtimes refuse the whole file: they parse JSON with a YAML parser, and YAML does not
/// allow these characters, which JSON does not escape.
pub(crate) fn is_unreadable(c: char) -> bool {
    matches!(c, '\u{7f}'..='\u{84}' | '\u{86}'..='\u{9f}' | '\u{fffe}' | '\u{ffff}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_component_may_start_or_end_with_dots() {
        for path in ["/a/..b", "/a/b..", "/...", "/.hidden/x", "/a b/ü"] {
            assert_eq!(check_target(path), Ok(()), "{path}");
        }
    }

    #[test]
    fn only_the_target_of_a_mount_must_not_be_in_proc_or_sys() {
        for path in ["/proc", "/proc/1", "/sys", "/sys/class"] {
            assert_eq!(check(path), Ok(()), "{path}");
            assert_eq!(check_target(path), Err(PathProblem::Kernel), "{path}");
        }
        for path in ["/proc2", "/system", "/x/proc", "/x/sys"] {
            assert_eq!(check_target(path), Ok(()), "{path}");
        }
    }

    #[test]
    fn next_line_is_the_only_c1_control_character_that_yaml_allows() {
        let unreadable: Vec<u32> =
            (0..=u32::from(char::MAX)).filter(|code| char::from_u32(*code).is_some_and(is_unreadable)).collect();
        let expected = (0x7f..=0x9f).filter(|code| *code != 0x85).chain([0xfffe, 0xffff]);
        assert_eq!(unreadable, expected.collect::<Vec<u32>>());
    }
}
