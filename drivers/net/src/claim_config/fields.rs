//! Reads the fields of JSON objects, and collects what is wrong with all of them.

use std::collections::BTreeSet;
use std::fmt::Display;
use std::str::FromStr;

use serde_json::{Map, Value};

use super::FieldError;

/// Collects errors.
#[derive(Debug, Default)]
pub(super) struct Errors(pub(super) Vec<FieldError>);

impl Errors {
    pub(super) fn add(&mut self, path: impl Into<String>, message: impl Into<String>) {
        self.0.push(FieldError { path: path.into(), message: message.into() });
    }

    /// Keeps the value, or adds the error.
    pub(super) fn keep<T, E: Display>(&mut self, path: &str, outcome: Result<T, E>) -> Option<T> {
        outcome.map_err(|error| self.add(path, error.to_string())).ok()
    }
}

/// The fields of an object. A field is read at most once; what is not read by [`Fields::finish`] is not known.
#[derive(Debug)]
pub(super) struct Fields<'v> {
    path: String,
    object: &'v Map<String, Value>,
    known: BTreeSet<&'static str>,
}

impl<'v> Fields<'v> {
    /// Reads an object.
    pub(super) fn of(value: &'v Value, path: &str, errors: &mut Errors) -> Option<Self> {
        let Value::Object(object) = value else {
            errors.add(path, format!("must be an object with fields, but is {}", kind(value)));
            return None;
        };
        Some(Self { path: path.to_owned(), object, known: BTreeSet::new() })
    }

    /// Returns the path of a field.
    pub(super) fn path_of(&self, name: &str) -> String {
        if self.path.is_empty() { name.to_owned() } else { format!("{}.{name}", self.path) }
    }

    /// Returns the value of a field that is set. `null` is not.
    pub(super) fn value(&mut self, name: &'static str) -> Option<&'v Value> {
        self.known.insert(name);
        self.object.get(name).filter(|value| !value.is_null())
    }

    /// Reads a text, and what it means.
    pub(super) fn text<T: FromStr<Err: Display>>(&mut self, name: &'static str, errors: &mut Errors) -> Option<T> {
        let path = self.path_of(name);
        text(self.value(name)?, &path, errors)
    }

    /// Reads a whole number within limits.
    pub(super) fn number<T: TryFrom<i64>>(
        &mut self,
        name: &'static str,
        limits: std::ops::RangeInclusive<i64>,
        errors: &mut Errors,
    ) -> Option<T> {
        let path = self.path_of(name);
        let value = self.value(name)?;
        let Some(number) = value.as_i64() else {
            errors.add(path, format!("must be a whole number, but is {}", kind(value)));
            return None;
        };
        let inside = limits.contains(&number).then(|| T::try_from(number).ok()).flatten();
        if inside.is_none() {
            errors.add(path, format!("{number} must be from {} to {}", limits.start(), limits.end()));
        }
        inside
    }

    /// Reads true or false.
    pub(super) fn boolean(&mut self, name: &'static str, errors: &mut Errors) -> Option<bool> {
        let path = self.path_of(name);
        let value = self.value(name)?;
        if !value.is_boolean() {
            errors.add(path, format!("must be true or false, but is {}", kind(value)));
        }
        value.as_bool()
    }

    /// Reads a list. An element that is wrong is left out, and its error is added.
    pub(super) fn list<T>(
        &mut self,
        name: &'static str,
        errors: &mut Errors,
        mut read: impl FnMut(&'v Value, &str, &mut Errors) -> Option<T>,
    ) -> Option<Vec<T>> {
        let path = self.path_of(name);
        let value = self.value(name)?;
        let Value::Array(elements) = value else {
            errors.add(path, format!("must be a list, but is {}", kind(value)));
            return None;
        };
        let mut list = Vec::with_capacity(elements.len());
        for (index, element) in elements.iter().enumerate() {
            list.extend(read(element, &format!("{path}[{index}]"), errors));
        }
        Some(list)
    }

    /// Reads an object.
    pub(super) fn object(&mut self, name: &'static str, errors: &mut Errors) -> Option<Fields<'v>> {
        let path = self.path_of(name);
        Self::of(self.value(name)?, &path, errors)
    }

    /// Returns a value that must be there.
    pub(super) fn required<T>(&self, name: &str, value: Option<T>, errors: &mut Errors) -> Option<T> {
        if value.is_none() && self.object.get(name).is_none_or(Value::is_null) {
            errors.add(self.path_of(name), "is missing");
        }
        value
    }

    /// Refuses the fields that were not read.
    pub(super) fn finish(self, errors: &mut Errors) {
        let known: Vec<&str> = self.known.iter().copied().collect();
        for name in self.object.keys().filter(|name| !self.known.contains(name.as_str())) {
            errors.add(self.path_of(name), unknown("unknown field", name, &known));
        }
    }
}

/// Reads a text, and what it means.
pub(super) fn text<T: FromStr<Err: Display>>(value: &Value, path: &str, errors: &mut Errors) -> Option<T> {
    let Value::String(text) = value else {
        let quotes = if value.is_number() || value.is_boolean() { ": put it in quotes" } else { "" };
        errors.add(path, format!("must be a text, but is {}{quotes}", kind(value)));
        return None;
    };
    errors.keep(path, text.parse())
}

/// Returns what a value is, in words.
fn kind(value: &Value) -> String {
    match value {
        Value::Null => "null".to_owned(),
        Value::Bool(value) => value.to_string(),
        Value::Number(number) => format!("the number {number}"),
        Value::String(text) => format!("the text {text:?}"),
        Value::Array(_) => "a list".to_owned(),
        Value::Object(_) => "an object".to_owned(),
    }
}

/// Returns a message about a word that is not known: with the one that was probably meant, or else with all that are known.
pub(super) fn unknown(problem: &str, word: &str, known: &[&str]) -> String {
    let distance = |other: &str| distance(&word.to_lowercase(), &other.to_lowercase());
    let nearest = known.iter().map(|other| (distance(other), *other)).min();
    match nearest {
        Some((distance, nearest)) if distance <= 1 + nearest.len() / 4 => format!("{problem}: did you mean {nearest}?"),
        _ => format!("{problem}: use one of {}", known.join(", ")),
    }
}

/// The number of letters to insert, remove or replace in order to get from one word to another.
fn distance(from: &str, to: &str) -> usize {
    let to: Vec<char> = to.chars().collect();
    let mut row: Vec<usize> = (0..=to.len()).collect();
    for (line, letter) in from.chars().enumerate() {
        let mut corner = row[0];
        row[0] = line + 1;
        for column in 0..to.len() {
            let replaced = corner + usize::from(letter != to[column]);
            corner = row[column + 1];
            row[column + 1] = replaced.min(corner + 1).min(row[column] + 1);
        }
    }
    row[to.len()]
}
