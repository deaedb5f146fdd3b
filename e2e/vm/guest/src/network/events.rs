//! Events of real cards: the cable is pulled, a card is unplugged, virtual functions come, a device returns from a namespace.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use drakkar_netlink::{Event, Link, Monitor};
use serde_json::json;

use super::{Network, make_functions};
use crate::ensure_eq;
use crate::guest::Guest;

const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) fn test(guest: &mut Guest) -> Result<()> {
    let mut host = Network::host()?;
    let mut monitor = Monitor::open(&host.namespace)?;
    let card = host.device(guest.address("nic0")?)?;
    host.set_up(&card)?;
    until(&mut monitor, "the carrier comes", |event| is(event, &card.name, |link| link.is_running))?;
    guest.host.qmp("set_link", &json!({ "name": "nic0", "up": false }))?;
    until(&mut monitor, "the carrier goes", |event| is(event, &card.name, |link| !link.is_running && link.is_up))?;
    guest.host.qmp("set_link", &json!({ "name": "nic0", "up": true }))?;
    until(&mut monitor, "the carrier is back", |event| is(event, &card.name, |link| link.is_running))?;

    let function = make_functions(guest, 1)?[0];
    let name = function.to_string();
    let mut found = None;
    until(&mut monitor, "the virtual function comes", |event| {
        let Event::Link(link) = event else { return false };
        let is_it = link.device.as_ref().is_some_and(|device| device.name == name);
        if is_it {
            found = Some(link.clone());
        }
        is_it
    })?;
    let function = found.context("it was found")?;
    ensure_eq!(host.link(&function.name)?.device, function.device);

    let mut pod = Network::new()?;
    host.give(&function, &mut pod, "net1")?;
    until(
        &mut monitor,
        "the function moves away",
        |event| matches!(event, Event::LinkRemoved(link) if link.index == function.index),
    )?;
    drop(pod);
    let is_back = |link: &Link| link.device == function.device;
    until(&mut monitor, "the function returns", |event| is(event, "net1", is_back))?;

    let card = host.device(guest.address("nic1")?)?;
    guest.unplug("nic1")?;
    until(
        &mut monitor,
        "the card is unplugged",
        |event| matches!(event, Event::LinkRemoved(link) if link.index == card.index),
    )
}

fn is(event: &Event, name: &str, condition: impl Fn(&Link) -> bool) -> bool {
    matches!(event, Event::Link(link) if link.name == name && condition(link))
}

/// Reads events until one is as expected.
fn until(monitor: &mut Monitor, what: &str, mut is_it: impl FnMut(&Event) -> bool) -> Result<()> {
    println!("{what}");
    loop {
        let events = monitor.wait(PATIENCE)?;
        ensure!(!events.is_empty(), "waited {} s: {what}", PATIENCE.as_secs());
        ensure!(!events.contains(&Event::Overrun), "events were lost");
        if events.iter().any(&mut is_it) {
            return Ok(());
        }
    }
}
