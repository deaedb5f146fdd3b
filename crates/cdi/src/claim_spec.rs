//! The spec of a claim: one file with the edits of all devices that a driver prepared for the claim.
//!
//! | what | name |
//! |---|---|
//! | file | `{driver}_container-edits_{claim UID}.json` |
//! | kind | `{driver}/container-edits` |
//! | device | `{claim UID}_{name}` |
//! | id | `{driver}/container-edits={claim UID}_{name}` |
//!
//! The names are unlike those of [metadata devices](crate::MetadataDevice) and unlike those that drivers choose for specs of their own
//! (`{driver}/device`, `{driver}/gpu`), so that none is ever taken for another.

use drakkar_metadata::name::{ClaimUid, DriverName};

use crate::name::{Class, DeviceName, NameError, QualifiedName, Vendor};
use crate::spec::{Device, Spec};
use crate::validate::{ValidationError, validate_strict};

/// The class of the devices of claims.
pub const DEVICE_CLASS: &str = "container-edits";

/// The part of a file's name between driver and claim UID.
const INFIX: &str = "_container-edits_";
/// The suffix of a file's name. Runtimes load only `.json` and `.yaml`.
const SUFFIX: &str = ".json";

/// The CDI devices of one claim, all in one spec file.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ClaimDevices {
    driver: DriverName,
    claim_uid: ClaimUid,
    vendor: Vendor,
    class: Class,
}

impl ClaimDevices {
    /// Creates the devices of a claim.
    ///
    /// # Errors
    /// If the driver's name starts with a digit, with which no CDI vendor may start.
    pub fn new(driver: DriverName, claim_uid: ClaimUid) -> Result<Self, NameError> {
        Ok(Self { vendor: Vendor::try_from(&driver)?, class: Class::new(DEVICE_CLASS)?, driver, claim_uid })
    }

    /// Returns the devices whose spec file has this name, or `None` if [`file_name`](Self::file_name) never returns it.
    ///
    /// No driver's name has an underscore, so there is only one way to split a name.
    pub fn from_file_name(name: &str) -> Option<Self> {
        let (driver, claim_uid) = name.strip_suffix(SUFFIX)?.split_once(INFIX)?;
        Self::new(driver.parse().ok()?, claim_uid.parse().ok()?).ok()
    }

    /// Returns the driver.
    pub fn driver(&self) -> &DriverName {
        &self.driver
    }

    /// Returns the UID of the claim.
    pub fn claim_uid(&self) -> &ClaimUid {
        &self.claim_uid
    }

    /// Returns the name of the spec file in the CDI directory.
    pub fn file_name(&self) -> String {
        format!("{}{INFIX}{}{SUFFIX}", self.driver, self.claim_uid)
    }

    /// Returns the CDI device ID of one of the devices, which the driver returns to the kubelet. The name is unique among
    /// those of the claim.
    pub fn id(&self, name: &str) -> Result<QualifiedName, NameError> {
        Ok(QualifiedName {
            vendor: self.vendor.clone(),
            class: self.class.clone(),
            device: DeviceName::new(format!("{}_{name}", self.claim_uid))?,
        })
    }

    /// Returns the spec of these devices, each with the name of its [`id`](Self::id). The spec is validated strictly.
    ///
    /// ```
    /// use drakkar_cdi::{ClaimDevices, ContainerEdits, Device};
    ///
    /// let devices = ClaimDevices::new("gpu.example.com".parse()?, "a1b2".parse()?)?;
    /// let gpu = Device {
    ///     name: devices.id("gpu-0")?.device.to_string(),
    ///     container_edits: ContainerEdits::default().device_node("/dev/null").env_var("GPU", "gpu-0"),
    ///     ..Device::default()
    /// };
    /// let spec = devices.spec(vec![gpu])?;
    /// assert_eq!(spec.kind, "gpu.example.com/container-edits");
    /// assert_eq!(spec.devices[0].name, "a1b2_gpu-0");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn spec(&self, devices: Vec<Device>) -> Result<Spec, ValidationError> {
        let mut spec = Spec { kind: format!("{}/{}", self.vendor, self.class), devices, ..Spec::default() };
        spec.cdi_version = spec.minimum_version().to_string();
        validate_strict(&spec)?;
        Ok(spec)
    }
}
