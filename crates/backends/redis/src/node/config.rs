//! [`Nodes`]: from a `redlock://` URL to the nodes of a quorum.

use std::{fmt, sync::Arc, time::Duration};

use leasehold_core::{
    Environment, QuorumNode, Result,
    quorum_node::membership::{GATE_MIN, NODES_MIN},
};
use leasehold_support::url::{self, invalid};

use super::RedisNode;
use crate::config::Config;

/// The servers that a `redlock://` URL names. Its `Debug` shows no password.
///
/// ```
/// use leasehold_redis::Nodes;
/// use std::time::Duration;
///
/// let nodes = Nodes::parse("redlock://:s3cret@a,b:6380,c?uptime_gate=5m")?;
/// assert_eq!((nodes.len(), nodes.gate()), (3, Some(Duration::from_secs(300))));
/// assert!(!format!("{nodes:?}").contains("s3cret"));
/// # Ok::<(), leasehold_core::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq)]
#[must_use]
pub struct Nodes {
    configs: Vec<Config>,
    gate: Option<Duration>,
}

const URL_FORM: &str = "write redlock://h1:port,h2:port,h3:port, all servers of the set";

impl Nodes {
    /// Reads a URL: `redlock://[user[:password]@]h1[:port],h2[:port],h3…[/database][?option=value&…]`.
    ///
    /// The options are those of `redis://` that concern one server, for every node alike, and
    ///
    /// | option | values | default |
    /// |---|---|---|
    /// | `uptime_gate` | how long a node has no vote after it may have lost data, and the longest ttl: `30s`, `10m`, `1h` | `10m` |
    ///
    /// # Errors
    /// `Invalid` if it is not such a URL, or names fewer than three servers. The message does not repeat the
    /// URL, which may contain a password.
    pub fn parse(url: &str) -> Result<Nodes> {
        let rest = url.strip_prefix("redlock://").ok_or_else(|| invalid(URL_FORM))?;
        let (rest, options) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, path) =
            rest.split_once('/').map_or((rest, String::new()), |(a, p)| (a, format!("/{p}")));
        let (login, hosts) = match authority.rsplit_once('@') {
            Some((login, hosts)) => (format!("{login}@"), hosts),
            None => (String::new(), authority),
        };
        let (mut gate, mut others) = (None, Vec::new());
        for option in options.split('&').filter(|option| !option.is_empty()) {
            match option.split_once('=') {
                Some(("uptime_gate", value)) => gate = Some(gate_of(value)?),
                Some((
                    name @ ("replicas" | "replica_timeout" | "sentinel_user" | "sentinel_password_file"),
                    _,
                )) => {
                    return Err(invalid(format!(
                        "{name} is not an option of redlock://: every node stands alone"
                    )));
                }
                _ => others.push(option),
            }
        }
        let options = if others.is_empty() { String::new() } else { format!("?{}", others.join("&")) };
        let config = |host: &str| Config::parse(&format!("redis://{login}{host}{path}{options}"));
        let configs: Vec<Config> = hosts.split(',').map(config).collect::<Result<_>>()?;
        if configs.len() < NODES_MIN {
            return Err(invalid(format!(
                "the URL names {} servers: a quorum needs at least {NODES_MIN}, better 5",
                configs.len()
            )));
        }
        Ok(Nodes { configs, gate })
    }

    /// How many servers the URL names.
    pub fn len(&self) -> usize {
        self.configs.len()
    }

    /// Whether the URL names no server. Never true: [`Nodes::parse`] refuses that.
    pub fn is_empty(&self) -> bool {
        self.configs.is_empty()
    }

    /// The uptime gate that the URL names. It counts until a node of the set votes. ADR 0016.
    pub fn gate(&self) -> Option<Duration> {
        self.gate
    }

    /// The namespace that the URL names, for the client to use.
    pub fn namespace(&self) -> Option<&str> {
        self.configs.first().and_then(Config::namespace)
    }

    /// The nodes. Each connects at its first call.
    pub fn open(&self, environment: &Arc<dyn Environment>) -> Vec<Arc<dyn QuorumNode>> {
        let node = |config: &Config| RedisNode::new(config.clone(), Arc::clone(environment));
        self.configs.iter().map(|config| Arc::new(node(config)) as _).collect()
    }
}

fn gate_of(text: &str) -> Result<Duration> {
    let duration = url::duration("uptime_gate", text)?;
    if duration < GATE_MIN {
        return Err(invalid(format!(
            "uptime_gate must be at least {GATE_MIN:?}: it is also the longest ttl"
        )));
    }
    Ok(duration)
}

impl fmt::Debug for Nodes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Nodes").field("configs", &self.configs).field("gate", &self.gate).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use leasehold_core::ErrorKind;

    #[test]
    fn every_node_has_the_same_login_database_and_options() {
        let url = "redlock://app:p%40ss@a,[::1]:7000,c:1/2?timeout=500ms&uptime_gate=1h&namespace=acme";
        let nodes = Nodes::parse(url).unwrap();
        let hosts: Vec<_> = nodes.configs.iter().map(|config| config.hosts[0].clone()).collect();
        assert_eq!(hosts, [("a".to_owned(), 6379), ("::1".to_owned(), 7000), ("c".to_owned(), 1)]);
        assert!(nodes.configs.iter().all(|it| (it.database, it.timeout.as_millis()) == (2, 500)));
        assert_eq!((nodes.gate(), nodes.namespace()), (Some(Duration::from_secs(3600)), Some("acme")));
        assert_eq!(Nodes::parse("redlock://a,b,c").unwrap().gate(), None);
    }

    #[test]
    fn an_invalid_url_is_refused_and_not_repeated() {
        let table = [
            ("redis://a,b,c", "redlock://h1"),
            ("redlock://a,b", "at least 3"),
            ("redlock://:hunter2@a,b,", "host"),
            ("redlock://a,b,c?uptime_gate=soon", "10m"),
            ("redlock://a,b,c?uptime_gate=1ms", "at least"),
            ("redlock://a,b,c?replicas=1", "stands alone"),
            ("redlock://a,b,c?colour=red", "colour"),
        ];
        for (url, word) in table {
            let error = Nodes::parse(url).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid, "{url}");
            assert!(error.to_string().contains(word), "{url}: {error}");
            assert!(!error.to_string().contains("hunter2"), "{url}: {error}");
        }
    }
}
