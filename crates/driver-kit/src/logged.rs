//! Log lines about a state that lasts: each is logged once, until it changes.

use std::collections::BTreeMap;

/// What was logged of each object.
#[derive(Debug, Clone)]
pub struct Logged<K> {
    messages: BTreeMap<K, String>,
}

impl<K> Default for Logged<K> {
    fn default() -> Self {
        Self { messages: BTreeMap::new() }
    }
}

impl<K: Ord> Logged<K> {
    /// Returns whether a message about an object differs from the last one, and remembers it.
    pub fn is_new(&mut self, key: K, message: &str) -> bool {
        if self.messages.get(&key).is_some_and(|known| known == message) {
            return false;
        }
        self.messages.insert(key, message.to_owned());
        true
    }

    /// Forgets an object about which there is nothing to say any more.
    pub fn forget(&mut self, key: &K) {
        self.messages.remove(key);
    }

    /// Forgets the objects that are not kept.
    pub fn retain(&mut self, keep: impl Fn(&K) -> bool) {
        self.messages.retain(|key, _| keep(key));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_new_until_it_is_logged_and_after_it_was_forgotten() {
        let mut logged = Logged::default();
        assert!(logged.is_new("a", "busy"));
        assert!(!logged.is_new("a", "busy"));
        assert!(logged.is_new("b", "busy"));
        assert!(logged.is_new("a", "gone"));
        logged.forget(&"a");
        assert!(logged.is_new("a", "gone"));
        logged.retain(|key| *key == "a");
        assert!(logged.is_new("b", "busy") && !logged.is_new("a", "gone"));
    }
}
