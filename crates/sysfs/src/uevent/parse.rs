//! The format of a message: `ACTION@DEVPATH`, then `KEY=VALUE`, each with a zero byte at its end.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Component, Path};

use super::{Action, DeviceEvent};

/// A message that is not one of the kernel about a device.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ParseUeventError {
    /// The message does not begin with an action and a path.
    #[error("the message does not begin with ACTION@DEVPATH")]
    Header,
    /// The path of the device is not one below sysfs.
    #[error("the path {path:?} is not that of a device")]
    Path {
        /// The path.
        path: String,
    },
    /// A property has no value.
    #[error("{text:?} is not KEY=VALUE")]
    Property {
        /// The text in place of a property.
        text: String,
    },
}

impl DeviceEvent {
    /// Parses a message of the kernel. What is not text in values is replaced.
    pub fn parse(message: &[u8]) -> Result<Self, ParseUeventError> {
        let mut fields = message.split(|byte| *byte == 0);
        let header = fields.next().unwrap_or_default();
        let at = header.iter().position(|byte| *byte == b'@').ok_or(ParseUeventError::Header)?;
        let (action, path) = header.split_at(at);
        let path = path.get(1..).unwrap_or_default();

        let invalid = || ParseUeventError::Path { path: String::from_utf8_lossy(path).into_owned() };
        let path = path.strip_prefix(b"/").filter(|path| !path.is_empty()).ok_or_else(invalid)?;
        let path = Path::new(OsStr::from_bytes(path));
        // A path that leads elsewhere would be looked up outside of sysfs.
        if path.components().any(|component| !matches!(component, Component::Normal(_))) {
            return Err(invalid());
        }
        let mut event = Self {
            action: Action::from_bytes(action),
            path: path.to_owned(),
            subsystem: String::new(),
            properties: Default::default(),
        };
        for field in fields.filter(|field| !field.is_empty()) {
            let text = String::from_utf8_lossy(field);
            let (key, value) = text
                .split_once('=')
                .filter(|(key, _)| !key.is_empty())
                .ok_or_else(|| ParseUeventError::Property { text: text.clone().into_owned() })?;
            event.properties.insert(key.to_owned(), value.to_owned());
        }
        event.subsystem = event.properties.get("SUBSYSTEM").cloned().unwrap_or_default();
        Ok(event)
    }
}

impl Action {
    fn from_bytes(text: &[u8]) -> Self {
        match text {
            b"add" => Self::Add,
            b"remove" => Self::Remove,
            b"change" => Self::Change,
            b"move" => Self::Move,
            b"online" => Self::Online,
            b"offline" => Self::Offline,
            b"bind" => Self::Bind,
            b"unbind" => Self::Unbind,
            _ => Self::Other,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rstest::rstest;

    use super::*;

    #[test]
    fn a_message_of_the_kernel_has_all_its_parts() {
        let message = b"bind@/devices/pci0000:00/0000:00:02.0\0ACTION=bind\0\
            DEVPATH=/devices/pci0000:00/0000:00:02.0\0SUBSYSTEM=pci\0DRIVER=vfio-pci\0PCI_CLASS=20000\0PCI_ID=8086:10D3\0\
            PCI_SLOT_NAME=0000:00:02.0\0MODALIAS=pci:v00008086\0SEQNUM=812\0";
        let event = DeviceEvent::parse(message).unwrap();
        assert_eq!(event.action, Action::Bind);
        assert_eq!(event.path, Path::new("devices/pci0000:00/0000:00:02.0"));
        assert_eq!(event.subsystem, "pci");
        assert_eq!(event.property("DRIVER"), Some("vfio-pci"));
        assert_eq!(event.property("PCI_SLOT_NAME"), Some("0000:00:02.0"));
        assert_eq!(event.property("SEQNUM"), Some("812"));
    }

    #[rstest]
    #[case("add", Action::Add)]
    #[case("remove", Action::Remove)]
    #[case("change", Action::Change)]
    #[case("move", Action::Move)]
    #[case("online", Action::Online)]
    #[case("offline", Action::Offline)]
    #[case("bind", Action::Bind)]
    #[case("unbind", Action::Unbind)]
    #[case("levitate", Action::Other)]
    fn every_action_is_known_or_other(#[case] text: &str, #[case] action: Action) {
        let event = DeviceEvent::parse(format!("{text}@/devices/x\0").as_bytes()).unwrap();
        assert_eq!(event.action, action);
    }

    #[test]
    fn a_message_without_properties_or_last_zero_is_taken() {
        let event = DeviceEvent::parse(b"add@/devices/x\0SUBSYSTEM=net").unwrap();
        assert_eq!(event.subsystem, "net");
        assert_eq!(DeviceEvent::parse(b"add@/module/vfio").unwrap().subsystem, "");
    }

    #[test]
    fn a_value_can_have_equals_signs_and_what_is_not_text() {
        let event = DeviceEvent::parse(b"add@/devices/x\0A=b=c\0B=\xff\0C=\0").unwrap();
        assert_eq!(event.property("A"), Some("b=c"));
        assert_eq!(event.property("B"), Some("\u{fffd}"));
        assert_eq!(event.property("C"), Some(""));
    }

    #[rstest]
    #[case::empty(b"")]
    #[case::udev(b"libudev\0\xfe\xed\xca\xfe")]
    #[case::no_path(b"add@\0")]
    #[case::root(b"add@/\0")]
    #[case::relative(b"add@devices/x\0")]
    #[case::upwards(b"add@/devices/../../etc\0")]
    #[case::no_value(b"add@/devices/x\0ACTION\0")]
    #[case::no_key(b"add@/devices/x\0=add\0")]
    fn what_is_not_a_message_of_the_kernel_is_an_error(#[case] message: &[u8]) {
        DeviceEvent::parse(message).unwrap_err();
    }

    proptest! {
        #[test]
        fn any_bytes_are_parsed_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            if let Ok(event) = DeviceEvent::parse(&bytes) {
                prop_assert!(event.path.is_relative());
            }
        }

        #[test]
        fn bytes_like_a_message_lead_nowhere_outside_of_sysfs(
            path in "(/?(\\.|\\.\\.|devices|pci0000:00|\\PC{0,3})){0,5}",
            properties in proptest::collection::vec("[A-Z_]{0,3}=?\\PC{0,5}", 0..4),
        ) {
            let message = format!("add@{path}\0{}", properties.join("\0"));
            if let Ok(event) = DeviceEvent::parse(message.as_bytes()) {
                prop_assert!(event.path.components().all(|part| matches!(part, Component::Normal(_))));
            }
        }

        #[test]
        fn what_was_written_as_a_message_is_read_back(
            name in "[a-z0-9:.-]*[a-z0-9]",
            properties in proptest::collection::btree_map("[A-Z][A-Z_]{0,8}", "[^\0]{0,12}", 0..6),
        ) {
            let mut message = format!("change@/devices/{name}\0").into_bytes();
            for (key, value) in &properties {
                message.extend_from_slice(format!("{key}={value}\0").as_bytes());
            }
            let event = DeviceEvent::parse(&message).unwrap();
            prop_assert_eq!(event.path, Path::new("devices").join(name));
            prop_assert_eq!(event.properties, properties);
        }
    }
}
