//! The names of keys. All keys of a resource share one hash tag, so that they live on one node of a cluster.

use leasehold_core::{OwnerToken, Resource};
use redis::Cmd;

/// What every key and channel of this format begins with.
const PREFIX: &str = "lock:v1:";
/// The birth mark of a node of a quorum: the one key that does not end.
pub(crate) const BIRTH: &str = "lock:v1:birth";
/// What the key of a lock's owner ends with.
pub(crate) const OWNER: &str = ":owner";
/// What the key of a node's register ends with.
pub(crate) const REGISTER: &str = ":register";
/// What the channel of a client begins with; its id follows.
pub(crate) const CHANNELS: &str = "lock:v1:wake:";

/// The keys of one resource: `lock:v1:{acme:report/42}:owner` and so on.
#[derive(Debug)]
pub(crate) struct Keys {
    text: String,
    base: usize,
}

impl Keys {
    pub(crate) fn of(resource: &Resource) -> Keys {
        Keys::of_key(resource.key())
    }

    /// Of the resource with this key.
    pub(crate) fn of_key(key: &str) -> Keys {
        let mut text = String::with_capacity(PREFIX.len() + key.len() + 2 + 48);
        text.push_str(PREFIX);
        text.push('{');
        text.push_str(key);
        text.push('}');
        let base = text.len();
        Keys { text, base }
    }

    fn named(&mut self, part: &str) -> &str {
        self.text.truncate(self.base);
        self.text.push_str(part);
        &self.text
    }

    /// Of the holder of 1 of 1.
    pub(crate) fn owner(&mut self) -> &str {
        self.named(OWNER)
    }

    /// Of a write that replicas are to acknowledge.
    pub(crate) fn mark(&mut self) -> &str {
        self.named(":ack")
    }

    /// Of the operators' orders.
    pub(crate) fn audit(&mut self) -> &str {
        self.named(":audit")
    }

    /// What the channel of a client begins with on a cluster: it must be in the slot of the resource.
    pub(crate) fn channels(&mut self) -> &str {
        self.named(":wake:")
    }

    /// Of the newest token.
    pub(crate) fn fence(&mut self) -> &str {
        self.named(":fence")
    }

    /// Of the holders of other shares.
    pub(crate) fn shares(&mut self) -> &str {
        self.named(":shares")
    }

    /// Of capacity and pause.
    pub(crate) fn state(&mut self) -> &str {
        self.named(":state")
    }

    /// Of the last number that a node of a quorum accepted.
    pub(crate) fn register(&mut self) -> &str {
        self.named(REGISTER)
    }

    /// Where a node of a quorum says that something changed.
    pub(crate) fn news(&mut self) -> &str {
        self.named(":news")
    }

    /// Of the tombstone of one attempt of an owner.
    pub(crate) fn attempt_grave(&mut self, owner: &str, attempt: &str) -> &str {
        self.grave(owner);
        self.text.push(':');
        self.text.push_str(attempt);
        &self.text
    }

    /// Of an owner's tombstone.
    pub(crate) fn grave(&mut self, owner: &str) -> &str {
        self.text.truncate(self.base);
        self.text.push_str(":grave:");
        self.text.push_str(owner);
        &self.text
    }

    /// The first nine keys that every script on one resource takes, in the order of `scripts/resource.lua`.
    pub(crate) fn push_all(&mut self, command: &mut Cmd, owner: &str) {
        for part in [":owner", ":fence", ":shares", ":claims", ":line", ":places", ":state", ":watch"] {
            command.arg(self.named(part));
        }
        command.arg(self.grave(owner));
    }

    /// All that a script on this resource may touch: to find the one that is not what it should be.
    pub(crate) fn all(&mut self, owner: OwnerToken) -> Vec<String> {
        let mut keys: Vec<String> =
            [":owner", ":fence", ":shares", ":claims", ":line", ":places", ":state", ":watch", ":audit"]
                .map(|part| self.named(part).to_owned())
                .into();
        keys.push(self.grave(&owner.reveal()).to_owned());
        keys
    }
}

/// A pattern for `SCAN`: every key of the resources whose own key begins so.
pub(crate) fn pattern(prefix: &str, part: &str) -> String {
    let mut pattern = format!("{PREFIX}{{");
    for c in prefix.chars() {
        if matches!(c, '*' | '?' | '[' | ']' | '^' | '\\') {
            pattern.push('\\');
        }
        pattern.push(c);
    }
    pattern.push('*');
    pattern.push_str(part);
    pattern
}

/// The resource that a key belongs to.
pub(crate) fn resource_of(key: &str) -> Option<&str> {
    let rest = key.strip_prefix(PREFIX)?.strip_prefix('{')?;
    rest.split_once('}').map(|(resource, _)| resource)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a cluster hashes: what stands in the first braces, if that is not empty.
    fn tag(key: &str) -> &str {
        let open = key.find('{').unwrap();
        let close = key[open..].find('}').unwrap() + open;
        &key[open + 1..close]
    }

    #[test]
    fn all_keys_of_a_resource_are_in_one_slot() {
        for id in ["42", "{}", "a}b", "}{", "{", "", "é|x"].into_iter().filter(|id| !id.is_empty()) {
            let resource = Resource::new("report", id).unwrap().in_namespace("acme").unwrap();
            let owner = OwnerToken::from_bytes([7; 16]);
            for key in Keys::of(&resource).all(owner) {
                assert_eq!(tag(&key), resource.key(), "{key}");
                assert_eq!(resource_of(&key), Some(resource.key()));
            }
        }
    }

    #[test]
    fn the_documented_names() {
        let resource: Resource = "acme:report/42".parse().unwrap();
        assert_eq!(Keys::of(&resource).owner(), "lock:v1:{acme:report/42}:owner");
        assert_eq!(Keys::of(&resource).grave("ab"), "lock:v1:{acme:report/42}:grave:ab");
    }

    #[test]
    fn a_prefix_is_no_pattern() {
        assert_eq!(pattern("a*b", ":audit"), "lock:v1:{a\\*b*:audit");
    }
}
