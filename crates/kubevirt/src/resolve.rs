//! Resolves a device's claim and request to the allocated devices, from the metadata files in the launcher's container.
//!
//! Nothing here asks the API server, and nothing waits: a lookup reads the files as they are.
//!
//! | step | [`Behaviour::Strict`] | [`Behaviour::Extended`] |
//! |---|---|---|
//! | the entry of `spec.resourceClaims` with the claim's name | the first | the first |
//! | the files of the request ([`Layout`]) | exactly one | at least one: the devices of several drivers, in order of their files |
//! | the versions of a file | v1alpha1 | v1alpha1 and v1beta1 |
//! | the request in a file | the name is equal | also a subrequest `request/alternative` of it |
//! | the devices of the request | exactly one | at least one |
//!
//! Names are literal. Released KubeVirt puts them into a file pattern, in which `*` and `..` have a meaning; here a name
//! that breaks Kubernetes' rules for names is an error, in both behaviours.

mod device;
mod error;
mod layout;
pub(crate) mod stream;

use std::path::{Path, PathBuf};

use drakkar_metadata::name::{NameError, RequestName};
use drakkar_metadata::read::ReadError;
use drakkar_metadata::{Decoder, Metadata, Reader};

pub use device::{AttributeNames, ResolvedDevice};
pub use error::{MissingAttribute, ResolveError};
pub use layout::Layout;
use layout::{Candidates, Claim};
pub use stream::StreamError;

use crate::behaviour::Behaviour;
use crate::vmi::{ClaimRequest, ResourceClaimRef};

/// Resolves requests to devices.
///
/// ```
/// use drakkar_kubevirt::resolve::{Layout, Resolver};
/// use drakkar_kubevirt::vmi::{ClaimRequest, ResourceClaimRef};
///
/// let claims = [ResourceClaimRef { name: "gpus".into(), resource_claim_name: Some("gold".into()), ..Default::default() }];
/// let request = ClaimRequest { claim_name: "gpus".into(), request_name: "gpu".into() };
/// let error = Resolver::new().layout(Layout::Released).resolve(&claims, &request).unwrap_err();
/// assert!(error.to_string().contains("resourceclaims/gold/gpu/*-metadata.json"), "{error}");
/// ```
#[derive(Debug)]
pub struct Resolver {
    reader: Reader,
    root: PathBuf,
    layout: Layout,
    behaviour: Behaviour,
    names: AttributeNames,
}

/// The devices of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ResolvedRequest {
    /// The claim, as the device refers to it.
    pub claim: String,
    /// The files that describe the request, with the root directory.
    pub files: Vec<PathBuf>,
    /// The devices, at least one.
    pub devices: Vec<ResolvedDevice>,
}

impl Default for Resolver {
    fn default() -> Self {
        Self::new()
    }
}

impl Resolver {
    /// Creates a resolver for the files in this container, in the released layout.
    pub fn new() -> Self {
        Self {
            reader: Reader::new(),
            root: PathBuf::from("/"),
            layout: Layout::default(),
            behaviour: Behaviour::default(),
            names: AttributeNames::default(),
        }
    }

    /// Creates a resolver for the files below another root directory, for example `/proc/PID/root` for another container.
    ///
    /// # Errors
    /// If `root` cannot be opened, or has a symbolic link other than those of procfs.
    pub fn with_root(root: impl AsRef<Path>) -> Result<Self, ResolveError> {
        let root = root.as_ref();
        Ok(Self { reader: Reader::with_root(root)?, root: root.to_owned(), ..Self::new() })
    }

    /// Sets the layout of the files.
    #[must_use]
    pub fn layout(mut self, layout: Layout) -> Self {
        self.layout = layout;
        self
    }

    /// Sets whether the limits of released KubeVirt apply.
    #[must_use]
    pub fn with_behaviour(mut self, behaviour: Behaviour) -> Self {
        self.behaviour = behaviour;
        self
    }

    /// Sets the names of attributes. [`Layout::Vep10Seed`] always has the lenient ones, which its own samples use.
    #[must_use]
    pub fn attribute_names(mut self, names: AttributeNames) -> Self {
        self.names = names;
        self
    }

    /// Returns a resolver for the same files with the limits of released KubeVirt.
    ///
    /// # Errors
    /// If the root directory cannot be opened any more.
    pub fn as_released(&self) -> Result<Self, ResolveError> {
        let released = Self::with_root(&self.root)?.layout(self.layout).attribute_names(self.names);
        Ok(released.with_behaviour(Behaviour::Strict))
    }

    /// Returns whether the limits of released KubeVirt apply.
    pub fn behaviour(&self) -> Behaviour {
        self.behaviour
    }

    /// Returns the root directory.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Returns the pattern of a request's files, with the root directory: for messages about what is expected where.
    ///
    /// # Errors
    /// If the claim is unknown, or a name breaks Kubernetes' rules.
    pub fn pattern(&self, claims: &[ResourceClaimRef], request: &ClaimRequest) -> Result<PathBuf, ResolveError> {
        let (_, candidates) = self.candidates(claims, request)?;
        Ok(self.outside(&candidates.pattern))
    }

    /// Resolves a request of one of the VMI's claims to its devices.
    ///
    /// # Errors
    /// If there is no such claim, file, request or device; with [`Behaviour::Strict`] also if there are several.
    pub fn resolve(
        &self,
        claims: &[ResourceClaimRef],
        request: &ClaimRequest,
    ) -> Result<ResolvedRequest, ResolveError> {
        let (claim, candidates) = self.candidates(claims, request)?;
        let wanted = &*request.request_name;
        if candidates.files.is_empty() {
            return Err(ResolveError::NoFile {
                claim: claim.as_str().to_owned(),
                request: wanted.to_owned(),
                pattern: self.outside(&candidates.pattern),
                nearby: self.nearby(&candidates.pattern),
            });
        }
        if candidates.pod_claim.is_none() {
            self.refuse_several(&claim, wanted, &candidates, candidates.files.len())?;
        }
        let files = self.read(&claim, wanted, candidates)?;
        let devices = self.devices(wanted, &files)?;
        let files = files.iter().map(|(path, _)| self.outside(path)).collect();
        Ok(ResolvedRequest { claim: request.claim_name.clone(), files, devices })
    }

    /// Resolves a request to the PCI address of its only device, as KubeVirt's reader does. The text is not checked.
    ///
    /// # Errors
    /// As [`Resolver::resolve`], or if the device has no PCI address, or there are several devices.
    pub fn pci_bus_id(&self, claims: &[ResourceClaimRef], request: &ClaimRequest) -> Result<String, ResolveError> {
        let device = self.only_device(claims, request)?;
        device.pci_bus_id.clone().ok_or_else(|| no_pci_bus_id(request, &device))
    }

    /// Resolves a request to the UUID of its only device, a mediated one, as KubeVirt's reader does.
    ///
    /// # Errors
    /// As [`Resolver::resolve`], or if the device has no UUID, or there are several devices.
    pub fn mdev_uuid(&self, claims: &[ResourceClaimRef], request: &ClaimRequest) -> Result<String, ResolveError> {
        let device = self.only_device(claims, request)?;
        device.mdev_uuid.clone().ok_or_else(|| no_mdev_uuid(request, &device))
    }

    fn only_device(&self, claims: &[ResourceClaimRef], request: &ClaimRequest) -> Result<ResolvedDevice, ResolveError> {
        let mut devices = self.resolve(claims, request)?.devices;
        match (devices.pop(), devices.len()) {
            (Some(device), 0) => Ok(device),
            (_, others) => {
                Err(ResolveError::SeveralDevices { request: request.request_name.clone(), count: others + 1 })
            }
        }
    }

    fn candidates(
        &self,
        claims: &[ResourceClaimRef],
        request: &ClaimRequest,
    ) -> Result<(Claim, Candidates), ResolveError> {
        let entry = claims.iter().find(|entry| entry.name == request.claim_name).ok_or_else(|| {
            let known = claims.iter().map(|entry| entry.name.clone()).collect();
            ResolveError::UnknownClaim { claim: request.claim_name.clone(), known }
        })?;
        let claim = Claim::of(entry)?;
        let directory = self.request_directory(&request.request_name)?;
        let candidates = layout::candidates(&self.reader, self.layout, &claim, &directory, self.behaviour)?;
        Ok((claim, candidates))
    }

    /// Returns the name of a request's directory: the files of a subrequest are in that of its request.
    fn request_directory(&self, request: &str) -> Result<RequestName, NameError> {
        match request.split_once('/') {
            Some((base, subrequest)) if self.behaviour == Behaviour::Extended => {
                RequestName::new(subrequest)?;
                RequestName::new(base)
            }
            _ => RequestName::new(request),
        }
    }

    /// Reads and decodes the files of a request.
    fn read(
        &self,
        claim: &Claim,
        request: &str,
        candidates: Candidates,
    ) -> Result<Vec<(PathBuf, Metadata)>, ResolveError> {
        let Some(pod_claim) = &candidates.pod_claim else {
            let read = |path: PathBuf| self.read_file(&path).map(|metadata| (path, metadata));
            return candidates.files.into_iter().map(read).collect();
        };
        let mut files: Vec<(PathBuf, Metadata)> = Vec::new();
        let mut unreadable = Vec::new();
        for path in &candidates.files {
            match self.read_file(path) {
                Ok(metadata) if metadata.pod_claim_name.as_deref() == Some(pod_claim.as_str()) => {
                    files.push((path.clone(), metadata));
                }
                Ok(_) => {}
                // It may be the file of another claim.
                Err(error) => unreadable.push(error.to_string()),
            }
        }
        if let [(first, one), others @ ..] = &files[..]
            && let Some((second, _)) = others.iter().find(|(_, other)| other.metadata.name != one.metadata.name)
        {
            return Err(ResolveError::Ambiguous {
                claim: claim.as_str().to_owned(),
                first: self.outside(first),
                second: self.outside(second),
            });
        }
        if files.is_empty() {
            return Err(ResolveError::NoPodClaim {
                claim: claim.as_str().to_owned(),
                request: request.to_owned(),
                pattern: self.outside(&candidates.pattern),
                files: candidates.files.len(),
                unreadable,
            });
        }
        self.refuse_several(claim, request, &candidates, files.len())?;
        Ok(files)
    }

    fn refuse_several(
        &self,
        claim: &Claim,
        request: &str,
        candidates: &Candidates,
        count: usize,
    ) -> Result<(), ResolveError> {
        if count <= 1 || self.behaviour == Behaviour::Extended {
            return Ok(());
        }
        Err(ResolveError::SeveralFiles {
            claim: claim.as_str().to_owned(),
            request: request.to_owned(),
            pattern: self.outside(&candidates.pattern),
            count,
        })
    }

    fn read_file(&self, path: &Path) -> Result<Metadata, ResolveError> {
        let bytes = match self.reader.read_bytes(path) {
            Ok(bytes) => bytes,
            // KubeVirt's decoder sees a directory as an empty stream.
            Err(ReadError::NotAFile { kind: "a directory", .. }) if self.behaviour.is_strict() => Vec::new(),
            Err(error) => return Err(error.into()),
        };
        if self.layout == Layout::Vep10Seed {
            let decoded = Decoder::new().decode(&bytes);
            let document = |error| ResolveError::Document { path: self.outside(path), error };
            return decoded.map(|decoded| decoded.metadata).map_err(document);
        }
        let stream = |error| ResolveError::Stream { path: self.outside(path), error };
        stream::decode(&bytes, self.behaviour).map_err(stream)
    }

    /// Returns the devices of a request, in the order of the files.
    fn devices(&self, wanted: &str, files: &[(PathBuf, Metadata)]) -> Result<Vec<ResolvedDevice>, ResolveError> {
        let names = if self.layout == Layout::Vep10Seed { AttributeNames::Lenient } else { self.names };
        let is_subrequest = |name: &str| name.strip_prefix(wanted).is_some_and(|rest| rest.starts_with('/'));
        let mut devices = Vec::new();
        let mut without_devices = None;
        for (path, metadata) in files {
            let mut entries = metadata.requests.iter().filter(|entry| {
                entry.name == wanted || (self.behaviour == Behaviour::Extended && is_subrequest(&entry.name))
            });
            // KubeVirt stops at the first entry of the name.
            let limit = if self.behaviour.is_strict() { 1 } else { usize::MAX };
            for entry in entries.by_ref().take(limit) {
                devices.extend(entry.devices.iter().map(|device| ResolvedDevice::new(&entry.name, device, names)));
                without_devices = Some(path);
            }
        }
        let request = wanted.to_owned();
        match (devices.len(), without_devices) {
            (0, Some(path)) => Err(ResolveError::NoDevices { request, path: self.outside(path) }),
            (0, None) => {
                let claims: Vec<&str> = files.iter().map(|(_, metadata)| &*metadata.metadata.name).collect();
                let entries = files.iter().flat_map(|(_, metadata)| &metadata.requests);
                let found = entries.map(|entry| entry.name.clone()).collect();
                Err(ResolveError::NoRequest { request, claim: claims.join(", "), found })
            }
            (count @ 2.., _) if self.behaviour.is_strict() => Err(ResolveError::SeveralDevices { request, count }),
            _ => Ok(devices),
        }
    }

    /// Describes the nearest directory that exists on the way to a pattern.
    fn nearby(&self, pattern: &Path) -> String {
        const SHOWN: usize = 8;
        let base = self.layout.base_directory();
        for directory in pattern.ancestors().skip(1).take_while(|directory| directory.starts_with(base)) {
            let Ok(names) = self.reader.list_directory(directory) else { continue };
            let path = self.outside(directory);
            let mut shown: Vec<String> = names.iter().take(SHOWN).map(|name| format!("{name:?}")).collect();
            if names.len() > SHOWN {
                shown.push(format!("{} more", names.len() - SHOWN));
            }
            return match &shown[..] {
                [] => format!("{} is empty", path.display()),
                shown => format!("{} has {}", path.display(), shown.join(", ")),
            };
        }
        format!("{} does not exist", self.outside(base).display())
    }

    fn outside(&self, path: &Path) -> PathBuf {
        self.root.join(path.strip_prefix("/").unwrap_or(path))
    }
}

/// The error of a device without PCI address.
pub(crate) fn no_pci_bus_id(request: &ClaimRequest, device: &ResolvedDevice) -> ResolveError {
    no_attribute(request, device, "resource.kubernetes.io/pciBusID", device.misspelt_pci())
}

/// The error of a device without UUID.
pub(crate) fn no_mdev_uuid(request: &ClaimRequest, device: &ResolvedDevice) -> ResolveError {
    no_attribute(request, device, "mdevUUID", device.misspelt_mdev())
}

/// The error of a device that is neither a PCI device nor a mediated one.
pub(crate) fn no_address(request: &ClaimRequest, device: &ResolvedDevice) -> ResolveError {
    let misspelt = device.misspelt_mdev().or_else(|| device.misspelt_pci());
    no_attribute(request, device, "mdevUUID or resource.kubernetes.io/pciBusID", misspelt)
}

fn no_attribute(
    request: &ClaimRequest,
    device: &ResolvedDevice,
    attribute: &'static str,
    misspelt: Option<String>,
) -> ResolveError {
    Box::new(MissingAttribute {
        claim: request.claim_name.clone(),
        request: request.request_name.clone(),
        device: device.id(),
        attribute,
        found: device.attribute_names.clone(),
        misspelt,
    })
    .into()
}
