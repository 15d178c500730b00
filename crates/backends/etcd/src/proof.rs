//! What proves that an answer belongs to its request.
//!
//! HTTP/2 matches answers to requests within one connection. A proxy that ends these connections, such as
//! `etcd grpc-proxy` or a load balancer, could still give an answer to the wrong request, or an old answer a second time.
//! So no answer is believed that does not name its question:
//!
//! - **Every answer**: its header names the cluster that the first answer named.
//! - **A read**: each key is one that was asked for, and the revision is not below any that was seen before the request
//!   was sent: all our reads are linearizable.
//! - **A transaction**: it has the operations of the branch that was taken, each read in it as above. A branch that writes
//!   also reads a key that it writes: the contender, which names the resource and the owner, or the record of an operator's
//!   order, which is named after a lease of this order alone. That key must be there, last written at the revision of this
//!   answer and under the lease that was asked for; a key that is to be deleted must have been there before. The revision
//!   is above all that were seen before.
//! - **A transaction that was not carried out** may name nothing, and no grant, renewal or release follows from it: the
//!   verb looks again. A lease that it was to use is revoked only if no key stands under it.
//! - **A lease's grant, keep-alive and time to live**: the lease's id, which this client drew at random. Each keep-alive has
//!   a stream of its own with one request and one answer, so no earlier answer can be left on it.
//! - **A revocation** names nothing, and nothing depends on it.
//! - **A watch** is a hint: what it wakes asks again.

use etcd_client::{GetResponse, KeyValue, ResponseHeader, TxnOpResponse};

use crate::error::Fault;

/// What the header of an answer says; or, of a client, the most that any answer has said.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Seen {
    /// The cluster's id; zero if none is known.
    pub(crate) cluster: u64,
    pub(crate) revision: i64,
    /// The term of the leader.
    pub(crate) term: u64,
}

impl Seen {
    pub(crate) fn of(header: Option<&ResponseHeader>) -> Seen {
        header.map_or_else(Seen::default, |header| Seen {
            cluster: header.cluster_id(),
            revision: header.revision(),
            term: header.raft_term(),
        })
    }

    /// Believes an answer of the same cluster.
    pub(crate) fn same_cluster(self, answered: Seen) -> Result<Seen, Fault> {
        if answered.cluster == 0 {
            return Err(Fault::misdelivered());
        }
        if self.cluster != 0 && self.cluster != answered.cluster {
            return Err(Fault::OtherCluster { known: self.cluster, answered: answered.cluster });
        }
        Ok(answered)
    }

    /// The same for a read, or, if it was `written`, for a change.
    fn in_order(self, answered: Seen, written: bool) -> Result<Seen, Fault> {
        self.same_cluster(answered)?;
        if answered.revision < self.revision + i64::from(written) {
            return Err(Fault::Outdated { known: self.revision, answered: answered.revision });
        }
        Ok(answered)
    }

    /// The same for a read of these keys.
    pub(crate) fn read(self, asked: &Keyed, answer: &GetResponse) -> Result<Seen, Fault> {
        let answered = self.in_order(Seen::of(answer.header()), false)?;
        if asked.has_all(&shown(answer.kvs())) { Ok(answered) } else { Err(Fault::misdelivered()) }
    }

    /// The same for something about a lease.
    pub(crate) fn lease(self, asked: i64, answered: (i64, Seen)) -> Result<Seen, Fault> {
        if asked == answered.0 { self.same_cluster(answered.1) } else { Err(Fault::misdelivered()) }
    }
}

/// The keys that a read asks for: one, or a range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Keyed {
    pub(crate) key: Vec<u8>,
    pub(crate) end: Option<Vec<u8>>,
}

impl Keyed {
    fn has_all(&self, shown: &[Key]) -> bool {
        match &self.end {
            None => shown.len() <= 1 && shown.iter().all(|key| key.name == self.key),
            Some(end) => shown.iter().all(|key| (&self.key..end).contains(&&key.name)),
        }
    }
}

/// A key in an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Key {
    name: Vec<u8>,
    written: i64,
    lease: i64,
}

fn shown(kvs: &[KeyValue]) -> Vec<Key> {
    let key = |kv: &KeyValue| Key { name: kv.key().to_vec(), written: kv.mod_revision(), lease: kv.lease() };
    kvs.iter().map(key).collect()
}

/// The answer to an operation of a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Shown {
    Put,
    Delete,
    Read(Vec<Key>),
    Nested(bool, Vec<Shown>),
}

impl Shown {
    fn of(answer: &TxnOpResponse) -> Shown {
        match answer {
            TxnOpResponse::Put(_) => Shown::Put,
            TxnOpResponse::Delete(_) => Shown::Delete,
            TxnOpResponse::Get(get) => Shown::Read(shown(get.kvs())),
            TxnOpResponse::Txn(inner) => {
                Shown::Nested(inner.succeeded(), inner.op_responses().iter().map(Shown::of).collect())
            }
        }
    }
}

/// What the answer to an operation of a transaction must be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Expected {
    Put,
    Delete,
    Read(Keyed),
    /// A read of a key that the transaction has written, under this lease if one is named.
    Written {
        key: Vec<u8>,
        lease: Option<i64>,
    },
    /// A read of a key that the transaction is about to delete.
    Deleted {
        key: Vec<u8>,
    },
    Nested(Branches),
}

impl Expected {
    fn is_met(&self, shown: &Shown, revision: i64) -> bool {
        match (self, shown) {
            (Expected::Put, Shown::Put) | (Expected::Delete, Shown::Delete) => true,
            (Expected::Read(asked), Shown::Read(keys)) => asked.has_all(keys),
            (Expected::Written { key, lease }, Shown::Read(keys)) => match keys.as_slice() {
                [shown] => {
                    shown.name == *key
                        && shown.written == revision
                        && lease.is_none_or(|lease| lease == shown.lease)
                }
                _ => false,
            },
            (Expected::Deleted { key }, Shown::Read(keys)) => {
                matches!(keys.as_slice(), [shown] if shown.name == *key)
            }
            (Expected::Nested(branches), Shown::Nested(succeeded, shown)) => {
                branches.are_met(*succeeded, shown, revision)
            }
            _ => false,
        }
    }
}

/// The same for both branches of a transaction.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Branches {
    pub(crate) then: Vec<Expected>,
    pub(crate) otherwise: Vec<Expected>,
}

impl Branches {
    fn taken(&self, succeeded: bool) -> &[Expected] {
        if succeeded { &self.then } else { &self.otherwise }
    }

    fn are_met(&self, succeeded: bool, shown: &[Shown], revision: i64) -> bool {
        let taken = self.taken(succeeded);
        taken.len() == shown.len()
            && taken.iter().zip(shown).all(|(expected, shown)| expected.is_met(shown, revision))
    }

    /// Believes an answer to a transaction with these branches.
    pub(crate) fn answered(
        &self,
        seen: Seen,
        answered: Seen,
        succeeded: bool,
        answers: &[TxnOpResponse],
    ) -> Result<Seen, Fault> {
        self.believed(seen, answered, succeeded, &answers.iter().map(Shown::of).collect::<Vec<_>>())
    }

    fn believed(&self, seen: Seen, answered: Seen, succeeded: bool, shown: &[Shown]) -> Result<Seen, Fault> {
        if !self.are_met(succeeded, shown, answered.revision) {
            return Err(Fault::misdelivered());
        }
        seen.in_order(answered, self.wrote(succeeded, shown))
    }

    fn wrote(&self, succeeded: bool, shown: &[Shown]) -> bool {
        self.taken(succeeded).iter().zip(shown).any(|(expected, shown)| match (expected, shown) {
            (Expected::Put | Expected::Delete, _) => true,
            (Expected::Nested(inner), Shown::Nested(succeeded, shown)) => inner.wrote(*succeeded, shown),
            _ => false,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OURS: &str = "leasehold/v1/lock/report/42/ours";
    const THEIRS: &str = "leasehold/v1/lock/report/42/theirs";
    const SEEN: Seen = Seen { cluster: 7, revision: 100, term: 2 };

    fn at(revision: i64) -> Seen {
        Seen { revision, ..SEEN }
    }

    fn key(name: &str, written: i64, lease: i64) -> Key {
        Key { name: name.into(), written, lease }
    }

    fn is_misdelivered(outcome: &Result<Seen, Fault>) -> bool {
        matches!(outcome, Err(Fault::Misdelivered(_)))
    }

    /// A claim is granted: its key is put, and read back.
    fn grant() -> Branches {
        let written = Expected::Written { key: OURS.into(), lease: Some(31) };
        Branches { then: vec![Expected::Put, written], otherwise: Vec::new() }
    }

    #[test]
    fn a_grant_is_believed_if_the_answer_shows_the_key_as_this_transaction_wrote_it() {
        let shown = |key: Key| [Shown::Put, Shown::Read(vec![key])];
        let believed = |shown: &[Shown]| grant().believed(SEEN, at(101), true, shown);
        assert_eq!(believed(&shown(key(OURS, 101, 31))).unwrap(), at(101));
        let wrong = [
            ("another owner", shown(key(THEIRS, 101, 31)).to_vec()),
            ("another resource", shown(key("leasehold/v1/lock/report/43/ours", 101, 31)).to_vec()),
            ("an earlier write", shown(key(OURS, 100, 31)).to_vec()),
            ("another lease", shown(key(OURS, 101, 32)).to_vec()),
            ("nothing was written", vec![Shown::Put, Shown::Read(Vec::new())]),
            ("two keys", vec![Shown::Put, Shown::Read(vec![key(OURS, 101, 31), key(THEIRS, 101, 31)])]),
            ("no proof", vec![Shown::Put]),
            ("no answers", Vec::new()),
            ("a read", vec![Shown::Read(Vec::new()), Shown::Read(vec![key(OURS, 101, 31)])]),
            ("a deletion", vec![Shown::Delete, Shown::Read(vec![key(OURS, 101, 31)])]),
            ("a nested one", vec![Shown::Nested(true, shown(key(OURS, 101, 31)).to_vec())]),
        ];
        for (what, shown) in wrong {
            assert!(is_misdelivered(&believed(&shown)), "{what}");
        }
    }

    #[test]
    fn a_release_is_believed_if_the_answer_shows_what_was_deleted() {
        let branches = Branches {
            then: vec![Expected::Deleted { key: OURS.into() }, Expected::Delete],
            otherwise: Vec::new(),
        };
        let believed = |read: Vec<Key>, revision| {
            branches.believed(SEEN, at(revision), true, &[Shown::Read(read), Shown::Delete])
        };
        assert!(believed(vec![key(OURS, 90, 31)], 101).is_ok());
        assert!(is_misdelivered(&believed(vec![key(THEIRS, 90, 31)], 101)));
        assert!(is_misdelivered(&believed(Vec::new(), 101)));
        // The answer to an earlier release of the same key.
        assert!(matches!(believed(vec![key(OURS, 90, 31)], 100), Err(Fault::Outdated { .. })));
    }

    #[test]
    fn a_change_is_newer_than_all_that_was_seen_and_a_read_not_older() {
        let wrote = |revision| {
            let shown = [Shown::Put, Shown::Read(vec![key(OURS, revision, 31)])];
            grant().believed(SEEN, at(revision), true, &shown)
        };
        assert!(wrote(101).is_ok() && matches!(wrote(100), Err(Fault::Outdated { .. })));
        let one = Branches { then: vec![Expected::Read(Keyed { key: OURS.into(), end: None })], ..grant() };
        let read = |revision| one.believed(SEEN, at(revision), true, &[Shown::Read(Vec::new())]);
        assert!(read(100).is_ok() && matches!(read(99), Err(Fault::Outdated { .. })));
        // Whatever a transaction within it has written counts as well.
        let outer = Branches { then: vec![Expected::Nested(grant())], ..Branches::default() };
        let nested = |revision| {
            let inner = vec![Shown::Put, Shown::Read(vec![key(OURS, revision, 31)])];
            outer.believed(SEEN, at(revision), true, &[Shown::Nested(true, inner)])
        };
        assert!(nested(101).is_ok() && matches!(nested(100), Err(Fault::Outdated { .. })));
    }

    #[test]
    fn a_read_shows_what_was_asked_for_and_nothing_else() {
        let one = Keyed { key: OURS.into(), end: None };
        let (lock, end) = ("leasehold/v1/lock/report/42/", "leasehold/v1/lock/report/420");
        let line = Keyed { key: lock.into(), end: Some(end.into()) };
        let table = [
            (&one, vec![], true),
            (&one, vec![OURS], true),
            (&one, vec![THEIRS], false),
            (&one, vec![OURS, OURS], false),
            (&line, vec![], true),
            (&line, vec![OURS, THEIRS], true),
            (&line, vec![OURS, "leasehold/v1/lock/report/43/ours"], false),
            (&line, vec!["leasehold/v1/pause/report/42"], false),
            (&line, vec![end], false),
        ];
        for (asked, names, right) in table {
            let keys: Vec<Key> = names.iter().map(|name| key(name, 1, 1)).collect();
            assert_eq!(asked.has_all(&keys), right, "{asked:?} {names:?}");
        }
    }

    #[test]
    fn the_branch_that_was_taken_is_the_one_that_is_compared() {
        let look = Expected::Read(Keyed { key: OURS.into(), end: None });
        let both = Branches { otherwise: vec![look], ..grant() };
        let read = [Shown::Read(vec![key(OURS, 90, 31)])];
        let written = [Shown::Put, Shown::Read(vec![key(OURS, 101, 31)])];
        assert!(both.believed(SEEN, at(101), false, &read).is_ok());
        assert!(both.believed(SEEN, at(101), true, &written).is_ok());
        assert!(is_misdelivered(&both.believed(SEEN, at(101), true, &read)));
        assert!(is_misdelivered(&both.believed(SEEN, at(101), false, &written)));
    }

    #[test]
    fn a_lease_is_named_by_its_id_and_every_answer_by_its_cluster() {
        assert!(SEEN.lease(31, (31, at(5))).is_ok(), "what a member says of a lease may lag behind");
        assert!(is_misdelivered(&SEEN.lease(31, (32, at(101)))));
        let other = Seen { cluster: 8, ..at(200) };
        assert!(matches!(SEEN.lease(31, (31, other)), Err(Fault::OtherCluster { known: 7, answered: 8 })));
        assert!(matches!(SEEN.same_cluster(other), Err(Fault::OtherCluster { .. })));
        assert!(is_misdelivered(&SEEN.same_cluster(Seen::of(None))), "an answer without a header");
        assert_eq!(Seen::default().same_cluster(other).unwrap(), other, "the first one names it");
        let written = [Shown::Put, Shown::Read(vec![key(OURS, 200, 31)])];
        assert!(matches!(grant().believed(SEEN, other, true, &written), Err(Fault::OtherCluster { .. })));
    }
}
