//! Validation of CEL expressions at admission.

use drakkar_cel::{CheckError, MAX_EXPRESSION_BYTES, ResultType, check};

use super::field::{Errors, Path};

pub(super) fn validate(expression: &str, result: ResultType, path: &Path, errors: &mut Errors) {
    match check(expression, result) {
        Ok(()) => {}
        Err(CheckError::TooLong) => errors.too_long(path, MAX_EXPRESSION_BYTES),
        Err(CheckError::NotBool { found }) => {
            errors.invalid(path, expression, &format!("must evaluate to bool or the unknown type, not {found}"));
        }
        Err(error) => errors.invalid(path, expression, &format!("compilation failed: {error}")),
    }
}
