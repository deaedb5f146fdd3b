//! `DeviceClass` and its parts.

use super::Kind::{List, Object, Text};
use super::Presence::{Always, OmitEmpty, Pointer};
use super::{DEVICE_SELECTOR, LIST_METADATA, METADATA, OPAQUE_DEVICE_CONFIGURATION, Type, field};

/// A class of devices.
pub static DEVICE_CLASS: Type =
    Type::new("v1.DeviceClass", &[METADATA, field(2, "spec", Object(&DEVICE_CLASS_SPEC), Always)]);

/// A list of [`DEVICE_CLASS`].
pub static DEVICE_CLASS_LIST: Type =
    Type::new("v1.DeviceClassList", &[LIST_METADATA, field(2, "items", List(&Object(&DEVICE_CLASS)), Always)]);

/// The content of a device class.
pub static DEVICE_CLASS_SPEC: Type = Type::new(
    "v1.DeviceClassSpec",
    &[
        field(1, "selectors", List(&Object(&DEVICE_SELECTOR)), OmitEmpty),
        field(2, "config", List(&Object(&DEVICE_CLASS_CONFIGURATION)), OmitEmpty),
        field(4, "extendedResourceName", Text, Pointer),
    ],
);

/// The configuration of devices of a class.
pub static DEVICE_CLASS_CONFIGURATION: Type = Type::new(
    "v1.DeviceClassConfiguration",
    &[field(1, "opaque", Object(&OPAQUE_DEVICE_CONFIGURATION), Pointer).embedded_in(1)],
);
