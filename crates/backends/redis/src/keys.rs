//! The names of keys and channels. All keys of a resource share one hash tag, so that they are in one slot of
//! a cluster.

use leasehold_core::{OwnerToken, Resource};
use redis::Cmd;

/// The prefix of every key and channel of this format.
const PREFIX: &str = "lock:v1:";
/// The birth mark of a node of a quorum: the one key that does not expire. ADR 0016.
pub(crate) const BIRTH: &str = "lock:v1:birth";
/// The suffix of the key of a lock's owner.
pub(crate) const OWNER: &str = ":owner";
/// The suffix of the key of a node's register.
pub(crate) const REGISTER: &str = ":register";
/// The prefix of the channel of a client; the id of the client follows.
pub(crate) const WAKEUP_CHANNEL_PREFIX: &str = "lock:v1:wake:";

/// The suffixes of the keys that every script on one resource takes, in the order of `scripts/resource.lua`.
/// The tombstone of the owner is the ninth key.
const RESOURCE_KEYS: [&str; 8] =
    [OWNER, ":fence", ":shares", ":claims", ":line", ":places", ":state", ":watch"];
const AUDIT: &str = ":audit";
/// The end of a pattern for `SCAN`: the keys owner, fence and state. A resource that is in use has one of them.
pub(crate) const IN_USE_PATTERN: &str = "}:[ofs][wet][na]*";

/// The Redis types of the keys that [`Keys::all`] returns.
pub(crate) const KEY_TYPES: [&str; 10] =
    ["string", "string", "zset", "hash", "zset", "zset", "string", "zset", "stream", "string"];

/// The keys of one resource: `lock:v1:{acme:report/42}:owner` and so on.
///
/// One buffer holds the common part, and each method writes its suffix behind it, so that a call allocates
/// once.
#[derive(Debug)]
pub(crate) struct Keys {
    buffer: String,
    prefix_length: usize,
}

impl Keys {
    pub(crate) fn of(resource: &Resource) -> Keys {
        Keys::of_key(resource.key())
    }

    /// The keys of the resource with this key.
    pub(crate) fn of_key(key: &str) -> Keys {
        // 48: room for the longest common suffix, `:grave:` and an owner token.
        let mut buffer = String::with_capacity(PREFIX.len() + key.len() + 2 + 48);
        buffer.push_str(PREFIX);
        buffer.push('{');
        buffer.push_str(key);
        buffer.push('}');
        let prefix_length = buffer.len();
        Keys { buffer, prefix_length }
    }

    fn with_suffix(&mut self, suffix: &str) -> &str {
        self.buffer.truncate(self.prefix_length);
        self.buffer.push_str(suffix);
        &self.buffer
    }

    /// The holder of a resource with capacity 1.
    pub(crate) fn owner(&mut self) -> &str {
        self.with_suffix(OWNER)
    }

    /// A small write that replicas acknowledge (`replicas.rs`).
    pub(crate) fn replication_probe(&mut self) -> &str {
        self.with_suffix(":ack")
    }

    /// The stream of operators' commands.
    pub(crate) fn audit(&mut self) -> &str {
        self.with_suffix(AUDIT)
    }

    /// The prefix of the channel of a client on a cluster. It is in the slot of the resource, because a
    /// script may publish only in the slot of its keys.
    pub(crate) fn wakeup_channel_prefix(&mut self) -> &str {
        self.with_suffix(":wake:")
    }

    /// The newest token.
    pub(crate) fn fence(&mut self) -> &str {
        self.with_suffix(":fence")
    }

    /// The holders of shares other than 1 of 1.
    pub(crate) fn shares(&mut self) -> &str {
        self.with_suffix(":shares")
    }

    /// Capacity, pause and more.
    pub(crate) fn state(&mut self) -> &str {
        self.with_suffix(":state")
    }

    /// The last number that a node of a quorum accepted.
    pub(crate) fn register(&mut self) -> &str {
        self.with_suffix(REGISTER)
    }

    /// The channel where a node of a quorum says that something changed.
    pub(crate) fn change_channel(&mut self) -> &str {
        self.with_suffix(":news")
    }

    /// The tombstone of one attempt of an owner. ADR 0017: votes belong to an attempt.
    pub(crate) fn attempt_tombstone(&mut self, owner: &str, attempt: &str) -> &str {
        self.tombstone(owner);
        self.buffer.push(':');
        self.buffer.push_str(attempt);
        &self.buffer
    }

    /// The tombstone of an owner.
    pub(crate) fn tombstone(&mut self, owner: &str) -> &str {
        self.buffer.truncate(self.prefix_length);
        self.buffer.push_str(":grave:");
        self.buffer.push_str(owner);
        &self.buffer
    }

    /// Adds the four keys of one claim in `scripts/acquire_plain.lua`.
    pub(crate) fn push_plain(&mut self, command: &mut Cmd, owner: &str) {
        for suffix in [OWNER, ":fence", ":state"] {
            command.arg(self.with_suffix(suffix));
        }
        command.arg(self.tombstone(owner));
    }

    /// Adds the three keys of one resource in `scripts/inspect_plain.lua`.
    pub(crate) fn push_listed(&mut self, command: &mut Cmd) {
        for suffix in [OWNER, ":fence", ":state"] {
            command.arg(self.with_suffix(suffix));
        }
    }

    /// Adds the nine keys that every script on one resource takes.
    pub(crate) fn push_all(&mut self, command: &mut Cmd, owner: &str) {
        for suffix in RESOURCE_KEYS {
            command.arg(self.with_suffix(suffix));
        }
        command.arg(self.tombstone(owner));
    }

    /// All keys that a script on this resource may touch, to find the one with a wrong type ([`KEY_TYPES`]).
    pub(crate) fn all(&mut self, owner: OwnerToken) -> Vec<String> {
        let suffixes = RESOURCE_KEYS.into_iter().chain([AUDIT]);
        let mut keys: Vec<String> = suffixes.map(|suffix| self.with_suffix(suffix).to_owned()).collect();
        keys.push(self.tombstone(&owner.reveal()).to_owned());
        keys
    }
}

/// A pattern for `SCAN`: the keys with this suffix of all resources whose own key begins with `prefix`.
pub(crate) fn pattern(prefix: &str, suffix: &str) -> String {
    let mut pattern = format!("{PREFIX}{{");
    for c in prefix.chars() {
        if matches!(c, '*' | '?' | '[' | ']' | '^' | '\\') {
            pattern.push('\\');
        }
        pattern.push(c);
    }
    pattern.push('*');
    pattern.push_str(suffix);
    pattern
}

/// The key of the resource that a Redis key or channel belongs to.
pub(crate) fn resource_of(key: &str) -> Option<&str> {
    let rest = key.strip_prefix(PREFIX)?.strip_prefix('{')?;
    rest.split_once('}').map(|(resource, _)| resource)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The hash tag of a key: the text in the first braces.
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
    fn keys_have_the_documented_names() {
        let resource: Resource = "acme:report/42".parse().unwrap();
        assert_eq!(Keys::of(&resource).owner(), "lock:v1:{acme:report/42}:owner");
        assert_eq!(Keys::of(&resource).tombstone("ab"), "lock:v1:{acme:report/42}:grave:ab");
    }

    #[test]
    fn special_characters_of_a_prefix_are_escaped() {
        assert_eq!(pattern("a*b", ":audit"), "lock:v1:{a\\*b*:audit");
    }
}
