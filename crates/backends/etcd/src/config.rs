//! The configuration: hosts, login, TLS, timeouts and the prefix of all keys, from a URL or from setters.

use std::{fmt, time::Duration};

use leasehold_core::Result;
use leasehold_support::{
    Password, TlsFiles,
    url::{self, decode, invalid},
};

use crate::keys::Root;

/// How to connect to an etcd cluster. Its `Debug` output does not contain the password.
///
/// ```
/// use leasehold_etcd::Config;
///
/// let config = Config::parse("etcd://app:s3cret@e1.internal,e2.internal,e3.internal:2380?timeout=2s")?;
/// assert!(!format!("{config:?}").contains("s3cret"));
/// # Ok::<(), leasehold_core::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq)]
#[must_use]
pub struct Config {
    pub(crate) hosts: Vec<(String, u16)>,
    pub(crate) tls: bool,
    pub(crate) tls_files: TlsFiles,
    pub(crate) server_name: Option<String>,
    pub(crate) user: Option<String>,
    password: Password,
    pub(crate) timeout: Duration,
    pub(crate) connect_timeout: Duration,
    pub(crate) root: Root,
    namespace: Option<String>,
}

const DEFAULT_PORT: u16 = 2379;
const TIMEOUT_MIN: Duration = Duration::from_millis(10);
const TIMEOUT_MAX: Duration = Duration::from_secs(60);
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(3);
const DEFAULT_CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// The longest `root`. etcd limits the whole request, so this is only to catch mistakes.
const ROOT_BYTES_MAX: usize = 256;
const URL_FORM: &str = "write etcd://host:2379,host:2379 or etcds://host:2379";

impl Config {
    /// One host, with the defaults.
    pub fn new(host: &str, port: u16) -> Config {
        Config {
            hosts: vec![(host.to_owned(), port)],
            tls: false,
            tls_files: TlsFiles::default(),
            server_name: None,
            user: None,
            password: Password::default(),
            timeout: DEFAULT_TIMEOUT,
            connect_timeout: DEFAULT_CONNECT_TIMEOUT,
            root: Root::new(Root::DEFAULT),
            namespace: None,
        }
    }

    /// Parses a URL: `etcd://[user[:password]@]host[:port],host…[?option=value&…]`, and `etcds://` with TLS.
    ///
    /// | option | values | default |
    /// |---|---|---|
    /// | `password_file` | a path; the file is read for every connection | |
    /// | `timeout` | how long to wait for a reply: `500ms`, `2s` | `3s` |
    /// | `connect_timeout` | how long to wait for a connection | `5s` |
    /// | `namespace` | the namespace of all resources of the client | none |
    /// | `root` | the prefix of all keys; ends with `/` | `leasehold/v1/` |
    /// | `ca_file` | certificates to trust instead of the public ones, in PEM | |
    /// | `cert_file`, `key_file` | the client's certificate and its key, in PEM | |
    /// | `server_name` | the name that the members' certificates must have | the host |
    ///
    /// # Errors
    /// `Invalid` if the URL has another form. The message does not repeat the URL, because it may contain a
    /// password.
    pub fn parse(url: &str) -> Result<Config> {
        let (scheme, rest) = url.split_once("://").ok_or_else(|| invalid(URL_FORM))?;
        let (rest, options) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        if !path.is_empty() {
            return Err(invalid(
                "an etcd URL has no path after the hosts: to use another prefix for the keys, write ?root=name/",
            ));
        }
        let mut config = Config::new("", DEFAULT_PORT);
        config.tls = match scheme {
            "etcd" => false,
            "etcds" => true,
            _ => return Err(invalid(URL_FORM)),
        };
        let (login, hosts) = authority.rsplit_once('@').unwrap_or(("", authority));
        config.hosts = hosts.split(',').map(parse_host).collect::<Result<_>>()?;
        let (user, password) =
            login.split_once(':').map_or((login, None), |(user, password)| (user, Some(password)));
        config.user = Some(decode(user)?).filter(|user| !user.is_empty());
        if let Some(password) = password {
            config.password.set(decode(password)?);
        }
        let config = options.split('&').filter(|option| !option.is_empty()).try_fold(config, Config::set)?;
        config.check()
    }

    fn set(mut self, option: &str) -> Result<Config> {
        let (name, value) = option.split_once('=').unwrap_or((option, ""));
        if self.tls_files.set_option(name, value)? {
            return Ok(self);
        }
        match name {
            "password_file" => self.password.set_file(decode(value)?),
            "timeout" => self.timeout = parse_timeout(name, value)?,
            "connect_timeout" => self.connect_timeout = parse_timeout(name, value)?,
            "namespace" => self.namespace = Some(decode(value)?),
            "root" => self.root = parse_root(&decode(value)?)?,
            "server_name" => self.server_name = Some(decode(value)?),
            _ => {
                return Err(invalid(format!(
                    "the option {name:.40} is not known: use timeout, connect_timeout, password_file, namespace, root, \
                     ca_file, cert_file, key_file or server_name"
                )));
            }
        }
        Ok(self)
    }

    fn check(self) -> Result<Config> {
        let has_tls_options = !self.tls_files.is_empty() || self.server_name.is_some();
        if has_tls_options && !self.tls {
            let message =
                "ca_file, cert_file, key_file and server_name need TLS: write etcds:// instead of etcd://";
            return Err(invalid(message));
        }
        self.tls_files.check()?;
        if self.user.is_none() && !self.password.is_empty() {
            return Err(invalid("a password needs a user: write etcd://user@host"));
        }
        Ok(self)
    }

    /// How long to wait for a reply. The default is 3 s; the bounds are 10 ms and one minute.
    pub fn timeout(mut self, timeout: Duration) -> Config {
        self.timeout = timeout.clamp(TIMEOUT_MIN, TIMEOUT_MAX);
        self
    }

    /// How long to wait for a connection. The default is 5 s; the bounds are 10 ms and one minute.
    pub fn connect_timeout(mut self, timeout: Duration) -> Config {
        self.connect_timeout = timeout.clamp(TIMEOUT_MIN, TIMEOUT_MAX);
        self
    }

    /// Logs in as this user with this password. The default is no login.
    pub fn login(mut self, user: &str, password: &str) -> Config {
        self.user = Some(user.to_owned());
        self.password.set(password);
        self
    }

    /// The namespace in the URL. The client adds it to the names of its resources; this backend does not use
    /// it.
    pub fn namespace(&self) -> Option<&str> {
        self.namespace.as_deref()
    }

    /// The password now. A password file is read again for every connection, because the password may be
    /// rotated.
    pub(crate) fn password(&self) -> Result<String> {
        Ok(self.password.current()?.unwrap_or_default())
    }
}

fn parse_root(text: &str) -> Result<Root> {
    if text.len() < 2
        || !text.ends_with('/')
        || text.len() > ROOT_BYTES_MAX
        || text.contains(char::is_control)
    {
        return Err(invalid("root is the prefix of all keys and must end with a slash: write root=locks/"));
    }
    Ok(Root::new(text))
}

fn parse_host(text: &str) -> Result<(String, u16)> {
    let (host, port) = url::host(text, DEFAULT_PORT)?.ok_or_else(|| invalid(URL_FORM))?;
    // The driver expects an IPv6 address in brackets.
    let host = if text.starts_with('[') { format!("[{host}]") } else { host.to_owned() };
    let is_not_of_a_host = |c: char| !(c.is_ascii_alphanumeric() || "-._[]:".contains(c));
    if host.contains(is_not_of_a_host) { Err(invalid(URL_FORM)) } else { Ok((host, port)) }
}

fn parse_timeout(name: &str, text: &str) -> Result<Duration> {
    Ok(url::duration(name, text)?.clamp(TIMEOUT_MIN, TIMEOUT_MAX))
}

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Config")
            .field("hosts", &self.hosts)
            .field("tls", &self.tls)
            .field("user", &self.user)
            .field("timeout", &self.timeout)
            .field("root", &self.root)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use leasehold_core::ErrorKind;

    #[test]
    fn a_url_sets_every_option() {
        let url = "etcds://app:p%40ss@e1,[::1]:7000?timeout=500ms&connect_timeout=3s&namespace=acme&root=locks/\
                   &ca_file=/ca.pem&cert_file=/c.pem&key_file=/k.pem&server_name=etcd.internal";
        let config = Config::parse(url).unwrap();
        assert_eq!(config.hosts, [("e1".to_owned(), 2379), ("[::1]".to_owned(), 7000)]);
        assert_eq!((config.user.as_deref(), config.password().unwrap().as_str()), (Some("app"), "p@ss"));
        assert_eq!((config.timeout.as_millis(), config.connect_timeout.as_secs()), (500, 3));
        assert_eq!((config.namespace(), config.root.prefix(), config.tls), (Some("acme"), "locks/", true));
        assert!(!format!("{config:?}").contains("p@ss"));
        let plain = Config::parse("etcd://h").unwrap();
        assert_eq!((plain.connect_timeout.as_secs(), plain.user, plain.tls), (5, None, false));
    }

    #[test]
    fn a_wrong_url_is_refused_and_not_repeated() {
        let table = [
            ("etcd:", "etcd://host"),
            ("etcd://", "etcd://host"),
            ("etcd://a,,b", "etcd://host"),
            ("http://hunter2", "etcd://host"),
            ("etcd://a:hunter2x", "port"),
            ("etcd://a/hunter2", "root"),
            ("etcd://u:hunter2%2@a", "%25"),
            ("etcd://:hunter2@a", "user"),
            ("etcd://a?timeout=5", "500ms"),
            ("etcd://a?hunter=2", "not known"),
            ("etcd://a?root=hunter2", "slash"),
            ("etcd://a?ca_file=/hunter2", "etcds://"),
            ("etcds://a?cert_file=/hunter2", "key_file"),
        ];
        for (url, part) in table {
            let error = Config::parse(url).expect_err(url);
            assert_eq!(error.kind(), ErrorKind::Invalid);
            let text = format!("{error:?}");
            assert!(text.contains(part) && !text.contains("hunter2"), "{url}: {text}");
        }
    }
}
