//! Edits of domain documents: what changes, and that nothing else does.

use drakkar_kubevirt::Behaviour;
use drakkar_kubevirt::hostdev::{Controller, ControllerModel, HostDev, MdevModel, PciFields, Source};
use drakkar_kubevirt::xml::edit::{
    EditError, host_devices, put_controllers, put_hostdevs, put_hostdevs_as, remove_hostdevs, set_guest_addresses,
    set_mode,
};
use drakkar_kubevirt::xml::{self, Form};
use proptest::prelude::*;

/// A document with everything that a careless editor would lose.
const DOMAIN: &str = r#"<?xml version='1.0' encoding="UTF-8"?>
<!-- a comment with <hostdev/> & more -->
<domain type='kvm' xmlns:qemu="http://libvirt.org/schemas/domain/qemu/1.0"  id = '3'>
  <name>a &amp; b &#x41;</name>
  <metadata><x:hostdev xmlns:x="urn:x"><![CDATA[<hostdev type="pci"/> ]]></x:hostdev></metadata>
  <devices>
	<controller type='pci' index='0' model='pcie-root'/>
	<!-- <hostdev> --><disk   type='file'>
      <alias name="ua-dra-gpu-p"/></disk>
	<hostdev type="pci" managed="no">
		<source>
			<address type="pci" domain="0x0000" bus="0xAF" slot="0x00" function="0x0"></address>
		</source>
		<boot order="2"></boot>
		<alias name="ua-dra-gpu-p"></alias>
		<driver iommufd="yes"></driver>
	</hostdev>
	<hostdev type='mdev' mode='subsystem' model='vfio-pci'><source><address uuid="7b1d3f60-5a4e-4a8e-9f0e-0b7c2d1e9a01"/></source><alias name='ua-dra-gpu-v'/></hostdev>
	<memballoon model="none"/>
  </devices>
  <qemu:commandline><qemu:arg value="-S"/></qemu:commandline>
</domain>
<!-- the end -->
"#;

fn pci(alias: &str, address: &str) -> HostDev {
    HostDev::new(alias, Source::Pci(PciFields::parse(address, Behaviour::Extended).unwrap()))
}

/// Returns what an edit removed and what it inserted: the parts between the common start and the common end.
fn difference<'a>(before: &'a str, after: &'a str) -> (&'a str, &'a str) {
    let start = before.bytes().zip(after.bytes()).take_while(|(a, b)| a == b).count();
    let rest = before.len().min(after.len()) - start;
    let end = before.bytes().rev().zip(after.bytes().rev()).take(rest).take_while(|(a, b)| a == b).count();
    (&before[start..before.len() - end], &after[start..after.len() - end])
}

#[test]
fn set_mode_inserts_one_attribute_and_nothing_else() {
    let edited = set_mode(DOMAIN).unwrap();
    assert_eq!(
        edited,
        DOMAIN.replacen("<hostdev type=\"pci\" managed", "<hostdev mode=\"subsystem\" type=\"pci\" managed", 1)
    );
    assert_eq!(set_mode(&edited).unwrap(), edited);
}

#[test]
fn a_new_device_is_inserted_after_the_last_one_with_its_indentation() {
    let edited = put_hostdevs(DOMAIN, &[pci("dra-gpu-n", "0000:b0:00.0")]).unwrap();
    let (removed, inserted) = difference(DOMAIN, &edited);
    assert_eq!(removed, "");
    let expected = "<hostdev mode='subsystem' type='pci' managed='no'>\n\t  <source>\n\
                    \t    <address domain='0x0000' bus='0xb0' slot='0x00' function='0x0'/>\n\t  </source>\n\
                    \t  <alias name='ua-dra-gpu-n'/>\n\t</hostdev>";
    assert!(
        edited.contains(&format!("<alias name='ua-dra-gpu-v'/></hostdev>\n\t{expected}\n\t<memballoon")),
        "{inserted}"
    );
    assert_eq!(put_hostdevs(&edited, &[pci("dra-gpu-n", "0000:b0:00.0")]).unwrap(), edited);
}

#[test]
fn kubevirts_form_is_in_one_line_and_is_replaced_by_alias_too() {
    let devices = [pci("dra-gpu-p", "0000:B0:00.0"), pci("dra-gpu-n", "0000:b1:00.0")];
    let edited = put_hostdevs_as(DOMAIN, &devices, Form::Kubevirt).unwrap();
    let added = xml::write(&devices[1..], Form::Kubevirt);
    assert!(edited.contains(&format!("<alias name='ua-dra-gpu-v'/></hostdev>\n\t{added}\n\t<memballoon")), "{edited}");
    let replaced = "<alias name=\"ua-dra-gpu-p\"></alias><driver iommufd=\"yes\"></driver></hostdev>";
    let line = edited.lines().find(|line| line.ends_with(replaced)).unwrap();
    assert!(line.contains("bus=\"0xB0\"") && line.contains("<boot order=\"2\">"), "{line}");
    assert_eq!(put_hostdevs_as(&edited, &devices, Form::Kubevirt).unwrap(), edited);
}

#[test]
fn a_device_is_replaced_by_alias_and_keeps_boot_order_and_unknown_children() {
    let edited = put_hostdevs(DOMAIN, &[pci("dra-gpu-p", "0000:b0:00.0")]).unwrap();
    let start = DOMAIN.find("<hostdev type=\"pci\" managed").unwrap();
    let end = start + DOMAIN[start..].find("</hostdev>").unwrap() + "</hostdev>".len();
    let expected = "<hostdev mode='subsystem' type='pci' managed='no'>\n\t  <source>\n\
                    \t    <address domain='0x0000' bus='0xb0' slot='0x00' function='0x0'/>\n\t  </source>\n\
                    \t  <boot order='2'/>\n\t  <alias name='ua-dra-gpu-p'/>\n\
                    \t  <driver iommufd=\"yes\"></driver>\n\t</hostdev>";
    assert_eq!(edited, format!("{}{expected}{}", &DOMAIN[..start], &DOMAIN[end..]));
    assert_eq!(put_hostdevs(&edited, &[pci("dra-gpu-p", "0000:b0:00.0")]).unwrap(), edited);
}

#[test]
fn a_device_in_canonical_form_is_left_as_it_is_whatever_its_notation() {
    let device = HostDev::new(
        "dra-gpu-v",
        Source::Mdev { uuid: "7B1D3F605A4E4A8E9F0E0B7C2D1E9A01".into(), model: MdevModel::VfioPci },
    );
    assert_eq!(put_hostdevs(DOMAIN, &[device]).unwrap(), DOMAIN);
    // The PCI device has a `type` in its source, and no mode.
    assert_ne!(put_hostdevs(DOMAIN, &[pci("dra-gpu-p", "0000:af:00.0")]).unwrap(), DOMAIN);
}

#[test]
fn the_devices_of_a_document_are_read() {
    let devices = host_devices(DOMAIN).unwrap();
    let aliases: Vec<&str> = devices.iter().map(|present| &*present.device.alias).collect();
    assert_eq!(aliases, ["dra-gpu-p", "dra-gpu-v"]);
    assert_eq!([devices[0].has_mode, devices[1].has_mode], [false, true]);
    assert_eq!(devices[0].device.boot_order, Some(2));
}

#[test]
fn a_device_is_removed_with_its_line() {
    let edited = remove_hostdevs(DOMAIN, &["dra-gpu-v", "not-there"]).unwrap();
    let (removed, inserted) = difference(DOMAIN, &edited);
    assert_eq!(inserted, "");
    assert!(removed.contains("ua-dra-gpu-v") && !removed.contains("memballoon"), "{removed}");
    assert_eq!(remove_hostdevs(&edited, &["dra-gpu-v"]).unwrap(), edited);
}

#[test]
fn controllers_and_guest_addresses_are_added_once() {
    let controllers = [
        Controller { index: 1, model: ControllerModel::ExpanderBus { bus_number: 254, node: 1 } },
        Controller { index: 2, model: ControllerModel::RootPort { address: PciFields::guest("1", 0) } },
    ];
    let edit = |document: &str| {
        let document = put_controllers(document, &controllers).unwrap();
        set_guest_addresses(&document, &[("dra-gpu-p", PciFields::guest("2", 0))]).unwrap()
    };
    let edited = edit(DOMAIN);
    assert!(edited.contains("<controller type='pci' index='0' model='pcie-root'/>\n\t<controller type='pci' index='1' model='pcie-expander-bus'>"), "{edited}");
    assert!(edited.contains("<driver iommufd=\"yes\"></driver>\n\t\t<address type='pci' domain='0x0000' bus='0x02' slot='0x00' function='0x0'/>\n\t</hostdev>"), "{edited}");
    assert_eq!(edit(&edited), edited);
    let other = [Controller { index: 2, model: ControllerModel::RootPort { address: PciFields::guest("1", 1) } }];
    assert_eq!(put_controllers(&edited, &other), Err(EditError::ControllerExists { index: 2 }));
    let missing = set_guest_addresses(DOMAIN, &[("nobody", PciFields::guest("2", 0))]);
    assert_eq!(missing, Err(EditError::NoAlias { alias: "nobody".into() }));
}

#[test]
fn documents_without_devices_or_line_breaks_get_them_in_one_line() {
    let device = pci("g", "0000:01:00.0");
    let element: String = xml::write(std::slice::from_ref(&device), Form::Canonical).lines().map(str::trim).collect();
    for (before, after) in [
        ("<domain/>", format!("<domain><devices>{element}</devices></domain>")),
        ("<domain></domain>", format!("<domain><devices>{element}</devices></domain>")),
        ("<domain><devices/></domain>", format!("<domain><devices>{element}</devices></domain>")),
        ("<domain><devices a='/' /></domain>", format!("<domain><devices a='/' >{element}</devices></domain>")),
        ("<domain><devices></devices></domain>", format!("<domain><devices>{element}</devices></domain>")),
        ("<domain><devices><a/></devices></domain>", format!("<domain><devices><a/>{element}</devices></domain>")),
        (
            "\u{feff}<domain><devices><a/></devices></domain>",
            format!("\u{feff}<domain><devices><a/>{element}</devices></domain>"),
        ),
    ] {
        let edited = put_hostdevs(before, std::slice::from_ref(&device)).unwrap();
        assert_eq!(edited, after);
        assert_eq!(put_hostdevs(&edited, std::slice::from_ref(&device)).unwrap(), edited);
    }
}

#[test]
fn a_text_that_is_no_domain_is_refused() {
    assert!(matches!(set_mode("<network/>"), Err(EditError::NotADomain { .. })));
    for text in ["", "text", "<domain>", "<domain></domian>", "<domain><devices></domain>", "<domain/><domain/>"] {
        assert!(matches!(set_mode(text), Err(EditError::Syntax { .. })), "{text}");
    }
    let deep = "<domain>".to_owned() + &"<a>".repeat(10_000);
    assert!(matches!(set_mode(&deep), Err(EditError::Syntax { .. })));
    let twice = "<domain><devices><hostdev><alias name='ua-x'/></hostdev><hostdev><alias name='ua-x'/></hostdev></devices></domain>";
    assert_eq!(remove_hostdevs(twice, &["x"]), Err(EditError::DuplicateAlias { alias: "x".into() }));
}

/// A device that is put into one list and searched in the other would be there twice.
#[test]
fn a_document_with_two_lists_of_devices_is_refused() {
    let error = put_hostdevs("<domain><devices/><devices/></domain>", &[pci("g", "0000:01:00.0")]).unwrap_err();
    assert!(matches!(error, EditError::SeveralDevices { count: 2 }), "{error}");
}

#[test]
fn a_hostdev_outside_devices_is_no_host_device() {
    let document = "<domain><hostdev type='pci'><alias name='ua-g'/></hostdev></domain>";
    assert_eq!(host_devices(document).unwrap(), []);
    assert_eq!(remove_hostdevs(document, &["g"]).unwrap(), document);
}

proptest! {
    /// Whatever the document is, an edit fails or is idempotent, and never panics.
    #[test]
    fn edits_are_idempotent(parts in prop::collection::vec(prop::sample::select(PARTS), 0..24)) {
        let document = parts.concat();
        let device = pci("g", "0000:01:00.0");
        if let Ok(once) = put_hostdevs(&document, std::slice::from_ref(&device)) {
            prop_assert_eq!(&put_hostdevs(&once, std::slice::from_ref(&device)).unwrap(), &once);
            let with_mode = set_mode(&once).unwrap();
            prop_assert_eq!(&set_mode(&with_mode).unwrap(), &with_mode);
            let removed = remove_hostdevs(&with_mode, &["g"]).unwrap();
            // A <hostdev> outside <devices> is no host device, and stays.
            prop_assert!(host_devices(&removed).unwrap().iter().all(|present| present.device.alias != "g"));
        }
    }
}

const PARTS: &[&str] = &[
    "<domain>",
    "<domain>",
    "</domain>",
    "<devices>",
    "</devices>",
    "<devices />",
    "<hostdev type='pci'><source><address type='pci' bus='0x01' slot='0x00'/></source><alias name='ua-g'/></hostdev>",
    "<hostdev type=\"mdev\"/>",
    "\n\t",
    "  ",
    "<!-- c -->",
    "<![CDATA[ <devices> ]]>",
    "&amp;&own;",
    "<q:x xmlns:q='u' hostdev='1'/>",
    "ä",
];
