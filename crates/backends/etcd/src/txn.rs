//! Transactions, as data: what is sent, and what the answer must show (see `proof`).

use std::collections::BTreeMap;

use etcd_client::{
    Compare, CompareOp, GetOptions, KvClient, PutOptions, SortOrder, SortTarget, Txn, TxnOp, TxnOpResponse,
    TxnResponse,
};

use crate::{
    entry::{header, header_end},
    error::Fault,
    keys::{Keys, range_end},
    link::Link,
    proof::{Branches, Expected, Keyed, Seen},
};

/// What must be so for a transaction to happen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Guard {
    /// The key was last written then; zero: it is not there.
    Modified(String, i64),
    /// Nobody is there.
    Nobody { lock: String },
    /// No contender came or changed since that revision. Who left does not matter: it only made room.
    NothingSince { lock: String, revision: i64 },
    /// All contenders are ours and of this capacity.
    Capacity { lock: String, capacity: u32 },
}

impl Guard {
    fn compares(&self) -> Vec<Compare> {
        let ranged = |compare: Compare, lock: &str| compare.with_range(range_end(lock));
        match self {
            Guard::Modified(key, revision) => {
                vec![Compare::mod_revision(key.as_str(), CompareOp::Equal, *revision)]
            }
            // For an empty range etcd compares with a key that does not exist.
            Guard::Nobody { lock } => {
                vec![ranged(Compare::create_revision(lock.as_str(), CompareOp::Equal, 0), lock)]
            }
            Guard::NothingSince { lock, revision } => {
                vec![ranged(Compare::mod_revision(lock.as_str(), CompareOp::Less, *revision + 1), lock)]
            }
            Guard::Capacity { lock, capacity } => {
                let compare = |op, bound: String| ranged(Compare::value(lock.as_str(), op, bound), lock);
                vec![
                    compare(CompareOp::Greater, header(*capacity)),
                    compare(CompareOp::Less, header_end(*capacity)),
                ]
            }
        }
    }
}

fn compares(guards: &[Guard]) -> Vec<Compare> {
    guards.iter().flat_map(Guard::compares).collect()
}

/// What a transaction writes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// Under this lease.
    Put {
        value: String,
        lease: i64,
    },
    /// Under the lease that it has.
    Rewrite {
        value: String,
    },
    Delete,
}

/// What a transaction writes, key by key: etcd takes each key once.
pub(crate) type Changes = BTreeMap<String, Change>;

/// An operation of a transaction.
#[derive(Clone, Debug)]
pub(crate) enum Op {
    Put {
        key: String,
        value: String,
        /// None: the one that the key has.
        lease: Option<i64>,
    },
    Delete(String),
    Read {
        keys: Keyed,
        options: GetOptions,
    },
    /// Reads a key that was written before in the same transaction; `whole`: with its value.
    Written {
        key: String,
        lease: Option<i64>,
        whole: bool,
    },
    /// Reads a key that is deleted after this in the same transaction.
    Deleted(String),
    Nested(Transaction),
}

impl Op {
    /// Reads one key.
    pub(crate) fn read(key: &str) -> Op {
        Op::Read { keys: Keyed { key: key.into(), end: None }, options: GetOptions::new() }
    }

    fn request(&self) -> TxnOp {
        let keys_only = || Some(GetOptions::new().with_keys_only());
        match self {
            Op::Put { key, value, lease } => {
                let options = match lease {
                    Some(lease) => PutOptions::new().with_lease(*lease),
                    None => PutOptions::new().with_ignore_lease(),
                };
                TxnOp::put(key.as_str(), value.as_str(), Some(options))
            }
            Op::Delete(key) => TxnOp::delete(key.as_str(), None),
            Op::Read { keys, options } => {
                let options = options.clone();
                let options = match &keys.end {
                    Some(end) => options.with_range(end.clone()),
                    None => options,
                };
                TxnOp::get(keys.key.clone(), Some(options))
            }
            Op::Written { key, whole: true, .. } => TxnOp::get(key.as_str(), None),
            Op::Written { key, .. } | Op::Deleted(key) => TxnOp::get(key.as_str(), keys_only()),
            Op::Nested(inner) => TxnOp::txn(inner.request()),
        }
    }

    fn expected(&self) -> Expected {
        match self {
            Op::Put { .. } => Expected::Put,
            Op::Delete(_) => Expected::Delete,
            Op::Read { keys, .. } => Expected::Read(keys.clone()),
            Op::Written { key, lease, .. } => Expected::Written { key: key.clone().into(), lease: *lease },
            Op::Deleted(key) => Expected::Deleted { key: key.clone().into() },
            Op::Nested(inner) => Expected::Nested(inner.expected()),
        }
    }
}

/// What is written, and a read that proves it (see `proof`). The read comes first if all it does is delete, else last.
pub(crate) fn ops(changes: &Changes) -> Vec<Op> {
    let op = |(key, change): (&String, &Change)| match change {
        Change::Put { value, lease } => {
            Op::Put { key: key.clone(), value: value.clone(), lease: Some(*lease) }
        }
        Change::Rewrite { value } => Op::Put { key: key.clone(), value: value.clone(), lease: None },
        Change::Delete => Op::Delete(key.clone()),
    };
    let mut ops: Vec<Op> = changes.iter().map(op).collect();
    let written = ops.iter().find_map(|op| match op {
        Op::Put { key, lease, .. } => Some(Op::Written { key: key.clone(), lease: *lease, whole: false }),
        _ => None,
    });
    match (written, changes.keys().next()) {
        (Some(written), _) => ops.push(written),
        (None, Some(deleted)) => ops.insert(0, Op::Deleted(deleted.clone())),
        (None, None) => {}
    }
    ops
}

/// The line of a resource from its head, the pause, and what there is of these owners; the answers come in this order.
pub(crate) fn reading(keys: &Keys, marks: &[&str], limit: i64) -> Vec<Op> {
    let options = GetOptions::new().with_sort(SortTarget::Create, SortOrder::Ascend).with_limit(limit);
    let line = Keyed { key: keys.lock.clone().into(), end: Some(range_end(&keys.lock)) };
    let mut ops = vec![Op::Read { keys: line, options }, Op::read(&keys.pause)];
    ops.extend(marks.iter().flat_map(|mark| of_owner(keys, mark)));
    ops
}

/// An owner's key, and the contender that bears its mark.
pub(crate) fn of_owner(keys: &Keys, mark: &str) -> [Op; 2] {
    [Op::read(&keys.own(mark)), Op::read(&keys.contender(mark))]
}

/// A transaction: what must be so, what it does then, and what otherwise.
#[derive(Clone, Debug, Default)]
pub(crate) struct Transaction {
    pub(crate) guards: Vec<Guard>,
    pub(crate) then: Vec<Op>,
    pub(crate) otherwise: Vec<Op>,
}

impl Transaction {
    fn request(&self) -> Txn {
        let all = |ops: &[Op]| ops.iter().map(Op::request).collect::<Vec<_>>();
        let mut txn = Txn::new();
        if !self.guards.is_empty() {
            txn = txn.when(compares(&self.guards));
        }
        txn = txn.and_then(all(&self.then));
        if self.otherwise.is_empty() { txn } else { txn.or_else(all(&self.otherwise)) }
    }

    fn expected(&self) -> Branches {
        let all = |ops: &[Op]| ops.iter().map(Op::expected).collect();
        Branches { then: all(&self.then), otherwise: all(&self.otherwise) }
    }
}

/// What came of a transaction.
pub(crate) struct Done {
    pub(crate) revision: i64,
    pub(crate) succeeded: bool,
    pub(crate) answers: Vec<TxnOpResponse>,
    header: Seen,
}

impl Done {
    fn of(response: &TxnResponse) -> Done {
        let header = Seen::of(response.header());
        let (succeeded, answers) = (response.succeeded(), response.op_responses());
        Done { revision: header.revision, succeeded, answers, header }
    }

    /// The transaction that stands alone within a branch of this one.
    pub(crate) fn nested(self) -> Result<Done, Fault> {
        match self.answers.into_iter().next() {
            Some(TxnOpResponse::Txn(inner)) => Ok(Done {
                succeeded: inner.succeeded(),
                answers: inner.op_responses(),
                revision: self.revision,
                header: self.header,
            }),
            _ => Err(Fault::Strange("a transaction within a transaction has no answer".to_owned())),
        }
    }
}

impl Link {
    pub(crate) async fn transact(&self, transaction: &Transaction) -> Result<Done, Fault> {
        let (txn, expected) = (transaction.request(), transaction.expected());
        let check = |done: &Done, seen| expected.answered(seen, done.header, done.succeeded, &done.answers);
        self.call_kv(|kv| send(kv, txn.clone()), check).await
    }

    /// A transaction that only reads.
    pub(crate) async fn look(&self, then: Vec<Op>) -> Result<Done, Fault> {
        let transaction = Transaction { then, ..Transaction::default() };
        let (txn, expected) = (transaction.request(), transaction.expected());
        let check = |done: &Done, seen| expected.answered(seen, done.header, done.succeeded, &done.answers);
        self.call_kv_again(|kv| send(kv, txn.clone()), check).await
    }

    /// Writes, if all the guards hold; the revision at which it was written.
    pub(crate) async fn commit(&self, guards: Vec<Guard>, changes: &Changes) -> Result<Option<i64>, Fault> {
        let transaction = Transaction { guards, then: ops(changes), otherwise: Vec::new() };
        let done = self.transact(&transaction).await?;
        Ok(done.succeeded.then_some(done.revision))
    }
}

async fn send(mut kv: KvClient, txn: Txn) -> Result<Done, etcd_client::Error> {
    kv.txn(txn).await.map(|response| Done::of(&response))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_is_written_is_proven_by_a_read_of_it() {
        let put = |lease| Change::Put { value: "x".to_owned(), lease };
        let of = |changes: Vec<(&str, Change)>| {
            let changes: Changes =
                changes.into_iter().map(|(key, change)| (key.to_owned(), change)).collect();
            let transaction = Transaction { then: ops(&changes), ..Transaction::default() };
            transaction.expected().then
        };
        let written = |key: &str, lease| Expected::Written { key: key.into(), lease };
        let deleted = |key: &str| Expected::Deleted { key: key.into() };
        assert_eq!(of(vec![("a", put(7))]), [Expected::Put, written("a", Some(7))]);
        let rewrite = Change::Rewrite { value: "x".to_owned() };
        assert_eq!(of(vec![("a", rewrite)]), [Expected::Put, written("a", None)]);
        let both = [Expected::Delete, Expected::Put, written("b", Some(7))];
        assert_eq!(of(vec![("a", Change::Delete), ("b", put(7))]), both);
        // What is deleted is read before.
        let two = [deleted("a"), Expected::Delete, Expected::Delete];
        assert_eq!(of(vec![("a", Change::Delete), ("b", Change::Delete)]), two);
        assert_eq!(of(Vec::new()), []);
    }
}
