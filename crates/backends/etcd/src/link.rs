//! The way to the members: one of them at a time, and the next one when it fails.
//!
//! A client that spreads its calls over all members has a part of them fail for as long as one member is down. One
//! member at a time costs the same, and a failure is met once.

use std::{
    fmt,
    future::Future,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering},
    },
    time::Duration,
};

use etcd_client::{Client, ConnectOptions, Error as Driver, KvClient};
use leasehold_core::{
    Environment, Error, ErrorKind, Moment,
    race::{Either, first},
};
use tokio::sync::watch;

use crate::{config::Config, error::Fault, proof::Seen};

/// How often a silent connection is asked whether it lives. etcd takes more often than every 5 s for an attack.
const PING_EVERY: Duration = Duration::from_secs(10);
const PING_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a member has for what may be asked of another one as well.
const SOON: Duration = Duration::from_secs(1);
/// How long a member that could not be reached is left aside, if there are others.
const AVOID_FOR: Duration = Duration::from_secs(10);
/// How often a member without a leader is asked again.
const LEADER_EVERY: Duration = Duration::from_millis(50);
/// A change that was not answered for this long may be lost with the leader.
const SUSPECT_AFTER: Duration = Duration::from_millis(300);
/// How often it is looked whether there is another leader by then.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// A call that is dropped after this long was given up; before, its caller has other reasons.
const GIVEN_UP: Duration = Duration::from_millis(300);
/// A line of a thousand readers is some hundred kilobytes; more than this is not read at once.
const MESSAGE_MAX: usize = 64 << 20;

pub(crate) struct Link {
    pub(crate) config: Config,
    pub(crate) environment: Arc<dyn Environment>,
    members: Mutex<Vec<Slot>>,
    /// Held by whoever makes a connection: how that ended last, if it failed.
    opening: tokio::sync::Mutex<Option<Fault>>,
    /// How often that was tried.
    attempts: AtomicU64,
    /// Counts how often we moved on: the member is this modulo their number.
    moves: watch::Sender<usize>,
    /// The cluster that the first answer named; zero before.
    cluster: AtomicU64,
    /// The highest revision seen.
    revision: AtomicI64,
    /// The highest term of a leader seen.
    term: AtomicU64,
}

/// How long a request may take.
#[derive(Clone, Copy, Debug)]
struct Patience {
    /// How long a member has to answer.
    answer: Duration,
    /// It may be asked twice: the next member is asked if this one fails.
    twice: bool,
}

impl Patience {
    fn once(answer: Duration) -> Patience {
        Patience { answer, twice: false }
    }
}

/// A call under way. Its caller may have less patience than we have: given up after a while, it blames the member too,
/// or a renewal would be sent to the same dead one again and again.
struct Attempt<'a> {
    link: &'a Link,
    wire: &'a Wire,
    began: Moment,
    over: bool,
}

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        if !self.over && self.began.until(self.link.environment.now()) >= GIVEN_UP {
            self.link.judge(self.wire, &Fault::Silent);
        }
    }
}

/// A way to one member.
#[derive(Clone)]
pub(crate) struct Wire {
    pub(crate) member: Arc<Member>,
    move_number: usize,
}

/// A member, as it is talked to.
pub(crate) struct Member {
    pub(crate) client: Client,
    /// The part of the client that reads and writes: the whole one is a dozen parts, and every call clones what it uses.
    kv: KvClient,
    /// It has answered before: a connection stands, or stood.
    proven: AtomicBool,
}

/// What there is of one host of the URL.
#[derive(Default)]
struct Slot {
    /// The connection to it, if there is one.
    member: Option<Arc<Member>>,
    /// When it could not be reached last.
    failed: Option<Moment>,
    /// How often in a row that was so before it had ever answered.
    in_vain: u32,
}

impl Slot {
    /// Whether others come first. A member that hangs is found out by a timeout only: during an election, when every member
    /// is left for the next one, that would be paid again and again.
    fn is_avoided(&self, now: Moment) -> bool {
        self.failed.is_some_and(|failed| failed.until(now) < AVOID_FOR)
    }

    /// How much longer than an answer the first answer may take: a second, because a host that is there and does not
    /// answer looks the same, and twice as long each time that this was not enough.
    fn connecting(&self, most: Duration) -> Duration {
        most.min(SOON.saturating_mul(1 << self.in_vain.min(16)))
    }
}

impl Member {
    fn new(client: Client) -> Arc<Member> {
        let kv = client.kv_client().max_decoding_message_size(MESSAGE_MAX);
        let kv = kv.max_encoding_message_size(MESSAGE_MAX);
        Arc::new(Member { client, kv, proven: AtomicBool::new(false) })
    }
}

impl Link {
    pub(crate) fn new(config: Config, environment: Arc<dyn Environment>) -> Link {
        let members = Mutex::new(config.hosts.iter().map(|_| Slot::default()).collect());
        Link {
            config,
            environment,
            members,
            opening: tokio::sync::Mutex::default(),
            attempts: AtomicU64::new(0),
            moves: watch::Sender::new(0),
            cluster: AtomicU64::new(0),
            revision: AtomicI64::new(0),
            term: AtomicU64::new(0),
        }
    }

    /// Tells whenever another member is used from now on.
    pub(crate) fn moves(&self) -> watch::Receiver<usize> {
        self.moves.subscribe()
    }

    fn members(&self) -> MutexGuard<'_, Vec<Slot>> {
        self.members.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A way to the member whose turn it is. If there is none it is made, by one for all: a login costs a server more than
    /// anything else that we ask of it.
    pub(crate) async fn wire(&self) -> Result<Wire, Fault> {
        let mut fault = Fault::Strange("no member is known".to_owned());
        for _ in &self.config.hosts {
            if let Some(wire) = self.kept() {
                return Ok(wire);
            }
            let before = self.attempts.load(Ordering::Relaxed);
            let mut failure = self.opening.lock().await;
            if let Some(wire) = self.kept() {
                return Ok(wire);
            }
            // Who waited while another tried in vain has its answer: else a crowd would wait one after the other.
            let tried = self.attempts.load(Ordering::Relaxed) != before;
            let failed = match failure.clone().filter(|_| tried) {
                Some(failed) => failed,
                None => match self.open_next().await {
                    Ok(wire) => {
                        *failure = None;
                        return Ok(wire);
                    }
                    Err(failed) => failure.insert(failed).clone(),
                },
            };
            if let Fault::Refused(_) = failed {
                return Err(failed);
            }
            fault = failed;
        }
        Err(fault)
    }

    /// The way that there is to the member whose turn it is.
    fn kept(&self) -> Option<Wire> {
        let move_number = *self.moves.borrow();
        let member = self.members()[move_number % self.config.hosts.len()].member.clone()?;
        Some(Wire { member, move_number })
    }

    /// Opens a way to the member whose turn it is, or passes the turn on.
    async fn open_next(&self) -> Result<Wire, Fault> {
        let move_number = *self.moves.borrow();
        let index = move_number % self.config.hosts.len();
        let opened = self.open(index).await;
        self.attempts.fetch_add(1, Ordering::Relaxed);
        match opened {
            Ok(client) => {
                let member = Member::new(client);
                self.members()[index].member = Some(Arc::clone(&member));
                Ok(Wire { member, move_number })
            }
            Err(fault) => {
                if !matches!(fault, Fault::Refused(_)) {
                    self.move_on(move_number, &fault);
                }
                Err(fault)
            }
        }
    }

    async fn open(&self, index: usize) -> Result<Client, Fault> {
        let (host, port) = &self.config.hosts[index];
        let options = self.options()?;
        let scheme = if self.config.tls { "https" } else { "http" };
        let opening = Client::connect([format!("{scheme}://{host}:{port}")], Some(options));
        let patience = self.config.connect_timeout + self.config.timeout;
        match first(opening, self.environment.sleep(patience)).await {
            Either::Left(opened) => opened.map_err(Fault::from),
            // A login was sent at the most: it changes nothing.
            Either::Right(()) => Err(Fault::NotSent("no answer in time".to_owned())),
        }
        .map_err(|fault| fault.of_member(host, *port))
    }

    fn options(&self) -> Result<ConnectOptions, Fault> {
        let mut options = ConnectOptions::new()
            .with_connect_timeout(self.config.connect_timeout)
            .with_keep_alive(PING_EVERY, PING_TIMEOUT)
            .with_require_leader(true);
        if let Some(user) = &self.config.user {
            let password = self.config.password().map_err(Fault::Refused)?;
            options = options.with_user(user, password).with_auto_token_refresh(true);
        }
        if self.config.tls {
            options = secure(options, &self.config)?;
        }
        Ok(options)
    }

    /// From now on another member is used, unless someone has moved on since.
    fn move_on(&self, from: usize, fault: &Fault) {
        let now = self.environment.now();
        self.moves.send_if_modified(|number| {
            if *number != from {
                return false;
            }
            let mut members = self.members();
            let count = members.len();
            let slot = &mut members[from % count];
            if fault.is_unreachable() {
                let answered =
                    slot.member.as_ref().is_some_and(|member| member.proven.load(Ordering::Relaxed));
                slot.failed = Some(now);
                slot.in_vain = if answered { 0 } else { slot.in_vain.saturating_add(1) };
            }
            if fault.breaks_connection() {
                slot.member = None;
            }
            let fit = |step: &usize| !members[(from + step) % count].is_avoided(now);
            *number += (1..count).find(fit).unwrap_or(1);
            true
        });
    }

    /// What becomes of the way after a fault.
    pub(crate) fn judge(&self, wire: &Wire, fault: &Fault) {
        if fault.blames_member() {
            tracing::debug!(?fault, "etcd: on to the next member");
            self.move_on(wire.move_number, fault);
        }
    }

    /// Asks a member, or the next one if nothing could be sent. `check` says what an answer shows, or why it is not
    /// believed.
    pub(crate) async fn call<T, F>(
        &self,
        ask: impl Fn(Client) -> F,
        check: impl Fn(&T, Seen) -> Result<Seen, Fault>,
    ) -> Result<T, Fault>
    where
        F: Future<Output = Result<T, Driver>>,
    {
        let ask = |member: &Member| ask(member.client.clone());
        self.try_members(ask, check, Patience::once(self.config.timeout)).await
    }

    /// The same for a transaction.
    pub(crate) async fn call_kv<T, F>(
        &self,
        ask: impl Fn(KvClient) -> F,
        check: impl Fn(&T, Seen) -> Result<Seen, Fault>,
    ) -> Result<T, Fault>
    where
        F: Future<Output = Result<T, Driver>>,
    {
        let ask = |member: &Member| ask(member.kv.clone());
        self.try_members(ask, check, Patience::once(self.config.timeout)).await
    }

    /// The same for what may be asked twice: the next member is asked if this one does not answer soon.
    pub(crate) async fn call_again<T, F>(
        &self,
        ask: impl Fn(Client) -> F,
        check: impl Fn(&T, Seen) -> Result<Seen, Fault>,
    ) -> Result<T, Fault>
    where
        F: Future<Output = Result<T, Driver>>,
    {
        self.try_members(|member| ask(member.client.clone()), check, self.again()).await
    }

    /// The same for a transaction that only reads.
    pub(crate) async fn call_kv_again<T, F>(
        &self,
        ask: impl Fn(KvClient) -> F,
        check: impl Fn(&T, Seen) -> Result<Seen, Fault>,
    ) -> Result<T, Fault>
    where
        F: Future<Output = Result<T, Driver>>,
    {
        self.try_members(|member| ask(member.kv.clone()), check, self.again()).await
    }

    fn again(&self) -> Patience {
        let timeout = self.config.timeout;
        if self.config.hosts.len() == 1 {
            Patience::once(timeout)
        } else {
            Patience { answer: timeout.min(SOON), twice: true }
        }
    }

    async fn try_members<T, F>(
        &self,
        ask: impl Fn(&Member) -> F,
        check: impl Fn(&T, Seen) -> Result<Seen, Fault>,
        patience: Patience,
    ) -> Result<T, Fault>
    where
        F: Future<Output = Result<T, Driver>>,
    {
        let began = self.environment.now();
        let until = began.after(self.config.timeout);
        let (mut left, mut leaderless_since) = (self.config.hosts.len(), None);
        loop {
            let wire = self.wire().await?;
            let fault = match self.ask_member(&wire, ask(&wire.member), &check, patience).await {
                Ok(answer) => return Ok(answer),
                Err(fault) => fault,
            };
            let now = self.environment.now();
            if now < until && (fault.is_leaderless() || (patience.twice && fault.is_leader_change())) {
                // An election takes a second or two. Whoever asks is served the moment that there is a leader; the pauses
                // of the engine between attempts would be longer. This member answers, another one may not: it is left
                // only if it seems to be cut off.
                if leaderless_since.get_or_insert(now).until(now) >= SOON {
                    self.judge(&wire, &fault);
                }
                self.environment.sleep(LEADER_EVERY).await;
                continue;
            }
            self.judge(&wire, &fault);
            let again = fault.was_not_sent() || (patience.twice && fault.blames_member());
            if !again || left == 0 {
                return Err(fault);
            }
            left -= 1;
        }
    }

    /// One request to one member.
    async fn ask_member<T>(
        &self,
        wire: &Wire,
        request: impl Future<Output = Result<T, Driver>>,
        check: impl Fn(&T, Seen) -> Result<Seen, Fault>,
        patience: Patience,
    ) -> Result<T, Fault> {
        let seen = self.seen();
        let connecting = self.connecting(wire);
        let mut attempt = Attempt { link: self, wire, began: self.environment.now(), over: false };
        let given_up = first(
            self.environment.sleep(patience.answer + connecting),
            self.given_up_by(&wire.member, seen.term, (patience, connecting)),
        );
        let outcome = first(request, given_up).await;
        attempt.over = true;
        drop(attempt);
        let (host, port) = &self.config.hosts[wire.move_number % self.config.hosts.len()];
        match outcome {
            Either::Left(Ok(answer)) => {
                let shown = check(&answer, seen).map_err(|fault| fault.of_member(host, *port))?;
                self.saw(shown);
                if !wire.member.proven.swap(true, Ordering::Relaxed) {
                    self.members()[wire.move_number % self.config.hosts.len()].in_vain = 0;
                }
                Ok(answer)
            }
            Either::Left(Err(error)) => Err(Fault::from(error).of_member(host, *port)),
            Either::Right(Either::Left(())) => Err(Fault::Silent),
            Either::Right(Either::Right(fault)) => Err(fault),
        }
    }

    /// Resolves when a change that has not been answered will probably not be.
    ///
    /// The member has another leader by now than when it was asked: it had passed the change on to the old one, and waits
    /// for that much longer than we do. Nothing else tells us. A member notices its leader's death only after an election
    /// timeout, and takes changes until then. Or the member does not even say which leader it has, which it knows by itself.
    async fn given_up_by(
        &self,
        member: &Member,
        term: u64,
        (patience, connecting): (Patience, Duration),
    ) -> Fault {
        if patience.twice || self.config.hosts.len() == 1 {
            return std::future::pending().await;
        }
        self.environment.sleep(SUSPECT_AFTER).await;
        // Boxed: the usual call need not carry it along.
        Box::pin(self.another_leader(member, term, SOON + connecting)).await
    }

    /// A leader of a later term; if none is known, than the one that there is now.
    async fn another_leader(&self, member: &Member, mut term: u64, patience: Duration) -> Fault {
        loop {
            let mut client = member.client.maintenance_client();
            match first(client.status(), self.environment.sleep(patience)).await {
                Either::Left(Ok(status))
                    if status.leader() != 0 && term != 0 && status.raft_term() > term =>
                {
                    self.term.fetch_max(status.raft_term(), Ordering::Relaxed);
                    // An answer may be on its way.
                    self.environment.sleep(LOOK_EVERY).await;
                    return Fault::LeaderChanged;
                }
                Either::Left(Ok(status)) if term == 0 => term = status.raft_term(),
                Either::Left(_) => {}
                Either::Right(()) => return Fault::Silent,
            }
            self.environment.sleep(LOOK_EVERY).await;
        }
    }

    /// How much longer an answer may take because there may be no connection yet.
    fn connecting(&self, wire: &Wire) -> Duration {
        if wire.member.proven.load(Ordering::Relaxed) {
            return Duration::ZERO;
        }
        let (most, count) = (self.config.connect_timeout, self.config.hosts.len());
        if count == 1 { most } else { self.members()[wire.move_number % count].connecting(most) }
    }

    fn seen(&self) -> Seen {
        Seen {
            cluster: self.cluster.load(Ordering::Relaxed),
            revision: self.revision.load(Ordering::Relaxed),
            term: self.term.load(Ordering::Relaxed),
        }
    }

    /// Remembers what an answer has shown.
    fn saw(&self, shown: Seen) {
        let _ = self.cluster.compare_exchange(0, shown.cluster, Ordering::Relaxed, Ordering::Relaxed);
        self.revision.fetch_max(shown.revision, Ordering::Relaxed);
        self.term.fetch_max(shown.term, Ordering::Relaxed);
    }

    pub(crate) fn highest_seen(&self) -> i64 {
        self.revision.load(Ordering::Relaxed)
    }
}

#[cfg(feature = "tls")]
fn secure(options: ConnectOptions, config: &Config) -> Result<ConnectOptions, Fault> {
    use etcd_client::{Certificate, Identity, TlsOptions};
    let read = |path: &std::path::Path| {
        std::fs::read(path).map_err(|error| {
            let message = format!("cannot read {}", path.display());
            Fault::Refused(Error::new(ErrorKind::Invalid, message).because(error))
        })
    };
    let mut tls = match &config.ca_file {
        Some(path) => TlsOptions::new().ca_certificate(Certificate::from_pem(read(path)?)),
        None => TlsOptions::new().with_webpki_roots(),
    };
    if let (Some(cert), Some(key)) = (&config.cert_file, &config.key_file) {
        tls = tls.identity(Identity::from_pem(read(cert)?, read(key)?));
    }
    if let Some(name) = &config.server_name {
        tls = tls.domain_name(name);
    }
    Ok(options.with_tls(tls))
}

#[cfg(not(feature = "tls"))]
fn secure(_: ConnectOptions, _: &Config) -> Result<ConnectOptions, Fault> {
    let message = "this build has no TLS for etcd: build leasehold with the feature \"etcd-tls\"";
    Err(Fault::Refused(Error::new(ErrorKind::Unsupported, message)))
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link").field("config", &self.config).finish_non_exhaustive()
    }
}
