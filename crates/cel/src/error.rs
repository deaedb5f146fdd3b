//! Errors of expressions, worded as the kube-apiserver words them.

use std::fmt;

/// An error in an expression, found without a device.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CheckError {
    /// The expression is longer than [`MAX_EXPRESSION_BYTES`](crate::MAX_EXPRESSION_BYTES).
    #[error("longer than {} bytes", crate::MAX_EXPRESSION_BYTES)]
    TooLong,
    /// The expression has syntax errors or uses undeclared names.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))]
    Compilation(Vec<Problem>),
    /// The result is known not to be a bool.
    #[error("must evaluate to bool, not {found}")]
    NotBool {
        /// The CEL type of the result.
        found: String,
    },
    /// There is no thread for an expression that is nested deeply.
    #[error("start a thread for the parser: {0}")]
    Thread(String),
}

impl CheckError {
    /// Returns the error on one line, with hints, for logs and events.
    pub(crate) fn one_line(&self) -> String {
        match self {
            Self::Compilation(problems) => problems.iter().map(Problem::one_line).collect::<Vec<_>>().join("; "),
            other => other.to_string(),
        }
    }
}

/// One error at one position of an expression.
///
/// Its `Display` form is cel-go's: the position and the message, then the line with a mark below the position.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The line, from 1.
    pub line: usize,
    /// The column, from 1; 0 in an empty expression.
    pub column: usize,
    /// The cause, for example `undefined field 'name'`.
    pub message: String,
    /// The remedy. Not part of the `Display` form.
    pub hint: Option<String>,
    /// The text of the line.
    snippet: Option<String>,
}

impl Problem {
    pub(crate) fn new(expression: &str, line: usize, column: usize, message: String) -> Self {
        let snippet = expression.lines().nth(line.saturating_sub(1)).map(ToOwned::to_owned);
        Self { line, column, message, hint: None, snippet }
    }

    fn one_line(&self) -> String {
        let Self { line, column, message, hint, .. } = self;
        let message = message.split_whitespace().collect::<Vec<_>>().join(" ");
        let hint = hint.as_ref().map(|hint| format!(" ({hint})")).unwrap_or_default();
        format!("{message} at {line}:{column}{hint}")
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ERROR: <input>:{}:{}: {}", self.line, self.column, self.message)?;
        if let Some(snippet) = &self.snippet {
            write!(f, "\n | {snippet}\n | {}^", ".".repeat(self.column.saturating_sub(1)))?;
        }
        Ok(())
    }
}
