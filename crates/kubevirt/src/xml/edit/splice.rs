//! Replacements of parts of a document, in the document's own layout.

use std::ops::Range;

use crate::hostdev::HostDev;
use crate::xml::element::Element;
use crate::xml::scan::Node;
use crate::xml::{Form, hostdev};

/// Returns an element in a form, without the last newline.
pub(super) fn lines(element: &Element, form: Form) -> String {
    let mut text = String::new();
    element.write(form, 0, &mut text);
    text.trim_end().to_owned()
}

/// Puts an element in one line. No attribute has a newline, so each line is a whole tag.
pub(super) fn compact(lines: &str) -> String {
    lines.lines().map(str::trim_start).collect()
}

/// Replacements of parts of a document.
pub(super) struct Edits<'a> {
    document: &'a str,
    replacements: Vec<(Range<usize>, String)>,
}

impl<'a> Edits<'a> {
    pub(super) fn new(document: &'a str) -> Self {
        Self { document, replacements: Vec::new() }
    }

    pub(super) fn replace(&mut self, range: Range<usize>, text: String) {
        self.replacements.push((range, text));
    }

    /// Returns the indentation of an element that starts a line.
    fn indent(&self, node: &Node) -> Option<&'a str> {
        let before = self.document.get(..node.start)?;
        let line = before.rfind('\n').map_or(before, |newline| &before[newline + 1..]);
        (before.contains('\n') && line.chars().all(|character| character == ' ' || character == '\t')).then_some(line)
    }

    /// Writes an element at an indentation, or in one line if the document has none.
    fn indented(lines: &str, indent: Option<&str>) -> String {
        match indent {
            None => compact(lines),
            Some(indent) => lines.replace('\n', &format!("\n{indent}")),
        }
    }

    pub(super) fn replace_hostdev(&mut self, node: &Node, device: &HostDev, form: Form) {
        let lines = self.hostdev(node, device, form);
        self.replace(node.start..node.end, Self::indented(&lines, self.indent(node)));
    }

    /// Writes the element that replaces another, with the children of the other that [`HostDev`] does not know.
    pub(super) fn hostdev(&self, node: &Node, device: &HostDev, form: Form) -> String {
        let mut lines = lines(&hostdev(device, form), form);
        let is_foreign = |child: &&Node| !["source", "boot", "alias", "address"].contains(&child.name.as_str());
        let foreign: Vec<&str> = node
            .children
            .iter()
            .filter(is_foreign)
            .filter_map(|child| self.document.get(child.start..child.end))
            .collect();
        if !foreign.is_empty() {
            let end = "</hostdev>";
            lines.truncate(lines.len() - end.len());
            for child in foreign {
                match form {
                    Form::Canonical => lines.push_str(&format!("  {child}\n")),
                    Form::Kubevirt => lines.push_str(child),
                }
            }
            lines.push_str(end);
        }
        lines
    }

    /// Inserts an element as the last child of another.
    pub(super) fn insert_child(&mut self, parent: &Node, lines: &str) {
        match parent.children.last() {
            Some(last) => {
                let indent = self.indent(last);
                let break_line = indent.map(|indent| format!("\n{indent}")).unwrap_or_default();
                self.replace(last.end..last.end, format!("{break_line}{}", Self::indented(lines, indent)));
            }
            None if parent.is_empty_tag => {
                let slash =
                    self.document.get(..parent.open_end).unwrap_or_default().rfind('/').unwrap_or(parent.open_end);
                self.replace(slash..parent.open_end, format!(">{}</{}>", compact(lines), parent.name));
            }
            None => self.replace(parent.close_start..parent.close_start, compact(lines)),
        }
    }

    /// Inserts elements into `<devices>`: after the last one of their kind, or at the end.
    pub(super) fn insert_devices(&mut self, root: &Node, kind: &str, elements: &[String]) {
        if elements.is_empty() {
            return;
        }
        let Some(devices) = root.child("devices") else {
            let all: String = elements.iter().map(|lines| compact(lines)).collect();
            self.insert_child(root, &format!("<devices>{all}</devices>"));
            return;
        };
        let Some(last) = devices.children_named(kind).last().or(devices.children.last()) else {
            let all: String = elements.iter().map(|lines| compact(lines)).collect();
            self.insert_child(devices, &all);
            return;
        };
        let indent = self.indent(last);
        let break_line = indent.map(|indent| format!("\n{indent}")).unwrap_or_default();
        let all: String =
            elements.iter().map(|lines| format!("{break_line}{}", Self::indented(lines, indent))).collect();
        self.replace(last.end..last.end, all);
    }

    /// Applies the replacements from the last to the first, so that positions stay valid.
    pub(super) fn finish(mut self) -> String {
        let mut text = self.document.to_owned();
        self.replacements.sort_by_key(|(range, _)| range.start);
        for (range, replacement) in self.replacements.into_iter().rev() {
            text.replace_range(range, &replacement);
        }
        text
    }
}
