//! XML elements in a comparable form.

use quick_xml::events::{BytesStart, Event};
use quick_xml::{Reader, XmlVersion};
use serde_json::{Map, Value, json};

/// The elements of a document or fragment: name, attributes and children of each. Text is ignored, there is none in devices.
pub fn elements(text: &str) -> Value {
    let mut reader = Reader::from_str(text);
    let mut open: Vec<(Value, Vec<Value>)> = vec![(Value::Null, Vec::new())];
    loop {
        match reader.read_event().unwrap_or_else(|error| panic!("{error} in {text}")) {
            Event::Start(start) => open.push((head(&start), Vec::new())),
            Event::Empty(start) => open.last_mut().unwrap().1.push(element(head(&start), Vec::new())),
            Event::End(_) => {
                let (head, children) = open.pop().unwrap();
                open.last_mut().unwrap().1.push(element(head, children));
            }
            Event::Eof => return open.pop().unwrap().1.into(),
            _ => {}
        }
    }
}

/// The children of the only element of a document.
pub fn children(text: &str) -> Value {
    elements(text)[0]["children"].clone()
}

fn head(start: &BytesStart<'_>) -> Value {
    let attribute = |attribute: quick_xml::events::attributes::Attribute<'_>| {
        let name = attribute.key.as_ref().to_owned();
        (name, attribute.normalized_value(XmlVersion::Explicit1_0).unwrap().into_owned().into())
    };
    let attributes: Map<String, Value> = start.attributes().map(|found| attribute(found.unwrap())).collect();
    json!({"name": start.name().as_ref(), "attributes": attributes})
}

fn element(mut head: Value, children: Vec<Value>) -> Value {
    head["children"] = children.into();
    head
}
