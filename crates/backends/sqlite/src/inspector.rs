//! Looking at the file without being in anyone's way: a connection of its own, that never writes.

use std::sync::{Arc, Mutex, PoisonError, TryLockError};

use leasehold_core::{Error, ErrorKind, Page, Query, Result};
use rusqlite::Connection;
use tokio::sync::oneshot;

use crate::{
    error::{Fault, from_io},
    ledger,
    site::{FileIdentity, Site},
    store,
};

/// A connection that only looks, opened when it is first needed.
#[derive(Debug, Default)]
pub(crate) struct Inspector {
    reader: Mutex<Option<(Connection, FileIdentity)>>,
}

impl Inspector {
    /// One resource at once, in the caller's future; a long answer on a thread of its own.
    pub(crate) async fn inspect(self: &Arc<Self>, site: &Arc<Site>, query: &Query) -> Result<Page> {
        if matches!(query, Query::One(_)) {
            match self.reader.try_lock() {
                Ok(mut reader) => return look(&mut reader, site, query),
                Err(TryLockError::Poisoned(reader)) => return look(&mut reader.into_inner(), site, query),
                Err(TryLockError::WouldBlock) => {}
            }
        }
        let (inspector, site, query) = (Arc::clone(self), Arc::clone(site), query.clone());
        offload(move || {
            let mut reader = inspector.reader.lock().unwrap_or_else(PoisonError::into_inner);
            look(&mut reader, &site, &query)
        })
        .await?
    }
}

fn look(reader: &mut Option<(Connection, FileIdentity)>, site: &Site, query: &Query) -> Result<Page> {
    let here = FileIdentity::at(&site.path).map_err(|error| from_io(error, &site.path, "find the file"))?;
    let answer = try_look(reader, site, here, query);
    if answer.is_err() {
        *reader = None;
    }
    answer.map_err(|fault| fault.into_error(&site.path))?
}

fn try_look(
    reader: &mut Option<(Connection, FileIdentity)>,
    site: &Site,
    here: FileIdentity,
    query: &Query,
) -> Result<Result<Page>, Fault> {
    let connection = match reader.take_if(|(_, file)| *file == here) {
        Some((connection, _)) => connection,
        None => store::open_reader(&site.path)?,
    };
    connection.execute_batch("BEGIN")?;
    let page = ledger::inspect(&connection, site.now(), query)?;
    connection.execute_batch("COMMIT")?;
    *reader = Some((connection, here));
    Ok(page)
}

/// Runs something that may take long on a thread of its own.
pub(crate) async fn offload<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T> {
    let (sender, reply) = oneshot::channel();
    let thread = std::thread::Builder::new().name("leasehold-look".to_owned());
    let started = thread.spawn(move || drop(sender.send(work())));
    started.map_err(|error| Error::new(ErrorKind::Unavailable, "cannot start a thread").because(error))?;
    reply.await.map_err(|_| Error::new(ErrorKind::Unavailable, "the thread ended without an answer"))
}
