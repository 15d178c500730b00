//! The backend: each verb is one transaction at the desk.

use std::{
    fmt,
    future::{Future, poll_fn},
    pin::pin,
    sync::Arc,
    task::Poll,
    time::Duration,
};

use leasehold_core::{
    Backend, BackendInfo, Claim, ClaimRef, CommandOutcome, Cursor, Environment, Error, ErrorKind,
    FailureDomain, Guarantee, OperatorCommand, Page, Query, ReleaseRequest, Released, RenewRequest, Renewal,
    Resource, Result, Verb, Verdict, async_trait,
};

use crate::{
    NAME, NOTE_MAX,
    config::Config,
    desk::{Desk, Work},
    inspector::{Inspector, offload},
    ledger::{Ledger, Prospect, Step},
    listener::Listener,
    site::Site,
    store::Store,
};

/// Leases in a file, for all processes of one host.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold_core::Error> {
/// use leasehold::System;
/// use leasehold_core::{Backend, Claim, Holder, OwnerToken, Resource, Share, Verdict};
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
/// assert!(matches!(leases.acquire(&claim).await?, Verdict::Granted(_)));
/// # Ok(()) }
/// ```
pub struct Sqlite {
    info: BackendInfo,
    site: Arc<Site>,
    desk: Desk,
    listener: Listener,
    inspector: Arc<Inspector>,
}

impl Sqlite {
    /// Opens the file, and makes it if it is not there. Blocks for a moment, on the disk and at most a few seconds on
    /// another process that is just making it.
    ///
    /// # Errors
    /// `Denied` if the file or its directory cannot be written; `Corrupt` if the file is not a database, or another
    /// program's; `Unsupported` if a newer version wrote it, on a network file system, and if other processes use
    /// it from another host or another boot; `Invalid` if the path is that of something else.
    pub fn open(config: Config, environment: Arc<dyn Environment>) -> Result<Sqlite> {
        let site = Arc::new(Site::find(config, environment)?);
        let store = Store::open(&site)?;
        Ok(Sqlite {
            info: info(&site),
            desk: Desk::new(Arc::clone(&site), store),
            site,
            listener: Listener::default(),
            inspector: Arc::default(),
        })
    }

    /// [`open`](Sqlite::open), on a thread of its own: nothing in the caller's runtime is blocked.
    ///
    /// # Errors
    /// As `open`.
    ///
    /// # Cancel safety
    /// Dropped part-way, the file may still be made.
    pub async fn connect(config: Config, environment: Arc<dyn Environment>) -> Result<Sqlite> {
        offload(move || Sqlite::open(config, environment)).await?
    }
}

fn info(site: &Site) -> BackendInfo {
    let mut info = BackendInfo::new(NAME, Guarantee::Database);
    info.because =
        "one file on one host, written by one transaction at a time; a reboot ends every lease".into();
    info.tokens_break_when = if site.config.is_full() {
        "the host's clock goes back and an older copy of the file is put in its place".into()
    } else {
        "the host's clock goes back, and a power cut takes the last commits or an older copy of the file is put in \
         its place"
            .into()
    };
    info.limits.queue = site.config.line_max();
    info
}

impl fmt::Debug for Sqlite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sqlite").field("path", &self.site.path).finish_non_exhaustive()
    }
}

/// Renewals in one call that are done in the caller's own future.
const RENEWED_INLINE_MAX: usize = 32;

struct Acquire(Claim);
struct Renew(Vec<RenewRequest>);
struct Release(ReleaseRequest);
struct Command(OperatorCommand);
struct Watch {
    claim: ClaimRef,
    since: Cursor,
    at_most: Duration,
}

impl Work for Acquire {
    type Reply = Result<Verdict>;
    fn run(&self, ledger: &mut Ledger<'_>) -> Step<Self::Reply> {
        ledger.acquire(&self.0)
    }
}
impl Work for Renew {
    type Reply = Vec<Result<Renewal>>;
    fn is_long(&self) -> bool {
        self.0.len() > RENEWED_INLINE_MAX
    }
    fn run(&self, ledger: &mut Ledger<'_>) -> Step<Self::Reply> {
        self.0.iter().map(|held| ledger.renew(held)).collect()
    }
}
impl Work for Release {
    type Reply = Released;
    fn run(&self, ledger: &mut Ledger<'_>) -> Step<Self::Reply> {
        ledger.release(&self.0)
    }
}
impl Work for Command {
    type Reply = Result<CommandOutcome>;
    fn run(&self, ledger: &mut Ledger<'_>) -> Step<Self::Reply> {
        ledger.order(&self.0)
    }
}
impl Work for Watch {
    type Reply = Prospect;
    fn run(&self, ledger: &mut Ledger<'_>) -> Step<Self::Reply> {
        ledger.watch(&self.claim, self.since, self.at_most)
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

    async fn acquire(&self, claim: &Claim) -> Result<Verdict> {
        let at = |error: Error| error.at(Verb::Acquire, NAME).on(&claim.resource);
        if claim.note.as_ref().is_some_and(|note| note.len() > NOTE_MAX) {
            let error = Error::new(ErrorKind::Limit, format!("a note has at most {NOTE_MAX} bytes"));
            return Err(at(error));
        }
        self.desk.run(Acquire(claim.clone())).await.flatten().map_err(at)
    }

    async fn renew(&self, held: &[RenewRequest]) -> Vec<Result<Renewal>> {
        let at = |error: Error, held: &RenewRequest| error.at(Verb::Renew, NAME).on(&held.resource);
        match self.desk.run(Renew(held.to_vec())).await {
            Ok(answers) => {
                let answers = answers.into_iter().zip(held);
                answers.map(|(answer, held)| answer.map_err(|error| at(error, held))).collect()
            }
            Err(error) => held.iter().map(|held| Err(at(error.clone(), held))).collect(),
        }
    }

    async fn release(&self, request: &ReleaseRequest) -> Result<Released> {
        let at = |error: Error| error.at(Verb::Release, NAME).on(&request.resource);
        self.desk.run(Release(request.clone())).await.map_err(at)
    }

    async fn wait(&self, claim: &ClaimRef, since: &Cursor, at_most: Duration) -> Result<()> {
        let mut enough = self.site.environment.sleep(at_most);
        let mut woken = pin!(self.wait_for_news(claim, *since, at_most));
        poll_fn(move |cx| match woken.as_mut().poll(cx) {
            Poll::Pending => enough.as_mut().poll(cx).map(Ok),
            ready => ready,
        })
        .await
        .map_err(|error| error.at(Verb::Wait, NAME).on(&claim.resource))
    }

    async fn inspect(&self, query: &Query) -> Result<Page> {
        let answer = self.inspector.inspect(&self.site, query).await;
        answer.map_err(|error| error.at(Verb::Inspect, NAME))
    }

    async fn order(&self, order: &OperatorCommand) -> Result<CommandOutcome> {
        let at = |error: Error| error.at(Verb::Order, NAME).on(&order.resource);
        self.desk.run(Command(order.clone())).await.flatten().map_err(at)
    }
}

impl Sqlite {
    async fn wait_for_news(&self, claim: &ClaimRef, since: Cursor, at_most: Duration) -> Result<()> {
        let waiting = self.site.waiters.begin(claim);
        self.listener.attend(&self.site).map_err(|error| {
            Error::new(ErrorKind::Unavailable, "cannot listen for changes").because(error)
        })?;
        match self.desk.run(Watch { claim: claim.clone(), since, at_most }).await? {
            Prospect::News => return Ok(()),
            Prospect::QueueEntry => waiting.has_place(),
            Prospect::Unplaced { version } => waiting.knows(version),
        }
        waiting.woken().await;
        Ok(())
    }
}
