//! Of several changes the last one counts.

#![allow(clippy::unwrap_used)]

use super::*;

#[test]
fn later_changes_of_a_device_replace_earlier_ones() {
    let device = |name: &str, number: i64| PublishedDevice::new(name).attribute("number", number);
    let mut update = PoolUpdate::default();
    update.set(&device("a", 1));
    update.remove("b");
    let mut later = PoolUpdate::default();
    later.set(&device("b", 2));
    later.set(&device("c\"\n", 2));
    later.remove("a");
    later.remove("c\"\n");
    update.merge(later);
    assert_eq!(update.names().collect::<Vec<_>>(), [&b"a"[..], b"b", br#"c\"\n"#]);
    let texts: Vec<Option<&[u8]>> = update.texts().collect();
    assert_eq!((texts[0], texts[2], update.len()), (None, None, 3));
    assert!(str::from_utf8(texts[1].unwrap()).unwrap().contains("\"int\":2"));
    assert_eq!((update.position(b"b"), update.position(b"d")), (Some(1), None));
}
