//! The tokens file while the server runs: read again when it changes, and what its tokens use.
//!
//! A file that cannot be read leaves the old tokens in force, and is reported at every look until it can.

use std::{
    collections::HashMap,
    fs,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use leasehold_api::{Problem, ProblemKind};
use leasehold_core::{Environment, Error, ErrorKind, Result};
use tokio::{sync::watch, time::Instant};

use super::{
    rate::Rate,
    tokens::{TokenEntry, TokenTable},
};
use crate::file_state::{FileState, LOOK_EVERY};

/// The tokens of a file, as it is now.
pub struct TokenFile {
    path: PathBuf,
    environment: Arc<dyn Environment>,
    table: watch::Sender<Arc<TokenTable>>,
    seen: Mutex<Option<FileState>>,
    /// The file has changed and cannot be read.
    is_bad: AtomicBool,
    used: Mutex<HashMap<String, Used>>,
}

/// What a token uses of its caps.
#[derive(Debug, Default)]
struct Used {
    waiting: usize,
    /// Of renewals and releases, and of everything else: so that no number of claims delays a renewal.
    rates: [Rate; 2],
}

impl std::fmt::Debug for TokenFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TokenFile").field("path", &self.path).finish_non_exhaustive()
    }
}

fn read(path: &Path) -> Result<TokenTable> {
    let named =
        |what: String| Error::new(ErrorKind::Invalid, format!("the tokens file {}: {what}", path.display()));
    let text = fs::read_to_string(path).map_err(|error| named(error.to_string()))?;
    TokenTable::parse(&text).map_err(|error| named(error.message().to_owned()))
}

impl TokenFile {
    /// Reads the file. [`Server::run`](crate::Server::run) looks at it again while it serves.
    ///
    /// # Errors
    /// `Invalid` if it cannot be read, or is not a tokens file.
    pub fn open(path: &Path, environment: Arc<dyn Environment>) -> Result<Arc<TokenFile>> {
        let seen = FileState::of(path);
        let table = watch::Sender::new(Arc::new(read(path)?));
        let (seen, used, is_bad) = (Mutex::new(seen), Mutex::default(), AtomicBool::new(false));
        Ok(Arc::new(TokenFile { path: path.to_owned(), environment, table, seen, is_bad, used }))
    }

    /// Looks at the file until the future is dropped.
    pub(crate) async fn follow(&self) {
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            self.look();
        }
    }

    /// Reads the file if it has changed.
    pub fn look(&self) {
        let now = FileState::of(&self.path);
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if *seen == now {
            return;
        }
        let table = read(&self.path);
        self.is_bad.store(table.is_err(), Ordering::Relaxed);
        match table {
            Ok(table) => {
                *seen = now;
                tracing::info!(tokens = table.entries().len(), "the tokens file was read again");
                self.table.send_replace(Arc::new(table));
            }
            // Not taken as seen: so it is tried, and reported, again.
            Err(error) => {
                tracing::error!(%error, "the tokens file cannot be read: the tokens from before stay in force");
            }
        }
    }

    /// Whether the file has changed and cannot be read: the tokens from before are in force.
    pub(crate) fn is_bad(&self) -> bool {
        self.is_bad.load(Ordering::Relaxed)
    }

    fn used(&self) -> MutexGuard<'_, HashMap<String, Used>> {
        self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn find(&self, token: &str) -> Option<Arc<TokenEntry>> {
        self.table.borrow().find(token, self.environment.wall())
    }

    pub(crate) fn find_certificate(&self, names: &[String]) -> Option<Arc<TokenEntry>> {
        self.table.borrow().find_certificate(names, self.environment.wall())
    }

    /// Counts a request against the token's rate.
    pub(crate) fn count(&self, entry: &TokenEntry, keeps: bool) -> Result<(), Problem> {
        let Some(per_second) = entry.requests_per_second else { return Ok(()) };
        let mut used = self.used();
        let rate = &mut used.entry(entry.id.clone()).or_default().rates[usize::from(keeps)];
        rate.take(per_second, Instant::now())
            .map_err(|wait| throttled(format!("the token may send {per_second} requests a second"), wait))
    }

    /// Counts claims that wait.
    pub(crate) fn wait(self: &Arc<TokenFile>, entry: &TokenEntry, count: usize) -> Result<Waiters, Problem> {
        let mut used = self.used();
        let waiting = &mut used.entry(entry.id.clone()).or_default().waiting;
        if entry.waiters_max.is_some_and(|most| *waiting + count > most) {
            let most = entry.waiters_max.unwrap_or_default();
            return Err(throttled(
                format!("the token may have {most} waiting claims"),
                Duration::from_secs(1),
            ));
        }
        *waiting += count;
        Ok(Waiters { file: Arc::clone(self), id: entry.id.clone(), count })
    }

    /// Resolves when the entry no longer holds.
    pub(crate) async fn revoked(&self, entry: &Arc<TokenEntry>) {
        let mut table = self.table.subscribe();
        let replaced = table.wait_for(|table| table.entry(&entry.id).is_none_or(|now| now != entry));
        match entry.expires {
            None => drop(replaced.await),
            Some(expires) => {
                let left = expires.as_micros().saturating_sub(self.environment.wall().as_micros());
                drop(tokio::time::timeout(Duration::from_micros(left), replaced).await);
            }
        }
    }
}

fn throttled(detail: String, wait: Duration) -> Problem {
    let mut problem = Problem::new(ProblemKind::Throttled, detail);
    problem.retry_after_ms = Some(leasehold_api::fields::ms_up(wait));
    problem
}

/// Claims of a token that wait, counted while it lives.
#[derive(Debug)]
pub(crate) struct Waiters {
    file: Arc<TokenFile>,
    id: String,
    count: usize,
}

impl Drop for Waiters {
    fn drop(&mut self) {
        if let Some(used) = self.file.used().get_mut(&self.id) {
            used.waiting = used.waiting.saturating_sub(self.count);
        }
    }
}
