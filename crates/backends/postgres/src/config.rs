//! Which server, as whom, and how patiently.

use std::{fmt, path::PathBuf, time::Duration};

use leasehold_core::{Error, ErrorKind, Limits, Result};
use leasehold_support::url::{self, decode, invalid};

use crate::schema;

/// Which server, as whom, and how patiently. Its `Debug` shows no password.
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
    password: Option<String>,
    password_file: Option<PathBuf>,
    pub(crate) schema: String,
    pub(crate) tls: bool,
    pub(crate) ca_file: Option<PathBuf>,
    pub(crate) timeout: Duration,
    pub(crate) connect_timeout: Duration,
    pub(crate) connections: usize,
    pub(crate) line_max: u32,
    namespace: Option<String>,
}

const PORT: u16 = 5432;
const CONNECTIONS_MAX: usize = 64;

impl Config {
    /// One server, with the defaults; the database is called as the user.
    pub fn new(host: &str, port: u16, user: &str) -> Config {
        Config {
            hosts: vec![(host.to_owned(), port)],
            database: user.to_owned(),
            user: user.to_owned(),
            password: None,
            password_file: None,
            schema: schema::DEFAULT.to_owned(),
            tls: false,
            ca_file: None,
            timeout: Duration::from_secs(5),
            connect_timeout: Duration::from_secs(5),
            connections: 8,
            line_max: Limits::default().queue,
            namespace: None,
        }
    }

    /// Reads a URL: `postgres://user[:password]@host[:port][,host[:port]…][/database][?option=value&…]`.
    ///
    /// Of several hosts, the first that takes writes is used: a primary and its standbys, in any order. A host may be
    /// the directory of a Unix socket, percent-encoded: `%2Fvar%2Frun%2Fpostgresql`.
    ///
    /// | option | values | default |
    /// |---|---|---|
    /// | `schema` | where the tables are: `a-z`, `0-9` and `_` | `leasehold` |
    /// | `password_file` | a path, read anew for every connection | |
    /// | `sslmode` | `disable`; `require`: TLS, the certificate verified | `disable` |
    /// | `ca_file` | certificates to trust instead of the well-known ones, in PEM | |
    /// | `timeout` | how long to wait for an answer: `500ms`, `5s` | `5s` |
    /// | `connect_timeout` | how long to wait for a connection | `5s` |
    /// | `connections` | how many at the most, 1 to 64; one more listens | `8` |
    /// | `namespace` | for all requests of the client | none |
    ///
    /// # Errors
    /// `Invalid` if it is not such a URL; the message does not repeat it.
    pub fn parse(url: &str) -> Result<Config> {
        let (scheme, rest) = url.split_once("://").ok_or_else(|| invalid(SHAPE))?;
        if !matches!(scheme, "postgres" | "postgresql") {
            return Err(invalid(SHAPE));
        }
        let (rest, options) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, database) = rest.split_once('/').unwrap_or((rest, ""));
        let (login, hosts) = authority
            .rsplit_once('@')
            .ok_or_else(|| invalid("name the user: postgres://user@host/database"))?;
        let (user, password) =
            login.split_once(':').map_or((login, None), |(user, password)| (user, Some(password)));
        if user.is_empty() {
            return Err(invalid("name the user: postgres://user@host/database"));
        }
        let mut config = Config::new("", PORT, &decode(user)?);
        config.password = password.filter(|password| !password.is_empty()).map(decode).transpose()?;
        config.hosts = hosts.split(',').map(parse_host).collect::<Result<_>>()?;
        if !database.is_empty() {
            config.database = decode(database)?;
        }
        options.split('&').filter(|option| !option.is_empty()).try_fold(config, Config::set)
    }

    fn set(mut self, option: &str) -> Result<Config> {
        let (name, value) = option.split_once('=').unwrap_or((option, ""));
        match (name, value) {
            ("schema", _) => self.schema = schema_name(&decode(value)?)?,
            ("password_file", _) => self.password_file = Some(decode(value)?.into()),
            ("ca_file", _) => self.ca_file = Some(decode(value)?.into()),
            ("timeout", _) => self.timeout = duration(name, value)?,
            ("connect_timeout", _) => self.connect_timeout = duration(name, value)?,
            ("namespace", _) => self.namespace = Some(decode(value)?),
            ("sslmode", "disable") => self.tls = false,
            ("sslmode", "require" | "verify-full") => self.tls = true,
            ("sslmode", _) => {
                return Err(invalid(
                    "sslmode is disable or require; there is none that tries, and goes on unprotected",
                ));
            }
            ("connections", _) => {
                let number = value.parse().ok().filter(|number| (1..=CONNECTIONS_MAX).contains(number));
                self.connections = number.ok_or_else(|| invalid("connections is a number from 1 to 64"))?;
            }
            _ => {
                return Err(invalid(format!(
                    "the option {name:.40} is not known: schema, password_file, sslmode, ca_file, timeout, \
                     connect_timeout, connections and namespace are"
                )));
            }
        }
        Ok(self)
    }

    /// With this password. None unless told.
    pub fn password(mut self, password: &str) -> Config {
        (self.password, self.password_file) = (Some(password.to_owned()), None);
        self
    }

    /// In this database. The one that is called as the user unless told.
    pub fn database(mut self, database: &str) -> Config {
        self.database = database.to_owned();
        self
    }

    /// How long to wait for an answer. Five seconds unless told; from 10 ms to a minute.
    pub fn timeout(mut self, timeout: Duration) -> Config {
        self.timeout = timeout.clamp(SHORTEST, LONGEST);
        self
    }

    /// How many connections at the most. Eight unless told; from 1 to 64. They are made as they are needed, and given
    /// up when they are not; one more is made when someone waits.
    pub fn connections(mut self, connections: usize) -> Config {
        self.connections = connections.clamp(1, CONNECTIONS_MAX);
        self
    }

    /// The namespace that the URL names, for the client to use.
    pub fn namespace(&self) -> Option<&str> {
        self.namespace.as_deref()
    }

    /// Pretends that a line is at most this long: a bound that a test can reach.
    #[doc(hidden)]
    pub fn pretend_line_max(mut self, line_max: u32) -> Config {
        self.line_max = line_max;
        self
    }

    /// The password now: one in a file may have changed.
    pub(crate) fn current_password(&self) -> Result<Option<String>> {
        let Some(path) = &self.password_file else { return Ok(self.password.clone()) };
        let text = std::fs::read_to_string(path).map_err(|error| {
            Error::new(ErrorKind::Denied, format!("cannot read the password file {}", path.display()))
                .because(error)
        })?;
        Ok(Some(text.trim_end_matches(['\r', '\n']).to_owned()))
    }
}

/// What to execute by hand where the role that leasehold uses may not create a schema.
///
/// Safe to execute again, and while others use it.
///
/// # Errors
/// `Invalid` if the name is not one of a schema: `a-z`, `0-9` and `_`, at most 40.
pub fn schema_sql(schema: &str) -> Result<String> {
    Ok(schema::install(&schema_name(schema)?))
}

/// Names that need no quoting anywhere: they stand in statements and in the names of channels.
fn schema_name(name: &str) -> Result<String> {
    let head = name.bytes().next().is_some_and(|b| b.is_ascii_lowercase() || b == b'_');
    let tail = name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_');
    if !head || !tail || name.len() > 40 || name.starts_with("pg_") {
        return Err(invalid(
            "a schema has 1 to 40 of a-z, 0-9 and _, and does not begin with a digit or pg_",
        ));
    }
    Ok(name.to_owned())
}

const SHORTEST: Duration = Duration::from_millis(10);
const LONGEST: Duration = Duration::from_secs(60);
const SHAPE: &str = "write postgres://user@host:port/database";

fn parse_host(text: &str) -> Result<(String, u16)> {
    let (host, port) = url::host(text, PORT)?.ok_or_else(|| invalid(SHAPE))?;
    Ok((decode(host)?, port))
}

fn duration(name: &str, text: &str) -> Result<Duration> {
    Ok(url::duration(name, text)?.clamp(SHORTEST, LONGEST))
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

    #[test]
    fn a_url_says_everything() {
        let url = "postgresql://app:p%40ss%3Aword@[::1]:7000,%2Frun%2Fpg/main?timeout=500ms&connect_timeout=3s\
                   &namespace=acme&schema=locks_2&connections=3&sslmode=require";
        let config = Config::parse(url).unwrap();
        assert_eq!(config.hosts, [("::1".to_owned(), 7000), ("/run/pg".to_owned(), 5432)]);
        assert_eq!((config.user.as_str(), config.database.as_str()), ("app", "main"));
        assert_eq!(config.current_password().unwrap().as_deref(), Some("p@ss:word"));
        assert_eq!((config.timeout.as_millis(), config.connect_timeout.as_secs()), (500, 3));
        assert_eq!((config.namespace(), config.schema.as_str()), (Some("acme"), "locks_2"));
        assert_eq!((config.connections, config.tls), (3, true));
        assert!(!format!("{config:?}").contains("word"));
        assert_eq!(Config::parse("postgres://app@h").unwrap().database, "app");
    }

    #[test]
    fn what_makes_no_sense_is_refused_and_not_repeated() {
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
    fn a_password_file_that_is_missing_is_named() {
        let config = Config::parse("postgres://u@a?password_file=/no/such/file").unwrap();
        let error = config.current_password().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Denied);
        assert!(error.to_string().contains("/no/such/file"));
    }

    #[test]
    fn the_printed_schema_has_the_name_that_was_asked_for() {
        let sql = schema_sql("locks").unwrap();
        assert!(sql.contains("locks.resource") && !sql.contains("leasehold."));
        assert!(schema_sql("x; drop table y").is_err());
    }
}
