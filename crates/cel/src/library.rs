//! The functions that expressions can call: CEL's standard library, and those that Kubernetes adds to it.

use std::cmp::Ordering;
use std::sync::{Arc, LazyLock};

use cel::common::ast::{ComprehensionExpr, Expr, IdedExpr, ListExpr, LiteralValue};
use cel::common::types::{CelBool, CelDouble, CelInt, CelList, CelString, DYN_TYPE, LIST_TYPE, Type};
use cel::common::value::{CowVal, Val};
use cel::parser::{Macro, MacroExprHelper};
use cel::{DeclarationError, Env, ExecutionError, ParseError, add_member_overload, add_overload, extensions};
use drakkar_client::{ParseQuantityError, Quantity};
use semver::Version;

use crate::budget;
use crate::values::{QuantityValue, SemverValue};

/// The functions and macros of all expressions.
#[expect(clippy::expect_used, reason = "the declarations are constant, and every test of this crate needs them")]
pub(crate) static ENVIRONMENT: LazyLock<Arc<Env>> =
    LazyLock::new(|| Arc::new(environment().expect("no function is declared twice")));

fn environment() -> Result<Env, DeclarationError> {
    let mut env = Env::stdlib();
    env.add_extension(extensions::strings)?;
    env.add_extension(extensions::lists)?;
    env.add_extension(quantities)?;
    env.add_extension(versions)?;
    env.add_extension(sets)?;
    env.add_extension(budget::functions)?;
    env.add_member_overload("includes", "dyn.includes(dyn)", DYN_TYPE, vec![DYN_TYPE], includes)?;
    env.add_macro(Macro::receiver("bind", 3, bind))?;
    Ok(env)
}

/// Adds Kubernetes' quantity library.
fn quantities(env: &mut Env) -> Result<(), DeclarationError> {
    fn is_quantity(text: &CelString<'_>) -> CelBool {
        CelBool::from(text.inner().parse::<Quantity>().is_ok())
    }
    fn quantity(text: &CelString<'_>) -> Result<QuantityValue, ExecutionError> {
        let message = |error: ParseQuantityError| format!("{:?} is not a quantity: {error}", text.inner());
        text.inner()
            .parse()
            .map(QuantityValue)
            .map_err(|error| ExecutionError::function_error("quantity", message(error)))
    }
    fn is_less_than(a: &QuantityValue, b: &QuantityValue) -> CelBool {
        CelBool::from(a.0 < b.0)
    }
    fn is_greater_than(a: &QuantityValue, b: &QuantityValue) -> CelBool {
        CelBool::from(a.0 > b.0)
    }
    fn compare_to(a: &QuantityValue, b: &QuantityValue) -> CelInt {
        ordering_value(a.0.cmp(&b.0))
    }
    fn is_integer(a: &QuantityValue) -> CelBool {
        CelBool::from(a.0.to_i64().is_some())
    }
    fn as_integer(a: &QuantityValue) -> Result<CelInt, ExecutionError> {
        let whole = a.0.to_i64();
        whole.map(CelInt::from).ok_or_else(|| ExecutionError::function_error("asInteger", "not a whole number"))
    }
    fn as_approximate_float(a: &QuantityValue) -> CelDouble {
        CelDouble::from(a.0.to_f64())
    }
    fn sign(a: &QuantityValue) -> CelInt {
        CelInt::from(i64::from(a.0.signum()))
    }
    fn add(a: &QuantityValue, b: &QuantityValue) -> QuantityValue {
        QuantityValue(&a.0 + &b.0)
    }
    fn add_int(a: &QuantityValue, b: &CelInt) -> QuantityValue {
        QuantityValue(&a.0 + &Quantity::from(*b.inner()))
    }
    fn sub(a: &QuantityValue, b: &QuantityValue) -> QuantityValue {
        QuantityValue(&a.0 - &b.0)
    }
    fn sub_int(a: &QuantityValue, b: &CelInt) -> QuantityValue {
        QuantityValue(&a.0 - &Quantity::from(*b.inner()))
    }
    add_overload!(env, fn is_quantity: (CelString<'_>) -> CelBool)?;
    add_overload!(env, fn quantity: (CelString<'_>) -> Result<QuantityValue>)?;
    add_member_overload!(env, fn is_less_than: (QuantityValue, QuantityValue) -> CelBool)?;
    add_member_overload!(env, fn is_greater_than: (QuantityValue, QuantityValue) -> CelBool)?;
    add_member_overload!(env, fn compare_to: (QuantityValue, QuantityValue) -> CelInt)?;
    add_member_overload!(env, fn is_integer: (QuantityValue) -> CelBool)?;
    add_member_overload!(env, fn as_integer: (QuantityValue) -> Result<CelInt>)?;
    add_member_overload!(env, fn as_approximate_float: (QuantityValue) -> CelDouble)?;
    add_member_overload!(env, fn sign: (QuantityValue) -> CelInt)?;
    add_member_overload!(env, fn add: (QuantityValue, QuantityValue) -> QuantityValue)?;
    add_member_overload!(env, fn add_int: (QuantityValue, CelInt) -> QuantityValue, name = "add")?;
    add_member_overload!(env, fn sub: (QuantityValue, QuantityValue) -> QuantityValue)?;
    add_member_overload!(env, fn sub_int: (QuantityValue, CelInt) -> QuantityValue, name = "sub")?;
    Ok(())
}

/// Adds Kubernetes' semver library.
fn versions(env: &mut Env) -> Result<(), DeclarationError> {
    fn parse(text: &str, normalize: bool) -> Result<Version, ExecutionError> {
        let version = if normalize { Version::parse(&normalized(text)) } else { Version::parse(text) };
        version.map_err(|error| ExecutionError::function_error("semver", format!("{text:?}: {error}")))
    }
    fn is_semver(text: &CelString<'_>) -> CelBool {
        CelBool::from(parse(text.inner(), false).is_ok())
    }
    fn is_semver_normalized(text: &CelString<'_>, normalize: &CelBool) -> CelBool {
        CelBool::from(parse(text.inner(), *normalize.inner()).is_ok())
    }
    fn semver(text: &CelString<'_>) -> Result<SemverValue, ExecutionError> {
        parse(text.inner(), false).map(SemverValue)
    }
    fn semver_normalized(text: &CelString<'_>, normalize: &CelBool) -> Result<SemverValue, ExecutionError> {
        parse(text.inner(), *normalize.inner()).map(SemverValue)
    }
    fn number(value: u64, name: &str) -> Result<CelInt, ExecutionError> {
        i64::try_from(value).map(CelInt::from).map_err(|error| ExecutionError::function_error(name, error))
    }
    fn major(a: &SemverValue) -> Result<CelInt, ExecutionError> {
        number(a.0.major, "major")
    }
    fn minor(a: &SemverValue) -> Result<CelInt, ExecutionError> {
        number(a.0.minor, "minor")
    }
    fn patch(a: &SemverValue) -> Result<CelInt, ExecutionError> {
        number(a.0.patch, "patch")
    }
    fn is_less_than(a: &SemverValue, b: &SemverValue) -> CelBool {
        CelBool::from(a.0.cmp_precedence(&b.0).is_lt())
    }
    fn is_greater_than(a: &SemverValue, b: &SemverValue) -> CelBool {
        CelBool::from(a.0.cmp_precedence(&b.0).is_gt())
    }
    fn compare_to(a: &SemverValue, b: &SemverValue) -> CelInt {
        ordering_value(a.0.cmp_precedence(&b.0))
    }
    add_overload!(env, fn is_semver: (CelString<'_>) -> CelBool)?;
    add_overload!(env, fn is_semver_normalized: (CelString<'_>, CelBool) -> CelBool, name = "isSemver")?;
    add_overload!(env, fn semver: (CelString<'_>) -> Result<SemverValue>)?;
    add_overload!(env, fn semver_normalized: (CelString<'_>, CelBool) -> Result<SemverValue>, name = "semver")?;
    add_member_overload!(env, fn major: (SemverValue) -> Result<CelInt>)?;
    add_member_overload!(env, fn minor: (SemverValue) -> Result<CelInt>)?;
    add_member_overload!(env, fn patch: (SemverValue) -> Result<CelInt>)?;
    add_member_overload!(env, fn is_less_than: (SemverValue, SemverValue) -> CelBool)?;
    add_member_overload!(env, fn is_greater_than: (SemverValue, SemverValue) -> CelBool)?;
    add_member_overload!(env, fn compare_to: (SemverValue, SemverValue) -> CelInt)?;
    Ok(())
}

/// Removes a leading `v` and leading zeros, and adds missing numbers: `v01.2` becomes `1.2.0`.
fn normalized(text: &str) -> String {
    let text = text.strip_prefix('v').unwrap_or(text);
    let (numbers, rest) = text.split_at(text.find(['-', '+']).unwrap_or(text.len()));
    let mut numbers: Vec<_> = numbers
        .split('.')
        .map(|number| match number.trim_start_matches('0') {
            "" if !number.is_empty() => "0",
            trimmed => trimmed,
        })
        .collect();
    while numbers.len() < 3 {
        numbers.push("0");
    }
    format!("{}{rest}", numbers.join("."))
}

fn ordering_value(ordering: Ordering) -> CelInt {
    CelInt::from(ordering as i64)
}

/// Adds cel-go's sets library.
#[expect(clippy::needless_pass_by_value, reason = "the signature of overloads")]
fn sets(env: &mut Env) -> Result<(), DeclarationError> {
    const LISTS: fn() -> Vec<Type> = || vec![LIST_TYPE, LIST_TYPE];
    fn items<'b, 'v>(value: &'b CowVal<'_, 'v>) -> Result<Vec<&'b (dyn Val + 'v)>, ExecutionError> {
        match value.downcast_ref::<CelList<'v>>() {
            Some(list) => Ok(list.inner().iter().map(|item| &**item).collect()),
            None => Err(ExecutionError::UnexpectedType { got: value.get_type().name().into(), want: "list".into() }),
        }
    }
    fn all_in(these: &[&dyn Val], those: &[&dyn Val]) -> bool {
        these.iter().all(|this| those.iter().any(|that| this.equals(*that)))
    }
    fn contains<'b, 'v>(args: Vec<CowVal<'b, 'v>>) -> Result<CowVal<'b, 'v>, ExecutionError> {
        Ok(CowVal::owned(CelBool::from(all_in(&items(&args[1])?, &items(&args[0])?))))
    }
    fn equivalent<'b, 'v>(args: Vec<CowVal<'b, 'v>>) -> Result<CowVal<'b, 'v>, ExecutionError> {
        let a = items(&args[0])?;
        let b = items(&args[1])?;
        Ok(CowVal::owned(CelBool::from(all_in(&a, &b) && all_in(&b, &a))))
    }
    fn intersects<'b, 'v>(args: Vec<CowVal<'b, 'v>>) -> Result<CowVal<'b, 'v>, ExecutionError> {
        let a = items(&args[0])?;
        let b = items(&args[1])?;
        Ok(CowVal::owned(CelBool::from(a.iter().any(|this| b.iter().any(|that| this.equals(*that))))))
    }
    env.add_overload("sets.contains", "list_sets_contains_list", LISTS(), contains)?;
    env.add_overload("sets.equivalent", "list_sets_equivalent_list", LISTS(), equivalent)?;
    env.add_overload("sets.intersects", "list_sets_intersects_list", LISTS(), intersects)?;
    Ok(())
}

/// `attribute.includes(value)`: whether a list contains the value, or a single value equals it.
#[expect(clippy::needless_pass_by_value, reason = "the signature of overloads")]
fn includes<'b, 'v>(args: Vec<CowVal<'b, 'v>>) -> Result<CowVal<'b, 'v>, ExecutionError> {
    let this = &args[0];
    let value = &args[1];
    let found = match this.downcast_ref::<CelList<'v>>() {
        Some(list) => list.inner().iter().any(|item| item.equals(value.as_ref())),
        None => this.equals(value.as_ref()),
    };
    Ok(CowVal::owned(CelBool::from(found)))
}

/// `cel.bind(name, value, expression)`, as cel-go expands it: a loop over an empty list whose accumulator `name` is
/// initialized with `value`.
#[expect(clippy::unnecessary_wraps, reason = "the signature of macros")]
fn bind(
    helper: &mut MacroExprHelper<'_>,
    target: &mut Option<IdedExpr>,
    args: &mut Vec<IdedExpr>,
) -> Result<Option<IdedExpr>, ParseError> {
    let namespace = target.as_ref().is_some_and(|target| matches!(&target.expr, Expr::Ident(name) if name == "cel"));
    let [IdedExpr { expr: Expr::Ident(name), .. }, value, result] = args.as_slice() else { return Ok(None) };
    if !namespace {
        return Ok(None);
    }
    let name = name.clone();
    let loop_expression = ComprehensionExpr {
        iter_range: helper.next_expr(Expr::List(ListExpr::new(Vec::new()))),
        iter_var: "#unused".to_owned(),
        iter_var2: None,
        accu_var: name.clone(),
        accu_init: value.clone(),
        loop_cond: helper.next_expr(Expr::Literal(LiteralValue::Boolean(CelBool::from(false)))),
        loop_step: helper.next_expr(Expr::Ident(name)),
        result: result.clone(),
    };
    Ok(Some(helper.next_expr(Expr::Comprehension(Box::new(loop_expression)))))
}
