//! Selectors: compiled expressions, to be evaluated on devices.

use std::fmt;
use std::sync::Arc;

use cel::common::ast::IdedExpr;
use cel::common::types::CelBool;
use cel::{Context, ExecutionError, Value};

use crate::budget::{self, Budget, instrument};
use crate::check::{Functions, parse};
use crate::device::DeviceValue;
use crate::library::ENVIRONMENT;
use crate::result_type::ResultType;
use crate::stack;

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
    /// The depth of the tree as written.
    depth: usize,
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
        let failed = |message| SelectorError::Compile { expression: expression.to_owned(), message };
        let compile = || {
            let mut tree = parse(expression, ResultType::Bool, Functions::Implemented)
                .map_err(|error| failed(error.one_line()))?;
            let depth = stack::depth(&tree);
            if depth > stack::MAX_DEPTH {
                return Err(failed(format!("it is nested {depth} levels deep; the limit is {}", stack::MAX_DEPTH)));
            }
            instrument(&mut tree);
            Ok(Self { expression: expression.to_owned(), depth, tree })
        };
        stack::for_text(expression, compile).unwrap_or_else(|error| Err(failed(error.to_string())))
    }

    /// Returns the expression.
    pub fn expression(&self) -> &str {
        &self.expression
    }

    /// Evaluates the expression on a device. It fails if that costs more than [`MAX_EVALUATION_COST`](crate::MAX_EVALUATION_COST).
    pub fn matches(&self, device: &DeviceValue) -> Result<bool, SelectorError> {
        let failed = |message| SelectorError::Runtime { expression: self.expression.clone(), message };
        let evaluate = || self.evaluate(device).map_err(failed);
        stack::for_tree(self.depth, evaluate).unwrap_or_else(|error| Err(failed(error.to_string())))
    }

    fn evaluate(&self, device: &DeviceValue) -> Result<bool, String> {
        let budget = Budget::new();
        let mut context = Context::with_env(Arc::clone(&ENVIRONMENT));
        context.add_variable_as_val("device", Box::new(device.clone()));
        context.add_variable_as_val(budget::VARIABLE, Box::new(budget.clone()));
        match Value::resolve_val(&self.tree, &context) {
            _ if budget.is_exhausted() => Err(budget::exhausted()),
            Ok(value) => match value.downcast_ref::<CelBool>() {
                Some(matches) => Ok(*matches.inner()),
                None => Err(format!("the result is of type {}, not bool", value.get_type().name())),
            },
            Err(error) => Err(explain(&error)),
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
