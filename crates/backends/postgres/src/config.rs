//! The settings of the backend: servers, user, database, timeouts.

use std::{fmt, time::Duration};

use leasehold_core::{Limits, Result};
use leasehold_support::{
    Password, TlsFiles,
    url::{self, decode, invalid},
};

use crate::schema;

/// The settings of the backend: servers, user, database, timeouts. Its `Debug` shows no password.
///
/// ```
/// use leasehold_postgres::Config;
///
/// let config = Config::parse("postgres://app:s3cret@db.internal/app?timeout=2s&schema=locks")?;
/// assert!(!format!("{config:?}").contains("s3cret"));
/// # Ok::<(), leasehold_core::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq)]
#[must_use]
pub struct Config {
    pub(crate) hosts: Vec<(String, u16)>,
    pub(crate) database: String,
    pub(crate) user: String,
    pub(crate) password: Password,
    pub(crate) schema: String,
    pub(crate) tls: bool,
    pub(crate) tls_files: TlsFiles,
    pub(crate) timeout: Duration,
    pub(crate) connect_timeout: Duration,
    pub(crate) connections: usize,
    pub(crate) queue_max: u32,
    /// Connects to a standby too, to look at it.
    pub(crate) any_role: bool,
    namespace: Option<String>,
}

const PORT: u16 = 5432;
const CONNECTIONS_DEFAULT: usize = 8;
const CONNECTIONS_MAX: usize = 64;
const TIMEOUT_DEFAULT: Duration = Duration::from_secs(5);
const TIMEOUT_MIN: Duration = Duration::from_millis(10);
const TIMEOUT_MAX: Duration = Duration::from_secs(60);
/// A connection without any reply for this many timeouts counts as dead, even if the network reports no error. ADR 0022.
const SILENT_TIMEOUTS: u32 = 3;
const SCHEMA_NAME_MAX: usize = 40;
const URL_FORM: &str = "write postgres://user@host:port/database";
const NO_USER: &str = "the URL has no user; name the user: postgres://user@host/database";

impl Config {
    /// One server, with the defaults. The database has the name of the user.
    pub fn new(host: &str, port: u16, user: &str) -> Config {
        Config {
            hosts: vec![(host.to_owned(), port)],
            database: user.to_owned(),
            user: user.to_owned(),
            password: Password::default(),
            schema: schema::DEFAULT.to_owned(),
            tls: false,
            tls_files: TlsFiles::default(),
            timeout: TIMEOUT_DEFAULT,
            connect_timeout: TIMEOUT_DEFAULT,
            connections: CONNECTIONS_DEFAULT,
            queue_max: Limits::default().queue,
            any_role: false,
            namespace: None,
        }
    }

    /// Reads a URL: `postgres://user[:password]@host[:port][,host[:port]…][/database][?option=value&…]`.
    ///
    /// With several hosts, a primary and its standbys in any order, the first one that takes writes is used. A host can
    /// also be the directory of a Unix socket, percent-encoded: `%2Fvar%2Frun%2Fpostgresql`.
    ///
    /// | option | values | default |
    /// |---|---|---|
    /// | `schema` | the schema of the tables: `a-z`, `0-9` and `_` | `leasehold` |
    /// | `password_file` | the path of a file with the password, read for every connection | |
    /// | `sslmode` | `disable`; `require`: TLS, and the certificate is verified | `disable` |
    /// | `ca_file` | certificates to trust instead of those of the host, in PEM | |
    /// | `timeout` | how long to wait for a reply: `500ms`, `5s` | `5s` |
    /// | `connect_timeout` | how long to wait for a connection | `5s` |
    /// | `connections` | the most connections, 1 to 64; one more listens for wake-ups | `8` |
    /// | `namespace` | the namespace of all requests of the client | none |
    ///
    /// # Errors
    /// `Invalid` if it is not such a URL. The message does not repeat the URL, because it may hold a password.
    pub fn parse(url: &str) -> Result<Config> {
        let (scheme, rest) = url.split_once("://").ok_or_else(|| invalid(URL_FORM))?;
        if !matches!(scheme, "postgres" | "postgresql") {
            return Err(invalid(URL_FORM));
        }
        let (rest, options) = rest.split_once('?').unwrap_or((rest, ""));
        // A `/` in a host (the directory of a Unix socket) is percent-encoded, so the first one begins the database.
        let (authority, database) = rest.split_once('/').unwrap_or((rest, ""));
        // The last `@`: a password may contain one that is not encoded.
        let (login, hosts) = authority.rsplit_once('@').ok_or_else(|| invalid(NO_USER))?;
        let (user, password) =
            login.split_once(':').map_or((login, None), |(user, password)| (user, Some(password)));
        if user.is_empty() {
            return Err(invalid(NO_USER));
        }
        let mut config = Config::new("", PORT, &decode(user)?);
        if let Some(password) = password.filter(|password| !password.is_empty()) {
            config.password.set(decode(password)?);
        }
        config.hosts = hosts.split(',').map(parse_host).collect::<Result<_>>()?;
        if !database.is_empty() {
            config.database = decode(database)?;
        }
        let config = options.split('&').filter(|option| !option.is_empty()).try_fold(config, Config::set)?;
        if !config.tls && !config.tls_files.is_empty() {
            return Err(invalid(
                "ca_file is for TLS, which is off: add sslmode=require, or leave ca_file out",
            ));
        }
        Ok(config)
    }

    fn set(mut self, option: &str) -> Result<Config> {
        let (name, value) = option.split_once('=').unwrap_or((option, ""));
        match (name, value) {
            ("schema", _) => self.schema = schema_name(&decode(value)?)?,
            ("password_file", _) => self.password.set_file(decode(value)?),
            ("ca_file", _) => drop(self.tls_files.set_option(name, value)?),
            ("timeout", _) => self.timeout = duration(name, value)?,
            ("connect_timeout", _) => self.connect_timeout = duration(name, value)?,
            ("namespace", _) => self.namespace = Some(decode(value)?),
            ("sslmode", "disable") => self.tls = false,
            // Both verify the certificate and the host name: TLS without that does not protect against a host in between.
            ("sslmode", "require" | "verify-full") => self.tls = true,
            ("sslmode", _) => {
                return Err(invalid(
                    "sslmode must be disable or require; prefer and allow are not supported, because they can go on \
                     without TLS",
                ));
            }
            ("connections", _) => {
                let number = value.parse().ok().filter(|number| (1..=CONNECTIONS_MAX).contains(number));
                self.connections =
                    number.ok_or_else(|| invalid("connections must be a number from 1 to 64"))?;
            }
            _ => {
                return Err(invalid(format!(
                    "unknown option {name:.40}: use schema, password_file, sslmode, ca_file, timeout, \
                     connect_timeout, connections or namespace"
                )));
            }
        }
        Ok(self)
    }

    /// The password. None by default.
    pub fn password(mut self, password: &str) -> Config {
        self.password.set(password);
        self
    }

    /// The database. By default it has the name of the user.
    pub fn database(mut self, database: &str) -> Config {
        self.database = database.to_owned();
        self
    }

    /// How long to wait for a reply. Five seconds by default; from 10 ms to a minute.
    pub fn timeout(mut self, timeout: Duration) -> Config {
        self.timeout = timeout.clamp(TIMEOUT_MIN, TIMEOUT_MAX);
        self
    }

    /// The most connections. Eight by default; from 1 to 64. They are opened as they are needed and closed when they are
    /// idle. One more is opened when the first claim waits, to listen for wake-ups.
    pub fn connections(mut self, connections: usize) -> Config {
        self.connections = connections.clamp(1, CONNECTIONS_MAX);
        self
    }

    /// The namespace in the URL, for the client to use.
    pub fn namespace(&self) -> Option<&str> {
        self.namespace.as_deref()
    }

    /// Lowers the limit of a queue, so that a test can reach it.
    #[doc(hidden)]
    pub fn pretend_queue_max(mut self, queue_max: u32) -> Config {
        self.queue_max = queue_max;
        self
    }

    /// The same configuration for one of the hosts, whatever its role is.
    pub(crate) fn of_any_role(&self, host: usize) -> Config {
        Config { hosts: vec![self.hosts[host].clone()], any_role: true, ..self.clone() }
    }

    /// All hosts with their ports, for error texts.
    pub(crate) fn host_list(&self) -> String {
        let hosts = self.hosts.iter().map(|(host, port)| match host.contains(':') {
            true => format!("[{host}]:{port}"),
            false => format!("{host}:{port}"),
        });
        hosts.collect::<Vec<_>>().join(", ")
    }

    /// How long a connection may be without a reply before it counts as dead.
    pub(crate) fn silence_max(&self) -> Duration {
        self.timeout * SILENT_TIMEOUTS
    }
}

/// The SQL that creates the schema, to be executed by hand if the role that leasehold uses may not create it.
///
/// It can be executed again, and while the schema is in use.
///
/// # Errors
/// `Invalid` if the name of the schema is not 1 to 40 of `a-z`, `0-9` and `_`.
pub fn schema_sql(schema: &str) -> Result<String> {
    Ok(schema::install(&schema_name(schema)?))
}

/// Checks the name of a schema. It is put into statements without quotes.
fn schema_name(name: &str) -> Result<String> {
    let head = name.bytes().next().is_some_and(|b| b.is_ascii_lowercase() || b == b'_');
    let tail = name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_');
    if !head || !tail || name.len() > SCHEMA_NAME_MAX || name.starts_with("pg_") {
        return Err(invalid(
            "the name of a schema must be 1 to 40 of a-z, 0-9 and _, and must not begin with a digit or pg_",
        ));
    }
    Ok(name.to_owned())
}

fn parse_host(text: &str) -> Result<(String, u16)> {
    let (host, port) = url::host(text, PORT)?.ok_or_else(|| invalid(URL_FORM))?;
    Ok((decode(host)?, port))
}

fn duration(name: &str, text: &str) -> Result<Duration> {
    Ok(url::duration(name, text)?.clamp(TIMEOUT_MIN, TIMEOUT_MAX))
}

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Config")
            .field("hosts", &self.hosts)
            .field("database", &self.database)
            .field("user", &self.user)
            .field("schema", &self.schema)
            .field("tls", &self.tls)
            .field("timeout", &self.timeout)
            .field("connections", &self.connections)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use leasehold_core::ErrorKind;

    #[test]
    fn a_url_sets_every_option() {
        let url = "postgresql://app:p%40ss%3Aword@[::1]:7000,%2Frun%2Fpg/main?timeout=500ms&connect_timeout=3s\
                   &namespace=acme&schema=locks_2&connections=3&sslmode=require";
        let config = Config::parse(url).unwrap();
        assert_eq!(config.hosts, [("::1".to_owned(), 7000), ("/run/pg".to_owned(), 5432)]);
        assert_eq!((config.user.as_str(), config.database.as_str()), ("app", "main"));
        assert_eq!(config.password.current().unwrap().as_deref(), Some("p@ss:word"));
        assert_eq!((config.timeout.as_millis(), config.connect_timeout.as_secs()), (500, 3));
        assert_eq!((config.namespace(), config.schema.as_str()), (Some("acme"), "locks_2"));
        assert_eq!((config.connections, config.tls), (3, true));
        assert!(!format!("{config:?}").contains("word"));
        assert_eq!(Config::parse("postgres://app@h").unwrap().database, "app");
    }

    #[test]
    fn a_wrong_url_is_refused_and_not_repeated() {
        let table = [
            ("postgres:", "postgres://user@host"),
            ("http://hunter2", "postgres://user@host"),
            ("postgres://host/db", "name the user"),
            ("postgres://:hunter2@host/db", "name the user"),
            ("postgres://u@", "postgres://user@host"),
            ("postgres://u@a:hunter2x", "port"),
            ("postgres://u:hunter2%2@a", "%25"),
            ("postgres://u@a?timeout=5", "500ms"),
            ("postgres://u@a?colour=red", "colour"),
            ("postgres://u@a?sslmode=prefer", "require"),
            ("postgres://u@a?sslmode=disable&ca_file=/x", "sslmode=require"),
            ("postgres://u@a?ca_file=/x", "sslmode=require"),
            ("postgres://u@a?schema=Robert'", "a-z"),
            ("postgres://u@a?schema=pg_x", "pg_"),
            ("postgres://u@a?connections=0", "1 to 64"),
        ];
        for (url, word) in table {
            let error = Config::parse(url).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid, "{url}");
            assert!(error.to_string().contains(word), "{url}: {error}");
            assert!(!error.to_string().contains("hunter2"), "{url}: {error}");
        }
    }

    #[test]
    fn the_error_names_a_missing_password_file() {
        let config = Config::parse("postgres://u@a?password_file=/no/such/file").unwrap();
        let error = config.password.current().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Denied);
        assert!(error.to_string().contains("/no/such/file"));
    }

    #[test]
    fn the_printed_sql_uses_the_given_schema() {
        let sql = schema_sql("locks").unwrap();
        assert!(sql.contains("locks.resource") && !sql.contains("leasehold."));
        assert!(schema_sql("x; drop table y").is_err());
    }
}
