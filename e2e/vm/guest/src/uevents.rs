//! Real uevents: after each change, the inventory that follows them equals a fresh scan.

use anyhow::{Context, Result, ensure};
use drakkar_sysfs::{
    Action, Binding, Changes, Inventory, MdevParentName, Uevent, UeventSocket, bind_to, create_mdev, remove_mdev,
    restore, set_num_vfs,
};
use std::time::Duration;

use crate::ensure_eq;
use crate::guest::{Guest, modprobe, wait};

/// An inventory that follows the kernel's events.
struct Follower {
    socket: UeventSocket,
    inventory: Inventory,
    /// What the events named, since [`Follower::take`].
    seen: Vec<(Action, String)>,
}

impl Follower {
    fn new(guest: &Guest) -> Result<Self> {
        let socket = UeventSocket::open()?;
        Ok(Self { socket, inventory: guest.scan()?, seen: Vec::new() })
    }

    /// Applies events until the inventory equals a fresh scan and none is left; returns what changed.
    fn follow(&mut self, guest: &Guest, what: &str) -> Result<Changes> {
        let mut all = Changes::default();
        let (mut events, mut most) = (0, 0);
        let outcome = wait(&format!("the events of: {what}"), || {
            self.socket.wait(Duration::from_millis(100))?;
            let received = self.socket.receive_all(1000)?;
            events += received.len();
            for event in &received {
                let Uevent::Device(device) = event else { anyhow::bail!("events were lost") };
                self.seen.push((device.action, device.path.display().to_string()));
                let before = guest.sysfs.opens();
                let changes = self.inventory.apply(&guest.sysfs, event)?;
                most = most.max(guest.sysfs.opens() - before);
                ensure!(!changes.rescanned);
                all.added.extend(changes.added);
                all.removed.extend(changes.removed);
                all.changed.extend(changes.changed);
                all.groups.extend(changes.groups);
                all.mdevs.extend(changes.mdevs);
                all.mdev_parents.extend(changes.mdev_parents);
            }
            Ok(received.is_empty() && events > 0 && self.inventory == guest.scan()?)
        });
        let before = guest.sysfs.opens();
        let fresh = guest.scan()?;
        let scan = guest.sysfs.opens() - before;
        outcome.with_context(|| difference(&self.inventory, &fresh))?;
        println!("{what}: {events} events, at most {most} files opened for one; a scan opens {scan}");
        ensure!(most * 2 < scan, "an event about one device is to cost less than a scan");
        Ok(all)
    }

    fn take(&mut self) -> Vec<(Action, String)> {
        std::mem::take(&mut self.seen)
    }
}

/// Shows what differs, not all of it.
fn difference(followed: &Inventory, fresh: &Inventory) -> String {
    let mut text = String::new();
    for address in followed.devices.keys().chain(fresh.devices.keys()) {
        let (ours, real) = (followed.devices.get(address), fresh.devices.get(address));
        if ours != real {
            text.push_str(&format!("followed {ours:?}\nfresh {real:?}\n"));
        }
    }
    let rest = |inventory: &Inventory| {
        let Inventory { groups, mdevs, mdev_parents, iommufd, problems, .. } = inventory;
        format!("{groups:?} {mdevs:?} {mdev_parents:?} {iommufd} {problems:?}")
    };
    if rest(followed) != rest(fresh) {
        text.push_str(&format!("followed {}\nfresh {}\n", rest(followed), rest(fresh)));
    }
    text
}

pub(crate) fn test(guest: &mut Guest) -> Result<()> {
    let nic = guest.address("nic0")?;
    let mut follower = Follower::new(guest)?;
    modprobe("vfio-pci")?;
    modprobe("iommufd").ok();

    let former = Binding::read(&guest.sysfs, nic)?.context("nic0")?;
    bind_to(&guest.sysfs, nic, "vfio-pci")?;
    let changes = follower.follow(guest, "nic0 is bound to vfio-pci")?;
    ensure!(changes.changed.contains(&nic) && changes.added.is_empty() && changes.removed.is_empty());
    let actions: Vec<_> = follower.take().into_iter().filter(|(_, path)| path.ends_with(&nic.to_string())).collect();
    ensure_eq!(actions.iter().map(|(action, _)| *action).collect::<Vec<_>>(), [Action::Unbind, Action::Bind]);

    restore(&guest.sysfs, nic, Some("vfio-pci"), &former)?;
    let changes = follower.follow(guest, "nic0 is restored")?;
    ensure!(changes.changed.contains(&nic));

    if let Ok(physical) = guest.address("sriov") {
        set_num_vfs(&guest.sysfs, physical, 3, |_| None)?;
        let changes = follower.follow(guest, "three virtual functions are made")?;
        ensure_eq!(changes.added.len(), 3);
        ensure!(changes.changed.contains(&physical), "the physical function has other numbers");
        let functions = changes.added;
        set_num_vfs(&guest.sysfs, physical, 0, |_| None)?;
        let changes = follower.follow(guest, "the virtual functions are removed")?;
        ensure_eq!(changes.removed, functions);
    }

    if modprobe("mtty").is_ok() {
        let changes = follower.follow(guest, "the module mtty is loaded")?;
        ensure!(changes.mdev_parents.contains("mtty"));
        let uuid = "11111111-2222-4333-8444-555555555555";
        create_mdev(&guest.sysfs, &MdevParentName::Other("mtty".to_owned()), "mtty-2", uuid)?;
        let changes = follower.follow(guest, "a mediated device is made")?;
        ensure!(changes.mdevs.contains(uuid) && changes.mdev_parents.contains("mtty"));
        remove_mdev(&guest.sysfs, uuid)?;
        let changes = follower.follow(guest, "the mediated device is removed")?;
        ensure!(changes.mdevs.contains(uuid) && changes.mdev_parents.contains("mtty"));
    }

    let gone = guest.address("nic1")?;
    guest.unplug("nic1")?;
    let changes = follower.follow(guest, "nic1 is unplugged")?;
    ensure_eq!(changes.removed.into_iter().collect::<Vec<_>>(), [gone]);
    Ok(())
}
