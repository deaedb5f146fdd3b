//! Device classes: their names, and the patterns that select them.

use serde::Deserialize;

/// A pattern for the class code of a device: its name (`display`, `nvme`), or the first digits of the code (`0x0302`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct ClassPattern {
    /// The digits of the code that must match, at the top.
    prefix: u32,
    /// The number of bits of the 24 that must match.
    bits: u32,
}

/// The base classes by code.
const BASE_CLASSES: [(u8, &str); 20] = [
    (0x00, "unclassified"),
    (0x01, "storage"),
    (0x02, "network"),
    (0x03, "display"),
    (0x04, "multimedia"),
    (0x05, "memory"),
    (0x06, "bridge"),
    (0x07, "communication"),
    (0x08, "system"),
    (0x09, "input"),
    (0x0a, "docking"),
    (0x0b, "processor"),
    (0x0c, "serial"),
    (0x0d, "wireless"),
    (0x0e, "intelligent"),
    (0x0f, "satellite"),
    (0x10, "encryption"),
    (0x11, "signal"),
    (0x12, "accelerator"),
    (0x13, "instrumentation"),
];

/// The subclasses that people select devices by, by base class and subclass.
const SUBCLASSES: [(u16, &str); 19] = [
    (0x0100, "scsi"),
    (0x0104, "raid"),
    (0x0106, "sata"),
    (0x0107, "sas"),
    (0x0108, "nvme"),
    (0x0200, "ethernet"),
    (0x0207, "infiniband"),
    (0x0280, "fabric"),
    (0x0300, "vga"),
    (0x0302, "3d"),
    (0x0380, "gpu-other"),
    (0x0401, "audio-legacy"),
    (0x0403, "audio"),
    (0x0600, "host-bridge"),
    (0x0601, "isa-bridge"),
    (0x0604, "pci-bridge"),
    (0x0c03, "usb"),
    (0x0c04, "fibre-channel"),
    (0x0b40, "coprocessor"),
];

/// Returns the name of the base class of a class code of 24 bits: `display`, `network`.
pub fn base_class(class: u32) -> Option<&'static str> {
    BASE_CLASSES.iter().find(|(code, _)| u32::from(*code) == class >> 16).map(|(_, name)| *name)
}

/// Returns the name of the subclass of a class code of 24 bits, if it is one that people select by: `nvme`, `3d`.
pub fn subclass(class: u32) -> Option<&'static str> {
    SUBCLASSES.iter().find(|(code, _)| u32::from(*code) == class >> 8).map(|(_, name)| *name)
}

impl ClassPattern {
    /// Returns whether a class code of 24 bits matches.
    pub fn matches(&self, class: u32) -> bool {
        class >> (24 - self.bits) == self.prefix
    }
}

impl TryFrom<String> for ClassPattern {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let base = BASE_CLASSES.iter().find(|(_, name)| *name == text);
        let sub = SUBCLASSES.iter().find(|(_, name)| *name == text);
        match (base, sub) {
            (Some((code, _)), _) => return Ok(Self { prefix: u32::from(*code), bits: 8 }),
            (None, Some((code, _))) => return Ok(Self { prefix: u32::from(*code), bits: 16 }),
            (None, None) => {}
        }
        let digits = text.strip_prefix("0x").filter(|digits| matches!(digits.len(), 2 | 4 | 6));
        let code = digits.filter(|digits| digits.bytes().all(|byte| byte.is_ascii_hexdigit()));
        if let Some(Ok(prefix)) = code.map(|digits| u32::from_str_radix(digits, 16)) {
            let bits = if text.len() == 4 {
                8
            } else if text.len() == 6 {
                16
            } else {
                24
            };
            return Ok(Self { prefix, bits });
        }
        let names = BASE_CLASSES.iter().map(|(_, name)| *name).chain(SUBCLASSES.iter().map(|(_, name)| *name));
        Err(format!(
            "{text:?} is no class: use the first 2, 4 or 6 digits of its code, such as 0x03 or 0x0302, or one of the names {}",
            names.collect::<Vec<_>>().join(", ")
        ))
    }
}
