//! Many attaches at once.

use drakkar_netlink::{Child, MacvlanMode, NewAddress};

use super::machine::{Machine, Place};
use crate::attach::{Attachment, InterfacePlan, Limits, attach};
use crate::restore::{Outcome, restore};

const PODS: usize = 50;

#[test]
fn many_pods_get_interfaces_on_one_parent_at_once_and_all_are_deleted() {
    let Some(machine) = Machine::new() else { return };
    let before = machine.host.state();
    let pods: Vec<Place> = (0..PODS).map_while(|_| Place::new()).collect();
    let attachments: Vec<Attachment> = std::thread::scope(|scope| {
        let threads: Vec<_> = (pods.iter().enumerate())
            .map(|(number, pod)| {
                let plan = InterfacePlan {
                    mark: format!("drakkar/c{number}/fast0"),
                    child: Some(Child::Macvlan { mode: MacvlanMode::Bridge }),
                    addresses: vec![NewAddress::new(format!("10.1.0.{}/24", number + 1).parse().unwrap())],
                    ..machine.plan("fast0", "net1")
                };
                let kernel = machine.kernel();
                scope.spawn(move || {
                    let attachment = Attachment::inspect(&kernel, plan, &pod.path(), &Limits::default()).unwrap();
                    let attached = attach(&kernel, &attachment, &Limits::default()).unwrap();
                    assert_eq!(attached.ips().len(), 1);
                    attachment
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert_eq!(attachments.len(), PODS);
    super::machine::talk(&pods[0], "10.1.0.1", &pods[PODS - 1], "10.1.0.50");
    std::thread::scope(|scope| {
        for attachment in &attachments {
            let kernel = machine.kernel();
            scope.spawn(move || assert_eq!(restore(&kernel, attachment).unwrap().outcome, Outcome::Deleted));
        }
    });
    assert!(pods.iter().all(|pod| pod.find("net1").is_none()));
    assert_eq!(machine.host.state(), before);
}
