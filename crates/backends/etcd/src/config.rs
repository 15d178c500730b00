//! Which members, as whom, and how patiently.

use std::{fmt, path::PathBuf, time::Duration};

use leasehold_core::{Error, ErrorKind, Result};
use leasehold_support::url::{self, decode, invalid};

use crate::keys::Root;

/// Which members, as whom, and how patiently. Its `Debug` shows no password.
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
    pub(crate) ca_file: Option<PathBuf>,
    pub(crate) cert_file: Option<PathBuf>,
    pub(crate) key_file: Option<PathBuf>,
    pub(crate) server_name: Option<String>,
    pub(crate) user: Option<String>,
    password: Option<String>,
    password_file: Option<PathBuf>,
    pub(crate) timeout: Duration,
    pub(crate) connect_timeout: Duration,
    pub(crate) root: Root,
    namespace: Option<String>,
}

const PORT: u16 = 2379;
const SHORTEST: Duration = Duration::from_millis(10);
const LONGEST: Duration = Duration::from_secs(60);
const SHAPE: &str = "write etcd://host:2379,host:2379 or etcds://host:2379";

impl Config {
    /// One member, with the defaults.
    pub fn new(host: &str, port: u16) -> Config {
        Config {
            hosts: vec![(host.to_owned(), port)],
            tls: false,
            ca_file: None,
            cert_file: None,
            key_file: None,
            server_name: None,
            user: None,
            password: None,
            password_file: None,
            timeout: Duration::from_secs(3),
            connect_timeout: Duration::from_secs(5),
            root: Root::new(Root::DEFAULT),
            namespace: None,
        }
    }

    /// Reads a URL: `etcd://[user[:password]@]host[:port],host…[?option=value&…]`, and `etcds://` with TLS.
    ///
    /// | option | values | default |
    /// |---|---|---|
    /// | `password_file` | a path, read anew for every connection | |
    /// | `timeout` | how long to wait for an answer: `500ms`, `2s` | `3s` |
    /// | `connect_timeout` | how long to wait for a connection | `5s` |
    /// | `namespace` | for all requests of the client | none |
    /// | `root` | what all keys begin with; ends with `/` | `leasehold/v1/` |
    /// | `ca_file` | certificates to trust instead of the web's, in PEM | |
    /// | `cert_file`, `key_file` | the client's own certificate and its key, in PEM | |
    /// | `server_name` | the name that the members' certificates must have | the host |
    ///
    /// # Errors
    /// `Invalid` if it is not such a URL; the message does not repeat it.
    pub fn parse(url: &str) -> Result<Config> {
        let (scheme, rest) = url.split_once("://").ok_or_else(|| invalid(SHAPE))?;
        let (rest, options) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        if !path.is_empty() {
            return Err(invalid(
                "nothing follows the hosts but options: to keep keys elsewhere, write ?root=name/",
            ));
        }
        let mut config = Config::new("", PORT);
        config.tls = match scheme {
            "etcd" => false,
            "etcds" => true,
            _ => return Err(invalid(SHAPE)),
        };
        let (login, hosts) = authority.rsplit_once('@').unwrap_or(("", authority));
        config.hosts = hosts.split(',').map(parse_host).collect::<Result<_>>()?;
        let (user, password) = login.split_once(':').map_or((login, None), |(user, word)| (user, Some(word)));
        config.user = Some(decode(user)?).filter(|user| !user.is_empty());
        config.password = password.map(decode).transpose()?;
        let config = options.split('&').filter(|option| !option.is_empty()).try_fold(config, Config::set)?;
        config.check()
    }

    fn set(mut self, option: &str) -> Result<Config> {
        let (name, value) = option.split_once('=').unwrap_or((option, ""));
        match name {
            "password_file" => self.password_file = Some(decode(value)?.into()),
            "timeout" => self.timeout = duration(name, value)?,
            "connect_timeout" => self.connect_timeout = duration(name, value)?,
            "namespace" => self.namespace = Some(decode(value)?),
            "root" => self.root = root(&decode(value)?)?,
            "ca_file" => self.ca_file = Some(decode(value)?.into()),
            "cert_file" => self.cert_file = Some(decode(value)?.into()),
            "key_file" => self.key_file = Some(decode(value)?.into()),
            "server_name" => self.server_name = Some(decode(value)?),
            _ => {
                return Err(invalid(format!(
                    "the option {name:.40} is not known: timeout, connect_timeout, password_file, namespace, root, \
                     ca_file, cert_file, key_file and server_name are"
                )));
            }
        }
        Ok(self)
    }

    fn check(self) -> Result<Config> {
        let certified = self.ca_file.is_some() || self.cert_file.is_some() || self.server_name.is_some();
        if certified && !self.tls {
            return Err(invalid("certificates are for TLS: write etcds:// instead of etcd://"));
        }
        if self.cert_file.is_some() != self.key_file.is_some() {
            return Err(invalid("a certificate needs its key: give both cert_file and key_file"));
        }
        if self.user.is_none() && (self.password.is_some() || self.password_file.is_some()) {
            return Err(invalid("a password needs a user: write etcd://user@host"));
        }
        Ok(self)
    }

    /// How long to wait for an answer. Three seconds unless told; from 10 ms to a minute.
    pub fn timeout(mut self, timeout: Duration) -> Config {
        self.timeout = timeout.clamp(SHORTEST, LONGEST);
        self
    }

    /// How long to wait for a connection. Five seconds unless told; from 10 ms to a minute.
    pub fn connect_timeout(mut self, timeout: Duration) -> Config {
        self.connect_timeout = timeout.clamp(SHORTEST, LONGEST);
        self
    }

    /// As this user, with this password. Nobody unless told.
    pub fn login(mut self, user: &str, password: &str) -> Config {
        (self.user, self.password) = (Some(user.to_owned()), Some(password.to_owned()));
        self
    }

    /// The namespace that the URL names, for the client to use.
    pub fn namespace(&self) -> Option<&str> {
        self.namespace.as_deref()
    }

    /// The password now: one in a file may have changed.
    pub(crate) fn password(&self) -> Result<String> {
        let Some(path) = &self.password_file else { return Ok(self.password.clone().unwrap_or_default()) };
        let text = std::fs::read_to_string(path).map_err(|error| {
            Error::new(ErrorKind::Denied, format!("cannot read the password file {}", path.display()))
                .because(error)
        })?;
        Ok(text.trim_end_matches(['\r', '\n']).to_owned())
    }
}

fn root(text: &str) -> Result<Root> {
    if text.len() < 2 || !text.ends_with('/') || text.len() > 256 || text.contains(char::is_control) {
        return Err(invalid("root is what all keys begin with, and ends with a slash: root=locks/"));
    }
    Ok(Root::new(text))
}

fn parse_host(text: &str) -> Result<(String, u16)> {
    let (host, port) = url::host(text, PORT)?.ok_or_else(|| invalid(SHAPE))?;
    // The client wants an address of IPv6 in its brackets.
    let host = if text.starts_with('[') { format!("[{host}]") } else { host.to_owned() };
    let odd = |c: char| !(c.is_ascii_alphanumeric() || "-._[]:".contains(c));
    if host.contains(odd) { Err(invalid(SHAPE)) } else { Ok((host, port)) }
}

fn duration(name: &str, text: &str) -> Result<Duration> {
    Ok(url::duration(name, text)?.clamp(SHORTEST, LONGEST))
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

    #[test]
    fn a_url_says_everything() {
        let url = "etcds://app:p%40ss@e1,[::1]:7000?timeout=500ms&connect_timeout=3s&namespace=acme&root=locks/\
                   &ca_file=/ca.pem&cert_file=/c.pem&key_file=/k.pem&server_name=etcd.internal";
        let config = Config::parse(url).unwrap();
        assert_eq!(config.hosts, [("e1".to_owned(), 2379), ("[::1]".to_owned(), 7000)]);
        assert_eq!((config.user.as_deref(), config.password().unwrap().as_str()), (Some("app"), "p@ss"));
        assert_eq!((config.timeout.as_millis(), config.connect_timeout.as_secs()), (500, 3));
        assert_eq!((config.namespace(), config.root.all(), config.tls), (Some("acme"), "locks/", true));
        assert!(!format!("{config:?}").contains("p@ss"));
        let plain = Config::parse("etcd://h").unwrap();
        assert_eq!((plain.connect_timeout.as_secs(), plain.user, plain.tls), (5, None, false));
    }

    #[test]
    fn what_makes_no_sense_is_refused_and_not_repeated() {
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
