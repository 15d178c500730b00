//! The type [`Sqlite`] and its implementation of [`Backend`]. Each verb is in a file of its own.

use std::{fmt, sync::Arc, time::Duration};

use leasehold_core::{
    Backend, BackendInfo, Claim, ClaimRef, CommandOutcome, Cursor, Environment, Error, FailureDomain,
    Guarantee, OperatorCommand, Page, Query, ReleaseRequest, Released, RenewRequest, Renewal, Resource,
    Result, Verb, Verdict, async_trait, one_by_one,
};
use leasehold_support::race::{self, Either};

use crate::{
    NAME,
    acquire::{Acquire, check_note},
    config::Config,
    connection::{WriteConnection, run_on_thread},
    database::Database,
    inspect::Inspector,
    listener::WakeupListener,
    order::Order,
    release::Release,
    renew::Renew,
    writer::Writer,
};

/// A SQLite file that holds the leases of all processes of one host.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold_core::Error> {
/// use leasehold::System;
/// use leasehold_core::{BackendExt as _, Claim, Holder, OwnerToken, Resource, Share, Verdict};
/// use leasehold_sqlite::{Config, Sqlite};
/// use std::{sync::Arc, time::Duration};
///
/// # let directory = tempfile::tempdir().unwrap();
/// # let path = directory.path().join("leases.db");
/// let environment = Arc::new(System::current());
/// let leases = Sqlite::open(Config::new(path), environment.clone())?;
///
/// let report: Resource = "report/42".parse()?;
/// let owner = OwnerToken::fresh(&*environment);
/// let holder = Arc::new(Holder::new("host-a", std::process::id(), "nightly"));
/// let claim = Claim::new(report, owner, Share::WHOLE, Duration::from_secs(30), holder);
/// assert!(matches!(leases.acquire_one(&claim).await?, Verdict::Granted(_)));
/// # Ok(()) }
/// ```
pub struct Sqlite {
    info: BackendInfo,
    pub(crate) database: Arc<Database>,
    pub(crate) writer: Writer,
    pub(crate) listener: WakeupListener,
    inspector: Arc<Inspector>,
}

impl Sqlite {
    /// Opens the file, and creates it if it does not exist.
    ///
    /// Blocks the calling thread for the disk, and for at most a few seconds while another process creates
    /// the file.
    ///
    /// # Errors
    /// `Denied` if the file or its directory cannot be written; `Corrupt` if the file is not a database, or
    /// is a database of another program; `Unsupported` if a newer version wrote the file, if it is on a
    /// network file system, and if other processes use it from another host or another boot; `Invalid` if the
    /// path is not the path of a file.
    pub fn open(config: Config, environment: Arc<dyn Environment>) -> Result<Sqlite> {
        let database = Arc::new(Database::find(config, environment)?);
        let connection = WriteConnection::open(&database)?;
        warn_of_wal_reset_bug();
        Ok(Sqlite {
            info: info(&database),
            writer: Writer::new(Arc::clone(&database), connection),
            database,
            listener: WakeupListener::default(),
            inspector: Arc::default(),
        })
    }

    /// Like [`open`](Sqlite::open), on a thread of its own, so that the caller's runtime is not blocked.
    ///
    /// # Errors
    /// As [`open`](Sqlite::open).
    ///
    /// # Cancel safety
    /// The file may be created although the future was dropped.
    pub async fn connect(config: Config, environment: Arc<dyn Environment>) -> Result<Sqlite> {
        run_on_thread(move || Sqlite::open(config, environment)).await?
    }
}

/// Other crates of the program can keep SQLite at an old version (ADR 0054).
fn warn_of_wal_reset_bug() {
    if has_wal_reset_bug(rusqlite::version_number()) {
        tracing::warn!(
            target: "leasehold",
            version = rusqlite::version(),
            "this program contains a version of SQLite that can, very rarely, damage a file that several processes write: \
             update the crate that needs this version (cargo tree -i libsqlite3-sys), see docs/backends/sqlite.md"
        );
    }
}

/// <https://www.sqlite.org/wal.html#walresetbug>: since 3.7.0; fixed in 3.51.3, and in 3.50.7 and 3.44.6.
const fn has_wal_reset_bug(version: i32) -> bool {
    version < 3_051_003 && !matches!(version, 3_050_007..3_051_000 | 3_044_006..3_045_000)
}

fn info(database: &Database) -> BackendInfo {
    let mut info = BackendInfo::new(NAME, Guarantee::Database);
    info.because =
        "one file on one host, written by one transaction at a time; a reboot ends every lease".into();
    // ADR 0010: a token is also at least the wall clock, so a lost counter alone does not take tokens back.
    info.tokens_break_when = if database.config.is_full() {
        "the host's clock goes back and an older copy of the file is put in its place".into()
    } else {
        "the host's clock goes back, and a power cut takes the last commits or an older copy of the file is put in \
         its place"
            .into()
    };
    info.limits.queue = database.config.queue_max();
    info
}

impl fmt::Debug for Sqlite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sqlite").field("path", &self.database.path).finish_non_exhaustive()
    }
}

/// Claims are sent one by one: the writer thread commits the requests of many callers together (ADR 0011).
impl Sqlite {
    async fn acquire_claim(&self, claim: &Claim) -> Result<Verdict> {
        let context = |error: Error| error.at(Verb::Acquire, NAME).on(&claim.resource);
        check_note(claim.note.as_deref()).map_err(context)?;
        self.writer.run(Acquire(claim.clone())).await.flatten().map_err(context)
    }

    async fn release_claim(&self, request: &ReleaseRequest) -> Result<Released> {
        let context = |error: Error| error.at(Verb::Release, NAME).on(&request.resource);
        self.writer.run(Release(request.clone())).await.map_err(context)
    }
}

#[async_trait]
impl Backend for Sqlite {
    fn info(&self) -> &BackendInfo {
        &self.info
    }

    fn failure_domain(&self, _: &Resource) -> FailureDomain {
        FailureDomain::default()
    }

    async fn acquire(&self, claims: &[Claim]) -> Vec<Result<Verdict>> {
        one_by_one(claims, |claim| self.acquire_claim(claim)).await
    }

    async fn renew(&self, requests: &[RenewRequest]) -> Vec<Result<Renewal>> {
        let context =
            |error: Error, request: &RenewRequest| error.at(Verb::Renew, NAME).on(&request.resource);
        match self.writer.run(Renew(requests.to_vec())).await {
            Ok(replies) => {
                let replies = replies.into_iter().zip(requests);
                replies.map(|(reply, request)| reply.map_err(|error| context(error, request))).collect()
            }
            Err(error) => requests.iter().map(|request| Err(context(error.clone(), request))).collect(),
        }
    }

    async fn release(&self, requests: &[ReleaseRequest]) -> Vec<Result<Released>> {
        one_by_one(requests, |request| self.release_claim(request)).await
    }

    async fn wait(&self, claim: &ClaimRef, since: &Cursor, at_most: Duration) -> Result<()> {
        let timeout = self.database.environment.sleep(at_most);
        let woken = match race::first(self.wait_for_wakeup(claim, *since, at_most), timeout).await {
            Either::Left(woken) => woken,
            Either::Right(()) => Ok(()),
        };
        woken.map_err(|error| error.at(Verb::Wait, NAME).on(&claim.resource))
    }

    async fn inspect(&self, query: &Query) -> Result<Page> {
        let page = self.inspector.inspect(&self.database, query).await;
        page.map_err(|error| error.at(Verb::Inspect, NAME))
    }

    async fn order(&self, command: &OperatorCommand) -> Result<CommandOutcome> {
        let context = |error: Error| error.at(Verb::Order, NAME).on(&command.resource);
        self.writer.run(Order(command.clone())).await.flatten().map_err(context)
    }
}

#[cfg(test)]
mod tests {
    use super::has_wal_reset_bug;

    #[test]
    fn the_versions_with_the_wal_reset_bug_are_known() {
        for version in [3_046_000, 3_050_006, 3_051_002, 3_044_005, 3_045_000] {
            assert!(has_wal_reset_bug(version), "{version}");
        }
        for version in [3_051_003, 3_050_007, 3_044_006, 3_054_001] {
            assert!(!has_wal_reset_bug(version), "{version}");
        }
    }
}
