//! The pods of the demo.

use serde_json::{Value, json};

use super::COMMAND_IN_CONTAINER;
use crate::exit::{Code, Failure};

/// Creates a pod from YAML, with this command mounted into its containers, which have no images.
pub(super) fn with_this_command(yaml: &str) -> Result<Value, Failure> {
    let mut pod: Value = serde_saphyr::from_str(yaml)
        .map_err(|error| Failure::new(Code::Invalid, format!("the demo's pod: {error}")))?;
    pod["spec"]["volumes"] = json!([{"name": "drakkar", "hostPath": {"path": std::env::current_exe()?}}]);
    let mount = json!([{"name": "drakkar", "mountPath": COMMAND_IN_CONTAINER, "readOnly": true}]);
    for container in pod["spec"]["containers"].as_array_mut().into_iter().flatten() {
        container["volumeMounts"] = mount.clone();
    }
    Ok(pod)
}
