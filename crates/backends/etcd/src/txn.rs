//! Transactions, as data.

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

pub(crate) fn compares<'a>(guards: impl IntoIterator<Item = &'a Guard>) -> Vec<Compare> {
    guards.into_iter().flat_map(Guard::compares).collect()
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

pub(crate) fn ops(changes: &Changes) -> Vec<TxnOp> {
    let op = |(key, change): (&String, &Change)| match change {
        Change::Put { value, lease } => {
            TxnOp::put(key.as_str(), value.as_str(), Some(PutOptions::new().with_lease(*lease)))
        }
        Change::Rewrite { value } => {
            TxnOp::put(key.as_str(), value.as_str(), Some(PutOptions::new().with_ignore_lease()))
        }
        Change::Delete => TxnOp::delete(key.as_str(), None),
    };
    changes.iter().map(op).collect()
}

/// The line of a resource from its head, the pause, and what there is of these owners; the answers come in this order.
pub(crate) fn reading(keys: &Keys, marks: &[&str], limit: i64) -> Vec<TxnOp> {
    let line = GetOptions::new()
        .with_range(range_end(&keys.lock))
        .with_sort(SortTarget::Create, SortOrder::Ascend)
        .with_limit(limit);
    let mut ops = vec![TxnOp::get(keys.lock.as_str(), Some(line)), TxnOp::get(keys.pause.as_str(), None)];
    ops.extend(marks.iter().flat_map(|mark| of_owner(keys, mark)));
    ops
}

/// An owner's key, and the contender that bears its mark.
pub(crate) fn of_owner(keys: &Keys, mark: &str) -> [TxnOp; 2] {
    [TxnOp::get(keys.own(mark), None), TxnOp::get(keys.contender(mark), None)]
}

/// What came of a transaction.
pub(crate) struct Done {
    pub(crate) revision: i64,
    pub(crate) succeeded: bool,
    pub(crate) answers: Vec<TxnOpResponse>,
}

impl Done {
    fn of(response: &TxnResponse, link: &Link) -> Done {
        let revision = response.header().map_or(0, etcd_client::ResponseHeader::revision);
        link.saw(revision);
        Done { revision, succeeded: response.succeeded(), answers: response.op_responses() }
    }

    /// The transaction that stands alone within a branch of this one.
    pub(crate) fn nested(self) -> Result<Done, Fault> {
        match self.answers.into_iter().next() {
            Some(TxnOpResponse::Txn(inner)) => Ok(Done {
                revision: self.revision,
                succeeded: inner.succeeded(),
                answers: inner.op_responses(),
            }),
            _ => Err(Fault::Strange("a transaction within a transaction has no answer".to_owned())),
        }
    }
}

impl Link {
    pub(crate) async fn transact(&self, txn: Txn) -> Result<Done, Fault> {
        let response = self.call_kv(|kv| send(kv, txn.clone())).await?;
        Ok(Done::of(&response, self))
    }

    /// A transaction that only reads.
    pub(crate) async fn look(&self, gets: Vec<TxnOp>) -> Result<Done, Fault> {
        let txn = Txn::new().and_then(gets);
        let response = self.call_kv_again(|kv| send(kv, txn.clone())).await?;
        Ok(Done::of(&response, self))
    }

    /// Writes, if all the guards hold; the revision at which it was written.
    pub(crate) async fn commit(&self, guards: &[Guard], changes: &Changes) -> Result<Option<i64>, Fault> {
        let txn = Txn::new().when(compares(guards)).and_then(ops(changes));
        let done = self.transact(txn).await?;
        Ok(done.succeeded.then_some(done.revision))
    }
}

async fn send(mut kv: KvClient, txn: Txn) -> Result<TxnResponse, etcd_client::Error> {
    kv.txn(txn).await
}
