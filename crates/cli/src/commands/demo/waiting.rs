//! Waiting for the user's own driver: says what is missing, and ends as soon as it is clear that it will not come.

use std::time::Duration;

use drakkar_node::{Node, NodeError, PodHandle};

use super::print::print_wrapped;
use crate::exit::{Code, Failure};

/// The time after which the demo says what it waits for, and after which it looks again.
const PATIENCE: Duration = Duration::from_secs(2);
/// The time between two looks at a pod.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Waits for a step. Says after two seconds what is missing, and again when that changes.
pub(super) async fn wait_for<T>(
    step: impl Future<Output = Result<T, NodeError>>,
    missing: impl AsyncFn() -> Result<String, NodeError>,
) -> Result<T, Failure> {
    let mut said = String::new();
    tokio::pin!(step);
    loop {
        tokio::select! {
            biased;
            done = &mut step => return Ok(done?),
            () = tokio::time::sleep(PATIENCE) => {}
        }
        let now = missing().await?;
        if now != said {
            print_wrapped(&format!("Waiting: {now}"))?;
            said = now;
        }
    }
}

/// Waits for a step of a pod, as [`wait_for`] does, and fails when it is clear that the pod will not run.
pub(super) async fn wait_for_pod<T>(
    node: &Node,
    pod: &PodHandle<'_>,
    class: &str,
    step: impl Future<Output = Result<T, Failure>>,
) -> Result<T, Failure> {
    tokio::select! {
        biased;
        done = step => done,
        clear = until_hopeless(node, pod, class) => Err(clear),
    }
}

async fn until_hopeless(node: &Node, pod: &PodHandle<'_>, class: &str) -> Failure {
    loop {
        match hopeless(node, pod, class).await {
            Ok(Some(failure)) => return failure,
            Ok(None) => tokio::time::sleep(POLL_INTERVAL).await,
            Err(error) => return error.into(),
        }
    }
}

/// Returns why the pod will not run, if that is clear: its device class is missing, or the kubelet has reported a failure.
async fn hopeless(node: &Node, pod: &PodHandle<'_>, class: &str) -> Result<Option<Failure>, NodeError> {
    if node.device_class(class).await?.is_none() {
        let message = format!("DeviceClass {class} does not exist, so no device can be allocated");
        return Ok(Some(Failure::new(Code::NotFound, message)));
    }
    let Some(event) = pod.events().await?.into_iter().next() else { return Ok(None) };
    let failure = Failure::new(Code::Invalid, format!("the kubelet cannot run the pod: {event}"));
    if !event.contains("CDI") {
        return Ok(Some(failure));
    }
    let directory = node.cdi_directory();
    let hint = format!("its CDI spec must be in $CDI_DIR, {}, before prepare returns", directory.display());
    Ok(Some(failure.hint(hint)))
}

/// Says why no driver is registered yet.
pub(super) async fn missing_registration(node: &Node) -> Result<String, NodeError> {
    if let Some((socket, error)) = node.registration_failures().await.into_iter().next() {
        return Ok(format!("the kubelet cannot register the driver at {}: {error}", socket.display()));
    }
    let registry = node.kubelet_root().join("plugins_registry");
    Ok(format!("the driver has no registration socket in {} yet", registry.display()))
}

/// Says what is missing of a driver's devices.
pub(super) async fn missing_devices(node: &Node, driver: &str) -> Result<String, NodeError> {
    Ok(match node.slices(driver).await?.len() {
        0 => format!("{driver} has published no ResourceSlice yet"),
        1 => format!("the ResourceSlice of {driver} has no devices"),
        count => format!("the {count} ResourceSlices of {driver} have no devices"),
    })
}

/// Says why a pod is not scheduled, or does not run yet.
pub(super) async fn missing_of_pod(pod: &PodHandle<'_>) -> Result<String, NodeError> {
    let status = pod.object().await?.and_then(|pod| pod.status).unwrap_or_default();
    let unmet = status.conditions.into_iter().flatten().find(|condition| condition.status != "True");
    Ok(match unmet.and_then(|condition| condition.message.filter(|message| !message.is_empty())) {
        Some(message) => message,
        None => format!("pod {} is {}", pod.name(), status.phase.as_deref().unwrap_or("not seen yet")),
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

    use drakkar_node::{ClaimSpec, Container, Pod, assert_eventually, device_class};

    use super::*;

    #[tokio::test]
    async fn a_missing_device_class_is_clear_at_once() {
        let node = Node::builder().without_kubelet().start().await.unwrap();
        node.create(ClaimSpec::default().request("device", "gpu.example.com", 1).claim("demo")).await.unwrap();
        let main = Container::new("main", ["true"]).claim("demo");
        let pod = node.create_pod(Pod::new("demo").claim("demo", "demo").container(main)).await.unwrap();
        let never = std::future::pending::<Result<(), Failure>>();
        let clear = wait_for_pod(&node, &pod, "gpu.example.com", never).await.unwrap_err();
        assert_eq!(clear.to_string(), "DeviceClass gpu.example.com does not exist, so no device can be allocated");

        node.create(device_class("gpu.example.com")).await.unwrap();
        assert!(hopeless(&node, &pod, "gpu.example.com").await.unwrap().is_none());
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_socket_that_nobody_serves_is_named_with_its_error() {
        let node = Node::builder().start().await.unwrap();
        assert!(missing_registration(&node).await.unwrap().contains("has no registration socket in"));
        let socket = node.kubelet_root().join("plugins_registry/gone.example.com-reg.sock");
        drop(std::os::unix::net::UnixListener::bind(&socket).unwrap());
        let refused = format!("the kubelet cannot register the driver at {}: ", socket.display());
        assert_eventually!(missing_registration(&node).await.unwrap().starts_with(&refused));
        let text = missing_registration(&node).await.unwrap();
        assert!(text.to_lowercase().contains("refused"), "{text}");
    }
}
