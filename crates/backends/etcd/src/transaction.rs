//! Transactions as data: what is sent to etcd, and what the reply must contain (`verify_reply.rs`).

use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicUsize, Ordering},
};

use etcd_client::{
    Compare, CompareOp, GetOptions, PutOptions, SortOrder, SortTarget, Txn, TxnOp, TxnOpResponse, TxnResponse,
};

use crate::{
    call_member::Repeatable,
    claim_record::{capacity_header, capacity_header_end},
    connection::{Connections, MemberClient},
    error::StoreError,
    keys::{ResourceKeys, range_end, slot},
    resource_view::ABSENT,
    verify_reply::{ExpectedBranches, ExpectedReply, HeaderInfo, KeyRange},
};

/// What must be true for the success branch of a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Precondition {
    /// The key was last written at this revision; [`ABSENT`](crate::resource_view::ABSENT): it does not
    /// exist.
    ModifiedAt(String, i64),
    /// The resource has no contenders.
    NoContenders { lock_prefix: String },
    /// No contender was created or written after this revision. Deleted ones do not matter: they only free
    /// capacity.
    NoneModifiedAfter { lock_prefix: String, revision: i64 },
    /// All contenders are claims of leasehold, and have this capacity.
    AllOfCapacity { lock_prefix: String, capacity: u32 },
}

impl Precondition {
    fn compares(&self) -> Vec<Compare> {
        let over_all = |compare: Compare, prefix: &str| compare.with_range(range_end(prefix));
        match self {
            Precondition::ModifiedAt(key, revision) => {
                vec![Compare::mod_revision(key.as_str(), CompareOp::Equal, *revision)]
            }
            // For an empty range etcd compares with a key that does not exist.
            Precondition::NoContenders { lock_prefix } => {
                let compare = Compare::create_revision(lock_prefix.as_str(), CompareOp::Equal, 0);
                vec![over_all(compare, lock_prefix)]
            }
            Precondition::NoneModifiedAfter { lock_prefix, revision } => {
                let compare = Compare::mod_revision(lock_prefix.as_str(), CompareOp::Less, *revision + 1);
                vec![over_all(compare, lock_prefix)]
            }
            // etcd compares values as bytes, so two bounds around the header compare the capacity of all
            // contenders.
            Precondition::AllOfCapacity { lock_prefix, capacity } => {
                let compare = |op, bound: String| {
                    over_all(Compare::value(lock_prefix.as_str(), op, bound), lock_prefix)
                };
                vec![
                    compare(CompareOp::Greater, capacity_header(*capacity)),
                    compare(CompareOp::Less, capacity_header_end(*capacity)),
                ]
            }
        }
    }
}

/// What a transaction does to one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum KeyChange {
    /// Writes the key and attaches it to this lease.
    Put {
        value: String,
        lease: i64,
    },
    /// Writes the key and leaves its lease as it is. The preconditions make sure that it has this lease.
    PutKeepingLease {
        value: String,
        lease: i64,
    },
    Delete,
}

/// What a transaction writes, by key: etcd allows one write for each key.
pub(crate) type KeyChanges = BTreeMap<String, KeyChange>;

/// One operation of a transaction.
#[derive(Clone, Debug)]
pub(crate) enum Operation {
    /// Writes a key; `lease: None` leaves its lease as it is.
    Put {
        key: String,
        value: String,
        lease: Option<i64>,
    },
    Delete(String),
    Read {
        range: KeyRange,
        options: GetOptions,
    },
    /// Reads a key that an earlier operation of the same transaction wrote, to verify the reply.
    ReadWritten {
        key: String,
        lease: i64,
        fields: ReadFields,
    },
    /// Reads a key that a later operation of the same transaction deletes, to verify the reply. `modified` is
    /// when the key was last written, if the transaction compares that.
    ReadBeforeDelete {
        key: String,
        modified: Option<i64>,
    },
    Nested(Transaction),
}

/// Which fields of a key a read returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReadFields {
    /// Everything but the value: enough to verify a reply.
    WithoutValue,
    All,
}

impl Operation {
    /// Reads one key.
    pub(crate) fn read(key: &str) -> Operation {
        Operation::Read { range: KeyRange::one(key), options: GetOptions::new() }
    }

    fn request(&self) -> TxnOp {
        let keys_only = || Some(GetOptions::new().with_keys_only());
        match self {
            Operation::Put { key, value, lease } => {
                let options = match lease {
                    Some(lease) => PutOptions::new().with_lease(*lease),
                    None => PutOptions::new().with_ignore_lease(),
                };
                TxnOp::put(key.as_str(), value.as_str(), Some(options))
            }
            Operation::Delete(key) => TxnOp::delete(key.as_str(), None),
            Operation::Read { range, options } => {
                let options = options.clone();
                let options = match &range.end {
                    Some(end) => options.with_range(end.clone()),
                    None => options,
                };
                TxnOp::get(range.key.clone(), Some(options))
            }
            Operation::ReadWritten { key, fields: ReadFields::All, .. } => TxnOp::get(key.as_str(), None),
            Operation::ReadWritten { key, .. } | Operation::ReadBeforeDelete { key, .. } => {
                TxnOp::get(key.as_str(), keys_only())
            }
            Operation::Nested(inner) => TxnOp::txn(inner.request()),
        }
    }

    fn expected_reply(&self) -> ExpectedReply {
        match self {
            Operation::Put { .. } => ExpectedReply::Put,
            Operation::Delete(_) => ExpectedReply::Delete,
            Operation::Read { range, .. } => ExpectedReply::Read(range.clone()),
            Operation::ReadWritten { key, lease, .. } => {
                ExpectedReply::ReadWritten { key: key.clone().into(), lease: *lease }
            }
            Operation::ReadBeforeDelete { key, modified } => {
                ExpectedReply::ReadBeforeDelete { key: key.clone().into(), modified: *modified }
            }
            Operation::Nested(inner) => ExpectedReply::Nested(inner.expected_branches()),
        }
    }
}

/// The operations that make these changes, and one read that verifies the reply (ADR 0033).
///
/// The read comes last and reads a key that was put. If nothing is put, it comes first and reads a key before
/// it is deleted: one whose last write is compared, if there is one. The name of a contender does not name its
/// owner, but its lease and its last write do (ADR 0041).
pub(crate) fn verified_writes(preconditions: &[Precondition], changes: &KeyChanges) -> Vec<Operation> {
    let operation = |(key, change): (&String, &KeyChange)| match change {
        KeyChange::Put { value, lease } => {
            Operation::Put { key: key.clone(), value: value.clone(), lease: Some(*lease) }
        }
        KeyChange::PutKeepingLease { value, .. } => {
            Operation::Put { key: key.clone(), value: value.clone(), lease: None }
        }
        KeyChange::Delete => Operation::Delete(key.clone()),
    };
    let mut operations: Vec<Operation> = changes.iter().map(operation).collect();
    let read_written = changes.iter().find_map(|(key, change)| match change {
        KeyChange::Put { lease, .. } | KeyChange::PutKeepingLease { lease, .. } => {
            let fields = ReadFields::WithoutValue;
            Some(Operation::ReadWritten { key: key.clone(), lease: *lease, fields })
        }
        KeyChange::Delete => None,
    });
    match read_written {
        Some(read) => operations.push(read),
        None => operations.splice(0..0, read_before_delete(preconditions, changes)).for_each(drop),
    }
    operations
}

/// Reads one of the keys that are to be deleted.
fn read_before_delete(preconditions: &[Precondition], changes: &KeyChanges) -> Option<Operation> {
    let compared = preconditions.iter().find_map(|precondition| match precondition {
        Precondition::ModifiedAt(key, modified) if *modified != ABSENT && changes.contains_key(key) => {
            Some(Operation::ReadBeforeDelete { key: key.clone(), modified: Some(*modified) })
        }
        _ => None,
    });
    let any = || Some(Operation::ReadBeforeDelete { key: changes.keys().next()?.clone(), modified: None });
    compared.or_else(any)
}

/// Reads a resource and these owners. The order of the operations is: the contenders, the pause, then for
/// each owner the two reads of [`read_owner`].
///
/// `limit` is how many contenders are read, from the head of the queue; zero: all.
pub(crate) fn read_resource(keys: &ResourceKeys, owner_hashes: &[&str], limit: i64) -> Vec<Operation> {
    let options = GetOptions::new().with_sort(SortTarget::Create, SortOrder::Ascend).with_limit(limit);
    let range = KeyRange { key: keys.lock_prefix.clone().into(), end: Some(range_end(&keys.lock_prefix)) };
    let mut operations = vec![Operation::Read { range, options }, Operation::read(&keys.pause)];
    operations.extend(owner_hashes.iter().flat_map(|owner_hash| read_owner(keys, owner_hash)));
    operations
}

/// How many operations [`read_owner`] has.
pub(crate) const READS_PER_OWNER: usize = 2;

/// Reads the owner key, then the contender in the owner's slot.
pub(crate) fn read_owner(keys: &ResourceKeys, owner_hash: &str) -> [Operation; READS_PER_OWNER] {
    [Operation::read(&keys.owner(owner_hash)), Operation::read(&keys.contender(&slot(owner_hash)))]
}

/// A transaction: if all preconditions hold, etcd carries out `on_success`, otherwise `on_failure`.
#[derive(Clone, Debug, Default)]
pub(crate) struct Transaction {
    pub(crate) preconditions: Vec<Precondition>,
    pub(crate) on_success: Vec<Operation>,
    pub(crate) on_failure: Vec<Operation>,
}

impl Transaction {
    /// All of these, each with preconditions of its own. etcd evaluates all preconditions first, so no two of
    /// them may depend on the same keys.
    pub(crate) fn all_of(nested: Vec<Transaction>) -> Transaction {
        Transaction {
            on_success: nested.into_iter().map(Operation::Nested).collect(),
            ..Transaction::default()
        }
    }

    fn request(&self) -> Txn {
        let requests =
            |operations: &[Operation]| operations.iter().map(Operation::request).collect::<Vec<_>>();
        let mut txn = Txn::new();
        // The driver panics if these are set twice or out of order: compares first, then success, then
        // failure.
        if !self.preconditions.is_empty() {
            let compares: Vec<Compare> = self.preconditions.iter().flat_map(Precondition::compares).collect();
            txn = txn.when(compares);
        }
        txn = txn.and_then(requests(&self.on_success));
        if self.on_failure.is_empty() { txn } else { txn.or_else(requests(&self.on_failure)) }
    }

    fn expected_branches(&self) -> ExpectedBranches {
        let expected = |operations: &[Operation]| operations.iter().map(Operation::expected_reply).collect();
        ExpectedBranches { on_success: expected(&self.on_success), on_failure: expected(&self.on_failure) }
    }
}

/// How many transactions are nested in one at the most. Lowered when etcd says that there are too many:
/// its option `--max-txn-ops` can be anything.
#[derive(Debug)]
pub(crate) struct NestedMax(AtomicUsize);

impl NestedMax {
    pub(crate) fn new(most: usize) -> NestedMax {
        NestedMax(AtomicUsize::new(most))
    }

    /// At least one: that is never nested.
    pub(crate) fn get(&self) -> usize {
        self.0.load(Ordering::Relaxed).max(1)
    }

    /// etcd has refused this many.
    pub(crate) fn note_refusal(&self, error: &StoreError, refused: usize) {
        if error.is_too_many_operations() {
            self.0.fetch_min(refused / 2, Ordering::Relaxed);
        }
    }
}

/// The reply to a transaction.
pub(crate) struct TransactionReply {
    pub(crate) revision: i64,
    /// Whether the preconditions held.
    pub(crate) succeeded: bool,
    /// The replies to the operations of the branch that was taken, in their order.
    pub(crate) operations: Vec<TxnOpResponse>,
    header: HeaderInfo,
}

impl TransactionReply {
    fn of(response: &TxnResponse) -> TransactionReply {
        let header = HeaderInfo::of(response.header());
        let (succeeded, operations) = (response.succeeded(), response.op_responses());
        TransactionReply { revision: header.revision, succeeded, operations, header }
    }

    /// The reply of the nested transaction that is the only operation of the branch.
    pub(crate) fn into_nested(self) -> Result<TransactionReply, StoreError> {
        self.into_all_nested(1).map(|mut replies| replies.remove(0))
    }

    /// The replies of the nested transactions that are the operations of the branch: this many.
    pub(crate) fn into_all_nested(self, count: usize) -> Result<Vec<TransactionReply>, StoreError> {
        let (revision, header) = (self.revision, self.header);
        let missing = || StoreError::UnexpectedReply("a nested transaction has no reply".to_owned());
        let nested = |reply: TxnOpResponse| match reply {
            TxnOpResponse::Txn(inner) => Ok(TransactionReply {
                succeeded: inner.succeeded(),
                operations: inner.op_responses(),
                revision,
                header,
            }),
            _ => Err(missing()),
        };
        let replies: Vec<TransactionReply> =
            self.operations.into_iter().map(nested).collect::<Result<_, _>>()?;
        if replies.len() == count { Ok(replies) } else { Err(missing()) }
    }
}

impl Connections {
    /// Sends a transaction that may write.
    pub(crate) async fn transact(&self, transaction: &Transaction) -> Result<TransactionReply, StoreError> {
        self.send_transaction(transaction, Repeatable::No).await
    }

    /// Sends a transaction of reads.
    pub(crate) async fn read_together(&self, reads: Vec<Operation>) -> Result<TransactionReply, StoreError> {
        let transaction = Transaction { on_success: reads, ..Transaction::default() };
        self.send_transaction(&transaction, Repeatable::Yes).await
    }

    async fn send_transaction(
        &self,
        transaction: &Transaction,
        repeatable: Repeatable,
    ) -> Result<TransactionReply, StoreError> {
        let (txn, expected) = (transaction.request(), transaction.expected_branches());
        let send = |member: &MemberClient| {
            let (mut kv, txn) = (member.kv.clone(), txn.clone());
            async move { kv.txn(txn).await.map(|response| TransactionReply::of(&response)) }
        };
        let check = |reply: &TransactionReply, known| {
            expected.check(known, reply.header, reply.succeeded, &reply.operations)
        };
        self.call(repeatable, send, check).await
    }

    /// Makes the changes if all preconditions hold. Returns the revision of the write, or `None` if a
    /// precondition failed.
    pub(crate) async fn commit(
        &self,
        preconditions: Vec<Precondition>,
        changes: &KeyChanges,
    ) -> Result<Option<i64>, StoreError> {
        let on_success = verified_writes(&preconditions, changes);
        let transaction = Transaction { preconditions, on_success, on_failure: Vec::new() };
        let reply = self.transact(&transaction).await?;
        Ok(reply.succeeded.then_some(reply.revision))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_write_is_verified_by_a_read_of_a_written_key() {
        let put = |lease| KeyChange::Put { value: "x".to_owned(), lease };
        let expected = |changes: Vec<(&str, KeyChange)>| {
            let changes: KeyChanges =
                changes.into_iter().map(|(key, change)| (key.to_owned(), change)).collect();
            let unchanged = [Precondition::ModifiedAt("b".to_owned(), 12)];
            let on_success = verified_writes(&unchanged, &changes);
            let transaction = Transaction { on_success, ..Transaction::default() };
            transaction.expected_branches().on_success
        };
        let written = |key: &str, lease| ExpectedReply::ReadWritten { key: key.into(), lease };
        let deleted = |key: &str, modified| ExpectedReply::ReadBeforeDelete { key: key.into(), modified };
        assert_eq!(expected(vec![("a", put(7))]), [ExpectedReply::Put, written("a", 7)]);
        let rewrite = KeyChange::PutKeepingLease { value: "x".to_owned(), lease: 8 };
        assert_eq!(expected(vec![("a", rewrite)]), [ExpectedReply::Put, written("a", 8)]);
        let both = [ExpectedReply::Delete, ExpectedReply::Put, written("b", 7)];
        assert_eq!(expected(vec![("a", KeyChange::Delete), ("b", put(7))]), both);
        // A key that is only deleted is read before, and preferably one whose last write is known.
        assert_eq!(expected(vec![("a", KeyChange::Delete)]), [deleted("a", None), ExpectedReply::Delete]);
        let two = [deleted("b", Some(12)), ExpectedReply::Delete, ExpectedReply::Delete];
        assert_eq!(expected(vec![("a", KeyChange::Delete), ("b", KeyChange::Delete)]), two);
        assert_eq!(expected(Vec::new()), []);
    }
}
