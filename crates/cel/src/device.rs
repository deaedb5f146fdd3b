//! The variable `device`: a device of a `ResourceSlice` as expressions see it.

use std::any::Any;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use cel::ExecutionError;
use cel::common::ast::{Expr, IdedExpr};
use cel::common::traits::{Container, Indexer, Iterable, Iterator as CelIterator, Sizer};
use cel::common::types::{CelBool, CelInt, CelList, CelMap, CelMapKey, CelString, MAP_TYPE, Type};
use cel::common::value::{CowVal, StaticVal, Val};
use drakkar_client::{ParseQuantityError, Quantity};
use k8s_openapi::api::resource::v1::{Device, DeviceAttribute};

use crate::values::{QuantityValue, SemverValue};

static DEVICE: Type = Type::new_unspecified_type("kubernetes.DRADevice");

/// The fields of `device`.
pub(crate) const FIELDS: [&str; 4] = ["driver", "attributes", "capacity", "allowMultipleAllocations"];

/// Returns the CEL type of a field of `device`.
pub(crate) fn field_type(field: &str) -> Option<&'static str> {
    match field {
        "driver" => Some("string"),
        "attributes" => Some("map(string, map(string, google.protobuf.Any))"),
        "capacity" => Some("map(string, map(string, kubernetes.Quantity))"),
        "allowMultipleAllocations" => Some("bool"),
        _ => None,
    }
}

/// Whether a node is the variable `device`, unless a macro has a variable of the same name.
pub(crate) fn is_device(tree: &IdedExpr) -> bool {
    matches!(&tree.expr, Expr::Ident(name) if name == "device")
}

/// A device as expressions see it; cheap to clone.
#[derive(Clone, Debug)]
pub struct DeviceValue(Arc<Fields>);

#[derive(Debug)]
struct Fields {
    driver: CelString<'static>,
    attributes: DomainMap,
    capacity: DomainMap,
    allow_multiple_allocations: CelBool,
}

/// An attribute or a capacity whose value is malformed: no expression can be evaluated on the device.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{kind} {name}: {message}")]
pub struct DeviceError {
    kind: &'static str,
    name: String,
    message: String,
}

impl DeviceValue {
    /// Converts a device of a driver. Names without a domain are in the domain `driver`.
    pub fn new(driver: &str, device: &Device) -> Result<Self, DeviceError> {
        let mut attributes = Domains::default();
        for (name, attribute) in device.attributes.iter().flatten() {
            let value = attribute_value(attribute).map_err(|message| DeviceError {
                kind: "attribute",
                name: name.clone(),
                message,
            })?;
            attributes.insert(driver, name, value);
        }
        let mut capacity = Domains::default();
        for (name, published) in device.capacity.iter().flatten() {
            let value: Quantity = published.value.0.parse().map_err(|error: ParseQuantityError| DeviceError {
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

fn attribute_value(attribute: &DeviceAttribute) -> Result<Box<dyn Val>, String> {
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
        _ => Err("it has no value of a known type".to_owned()),
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
        match as_str(field)? {
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

/// Builds a [`DomainMap`]: values by domain and name.
#[derive(Default)]
struct Domains(BTreeMap<String, HashMap<CelMapKey<'static>, Box<dyn Val>>>);

impl Domains {
    fn insert(&mut self, driver: &str, name: &str, value: Box<dyn Val>) {
        let (domain, name) = name.split_once('/').unwrap_or((driver, name));
        self.0.entry(domain.to_owned()).or_default().insert(CelMapKey::from(name.to_owned()), value);
    }
}

/// A map from domains to maps of values. A lookup of an unknown domain gives an empty map, as in Kubernetes; `in`, `size()`
/// and macros see the domains of the device only.
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
        Ok(CowVal::Borrowed(self.0.domains.get(as_str(domain)?).unwrap_or(&self.0.empty)))
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
        Ok(self.0.domains.contains_key(as_str(domain)?))
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

fn as_str(value: &dyn Val) -> Result<&str, ExecutionError> {
    value.downcast_ref::<CelString<'_>>().map(CelString::inner).ok_or_else(|| ExecutionError::UnexpectedType {
        got: value.get_type().name().to_owned(),
        want: "string".to_owned(),
    })
}
