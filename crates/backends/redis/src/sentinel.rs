//! Sentinels: where the primary is, since which epoch, and when that changes.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use leasehold_core::{Backoff, Environment, Error, ErrorKind};
use redis::{Pipeline, PushInfo, PushKind, Value, aio::MultiplexedConnection};
use tokio::sync::mpsc;

use crate::{
    config::Config,
    error::Fault,
    link::Link,
    site::{self, Address, Role, unavailable},
    together,
};
use leasehold_support::race::{Either, first};

/// How often a silent Sentinel is asked where the primary is.
const HEARTBEAT: Duration = Duration::from_secs(5);

/// Asks all Sentinels at once, and believes the newest epoch that a majority of them has to offer: one that was cut off
/// still names the old primary.
pub(crate) async fn find_primary(config: &Config, service: &str) -> Result<Address, Fault> {
    let asked: Vec<_> = config.hosts.iter().map(|(host, port)| ask(config, host, *port, service)).collect();
    let majority = asked.len() / 2 + 1;
    let (answers, failures) = together::some(asked, majority).await;
    let newest = answers.into_iter().max_by_key(|address| address.epoch);
    newest.ok_or_else(|| Fault::clearest(failures).unwrap_or_else(|| unavailable("no Sentinel is named")))
}

async fn ask(config: &Config, host: &str, port: u16, service: &str) -> Result<Address, Fault> {
    let mut sentinel = open(config, host, port, None).await?;
    locate(&mut sentinel, host, port, service).await
}

async fn open(
    config: &Config,
    host: &str,
    port: u16,
    pushes: Option<mpsc::UnboundedSender<PushInfo>>,
) -> Result<MultiplexedConnection, Fault> {
    let opened = site::open(config, host, port, Role::Sentinel, pushes).await;
    opened.map_err(|fault| of_sentinel(fault, host, port))
}

/// The fault of a Sentinel; if it is about a password, with what to do. The one in the URL is the server's.
fn of_sentinel(fault: Fault, host: &str, port: u16) -> Fault {
    let error = match fault.of_peer(&format!("the Sentinel at {host}:{port}")) {
        Fault::Refused(error) if error.kind() == ErrorKind::Denied => error,
        other => return other,
    };
    let text = error.to_string();
    if !text.contains("password") || text.contains("file") {
        return Fault::Refused(error);
    }
    let message = format!("{text}: its own are sentinel_user and sentinel_password_file");
    Fault::Refused(Error::new(ErrorKind::Denied, message).because(error))
}

/// Where a Sentinel says that the primary is. An answer of another request can only be an old one, as of a Sentinel that
/// was cut off: it leads to a server that says itself whether it is a primary. While it fails over, the description of the service still has the old
/// address, and the new epoch; so the address is asked for by itself.
async fn locate(
    sentinel: &mut MultiplexedConnection,
    host: &str,
    port: u16,
    service: &str,
) -> Result<Address, Fault> {
    let mut questions = Pipeline::with_capacity(2);
    questions.cmd("SENTINEL").arg("MASTER").arg(service);
    questions.cmd("SENTINEL").arg("GET-MASTER-ADDR-BY-NAME").arg(service);
    let answers = sentinel.send_packed_commands(&questions, 0, 2).await;
    let mut answers = answers.map_err(|error| of_sentinel(Fault::Connect(error), host, port))?.into_iter();
    let mut answer = || answers.next().unwrap_or(Value::Nil).extract_error();
    let fields = answer().map_err(|error| {
        if error.detail().unwrap_or_default().contains("No such master") {
            unavailable(format!("the Sentinel at {host}:{port} knows no service {service:?}"))
        } else {
            of_sentinel(Fault::Connect(error), host, port)
        }
    })?;
    let fields = as_pairs(&fields);
    let field = |name: &str| fields.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str());
    let number = |name: &str| field(name).and_then(|value| value.parse::<u64>().ok());
    // Who may not ask for it has to do with the other one.
    let named = answer().ok().and_then(|address| as_pairs(&address).pop());
    let described = || Some((field("ip")?.to_owned(), field("port")?.to_owned()));
    let address = named.or_else(described).and_then(|(host, port)| Some((host, port.parse().ok()?)));
    let Some((ip, port)) = address else {
        let message = format!("the Sentinel at {host}:{port} does not say where {service:?} is");
        return Err(unavailable(message));
    };
    let replicas = number("num-slaves").and_then(|n| u32::try_from(n).ok()).unwrap_or(0);
    Ok(Address { host: ip, port, epoch: number("config-epoch").unwrap_or(0), replicas })
}

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

/// Who must know where the primary is.
pub(crate) trait Follower: Send + Sync + 'static {
    fn primary_is(&self, address: &Address);
}

/// Listens to one Sentinel after the other for `+switch-master`, until the link is gone. What it may have missed it asks
/// for: when it begins to listen, and now and then.
pub(crate) async fn follow<F: Follower>(
    link: Weak<Link>,
    follower: Weak<F>,
    environment: Arc<dyn Environment>,
) {
    let mut backoff = Backoff::new();
    let mut next = 0;
    loop {
        let Some(config) = link.upgrade().map(|link| link.config.clone()) else { return };
        let (host, port) = &config.hosts[next % config.hosts.len()];
        next += 1;
        if let Ok((connection, messages)) = subscribe(&config, host, *port).await {
            let service = config.service.clone().unwrap_or_default();
            let informant = Informant { host: host.clone(), port: *port, service, connection, messages };
            match informant.hear(&link, &follower, &environment).await {
                None => return,
                Some(true) => backoff = Backoff::new(),
                Some(false) => {}
            }
        }
        environment.sleep(backoff.next(environment.random())).await;
    }
}

type Subscription = (MultiplexedConnection, mpsc::UnboundedReceiver<PushInfo>);

async fn subscribe(config: &Config, host: &str, port: u16) -> Result<Subscription, Fault> {
    let (sender, messages) = mpsc::unbounded_channel();
    let mut connection = open(config, host, port, Some(sender)).await?;
    match connection.subscribe("+switch-master").await.map_err(Fault::Connect) {
        Err(fault) if fault.clone().into_error().kind() == ErrorKind::Denied => {
            let error = of_sentinel(fault, host, port).into_error();
            tracing::warn!(%error, "may not listen for failovers: the Sentinel is asked every few seconds");
        }
        Err(fault) => return Err(fault),
        Ok(()) => {}
    }
    Ok((connection, messages))
}

/// A Sentinel that is listened to.
struct Informant {
    host: String,
    port: u16,
    service: String,
    connection: MultiplexedConnection,
    messages: mpsc::UnboundedReceiver<PushInfo>,
}

impl Informant {
    /// Passes on where the primary is until the connection is dead, or the Sentinel does not say; whether it ever did.
    /// `None` if the client is gone.
    async fn hear<F: Follower>(
        mut self,
        link: &Weak<Link>,
        follower: &Weak<F>,
        environment: &Arc<dyn Environment>,
    ) -> Option<bool> {
        let mut told = false;
        loop {
            let located = locate(&mut self.connection, &self.host, self.port, &self.service).await;
            let (link, follower) = (link.upgrade()?, follower.upgrade()?);
            let Ok(primary) = located else { return Some(told) };
            told = true;
            link.primary_is(&primary);
            follower.primary_is(&primary);
            drop((link, follower));
            if !self.news(environment).await {
                return Some(true);
            }
        }
    }

    /// Resolves when the Sentinel is to be asked: it told of a failover, or has been silent for long. `false`: the
    /// connection is lost.
    async fn news(&mut self, environment: &Arc<dyn Environment>) -> bool {
        let mut nap = environment.sleep(HEARTBEAT);
        loop {
            match first(self.messages.recv(), &mut nap).await {
                Either::Left(Some(push)) if push.kind == PushKind::Message => {
                    if names(&push, &self.service) {
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
fn names(push: &PushInfo, service: &str) -> bool {
    let Some(Value::BulkString(message)) = push.data.get(1) else { return false };
    String::from_utf8_lossy(message).split(' ').next() == Some(service)
}
