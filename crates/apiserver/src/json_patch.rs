//! JSON patch (RFC 6902).

use serde_json::Value;

use super::status::Failure;

pub(crate) fn patch(object: &mut Value, patch: &Value) -> Result<(), Failure> {
    let operations =
        patch.as_array().ok_or_else(|| Failure::bad_request("a JSON patch must be a list of operations"))?;
    for operation in operations {
        apply_operation(object, operation).map_err(|cause| {
            tracing::debug!(%operation, cause, "JSON patch refused");
            Failure::unprocessable()
        })?;
    }
    Ok(())
}

fn apply_operation(object: &mut Value, operation: &Value) -> Result<(), String> {
    let text = |field: &str| operation[field].as_str().ok_or_else(|| format!("operation without {field}"));
    let value = || operation.get("value").cloned().ok_or_else(|| "operation without value".to_owned());
    let path = text("path")?;
    match text("op")? {
        "add" => add(object, path, value()?),
        "remove" => remove(object, path).map(drop),
        "replace" => {
            let target = object.pointer_mut(path).ok_or_else(|| missing(path))?;
            *target = value()?;
            Ok(())
        }
        "test" => {
            // A missing field equals null, as in the kube-apiserver.
            let found = object.pointer(path).unwrap_or(&Value::Null);
            if *found == value()? { Ok(()) } else { Err(format!("testing path {path} failed")) }
        }
        "copy" => {
            let from = text("from")?;
            let found = object.pointer(from).cloned().ok_or_else(|| missing(from))?;
            add(object, path, found)
        }
        "move" => {
            let found = remove(object, text("from")?)?;
            add(object, path, found)
        }
        other => Err(format!("unexpected kind of operation {other}")),
    }
}

fn missing(path: &str) -> String {
    format!("doc is missing path {path}")
}

fn split(path: &str) -> Result<(&str, String), String> {
    let (parent, last) = path.rsplit_once('/').ok_or_else(|| format!("{path:?} is not a JSON pointer"))?;
    Ok((parent, last.replace("~1", "/").replace("~0", "~")))
}

fn add(object: &mut Value, path: &str, value: Value) -> Result<(), String> {
    if path.is_empty() {
        *object = value;
        return Ok(());
    }
    let (parent, last) = split(path)?;
    match object.pointer_mut(parent) {
        Some(Value::Object(fields)) => {
            fields.insert(last, value);
            Ok(())
        }
        Some(Value::Array(items)) if last == "-" => {
            items.push(value);
            Ok(())
        }
        Some(Value::Array(items)) => match last.parse::<usize>() {
            Ok(index) if index <= items.len() => {
                items.insert(index, value);
                Ok(())
            }
            _ => Err(format!("no index {last} in {parent}")),
        },
        _ => Err(missing(parent)),
    }
}

fn remove(object: &mut Value, path: &str) -> Result<Value, String> {
    let (parent, last) = split(path)?;
    let removed = match object.pointer_mut(parent) {
        Some(Value::Object(fields)) => fields.remove(&last),
        Some(Value::Array(items)) => {
            last.parse::<usize>().ok().filter(|index| *index < items.len()).map(|index| items.remove(index))
        }
        _ => None,
    };
    removed.ok_or_else(|| missing(path))
}
