//! Quantities in JSON objects: strings, numbers, or missing.

pub(super) use drakkar_client::{ParseQuantityError, Quantity};
use serde_json::Value;

/// Reads a quantity from JSON. A missing one is 0.
pub(super) fn read(value: Option<&Value>) -> Result<Quantity, ParseQuantityError> {
    match value {
        None | Some(Value::Null) => Ok(Quantity::zero()),
        Some(Value::String(text)) => text.trim().parse(),
        Some(Value::Number(number)) => number.to_string().parse(),
        Some(_) => Err(ParseQuantityError::Format),
    }
}
