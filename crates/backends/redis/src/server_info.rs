//! What a server says about itself: its role, version, mode, eviction policy and epoch.

use leasehold_core::{Effect, Error, ErrorKind, RequestIds};
use redis::{Cmd, Value, aio::MultiplexedConnection};

use crate::{
    config::Config,
    connect::ServerAddress,
    error::{StoreError, unavailable},
    request_id::PingBracket,
};

/// The oldest major version of Redis whose scripts can say what they may do when memory is full.
const REDIS_MAJOR_MIN: u32 = 7;

/// Refuses a node of a cluster where the URL means one server.
pub(crate) const IS_CLUSTERED: &str =
    "the server is a node of a cluster: write redis+cluster:// instead of redis://";
/// Refuses a server that follows another one.
pub(crate) const IS_REPLICA: &str = "the server is a replica, not the primary";
/// Refuses a single server where the URL means a cluster.
pub(crate) const IS_NO_CLUSTER: &str = "the server is no node of a cluster: write redis://host";

/// What a new connection has to know about its primary.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ServerFacts {
    pub(crate) replicas: u32,
    /// The epoch of its cluster; 0 if it is in none.
    pub(crate) epoch: u64,
}

/// Checks that a server is a primary, new enough, and a node of a cluster only if the URL says so.
///
/// What the user may not ask for (`ROLE`, `INFO`) is not checked.
pub(crate) async fn examine(
    config: &Config,
    driver: &mut MultiplexedConnection,
    address: &ServerAddress,
    ids: &RequestIds,
) -> Result<ServerFacts, StoreError> {
    let mut questions = vec![command(&["ROLE"]), command(&["INFO", "server"]), command(&["INFO", "memory"])];
    if config.cluster {
        questions.push(command(&["CLUSTER", "INFO"]));
    }
    // ADR 0033: the epoch is part of tokens and the replicas are counted on, so these replies must not be
    // misdelivered.
    let bracket = PingBracket::new(ids);
    let replies = driver.send_packed_commands(&bracket.wrap(&questions), 0, questions.len() + 2).await;
    let replies =
        bracket.unwrap(replies.map_err(StoreError::Connect)?, address).map_err(|error| match error {
            StoreError::Command(refused) => StoreError::Connect(refused),
            // Nothing but these questions was sent, so nothing was changed.
            other => StoreError::Translated(other.into_error().with_effect(Effect::None)),
        })?;
    let mut replies = replies.into_iter();
    let mut next = || replies.next().unwrap_or(Value::Nil);
    let replicas = replica_count(next())?;
    check_server(config, &info_fields(&next()))?;
    let memory = info_fields(&next());
    if let Some(policy) = field(&memory, "maxmemory_policy").filter(|policy| *policy != "noeviction") {
        tracing::warn!(policy, "the server may evict leases: set maxmemory-policy to noeviction");
    }
    let epoch = if config.cluster { cluster_epoch(&next()) } else { 0 };
    Ok(ServerFacts { replicas, epoch })
}

/// Checks `INFO server`: the mode fits the URL, and the version is new enough.
fn check_server(config: &Config, server: &[(String, String)]) -> Result<(), StoreError> {
    let unsupported = |message: String| StoreError::Translated(Error::new(ErrorKind::Unsupported, message));
    if field(server, "redis_mode").is_some_and(|mode| (mode == "cluster") != config.cluster) {
        let message = if config.cluster { IS_NO_CLUSTER } else { IS_CLUSTERED };
        return Err(unsupported(message.to_owned()));
    }
    let version = field(server, "redis_version");
    let major = version.and_then(|version| version.split('.').next()?.parse::<u32>().ok());
    if major.is_some_and(|major| major < REDIS_MAJOR_MIN) {
        let version = version.unwrap_or_default();
        return Err(unsupported(format!("this is Redis {version}: 7.0 or later is needed, or Valkey")));
    }
    Ok(())
}

fn command(words: &[&str]) -> Cmd {
    Cmd::new().arg(words).to_owned()
}

/// The newest epoch that a node knows, from its reply to `CLUSTER INFO`.
pub(crate) fn cluster_epoch(reply: &Value) -> u64 {
    field(&info_fields(reply), "cluster_current_epoch").and_then(|epoch| epoch.parse().ok()).unwrap_or(0)
}

/// How many replicas follow a primary, from its reply to `ROLE`; an error if the server is a replica.
pub(crate) fn replica_count(reply: Value) -> Result<u32, StoreError> {
    // With these errors the server cannot serve now. Any other error means that the user may not ask for
    // `ROLE`.
    if let Value::ServerError(error) = &reply
        && matches!(error.code(), "LOADING" | "MASTERDOWN" | "BUSY" | "NOAUTH")
    {
        return Err(StoreError::Connect(error.clone().into()));
    }
    let Value::Array(fields) = reply else { return Ok(0) };
    match fields.first() {
        Some(Value::BulkString(role)) if role != b"master" => Err(unavailable(IS_REPLICA)),
        _ => {
            let replicas = if let Some(Value::Array(replicas)) = fields.get(2) { replicas.len() } else { 0 };
            Ok(u32::try_from(replicas).unwrap_or(u32::MAX))
        }
    }
}

/// The `name:value` lines of a reply to `INFO`.
pub(crate) fn info_fields(reply: &Value) -> Vec<(String, String)> {
    let text = match reply {
        Value::BulkString(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        Value::VerbatimString { text, .. } => text.clone(),
        _ => return Vec::new(),
    };
    let pairs = text.lines().filter_map(|line| line.trim_end().split_once(':'));
    pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

/// The value of one line of `INFO`.
pub(crate) fn field<'a>(fields: &'a [(String, String)], name: &str) -> Option<&'a str> {
    fields.iter().find(|(found, _)| found == name).map(|(_, value)| value.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unexpected_reply_to_role_does_not_panic() {
        let text = |text: &str| Value::BulkString(text.as_bytes().to_vec());
        let replicas = |fields: Vec<Value>| replica_count(Value::Array(fields)).ok();
        assert_eq!(replicas(vec![text("master"), text("soon"), Value::Array(vec![Value::Nil])]), Some(1));
        assert_eq!(replicas(vec![text("master")]), Some(0));
        assert_eq!(replicas(vec![text("slave")]), None);
    }
}
