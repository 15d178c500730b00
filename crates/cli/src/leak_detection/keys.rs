//! Keys of leasehold that lost their ttl: which resource and which holder they belong to.

use leasehold::{HeldBy, Resource, Snapshot};

use crate::view;

/// The resource that a key of leasehold belongs to. On Redis it stands in braces; on etcd between `lock/` and the last part of the
/// key: `leasehold/v1/lock/report/42/3f`.
pub(super) fn resource_in(key: &str) -> Option<Resource> {
    if let Some((_, rest)) = key.split_once('{') {
        return Resource::from_key(rest.split_once('}')?.0).ok();
    }
    let (path, _) = key.rsplit_once('/')?;
    // A resource has one slash.
    let mut parts = path.rsplitn(3, '/');
    let (id, kind, root) = (parts.next()?, parts.next()?, parts.next()?);
    let is_contender = root == "lock" || root.ends_with("/lock");
    if is_contender { Resource::from_key(&format!("{kind}/{id}")).ok() } else { None }
}

/// The holder whose lease has lost its expiry with this key: the one without an end. Keys of Redis are shared by all holders, so
/// there it is else the newest. A key of etcd may be that of a waiter.
pub(super) fn holder_of_key<'a>(snapshot: &'a Snapshot, key: &str) -> Option<&'a HeldBy> {
    let endless = snapshot.holders.iter().find(|held| view::left(held).is_none());
    endless.or_else(|| view::newest(snapshot).filter(|_| key.contains('{')))
}
