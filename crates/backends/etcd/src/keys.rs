//! The names of all keys.
//!
//! ```text
//! leasehold/v1/lock/acme:report/42/<slot>         a contender: a claim that holds or waits
//! leasehold/v1/own/acme:report/42/<owner hash>    an owner key: a tombstone, or the name of the owner's contender
//! leasehold/v1/pause/acme:report/42               an operator's pause
//! leasehold/v1/audit/<hex>                        an entry of the audit trail
//! ```
//!
//! - `lock/` has the layout of etcd's `concurrency` package. For that package every key under
//!   `lock/<resource>/` is a contender, whatever its name, and the lowest creation revision holds the lock.
//! - Every key has an etcd lease, so every key ends by itself.
//! - A resource's key contains one `/`, between kind and id; any other is percent-encoded. So the contenders
//!   of one resource are never under the prefix of another resource.
//! - A contender is named by its owner's *slot*, one of [`SLOTS`] names that the owner's hash selects. Then a
//!   claim is one key, and its owner is found without a second key (ADR 0031). If another claim has the slot,
//!   the contender is named by its etcd lease, and an owner key points to it.
//! - Names are used again, because etcd keeps every deleted key in its index until the next compaction, and
//!   every acquire compares the whole range of contenders (ADR 0041).
//! - A claim that takes over another claim's place cannot rename that contender, because a new key would have a
//!   new creation revision and lose the place. It keeps the old name, and an owner key points to it.

use leasehold_core::{OwnerToken, Resource};
use sha2::{Digest as _, Sha256};

/// The prefix of all keys of one store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Root(String);

impl Root {
    pub(crate) const DEFAULT: &str = "leasehold/v1/";

    pub(crate) fn new(text: &str) -> Root {
        Root(text.to_owned())
    }

    /// The prefix of all keys.
    pub(crate) fn prefix(&self) -> &str {
        &self.0
    }

    /// The prefix of the contenders of all resources.
    pub(crate) fn locks(&self) -> String {
        format!("{}lock/", self.0)
    }

    /// The prefix of the pauses of all resources.
    pub(crate) fn pauses(&self) -> String {
        format!("{}pause/", self.0)
    }

    /// The prefix of the audit trail.
    pub(crate) fn audit(&self) -> String {
        format!("{}audit/", self.0)
    }

    /// A key under the root that is never written: the first read of a client asks for it, and the first
    /// watch of every stream watches it. The name is part of the layout, because the user needs permission to
    /// read it.
    pub(crate) fn probe_key(&self) -> String {
        format!("{}ear", self.0)
    }

    /// The keys of one resource.
    pub(crate) fn keys_of(&self, resource: &Resource) -> ResourceKeys {
        let (root, key) = (&self.0, resource.key());
        ResourceKeys {
            lock_prefix: format!("{root}lock/{key}/"),
            owner_prefix: format!("{root}own/{key}/"),
            pause: format!("{root}pause/{key}"),
        }
    }
}

/// The keys of one resource.
#[derive(Clone, Debug)]
pub(crate) struct ResourceKeys {
    /// The prefix of the contenders.
    pub(crate) lock_prefix: String,
    /// The prefix of the owner keys.
    owner_prefix: String,
    /// The key of an operator's pause.
    pub(crate) pause: String,
}

impl ResourceKeys {
    /// The key of a contender. The name is the owner's slot for most claims; etcd's own mutex uses its lease
    /// id.
    pub(crate) fn contender(&self, name: &str) -> String {
        format!("{}{name}", self.lock_prefix)
    }

    /// The owner key: a tombstone, or the name of a contender that is not in the owner's slot.
    pub(crate) fn owner(&self, owner_hash: &str) -> String {
        format!("{}{owner_hash}", self.owner_prefix)
    }
}

/// An owner token as it is stored. A hash, because the token is the right to renew and to release: a user
/// that may only read the keys must not get that right.
pub(crate) fn hash_owner(owner: OwnerToken) -> String {
    let digest = Sha256::digest(owner.to_bytes());
    digest[..16].iter().map(|byte| format!("{byte:02x}")).collect()
}

/// How many slots a resource has. More of them make it rarer that two claims in one queue have the same slot,
/// which costs a second key. Fewer of them leave fewer deleted keys in etcd's index, at about 0.1 µs for each
/// acquire and key.
const SLOTS: u8 = 64;

/// The name of the contender of this owner, if no other claim has that name: one of [`SLOTS`].
pub(crate) fn slot(owner_hash: &str) -> String {
    let first_byte = owner_hash.get(..2).and_then(|digits| u8::from_str_radix(digits, 16).ok());
    format!("{:02x}", first_byte.unwrap_or_default() % SLOTS)
}

/// The name of a contender whose slot is taken. The lease belongs to its claim alone.
pub(crate) fn name_from_lease(lease: i64) -> String {
    format!("{lease:016x}")
}

/// The exclusive end of the range of all keys with this prefix.
pub(crate) fn range_end(prefix: &str) -> Vec<u8> {
    let mut end = prefix.as_bytes().to_vec();
    while let Some(last) = end.pop() {
        if last < u8::MAX {
            end.push(last + 1);
            return end;
        }
    }
    // etcd reads a range end of one zero byte as "all keys from here on".
    vec![0]
}

/// Splits the key of a contender into the resource's key and the contender's name.
pub(crate) fn split_contender<'a>(locks: &str, key: &'a str) -> Option<(&'a str, &'a str)> {
    key.strip_prefix(locks)?.rsplit_once('/')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_layout_is_stable() {
        let resource: Resource = "acme:report/42 of 7".parse().unwrap();
        let keys = Root::new(Root::DEFAULT).keys_of(&resource);
        assert_eq!(keys.contender("694d7"), "leasehold/v1/lock/acme:report/42%20of%207/694d7");
        let owner = OwnerToken::from_bytes([7; 16]);
        assert_eq!(
            keys.owner(&hash_owner(owner)),
            "leasehold/v1/own/acme:report/42%20of%207/d761d406af2a4a5a15f67c924378ed88"
        );
        assert_eq!(keys.pause, "leasehold/v1/pause/acme:report/42%20of%207");
        assert!(!keys.owner(&hash_owner(owner)).contains(&owner.reveal()));
    }

    #[test]
    fn a_resource_has_few_slots() {
        let slots: std::collections::HashSet<String> =
            (0..=u8::MAX).map(|byte| slot(&hash_owner(OwnerToken::from_bytes([byte; 16])))).collect();
        assert!(slots.len() > 32 && slots.len() <= usize::from(SLOTS), "{}", slots.len());
        assert_eq!(slot("d761d406af2a4a5a15f67c924378ed88"), "17");
    }

    #[test]
    fn a_range_ends_after_all_keys_with_the_prefix() {
        assert_eq!(range_end("a/"), b"a0");
        assert_eq!(range_end("a\u{7f}"), b"a\x80");
    }
}
