//! How nodes are called. Contenders as Curator calls them, so that all stand in one line.

use leasehold_core::{ClaimRef, OwnerToken, RequestId, Resource, Share};

/// Where the lines are: a folder for each kind, in it one for each resource, in that the contenders.
pub(crate) const LOCKS: &str = "/leasehold/v1/locks";
/// Tombstones, all in one folder: it is there whenever a claim is made.
pub(crate) const GRAVES: &str = "/leasehold/v1/graves";
/// Markers of claims that have a contender, by owner. The folder has its name from when only heirs had one.
pub(crate) const HEIRS: &str = "/leasehold/v1/heirs";
/// What operators did.
pub(crate) const AUDIT: &str = "/leasehold/v1/audit";
/// What operators say to a resource. A child of its line that Curator sorts behind everyone.
pub(crate) const CONTROL: &str = "leasehold-control-lock-~";

/// Curator's name for a contender of a mutex: what stands behind the last one of these decides the order.
const CURATOR: &str = "lock-";

/// The folder of a resource's line.
pub(crate) fn folder(resource: &Resource) -> String {
    let key = resource.key();
    let (kind, id) = key.split_once('/').unwrap_or((key, ""));
    format!("{LOCKS}/{}/{}", escape(kind), escape(id))
}

/// The two names that ZooKeeper refuses. No key has a percent sign before `2E`, so this is nobody else's.
fn escape(part: &str) -> &str {
    match part {
        "." => "%2E",
        ".." => "%2E%2E",
        part => part,
    }
}

/// The key of the resource whose folder this is.
pub(crate) fn key(kind: &str, id: &str) -> String {
    let plain = |part: &str| match part {
        "%2E" => ".".to_owned(),
        "%2E%2E" => "..".to_owned(),
        part => part.to_owned(),
    };
    format!("{}/{}", plain(kind), plain(id))
}

/// What a contender's name begins with; ZooKeeper appends ten digits.
pub(crate) fn contender(owner: OwnerToken, share: Share) -> String {
    let hex = owner.reveal();
    let id = format!("{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]);
    match share {
        Share::WHOLE => format!("_c_{id}-{CURATOR}"),
        share => format!("_c_{id}-{}of{}-{CURATOR}", share.weight(), share.capacity()),
    }
}

fn private(folder: &str, claim: &ClaimRef) -> String {
    // The owner alone would do, one claim being of one resource. The hash keeps apart who uses it twice.
    let hash = claim.resource.key().bytes().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    format!("{folder}/{}-{hash:016x}", claim.owner.reveal())
}

/// The tombstone of a claim.
pub(crate) fn grave(claim: &ClaimRef) -> String {
    private(GRAVES, claim)
}

/// The sign that a claim has a contender: see `marker.rs`.
pub(crate) fn marker(claim: &ClaimRef) -> String {
    private(HEIRS, claim)
}

/// A node that exists only within a transaction, whose answer it names: see `transaction.rs`.
pub(crate) fn request(id: RequestId) -> String {
    format!("{HEIRS}/request-{id}")
}

/// A child of a line's folder, read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Contender {
    pub(crate) name: String,
    /// Where the part begins by which Curator sorts.
    key_at: usize,
    /// Of ours; a stranger's name tells none.
    pub(crate) owner: Option<OwnerToken>,
    pub(crate) share: Share,
}

impl Contender {
    pub(crate) fn read(name: String) -> Contender {
        let key_at = name.rfind(CURATOR).map_or(0, |at| at + CURATOR.len());
        let (owner, share) = parse(&name).unwrap_or((None, Share::WHOLE));
        Contender { name, key_at, owner, share }
    }

    /// By this the line is sorted, as text: as Curator does.
    pub(crate) fn key(&self) -> &str {
        &self.name[self.key_at..]
    }

    /// The sequence number has gone past 2^31: the newest would sort first.
    pub(crate) fn has_wrapped(&self) -> bool {
        self.key_at > 0 && self.key().starts_with('-')
    }
}

/// Owner and share of `_c_<uuid>-lock-…` and `_c_<uuid>-<weight>of<capacity>-lock-…`.
fn parse(name: &str) -> Option<(Option<OwnerToken>, Share)> {
    let rest = name.strip_prefix("_c_")?;
    let (id, rest) = rest.split_at_checked(36)?;
    let owner = id.replace('-', "").parse().ok();
    let middle = &rest[..rest.rfind(CURATOR)?];
    let share = match middle.trim_matches('-').split_once("of") {
        Some((weight, capacity)) => Share::new(weight.parse().ok()?, capacity.parse().ok()?).ok()?,
        None => Share::WHOLE,
    };
    Some((owner, share))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owner() -> OwnerToken {
        "00112233445566778899aabbccddeeff".parse().unwrap()
    }

    #[test]
    fn a_contender_is_named_as_curator_names_it() {
        assert_eq!(contender(owner(), Share::WHOLE), "_c_00112233-4455-6677-8899-aabbccddeeff-lock-");
        for share in [Share::WHOLE, Share::READ, Share::WRITE, Share::new(2, 5).unwrap()] {
            let read = Contender::read(format!("{}0000000042", contender(owner(), share)));
            assert_eq!((read.owner, read.share, read.key()), (Some(owner()), share, "0000000042"));
            assert!(!read.has_wrapped());
        }
    }

    #[test]
    fn strangers_take_part_as_curator_sees_them() {
        let kazoo = Contender::read("f00__lock__0000000001".to_owned());
        assert_eq!((kazoo.owner, kazoo.key()), (None, "f00__lock__0000000001"));
        let bare = Contender::read("lock-0000000003".to_owned());
        assert_eq!((bare.owner, bare.key(), bare.share), (None, "0000000003", Share::WHOLE));
        assert!(Contender::read("_c_x-lock--2147483648".to_owned()).has_wrapped());
        assert!(Contender::read(CONTROL.to_owned()).key() > "9999999999");
    }

    #[test]
    fn names_that_zookeeper_refuses_are_escaped() {
        for (kind, id) in [(".", ".."), ("report", "42"), ("..", "a b"), ("a.b", "%")] {
            let resource = Resource::new(kind, id).unwrap();
            let path = folder(&resource);
            let mut parts = path.rsplit('/');
            let (id, kind) = (parts.next().unwrap(), parts.next().unwrap());
            assert!(![".", ".."].contains(&id) && ![".", ".."].contains(&kind), "{path}");
            assert_eq!(key(kind, id), resource.key());
        }
    }
}
