//! Where things stand in etcd.
//!
//! ```text
//! leasehold/v1/lock/acme:report/42/<hash>   a contender: the layout of etcd's `concurrency` package
//! leasehold/v1/own/acme:report/42/<hash>    that an owner was buried, or which contender it took over
//! leasehold/v1/pause/acme:report/42         an operator's pause
//! leasehold/v1/audit/<hex>                  the audit trail
//! ```
//!
//! Every key is under a lease, always. In a resource's key no `/` is left but the one between kind and id, so no
//! resource's contenders stand under the prefix of another's.
//!
//! A contender is named by its owner's mark: so an owner is found, and compared, without a second key. Only one that was
//! taken over keeps the name that it had, because its creation revision is its place; then the owner's key says which.

use leasehold_core::{OwnerToken, Resource};
use sha2::{Digest as _, Sha256};

/// What all keys of a store begin with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Root(String);

impl Root {
    pub(crate) const DEFAULT: &str = "leasehold/v1/";

    pub(crate) fn new(text: &str) -> Root {
        Root(text.to_owned())
    }

    pub(crate) fn all(&self) -> &str {
        &self.0
    }

    pub(crate) fn locks(&self) -> String {
        format!("{}lock/", self.0)
    }

    pub(crate) fn pauses(&self) -> String {
        format!("{}pause/", self.0)
    }

    pub(crate) fn audit(&self) -> String {
        format!("{}audit/", self.0)
    }

    pub(crate) fn of(&self, resource: &Resource) -> Keys {
        let (root, key) = (&self.0, resource.key());
        Keys {
            lock: format!("{root}lock/{key}/"),
            own: format!("{root}own/{key}/"),
            pause: format!("{root}pause/{key}"),
        }
    }
}

/// The keys of one resource.
#[derive(Clone, Debug)]
pub(crate) struct Keys {
    /// What its contenders begin with.
    pub(crate) lock: String,
    own: String,
    pub(crate) pause: String,
}

impl Keys {
    /// A contender. Named by its owner's mark, as a rule; etcd's own mutex names it after its etcd lease.
    pub(crate) fn contender(&self, name: &str) -> String {
        format!("{}{name}", self.lock)
    }

    /// Where else to look for an owner than at the contender that bears its mark.
    pub(crate) fn own(&self, mark: &str) -> String {
        format!("{}{mark}", self.own)
    }
}

/// An owner as the store knows it: a hash, so that whoever may read the store does not hold the capability.
pub(crate) fn mark(owner: OwnerToken) -> String {
    let digest = Sha256::digest(owner.to_bytes());
    digest[..16].iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The end of the range of keys that begin so.
pub(crate) fn range_end(prefix: &str) -> Vec<u8> {
    let mut end = prefix.as_bytes().to_vec();
    while let Some(last) = end.pop() {
        if last < u8::MAX {
            end.push(last + 1);
            return end;
        }
    }
    vec![0]
}

/// The resource and the name of a contender's key.
pub(crate) fn split_contender<'a>(locks: &str, key: &'a str) -> Option<(&'a str, &'a str)> {
    key.strip_prefix(locks)?.rsplit_once('/')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_layout_is_stable() {
        let resource: Resource = "acme:report/42 of 7".parse().unwrap();
        let keys = Root::new(Root::DEFAULT).of(&resource);
        assert_eq!(keys.contender("694d7"), "leasehold/v1/lock/acme:report/42%20of%207/694d7");
        let owner = OwnerToken::from_bytes([7; 16]);
        assert_eq!(
            keys.own(&mark(owner)),
            "leasehold/v1/own/acme:report/42%20of%207/d761d406af2a4a5a15f67c924378ed88"
        );
        assert_eq!(keys.pause, "leasehold/v1/pause/acme:report/42%20of%207");
        assert!(!keys.own(&mark(owner)).contains(&owner.reveal()));
    }

    #[test]
    fn a_range_ends_after_all_that_begin_so() {
        assert_eq!(range_end("a/"), b"a0");
        assert_eq!(range_end("a\u{7f}"), b"a\x80");
    }
}
