//! Room on the stack for expressions that are nested deeply.
//!
//! Parser and interpreter are recursive, and the end of a stack ends the process. Threads of a runtime have 2 MiB. What needs more
//! than a little runs on a thread with more, which costs some ten microseconds; the others, nearly all, stay where they are.

use std::io;
use std::panic::resume_unwind;
use std::thread::{Builder, scope};

use cel::common::ast::{EntryExpr, Expr, IdedEntryExpr, IdedExpr};

/// The depth limit of a tree that is evaluated. Kubernetes' parser has a limit of 250 levels, counted differently.
pub(crate) const MAX_DEPTH: usize = 500;

/// The size of the larger stack: enough for [`MAX_DEPTH`] in a build without optimizations. Only what is used is allocated.
const LARGE: usize = 64 << 20;
/// The nesting of brackets that the parser can follow on any stack.
const SHALLOW_BRACKETS: usize = 6;
/// The length of a chain without brackets (`1 + 1 + …`) that the parser can follow on any stack, in bytes.
const SHALLOW_BYTES: usize = 1024;
/// The depth of a tree that can be evaluated on any stack.
const SHALLOW_TREE: usize = 24;

/// Runs work with the stack that the parser needs for an expression.
pub(crate) fn for_text<T: Send>(expression: &str, work: impl FnOnce() -> T + Send) -> io::Result<T> {
    let mut depth = 0_usize;
    let mut deepest = 0;
    // Those in texts count as well, which does no harm.
    for byte in expression.bytes() {
        match byte {
            b'(' | b'[' | b'{' => depth += 1,
            b')' | b']' | b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        deepest = deepest.max(depth);
    }
    run(deepest > SHALLOW_BRACKETS || expression.len() > SHALLOW_BYTES, work)
}

/// Runs work with the stack that the interpreter needs for a tree of this depth.
pub(crate) fn for_tree<T: Send>(depth: usize, work: impl FnOnce() -> T + Send) -> io::Result<T> {
    run(depth > SHALLOW_TREE, work)
}

fn run<T: Send>(is_deep: bool, work: impl FnOnce() -> T + Send) -> io::Result<T> {
    if !is_deep {
        return Ok(work());
    }
    scope(|scope| {
        let thread = Builder::new().name("cel".to_owned()).stack_size(LARGE).spawn_scoped(scope, work)?;
        Ok(thread.join().unwrap_or_else(|panic| resume_unwind(panic)))
    })
}

/// Returns the number of levels of a tree.
pub(crate) fn depth(tree: &IdedExpr) -> usize {
    let deepest = |trees: &[&IdedExpr]| trees.iter().map(|tree| depth(tree)).max().unwrap_or(0);
    let of_entry = |entry: &IdedEntryExpr| match &entry.expr {
        EntryExpr::StructField(field) => depth(&field.value),
        EntryExpr::MapEntry(entry) => deepest(&[&entry.key, &entry.value]),
    };
    1 + match &tree.expr {
        Expr::Unspecified | Expr::Literal(_) | Expr::Ident(_) => 0,
        Expr::Select(select) => depth(&select.operand),
        Expr::Call(call) => call.target.as_deref().into_iter().chain(&call.args).map(depth).max().unwrap_or(0),
        Expr::List(list) => list.elements.iter().map(depth).max().unwrap_or(0),
        Expr::Map(map) => map.entries.iter().map(of_entry).max().unwrap_or(0),
        Expr::Struct(message) => message.entries.iter().map(of_entry).max().unwrap_or(0),
        Expr::Comprehension(inner) => {
            deepest(&[&inner.iter_range, &inner.accu_init, &inner.loop_cond, &inner.loop_step, &inner.result])
        }
    }
}
