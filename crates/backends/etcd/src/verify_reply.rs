//! Checks that a reply belongs to its request (ADR 0033).
//!
//! HTTP/2 matches replies to requests within one connection. A proxy that ends these connections, such as
//! `etcd grpc-proxy` or a load balancer, could still deliver a reply to the wrong request, or an old reply a
//! second time. So a reply counts only if it names its request:
//!
//! - **Every reply**: its header names the same cluster as the first reply of this client.
//! - **A read**: each key is one that was asked for. The revision is not below any that this client saw
//!   before it sent the request, because all our reads are linearizable.
//! - **A transaction**: it has the operations of the branch that was taken, and each read in it is checked as
//!   above. A branch that writes also reads a key that it writes: the contender, which names the resource and
//!   the owner, or the audit entry, which is named after a lease that was granted for this command alone.
//!   That key must be there, last written at the revision of this reply and with the lease of the request. A
//!   key that is deleted must have been there before. The revision is above all that this client saw before.
//! - **A transaction whose preconditions failed** may name nothing. No grant, renewal or release follows from
//!   it: the verb reads again. A lease that the transaction was to use is revoked only if no key is attached
//!   to it.
//! - **Grant, keep-alive and time to live of a lease**: the id of the lease, which this client chose at
//!   random. Each keep-alive has a stream of its own with one request and one reply, so no earlier reply can
//!   be left on it.
//! - **A revocation** names nothing, and nothing depends on it.
//! - **A watch event** is a hint: the waiter that it wakes asks again.

use etcd_client::{GetResponse, KeyValue, ResponseHeader, TxnOpResponse};

use crate::error::StoreError;

/// The header of a reply; or, for a client, the highest values of all headers so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct HeaderInfo {
    /// The id of the cluster; zero if it is not known.
    pub(crate) cluster: u64,
    pub(crate) revision: i64,
    /// The term of the leader.
    pub(crate) term: u64,
}

/// Whether a transaction wrote something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wrote {
    Nothing,
    Something,
}

impl HeaderInfo {
    pub(crate) fn of(header: Option<&ResponseHeader>) -> HeaderInfo {
        header.map_or_else(HeaderInfo::default, |header| HeaderInfo {
            cluster: header.cluster_id(),
            revision: header.revision(),
            term: header.raft_term(),
        })
    }

    /// Accepts a reply of the same cluster; `self` is what this client knew before the request. Returns the
    /// reply's header.
    pub(crate) fn check_cluster(self, reply: HeaderInfo) -> Result<HeaderInfo, StoreError> {
        if reply.cluster == 0 {
            return Err(StoreError::misdelivered());
        }
        if self.cluster != 0 && self.cluster != reply.cluster {
            return Err(StoreError::OtherCluster { known: self.cluster, replied: reply.cluster });
        }
        Ok(reply)
    }

    /// Accepts a reply that is not older than what this client knew, and newer if it is the reply to a write.
    fn check_revision(self, reply: HeaderInfo, wrote: Wrote) -> Result<HeaderInfo, StoreError> {
        self.check_cluster(reply)?;
        let lowest = match wrote {
            Wrote::Nothing => self.revision,
            Wrote::Something => self.revision + 1,
        };
        if reply.revision < lowest {
            return Err(StoreError::StaleReply { known: self.revision, replied: reply.revision });
        }
        Ok(reply)
    }

    /// Accepts the reply to a read of these keys.
    pub(crate) fn check_read(self, range: &KeyRange, reply: &GetResponse) -> Result<HeaderInfo, StoreError> {
        let header = self.check_revision(HeaderInfo::of(reply.header()), Wrote::Nothing)?;
        if range.contains_all(&returned_keys(reply.kvs())) {
            Ok(header)
        } else {
            Err(StoreError::misdelivered())
        }
    }

    /// Accepts a reply about this lease. Its revision may be old: a member replies from what it knows itself.
    pub(crate) fn check_lease(
        self,
        lease: i64,
        replied_lease: i64,
        reply: HeaderInfo,
    ) -> Result<HeaderInfo, StoreError> {
        if lease == replied_lease { self.check_cluster(reply) } else { Err(StoreError::misdelivered()) }
    }
}

/// The keys that a read asks for: one key, or a range up to `end`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KeyRange {
    pub(crate) key: Vec<u8>,
    pub(crate) end: Option<Vec<u8>>,
}

impl KeyRange {
    /// One key.
    pub(crate) fn one(key: impl Into<Vec<u8>>) -> KeyRange {
        KeyRange { key: key.into(), end: None }
    }

    fn contains_all(&self, keys: &[ReturnedKey]) -> bool {
        match &self.end {
            None => keys.len() <= 1 && keys.iter().all(|key| key.name == self.key),
            Some(end) => keys.iter().all(|key| (&self.key..end).contains(&&key.name)),
        }
    }
}

/// A key in a reply.
#[derive(Clone, Debug, PartialEq, Eq)]
struct ReturnedKey {
    name: Vec<u8>,
    modified: i64,
    lease: i64,
}

fn returned_keys(kvs: &[KeyValue]) -> Vec<ReturnedKey> {
    let key = |kv: &KeyValue| ReturnedKey {
        name: kv.key().to_vec(),
        modified: kv.mod_revision(),
        lease: kv.lease(),
    };
    kvs.iter().map(key).collect()
}

/// The reply to one operation of a transaction, reduced to what is compared.
#[derive(Clone, Debug, PartialEq, Eq)]
enum OperationReply {
    Put,
    Delete,
    Read(Vec<ReturnedKey>),
    Nested(bool, Vec<OperationReply>),
}

impl OperationReply {
    fn of(reply: &TxnOpResponse) -> OperationReply {
        match reply {
            TxnOpResponse::Put(_) => OperationReply::Put,
            TxnOpResponse::Delete(_) => OperationReply::Delete,
            TxnOpResponse::Get(get) => OperationReply::Read(returned_keys(get.kvs())),
            TxnOpResponse::Txn(inner) => {
                let replies = inner.op_responses();
                OperationReply::Nested(inner.succeeded(), replies.iter().map(OperationReply::of).collect())
            }
        }
    }
}

/// What the reply to one operation of a transaction must be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ExpectedReply {
    Put,
    Delete,
    Read(KeyRange),
    /// A read of a key that the transaction has written, and that has this lease.
    ReadWritten {
        key: Vec<u8>,
        lease: i64,
    },
    /// A read of a key that the transaction is about to delete, last written at this revision if one is given.
    ReadBeforeDelete {
        key: Vec<u8>,
        modified: Option<i64>,
    },
    Nested(ExpectedBranches),
}

impl ExpectedReply {
    fn is_met_by(&self, reply: &OperationReply, revision: i64) -> bool {
        match (self, reply) {
            (ExpectedReply::Put, OperationReply::Put) | (ExpectedReply::Delete, OperationReply::Delete) => {
                true
            }
            (ExpectedReply::Read(range), OperationReply::Read(keys)) => range.contains_all(keys),
            (ExpectedReply::ReadWritten { key, lease }, OperationReply::Read(keys)) => {
                let [returned] = keys.as_slice() else { return false };
                returned.name == *key && returned.modified == revision && returned.lease == *lease
            }
            (ExpectedReply::ReadBeforeDelete { key, modified }, OperationReply::Read(keys)) => {
                let [returned] = keys.as_slice() else { return false };
                returned.name == *key && modified.is_none_or(|modified| modified == returned.modified)
            }
            (ExpectedReply::Nested(branches), OperationReply::Nested(succeeded, replies)) => {
                branches.are_met_by(*succeeded, replies, revision)
            }
            _ => false,
        }
    }
}

/// What the replies to both branches of a transaction must be.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ExpectedBranches {
    pub(crate) on_success: Vec<ExpectedReply>,
    pub(crate) on_failure: Vec<ExpectedReply>,
}

impl ExpectedBranches {
    fn taken(&self, succeeded: bool) -> &[ExpectedReply] {
        if succeeded { &self.on_success } else { &self.on_failure }
    }

    fn are_met_by(&self, succeeded: bool, replies: &[OperationReply], revision: i64) -> bool {
        let taken = self.taken(succeeded);
        taken.len() == replies.len()
            && taken.iter().zip(replies).all(|(expected, reply)| expected.is_met_by(reply, revision))
    }

    /// Accepts the reply to a transaction with these branches; `known` is what this client knew before the
    /// request.
    pub(crate) fn check(
        &self,
        known: HeaderInfo,
        header: HeaderInfo,
        succeeded: bool,
        replies: &[TxnOpResponse],
    ) -> Result<HeaderInfo, StoreError> {
        let replies: Vec<OperationReply> = replies.iter().map(OperationReply::of).collect();
        self.check_operations(known, header, succeeded, &replies)
    }

    fn check_operations(
        &self,
        known: HeaderInfo,
        header: HeaderInfo,
        succeeded: bool,
        replies: &[OperationReply],
    ) -> Result<HeaderInfo, StoreError> {
        if !self.are_met_by(succeeded, replies, header.revision) {
            return Err(StoreError::misdelivered());
        }
        let wrote = if self.has_written(succeeded, replies) { Wrote::Something } else { Wrote::Nothing };
        known.check_revision(header, wrote)
    }

    fn has_written(&self, succeeded: bool, replies: &[OperationReply]) -> bool {
        self.taken(succeeded).iter().zip(replies).any(|(expected, reply)| match (expected, reply) {
            (ExpectedReply::Put | ExpectedReply::Delete, _) => true,
            (ExpectedReply::Nested(inner), OperationReply::Nested(succeeded, replies)) => {
                inner.has_written(*succeeded, replies)
            }
            _ => false,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OURS: &str = "leasehold/v1/lock/report/42/ours";
    const THEIRS: &str = "leasehold/v1/lock/report/42/theirs";
    const KNOWN: HeaderInfo = HeaderInfo { cluster: 7, revision: 100, term: 2 };

    fn at(revision: i64) -> HeaderInfo {
        HeaderInfo { revision, ..KNOWN }
    }

    fn key(name: &str, modified: i64, lease: i64) -> ReturnedKey {
        ReturnedKey { name: name.into(), modified, lease }
    }

    fn is_misdelivered(outcome: &Result<HeaderInfo, StoreError>) -> bool {
        matches!(outcome, Err(StoreError::Misdelivered(_)))
    }

    /// The transaction of a grant: the contender is put, and read back.
    fn grant() -> ExpectedBranches {
        let written = ExpectedReply::ReadWritten { key: OURS.into(), lease: 31 };
        ExpectedBranches { on_success: vec![ExpectedReply::Put, written], on_failure: Vec::new() }
    }

    fn put_and_read(key: ReturnedKey) -> Vec<OperationReply> {
        vec![OperationReply::Put, OperationReply::Read(vec![key])]
    }

    #[test]
    fn a_grant_is_accepted_if_the_reply_has_the_key_as_this_transaction_wrote_it() {
        let check = |replies: &[OperationReply]| grant().check_operations(KNOWN, at(101), true, replies);
        assert_eq!(check(&put_and_read(key(OURS, 101, 31))).unwrap(), at(101));
        let two_keys = OperationReply::Read(vec![key(OURS, 101, 31), key(THEIRS, 101, 31)]);
        let right_read = OperationReply::Read(vec![key(OURS, 101, 31)]);
        let wrong = [
            ("another owner", put_and_read(key(THEIRS, 101, 31))),
            ("another resource", put_and_read(key("leasehold/v1/lock/report/43/ours", 101, 31))),
            ("an earlier write", put_and_read(key(OURS, 100, 31))),
            ("another lease", put_and_read(key(OURS, 101, 32))),
            ("nothing was written", vec![OperationReply::Put, OperationReply::Read(Vec::new())]),
            ("two keys", vec![OperationReply::Put, two_keys]),
            ("no read", vec![OperationReply::Put]),
            ("no operations", Vec::new()),
            ("a read first", vec![OperationReply::Read(Vec::new()), right_read.clone()]),
            ("a deletion", vec![OperationReply::Delete, right_read]),
            ("a nested one", vec![OperationReply::Nested(true, put_and_read(key(OURS, 101, 31)))]),
        ];
        for (what, replies) in wrong {
            assert!(is_misdelivered(&check(&replies)), "{what}");
        }
    }

    #[test]
    fn a_release_is_accepted_if_the_reply_has_the_deleted_key() {
        let branches = ExpectedBranches {
            on_success: vec![
                ExpectedReply::ReadBeforeDelete { key: OURS.into(), modified: Some(90) },
                ExpectedReply::Delete,
            ],
            on_failure: Vec::new(),
        };
        let check = |read: Vec<ReturnedKey>, revision| {
            let replies = [OperationReply::Read(read), OperationReply::Delete];
            branches.check_operations(KNOWN, at(revision), true, &replies)
        };
        assert!(check(vec![key(OURS, 90, 31)], 101).is_ok());
        assert!(is_misdelivered(&check(vec![key(THEIRS, 90, 31)], 101)));
        // Another claim that had the same slot.
        assert!(is_misdelivered(&check(vec![key(OURS, 89, 32)], 101)));
        assert!(is_misdelivered(&check(Vec::new(), 101)));
        // The reply to an earlier release of the same key.
        assert!(matches!(check(vec![key(OURS, 90, 31)], 100), Err(StoreError::StaleReply { .. })));
    }

    #[test]
    fn a_write_is_newer_than_all_that_was_seen_and_a_read_is_not_older() {
        let write = |revision| {
            let replies = put_and_read(key(OURS, revision, 31));
            grant().check_operations(KNOWN, at(revision), true, &replies)
        };
        assert!(write(101).is_ok() && matches!(write(100), Err(StoreError::StaleReply { .. })));
        let one = ExpectedBranches { on_success: vec![ExpectedReply::Read(KeyRange::one(OURS))], ..grant() };
        let read =
            |revision| one.check_operations(KNOWN, at(revision), true, &[OperationReply::Read(Vec::new())]);
        assert!(read(100).is_ok() && matches!(read(99), Err(StoreError::StaleReply { .. })));
        // A write of a nested transaction counts as well.
        let outer = ExpectedBranches {
            on_success: vec![ExpectedReply::Nested(grant())],
            ..ExpectedBranches::default()
        };
        let nested = |revision| {
            let inner = put_and_read(key(OURS, revision, 31));
            outer.check_operations(KNOWN, at(revision), true, &[OperationReply::Nested(true, inner)])
        };
        assert!(nested(101).is_ok() && matches!(nested(100), Err(StoreError::StaleReply { .. })));
    }

    #[test]
    fn the_reply_to_many_claims_is_accepted_only_if_every_part_names_its_own_claim() {
        let claim = |name: &str, lease| {
            let written = ExpectedReply::ReadWritten { key: name.into(), lease };
            let on_success = vec![ExpectedReply::Put, written];
            ExpectedReply::Nested(ExpectedBranches { on_success, on_failure: Vec::new() })
        };
        let many =
            ExpectedBranches { on_success: vec![claim(OURS, 31), claim(THEIRS, 32)], ..Default::default() };
        let check = |parts: &[OperationReply]| many.check_operations(KNOWN, at(101), true, parts);
        let granted = |name: &str, lease| OperationReply::Nested(true, put_and_read(key(name, 101, lease)));
        let refused = || OperationReply::Nested(false, Vec::new());
        assert!(check(&[granted(OURS, 31), granted(THEIRS, 32)]).is_ok());
        assert!(check(&[refused(), granted(THEIRS, 32)]).is_ok(), "one claim is refused alone");
        let wrong = [
            ("the other order", vec![granted(THEIRS, 32), granted(OURS, 31)]),
            ("one claim has the reply to the other", vec![granted(OURS, 31), granted(OURS, 31)]),
            ("another claim in the same slot", vec![granted(OURS, 31), granted(THEIRS, 33)]),
            ("one part is missing", vec![granted(OURS, 31)]),
            ("one part too many", vec![granted(OURS, 31), granted(THEIRS, 32), refused()]),
            ("a part is not nested", vec![granted(OURS, 31), OperationReply::Put]),
        ];
        for (what, parts) in wrong {
            assert!(is_misdelivered(&check(&parts)), "{what}");
        }
    }

    #[test]
    fn a_read_has_the_keys_that_were_asked_for_and_no_others() {
        let one = KeyRange::one(OURS);
        let (prefix, end) = ("leasehold/v1/lock/report/42/", "leasehold/v1/lock/report/420");
        let contenders = KeyRange { key: prefix.into(), end: Some(end.into()) };
        let table = [
            (&one, vec![], true),
            (&one, vec![OURS], true),
            (&one, vec![THEIRS], false),
            (&one, vec![OURS, OURS], false),
            (&contenders, vec![], true),
            (&contenders, vec![OURS, THEIRS], true),
            (&contenders, vec![OURS, "leasehold/v1/lock/report/43/ours"], false),
            (&contenders, vec!["leasehold/v1/pause/report/42"], false),
            (&contenders, vec![end], false),
        ];
        for (range, names, accepted) in table {
            let keys: Vec<ReturnedKey> = names.iter().map(|name| key(name, 1, 1)).collect();
            assert_eq!(range.contains_all(&keys), accepted, "{range:?} {names:?}");
        }
    }

    #[test]
    fn the_branch_that_was_taken_is_compared() {
        let read = ExpectedReply::Read(KeyRange::one(OURS));
        let both = ExpectedBranches { on_failure: vec![read], ..grant() };
        let read = [OperationReply::Read(vec![key(OURS, 90, 31)])];
        let written = put_and_read(key(OURS, 101, 31));
        assert!(both.check_operations(KNOWN, at(101), false, &read).is_ok());
        assert!(both.check_operations(KNOWN, at(101), true, &written).is_ok());
        assert!(is_misdelivered(&both.check_operations(KNOWN, at(101), true, &read)));
        assert!(is_misdelivered(&both.check_operations(KNOWN, at(101), false, &written)));
    }

    #[test]
    fn a_lease_is_named_by_its_id_and_every_reply_by_its_cluster() {
        assert!(KNOWN.check_lease(31, 31, at(5)).is_ok(), "what a member knows of a lease may be old");
        assert!(is_misdelivered(&KNOWN.check_lease(31, 32, at(101))));
        let other = HeaderInfo { cluster: 8, ..at(200) };
        let error = KNOWN.check_lease(31, 31, other);
        assert!(matches!(error, Err(StoreError::OtherCluster { known: 7, replied: 8 })));
        assert!(matches!(KNOWN.check_cluster(other), Err(StoreError::OtherCluster { .. })));
        assert!(is_misdelivered(&KNOWN.check_cluster(HeaderInfo::of(None))), "a reply without a header");
        assert_eq!(HeaderInfo::default().check_cluster(other).unwrap(), other, "the first one names it");
        let replies = put_and_read(key(OURS, 200, 31));
        let error = grant().check_operations(KNOWN, other, true, &replies);
        assert!(matches!(error, Err(StoreError::OtherCluster { .. })));
    }
}
