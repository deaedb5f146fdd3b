//! What can be said about an expression before it sees a device: names that nothing has, and results that are no bool.

use cel::common::ast::{EntryExpr, Expr, IdedExpr, LiteralValue, operators};

use super::device::FIELDS;

/// First parts of the names of functions such as `optional.of`.
const NAMESPACES: [&str; 5] = ["optional", "sets", "lists", "strings", "cel"];

/// Names of types, which are values too.
const TYPES: [&str; 10] = ["bool", "bytes", "double", "int", "list", "map", "null_type", "string", "type", "uint"];

/// Functions that selectors can call, besides operators.
const FUNCTIONS: [&str; 61] = [
    "add",
    "asApproximateFloat",
    "asInteger",
    "bool",
    "bytes",
    "charAt",
    "compareTo",
    "contains",
    "distinct",
    "double",
    "dyn",
    "endsWith",
    "equivalent",
    "first",
    "flatten",
    "format",
    "hasValue",
    "includes",
    "indexOf",
    "int",
    "intersects",
    "isGreaterThan",
    "isInteger",
    "isLessThan",
    "isQuantity",
    "isSemver",
    "join",
    "last",
    "lastIndexOf",
    "lowerAscii",
    "major",
    "matches",
    "minor",
    "none",
    "of",
    "ofNonZeroValue",
    "or",
    "orValue",
    "patch",
    "quantity",
    "quote",
    "range",
    "replace",
    "reverse",
    "semver",
    "sign",
    "size",
    "slice",
    "sort",
    "sortBy",
    "split",
    "startsWith",
    "string",
    "sub",
    "substring",
    "trim",
    "type",
    "uint",
    "unwrap",
    "upperAscii",
    "value",
];

/// Functions whose result is not a bool.
const NOT_BOOL: [&str; 25] = [
    operators::ADD,
    operators::SUBSTRACT,
    operators::MULTIPLY,
    operators::DIVIDE,
    operators::MODULO,
    operators::NEGATE,
    "asApproximateFloat",
    "asInteger",
    "bytes",
    "compareTo",
    "double",
    "indexOf",
    "int",
    "lowerAscii",
    "major",
    "minor",
    "patch",
    "quantity",
    "semver",
    "sign",
    "size",
    "split",
    "string",
    "uint",
    "upperAscii",
];

/// Checks a whole expression; the error says what is wrong with it.
pub(super) fn check(expression: &IdedExpr) -> Result<(), String> {
    names(expression, &mut Vec::new())?;
    match not_bool(&expression.expr) {
        Some(what) => Err(format!("must evaluate to bool, not {what}")),
        None => Ok(()),
    }
}

/// What an expression is, if it is clear that it is no bool. Attributes can be anything.
fn not_bool(expression: &Expr) -> Option<&'static str> {
    match expression {
        Expr::Literal(LiteralValue::Boolean(_)) => None,
        Expr::Literal(LiteralValue::String(_)) => Some("string"),
        Expr::Literal(LiteralValue::Int(_)) => Some("int"),
        Expr::Literal(_) => Some("a literal of another type"),
        Expr::List(_) => Some("list"),
        Expr::Map(_) => Some("map"),
        Expr::Struct(_) => Some("a message"),
        Expr::Ident(name) if name == "device" => Some("kubernetes.DRADevice"),
        Expr::Select(select) if !select.test && is_device(&select.operand) => match select.field.as_str() {
            "driver" => Some("string"),
            "attributes" | "capacity" => Some("map"),
            _ => None,
        },
        Expr::Call(call) if NOT_BOOL.contains(&call.func_name.as_str()) => Some("the result of that function"),
        _ => None,
    }
}

fn is_device(expression: &IdedExpr) -> bool {
    matches!(&expression.expr, Expr::Ident(name) if name == "device")
}

/// Looks for names that are not declared. `bound` are the variables of the macros around.
fn names<'a>(expression: &'a IdedExpr, bound: &mut Vec<&'a str>) -> Result<(), String> {
    match &expression.expr {
        Expr::Ident(name) => {
            let known = name == "device" || bound.contains(&name.as_str()) || TYPES.contains(&name.as_str());
            if known { Ok(()) } else { Err(format!("undeclared reference to '{name}'")) }
        }
        Expr::Select(select) => {
            if is_device(&select.operand) && !bound.contains(&"device") && !FIELDS.contains(&select.field.as_str()) {
                return Err(format!("undefined field '{}' of device; there are {}", select.field, FIELDS.join(", ")));
            }
            names(&select.operand, bound)
        }
        Expr::Call(call) => {
            let name = call.func_name.as_str();
            let is_operator = !name.starts_with(|first: char| first.is_ascii_alphabetic());
            if !is_operator && !FUNCTIONS.contains(&name) {
                return Err(format!("undeclared reference to function '{name}'"));
            }
            if let Some(target) = &call.target {
                match &target.expr {
                    Expr::Ident(namespace) if NAMESPACES.contains(&namespace.as_str()) => {}
                    _ => names(target, bound)?,
                }
            }
            call.args.iter().try_for_each(|argument| names(argument, bound))
        }
        Expr::Comprehension(comprehension) => {
            names(&comprehension.iter_range, bound)?;
            names(&comprehension.accu_init, bound)?;
            let before = bound.len();
            bound.extend([comprehension.iter_var.as_str(), comprehension.accu_var.as_str()]);
            bound.extend(comprehension.iter_var2.as_deref());
            let result = [&comprehension.loop_cond, &comprehension.loop_step, &comprehension.result]
                .into_iter()
                .try_for_each(|part| names(part, bound));
            bound.truncate(before);
            result
        }
        Expr::List(list) => list.elements.iter().try_for_each(|element| names(element, bound)),
        Expr::Map(map) => map.entries.iter().try_for_each(|entry| match &entry.expr {
            EntryExpr::MapEntry(entry) => names(&entry.key, bound).and_then(|()| names(&entry.value, bound)),
            EntryExpr::StructField(field) => names(&field.value, bound),
        }),
        Expr::Struct(message) => Err(format!("undeclared reference to type '{}'", message.type_name)),
        Expr::Literal(_) | Expr::Unspecified => Ok(()),
    }
}
