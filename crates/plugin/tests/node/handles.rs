//! Handles that a driver uses while it is made, and after it has stopped.

use std::net::TcpListener;

use drakkar_client::ClaimRef;
use drakkar_node::Node;
use drakkar_plugin::{BoxError, Device, DriverResources, Handles, Pool, PublishError, PublishedDevice, StartError};
use tokio::sync::oneshot;

use crate::support::{DRIVER, TestDriver, plugin};

fn driver() -> TestDriver {
    TestDriver::new(|claim| claim.results().map(Device::from).collect())
}

fn resources(node: &Node) -> DriverResources {
    DriverResources::default().pool(node.name(), Pool::default().device(PublishedDevice::new("gpu-0")))
}

fn claim() -> ClaimRef {
    ClaimRef { namespace: "default".parse().unwrap(), name: "none".parse().unwrap(), uid: "uid-1".parse().unwrap() }
}

#[tokio::test]
async fn resources_that_are_published_while_the_driver_is_made_reach_the_api_server() {
    let node = Node::start().await.unwrap();
    let make = |handles: Handles| {
        handles.publish_resources(resources(&node))?;
        assert_eq!(handles.node_name(), Some(node.name()));
        Ok(driver())
    };
    let helper = plugin(&node).start_with(make).await.unwrap();
    node.wait_published(DRIVER).await.unwrap();
    helper.stop().await.unwrap();
}

/// The address of the HTTP endpoint is bound after the driver is made, so this start fails late.
#[tokio::test]
async fn nothing_is_published_by_a_driver_whose_start_fails_and_its_handles_are_stopped() {
    let node = Node::start().await.unwrap();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut kept = None;
    let make = |handles: Handles| {
        handles.publish_resources(resources(&node))?;
        kept = Some(handles);
        Ok(driver())
    };
    let error = plugin(&node).http_endpoint(taken.local_addr().unwrap()).start_with(make).await.unwrap_err();
    assert!(matches!(error, StartError::Http { address, .. } if address == taken.local_addr().unwrap()), "{error:?}");
    let handles = kept.unwrap();
    assert!(matches!(handles.publish_resources(resources(&node)), Err(PublishError::Stopped)));
    let error = handles.update_request_metadata(&claim(), "gpu", Vec::new()).await.unwrap_err();
    assert_eq!((error.to_string().as_str(), error.is_not_prepared()), ("the driver has stopped", false));
    let user = node.driver_identity(DRIVER).user_name();
    let requests: Vec<_> = node.api().requests().into_iter().filter(|request| request.user == user).collect();
    assert!(requests.is_empty(), "{requests:?}");
    assert_eq!(node.sockets().unwrap(), [""; 0]);
}

#[tokio::test]
async fn an_error_of_the_constructor_is_the_error_of_the_start() {
    let node = Node::start().await.unwrap();
    let broken = |_: Handles| Err::<TestDriver, BoxError>("no GPU was found".into());
    let error = plugin(&node).start_with(broken).await.unwrap_err();
    assert!(matches!(error, StartError::Driver(_)), "{error:?}");
    assert_eq!(error.to_string(), "no GPU was found");
    assert_eq!(node.sockets().unwrap(), [""; 0]);
}

/// That the claim is not prepared here is something that only a running driver can say.
#[tokio::test]
async fn an_update_that_is_requested_while_the_driver_is_made_waits_until_it_serves() {
    let node = Node::start().await.unwrap();
    let (result, updated) = oneshot::channel();
    let make = |handles: Handles| {
        tokio::spawn(async move {
            let update = handles.update_request_metadata(&claim(), "gpu", Vec::new()).await;
            result.send((update, handles)).unwrap();
        });
        Ok(driver())
    };
    let helper = plugin(&node).device_metadata(true).start_with(make).await.unwrap();
    let (update, handles) = updated.await.unwrap();
    assert!(update.unwrap_err().is_not_prepared());
    helper.stop().await.unwrap();
    let error = handles.update_request_metadata(&claim(), "gpu", Vec::new()).await.unwrap_err();
    assert_eq!(error.to_string(), "the driver has stopped");
}
