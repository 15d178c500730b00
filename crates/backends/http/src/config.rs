//! The configuration of the backend: server, token, TLS, timeouts.

use std::{fmt, time::Duration};

use leasehold_core::Result;
use leasehold_support::{
    Password, TlsFiles,
    url::{self, decode, invalid},
};

/// Which server to use, with which token and which timeouts. `Debug` shows no token.
///
/// ```
/// use leasehold_http::Config;
///
/// let config = Config::parse("https://:lh_7f_s3cret@leases.internal?timeout=2s")?;
/// assert!(!format!("{config:?}").contains("s3cret"));
/// # Ok::<(), leasehold_core::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq)]
#[must_use]
pub struct Config {
    pub(crate) is_tls: bool,
    pub(crate) host: String,
    pub(crate) port: u16,
    pub(crate) token: Password,
    pub(crate) tls_files: TlsFiles,
    pub(crate) timeout: Duration,
    pub(crate) connect_timeout: Duration,
    namespace: Option<String>,
}

const DEFAULT_PORT: u16 = 7420;
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(5);
const DEFAULT_CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
const TIMEOUT_MIN: Duration = Duration::from_millis(10);
const TIMEOUT_MAX: Duration = Duration::from_secs(60);
const URL_SHAPE: &str =
    "this is not the URL of a leasehold server: write http://host:port or https://host:port";

impl Config {
    /// The configuration for this server, without TLS and without a token.
    pub fn new(host: &str, port: u16) -> Config {
        Config {
            is_tls: false,
            host: host.to_owned(),
            port,
            token: Password::default(),
            tls_files: TlsFiles::default(),
            timeout: DEFAULT_TIMEOUT,
            connect_timeout: DEFAULT_CONNECT_TIMEOUT,
            namespace: None,
        }
    }

    /// Reads `http[s]://[:token@]host[:port][?option=value&…]`. The port is 7420 unless it is given.
    ///
    /// | option | values | default |
    /// |---|---|---|
    /// | `timeout` | how long to wait for an answer: `500ms`, `2s` | `5s` |
    /// | `connect_timeout` | how long to wait for a connection | `2s` |
    /// | `password_file` | the path of a file with the token. It is read again when the server refuses the token | |
    /// | `ca_file` | `https`: the certificates to trust instead of those of the host, in PEM | |
    /// | `cert_file`, `key_file` | `https`: the certificate of this client and its key, in PEM | |
    /// | `namespace` | the namespace of all requests of the client | none |
    ///
    /// # Errors
    /// `Invalid` if the text is not such a URL. The message does not repeat the URL, because it may contain a token.
    pub fn parse(url: &str) -> Result<Config> {
        let (is_tls, rest) = match (url.strip_prefix("http://"), url.strip_prefix("https://")) {
            (Some(rest), _) => (false, rest),
            (None, Some(rest)) => (true, rest),
            (None, None) => return Err(invalid(URL_SHAPE)),
        };
        let (rest, options) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        if !path.is_empty() {
            return Err(invalid("the URL of a leasehold server has no path: write http://host:port"));
        }
        let (login, server) = authority.rsplit_once('@').unwrap_or(("", authority));
        let (host, port) = url::host(server, DEFAULT_PORT)?.ok_or_else(|| invalid(URL_SHAPE))?;
        let mut config = Config { is_tls, ..Config::new(host, port) };
        config.check_host()?;
        let (user, token) = login.split_once(':').unwrap_or((login, ""));
        if !user.is_empty() {
            return Err(invalid("a leasehold server knows no users: write the token as http://:token@host"));
        }
        if !token.is_empty() {
            config.token.set(decode(token)?);
        }
        let config =
            options.split('&').filter(|option| !option.is_empty()).try_fold(config, Config::set_option)?;
        config.check_tls()?;
        Ok(config)
    }

    fn set_option(mut self, option: &str) -> Result<Config> {
        let (name, value) = option.split_once('=').unwrap_or((option, ""));
        match name {
            "password_file" => self.token.set_file(decode(value)?),
            "timeout" => self.timeout = parse_duration(name, value)?,
            "connect_timeout" => self.connect_timeout = parse_duration(name, value)?,
            "namespace" => self.namespace = Some(decode(value)?),
            _ if self.tls_files.set_option(name, value)? => {}
            _ => {
                return Err(invalid(format!(
                    "the option {name:.40} is not known: use timeout, connect_timeout, password_file, ca_file, \
                     cert_file, key_file or namespace"
                )));
            }
        }
        Ok(self)
    }

    fn check_host(&self) -> Result<()> {
        let is_host_char = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_' | ':');
        if self.host.chars().all(is_host_char) {
            return Ok(());
        }
        Err(invalid("the host has a character that no host name has: write a name or an address"))
    }

    fn check_tls(&self) -> Result<()> {
        self.tls_files.check()?;
        if !self.is_tls && !self.tls_files.is_empty() {
            return Err(invalid("ca_file, cert_file and key_file are for TLS: write https://host"));
        }
        Ok(())
    }

    /// Sets the token that every request carries. Default: none.
    pub fn token(mut self, token: impl Into<String>) -> Config {
        self.token.set(token);
        self
    }

    /// Sets how long to wait for an answer. Default 5 s; from 10 ms to 1 min.
    pub fn timeout(mut self, timeout: Duration) -> Config {
        self.timeout = timeout.clamp(TIMEOUT_MIN, TIMEOUT_MAX);
        self
    }

    /// Sets how long to wait for a connection. Default 2 s; from 10 ms to 1 min.
    pub fn connect_timeout(mut self, timeout: Duration) -> Config {
        self.connect_timeout = timeout.clamp(TIMEOUT_MIN, TIMEOUT_MAX);
        self
    }

    /// The namespace in the URL. The backend does not use it; the client does.
    pub fn namespace(&self) -> Option<&str> {
        self.namespace.as_deref()
    }

    /// The address of the server, without a secret: `http://127.0.0.1:7420`.
    pub(crate) fn address(&self) -> String {
        let scheme = if self.is_tls { "https" } else { "http" };
        let Config { host, port, .. } = self;
        if host.contains(':') {
            format!("{scheme}://[{host}]:{port}")
        } else {
            format!("{scheme}://{host}:{port}")
        }
    }
}

fn parse_duration(name: &str, text: &str) -> Result<Duration> {
    Ok(url::duration(name, text)?.clamp(TIMEOUT_MIN, TIMEOUT_MAX))
}

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Config")
            .field("server", &self.address())
            .field("token", &self.token)
            .field("timeout", &self.timeout)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_has_a_host_a_token_and_options() {
        let url = "https://:lh_1_p%40ss@[::1]:7000/?timeout=500ms&connect_timeout=3s&namespace=acme&ca_file=/ca.pem";
        let config = Config::parse(url).unwrap();
        assert_eq!((config.address().as_str(), config.namespace()), ("https://[::1]:7000", Some("acme")));
        assert_eq!(config.token.current().unwrap().as_deref(), Some("lh_1_p@ss"));
        assert_eq!((config.timeout.as_millis(), config.connect_timeout.as_secs()), (500, 3));
        assert!(!format!("{config:?}").contains("p@ss"));
        assert_eq!(Config::parse("http://leases").unwrap().address(), "http://leases:7420");
        assert_eq!(Config::parse("https://leases").unwrap().address(), "https://leases:7420");
    }

    #[test]
    fn a_wrong_url_is_refused_without_repeating_it() {
        for (url, words) in [
            ("ftp://a", "http://host:port"),
            ("http://", "http://host:port"),
            ("http://a:x", "port"),
            ("http://a/path", "no path"),
            ("http://s3cret@a", "http://:token@host"),
            ("http://user:s3cret@a", "http://:token@host"),
            ("http://a?ca_file=/x", "https://"),
            ("https://a?cert_file=/x", "key_file"),
            ("http://a?timeout=5", "500ms"),
            ("http://a?retries=5", "not known"),
            ("http://a b", "host name"),
        ] {
            let text = Config::parse(url).unwrap_err().to_string();
            assert!(text.contains(words) && !text.contains("s3cret"), "{url}: {text}");
        }
    }
}
