//! The type of an expression's result, where it follows from the expression alone.

use std::borrow::Cow;

use cel::common::ast::{CallExpr, Expr, IdedExpr, LiteralValue, operators};

use crate::device::{field_type, is_device};

/// The type that the result of an expression must have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResultType {
    /// A bool, as in selectors.
    Bool,
    /// Any type, as in derived attributes.
    Any,
}

const QUANTITY: &str = "kubernetes.Quantity";
const ATTRIBUTES: &str = "map(string, map(string, google.protobuf.Any))";
const CAPACITY: &str = "map(string, map(string, kubernetes.Quantity))";

/// Returns the CEL type of an expression, or `None` if it depends on values or on functions that are not known here.
pub(crate) fn type_of(tree: &IdedExpr) -> Option<Cow<'static, str>> {
    let name = match &tree.expr {
        Expr::Ident(_) if is_device(tree) => "kubernetes.DRADevice",
        Expr::Literal(literal) => match literal {
            LiteralValue::Boolean(_) => "bool",
            LiteralValue::Bytes(_) => "bytes",
            LiteralValue::Double(_) => "double",
            LiteralValue::Int(_) => "int",
            LiteralValue::Null => "null_type",
            LiteralValue::String(_) => "string",
            LiteralValue::UInt(_) => "uint",
        },
        Expr::Select(select) if select.test => "bool",
        Expr::Select(select) if is_device(&select.operand) => field_type(&select.field)?,
        Expr::Select(select) => element_type(&type_of(&select.operand)?)?,
        Expr::Call(call) => return call_type(call),
        Expr::List(list) => {
            let mut types = list.elements.iter().map(type_of);
            let first = types.next().flatten();
            let same = first.filter(|first| types.all(|other| other.as_ref() == Some(first)));
            return Some(format!("list({})", same.as_deref().unwrap_or("dyn")).into());
        }
        Expr::Map(_) => "map(dyn, dyn)",
        _ => return None,
    };
    Some(name.into())
}

fn call_type(call: &CallExpr) -> Option<Cow<'static, str>> {
    let name = match (call.func_name.as_str(), &call.args[..]) {
        (operators::INDEX, [map, _]) => element_type(&type_of(map)?)?,
        (operators::CONDITIONAL, [_, left, right]) => {
            return type_of(left).filter(|left| type_of(right).as_ref() == Some(left));
        }
        (
            operators::ADD | operators::SUBSTRACT | operators::MULTIPLY | operators::DIVIDE | operators::MODULO,
            [left, right],
        ) => {
            return match (type_of(left), type_of(right)) {
                // No operator mixes types: the unknown operand has the type of the known one.
                (Some(known), None) | (None, Some(known)) => Some(known),
                (Some(left), Some(right)) if left == right => Some(left),
                _ => None,
            };
        }
        (operators::NEGATE, [number]) => return type_of(number),
        (
            "asInteger" | "compareTo" | "indexOf" | "int" | "lastIndexOf" | "major" | "minor" | "patch" | "sign"
            | "size",
            _,
        ) => "int",
        ("uint", _) => "uint",
        ("double" | "asApproximateFloat", _) => "double",
        ("string" | "lowerAscii" | "upperAscii", _) => "string",
        ("bytes", _) => "bytes",
        ("split", _) => "list(string)",
        ("quantity", _) => QUANTITY,
        ("semver", _) => "kubernetes.Semver",
        _ => return None,
    };
    Some(name.into())
}

/// Returns the type of the values in a map of `device`.
fn element_type(map: &str) -> Option<&'static str> {
    match map {
        ATTRIBUTES => Some("map(string, google.protobuf.Any)"),
        CAPACITY => Some("map(string, kubernetes.Quantity)"),
        "map(string, kubernetes.Quantity)" => Some(QUANTITY),
        _ => None,
    }
}
