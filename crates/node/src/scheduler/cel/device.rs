//! The variable `device`: what a selector sees of a device in a resource slice.

use std::any::Any;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use cel::ExecutionError;
use cel::common::traits::{Container, Indexer, Iterable, Iterator as CelIterator, Sizer};
use cel::common::types::{CelBool, CelInt, CelList, CelMap, CelMapKey, CelString, MAP_TYPE, Type};
use cel::common::value::{CowVal, StaticVal, Val};
use drakkar_client::{ParseQuantityError, Quantity};
use k8s_openapi::api::resource::v1::{Device, DeviceAttribute};

use super::values::{QuantityValue, SemverValue};

static DEVICE: Type = Type::new_unspecified_type("kubernetes.DRADevice");

/// The fields of `device`.
pub(super) const FIELDS: [&str; 4] = ["driver", "attributes", "capacity", "allowMultipleAllocations"];

/// A device as selectors see it; cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct DeviceValue(Arc<Fields>);

#[derive(Debug)]
struct Fields {
    driver: CelString<'static>,
    attributes: DomainMap,
    capacity: DomainMap,
    allow_multiple_allocations: CelBool,
}

/// A device that no selector can be asked about.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{kind} {name}: {message}")]
pub(crate) struct BadDevice {
    kind: &'static str,
    name: String,
    message: String,
}

impl DeviceValue {
    /// The device as it was published by `driver`, to whom names without a domain belong.
    pub(crate) fn new(driver: &str, device: &Device) -> Result<Self, BadDevice> {
        let mut attributes = Domains::default();
        for (name, attribute) in device.attributes.iter().flatten() {
            let value =
                value_of(attribute).map_err(|message| BadDevice { kind: "attribute", name: name.clone(), message })?;
            attributes.insert(driver, name, value);
        }
        let mut capacity = Domains::default();
        for (name, published) in device.capacity.iter().flatten() {
            let value: Quantity = published.value.0.parse().map_err(|error: ParseQuantityError| BadDevice {
                kind: "capacity",
                name: name.clone(),
                message: error.to_string(),
            })?;
            capacity.insert(driver, name, Box::new(QuantityValue(value)));
        }
        Ok(Self(Arc::new(Fields {
            driver: CelString::from(driver.to_owned()),
            attributes: attributes.into(),
            capacity: capacity.into(),
            allow_multiple_allocations: CelBool::from(device.allow_multiple_allocations.unwrap_or_default()),
        })))
    }
}

fn value_of(attribute: &DeviceAttribute) -> Result<Box<dyn Val>, String> {
    fn list<T>(values: &[T], value: impl Fn(&T) -> Result<Box<dyn Val>, String>) -> Result<Box<dyn Val>, String> {
        Ok(Box::new(CelList::from(values.iter().map(value).collect::<Result<Vec<_>, _>>()?)))
    }
    fn version(text: &str) -> Result<Box<dyn Val>, String> {
        let version = semver::Version::parse(text).map_err(|error| format!("{text:?} is no version: {error}"))?;
        Ok(Box::new(SemverValue(version)))
    }
    match attribute {
        DeviceAttribute { int: Some(value), .. } => Ok(Box::new(CelInt::from(*value))),
        DeviceAttribute { bool: Some(value), .. } => Ok(Box::new(CelBool::from(*value))),
        DeviceAttribute { string: Some(value), .. } => Ok(Box::new(CelString::from(value.clone()))),
        DeviceAttribute { version: Some(value), .. } => version(value),
        DeviceAttribute { ints: Some(values), .. } => list(values, |value| Ok(Box::new(CelInt::from(*value)))),
        DeviceAttribute { bools: Some(values), .. } => list(values, |value| Ok(Box::new(CelBool::from(*value)))),
        DeviceAttribute { strings: Some(values), .. } => {
            list(values, |value| Ok(Box::new(CelString::from(value.clone()))))
        }
        DeviceAttribute { versions: Some(values), .. } => list(values, |value| version(value)),
        _ => Err("it has no value of a known kind".to_owned()),
    }
}

/// What went wrong in an expression, in the words of Kubernetes where those help more.
pub(super) fn explain(error: &ExecutionError) -> String {
    match error {
        ExecutionError::NoSuchKey(key) => {
            format!("no such key: {key} (the device does not have it; ask for it with has(), or with orValue())")
        }
        other => other.to_string(),
    }
}

impl Val for DeviceValue {
    fn get_type(&self) -> &Type {
        &DEVICE
    }

    fn cel_type() -> &'static Type {
        &DEVICE
    }

    fn as_indexer<'b, 'v>(&'b self) -> Option<&'b (dyn Indexer + 'v)>
    where
        Self: 'v,
    {
        Some(self)
    }

    fn clone_as_boxed<'v>(&self) -> Box<dyn Val + 'v> {
        Box::new(self.clone())
    }

    fn as_any(&self) -> Option<&dyn Any> {
        Some(self)
    }
}

impl StaticVal for DeviceValue {}

impl Indexer for DeviceValue {
    fn get<'b, 'v>(&'b self, field: &dyn Val) -> Result<CowVal<'b, 'v>, ExecutionError>
    where
        Self: 'v,
    {
        match text(field)? {
            "driver" => Ok(CowVal::Borrowed(&self.0.driver)),
            "attributes" => Ok(CowVal::Borrowed(&self.0.attributes)),
            "capacity" => Ok(CowVal::Borrowed(&self.0.capacity)),
            "allowMultipleAllocations" => Ok(CowVal::Borrowed(&self.0.allow_multiple_allocations)),
            other => Err(ExecutionError::no_such_key(other)),
        }
    }

    fn steal<'v>(self: Box<Self>, field: &dyn Val) -> Result<Box<dyn Val + 'v>, ExecutionError>
    where
        Self: 'v,
    {
        self.get(field).map(CowVal::into_owned)
    }
}

/// Values by domain and name, while they are collected.
#[derive(Default)]
struct Domains(BTreeMap<String, HashMap<CelMapKey<'static>, Box<dyn Val>>>);

impl Domains {
    fn insert(&mut self, driver: &str, name: &str, value: Box<dyn Val>) {
        let (domain, name) = name.split_once('/').unwrap_or((driver, name));
        self.0.entry(domain.to_owned()).or_default().insert(CelMapKey::from(name.to_owned()), value);
    }
}

/// A map from domains to what is in them, in which every other domain is there too, but empty. `in`, `size()` and macros
/// see only those that the device has.
#[derive(Clone, Debug)]
struct DomainMap(Arc<Contents>);

#[derive(Debug)]
struct Contents {
    names: Vec<CelString<'static>>,
    domains: BTreeMap<String, CelMap<'static>>,
    empty: CelMap<'static>,
}

impl From<Domains> for DomainMap {
    fn from(domains: Domains) -> Self {
        let domains: BTreeMap<_, _> =
            domains.0.into_iter().map(|(domain, values)| (domain, CelMap::from(values))).collect();
        let names = domains.keys().map(|name| CelString::from(name.clone())).collect();
        Self(Arc::new(Contents { names, domains, empty: CelMap::default() }))
    }
}

impl Val for DomainMap {
    fn get_type(&self) -> &Type {
        &MAP_TYPE
    }

    fn cel_type() -> &'static Type {
        const { &MAP_TYPE }
    }

    fn as_container(&self) -> Option<&dyn Container> {
        Some(self)
    }

    fn as_indexer<'b, 'v>(&'b self) -> Option<&'b (dyn Indexer + 'v)>
    where
        Self: 'v,
    {
        Some(self)
    }

    fn as_iterable<'b, 'v>(&'b self) -> Option<&'b (dyn Iterable + 'v)>
    where
        Self: 'v,
    {
        Some(self)
    }

    fn as_sizer(&self) -> Option<&dyn Sizer> {
        Some(self)
    }

    fn clone_as_boxed<'v>(&self) -> Box<dyn Val + 'v> {
        Box::new(self.clone())
    }

    fn as_any(&self) -> Option<&dyn Any> {
        Some(self)
    }
}

impl StaticVal for DomainMap {}

impl Indexer for DomainMap {
    fn get<'b, 'v>(&'b self, domain: &dyn Val) -> Result<CowVal<'b, 'v>, ExecutionError>
    where
        Self: 'v,
    {
        Ok(CowVal::Borrowed(self.0.domains.get(text(domain)?).unwrap_or(&self.0.empty)))
    }

    fn steal<'v>(self: Box<Self>, domain: &dyn Val) -> Result<Box<dyn Val + 'v>, ExecutionError>
    where
        Self: 'v,
    {
        self.get(domain).map(CowVal::into_owned)
    }
}

impl Container for DomainMap {
    fn contains(&self, domain: &dyn Val) -> Result<bool, ExecutionError> {
        Ok(self.0.domains.contains_key(text(domain)?))
    }
}

impl Sizer for DomainMap {
    fn size(&self) -> CelInt {
        CelInt::from(i64::try_from(self.0.names.len()).unwrap_or(i64::MAX))
    }
}

impl Iterable for DomainMap {
    fn iter<'b, 'v>(&'b self) -> Box<dyn CelIterator<'b, 'v> + 'b>
    where
        Self: 'v,
    {
        Box::new(Names(self.0.names.iter()))
    }
}

struct Names<'b>(std::slice::Iter<'b, CelString<'static>>);

impl<'b, 'v> CelIterator<'b, 'v> for Names<'b> {
    fn next(&mut self) -> Option<&'b (dyn Val + 'v)> {
        self.0.next().map(|name| name as &dyn Val)
    }
}

fn text(value: &dyn Val) -> Result<&str, ExecutionError> {
    value.downcast_ref::<CelString<'_>>().map(CelString::inner).ok_or_else(|| ExecutionError::UnexpectedType {
        got: value.get_type().name().to_owned(),
        want: "string".to_owned(),
    })
}
