//! The elements of a document with their positions, so that an edit can leave every other byte as it is.

use quick_xml::Reader;
use quick_xml::events::{BytesStart, Event};

use super::edit::EditError;

/// The maximum nesting depth of elements. A domain has less than ten.
const MAX_DEPTH: usize = 256;

/// An element of a document.
#[derive(Debug, Default)]
pub(super) struct Node {
    /// The name as written, with its namespace prefix.
    pub(super) name: String,
    /// The attributes with their values as written, entities replaced.
    pub(super) attributes: Vec<(String, String)>,
    /// The elements inside.
    pub(super) children: Vec<Node>,
    /// The text directly inside.
    pub(super) text: String,
    /// The position of the start tag's `<`.
    pub(super) start: usize,
    /// The position after the start tag's `>`.
    pub(super) open_end: usize,
    /// The position of the end tag's `<`; that of `open_end` if there is none.
    pub(super) close_start: usize,
    /// The position after the element.
    pub(super) end: usize,
    /// Whether the element has no end tag.
    pub(super) is_empty_tag: bool,
}

impl Node {
    pub(super) fn attribute(&self, name: &str) -> Option<&str> {
        self.attributes.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    pub(super) fn child(&self, name: &str) -> Option<&Node> {
        self.children.iter().find(|child| child.name == name)
    }

    pub(super) fn children_named<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a Node> {
        self.children.iter().filter(move |child| child.name == name)
    }
}

/// Parses a document and returns its root element.
pub(super) fn parse(document: &str) -> Result<Node, EditError> {
    // The reader skips a byte order mark, and does not count it.
    let text = document.trim_start_matches('\u{feff}');
    let skipped = document.len() - text.len();
    let position = |position: u64| usize::try_from(position).unwrap_or(usize::MAX).saturating_add(skipped);
    let mut reader = Reader::from_str(text);
    reader.config_mut().check_end_names = true;
    let mut open: Vec<Node> = Vec::new();
    let mut root = None;
    loop {
        let start = position(reader.buffer_position());
        let event = reader.read_event();
        let end = position(reader.buffer_position());
        let problem = |problem: String| EditError::Syntax { position: start, problem };
        match event.map_err(|error| problem(error.to_string()))? {
            Event::Start(tag) => {
                if open.len() >= MAX_DEPTH {
                    return Err(problem(format!("elements are nested more than {MAX_DEPTH} levels deep")));
                }
                open.push(Node { start, open_end: end, ..element(&tag).map_err(problem)? });
            }
            Event::Empty(tag) => {
                let node = Node {
                    start,
                    open_end: end,
                    close_start: end,
                    end,
                    is_empty_tag: true,
                    ..element(&tag).map_err(problem)?
                };
                place(node, &mut open, &mut root).map_err(problem)?;
            }
            Event::End(_) => {
                let Some(node) = open.pop() else { return Err(problem("an end tag without a start tag".to_owned())) };
                place(Node { close_start: start, end, ..node }, &mut open, &mut root).map_err(problem)?;
            }
            Event::Text(text) => {
                if let Some(node) = open.last_mut() {
                    node.text.push_str(&text);
                }
            }
            Event::Eof => break,
            Event::CData(_)
            | Event::Comment(_)
            | Event::Decl(_)
            | Event::PI(_)
            | Event::DocType(_)
            | Event::GeneralRef(_) => {}
        }
    }
    match (root, open.pop()) {
        (_, Some(node)) => {
            Err(EditError::Syntax { position: node.start, problem: format!("<{}> is not closed", node.name) })
        }
        (Some(root), None) => Ok(root),
        (None, None) => Err(EditError::Syntax { position: 0, problem: "there is no element".to_owned() }),
    }
}

fn place(node: Node, open: &mut [Node], root: &mut Option<Node>) -> Result<(), String> {
    match (open.last_mut(), &root) {
        (Some(parent), _) => parent.children.push(node),
        (None, None) => *root = Some(node),
        (None, Some(_)) => return Err("there is more than one root element".to_owned()),
    }
    Ok(())
}

fn element(tag: &BytesStart<'_>) -> Result<Node, String> {
    let name = tag.name().as_ref().to_owned();
    let mut attributes = Vec::new();
    for attribute in tag.attributes() {
        let attribute = attribute.map_err(|error| format!("<{name}>: {error}"))?;
        let key = attribute.key.as_ref().to_owned();
        let raw = attribute.value.into_owned();
        // An entity that the document declares itself is left as it is: no value that matters here has one.
        let value = quick_xml::escape::unescape(&raw).map(std::borrow::Cow::into_owned);
        attributes.push((key, value.unwrap_or(raw)));
    }
    Ok(Node { name, attributes, ..Node::default() })
}
