//! Opens a connection to a server or a Sentinel: address, login, TLS and timeouts.

use std::{fmt, time::Duration};

use leasehold_core::{Error, ErrorKind};
use redis::{
    AsyncConnectionConfig, Client, ConnectionAddr, IntoConnectionInfo as _, ProtocolVersion, PushInfo,
    RedisConnectionInfo, aio::MultiplexedConnection, io::tcp::TcpSettings,
};
use tokio::sync::mpsc::UnboundedSender;

use crate::{config::Config, error::StoreError};

/// The first keepalive probe, and the pause between probes.
const KEEPALIVE: Duration = Duration::from_secs(5);

/// Where a primary is, and the epoch in which it became the primary; 0 where there are no epochs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ServerAddress {
    pub(crate) host: String,
    pub(crate) port: u16,
    pub(crate) epoch: u64,
    /// How many replicas the Sentinel knows.
    pub(crate) replicas: u32,
}

impl ServerAddress {
    /// Whether this is another server than `old`, and the primary since a later epoch.
    pub(crate) fn supersedes(&self, old: &ServerAddress) -> bool {
        self.epoch > old.epoch && !self.is_same_server(old)
    }

    pub(crate) fn is_same_server(&self, other: &ServerAddress) -> bool {
        (&self.host, self.port) == (&other.host, other.port)
    }
}

impl fmt::Display for ServerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.host, self.port)
    }
}

/// Where the primary is now: the host of the URL, or what the Sentinels say.
pub(crate) async fn find_primary(config: &Config) -> Result<ServerAddress, StoreError> {
    let Some(service) = &config.service else {
        let (host, port) = config.hosts[0].clone();
        return Ok(ServerAddress { host, port, epoch: 0, replicas: 0 });
    };
    crate::sentinel::find_primary(config, service).await
}

/// Whether a peer is a Redis server or a Sentinel. They have different logins.
#[derive(Clone, Copy, PartialEq, Eq)]
enum PeerKind {
    Server,
    Sentinel,
}

/// The server or Sentinel to connect to.
#[derive(Clone, Copy)]
pub(crate) struct Peer<'a> {
    host: &'a str,
    port: u16,
    kind: PeerKind,
}

impl<'a> Peer<'a> {
    pub(crate) fn server(host: &'a str, port: u16) -> Peer<'a> {
        Peer { host, port, kind: PeerKind::Server }
    }

    pub(crate) fn sentinel(host: &'a str, port: u16) -> Peer<'a> {
        Peer { host, port, kind: PeerKind::Sentinel }
    }

    /// Adds this peer to an error. Behind Sentinel the URL does not name the primary.
    pub(crate) fn name(self, error: StoreError, config: &Config) -> StoreError {
        let role = match self.kind {
            PeerKind::Sentinel => "the Sentinel at ",
            PeerKind::Server if config.service.is_some() => "the primary at ",
            PeerKind::Server => "",
        };
        error.for_peer(role, self.host, self.port)
    }

    fn plain_address(self) -> ConnectionAddr {
        ConnectionAddr::Tcp(self.host.to_owned(), self.port)
    }
}

impl fmt::Display for Peer<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.host, self.port)
    }
}

/// Opens a connection. With `pushes` it speaks RESP3, and messages that the server sends by itself go there.
pub(crate) async fn open(
    config: &Config,
    peer: Peer<'_>,
    pushes: Option<UnboundedSender<PushInfo>>,
) -> Result<MultiplexedConnection, StoreError> {
    let client = client(config, peer, pushes.is_some())?;
    let mut settings = timeouts(config);
    if let Some(pushes) = pushes {
        settings = settings.set_push_sender(pushes);
    }
    match client.get_multiplexed_async_connection_with_config(&settings).await {
        Err(error) if config.tls && error.is_timeout() && answers_without_tls(config, peer).await => {
            let message = format!("{peer} answers without TLS: name its tls-port, or leave TLS out");
            Err(StoreError::Translated(Error::new(ErrorKind::Unavailable, message).because(error)))
        }
        Err(error) if !config.tls && error.is_connection_dropped() && !error.is_connection_refusal() => {
            let message = format!("{peer} hung up at once: if it wants TLS, write rediss://, or tls=true");
            Err(StoreError::Translated(Error::new(ErrorKind::Unavailable, message).because(error)))
        }
        // The error of the server is not kept: it repeats the command, which contains the password.
        Err(error) if error.detail().is_some_and(|detail| detail.contains("unknown command")) => {
            let message =
                format!("cannot connect: {peer} does not know the command HELLO: Redis 7 or later is needed");
            Err(StoreError::Translated(Error::new(ErrorKind::Unsupported, message)))
        }
        outcome => outcome.map_err(|error| peer.name(StoreError::Connect(error), config)),
    }
}

fn timeouts(config: &Config) -> AsyncConnectionConfig {
    AsyncConnectionConfig::new()
        .set_connection_timeout(Some(config.connect_timeout))
        .set_response_timeout(Some(config.timeout))
}

/// Whether a server that timed out with TLS answers without TLS.
///
/// A server without TLS reads the handshake as the beginning of a command and waits for the rest, so it shows
/// only as a timeout. This second connection sends no login. It doubles the wait for a server that is
/// stopped, but only on a connection that has already failed.
async fn answers_without_tls(config: &Config, peer: Peer<'_>) -> bool {
    let Ok(client) = Client::open(peer.plain_address()) else { return false };
    client.get_multiplexed_async_connection_with_config(&timeouts(config)).await.is_ok()
}

fn client(config: &Config, peer: Peer<'_>, resp3: bool) -> Result<Client, StoreError> {
    let mut info = RedisConnectionInfo::default().set_lib_name("leasehold", env!("CARGO_PKG_VERSION"));
    let login = match peer.kind {
        PeerKind::Server => {
            info = info.set_db(i64::from(config.database));
            &config.login
        }
        PeerKind::Sentinel => &config.sentinel_login,
    };
    // Only RESP3 can deliver messages and replies on one connection.
    if resp3 {
        info = info.set_protocol(ProtocolVersion::RESP3);
    }
    if let Some(user) = &login.user {
        info = info.set_username(user);
    }
    if let Some(password) = login.password.current().map_err(StoreError::Translated)? {
        info = info.set_password(password);
    }
    let address = if config.tls { tls_address(peer)? } else { peer.plain_address() };
    let info = address
        .into_connection_info()
        .map_err(StoreError::Connect)?
        .set_tcp_settings(tcp_settings(config))
        .set_redis_settings(info);
    open_client(config, info)
}

/// Keepalive and user timeout let the kernel notice a peer that is gone without a reset.
fn tcp_settings(config: &Config) -> TcpSettings {
    let keepalive =
        redis::io::tcp::socket2::TcpKeepalive::new().with_time(KEEPALIVE).with_interval(KEEPALIVE);
    // No delay: requests are small, and each one waits for its reply.
    let settings = TcpSettings::default().set_nodelay(true).set_keepalive(keepalive);
    #[cfg(target_os = "linux")]
    let settings = settings.set_user_timeout(config.timeout.max(KEEPALIVE) * 2);
    settings
}

// ADR 0020: the provider of cryptography is ring, unless the program has installed another one.
#[cfg(feature = "tls")]
fn tls_address(peer: Peer<'_>) -> Result<ConnectionAddr, StoreError> {
    leasehold_support::certificates::install_provider();
    Ok(ConnectionAddr::TcpTls {
        host: peer.host.to_owned(),
        port: peer.port,
        insecure: false,
        tls_params: None,
    })
}

#[cfg(not(feature = "tls"))]
fn tls_address(_: Peer<'_>) -> Result<ConnectionAddr, StoreError> {
    let message = "this build has no TLS: build leasehold with the feature \"redis-tls\"";
    Err(StoreError::Translated(Error::new(ErrorKind::Unsupported, message)))
}

#[cfg(feature = "tls")]
fn open_client(config: &Config, info: redis::ConnectionInfo) -> Result<Client, StoreError> {
    use leasehold_support::tls::read_pem;
    let files = &config.tls_files;
    if !config.tls || (files.ca.is_none() && files.cert.is_none()) {
        return Client::open(info).map_err(StoreError::Connect);
    }
    let identity = files.read_identity().map_err(StoreError::Translated)?;
    let client_tls =
        identity.map(|(client_cert, client_key)| redis::ClientTlsConfig { client_cert, client_key });
    let root_cert = files.ca.as_deref().map(read_pem).transpose().map_err(StoreError::Translated)?;
    let certificates = redis::TlsCertificates { client_tls, root_cert };
    Client::build_with_tls(info, certificates).map_err(|error| {
        let message =
            "cannot use ca_file, cert_file or key_file: they must be in PEM, and the key must fit the certificate";
        StoreError::Translated(Error::new(ErrorKind::Invalid, message).because(error))
    })
}

#[cfg(not(feature = "tls"))]
fn open_client(_: &Config, info: redis::ConnectionInfo) -> Result<Client, StoreError> {
    Client::open(info).map_err(StoreError::Connect)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(not(feature = "tls"))]
    #[test]
    fn a_build_without_tls_says_which_feature_is_missing() {
        let config = Config::parse("rediss://cache.internal/").unwrap();
        let refused = client(&config, Peer::server("cache.internal", 6379), false).err();
        let error = refused.expect("this build has no TLS").into_error();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.to_string().contains("feature \"redis-tls\""), "{error}");
    }

    #[cfg(feature = "tls")]
    #[test]
    fn a_program_need_not_install_a_tls_provider() {
        let config = Config::parse("rediss://cache.internal/").unwrap();
        let open = || client(&config, Peer::server("cache.internal", 6379), false);
        assert!(open().is_ok() && open().is_ok());
    }
}
