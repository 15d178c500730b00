//! The connections to the members: one member is used at a time, and the next one when it fails.
//!
//! A client that spreads its requests over all members has a part of them fail for as long as one member is
//! down. With one member at a time a failure is met once, and the cost for the cluster is the same.
//!
//! 1. The members are used in turn. `turn` counts how often the client has moved on; the member in use is
//!    `turn` modulo the number of hosts in the URL.
//! 2. A caller takes the connection to that member. If there is none, one caller connects for all
//!    ([`ConnectOnce`]): a login costs etcd more than any other request.
//! 3. When a request fails and the member may be the cause, [`Connections::report_failure`] moves on to the
//!    next member. Members that could not be reached lately are skipped if there are others.
//!
//! How a request is sent, and how long it may take, is in `call_member.rs`.

use std::{
    fmt,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering},
    },
    time::Duration,
};

use etcd_client::{Client, ConnectOptions, KvClient};
use leasehold_core::{Environment, Timestamp};
use leasehold_support::{
    ConnectOnce,
    race::{Either, first},
};
use tokio::sync::watch;

use crate::{config::Config, error::StoreError, verify_reply::HeaderInfo};

/// How often an idle connection is tested with an HTTP/2 ping. etcd closes connections that send more than
/// one in 5 s.
const PING_INTERVAL: Duration = Duration::from_secs(10);
const PING_TIMEOUT: Duration = Duration::from_secs(5);
/// How long one member may take for a request that can be repeated on another member.
pub(crate) const REPEATABLE_TIMEOUT: Duration = Duration::from_secs(1);
/// How long a member that could not be reached is skipped, if there are others.
const AVOID_UNREACHABLE_FOR: Duration = Duration::from_secs(10);
/// The largest message. A queue of a thousand readers is some hundred kilobytes, and the driver's default is
/// 4 MB.
const MESSAGE_BYTES_MAX: usize = 64 << 20;
/// Bounds the exponent of [`MemberSlot::extra_time_to_connect`], so that the shift cannot overflow.
const CONNECT_DOUBLINGS_MAX: u32 = 16;

/// The connections of one client, and what its replies have shown so far.
pub(crate) struct Connections {
    pub(crate) config: Config,
    pub(crate) environment: Arc<dyn Environment>,
    /// One for each host of the URL, in that order.
    slots: Mutex<Vec<MemberSlot>>,
    connect_once: ConnectOnce<StoreError>,
    /// How often the client has moved on to another member.
    turn: watch::Sender<usize>,
    /// The id of the cluster in the first reply; zero before.
    cluster: AtomicU64,
    /// The highest revision in any reply.
    revision: AtomicI64,
    /// The highest term of a leader in any reply.
    pub(crate) term: AtomicU64,
}

/// A connection to the member in use.
#[derive(Clone)]
pub(crate) struct Connection {
    pub(crate) member: Arc<MemberClient>,
    /// The turn in which it was taken. A failure counts only if the client has not moved on since.
    pub(crate) turn: usize,
}

/// The driver's client of one member.
pub(crate) struct MemberClient {
    pub(crate) client: Client,
    /// The part of the client for reads, writes and transactions. Every request clones what it uses, and the
    /// whole client has a dozen parts.
    pub(crate) kv: KvClient,
    /// The member has replied over this client, so a connection exists or existed. The driver connects only
    /// with the first request.
    pub(crate) has_replied: AtomicBool,
}

/// What is known of one host of the URL.
#[derive(Default)]
pub(crate) struct MemberSlot {
    member: Option<Arc<MemberClient>>,
    /// When it could not be reached last.
    unreachable_at: Option<Timestamp>,
    /// How often in a row it could not be reached over a new connection.
    failed_connects: u32,
}

impl MemberSlot {
    /// Whether other members come first. A member that hangs is recognised only by a timeout. Without this
    /// rule that timeout would be paid again and again during an election, when the client moves from member
    /// to member.
    fn is_avoided(&self, now: Timestamp) -> bool {
        self.unreachable_at.is_some_and(|failed| failed.until(now) < AVOID_UNREACHABLE_FOR)
    }

    /// How much longer the first reply may take. One second, because a host that is up and does not reply
    /// looks the same as a slow one; doubled each time that it was not enough.
    pub(crate) fn extra_time_to_connect(&self, most: Duration) -> Duration {
        most.min(REPEATABLE_TIMEOUT.saturating_mul(1 << self.failed_connects.min(CONNECT_DOUBLINGS_MAX)))
    }
}

impl MemberClient {
    fn new(client: Client) -> Arc<MemberClient> {
        let kv = client.kv_client().max_decoding_message_size(MESSAGE_BYTES_MAX);
        let kv = kv.max_encoding_message_size(MESSAGE_BYTES_MAX);
        Arc::new(MemberClient { client, kv, has_replied: AtomicBool::new(false) })
    }
}

impl Connections {
    pub(crate) fn new(config: Config, environment: Arc<dyn Environment>) -> Connections {
        let slots = Mutex::new(config.hosts.iter().map(|_| MemberSlot::default()).collect());
        Connections {
            config,
            environment,
            slots,
            connect_once: ConnectOnce::default(),
            turn: watch::Sender::new(0),
            cluster: AtomicU64::new(0),
            revision: AtomicI64::new(0),
            term: AtomicU64::new(0),
        }
    }

    /// Signals each move to another member from now on.
    pub(crate) fn subscribe_to_moves(&self) -> watch::Receiver<usize> {
        self.turn.subscribe()
    }

    fn slots(&self) -> MutexGuard<'_, Vec<MemberSlot>> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn member_index(&self, turn: usize) -> usize {
        turn % self.config.hosts.len()
    }

    /// The host and port of the member of this connection.
    pub(crate) fn host_of(&self, connection: &Connection) -> (&str, u16) {
        let (host, port) = &self.config.hosts[self.member_index(connection.turn)];
        (host, *port)
    }

    /// A connection to the member in use. If there is none, one caller connects for all; if that fails, the
    /// next member is tried, each member once.
    pub(crate) async fn get(&self) -> Result<Connection, StoreError> {
        let mut last_error = StoreError::UnexpectedReply("no member is known".to_owned());
        for _ in &self.config.hosts {
            match self.connect_once.get(|| self.current(), || self.connect_next()).await {
                Ok(connection) => return Ok(connection),
                // Our own configuration is at fault, so another member would not help.
                Err(error @ StoreError::Refused(_)) => return Err(error),
                Err(error) => last_error = error,
            }
        }
        Err(last_error)
    }

    /// The connection to the member in use, if there is one.
    fn current(&self) -> Option<Connection> {
        let turn = *self.turn.borrow();
        let member = self.slots()[self.member_index(turn)].member.clone()?;
        Some(Connection { member, turn })
    }

    /// Connects to the member in use, or moves on to the next one if that fails.
    async fn connect_next(&self) -> Result<Connection, StoreError> {
        let turn = *self.turn.borrow();
        let index = self.member_index(turn);
        match self.connect_to(index).await {
            Ok(client) => {
                let member = MemberClient::new(client);
                self.slots()[index].member = Some(Arc::clone(&member));
                Ok(Connection { member, turn })
            }
            Err(error) => {
                // `Refused`: a file could not be read, or this build has no TLS. No member is at fault.
                if !matches!(error, StoreError::Refused(_)) {
                    self.move_on(turn, &error);
                }
                Err(error)
            }
        }
    }

    /// The client of a member, whether or not it is the one in use. One that is made is kept.
    pub(crate) async fn member(&self, index: usize) -> Result<Arc<MemberClient>, StoreError> {
        let known = self.slots()[index].member.clone();
        if let Some(member) = known {
            return Ok(member);
        }
        let made = MemberClient::new(self.connect_to(index).await?);
        // Another caller may have been faster.
        Ok(Arc::clone(self.slots()[index].member.get_or_insert(made)))
    }

    /// Drops the client of a member if the connection may be at fault, so that the next one connects.
    pub(crate) fn forget_if_broken(&self, index: usize, used: &Arc<MemberClient>, error: &StoreError) {
        if error.breaks_connection() {
            self.slots()[index].member.take_if(|member| Arc::ptr_eq(member, used));
        }
    }

    async fn connect_to(&self, index: usize) -> Result<Client, StoreError> {
        let (host, port) = &self.config.hosts[index];
        let options = self.connect_options()?;
        let scheme = if self.config.tls { "https" } else { "http" };
        let connecting = Client::connect([format!("{scheme}://{host}:{port}")], Some(options));
        let limit = self.config.connect_timeout + self.config.timeout;
        match first(connecting, self.environment.sleep(limit)).await {
            Either::Left(connected) => connected.map_err(StoreError::from),
            // At most a login was sent, and a login changes nothing: so this is not `Timeout`.
            Either::Right(()) => Err(StoreError::NotSent("no reply in time".to_owned())),
        }
        .map_err(|error| error.of_member(host, *port))
    }

    fn connect_options(&self) -> Result<ConnectOptions, StoreError> {
        let mut options = ConnectOptions::new()
            .with_connect_timeout(self.config.connect_timeout)
            .with_keep_alive(PING_INTERVAL, PING_TIMEOUT)
            // A member that is cut off from its leader then fails at once, instead of keeping requests and
            // watches.
            .with_require_leader(true);
        if let Some(user) = &self.config.user {
            let password = self.config.password().map_err(StoreError::Refused)?;
            options = options.with_user(user, password).with_auto_token_refresh(true);
        }
        if self.config.tls {
            options = with_tls(options, &self.config)?;
        }
        Ok(options)
    }

    /// Uses another member from now on, unless the client has moved on since `from`.
    fn move_on(&self, from: usize, error: &StoreError) {
        let now = self.environment.now();
        self.turn.send_if_modified(|turn| {
            if *turn != from {
                return false;
            }
            let mut slots = self.slots();
            let count = slots.len();
            let slot = &mut slots[from % count];
            // A member that replies with an error, such as a missing leader, is not skipped later: it is up.
            if error.is_unreachable() {
                let has_replied =
                    slot.member.as_ref().is_some_and(|member| member.has_replied.load(Ordering::Relaxed));
                slot.unreachable_at = Some(now);
                slot.failed_connects = if has_replied { 0 } else { slot.failed_connects.saturating_add(1) };
            }
            if error.breaks_connection() {
                slot.member = None;
            }
            let is_usable = |step: &usize| !slots[(from + step) % count].is_avoided(now);
            *turn += (1..count).find(is_usable).unwrap_or(1);
            true
        });
    }

    /// A request over this connection failed: moves on to the next member if this one may be the cause.
    pub(crate) fn report_failure(&self, connection: &Connection, error: &StoreError) {
        if error.blames_member() {
            let (host, port) = self.host_of(connection);
            tracing::debug!(?error, host, port, "etcd member failed, moving on to the next one");
            self.move_on(connection.turn, error);
        }
    }

    /// The member has replied over this connection.
    pub(crate) fn report_reply(&self, connection: &Connection) {
        if !connection.member.has_replied.swap(true, Ordering::Relaxed) {
            self.slots()[self.member_index(connection.turn)].failed_connects = 0;
        }
    }

    /// How much longer a reply may take because the driver may have to connect first.
    pub(crate) fn extra_time_to_connect(&self, connection: &Connection) -> Duration {
        if connection.member.has_replied.load(Ordering::Relaxed) {
            return Duration::ZERO;
        }
        let most = self.config.connect_timeout;
        if self.config.hosts.len() == 1 {
            // There is no other member to ask instead.
            return most;
        }
        self.slots()[self.member_index(connection.turn)].extra_time_to_connect(most)
    }

    /// The highest revision in any reply so far.
    pub(crate) fn highest_revision(&self) -> i64 {
        self.revision.load(Ordering::Relaxed)
    }

    /// What the replies have shown so far.
    pub(crate) fn known_header(&self) -> HeaderInfo {
        // Relaxed, and not one lock: each value only grows, so an older one only makes a check less strict.
        HeaderInfo {
            cluster: self.cluster.load(Ordering::Relaxed),
            revision: self.revision.load(Ordering::Relaxed),
            term: self.term.load(Ordering::Relaxed),
        }
    }

    /// Remembers the header of a reply that was accepted.
    pub(crate) fn remember_header(&self, header: HeaderInfo) {
        // Only the first reply sets the cluster: all later ones are compared with it.
        let _ = self.cluster.compare_exchange(0, header.cluster, Ordering::Relaxed, Ordering::Relaxed);
        self.revision.fetch_max(header.revision, Ordering::Relaxed);
        self.term.fetch_max(header.term, Ordering::Relaxed);
    }
}

#[cfg(feature = "tls")]
fn with_tls(options: ConnectOptions, config: &Config) -> Result<ConnectOptions, StoreError> {
    use etcd_client::{Certificate, Identity, TlsOptions};
    use leasehold_support::tls::read_pem;
    let mut tls = match &config.tls_files.ca {
        Some(path) => {
            let pem = read_pem(path).map_err(StoreError::Refused)?;
            TlsOptions::new().ca_certificate(Certificate::from_pem(pem))
        }
        None => TlsOptions::new().with_webpki_roots(),
    };
    if let Some((cert, key)) = config.tls_files.read_identity().map_err(StoreError::Refused)? {
        tls = tls.identity(Identity::from_pem(cert, key));
    }
    if let Some(name) = &config.server_name {
        tls = tls.domain_name(name);
    }
    Ok(options.with_tls(tls))
}

#[cfg(not(feature = "tls"))]
fn with_tls(_: ConnectOptions, _: &Config) -> Result<ConnectOptions, StoreError> {
    use leasehold_core::{Error, ErrorKind};
    let message = "this build has no TLS for etcd: build leasehold with the feature \"etcd-tls\"";
    Err(StoreError::Refused(Error::new(ErrorKind::Unsupported, message)))
}

impl fmt::Debug for Connections {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connections").field("config", &self.config).finish_non_exhaustive()
    }
}
