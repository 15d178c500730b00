//! The way to the members: one of them at a time, and the next one when it fails.
//!
//! A client that spreads its calls over all members has a part of them fail for as long as one member is down. One
//! member at a time costs the same, and a failure is met once.

use std::{
    fmt,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering},
    },
    time::Duration,
};

use etcd_client::{Client, ConnectOptions, KvClient};
use leasehold_core::{Environment, Error, ErrorKind, Timestamp};
use leasehold_support::race::{Either, first};
use tokio::sync::watch;

use crate::{config::Config, error::Fault};

/// How often a silent connection is asked whether it lives. etcd takes more often than every 5 s for an attack.
const PING_EVERY: Duration = Duration::from_secs(10);
const PING_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a member has for what may be asked of another one as well.
pub(crate) const SOON: Duration = Duration::from_secs(1);
/// How long a member that could not be reached is left aside, if there are others.
const AVOID_FOR: Duration = Duration::from_secs(10);
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
    pub(crate) cluster: AtomicU64,
    /// The highest revision seen.
    pub(crate) revision: AtomicI64,
    /// The highest term of a leader seen.
    pub(crate) term: AtomicU64,
}

/// A way to one member.
#[derive(Clone)]
pub(crate) struct Wire {
    pub(crate) member: Arc<Member>,
    pub(crate) move_number: usize,
}

/// A member, as it is talked to.
pub(crate) struct Member {
    pub(crate) client: Client,
    /// The part of the client that reads and writes: the whole one is a dozen parts, and every call clones what it uses.
    pub(crate) kv: KvClient,
    /// It has answered before: a connection stands, or stood.
    pub(crate) proven: AtomicBool,
}

/// What there is of one host of the URL.
#[derive(Default)]
pub(crate) struct Slot {
    /// The connection to it, if there is one.
    member: Option<Arc<Member>>,
    /// When it could not be reached last.
    failed: Option<Timestamp>,
    /// How often in a row that was so before it had ever answered.
    pub(crate) in_vain: u32,
}

impl Slot {
    /// Whether others come first. A member that hangs is found out by a timeout only: during an election, when every member
    /// is left for the next one, that would be paid again and again.
    fn is_avoided(&self, now: Timestamp) -> bool {
        self.failed.is_some_and(|failed| failed.until(now) < AVOID_FOR)
    }

    /// How much longer than an answer the first answer may take: a second, because a host that is there and does not
    /// answer looks the same, and twice as long each time that this was not enough.
    pub(crate) fn connecting(&self, most: Duration) -> Duration {
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

    pub(crate) fn members(&self) -> MutexGuard<'_, Vec<Slot>> {
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
