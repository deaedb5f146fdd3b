//! Expressions that select devices: what can be said about them before there is a device.
//!
//! Syntax, names and fields are checked, and that the result is a bool as far as its type is plain from the expression. The
//! real server knows the types of all functions, and estimates what an expression costs; here, an expression that is wrong in
//! those ways fails when it is evaluated.

use cel::IdedExpr;
use cel::common::ast::{Expr, LiteralValue, SourceInfo, operators};
use cel::parser::{ParseErrors, Parser};

use super::field::{Errors, Path};

/// The bytes in an expression.
const EXPRESSION_BYTES: usize = 10 * 1024;
/// What comes before the dot of functions that are in a package, and what names types.
const NAMES: [&str; 20] = [
    "cel",
    "sets",
    "optional",
    "math",
    "format",
    "strings",
    "lists",
    "google",
    "bool",
    "int",
    "uint",
    "double",
    "string",
    "bytes",
    "list",
    "map",
    "null_type",
    "type",
    "dyn",
    "net",
];
/// Functions whose first arguments are variables for the others, as far as the parser leaves them to be functions.
const BINDERS: [&str; 9] = [
    "bind",
    "all",
    "exists",
    "existsOne",
    "exists_one",
    "transformList",
    "transformMap",
    "transformMapEntry",
    "sortBy",
];

/// What an expression must give.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Result {
    Bool,
    Any,
}

pub(super) fn validate(expression: &str, result: Result, path: &Path, errors: &mut Errors) {
    if expression.len() > EXPRESSION_BYTES {
        return errors.too_long(path, EXPRESSION_BYTES);
    }
    let parser = Parser::new().enable_optional_syntax(true).enable_ident_escape_syntax(true);
    match parser.parse_with_source_info(expression) {
        Err(failures) => {
            errors.invalid(path, expression, &format!("compilation failed: {}", syntax(expression, &failures)));
        }
        Ok((tree, source)) => {
            let mut check =
                Check { source: &source, expression, problems: Vec::new(), variables: vec!["device".into()] };
            check.visit(&tree);
            if !check.problems.is_empty() {
                let problems = check.problems.join("\n");
                errors.invalid(path, expression, &format!("compilation failed: {problems}"));
            } else if let (Result::Bool, Some(kind)) = (result, kind(&tree).filter(|kind| *kind != "bool")) {
                let detail = format!("must evaluate to bool or the unknown type, not {kind}");
                errors.invalid(path, expression, &detail);
            }
        }
    }
}

fn syntax(expression: &str, failures: &ParseErrors) -> String {
    let shown = failures.errors.iter().map(|error| match error.pos {
        _ if expression.is_empty() => format!("ERROR: <input>:1:0: {}", error.msg),
        (line, column) => {
            let [line, column] = [line, column].map(|position| usize::try_from(position).unwrap_or(1));
            problem(expression, line, column, &error.msg)
        }
    });
    shown.collect::<Vec<_>>().join("\n")
}

fn problem(expression: &str, line: usize, column: usize, message: &str) -> String {
    let mut shown = format!("ERROR: <input>:{line}:{column}: {message}");
    if let Some(text) = expression.lines().nth(line.saturating_sub(1)) {
        shown.push_str(&format!("\n | {text}\n | {}^", ".".repeat(column.saturating_sub(1))));
    }
    shown
}

/// Looks for names and fields that there are not.
struct Check<'a> {
    source: &'a SourceInfo,
    expression: &'a str,
    problems: Vec<String>,
    variables: Vec<String>,
}

impl Check<'_> {
    fn report(&mut self, at: &IdedExpr, message: &str) {
        let start =
            self.source.offset_for(at.id).and_then(|(start, _)| usize::try_from(start).ok()).unwrap_or_default();
        let before: String = self.expression.chars().take(start).collect();
        let line = before.matches('\n').count() + 1;
        let column = before.rsplit('\n').next().map_or(0, |text| text.chars().count()) + 1;
        self.problems.push(problem(self.expression, line, column, message));
    }

    fn within(&mut self, variables: &[&str], inner: impl FnOnce(&mut Self)) {
        let outside = self.variables.len();
        self.variables.extend(variables.iter().map(|name| (*name).to_owned()));
        inner(self);
        self.variables.truncate(outside);
    }

    fn visit(&mut self, tree: &IdedExpr) {
        match &tree.expr {
            Expr::Unspecified | Expr::Literal(_) => {}
            Expr::Ident(name) => {
                let name = name.trim_start_matches('.');
                if !NAMES.contains(&name)
                    && !name.starts_with(['@', '_'])
                    && !self.variables.iter().any(|known| known == name)
                {
                    self.report(tree, &format!("undeclared reference to '{name}' (in container '')"));
                }
            }
            Expr::Select(select) => {
                if is_device(&select.operand) && field_kind(&select.field).is_none() {
                    self.report(tree, &format!("undefined field '{}'", select.field));
                }
                self.visit(&select.operand);
            }
            Expr::Call(call) => {
                call.target.iter().for_each(|target| self.visit(target));
                let mut bound = Vec::new();
                if BINDERS.contains(&call.func_name.as_str()) {
                    // All but the last argument may be names, the first of which are.
                    let names = call.args.iter().take(call.args.len().saturating_sub(1));
                    bound.extend(names.map_while(|arg| match &arg.expr {
                        Expr::Ident(name) => Some(name.as_str()),
                        _ => None,
                    }));
                }
                let args = &call.args[bound.len()..];
                self.within(&bound, |check| args.iter().for_each(|arg| check.visit(arg)));
            }
            Expr::Comprehension(comprehension) => {
                self.visit(&comprehension.iter_range);
                self.visit(&comprehension.accu_init);
                let mut names = vec![comprehension.iter_var.as_str(), comprehension.accu_var.as_str()];
                names.extend(comprehension.iter_var2.as_deref());
                self.within(&names, |check| {
                    for part in [&comprehension.loop_cond, &comprehension.loop_step, &comprehension.result] {
                        check.visit(part);
                    }
                });
            }
            Expr::List(list) => list.elements.iter().for_each(|element| self.visit(element)),
            Expr::Map(map) => self.visit_entries(&map.entries),
            Expr::Struct(object) => self.visit_entries(&object.entries),
        }
    }

    fn visit_entries(&mut self, entries: &[cel::common::ast::IdedEntryExpr]) {
        use cel::common::ast::EntryExpr;
        for entry in entries {
            match &entry.expr {
                EntryExpr::StructField(field) => self.visit(&field.value),
                EntryExpr::MapEntry(entry) => {
                    self.visit(&entry.key);
                    self.visit(&entry.value);
                }
            }
        }
    }
}

fn is_device(tree: &IdedExpr) -> bool {
    matches!(&tree.expr, Expr::Ident(name) if name == "device")
}

fn field_kind(field: &str) -> Option<&'static str> {
    match field {
        "driver" => Some("string"),
        "attributes" => Some("map(string, map(string, google.protobuf.Any))"),
        "capacity" => Some("map(string, map(string, kubernetes.Quantity))"),
        "allowMultipleAllocations" => Some("bool"),
        _ => None,
    }
}

/// The type of an expression, where it is plain.
fn kind(tree: &IdedExpr) -> Option<&'static str> {
    match &tree.expr {
        Expr::Ident(name) if name == "device" => Some("kubernetes.DRADevice"),
        Expr::Literal(literal) => Some(match literal {
            LiteralValue::Boolean(_) => "bool",
            LiteralValue::Bytes(_) => "bytes",
            LiteralValue::Double(_) => "double",
            LiteralValue::Int(_) => "int",
            LiteralValue::Null => "null_type",
            LiteralValue::String(_) => "string",
            LiteralValue::UInt(_) => "uint",
        }),
        Expr::Select(select) if select.test => Some("bool"),
        Expr::Select(select) if is_device(&select.operand) => field_kind(&select.field),
        Expr::Select(select) => element(kind(&select.operand)?),
        Expr::Call(call) => match (call.func_name.as_str(), &call.args[..]) {
            (operators::INDEX, [map, _]) => element(kind(map)?),
            (operators::CONDITIONAL, [_, yes, no]) => kind(yes).filter(|yes| kind(no) == Some(yes)),
            (operators::ADD, [left, right]) => kind(left).filter(|left| kind(right) == Some(left)),
            ("size", _) => Some("int"),
            ("string", [_]) => Some("string"),
            ("int", [_]) => Some("int"),
            _ => None,
        },
        Expr::List(list) => match kind(list.elements.first()?)? {
            "int" => Some("list(int)"),
            "string" => Some("list(string)"),
            "bool" => Some("list(bool)"),
            _ => None,
        },
        _ => None,
    }
}

/// The type of what is in a map of a device.
fn element(map: &str) -> Option<&'static str> {
    match map {
        "map(string, map(string, google.protobuf.Any))" => Some("map(string, google.protobuf.Any)"),
        "map(string, map(string, kubernetes.Quantity))" => Some("map(string, kubernetes.Quantity)"),
        "map(string, kubernetes.Quantity)" => Some("kubernetes.Quantity"),
        _ => None,
    }
}
