//! A small tree of elements, and its two notations.

use std::borrow::Cow;

use super::Form;
use super::escape;
use super::scan::Node;

/// An element with attributes, and children or text.
#[derive(Debug)]
pub(super) struct Element {
    name: &'static str,
    attributes: Vec<(&'static str, Cow<'static, str>)>,
    children: Vec<Element>,
    text: Option<String>,
}

impl Element {
    pub(super) fn new(name: &'static str) -> Self {
        Self { name, attributes: Vec::new(), children: Vec::new(), text: None }
    }

    pub(super) fn attribute(mut self, name: &'static str, value: impl Into<Cow<'static, str>>) -> Self {
        self.attributes.push((name, value.into()));
        self
    }

    pub(super) fn optional(self, name: &'static str, value: Option<&'static str>) -> Self {
        match value {
            Some(value) => self.attribute(name, value),
            None => self,
        }
    }

    pub(super) fn child(mut self, child: Element) -> Self {
        self.children.push(child);
        self
    }

    pub(super) fn optional_child(mut self, child: Option<Element>) -> Self {
        self.children.extend(child);
        self
    }

    pub(super) fn text(mut self, text: String) -> Self {
        self.text = Some(text);
        self
    }

    /// Returns whether a document's element has the same name, attributes, children and text, perhaps among others.
    ///
    /// Numbers are compared as numbers: `0x01`, `0x1` and `1` are equal.
    pub(super) fn is_described_by(&self, node: &Node) -> bool {
        let has_text = self.text.as_deref().is_none_or(|text| node.text.trim() == text);
        let has_attribute = |(name, value): &(&str, Cow<'_, str>)| {
            node.attribute(name)
                .is_some_and(|present| present == value || number(present) == number(value).or(Some(u64::MAX)))
        };
        self.name == node.name
            && has_text
            && self.attributes.iter().all(has_attribute)
            && self.children.iter().all(|child| node.children.iter().any(|present| child.is_described_by(present)))
    }

    /// Appends the element to `out`; in the canonical form with indentation and a newline.
    pub(super) fn write(&self, form: Form, depth: usize, out: &mut String) {
        self.write_indented(form, &"  ".repeat(depth), out);
    }

    pub(super) fn write_indented(&self, form: Form, indent: &str, out: &mut String) {
        if form == Form::Canonical {
            out.push_str(indent);
        }
        out.push('<');
        out.push_str(self.name);
        for (name, value) in &self.attributes {
            self.write_attribute(form, name, value, out);
        }
        match form {
            Form::Canonical => self.close_canonical(indent, out),
            Form::Kubevirt => {
                out.push('>');
                for child in &self.children {
                    child.write_indented(form, "", out);
                }
                out.push_str(&escape::go(self.text.as_deref().unwrap_or_default()));
                self.write_end(out);
            }
        }
    }

    fn write_attribute(&self, form: Form, name: &str, value: &str, out: &mut String) {
        let (quote, value) = match form {
            Form::Canonical => ('\'', escape::libvirt(value)),
            Form::Kubevirt => ('"', escape::go(value)),
        };
        out.push(' ');
        out.push_str(name);
        out.push('=');
        out.push(quote);
        out.push_str(&value);
        out.push(quote);
    }

    fn close_canonical(&self, indent: &str, out: &mut String) {
        if let Some(text) = &self.text {
            out.push('>');
            out.push_str(&escape::libvirt(text));
            self.write_end(out);
        } else if self.children.is_empty() {
            out.push_str("/>");
        } else {
            out.push_str(">\n");
            let deeper = format!("{indent}  ");
            for child in &self.children {
                child.write_indented(Form::Canonical, &deeper, out);
            }
            out.push_str(indent);
            self.write_end(out);
        }
        out.push('\n');
    }

    fn write_end(&self, out: &mut String) {
        out.push_str("</");
        out.push_str(self.name);
        out.push('>');
    }
}

/// Parses a decimal or hexadecimal number.
fn number(text: &str) -> Option<u64> {
    match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}
