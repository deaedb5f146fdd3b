//! The limit on what an evaluation costs.
//!
//! Kubernetes stops the evaluation of a selector at a cost of 1,000,000, where reading a variable or calling a function costs 1 and
//! long values cost more. The interpreter used here counts nothing, so [`instrument`] adds calls to the tree of an expression that
//! count: in the condition of each loop, around values that can grow, and around operands of functions that compare everything
//! with everything. The names of the functions and of the variable that holds the budget begin with `@`, which no expression can.
//!
//! The cost is close to the one of Kubernetes, not equal: it is counted in advance for a loop that cannot end early, and elements of
//! lists cost more, because this interpreter copies them.
//!
//! An operator can discard an error (`error || true`), so whoever evaluates asks [`Budget::is_exhausted`] at the end. Until then
//! every counted step fails, so the evaluation ends soon.

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use cel::common::ast::{CallExpr, EntryExpr, Expr, IdedEntryExpr, IdedExpr, LiteralValue, operators};
use cel::common::types::{CelInt, CelString, DYN_TYPE, INT_TYPE, Type};
use cel::common::value::{CowVal, StaticVal, Val};
use cel::{DeclarationError, Env, ExecutionError};

use crate::names::TYPES;

/// The cost limit of one evaluation of a selector in Kubernetes.
pub const MAX_EVALUATION_COST: u64 = 1_000_000;

/// The variable with the budget of an evaluation.
pub(crate) const VARIABLE: &str = "@budget";
/// `@charge(@budget, cost, value)` costs as much for each call.
const CHARGE: &str = "@charge";
/// `@charge_elements(@budget, cost, value)` costs as much for each element of the value.
const CHARGE_ELEMENTS: &str = "@charge_elements";
/// `@charge_size(@budget, cost, value)` costs as much, and the size of the value.
const CHARGE_SIZE: &str = "@charge_size";
/// `@charge_square(@budget, cost, value)` costs as much, and the square of the size of the value.
const CHARGE_SQUARE: &str = "@charge_square";

static BUDGET: Type = Type::new_unspecified_type("drakkar.Budget");

/// What is left of the cost limit of an evaluation.
#[derive(Clone, Debug)]
pub(crate) struct Budget(Arc<AtomicU64>);

impl Budget {
    pub(crate) fn new() -> Self {
        Self(Arc::new(AtomicU64::new(MAX_EVALUATION_COST)))
    }

    /// Returns whether the evaluation has cost more than it may.
    pub(crate) fn is_exhausted(&self) -> bool {
        self.0.load(Ordering::Relaxed) == 0
    }

    fn charge(&self, cost: u64) -> Result<(), ExecutionError> {
        let left = self.0.load(Ordering::Relaxed).saturating_sub(cost);
        self.0.store(left, Ordering::Relaxed);
        if left == 0 { Err(ExecutionError::function_error(CHARGE, exhausted())) } else { Ok(()) }
    }
}

/// Returns the message about an exhausted budget.
pub(crate) fn exhausted() -> String {
    format!(
        "the evaluation costs more than {MAX_EVALUATION_COST}, the limit of Kubernetes: nest fewer loops, or make them shorter"
    )
}

impl Val for Budget {
    fn get_type(&self) -> &Type {
        &BUDGET
    }

    fn cel_type() -> &'static Type {
        &BUDGET
    }

    fn clone_as_boxed<'v>(&self) -> Box<dyn Val + 'v> {
        Box::new(self.clone())
    }

    fn as_any(&self) -> Option<&dyn Any> {
        Some(self)
    }
}

impl StaticVal for Budget {}

/// Adds the functions that count.
pub(crate) fn functions(env: &mut Env) -> Result<(), DeclarationError> {
    fn charge<'b, 'v>(args: Vec<CowVal<'b, 'v>>) -> Result<CowVal<'b, 'v>, ExecutionError> {
        counted(args, |cost, _| cost)
    }
    fn charge_elements<'b, 'v>(args: Vec<CowVal<'b, 'v>>) -> Result<CowVal<'b, 'v>, ExecutionError> {
        counted(args, |cost, value| cost.saturating_mul(elements(value)))
    }
    fn charge_size<'b, 'v>(args: Vec<CowVal<'b, 'v>>) -> Result<CowVal<'b, 'v>, ExecutionError> {
        counted(args, |cost, value| cost.saturating_add(size(value)))
    }
    fn charge_square<'b, 'v>(args: Vec<CowVal<'b, 'v>>) -> Result<CowVal<'b, 'v>, ExecutionError> {
        counted(args, |cost, value| cost.saturating_add(size(value).saturating_pow(2)))
    }
    let args = || vec![DYN_TYPE, INT_TYPE, DYN_TYPE];
    env.add_overload(CHARGE, CHARGE, args(), charge)?;
    env.add_overload(CHARGE_ELEMENTS, CHARGE_ELEMENTS, args(), charge_elements)?;
    env.add_overload(CHARGE_SIZE, CHARGE_SIZE, args(), charge_size)?;
    env.add_overload(CHARGE_SQUARE, CHARGE_SQUARE, args(), charge_square)
}

/// Charges the budget and returns the value.
fn counted<'b, 'v>(
    args: Vec<CowVal<'b, 'v>>,
    cost: impl Fn(u64, &dyn Val) -> u64,
) -> Result<CowVal<'b, 'v>, ExecutionError> {
    let Ok([budget, unit, value]) = <[CowVal<'b, 'v>; 3]>::try_from(args) else {
        return Err(ExecutionError::function_error(CHARGE, "called with the wrong number of arguments"));
    };
    let unit = unit.downcast_ref::<CelInt>().and_then(|unit| u64::try_from(*unit.inner()).ok()).unwrap_or(1);
    match budget.downcast_ref::<Budget>() {
        Some(budget) => budget.charge(cost(unit, value.as_ref()))?,
        None => return Err(ExecutionError::function_error(CHARGE, "called without a budget")),
    }
    Ok(value)
}

fn elements(value: &dyn Val) -> u64 {
    value.as_sizer().map_or(1, |sizer| u64::try_from(*sizer.size().inner()).unwrap_or(0))
}

/// The cost of making a value: as in Kubernetes a tenth of the length of a text, and each element of a list or map.
fn size(value: &dyn Val) -> u64 {
    match value.downcast_ref::<CelString<'_>>() {
        Some(text) => text.inner().len() as u64 / 10,
        None => value.as_sizer().map_or(0, |_| elements(value)),
    }
}

/// Functions whose results can be longer than their arguments, or copies of them.
const GROWING: [&str; 17] = [
    operators::ADD,
    "@sortByAssociatedKeys",
    "bytes",
    "distinct",
    "flatten",
    "format",
    "join",
    "lowerAscii",
    "quote",
    "range",
    "replace",
    "reverse",
    "slice",
    "sort",
    "split",
    "string",
    "upperAscii",
];

/// Functions that read a whole operand. What is no variable was made for the call, and has been paid for, or is an attribute.
const READING: [&str; 8] = [
    operators::EQUALS,
    operators::NOT_EQUALS,
    operators::IN,
    "contains",
    "includes",
    "indexOf",
    "lastIndexOf",
    "matches",
];

/// Functions whose cost is the product of the sizes of their operands.
const MULTIPLYING: [&str; 3] = ["distinct", "join", "replace"];

/// The cost of compiling a regular expression, which is done at each call.
const REGULAR_EXPRESSION: u64 = 100;

/// Adds what counts to an expression. It needs the variable [`VARIABLE`] from then on.
pub(crate) fn instrument(tree: &mut IdedExpr) {
    match &mut tree.expr {
        Expr::Unspecified | Expr::Literal(_) | Expr::Ident(_) => {}
        Expr::Select(select) => instrument(&mut select.operand),
        Expr::Call(call) => {
            if let Some(charge) = instrument_call(call) {
                wrap(tree, charge.0, charge.1);
            }
        }
        Expr::List(list) => list.elements.iter_mut().for_each(instrument_element),
        Expr::Map(map) => instrument_entries(&mut map.entries),
        Expr::Struct(message) => instrument_entries(&mut message.entries),
        Expr::Comprehension(comprehension) => {
            let cost = nodes(&comprehension.loop_step) + nodes(&comprehension.loop_cond);
            instrument(&mut comprehension.iter_range);
            instrument(&mut comprehension.loop_step);
            instrument(&mut comprehension.result);
            if !matches!(comprehension.accu_init.expr, Expr::List(_)) {
                instrument_element(&mut comprehension.accu_init);
            }
            // The interpreter knows loops that collect a list by their literal condition, and is faster with them.
            match &comprehension.loop_cond.expr {
                Expr::Literal(LiteralValue::Boolean(condition)) if !condition.inner() => {}
                Expr::Literal(_) => wrap(&mut comprehension.iter_range, CHARGE_ELEMENTS, cost),
                _ => wrap(&mut comprehension.loop_cond, CHARGE, cost),
            }
        }
    }
}

/// Instruments the parts of a call, and returns what the call itself is to be charged with.
fn instrument_call(call: &mut CallExpr) -> Option<(&'static str, u64)> {
    let name = call.func_name.as_str();
    let is_of_sets = call.target.as_ref().is_some_and(|target| is_ident(target, "sets"));
    // The step of a loop, which the loop has paid for.
    let is_step = name == operators::ADD && call.args.first().is_some_and(|first| is_ident(first, "@result"));
    let multiplies = is_of_sets || MULTIPLYING.contains(&name);
    let reads = READING.contains(&name);
    // `sets` is the name of a namespace and no value.
    let target = call.target.as_deref_mut().filter(|_| !is_of_sets);
    for operand in target.into_iter().chain(&mut call.args) {
        instrument(operand);
        if multiplies && !matches!(operand.expr, Expr::Literal(_)) {
            wrap(operand, CHARGE_SQUARE, 1);
        } else if reads && is_variable(operand) {
            wrap(operand, CHARGE_SIZE, 0);
        }
    }
    match call.func_name.as_str() {
        "matches" => Some((CHARGE, REGULAR_EXPRESSION)),
        name if GROWING.contains(&name) && !is_step => Some((CHARGE_SIZE, 1)),
        _ => None,
    }
}

/// Instruments a value that becomes part of another one, or a variable: it is copied.
fn instrument_element(element: &mut IdedExpr) {
    instrument(element);
    if !matches!(element.expr, Expr::Literal(_)) {
        wrap(element, CHARGE_SIZE, 1);
    }
}

fn instrument_entries(entries: &mut [IdedEntryExpr]) {
    for entry in entries {
        match &mut entry.expr {
            EntryExpr::StructField(field) => instrument_element(&mut field.value),
            EntryExpr::MapEntry(entry) => {
                instrument_element(&mut entry.key);
                instrument_element(&mut entry.value);
            }
        }
    }
}

/// Returns whether an operand is a variable of the expression. Types have names too.
fn is_variable(tree: &IdedExpr) -> bool {
    matches!(&tree.expr, Expr::Ident(name) if !name.starts_with('@') && name != "device" && !TYPES.contains(&name.as_str()))
}

fn is_ident(tree: &IdedExpr, name: &str) -> bool {
    matches!(&tree.expr, Expr::Ident(ident) if ident == name)
}

/// Replaces an expression by a call of a function that counts, with the expression as its last argument.
fn wrap(tree: &mut IdedExpr, function: &str, cost: u64) {
    let id = tree.id;
    let node = |expr| IdedExpr { id, expr };
    let cost = i64::try_from(cost).unwrap_or(i64::MAX);
    let args = vec![
        node(Expr::Ident(VARIABLE.to_owned())),
        node(Expr::Literal(LiteralValue::Int(CelInt::from(cost)))),
        std::mem::take(tree),
    ];
    *tree = node(Expr::Call(CallExpr { func_name: function.to_owned(), target: None, args }));
}

/// Counts the nodes of an expression. Of a loop in it only the range: its steps count for themselves.
fn nodes(tree: &IdedExpr) -> u64 {
    let entries = |entries: &[IdedEntryExpr]| -> u64 {
        let of_entry = |entry: &IdedEntryExpr| match &entry.expr {
            EntryExpr::StructField(field) => nodes(&field.value),
            EntryExpr::MapEntry(entry) => nodes(&entry.key) + nodes(&entry.value),
        };
        entries.iter().map(of_entry).sum()
    };
    match &tree.expr {
        Expr::Unspecified | Expr::Literal(_) => 0,
        Expr::Ident(_) => 1,
        Expr::Select(select) => 1 + nodes(&select.operand),
        Expr::Call(call) => 1 + call.target.as_deref().map_or(0, nodes) + call.args.iter().map(nodes).sum::<u64>(),
        Expr::List(list) => 1 + list.elements.iter().map(nodes).sum::<u64>(),
        Expr::Map(map) => 1 + entries(&map.entries),
        Expr::Struct(message) => 1 + entries(&message.entries),
        Expr::Comprehension(inner) => 1 + nodes(&inner.iter_range) + nodes(&inner.accu_init) + nodes(&inner.result),
    }
}
