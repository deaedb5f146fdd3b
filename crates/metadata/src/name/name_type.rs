//! The error and the macro of validated names, for any set of rules.

use super::NameProblem;
use crate::show::Quoted;

/// An invalid name: its kind, the text given and the rule it breaks.
///
/// `P` is the set of rules, with messages that follow the name: `must not be empty`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{kind} {value}: {problem}", value = Quoted(.value))]
pub struct NameError<P = NameProblem> {
    kind: &'static str,
    value: String,
    problem: P,
}

impl<P> NameError<P> {
    /// Creates the error of a text that is not a name of this kind.
    pub fn new(kind: &'static str, value: impl Into<String>, problem: P) -> Self {
        Self { kind, value: value.into(), problem }
    }

    /// Returns the kind of name, for example `driver name`.
    pub fn kind(&self) -> &'static str {
        self.kind
    }

    /// Returns the invalid text.
    pub fn value(&self) -> &str {
        &self.value
    }
}

impl<P: Copy> NameError<P> {
    /// Returns the rule that the text breaks.
    pub fn problem(&self) -> P {
        self.problem
    }
}

/// Defines a type for validated names.
///
/// The arguments are documentation, the type, the kind of name for error messages, the error type (a
/// [`NameError`](crate::name::NameError)) and the check, a `fn(&str) -> Result<(), P>`. The type has a `new` that checks
/// the text, `as_str`, conversions from and to text, and comparison with text. Clones share the text. In the module of the
/// type, `checked` creates a name with another check.
///
/// ```
/// use drakkar_metadata::name::NameError;
/// use drakkar_metadata::name_type;
///
/// #[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
/// #[error("must be digits")]
/// pub struct NotDigits;
///
/// fn check(text: &str) -> Result<(), NotDigits> {
///     if text.bytes().all(|byte| byte.is_ascii_digit()) { Ok(()) } else { Err(NotDigits) }
/// }
///
/// name_type! {
///     /// The number of a slot.
///     Slot, "slot", NameError<NotDigits>, check
/// }
///
/// assert_eq!(Slot::new("7")?, "7");
/// assert_eq!(Slot::new("x").unwrap_err().to_string(), r#"slot "x": must be digits"#);
/// # Ok::<(), NameError<NotDigits>>(())
/// ```
#[macro_export]
macro_rules! name_type {
    ($(#[$doc:meta])* $name:ident, $kind:literal, $error:ty, $check:path) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(::std::sync::Arc<str>);

        impl $name {
            /// Creates a name from a text that follows the rule of its kind.
            pub fn new(name: impl AsRef<str>) -> Result<Self, $error> {
                Self::checked(name.as_ref(), $check)
            }

            /// Checks a text as [`Self::new`] does, without keeping it.
            pub fn check(name: &str) -> Result<(), $error> {
                $check(name).map_err(|problem| $crate::name::NameError::new($kind, name, problem))
            }

            fn checked<P>(value: &str, check: fn(&str) -> Result<(), P>) -> Result<Self, $crate::name::NameError<P>> {
                match check(value) {
                    Ok(()) => Ok(Self(value.into())),
                    Err(problem) => Err($crate::name::NameError::new($kind, value, problem)),
                }
            }

            /// Returns the name as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl ::std::str::FromStr for $name {
            type Err = $error;

            fn from_str(name: &str) -> Result<Self, $error> {
                Self::new(name)
            }
        }

        impl TryFrom<&str> for $name {
            type Error = $error;

            fn try_from(name: &str) -> Result<Self, $error> {
                Self::new(name)
            }
        }

        impl TryFrom<String> for $name {
            type Error = $error;

            fn try_from(name: String) -> Result<Self, $error> {
                Self::new(name)
            }
        }

        impl ::std::fmt::Display for $name {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                f.pad(&self.0)
            }
        }

        impl AsRef<str> for $name {
            fn as_ref(&self) -> &str {
                &self.0
            }
        }

        impl ::std::borrow::Borrow<str> for $name {
            fn borrow(&self) -> &str {
                &self.0
            }
        }

        impl From<$name> for String {
            fn from(name: $name) -> String {
                (*name.0).to_owned()
            }
        }

        impl PartialEq<str> for $name {
            fn eq(&self, other: &str) -> bool {
                *self.0 == *other
            }
        }

        impl PartialEq<&str> for $name {
            fn eq(&self, other: &&str) -> bool {
                *self.0 == **other
            }
        }
    };
}
