//! The error of a driver: any error, or a panic.

use drakkar_metadata::show::Printable;

/// Any error of a driver. `?` converts every error into it, `anyhow`'s included, and `.into()` a text.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// A panic of the driver.
#[derive(Debug, thiserror::Error)]
#[error("the driver panicked: {}", Printable::whole(.0))]
pub(crate) struct Panicked(String);

impl From<&(dyn std::any::Any + Send)> for Panicked {
    fn from(panic: &(dyn std::any::Any + Send)) -> Self {
        let text = panic
            .downcast_ref::<&str>()
            .copied()
            .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
            .unwrap_or("no message");
        Self(text.to_owned())
    }
}
