//! Transactions whose reply is checked against the request.
//!
//! A proxy that mixes up connections can deliver the reply of another connection, or an old reply again. The
//! driver compares the number of the request (xid) and drops the connection if it waits for no such reply.
//! But every session counts its requests from one, so that a reply to another session can have the right
//! number. Therefore the reply to a transaction is compared with the request, operation by operation, before
//! anything is concluded from it (ADR 0033):
//!
//! 1. The reply to a create operation contains the path of the new node. The path of a contender, a marker or
//!    a tombstone contains the owner token, which no other client uses.
//! 2. A transaction that creates no such node (a renewal, a release, an operator's command) also creates and
//!    deletes a node whose name is the id of the request ([`Transaction::commit_with_request_id`]). That
//!    costs no round trip.
//! 3. A reply that does not fit is an error with an unknown effect. The session stays open: ending it would
//!    delete the nodes of leases that are still held.
//! 4. The reply to a transaction that failed contains no paths. So nothing final is concluded from a failure
//!    alone: another request looks for the reason (see `marker.rs`, `release.rs` and `renew.rs`).
//!
//! Reads are checked by what they contain. The data of a folder is the key of its resource, and is read
//! together with the folder's children and contenders. A list that leads to a grant contains the contender of
//! the claim, so it is not older than that contender.

use leasehold_core::RequestId;
use zookeeper_client::{
    CreateOptions, Error as Driver, MultiWriteError, MultiWriteResult, MultiWriter, Stat,
};

use crate::{error::StoreError, paths, session::Session};

/// A transaction that is being built. Each method adds operations and returns the position of the first one,
/// so that the caller can tell which operation failed.
pub(crate) struct Transaction<'a> {
    session: &'a Session,
    writer: MultiWriter<'a>,
    expected: Vec<ExpectedReply>,
    /// The first error of the driver while operations were added: a path that is not valid.
    rejected: Option<Driver>,
}

/// The position of an operation in its transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OperationPosition(usize);

/// The reply that the servers must give to an operation.
#[derive(Debug)]
enum ExpectedReply {
    Check,
    Delete,
    SetData,
    Create(String),
    /// The path of the new node begins with this prefix; ZooKeeper appends ten digits.
    CreateSequential(String),
}

/// The replies to a transaction that was executed. All of them fit the request.
#[derive(Debug)]
pub(crate) struct CommittedTransaction(Vec<MultiWriteResult>);

/// Why a transaction was not executed, or why its outcome is unknown.
#[derive(Debug)]
pub(crate) enum TransactionError {
    /// This operation failed, so the servers executed none of them.
    Operation { position: OperationPosition, source: Driver },
    /// The request as a whole failed. It may have been executed.
    Request(Driver),
}

impl From<MultiWriteError> for TransactionError {
    fn from(error: MultiWriteError) -> TransactionError {
        match error {
            MultiWriteError::OperationFailed { index, source } => {
                TransactionError::Operation { position: OperationPosition(index), source }
            }
            MultiWriteError::RequestFailed { source } => TransactionError::Request(source),
        }
    }
}

impl From<TransactionError> for Driver {
    fn from(error: TransactionError) -> Driver {
        match error {
            TransactionError::Operation { source, .. } | TransactionError::Request(source) => source,
        }
    }
}

impl From<TransactionError> for StoreError {
    fn from(error: TransactionError) -> StoreError {
        StoreError::from(Driver::from(error))
    }
}

impl Session {
    pub(crate) fn transaction(&self) -> Transaction<'_> {
        let writer = self.client.new_multi_writer();
        Transaction { session: self, writer, expected: Vec::new(), rejected: None }
    }
}

impl Transaction<'_> {
    fn add(&mut self, added: Result<(), Driver>, expected: ExpectedReply) -> OperationPosition {
        let position = OperationPosition(self.expected.len());
        self.expected.push(expected);
        if let Err(error) = added {
            self.rejected.get_or_insert(error);
        }
        position
    }

    /// Fails with `NoNode` if the node does not exist and with `BadVersion` if it has another version. -1 is
    /// any version.
    pub(crate) fn check_version(&mut self, path: &str, version: i32) -> OperationPosition {
        let added = self.writer.add_check_version(path, version);
        self.add(added, ExpectedReply::Check)
    }

    pub(crate) fn create(
        &mut self,
        path: &str,
        data: &[u8],
        options: &CreateOptions<'_>,
    ) -> OperationPosition {
        let added = self.writer.add_create(path, data, options);
        self.add(added, ExpectedReply::Create(path.to_owned()))
    }

    pub(crate) fn create_sequential(
        &mut self,
        prefix: &str,
        data: &[u8],
        options: &CreateOptions<'_>,
    ) -> OperationPosition {
        let added = self.writer.add_create(prefix, data, options);
        self.add(added, ExpectedReply::CreateSequential(prefix.to_owned()))
    }

    pub(crate) fn set_data(&mut self, path: &str, data: &[u8], version: Option<i32>) -> OperationPosition {
        let added = self.writer.add_set_data(path, data, version);
        self.add(added, ExpectedReply::SetData)
    }

    pub(crate) fn delete(&mut self, path: &str, version: Option<i32>) -> OperationPosition {
        let added = self.writer.add_delete(path, version);
        self.add(added, ExpectedReply::Delete)
    }

    /// Fails with `NodeExists` if the node exists, and changes nothing.
    ///
    /// ZooKeeper has no such operation, so the node is created and deleted. The position is that of the
    /// creation: the deletion cannot fail.
    pub(crate) fn check_absent(&mut self, path: &str) -> OperationPosition {
        let position = self.create(path, b"", &self.session.ephemeral());
        self.delete(path, None);
        position
    }

    /// Commits a transaction that creates a node with an owner token in its path: that path proves that a
    /// reply is ours.
    pub(crate) async fn commit(mut self) -> Result<CommittedTransaction, TransactionError> {
        if let Some(error) = self.rejected {
            return Err(TransactionError::Request(error));
        }
        let replies = self.writer.commit().await?;
        if !replies_fit(&self.expected, &replies) {
            let message = "the reply to a transaction does not fit it".to_owned();
            return Err(TransactionError::Request(Driver::UnexpectedError(message)));
        }
        Ok(CommittedTransaction(replies))
    }

    /// Commits a transaction that creates no node with an owner token: a node with the id of the request
    /// proves that a reply is ours.
    pub(crate) async fn commit_with_request_id(mut self) -> Result<CommittedTransaction, TransactionError> {
        let id: RequestId = self.session.request_ids.next();
        self.check_absent(&paths::request_id(id));
        self.commit().await
    }
}

impl CommittedTransaction {
    /// The stat of the first node whose data was set.
    pub(crate) fn stat(&self) -> Option<&Stat> {
        self.0.iter().find_map(|reply| match reply {
            MultiWriteResult::SetData { stat } => Some(stat),
            _ => None,
        })
    }

    /// The name, without its parents, of the node that this operation created.
    pub(crate) fn created_name(&self, position: OperationPosition) -> Option<&str> {
        match self.0.get(position.0) {
            Some(MultiWriteResult::Create { path, .. }) => path.rsplit('/').next(),
            _ => None,
        }
    }
}

/// Whether these can be the replies to a transaction that expects those.
fn replies_fit(expected: &[ExpectedReply], replies: &[MultiWriteResult]) -> bool {
    let fits = |(expected, reply): (&ExpectedReply, &MultiWriteResult)| match (expected, reply) {
        (ExpectedReply::Check, MultiWriteResult::Check)
        | (ExpectedReply::Delete, MultiWriteResult::Delete)
        | (ExpectedReply::SetData, MultiWriteResult::SetData { .. }) => true,
        (ExpectedReply::Create(requested), MultiWriteResult::Create { path, .. }) => requested == path,
        (ExpectedReply::CreateSequential(prefix), MultiWriteResult::Create { path, .. }) => {
            path.strip_prefix(prefix.as_str()).is_some_and(|digits| !digits.contains('/'))
        }
        _ => false,
    };
    expected.len() == replies.len() && expected.iter().zip(replies).all(fits)
}

#[cfg(test)]
mod tests {
    use super::*;

    const STAT: Stat = Stat {
        czxid: 0,
        mzxid: 0,
        pzxid: 0,
        ctime: 0,
        mtime: 0,
        version: 0,
        cversion: 0,
        aversion: 0,
        ephemeral_owner: 0,
        data_length: 0,
        num_children: 0,
    };

    fn created(path: &str) -> MultiWriteResult {
        MultiWriteResult::Create { path: path.to_owned(), stat: STAT }
    }

    #[test]
    fn only_replies_to_this_transaction_fit_it() {
        let expected = [
            ExpectedReply::Create("/graves/ann".into()),
            ExpectedReply::Delete,
            ExpectedReply::CreateSequential("/locks/r/42/_c_ann-lock-".into()),
        ];
        let replies = |tombstone: &str, contender: &str| {
            vec![created(tombstone), MultiWriteResult::Delete, created(contender)]
        };
        assert!(replies_fit(&expected, &replies("/graves/ann", "/locks/r/42/_c_ann-lock-0000000001")));
        assert!(!replies_fit(&expected, &replies("/graves/bob", "/locks/r/42/_c_ann-lock-0000000001")));
        assert!(!replies_fit(&expected, &replies("/graves/ann", "/locks/r/42/_c_bob-lock-0000000001")));
        assert!(!replies_fit(&expected, &replies("/graves/ann", "/locks/r/43/_c_ann-lock-0000000001")));
        assert!(!replies_fit(&expected, &replies("/graves/ann", "/locks/r/42/_c_ann-lock-0000000001")[..2]));
        assert!(!replies_fit(&expected, &[]));
        assert!(!replies_fit(&[ExpectedReply::Check], &[MultiWriteResult::Delete]));
    }
}
