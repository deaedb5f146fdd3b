//! Selectors: compiled expressions, to be evaluated on devices.

use std::fmt;
use std::sync::Arc;

use cel::common::ast::IdedExpr;
use cel::common::types::CelBool;
use cel::{Context, ExecutionError, Value};

use crate::check::{Functions, parse};
use crate::device::DeviceValue;
use crate::library::ENVIRONMENT;
use crate::result_type::ResultType;

/// An error of a selector. It is not the same as "does not match".
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SelectorError {
    /// The expression cannot be evaluated on any device.
    #[error("CEL compile error in selector `{expression}`: {message}")]
    Compile {
        /// The expression.
        expression: String,
        /// The cause, on one line.
        message: String,
    },
    /// The expression failed on this device.
    #[error("CEL runtime error in selector `{expression}`: {message}")]
    Runtime {
        /// The expression.
        expression: String,
        /// The cause, on one line.
        message: String,
    },
}

/// A compiled expression that selects devices.
pub struct Selector {
    expression: String,
    tree: IdedExpr,
}

impl fmt::Debug for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Selector").field(&self.expression).finish()
    }
}

impl Selector {
    /// Parses and checks an expression.
    pub fn compile(expression: &str) -> Result<Self, SelectorError> {
        match parse(expression, ResultType::Bool, Functions::Implemented) {
            Ok(tree) => Ok(Self { expression: expression.to_owned(), tree }),
            Err(error) => Err(SelectorError::Compile { expression: expression.to_owned(), message: error.one_line() }),
        }
    }

    /// Returns the expression.
    pub fn expression(&self) -> &str {
        &self.expression
    }

    /// Evaluates the expression on a device.
    pub fn matches(&self, device: &DeviceValue) -> Result<bool, SelectorError> {
        let failed = |message| SelectorError::Runtime { expression: self.expression.clone(), message };
        let mut context = Context::with_env(Arc::clone(&ENVIRONMENT));
        context.add_variable_as_val("device", Box::new(device.clone()));
        match Value::resolve_val(&self.tree, &context) {
            Ok(value) => match value.downcast_ref::<CelBool>() {
                Some(matches) => Ok(*matches.inner()),
                None => Err(failed(format!("the result is of type {}, not bool", value.get_type().name()))),
            },
            Err(error) => Err(failed(explain(&error))),
        }
    }
}

/// Returns the text of an error, with the remedy for the most common one.
fn explain(error: &ExecutionError) -> String {
    match error {
        ExecutionError::NoSuchKey(key) => {
            format!("no such key: {key} (the device does not have it; test for it with has(), or use orValue())")
        }
        other => other.to_string(),
    }
}
