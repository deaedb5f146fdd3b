//! XML of host devices: writing elements, and editing an existing domain document.
//!
//! | form | for |
//! |---|---|
//! | [`Form::Canonical`] | libvirt: valid under its schema, equal to what `virsh dumpxml` prints |
//! | [`Form::Kubevirt`] | comparison with KubeVirt, byte by byte as its launcher writes it |
//!
//! KubeVirt's form of a PCI device has a `type` in its source address, which libvirt's schema refuses (its parser ignores
//! the attribute), and no `mode`, which KubeVirt's own plugin framework requires. The canonical form has neither problem.

pub mod edit;
mod element;
mod escape;
mod scan;

use element::Element;

use crate::hostdev::{Controller, ControllerModel, HostDev, PciFields, Source};

/// The form in which elements are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Form {
    /// As libvirt prints them: one element per line, single quotes, `mode` and `managed` always present.
    #[default]
    Canonical,
    /// As KubeVirt 1.9 writes them: in one line, in Go's notation, without what libvirt adds.
    Kubevirt,
}

/// Writes `<hostdev>` elements one after the other. The canonical form ends each with a newline.
pub fn write(devices: &[HostDev], form: Form) -> String {
    let mut text = String::with_capacity(devices.len() * 256);
    for device in devices {
        hostdev(device, form).write(form, 0, &mut text);
    }
    text
}

/// Writes `<controller>` elements one after the other. The canonical form ends each with a newline.
pub fn write_controllers(controllers: &[Controller], form: Form) -> String {
    let mut text = String::with_capacity(controllers.len() * 192);
    for controller in controllers {
        self::controller(controller, form).write(form, 0, &mut text);
    }
    text
}

fn hostdev(device: &HostDev, form: Form) -> Element {
    let on = |value: bool| value.then_some("on");
    let kind = match &device.source {
        Source::Pci(_) => "pci",
        Source::Mdev { .. } => "mdev",
        Source::Usb { .. } => "usb",
    };
    let model = match &device.source {
        Source::Mdev { model, .. } => Some(model.as_str()),
        Source::Pci(_) | Source::Usb { .. } => None,
    };
    let is_pci = device.host_pci().is_some();
    let mut element = Element::new("hostdev");
    match form {
        Form::Canonical => {
            element = element.attribute("mode", "subsystem").attribute("type", kind).attribute("managed", "no");
        }
        Form::Kubevirt => {
            element = element
                .attribute("type", kind)
                .optional("managed", is_pci.then_some("no"))
                .optional("mode", (!is_pci).then_some("subsystem"));
        }
    }
    element = element
        .optional("model", model)
        .optional("display", on(device.display))
        .optional("ramfb", on(device.ramfb))
        .child(Element::new("source").child(source_address(&device.source, form)));
    if let Some(order) = device.boot_order {
        element = element.child(Element::new("boot").attribute("order", order.to_string()));
    }
    let guest = device.guest_address.as_ref().map(|fields| pci_address(fields, true, form));
    let alias = Element::new("alias").attribute("name", device.user_alias());
    match form {
        Form::Canonical => element.child(alias).optional_child(guest),
        Form::Kubevirt => element.optional_child(guest).child(alias),
    }
}

fn source_address(source: &Source, form: Form) -> Element {
    match source {
        Source::Pci(fields) => pci_address(fields, form == Form::Kubevirt, form),
        Source::Mdev { uuid, .. } => {
            let uuid = match form {
                Form::Canonical => canonical_uuid(uuid),
                Form::Kubevirt => uuid.clone(),
            };
            Element::new("address").attribute("uuid", uuid)
        }
        Source::Usb { bus, device } => {
            Element::new("address").attribute("bus", bus.clone()).attribute("device", device.clone())
        }
    }
}

fn pci_address(fields: &PciFields, has_type: bool, form: Form) -> Element {
    let fields = match form {
        Form::Canonical => fields.to_lowercase(),
        Form::Kubevirt => fields.clone(),
    };
    Element::new("address")
        .optional("type", has_type.then_some("pci"))
        .attribute("domain", fields.domain)
        .attribute("bus", canonical_bus(fields.bus, form))
        .attribute("slot", fields.slot)
        .attribute("function", fields.function)
}

/// Writes a decimal bus, the index of a root port, as libvirt prints it.
fn canonical_bus(bus: String, form: Form) -> String {
    match (form, bus.parse::<u8>()) {
        (Form::Canonical, Ok(number)) => format!("0x{number:02x}"),
        _ => bus,
    }
}

fn controller(controller: &Controller, form: Form) -> Element {
    let element = Element::new("controller").attribute("type", "pci").attribute("index", controller.index.to_string());
    match &controller.model {
        ControllerModel::ExpanderBus { bus_number, node } => element.attribute("model", "pcie-expander-bus").child(
            Element::new("target")
                .attribute("busNr", bus_number.to_string())
                .child(Element::new("node").text(node.to_string())),
        ),
        ControllerModel::RootPort { address } => {
            element.attribute("model", "pcie-root-port").child(pci_address(address, true, form))
        }
    }
}

/// Returns a UUID as libvirt prints it: lower case, with dashes. Another text is returned as it is.
pub(crate) fn canonical_uuid(text: &str) -> String {
    let digits: String = text.chars().filter(|character| *character != '-').collect();
    if !crate::hostdev::is_libvirt_uuid(text) {
        return text.to_owned();
    }
    let digits = digits.to_ascii_lowercase();
    let part = |from: usize, to: usize| digits.get(from..to).unwrap_or_default();
    format!("{}-{}-{}-{}-{}", part(0, 8), part(8, 12), part(12, 16), part(16, 20), part(20, 32))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::behaviour::Behaviour;
    use crate::hostdev::MdevModel;

    fn pci(text: &str) -> PciFields {
        PciFields::parse(text, Behaviour::Strict).unwrap()
    }

    #[test]
    fn the_canonical_form_is_what_libvirt_prints() {
        let mut nic = HostDev::new("sriov-n", Source::Pci(pci("0000:AF:1F.7")));
        nic.boot_order = Some(1);
        nic.guest_address = Some(PciFields::guest("10", 0));
        let uuid = "7B1D3F605A4E4A8E9F0E0B7C2D1E9A01".to_owned();
        let mut vgpu = HostDev::new("dra-gpu-v", Source::Mdev { uuid, model: MdevModel::VfioPci });
        vgpu.display = true;
        vgpu.ramfb = true;
        let expected = "\
<hostdev mode='subsystem' type='pci' managed='no'>
  <source>
    <address domain='0x0000' bus='0xaf' slot='0x1f' function='0x7'/>
  </source>
  <boot order='1'/>
  <alias name='ua-sriov-n'/>
  <address type='pci' domain='0x0000' bus='0x0a' slot='0x00' function='0x0'/>
</hostdev>
<hostdev mode='subsystem' type='mdev' managed='no' model='vfio-pci' display='on' ramfb='on'>
  <source>
    <address uuid='7b1d3f60-5a4e-4a8e-9f0e-0b7c2d1e9a01'/>
  </source>
  <alias name='ua-dra-gpu-v'/>
</hostdev>
";
        assert_eq!(write(&[nic, vgpu], Form::Canonical), expected);
    }

    #[test]
    fn controllers_have_both_forms() {
        let port = PciFields::guest("5", 1);
        let controllers = [
            Controller { index: 5, model: ControllerModel::ExpanderBus { bus_number: 254, node: 1 } },
            Controller { index: 6, model: ControllerModel::RootPort { address: port } },
        ];
        let canonical = "\
<controller type='pci' index='5' model='pcie-expander-bus'>
  <target busNr='254'>
    <node>1</node>
  </target>
</controller>
<controller type='pci' index='6' model='pcie-root-port'>
  <address type='pci' domain='0x0000' bus='0x05' slot='0x01' function='0x0'/>
</controller>
";
        assert_eq!(write_controllers(&controllers, Form::Canonical), canonical);
        let kubevirt = r#"<controller type="pci" index="5" model="pcie-expander-bus"><target busNr="254"><node>1</node></target></controller><controller type="pci" index="6" model="pcie-root-port"><address type="pci" domain="0x0000" bus="5" slot="0x01" function="0x0"></address></controller>"#;
        assert_eq!(write_controllers(&controllers, Form::Kubevirt), kubevirt);
    }
}
