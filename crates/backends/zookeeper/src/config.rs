//! The configuration of the backend: servers, login, timeouts.

use std::{fmt, time::Duration};

use leasehold_core::Result;
use leasehold_support::{
    Password,
    url::{self, decode, invalid},
};

/// Which servers to connect to, the login, and the timeouts. `Debug` shows no password.
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
    /// Host and port of every server.
    servers: Vec<(String, u16)>,
    /// Empty, or a path that begins with a slash and does not end with one.
    pub(crate) chroot: String,
    user: Option<String>,
    password: Password,
    pub(crate) session_timeout: Duration,
    /// The `tickTime` of the servers. The protocol does not tell it, so it must be configured.
    pub(crate) tick: Duration,
    pub(crate) connect_timeout: Duration,
    namespace: Option<String>,
}

const DEFAULT_PORT: u16 = 2181;
const TIMEOUT_MIN: Duration = Duration::from_millis(100);
const TIMEOUT_MAX: Duration = Duration::from_secs(600);
const URL_SHAPE: &str = "this is not a URL of ZooKeeper: write zookeeper://host:port,host:port/chroot";

impl Config {
    /// The configuration for one server, with all options at their defaults.
    pub fn new(host: &str, port: u16) -> Config {
        Config {
            servers: vec![(host.to_owned(), port)],
            chroot: String::new(),
            user: None,
            password: Password::default(),
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
    /// | `session_timeout` | the session timeout to request. A lease ends with its session | `10s` |
    /// | `tick` | the `tickTime` of the servers. A holder stops this much before its session can end | `2s` |
    /// | `connect_timeout` | how long to wait for a session | `5s` |
    /// | `password_file` | the path of a file with the password. It is read for every new session | |
    /// | `namespace` | the namespace of all requests of the client | none |
    ///
    /// # Errors
    /// `Invalid` if the text is not such a URL. The message does not repeat the URL, because it may contain a
    /// password.
    pub fn parse(url: &str) -> Result<Config> {
        let rest = url.strip_prefix("zookeeper://").ok_or_else(|| invalid(URL_SHAPE))?;
        let (rest, options) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, chroot) = rest.split_once('/').unwrap_or((rest, ""));
        let (login, servers) = authority.rsplit_once('@').unwrap_or(("", authority));
        let mut config = Config::new("", DEFAULT_PORT);
        config.servers = servers.split(',').map(parse_server).collect::<Result<_>>()?;
        let (user, password) = login.split_once(':').unwrap_or((login, ""));
        config.user = Some(decode(user)?).filter(|user| !user.is_empty());
        if !password.is_empty() {
            config.password.set(decode(password)?);
        }
        config.chroot = parse_chroot(&decode(chroot)?)?;
        let config =
            options.split('&').filter(|option| !option.is_empty()).try_fold(config, Config::set_option)?;
        config.check_login()?;
        Ok(config)
    }

    fn set_option(mut self, option: &str) -> Result<Config> {
        let (name, value) = option.split_once('=').unwrap_or((option, ""));
        match name {
            "password_file" => self.password.set_file(decode(value)?),
            "session_timeout" => self.session_timeout = parse_duration(name, value)?,
            "tick" => self.tick = parse_duration(name, value)?,
            "connect_timeout" => self.connect_timeout = parse_duration(name, value)?,
            "namespace" => self.namespace = Some(decode(value)?),
            _ => {
                return Err(invalid(format!(
                    "there is no option {name:.40}: use session_timeout, tick, connect_timeout, \
                     password_file or namespace"
                )));
            }
        }
        Ok(self)
    }

    fn check_login(&self) -> Result<()> {
        match (&self.user, self.password.is_empty()) {
            (None, false) => {
                Err(invalid("there is a password but no user: write zookeeper://user:password@host"))
            }
            (Some(_), true) => Err(invalid(
                "there is a user but no password: write zookeeper://user:password@host, or add password_file",
            )),
            // ZooKeeper's digest scheme sends `user:password` and splits it at the first colon.
            (Some(user), false) if user.contains(':') => {
                Err(invalid("the name of the user contains a colon, which ZooKeeper does not allow"))
            }
            _ => Ok(()),
        }
    }

    /// Sets the session timeout to request from the servers. Default 10 s; from 100 ms to 10 min. The servers
    /// may grant another one: by default they allow 2 to 20 of their ticks.
    pub fn session_timeout(mut self, timeout: Duration) -> Config {
        self.session_timeout = timeout.clamp(TIMEOUT_MIN, TIMEOUT_MAX);
        self
    }

    /// Sets the `tickTime` of the servers. Default 2 s. A holder stops this much before its session can end.
    pub fn tick(mut self, tick: Duration) -> Config {
        self.tick = tick;
        self
    }

    /// The namespace in the URL. The backend does not use it; the client does.
    pub fn namespace(&self) -> Option<&str> {
        self.namespace.as_deref()
    }

    /// The servers in the form that the driver reads, `host:port,host:port`. Contains no login.
    pub(crate) fn ensemble(&self) -> String {
        self.servers.iter().map(address).collect::<Vec<_>>().join(",")
    }

    /// Host and port of every server.
    pub(crate) fn servers(&self) -> &[(String, u16)] {
        &self.servers
    }

    /// The credentials for ZooKeeper's digest scheme, `user:password`, if there is a user. A password file is
    /// read now.
    pub(crate) fn digest(&self) -> Result<Option<String>> {
        let Some(user) = &self.user else { return Ok(None) };
        Ok(self.password.current()?.map(|password| format!("{user}:{password}")))
    }

    /// Whether only the configured user may use the nodes that this client creates.
    pub(crate) fn is_private(&self) -> bool {
        self.user.is_some()
    }
}

/// `host:port`, with brackets around an IPv6 address.
pub(crate) fn address((host, port): &(String, u16)) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

fn parse_server(text: &str) -> Result<(String, u16)> {
    let (host, port) = url::host(text, DEFAULT_PORT)?.ok_or_else(|| invalid(URL_SHAPE))?;
    Ok((host.to_owned(), port))
}

fn parse_duration(name: &str, text: &str) -> Result<Duration> {
    let duration = url::duration(name, text)?;
    Ok(if name == "tick" { duration } else { duration.clamp(TIMEOUT_MIN, TIMEOUT_MAX) })
}

fn parse_chroot(text: &str) -> Result<String> {
    let text = text.trim_end_matches('/');
    if text.is_empty() {
        return Ok(String::new());
    }
    // ZooKeeper refuses these characters in a path, and `/zookeeper` belongs to the servers.
    let is_refused =
        |c: char| c.is_control() || matches!(c, '\u{e000}'..='\u{f8ff}' | '\u{fff0}'..='\u{ffff}');
    let is_bad = |part: &str| part.is_empty() || part == "." || part == ".." || part.contains(is_refused);
    if text.split('/').any(is_bad) || text.split('/').next() == Some("zookeeper") {
        return Err(invalid(
            "the chroot is not a path that ZooKeeper allows: write one such as /app/locks, outside of \
             /zookeeper",
        ));
    }
    Ok(format!("/{text}"))
}

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Config")
            .field("servers", &self.servers)
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
    use leasehold_core::ErrorKind;

    #[test]
    fn a_url_sets_every_option() {
        let url = "zookeeper://app:p%40ss%3Aword@a,b:5000,[::1]:7000/x/y/\
                   ?session_timeout=20s&tick=200ms&namespace=acme";
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
    fn a_bad_url_is_refused_and_its_password_is_not_repeated() {
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
    fn a_missing_password_file_is_named_in_the_error() {
        let config = Config::parse("zookeeper://u@a?password_file=/no/such/file").unwrap();
        let error = config.digest().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Denied);
        assert!(error.to_string().contains("/no/such/file"));
    }
}
