//! CEL selectors of devices that name a class, checked as the API server checks those of a claim.

use std::fmt;

use drakkar_cel::{CheckError, ResultType};
use drakkar_kubevirt::claims::DEVICE_SELECTOR;
use serde_json::Value;

/// A selector that the API server refuses.
#[derive(Debug)]
pub(crate) struct SelectorError {
    field: String,
    error: CheckError,
}

impl fmt::Display for SelectorError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.field)?;
        let CheckError::Compilation(problems) = &self.error else { return self.error.fmt(f) };
        for (index, problem) in problems.iter().enumerate() {
            let separator = if index == 0 { "" } else { "; " };
            write!(f, "{separator}{} at {}:{}", problem.message, problem.line, problem.column)?;
            if let Some(hint) = &problem.hint {
                write!(f, " ({hint})")?;
            }
        }
        Ok(())
    }
}

/// Checks the selectors of a virtual machine's devices.
pub(crate) fn check(document: &Value) -> Result<(), SelectorError> {
    let (prefix, spec) = match document["kind"].as_str() {
        Some("VirtualMachine") => ("spec.template.spec", &document["spec"]["template"]["spec"]),
        _ => ("spec", &document["spec"]),
    };
    for list in ["gpus", "hostDevices"] {
        let devices = spec["domain"]["devices"][list].as_array().into_iter().flatten();
        for (index, device) in devices.enumerate() {
            let Some(expression) = device[DEVICE_SELECTOR].as_str() else { continue };
            drakkar_cel::check(expression, ResultType::Bool).map_err(|error| {
                let field = format!("{prefix}.domain.devices.{list}[{index}].{DEVICE_SELECTOR}");
                SelectorError { field, error }
            })?;
        }
    }
    Ok(())
}
