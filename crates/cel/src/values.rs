//! The CEL types that Kubernetes adds: quantities and semantic versions.

use std::any::Any;

use cel::common::types::Type;
use cel::common::value::{StaticVal, Val};
use drakkar_client::Quantity;

static QUANTITY: Type = Type::new_unspecified_type("kubernetes.Quantity");
static SEMVER: Type = Type::new_unspecified_type("kubernetes.Semver");

/// A quantity: a capacity of a device, or the result of `quantity("10Gi")`.
#[derive(Clone, Debug)]
pub(crate) struct QuantityValue(pub(crate) Quantity);

impl Val for QuantityValue {
    fn get_type(&self) -> &Type {
        &QUANTITY
    }

    fn cel_type() -> &'static Type {
        &QUANTITY
    }

    fn equals(&self, other: &dyn Val) -> bool {
        other.downcast_ref::<Self>().is_some_and(|other| self.0 == other.0)
    }

    fn clone_as_boxed<'v>(&self) -> Box<dyn Val + 'v> {
        Box::new(self.clone())
    }

    fn as_any(&self) -> Option<&dyn Any> {
        Some(self)
    }
}

impl StaticVal for QuantityValue {}

/// A semantic version: a version attribute, or the result of `semver("1.2.3")`.
#[derive(Clone, Debug)]
pub(crate) struct SemverValue(pub(crate) semver::Version);

impl Val for SemverValue {
    fn get_type(&self) -> &Type {
        &SEMVER
    }

    fn cel_type() -> &'static Type {
        &SEMVER
    }

    /// Ignores build metadata, as Kubernetes does.
    fn equals(&self, other: &dyn Val) -> bool {
        other.downcast_ref::<Self>().is_some_and(|other| self.0.cmp_precedence(&other.0).is_eq())
    }

    fn clone_as_boxed<'v>(&self) -> Box<dyn Val + 'v> {
        Box::new(self.clone())
    }

    fn as_any(&self) -> Option<&dyn Any> {
        Some(self)
    }
}

impl StaticVal for SemverValue {}
