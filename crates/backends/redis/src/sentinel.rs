//! Sentinels: where the primary is, since which epoch, and when that changes.
//!
//! - [`find_primary`] asks all Sentinels of the URL at once, for a new connection.
//! - [`watch_primary`] is a task that follows one Sentinel after the other, so that connections to an old
//!   primary are left soon after a failover. The message `+switch-master` only triggers a question; the reply
//!   to the question counts.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use leasehold_core::{Backoff, Environment, Error, ErrorKind};
use leasehold_support::race::{Either, first};
use redis::{Pipeline, PushInfo, PushKind, Value, aio::MultiplexedConnection};
use tokio::sync::mpsc;

use crate::{
    config::Config,
    connect::{self, Peer, ServerAddress},
    connection::Connections,
    error::{StoreError, unavailable},
    join,
};

/// How often a Sentinel that sends nothing is asked where the primary is.
const HEARTBEAT: Duration = Duration::from_secs(5);

/// Asks all Sentinels at once and takes the newest epoch, once a majority of them has replied: a Sentinel
/// that was cut off from the others still names the old primary.
pub(crate) async fn find_primary(config: &Config, service: &str) -> Result<ServerAddress, StoreError> {
    let asking: Vec<_> = config.hosts.iter().map(|(host, port)| ask(config, host, *port, service)).collect();
    let majority = asking.len() / 2 + 1;
    let (addresses, errors) = join::join_until(asking, majority).await;
    let newest = addresses.into_iter().max_by_key(|address| address.epoch);
    let no_host = || unavailable("no Sentinel is named in the URL");
    newest.ok_or_else(|| StoreError::most_specific(errors).unwrap_or_else(no_host))
}

async fn ask(config: &Config, host: &str, port: u16, service: &str) -> Result<ServerAddress, StoreError> {
    let mut driver = open(config, host, port, None).await?;
    locate(&mut driver, host, port, service).await
}

async fn open(
    config: &Config,
    host: &str,
    port: u16,
    pushes: Option<mpsc::UnboundedSender<PushInfo>>,
) -> Result<MultiplexedConnection, StoreError> {
    let opened = connect::open(config, Peer::sentinel(host, port), pushes).await;
    opened.map_err(|error| name_sentinel(error, host, port))
}

/// Adds the address of the Sentinel to an error. If the error is about a password, also adds which options
/// set it: the password in the URL is for the server, not for the Sentinel.
fn name_sentinel(error: StoreError, host: &str, port: u16) -> StoreError {
    let error = match error.for_peer("the Sentinel at ", host, port) {
        StoreError::Translated(error) if error.kind() == ErrorKind::Denied => error,
        other => return other,
    };
    let text = error.to_string();
    if !text.contains("password") || text.contains("file") {
        return StoreError::Translated(error);
    }
    let message = format!("{text}: set sentinel_user and sentinel_password_file for the Sentinels");
    StoreError::Translated(Error::new(ErrorKind::Denied, message).because(error))
}

/// Asks a Sentinel where the primary is.
///
/// The reply is not checked for misdelivery: the reply to another request could only be an old one, as of a
/// Sentinel that was cut off, and the server that it leads to says itself whether it is a primary.
async fn locate(
    driver: &mut MultiplexedConnection,
    host: &str,
    port: u16,
    service: &str,
) -> Result<ServerAddress, StoreError> {
    // Two questions: during a failover `SENTINEL MASTER` already has the new epoch and still the old address.
    let mut questions = Pipeline::with_capacity(2);
    questions.cmd("SENTINEL").arg("MASTER").arg(service);
    questions.cmd("SENTINEL").arg("GET-MASTER-ADDR-BY-NAME").arg(service);
    let replies = driver.send_packed_commands(&questions, 0, 2).await;
    let name = |error| name_sentinel(StoreError::Connect(error), host, port);
    let mut replies = replies.map_err(name)?.into_iter();
    let mut next = || replies.next().unwrap_or(Value::Nil).extract_error();
    let fields = next().map_err(|error| {
        if error.detail().unwrap_or_default().contains("No such master") {
            unavailable(format!("the Sentinel at {host}:{port} knows no service {service:?}"))
        } else {
            name(error)
        }
    })?;
    let fields = as_pairs(&fields);
    let field = |name: &str| fields.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str());
    let number = |name: &str| field(name).and_then(|value| value.parse::<u64>().ok());
    // A user may be allowed the first question alone: then its address has to do.
    let named = next().ok().and_then(|address| as_pairs(&address).pop());
    let described = || Some((field("ip")?.to_owned(), field("port")?.to_owned()));
    let address = named.or_else(described).and_then(|(host, port)| Some((host, port.parse().ok()?)));
    let Some((ip, port)) = address else {
        let message = format!("the Sentinel at {host}:{port} does not say where {service:?} is");
        return Err(unavailable(message));
    };
    let replicas = number("num-slaves").and_then(|n| u32::try_from(n).ok()).unwrap_or(0);
    Ok(ServerAddress { host: ip, port, epoch: number("config-epoch").unwrap_or(0), replicas })
}

/// Pairs of texts, from a map or from a flat list.
fn as_pairs(value: &Value) -> Vec<(String, String)> {
    let text = |value: &Value| match value {
        Value::BulkString(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        Value::SimpleString(text) => text.clone(),
        _ => String::new(),
    };
    match value {
        Value::Map(pairs) => pairs.iter().map(|(key, value)| (text(key), text(value))).collect(),
        Value::Array(items) => items.chunks_exact(2).map(|pair| (text(&pair[0]), text(&pair[1]))).collect(),
        _ => Vec::new(),
    }
}

/// Gets a call with the address of the primary.
pub(crate) trait PrimaryObserver: Send + Sync + 'static {
    fn primary_is(&self, address: &ServerAddress);
}

/// Tells the connections and the observer where the primary is, until the connections are dropped.
///
/// Subscribes to `+switch-master` at one Sentinel after the other. A message may be lost, so the Sentinel is
/// also asked after each subscription and every [`HEARTBEAT`].
pub(crate) async fn watch_primary<O: PrimaryObserver>(
    connections: Weak<Connections>,
    observer: Weak<O>,
    environment: Arc<dyn Environment>,
) {
    let mut backoff = Backoff::new();
    let mut next = 0;
    loop {
        let Some(config) = connections.upgrade().map(|connections| connections.config.clone()) else {
            return;
        };
        // The next Sentinel each time: this one may be cut off from the others.
        let (host, port) = &config.hosts[next % config.hosts.len()];
        next += 1;
        if let Ok((driver, messages)) = subscribe(&config, host, *port).await {
            let service = config.service.clone().unwrap_or_default();
            let subscription =
                SentinelSubscription { host: host.clone(), port: *port, service, driver, messages };
            match subscription.report_primary(&connections, &observer, &environment).await {
                SubscriptionEnd::ClientDropped => return,
                SubscriptionEnd::LostAfterReport => backoff = Backoff::new(),
                SubscriptionEnd::NeverReported => {}
            }
        }
        environment.sleep(backoff.next(environment.random())).await;
    }
}

async fn subscribe(
    config: &Config,
    host: &str,
    port: u16,
) -> Result<(MultiplexedConnection, mpsc::UnboundedReceiver<PushInfo>), StoreError> {
    let (sender, messages) = mpsc::unbounded_channel();
    let mut driver = open(config, host, port, Some(sender)).await?;
    match driver.subscribe("+switch-master").await.map_err(StoreError::Connect) {
        Err(error) if error.clone().into_error().kind() == ErrorKind::Denied => {
            let error = name_sentinel(error, host, port).into_error();
            tracing::warn!(%error, "may not subscribe to failovers: the Sentinel is asked every few seconds instead");
        }
        Err(error) => return Err(error),
        Ok(()) => {}
    }
    Ok((driver, messages))
}

/// A subscription to one Sentinel.
struct SentinelSubscription {
    host: String,
    port: u16,
    service: String,
    driver: MultiplexedConnection,
    messages: mpsc::UnboundedReceiver<PushInfo>,
}

/// How a [`SentinelSubscription`] ended.
enum SubscriptionEnd {
    ClientDropped,
    /// The connection was lost, or the Sentinel stopped saying where the primary is.
    LostAfterReport,
    /// The Sentinel never said where the primary is.
    NeverReported,
}

impl SentinelSubscription {
    /// Reports where the primary is until the connection is lost, or the Sentinel does not say.
    async fn report_primary<O: PrimaryObserver>(
        mut self,
        connections: &Weak<Connections>,
        observer: &Weak<O>,
        environment: &Arc<dyn Environment>,
    ) -> SubscriptionEnd {
        let mut end = SubscriptionEnd::NeverReported;
        loop {
            let located = locate(&mut self.driver, &self.host, self.port, &self.service).await;
            let (Some(connections), Some(observer)) = (connections.upgrade(), observer.upgrade()) else {
                return SubscriptionEnd::ClientDropped;
            };
            let Ok(primary) = located else { return end };
            end = SubscriptionEnd::LostAfterReport;
            connections.primary_is(&primary);
            observer.primary_is(&primary);
            // Not kept while it waits, so that this task ends with its client.
            drop((connections, observer));
            if !self.wait_for_change(environment).await {
                return end;
            }
        }
    }

    /// Resolves when the Sentinel has to be asked: it announced a failover, or sent nothing for
    /// [`HEARTBEAT`]. Returns false if the connection is lost.
    async fn wait_for_change(&mut self, environment: &Arc<dyn Environment>) -> bool {
        let mut heartbeat = environment.sleep(HEARTBEAT);
        loop {
            match first(self.messages.recv(), &mut heartbeat).await {
                Either::Left(Some(push)) if push.kind == PushKind::Message => {
                    if is_about(&push, &self.service) {
                        return true;
                    }
                }
                Either::Left(Some(push)) if push.kind != PushKind::Disconnection => {}
                Either::Left(_) => return false,
                Either::Right(()) => return true,
            }
        }
    }
}

/// Whether a message is about this service: `service old-host old-port new-host new-port`.
fn is_about(push: &PushInfo, service: &str) -> bool {
    let Some(Value::BulkString(message)) = push.data.get(1) else { return false };
    String::from_utf8_lossy(message).split(' ').next() == Some(service)
}
