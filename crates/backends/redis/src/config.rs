//! The configuration of the backend: servers, login, timeouts, replicas, TLS.

use std::{fmt, time::Duration};

use leasehold_core::Result;
use leasehold_support::{
    Password, TlsFiles,
    url::{self, decode, invalid},
};

/// Which servers to use, with which login and which timeouts. Its `Debug` shows no password.
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
    /// The server, or the Sentinels if there is a `service`, or some nodes of the cluster.
    pub(crate) hosts: Vec<(String, u16)>,
    /// The name of the service, behind Sentinel.
    pub(crate) service: Option<String>,
    pub(crate) cluster: bool,
    pub(crate) tls: bool,
    pub(crate) tls_files: TlsFiles,
    pub(crate) login: Login,
    pub(crate) sentinel_login: Login,
    pub(crate) database: u32,
    pub(crate) timeout: Duration,
    pub(crate) connect_timeout: Duration,
    pub(crate) replicas: Replicas,
    pub(crate) replica_timeout: Duration,
    namespace: Option<String>,
}

/// The user and the password for a server or a Sentinel.
#[derive(Clone, Default, PartialEq, Eq)]
pub(crate) struct Login {
    pub(crate) user: Option<String>,
    pub(crate) password: Password,
}

/// How many replicas must acknowledge a grant before it counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Replicas {
    /// None. A grant is one round trip, and after a failover the new primary may not know of it.
    #[default]
    None,
    /// At least this many.
    AtLeast(u32),
    /// Enough to be, together with the primary, a majority of all servers that were ever seen.
    Majority,
}

const PORT: u16 = 6379;
const SENTINEL_PORT: u16 = 26379;

impl Config {
    /// One server, with the default of every option.
    pub fn new(host: &str, port: u16) -> Config {
        Config {
            hosts: vec![(host.to_owned(), port)],
            service: None,
            cluster: false,
            tls: false,
            tls_files: TlsFiles::default(),
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
    /// - `redis+sentinel://[user[:password]@]host[:port],host…/service[/database][?…]`: the hosts are
    ///   Sentinels, the user and password are the server's
    /// - `redis+cluster://[user[:password]@]host[:port],host…[?…]`: the hosts are some nodes of a cluster
    ///
    /// | option | values | default |
    /// |---|---|---|
    /// | `password_file` | a path; the file is read for every connection | |
    /// | `timeout` | how long to wait for a reply: `500ms`, `2s` | `2s` |
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
    /// `Invalid` if it is not such a URL. The message does not repeat the URL, which may contain a password.
    pub fn parse(url: &str) -> Result<Config> {
        let (scheme, rest) = url.split_once("://").ok_or_else(|| invalid(URL_FORMS))?;
        let (rest, options) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        // The last @ ends the login, because a password may contain one.
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
            _ => return Err(invalid(URL_FORMS)),
        };
        config.hosts = hosts.split(',').map(|host| parse_host(host, port)).collect::<Result<_>>()?;
        if config.service.is_none() && !config.cluster && config.hosts.len() > 1 {
            return Err(invalid(
                "redis:// takes one host: write redis+sentinel://host,host/service behind Sentinel, and \
                 redis+cluster://host,host for a cluster",
            ));
        }
        config.login = parse_login(login)?;
        if !path.is_empty() {
            config.database =
                path.parse().map_err(|_| invalid("the database after the host must be a number: /0"))?;
        }
        let config = options.split('&').filter(|option| !option.is_empty()).try_fold(config, Config::set)?;
        config.tls_files.check()?;
        if scheme == "rediss" && !config.tls {
            return Err(invalid(
                "rediss:// is with TLS and tls=false is without: write redis://, or leave tls=false out",
            ));
        }
        if !config.tls && config.tls_files != TlsFiles::default() {
            return Err(invalid(
                "ca_file, cert_file and key_file are for TLS, which is off: write rediss://, or add tls=true",
            ));
        }
        Ok(config)
    }

    fn set(mut self, option: &str) -> Result<Config> {
        let (name, value) = option.split_once('=').unwrap_or((option, ""));
        if self.tls_files.set_option(name, value)? {
            return Ok(self);
        }
        match name {
            "password_file" => self.login.password.set_file(decode(value)?),
            "sentinel_user" => self.sentinel_login.user = Some(decode(value)?),
            "sentinel_password_file" => self.sentinel_login.password.set_file(decode(value)?),
            "timeout" => self.timeout = duration(name, value)?,
            "connect_timeout" => self.connect_timeout = duration(name, value)?,
            "replica_timeout" => self.replica_timeout = duration(name, value)?,
            "replicas" => self.replicas = replicas(value)?,
            "namespace" => self.namespace = Some(decode(value)?),
            "tls" if value == "true" => self.tls = true,
            "tls" if value == "false" => self.tls = false,
            "tls" => return Err(invalid("tls must be true or false")),
            _ => {
                return Err(invalid(format!(
                    "the option {name:.40} is not known: use timeout, connect_timeout, password_file, namespace, \
                     replicas, replica_timeout, tls, ca_file, cert_file, key_file, sentinel_user or \
                     sentinel_password_file"
                )));
            }
        }
        Ok(self)
    }

    /// How long to wait for a reply. Default: 2 s; from 10 ms to a minute.
    pub fn timeout(mut self, timeout: Duration) -> Config {
        self.timeout = timeout.clamp(TIMEOUT_MIN, TIMEOUT_MAX);
        self
    }

    /// How long to wait for a connection. Default: 1 s; from 10 ms to a minute.
    pub fn connect_timeout(mut self, timeout: Duration) -> Config {
        self.connect_timeout = timeout.clamp(TIMEOUT_MIN, TIMEOUT_MAX);
        self
    }

    /// How many replicas must acknowledge a grant before it counts. Default: none.
    pub fn replicas(mut self, replicas: Replicas) -> Config {
        self.replicas = replicas;
        self
    }

    /// Logs in as this user, with this password. Default: no login.
    pub fn login(mut self, user: Option<&str>, password: &str) -> Config {
        self.login.user = user.map(str::to_owned);
        self.login.password.set(password);
        self
    }

    /// The same configuration for one node of the cluster.
    pub(crate) fn of_node(&self, host: &str, port: u16) -> Config {
        Config { hosts: vec![(host.to_owned(), port)], ..self.clone() }
    }

    /// The namespace that the URL names, for the client to use.
    pub fn namespace(&self) -> Option<&str> {
        self.namespace.as_deref()
    }
}

const TIMEOUT_MIN: Duration = Duration::from_millis(10);
const TIMEOUT_MAX: Duration = Duration::from_secs(60);
const URL_FORMS: &str = "write redis://host:port/0, rediss://host:port/0, redis+sentinel://host:port,host:port/service or \
     redis+cluster://host:port,host:port";

fn parse_host(text: &str, default_port: u16) -> Result<(String, u16)> {
    let (host, port) = url::host(text, default_port)?.ok_or_else(|| invalid(URL_FORMS))?;
    Ok((host.to_owned(), port))
}

fn duration(name: &str, text: &str) -> Result<Duration> {
    Ok(url::duration(name, text)?.clamp(TIMEOUT_MIN, TIMEOUT_MAX))
}

fn parse_login(text: &str) -> Result<Login> {
    let (user, password) =
        text.split_once(':').map_or((text, None), |(user, password)| (user, Some(password)));
    let user = Some(decode(user)?).filter(|user| !user.is_empty());
    let password = password.map(decode).transpose()?.filter(|password| !password.is_empty());
    let mut login = Login { user, password: Password::default() };
    if let Some(password) = password {
        login.password.set(password);
    }
    Ok(login)
}

fn replicas(text: &str) -> Result<Replicas> {
    match text {
        "none" | "0" => Ok(Replicas::None),
        "majority" => Ok(Replicas::Majority),
        number => number
            .parse()
            .map(Replicas::AtLeast)
            .map_err(|_| invalid("replicas must be none, a number or majority")),
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
    use leasehold_core::ErrorKind;

    #[test]
    fn a_url_sets_every_option() {
        let url = "redis://app:p%40ss%3Aword@[::1]:7000/3?timeout=500ms&connect_timeout=3s&namespace=acme&replicas=2";
        let config = Config::parse(url).unwrap();
        assert_eq!(config.hosts, [("::1".to_owned(), 7000)]);
        assert_eq!((config.login.user.as_deref(), config.database), (Some("app"), 3));
        assert_eq!(config.login.password.current().unwrap().as_deref(), Some("p@ss:word"));
        assert_eq!((config.timeout.as_millis(), config.connect_timeout.as_secs()), (500, 3));
        assert_eq!((config.namespace(), config.replicas), (Some("acme"), Replicas::AtLeast(2)));
        assert!(!format!("{config:?}").contains("word"));
        assert!(Config::parse("rediss://cache").unwrap().tls);
        assert_eq!(Config::parse("redis://:pw@h").unwrap().login.user, None);
    }

    #[test]
    fn a_sentinel_url_has_hosts_and_a_service() {
        let config = Config::parse("redis+sentinel://a,b:5000/main/1?replicas=majority").unwrap();
        assert_eq!(config.hosts, [("a".to_owned(), 26379), ("b".to_owned(), 5000)]);
        assert_eq!((config.service.as_deref(), config.database), (Some("main"), 1));
        assert_eq!(config.replicas, Replicas::Majority);
    }

    #[test]
    fn a_cluster_url_names_some_nodes() {
        let config = Config::parse("redis+cluster://u:pw@a,b:7001,[::1]?tls=true&namespace=acme").unwrap();
        let hosts = [("a", 6379), ("b", 7001), ("::1", 6379)].map(|(host, port)| (host.to_owned(), port));
        assert_eq!(config.hosts, hosts);
        assert!(config.cluster && config.tls);
        assert_eq!(config.of_node("c", 1).hosts, [("c".to_owned(), 1)]);
    }

    #[test]
    fn an_invalid_url_is_refused_and_not_repeated() {
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
            ("rediss://a?tls=false", "leave tls=false out"),
            ("redis://a?ca_file=/hunter2", "tls=true"),
            ("redis+cluster://a?ca_file=/hunter2&tls=false", "tls=true"),
        ];
        for (url, word) in table {
            let error = Config::parse(url).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid, "{url}");
            assert!(error.to_string().contains(word), "{url}: {error}");
            assert!(!error.to_string().contains("hunter2"), "{url}: {error}");
        }
    }

    #[test]
    fn a_missing_password_file_is_named() {
        let config = Config::parse("redis://a?password_file=/no/such/file").unwrap();
        let error = config.login.password.current().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Denied);
        assert!(error.to_string().contains("/no/such/file"));
    }
}
