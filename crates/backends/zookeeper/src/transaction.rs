//! Transactions whose answer names its request.
//!
//! A proxy that mixes up connections can deliver another connection's answer, or an old one again. The driver compares the
//! number of the request (xid) and drops the connection if it waits for no such answer; but every session counts from one, so
//! an answer of another session can have the right number. Therefore the answer to a transaction is compared with what was
//! asked, operation by operation, before anything is concluded from it (ADR 0033):
//!
//! 1. A node that is created is answered with its path. The path of a contender, a marker or a tombstone contains the
//!    owner token, which nobody else has.
//! 2. A transaction that creates no such node (a renewal, a release, an order) creates and deletes a node whose name is the
//!    id of the request. That costs no round trip.
//! 3. An answer that does not fit is an error whose effect is unknown. The session goes on: to end it would delete the
//!    nodes of leases that are still vouched for.
//! 4. A transaction that failed is answered without names. So nothing final is concluded from a failure alone: another
//!    request looks for the reason (see `marker.rs`, `release.rs` and `renew.rs`).
//!
//! Reads are judged by what they contain. The data of a folder is the name of its resource, and is read together with its
//! children and contenders. A list on which a grant depends contains the contender that asks, so it is not older than that.

use leasehold_core::RequestId;
use zookeeper_client::{
    CreateOptions, Error as Driver, MultiWriteError, MultiWriteResult, MultiWriter, Stat,
};

use crate::{names::request, record::Record, session::Session};

/// A transaction that is being written.
pub(crate) struct Transaction<'a> {
    session: &'a Session,
    writer: MultiWriter<'a>,
    expected: Vec<Expected>,
    /// Why an operation could not be written.
    refused: Option<Driver>,
}

/// What an operation is answered with.
#[derive(Debug)]
enum Expected {
    Check,
    Delete,
    SetData,
    Create(String),
    /// The path begins so; ten digits follow.
    CreateSequential(String),
}

/// The answers to a transaction, all of which fit.
#[derive(Debug)]
pub(crate) struct Committed(Vec<MultiWriteResult>);

impl Session {
    pub(crate) fn transaction(&self) -> Transaction<'_> {
        let writer = self.client.new_multi_writer();
        Transaction { session: self, writer, expected: Vec::new(), refused: None }
    }

    /// Writes a record into a contender's node, which must have this version.
    pub(crate) async fn write(&self, path: &str, record: &Record, version: i32) -> Result<Stat, Driver> {
        let mut transaction = self.transaction();
        transaction.set_data(path, &record.to_bytes(), Some(version));
        let committed = transaction.commit_named().await.map_err(Driver::from)?;
        committed.stat().copied().ok_or_else(|| Driver::UnexpectedError("no stat".to_owned()))
    }
}

impl Transaction<'_> {
    /// How many operations there are: the index of the next one.
    pub(crate) fn len(&self) -> usize {
        self.expected.len()
    }

    fn add(&mut self, added: Result<(), Driver>, expected: Expected) {
        self.expected.push(expected);
        if let Err(error) = added {
            self.refused.get_or_insert(error);
        }
    }

    pub(crate) fn check_version(&mut self, path: &str, version: i32) {
        let added = self.writer.add_check_version(path, version);
        self.add(added, Expected::Check);
    }

    pub(crate) fn create(&mut self, path: &str, data: &[u8], options: &CreateOptions<'_>) {
        let added = self.writer.add_create(path, data, options);
        self.add(added, Expected::Create(path.to_owned()));
    }

    pub(crate) fn create_sequential(&mut self, prefix: &str, data: &[u8], options: &CreateOptions<'_>) {
        let added = self.writer.add_create(prefix, data, options);
        self.add(added, Expected::CreateSequential(prefix.to_owned()));
    }

    pub(crate) fn set_data(&mut self, path: &str, data: &[u8], version: Option<i32>) {
        let added = self.writer.add_set_data(path, data, version);
        self.add(added, Expected::SetData);
    }

    pub(crate) fn delete(&mut self, path: &str, version: Option<i32>) {
        let added = self.writer.add_delete(path, version);
        self.add(added, Expected::Delete);
    }

    /// Fails, with `NodeExists`, if the node is there; changes nothing.
    pub(crate) fn check_absent(&mut self, path: &str) {
        self.create(path, b"", &self.session.ephemeral());
        self.delete(path, None);
    }

    /// Commits what contains the name of an owner in a path that it creates.
    pub(crate) async fn commit(mut self) -> Result<Committed, MultiWriteError> {
        if let Some(error) = self.refused {
            return Err(error.into());
        }
        let answers = self.writer.commit().await?;
        if !fit(&self.expected, &answers) {
            let message = "the answer to a transaction does not fit it".to_owned();
            return Err(Driver::UnexpectedError(message).into());
        }
        Ok(Committed(answers))
    }

    /// Commits what has no name of its own, with the id of the request as its name.
    pub(crate) async fn commit_named(mut self) -> Result<Committed, MultiWriteError> {
        let id: RequestId = self.session.request_ids.next();
        self.check_absent(&request(id));
        self.commit().await
    }
}

impl Committed {
    /// The stat of the first node whose data was set.
    pub(crate) fn stat(&self) -> Option<&Stat> {
        self.0.iter().find_map(|answer| match answer {
            MultiWriteResult::SetData { stat } => Some(stat),
            _ => None,
        })
    }

    /// The name of the node that was created at this index.
    pub(crate) fn created(&self, index: usize) -> Option<&str> {
        match self.0.get(index) {
            Some(MultiWriteResult::Create { path, .. }) => path.rsplit('/').next(),
            _ => None,
        }
    }
}

fn fit(expected: &[Expected], answers: &[MultiWriteResult]) -> bool {
    let fits = |(expected, answer): (&Expected, &MultiWriteResult)| match (expected, answer) {
        (Expected::Check, MultiWriteResult::Check)
        | (Expected::Delete, MultiWriteResult::Delete)
        | (Expected::SetData, MultiWriteResult::SetData { .. }) => true,
        (Expected::Create(asked), MultiWriteResult::Create { path, .. }) => asked == path,
        (Expected::CreateSequential(prefix), MultiWriteResult::Create { path, .. }) => {
            path.strip_prefix(prefix.as_str()).is_some_and(|digits| !digits.contains('/'))
        }
        _ => false,
    };
    expected.len() == answers.len() && expected.iter().zip(answers).all(fits)
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
    fn only_the_answer_to_what_was_asked_fits() {
        let asked = [
            Expected::Create("/graves/ann".into()),
            Expected::Delete,
            Expected::CreateSequential("/locks/r/42/_c_ann-lock-".into()),
        ];
        let answer =
            |grave: &str, contender: &str| vec![created(grave), MultiWriteResult::Delete, created(contender)];
        assert!(fit(&asked, &answer("/graves/ann", "/locks/r/42/_c_ann-lock-0000000001")));
        assert!(!fit(&asked, &answer("/graves/bob", "/locks/r/42/_c_ann-lock-0000000001")));
        assert!(!fit(&asked, &answer("/graves/ann", "/locks/r/42/_c_bob-lock-0000000001")));
        assert!(!fit(&asked, &answer("/graves/ann", "/locks/r/43/_c_ann-lock-0000000001")));
        assert!(!fit(&asked, &answer("/graves/ann", "/locks/r/42/_c_ann-lock-0000000001")[..2]));
        assert!(!fit(&asked, &[]));
        assert!(!fit(&[Expected::Check], &[MultiWriteResult::Delete]));
    }
}
