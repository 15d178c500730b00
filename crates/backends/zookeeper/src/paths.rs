//! The paths of all znodes, below the chroot. They are a stored format: other versions and Curator use the
//! same paths.
//!
//! | path | node |
//! |---|---|
//! | `/leasehold/v1/locks/<kind>/<id>` | the folder of a resource |
//! | `…/<id>/_c_<owner>-lock-<sequence>` | a contender ([`contender_prefix`]) |
//! | `…/<id>/leasehold-control-lock-~` | the control node ([`control_node`]) |
//! | `/leasehold/v1/graves/<owner>-<hash>` | a tombstone ([`tombstone`]) |
//! | `/leasehold/v1/heirs/<owner>-<hash>` | a marker ([`marker`]) |
//! | `/leasehold/v1/heirs/request-<id>` | exists only within a transaction ([`request_id`]) |
//! | `/leasehold/v1/audit/order-<sequence>` | one entry of the audit trail |

use leasehold_core::{ClaimRef, OwnerToken, RequestId, Resource, Share};

/// The parent of all resource folders: one node for each kind, in it one folder for each resource.
pub(crate) const LOCKS: &str = "/leasehold/v1/locks";
/// The parent of all tombstones. They are not in the resource's folder because the servers delete an empty
/// folder, and a transaction that creates a contender must always find the parent of its tombstone.
pub(crate) const TOMBSTONES: &str = "/leasehold/v1/graves";
/// The parent of all markers. The path is called `heirs` for compatibility: early versions made a marker only
/// for a claim that had taken over a contender.
pub(crate) const MARKERS: &str = "/leasehold/v1/heirs";
/// The parent of the audit trail of operators.
pub(crate) const AUDIT: &str = "/leasehold/v1/audit";
/// The name of the control node in a resource's folder. Curator takes it for a contender; because of the `~`
/// it sorts behind every real one, so that no client of Curator ever waits for it (ADR 0025).
pub(crate) const CONTROL: &str = "leasehold-control-lock-~";

/// The part of a contender's name after which Curator reads the sequence number.
pub(crate) const CURATOR_LOCK: &str = "lock-";

/// The folder of a resource. Its children are the contenders and the control node.
pub(crate) fn folder(resource: &Resource) -> String {
    let key = resource.key();
    let (kind, id) = key.split_once('/').unwrap_or((key, ""));
    format!("{LOCKS}/{}/{}", escape(kind), escape(id))
}

/// Escapes `.` and `..`, which ZooKeeper refuses as names. The result collides with no other resource,
/// because no key contains `%2E`.
fn escape(part: &str) -> &str {
    match part {
        "." => "%2E",
        ".." => "%2E%2E",
        part => part,
    }
}

/// The key of the resource that has this folder. The inverse of [`folder`].
pub(crate) fn resource_key(kind: &str, id: &str) -> String {
    let unescape = |part: &str| match part {
        "%2E" => ".".to_owned(),
        "%2E%2E" => "..".to_owned(),
        part => part.to_owned(),
    };
    format!("{}/{}", unescape(kind), unescape(id))
}

/// The path of a contender.
pub(crate) fn contender(resource: &Resource, name: &str) -> String {
    format!("{}/{name}", folder(resource))
}

/// The path of the control node of a resource.
pub(crate) fn control_node(resource: &Resource) -> String {
    contender(resource, CONTROL)
}

/// The name of a contender without its sequence number. ZooKeeper appends ten digits.
///
/// For a mutex this is exactly the name that Curator's `InterProcessMutex` uses, with the owner token as the
/// UUID. A share adds its weight and capacity, because the name is all that a listing of the folder shows.
pub(crate) fn contender_prefix(owner: OwnerToken, share: Share) -> String {
    let hex = owner.reveal();
    let uuid = format!("{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]);
    match share {
        Share::WHOLE => format!("_c_{uuid}-{CURATOR_LOCK}"),
        share => format!("_c_{uuid}-{}of{}-{CURATOR_LOCK}", share.weight(), share.capacity()),
    }
}

/// A path that belongs to one claim: the owner token and a hash of the resource.
fn of_claim(parent: &str, claim: &ClaimRef) -> String {
    // FNV-1a. An owner token belongs to one claim and so to one resource. The hash keeps two claims apart if
    // a program uses one owner token for two resources all the same.
    let hash = claim.resource.key().bytes().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    format!("{parent}/{}-{hash:016x}", claim.owner.reveal())
}

/// The path of the tombstone of a claim: see `tombstone.rs`.
pub(crate) fn tombstone(claim: &ClaimRef) -> String {
    of_claim(TOMBSTONES, claim)
}

/// The path of the marker of a claim: see `marker.rs`.
pub(crate) fn marker(claim: &ClaimRef) -> String {
    of_claim(MARKERS, claim)
}

/// The path of a node that a transaction creates and deletes, to prove that a reply is its own: see
/// `transaction.rs`.
pub(crate) fn request_id(id: RequestId) -> String {
    format!("{MARKERS}/request-{id}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_zookeeper_refuses_are_escaped() {
        for (kind, id) in [(".", ".."), ("report", "42"), ("..", "a b"), ("a.b", "%")] {
            let resource = Resource::new(kind, id).unwrap();
            let path = folder(&resource);
            let mut parts = path.rsplit('/');
            let (id, kind) = (parts.next().unwrap(), parts.next().unwrap());
            assert!(![".", ".."].contains(&id) && ![".", ".."].contains(&kind), "{path}");
            assert_eq!(resource_key(kind, id), resource.key());
        }
    }

    #[test]
    fn the_stored_paths_do_not_change() {
        let resource: Resource = "report/42".parse().unwrap();
        let owner = "00112233445566778899aabbccddeeff".parse().unwrap();
        let claim = ClaimRef { resource: resource.clone(), owner };
        assert_eq!(folder(&resource), "/leasehold/v1/locks/report/42");
        assert_eq!(control_node(&resource), "/leasehold/v1/locks/report/42/leasehold-control-lock-~");
        assert_eq!(
            tombstone(&claim),
            "/leasehold/v1/graves/00112233445566778899aabbccddeeff-9c42b1272c5c91ce"
        );
        assert_eq!(marker(&claim), "/leasehold/v1/heirs/00112233445566778899aabbccddeeff-9c42b1272c5c91ce");
    }
}
