//! Which ensemble, as whom, and how patiently.

use std::{fmt, path::PathBuf, time::Duration};

use leasehold_core::{Error, ErrorKind, Result};
use leasehold_support::url::{self, decode, invalid};

/// Which ensemble, as whom, and how patiently. Its `Debug` shows no password.
///
/// ```
/// use leasehold_zookeeper::Config;
///
/// let config = Config::parse("zookeeper://app:s3cret@zk1,zk2:2182/prod?session_timeout=20s")?;
/// assert!(!format!("{config:?}").contains("s3cret"));
/// # Ok::<(), leasehold_core::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq)]
#[must_use]
pub struct Config {
    hosts: Vec<(String, u16)>,
    /// Empty, or a path that begins with a slash and does not end with one.
    pub(crate) chroot: String,
    user: Option<String>,
    password: Option<String>,
    password_file: Option<PathBuf>,
    pub(crate) session_timeout: Duration,
    pub(crate) tick: Duration,
    pub(crate) connect_timeout: Duration,
    namespace: Option<String>,
}

const PORT: u16 = 2181;
const SHORTEST: Duration = Duration::from_millis(100);
const LONGEST: Duration = Duration::from_secs(600);
const SHAPE: &str = "write zookeeper://host:port,host:port/chroot";

impl Config {
    /// One server, with the defaults.
    pub fn new(host: &str, port: u16) -> Config {
        Config {
            hosts: vec![(host.to_owned(), port)],
            chroot: String::new(),
            user: None,
            password: None,
            password_file: None,
            session_timeout: Duration::from_secs(10),
            tick: Duration::from_secs(2),
            connect_timeout: Duration::from_secs(5),
            namespace: None,
        }
    }

    /// Reads `zookeeper://[user[:password]@]host[:port],host…[/chroot][?option=value&…]`.
    ///
    /// | option | values | default |
    /// |---|---|---|
    /// | `session_timeout` | what to ask the servers for: `10s`. A lease ends with its session | `10s` |
    /// | `tick` | the servers' `tickTime`: so much earlier we let go | `2s` |
    /// | `connect_timeout` | how long to wait for a session | `5s` |
    /// | `password_file` | a path, read anew for every session | |
    /// | `namespace` | for all requests of the client | none |
    ///
    /// # Errors
    /// `Invalid` if it is not such a URL; the message does not repeat it.
    pub fn parse(url: &str) -> Result<Config> {
        let rest = url.strip_prefix("zookeeper://").ok_or_else(|| invalid(SHAPE))?;
        let (rest, options) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, chroot) = rest.split_once('/').unwrap_or((rest, ""));
        let (login, hosts) = authority.rsplit_once('@').unwrap_or(("", authority));
        let mut config = Config::new("", PORT);
        config.hosts = hosts.split(',').map(parse_host).collect::<Result<_>>()?;
        let (user, password) = login.split_once(':').map_or((login, None), |(user, word)| (user, Some(word)));
        config.user = Some(decode(user)?).filter(|user| !user.is_empty());
        config.password = password.map(decode).transpose()?.filter(|password| !password.is_empty());
        config.chroot = parse_chroot(&decode(chroot)?)?;
        let config = options.split('&').filter(|option| !option.is_empty()).try_fold(config, Config::set)?;
        config.check_login()?;
        Ok(config)
    }

    fn set(mut self, option: &str) -> Result<Config> {
        let (name, value) = option.split_once('=').unwrap_or((option, ""));
        match name {
            "password_file" => self.password_file = Some(decode(value)?.into()),
            "session_timeout" => self.session_timeout = duration(name, value)?,
            "tick" => self.tick = duration(name, value)?,
            "connect_timeout" => self.connect_timeout = duration(name, value)?,
            "namespace" => self.namespace = Some(decode(value)?),
            _ => {
                return Err(invalid(format!(
                    "the option {name:.40} is not known: session_timeout, tick, connect_timeout, password_file and \
                     namespace are"
                )));
            }
        }
        Ok(self)
    }

    fn check_login(&self) -> Result<()> {
        let secret = self.password.is_some() || self.password_file.is_some();
        match (&self.user, secret) {
            (None, true) => Err(invalid("a password needs a user: zookeeper://user:password@host")),
            (Some(_), false) => Err(invalid("a user needs a password, in the URL or in password_file")),
            (Some(user), true) if user.contains(':') => Err(invalid("the user's name has no colon")),
            _ => Ok(()),
        }
    }

    /// What session timeout to ask for: 10 s unless told; from 100 ms to 10 min. The servers have bounds of their own.
    pub fn session_timeout(mut self, timeout: Duration) -> Config {
        self.session_timeout = timeout.clamp(SHORTEST, LONGEST);
        self
    }

    /// The servers' `tickTime`: 2 s unless told. A lease is let go this much before its session can end.
    pub fn tick(mut self, tick: Duration) -> Config {
        self.tick = tick;
        self
    }

    /// The namespace that the URL names, for the client to use.
    pub fn namespace(&self) -> Option<&str> {
        self.namespace.as_deref()
    }

    /// The servers, as the driver wants them.
    pub(crate) fn ensemble(&self) -> String {
        let hosts = self.hosts.iter().map(|(host, port)| match host.contains(':') {
            true => format!("[{host}]:{port}"),
            false => format!("{host}:{port}"),
        });
        hosts.collect::<Vec<_>>().join(",")
    }

    /// `user:password` now, if there is one: a password in a file may have changed.
    pub(crate) fn digest(&self) -> Result<Option<String>> {
        let Some(user) = &self.user else { return Ok(None) };
        let Some(path) = &self.password_file else {
            return Ok(self.password.as_ref().map(|password| format!("{user}:{password}")));
        };
        let text = std::fs::read_to_string(path).map_err(|error| {
            Error::new(ErrorKind::Denied, format!("cannot read the password file {}", path.display()))
                .because(error)
        })?;
        Ok(Some(format!("{user}:{}", text.trim_end_matches(['\r', '\n']))))
    }

    /// Whether the nodes we make are ours alone.
    pub(crate) fn is_private(&self) -> bool {
        self.user.is_some()
    }
}

fn parse_host(text: &str) -> Result<(String, u16)> {
    let (host, port) = url::host(text, PORT)?.ok_or_else(|| invalid(SHAPE))?;
    Ok((host.to_owned(), port))
}

fn duration(name: &str, text: &str) -> Result<Duration> {
    let duration = url::duration(name, text)?;
    Ok(if name == "tick" { duration } else { duration.clamp(SHORTEST, LONGEST) })
}

fn parse_chroot(text: &str) -> Result<String> {
    let text = text.trim_end_matches('/');
    if text.is_empty() {
        return Ok(String::new());
    }
    let strange = |c: char| c.is_control() || matches!(c, '\u{e000}'..='\u{f8ff}' | '\u{fff0}'..='\u{ffff}');
    let bad = |part: &str| part.is_empty() || part == "." || part == ".." || part.contains(strange);
    if text.split('/').any(bad) || text.split('/').next() == Some("zookeeper") {
        return Err(invalid("the chroot is a path of ZooKeeper's: /app/locks"));
    }
    Ok(format!("/{text}"))
}

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Config")
            .field("hosts", &self.hosts)
            .field("chroot", &self.chroot)
            .field("user", &self.user)
            .field("session_timeout", &self.session_timeout)
            .field("tick", &self.tick)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_says_everything() {
        let url = "zookeeper://app:p%40ss%3Aword@a,b:5000,[::1]:7000/x/y/?session_timeout=20s&tick=200ms&namespace=acme";
        let config = Config::parse(url).unwrap();
        assert_eq!(config.ensemble(), "a:2181,b:5000,[::1]:7000");
        assert_eq!((config.chroot.as_str(), config.namespace()), ("/x/y", Some("acme")));
        assert_eq!(config.digest().unwrap().as_deref(), Some("app:p@ss:word"));
        assert_eq!((config.session_timeout.as_secs(), config.tick.as_millis()), (20, 200));
        assert!(config.is_private() && !format!("{config:?}").contains("word"));
        let plain = Config::parse("zookeeper://a").unwrap();
        assert!(plain.chroot.is_empty() && plain.digest().unwrap().is_none());
    }

    #[test]
    fn what_makes_no_sense_is_refused_and_not_repeated() {
        let table = [
            ("zookeeper:", "zookeeper://host"),
            ("zookeeper://", "zookeeper://host"),
            ("http://hunter2", "zookeeper://host"),
            ("zookeeper://a:hunter2x", "port"),
            ("zookeeper://u@a", "password"),
            ("zookeeper://:hunter2@a", "user"),
            ("zookeeper://u:hunter2%2@a", "%25"),
            ("zookeeper://a/x//y", "chroot"),
            ("zookeeper://a/../y", "chroot"),
            ("zookeeper://a/zookeeper", "chroot"),
            ("zookeeper://a?tick=5", "500ms"),
            ("zookeeper://a?colour=red", "colour"),
        ];
        for (url, word) in table {
            let error = Config::parse(url).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid, "{url}");
            assert!(error.to_string().contains(word), "{url}: {error}");
            assert!(!error.to_string().contains("hunter2"), "{url}: {error}");
        }
    }

    #[test]
    fn a_password_file_is_read_and_named_if_missing() {
        let config = Config::parse("zookeeper://u@a?password_file=/no/such/file").unwrap();
        let error = config.digest().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Denied);
        assert!(error.to_string().contains("/no/such/file"));
    }
}
