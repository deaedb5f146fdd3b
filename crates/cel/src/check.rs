//! Checks of an expression that need no device: length, syntax, names, fields and the type of the result.
//!
//! The API server and the evaluator use the same checks and differ in [`Functions`] only: Kubernetes has more functions than
//! the evaluator implements.

use cel::common::ast::{EntryExpr, Expr, IdedEntryExpr, IdedExpr, SourceInfo};
use cel::parser::ParseErrors;

use crate::device::{FIELDS, is_device};
use crate::error::{CheckError, Problem};
use crate::library::ENVIRONMENT;
use crate::names::{BINDERS, FUNCTIONS, NAMESPACES, TYPES, UNIMPLEMENTED_NAMESPACES};
use crate::result_type::{ResultType, type_of};
use crate::stack;

/// The length limit of an expression in Kubernetes, in bytes.
pub const MAX_EXPRESSION_BYTES: usize = 10 * 1024;

/// Checks an expression as the API server does at admission.
///
/// Functions are not checked: one that does not exist is an error when the expression is compiled for evaluation.
pub fn check(expression: &str, result: ResultType) -> Result<(), CheckError> {
    let parse = || parse(expression, result, Functions::Any).map(drop);
    stack::for_text(expression, parse).unwrap_or_else(|error| Err(CheckError::Thread(error.to_string())))
}

/// The functions that an expression may call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Functions {
    /// All functions, including those that only Kubernetes has.
    Any,
    /// The functions that the evaluator implements.
    Implemented,
}

/// Parses and checks an expression.
pub(crate) fn parse(expression: &str, result: ResultType, functions: Functions) -> Result<IdedExpr, CheckError> {
    if expression.len() > MAX_EXPRESSION_BYTES {
        return Err(CheckError::TooLong);
    }
    let parser = ENVIRONMENT.parser().enable_ident_escape_syntax(true);
    let (tree, source) = parser
        .parse_with_source_info(expression)
        .map_err(|errors| CheckError::Compilation(syntax_problems(expression, &errors)))?;
    let mut names =
        Names { source: &source, expression, functions, problems: Vec::new(), variables: vec!["device".to_owned()] };
    names.visit(&tree);
    if !names.problems.is_empty() {
        return Err(CheckError::Compilation(names.problems));
    }
    match type_of(&tree) {
        Some(found) if result == ResultType::Bool && found != "bool" => {
            Err(CheckError::NotBool { found: found.into_owned() })
        }
        _ => Ok(tree),
    }
}

fn syntax_problems(expression: &str, errors: &ParseErrors) -> Vec<Problem> {
    let position = |position: isize| usize::try_from(position).unwrap_or(1);
    let problem = |(line, column): (isize, isize), message: &str| {
        // cel-go reports column 0 here.
        let column = if expression.is_empty() { 0 } else { position(column) };
        Problem::new(expression, position(line), column, message.to_owned())
    };
    errors.errors.iter().map(|error| problem(error.pos, &error.msg)).collect()
}

/// A walk through an expression that reports undeclared names and fields.
struct Names<'a> {
    source: &'a SourceInfo,
    expression: &'a str,
    functions: Functions,
    problems: Vec<Problem>,
    /// The variables in scope: `device`, and those of the macros around the current node.
    variables: Vec<String>,
}

impl Names<'_> {
    fn report(&mut self, at: &IdedExpr, message: String, hint: Option<String>) {
        let offset = self.source.offset_for(at.id).and_then(|(start, _)| usize::try_from(start).ok());
        let before: String = self.expression.chars().take(offset.unwrap_or_default()).collect();
        let line = before.matches('\n').count() + 1;
        let column = before.rsplit('\n').next().map_or(0, |text| text.chars().count()) + 1;
        let mut problem = Problem::new(self.expression, line, column, message);
        problem.hint = hint;
        self.problems.push(problem);
    }

    fn with_variables(&mut self, variables: &[&str], visit: impl FnOnce(&mut Self)) {
        let outside = self.variables.len();
        self.variables.extend(variables.iter().map(|name| (*name).to_owned()));
        visit(self);
        self.variables.truncate(outside);
    }

    fn is_variable(&self, name: &str) -> bool {
        self.variables.iter().any(|variable| variable == name)
    }

    /// Whether a node is the first part of a qualified function name such as `sets.contains`.
    fn is_namespace(&self, tree: &IdedExpr) -> bool {
        let Expr::Ident(name) = &tree.expr else { return false };
        let name = name.as_str();
        let implemented = NAMESPACES.contains(&name);
        let known = implemented || self.functions == Functions::Any && UNIMPLEMENTED_NAMESPACES.contains(&name);
        known && !self.is_variable(name)
    }

    fn visit(&mut self, tree: &IdedExpr) {
        match &tree.expr {
            Expr::Unspecified | Expr::Literal(_) => {}
            Expr::Ident(name) => {
                let name = name.trim_start_matches('.');
                if !self.is_variable(name) && !TYPES.contains(&name) {
                    self.report(tree, format!("undeclared reference to '{name}' (in container '')"), None);
                }
            }
            Expr::Select(select) => {
                // A variable of a macro can have the name `device` too: then it can have any field.
                let shadowed = self.variables.iter().filter(|name| *name == "device").count() > 1;
                let field = select.field.as_str();
                if is_device(&select.operand) && !shadowed && !FIELDS.contains(&field) {
                    let hint = format!("the fields of device are {}", FIELDS.join(", "));
                    self.report(tree, format!("undefined field '{field}'"), Some(hint));
                }
                // The qualified names of types, such as `google.protobuf.Timestamp`.
                if self.functions == Functions::Any && self.is_namespace(&select.operand) {
                    return;
                }
                self.visit(&select.operand);
            }
            Expr::Call(call) => {
                let name = call.func_name.as_str();
                let is_operator = !name.starts_with(|first: char| first.is_ascii_alphabetic());
                if self.functions == Functions::Implemented && !is_operator && !FUNCTIONS.contains(&name) {
                    self.report(tree, format!("undeclared reference to function '{name}'"), None);
                }
                if let Some(target) = call.target.as_deref().filter(|target| !self.is_namespace(target)) {
                    self.visit(target);
                }
                let mut bound = Vec::new();
                if BINDERS.contains(&name) {
                    // The last argument is never a variable.
                    let candidates = call.args.iter().take(call.args.len().saturating_sub(1));
                    bound.extend(candidates.map_while(|arg| match &arg.expr {
                        Expr::Ident(name) => Some(name.as_str()),
                        _ => None,
                    }));
                }
                let args = &call.args[bound.len()..];
                self.with_variables(&bound, |names| args.iter().for_each(|arg| names.visit(arg)));
            }
            Expr::Comprehension(comprehension) => {
                self.visit(&comprehension.iter_range);
                self.visit(&comprehension.accu_init);
                let mut bound = vec![comprehension.iter_var.as_str(), comprehension.accu_var.as_str()];
                bound.extend(comprehension.iter_var2.as_deref());
                self.with_variables(&bound, |names| {
                    for part in [&comprehension.loop_cond, &comprehension.loop_step, &comprehension.result] {
                        names.visit(part);
                    }
                });
            }
            Expr::List(list) => list.elements.iter().for_each(|element| self.visit(element)),
            Expr::Map(map) => self.visit_entries(&map.entries),
            Expr::Struct(message) => {
                // Kubernetes has a few message types, for example `google.protobuf.Int64Value`.
                if self.functions == Functions::Implemented {
                    self.report(tree, format!("undeclared reference to type '{}'", message.type_name), None);
                }
                self.visit_entries(&message.entries);
            }
        }
    }

    fn visit_entries(&mut self, entries: &[IdedEntryExpr]) {
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
