//! Which server, as whom, and how patiently.

use std::{fmt, path::PathBuf, time::Duration};

use leasehold_core::{Error, ErrorKind, Result};
use leasehold_support::url::{self, decode, invalid};

/// Which server, as whom, and how patiently. Its `Debug` shows no password.
///
/// ```
/// use leasehold_redis::Config;
///
/// let config = Config::parse("redis://app:s3cret@cache.internal:6380/2?timeout=500ms")?;
/// assert!(!format!("{config:?}").contains("s3cret"));
/// # Ok::<(), leasehold_core::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq)]
#[must_use]
pub struct Config {
    pub(crate) hosts: Vec<(String, u16)>,
    pub(crate) service: Option<String>,
    pub(crate) cluster: bool,
    pub(crate) tls: bool,
    pub(crate) ca_file: Option<PathBuf>,
    pub(crate) cert_file: Option<PathBuf>,
    pub(crate) key_file: Option<PathBuf>,
    pub(crate) login: Login,
    pub(crate) sentinel_login: Login,
    pub(crate) database: u32,
    pub(crate) timeout: Duration,
    pub(crate) connect_timeout: Duration,
    pub(crate) replicas: Replicas,
    pub(crate) replica_timeout: Duration,
    namespace: Option<String>,
}

/// Who we are to a server.
#[derive(Clone, Default, PartialEq, Eq)]
pub(crate) struct Login {
    pub(crate) user: Option<String>,
    password: Option<String>,
    password_file: Option<PathBuf>,
}

/// How many replicas must have a grant before it is given.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Replicas {
    /// None: one round trip, and a failover may grant again what it forgot.
    #[default]
    None,
    /// This many.
    AtLeast(u32),
    /// So many that with the primary they are a majority of all that were ever seen.
    Majority,
}

const PORT: u16 = 6379;
const SENTINEL_PORT: u16 = 26379;

impl Config {
    /// One server, with the defaults.
    pub fn new(host: &str, port: u16) -> Config {
        Config {
            hosts: vec![(host.to_owned(), port)],
            service: None,
            cluster: false,
            tls: false,
            ca_file: None,
            cert_file: None,
            key_file: None,
            login: Login::default(),
            sentinel_login: Login::default(),
            database: 0,
            timeout: Duration::from_secs(2),
            connect_timeout: Duration::from_secs(1),
            replicas: Replicas::None,
            replica_timeout: Duration::from_secs(1),
            namespace: None,
        }
    }

    /// Reads a URL.
    ///
    /// - `redis://[user[:password]@]host[:port][/database][?option=value&…]`, and `rediss://` with TLS
    /// - `redis+sentinel://[user[:password]@]host[:port],host…/service[/database][?…]`: the hosts are Sentinels, the
    ///   user and password are the server's
    /// - `redis+cluster://[user[:password]@]host[:port],host…[?…]`: the hosts are some nodes of a cluster
    ///
    /// | option | values | default |
    /// |---|---|---|
    /// | `password_file` | a path, read anew for every connection | |
    /// | `timeout` | how long to wait for an answer: `500ms`, `2s` | `2s` |
    /// | `connect_timeout` | how long to wait for a connection | `1s` |
    /// | `replicas` | `none`, a number, `majority` | `none` |
    /// | `replica_timeout` | how long to wait for the replicas | `1s` |
    /// | `namespace` | for all requests of the client | none |
    /// | `tls` | `true`: with TLS, behind Sentinel or on a cluster | `false` |
    /// | `ca_file` | certificates to trust instead of the system's, in PEM | |
    /// | `cert_file`, `key_file` | the client's own certificate and its key, in PEM | |
    /// | `sentinel_user`, `sentinel_password_file` | for the Sentinels | |
    ///
    /// # Errors
    /// `Invalid` if it is not such a URL; the message does not repeat it.
    pub fn parse(url: &str) -> Result<Config> {
        let (scheme, rest) = url.split_once("://").ok_or_else(|| invalid(SHAPE))?;
        let (rest, options) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let (login, hosts) =
            authority.rsplit_once('@').map_or(("", authority), |(login, hosts)| (login, hosts));
        let mut config = Config::new("", PORT);
        let (port, path) = match scheme {
            "redis" => (PORT, path),
            "rediss" => {
                config.tls = true;
                (PORT, path)
            }
            "redis+sentinel" => {
                let (service, path) = path.split_once('/').unwrap_or((path, ""));
                if service.is_empty() {
                    return Err(invalid("name the service: redis+sentinel://host,host/service"));
                }
                config.service = Some(decode(service)?);
                (SENTINEL_PORT, path)
            }
            "redis+cluster" => {
                if !matches!(path, "" | "0") {
                    return Err(invalid("a cluster has one database, 0: redis+cluster://host,host"));
                }
                config.cluster = true;
                (PORT, path)
            }
            _ => return Err(invalid(SHAPE)),
        };
        config.hosts = hosts.split(',').map(|host| parse_host(host, port)).collect::<Result<_>>()?;
        if config.service.is_none() && !config.cluster && config.hosts.len() > 1 {
            return Err(invalid(
                "one server has one host: write redis+sentinel://host,host/service behind Sentinel, and \
                 redis+cluster://host,host for a cluster",
            ));
        }
        config.login = parse_login(login)?;
        if !path.is_empty() {
            config.database =
                path.parse().map_err(|_| invalid("the database after the host is a number: /0"))?;
        }
        let config = options.split('&').filter(|option| !option.is_empty()).try_fold(config, Config::set)?;
        if config.cert_file.is_some() != config.key_file.is_some() {
            return Err(invalid("a certificate needs its key: give both cert_file and key_file"));
        }
        Ok(config)
    }

    fn set(mut self, option: &str) -> Result<Config> {
        let (name, value) = option.split_once('=').unwrap_or((option, ""));
        match name {
            "password_file" => self.login.password_file = Some(decode(value)?.into()),
            "sentinel_user" => self.sentinel_login.user = Some(decode(value)?),
            "sentinel_password_file" => self.sentinel_login.password_file = Some(decode(value)?.into()),
            "timeout" => self.timeout = duration(name, value)?,
            "connect_timeout" => self.connect_timeout = duration(name, value)?,
            "replica_timeout" => self.replica_timeout = duration(name, value)?,
            "replicas" => self.replicas = replicas(value)?,
            "namespace" => self.namespace = Some(decode(value)?),
            "ca_file" => self.ca_file = Some(decode(value)?.into()),
            "cert_file" => self.cert_file = Some(decode(value)?.into()),
            "key_file" => self.key_file = Some(decode(value)?.into()),
            "tls" if value == "true" => self.tls = true,
            "tls" if value == "false" => self.tls = false,
            "tls" => return Err(invalid("tls is true or false")),
            _ => {
                return Err(invalid(format!(
                    "the option {name:.40} is not known: timeout, connect_timeout, password_file, namespace, replicas, \
                     replica_timeout, tls, ca_file, cert_file, key_file, sentinel_user and sentinel_password_file are"
                )));
            }
        }
        Ok(self)
    }

    /// How long to wait for an answer. Two seconds unless told; from 10 ms to a minute.
    pub fn timeout(mut self, timeout: Duration) -> Config {
        self.timeout = timeout.clamp(SHORTEST, LONGEST);
        self
    }

    /// How long to wait for a connection. One second unless told; from 10 ms to a minute.
    pub fn connect_timeout(mut self, timeout: Duration) -> Config {
        self.connect_timeout = timeout.clamp(SHORTEST, LONGEST);
        self
    }

    /// How many replicas must have a grant before it is given. None unless told.
    pub fn replicas(mut self, replicas: Replicas) -> Config {
        self.replicas = replicas;
        self
    }

    /// As this user, with this password. Nobody unless told.
    pub fn login(mut self, user: Option<&str>, password: &str) -> Config {
        self.login =
            Login { user: user.map(str::to_owned), password: Some(password.to_owned()), password_file: None };
        self
    }

    /// The same, for one node of the cluster.
    pub(crate) fn of_node(&self, host: &str, port: u16) -> Config {
        Config { hosts: vec![(host.to_owned(), port)], ..self.clone() }
    }

    /// The namespace that the URL names, for the client to use.
    pub fn namespace(&self) -> Option<&str> {
        self.namespace.as_deref()
    }
}

impl Login {
    /// The password now: one in a file may have changed.
    pub(crate) fn password(&self) -> Result<Option<String>> {
        let Some(path) = &self.password_file else { return Ok(self.password.clone()) };
        let text = std::fs::read_to_string(path).map_err(|error| {
            Error::new(ErrorKind::Denied, format!("cannot read the password file {}", path.display()))
                .because(error)
        })?;
        Ok(Some(text.trim_end_matches(['\r', '\n']).to_owned()))
    }
}

const SHORTEST: Duration = Duration::from_millis(10);
const LONGEST: Duration = Duration::from_secs(60);
const SHAPE: &str = "write redis://host:port/0, rediss://host:port/0, redis+sentinel://host:port,host:port/service or \
     redis+cluster://host:port,host:port";

fn parse_host(text: &str, default_port: u16) -> Result<(String, u16)> {
    let (host, port) = url::host(text, default_port)?.ok_or_else(|| invalid(SHAPE))?;
    Ok((host.to_owned(), port))
}

fn duration(name: &str, text: &str) -> Result<Duration> {
    Ok(url::duration(name, text)?.clamp(SHORTEST, LONGEST))
}

fn parse_login(text: &str) -> Result<Login> {
    let (user, password) =
        text.split_once(':').map_or((text, None), |(user, password)| (user, Some(password)));
    let user = Some(decode(user)?).filter(|user| !user.is_empty());
    let password = password.map(decode).transpose()?.filter(|password| !password.is_empty());
    Ok(Login { user, password, password_file: None })
}

fn replicas(text: &str) -> Result<Replicas> {
    match text {
        "none" | "0" => Ok(Replicas::None),
        "majority" => Ok(Replicas::Majority),
        number => number
            .parse()
            .map(Replicas::AtLeast)
            .map_err(|_| invalid("replicas is none, a number or majority")),
    }
}

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Config")
            .field("hosts", &self.hosts)
            .field("service", &self.service)
            .field("cluster", &self.cluster)
            .field("tls", &self.tls)
            .field("user", &self.login.user)
            .field("database", &self.database)
            .field("timeout", &self.timeout)
            .field("replicas", &self.replicas)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_says_everything() {
        let url = "redis://app:p%40ss%3Aword@[::1]:7000/3?timeout=500ms&connect_timeout=3s&namespace=acme&replicas=2";
        let config = Config::parse(url).unwrap();
        assert_eq!(config.hosts, [("::1".to_owned(), 7000)]);
        assert_eq!((config.login.user.as_deref(), config.database), (Some("app"), 3));
        assert_eq!(config.login.password().unwrap().as_deref(), Some("p@ss:word"));
        assert_eq!((config.timeout.as_millis(), config.connect_timeout.as_secs()), (500, 3));
        assert_eq!((config.namespace(), config.replicas), (Some("acme"), Replicas::AtLeast(2)));
        assert!(!format!("{config:?}").contains("word"));
        assert!(Config::parse("rediss://cache").unwrap().tls);
        assert_eq!(Config::parse("redis://:pw@h").unwrap().login.user, None);
    }

    #[test]
    fn sentinels_are_hosts_and_a_service() {
        let config = Config::parse("redis+sentinel://a,b:5000/main/1?replicas=majority").unwrap();
        assert_eq!(config.hosts, [("a".to_owned(), 26379), ("b".to_owned(), 5000)]);
        assert_eq!((config.service.as_deref(), config.database), (Some("main"), 1));
        assert_eq!(config.replicas, Replicas::Majority);
    }

    #[test]
    fn a_cluster_is_some_of_its_nodes() {
        let config = Config::parse("redis+cluster://u:pw@a,b:7001,[::1]?tls=true&namespace=acme").unwrap();
        let hosts = [("a", 6379), ("b", 7001), ("::1", 6379)].map(|(host, port)| (host.to_owned(), port));
        assert_eq!(config.hosts, hosts);
        assert!(config.cluster && config.tls);
        assert_eq!(config.of_node("c", 1).hosts, [("c".to_owned(), 1)]);
    }

    #[test]
    fn what_makes_no_sense_is_refused_and_not_repeated() {
        let table = [
            ("redis:", "redis://host"),
            ("redis://", "redis://host"),
            ("http://hunter2", "redis://host"),
            ("redis://a,b", "redis+sentinel"),
            ("redis+sentinel://a,b", "service"),
            ("redis://a,b", "redis+cluster"),
            ("redis+cluster://", "redis+cluster://host"),
            ("redis+cluster://a,b/1", "one database"),
            ("redis://a:hunter2x", "port"),
            ("redis://a/hunter2", "database"),
            ("redis://u:hunter2%2@a", "%25"),
            ("redis://a?timeout=5", "500ms"),
            ("redis://a?colour=red", "colour"),
            ("redis://a?replicas=some", "majority"),
            ("redis://a?tls=yes", "true or false"),
            ("rediss://a?cert_file=/hunter2", "key_file"),
        ];
        for (url, word) in table {
            let error = Config::parse(url).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid, "{url}");
            assert!(error.to_string().contains(word), "{url}: {error}");
            assert!(!error.to_string().contains("hunter2"), "{url}: {error}");
        }
    }

    #[test]
    fn a_password_file_that_is_missing_is_named() {
        let config = Config::parse("redis://a?password_file=/no/such/file").unwrap();
        let error = config.login.password().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Denied);
        assert!(error.to_string().contains("/no/such/file"));
    }
}
