//! Sentinels: where the primary is, since which epoch, and when that changes.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use leasehold_core::{Backoff, Environment};
use redis::{Cmd, PushInfo, PushKind, Value, aio::MultiplexedConnection};
use tokio::sync::mpsc;

use crate::{
    config::Config,
    error::Fault,
    link::Link,
    site::{self, Address, Role, unavailable},
    together,
};
use leasehold_core::race::{Either, first};

/// How often a silent Sentinel is asked whether it lives.
const HEARTBEAT: Duration = Duration::from_secs(5);

/// Asks all Sentinels at once, and believes the newest epoch that a majority of them has to offer: one that was cut off
/// still names the old primary.
pub(crate) async fn find_primary(config: &Config, service: &str) -> Result<Address, Fault> {
    let asked: Vec<_> = config.hosts.iter().map(|(host, port)| ask(config, host, *port, service)).collect();
    let majority = asked.len() / 2 + 1;
    let (answers, failure) = together::some(asked, majority).await;
    let newest = answers.into_iter().max_by_key(|address| address.epoch);
    newest.ok_or_else(|| failure.unwrap_or_else(|| unavailable("no Sentinel is named")))
}

async fn ask(config: &Config, host: &str, port: u16, service: &str) -> Result<Address, Fault> {
    let mut sentinel = site::open(config, host, port, Role::Sentinel, None).await?;
    let mut command = Cmd::new();
    command.arg("SENTINEL").arg("MASTER").arg(service);
    let answer = sentinel.send_packed_command(&command).await.and_then(Value::extract_error);
    let answer = answer.map_err(|error| {
        if error.detail().unwrap_or_default().contains("No such master") {
            unavailable(format!("the Sentinel at {host}:{port} knows no service {service:?}"))
        } else {
            Fault::Connect(error)
        }
    })?;
    let fields = as_pairs(&answer);
    let field = |name: &str| fields.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str());
    let number = |name: &str| field(name).and_then(|value| value.parse::<u64>().ok());
    match (field("ip"), number("port").and_then(|port| u16::try_from(port).ok())) {
        (Some(ip), Some(port)) => Ok(Address {
            host: ip.to_owned(),
            port,
            epoch: number("config-epoch").unwrap_or(0),
            replicas: number("num-slaves").and_then(|n| u32::try_from(n).ok()).unwrap_or(0),
        }),
        _ => Err(unavailable(format!("the Sentinel at {host}:{port} does not say where {service:?} is"))),
    }
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

/// Who must know that the primary is another one.
pub(crate) trait Follower: Send + Sync + 'static {
    fn primary_changed(&self);
}

/// Listens to one Sentinel after the other for `+switch-master`, until the link is gone.
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
            backoff = Backoff::new();
            if hear(&link, &follower, connection, messages, &environment).await.is_none() {
                return;
            }
        }
        environment.sleep(backoff.next(environment.random())).await;
    }
}

type Subscription = (MultiplexedConnection, mpsc::UnboundedReceiver<PushInfo>);

async fn subscribe(config: &Config, host: &str, port: u16) -> Result<Subscription, Fault> {
    let (sender, messages) = mpsc::unbounded_channel();
    let mut connection = site::open(config, host, port, Role::Sentinel, Some(sender)).await?;
    connection.subscribe("+switch-master").await.map_err(Fault::Command)?;
    Ok((connection, messages))
}

async fn hear<F: Follower>(
    link: &Weak<Link>,
    follower: &Weak<F>,
    mut connection: MultiplexedConnection,
    mut messages: mpsc::UnboundedReceiver<PushInfo>,
    environment: &Arc<dyn Environment>,
) -> Option<()> {
    loop {
        match first(messages.recv(), environment.sleep(HEARTBEAT)).await {
            Either::Left(Some(push)) if push.kind == PushKind::Message => {
                let link = link.upgrade()?;
                if names(&push, link.config.service.as_deref().unwrap_or_default()) {
                    link.drop_any_wire();
                    follower.upgrade()?.primary_changed();
                }
            }
            Either::Left(Some(push)) if push.kind != PushKind::Disconnection => {}
            Either::Left(_) => return Some(()),
            Either::Right(()) => {
                link.upgrade()?;
                let ping = Cmd::new().arg("PING").to_owned();
                if connection.send_packed_command(&ping).await.is_err() {
                    return Some(());
                }
            }
        }
    }
}

/// Whether a message is about this service: `service old-host old-port new-host new-port`.
fn names(push: &PushInfo, service: &str) -> bool {
    let Some(Value::BulkString(message)) = push.data.get(1) else { return false };
    String::from_utf8_lossy(message).split(' ').next() == Some(service)
}
