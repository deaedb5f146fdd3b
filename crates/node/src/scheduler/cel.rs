//! Device selectors: the CEL expressions of device classes and requests, as Kubernetes evaluates them.
//!
//! An expression sees one variable, `device`: `driver`, `attributes[domain].name`, `capacity[domain].name` and
//! `allowMultipleAllocations`. A domain that no attribute has is an empty map; an attribute that is not there is a runtime
//! error, unless `has()` or `.?` asks for it. As in Kubernetes anything but `true` and `false` is an error, and an error is
//! not "does not match": it ends the allocation of the claim.
//!
//! There is no type checker: what Kubernetes rejects at admission because of types (`device.driver + 1`) is found at the
//! latest when the expression runs; unknown names and expressions that cannot be a bool are found at once ([`check`]).

mod check;
mod device;
mod library;
mod values;

#[cfg(test)]
mod tests;

use std::sync::{Arc, OnceLock};

use cel::common::types::CelBool;
use cel::{Context, Env, Program, Value};

pub(crate) use self::device::DeviceValue;

/// The longest expression that Kubernetes takes, in bytes.
const MAX_LENGTH: usize = 10 * 1024;

/// Why a selector gave no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum SelectorError {
    /// The expression cannot be used on any device.
    #[error("CEL compile error in selector `{expression}`: {message}")]
    Compile { expression: String, message: String },
    /// The expression failed on this device.
    #[error("CEL runtime error in selector `{expression}`: {message}")]
    Runtime { expression: String, message: String },
}

/// An expression that is ready to be asked about devices.
pub(crate) struct Selector {
    expression: String,
    program: Program,
    env: Arc<Env>,
}

impl std::fmt::Debug for Selector {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Selector").field(&self.expression).finish()
    }
}

impl Selector {
    /// Reads an expression.
    pub(crate) fn compile(expression: &str) -> Result<Self, SelectorError> {
        let failed = |message: String| SelectorError::Compile { expression: expression.to_owned(), message };
        if expression.len() > MAX_LENGTH {
            return Err(failed(format!("it is longer than {MAX_LENGTH} bytes")));
        }
        let env = environment().map_err(failed)?;
        let program = env.compile(expression).map_err(|errors| failed(one_line(&errors.to_string())))?;
        check::check(program.expression()).map_err(failed)?;
        Ok(Self { expression: expression.to_owned(), program, env })
    }

    /// Whether the expression is true of the device.
    pub(crate) fn matches(&self, device: &DeviceValue) -> Result<bool, SelectorError> {
        let failed = |message| SelectorError::Runtime { expression: self.expression.clone(), message };
        let mut context = Context::with_env(Arc::clone(&self.env));
        context.add_variable_as_val("device", Box::new(device.clone()));
        match Value::resolve_val(self.program.expression(), &context) {
            Ok(value) => match value.downcast_ref::<CelBool>() {
                Some(answer) => Ok(*answer.inner()),
                None => Err(failed(format!("the result is of type {}, not bool", value.get_type().name()))),
            },
            Err(error) => Err(failed(device::explain(&error))),
        }
    }
}

/// What all expressions run in, built once.
fn environment() -> Result<Arc<Env>, String> {
    static ENVIRONMENT: OnceLock<Result<Arc<Env>, String>> = OnceLock::new();
    ENVIRONMENT.get_or_init(|| library::environment().map(Arc::new).map_err(|error| error.to_string())).clone()
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}
