//! Where the primary is, and a fresh connection to it.

use std::{fmt, time::Duration};

use leasehold_core::{Effect, Error, ErrorKind, RequestIds};
use redis::{
    AsyncConnectionConfig, Client, Cmd, ConnectionAddr, IntoConnectionInfo as _, ProtocolVersion, PushInfo,
    RedisConnectionInfo, Value, aio::MultiplexedConnection, io::tcp::TcpSettings,
};
use tokio::sync::mpsc::UnboundedSender;

use crate::{
    config::{Config, Login},
    error::Fault,
    proof::Bracket,
};

/// A server, and the epoch in which it became the primary; 0 where there are no epochs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Address {
    pub(crate) host: String,
    pub(crate) port: u16,
    pub(crate) epoch: u64,
    /// How many replicas Sentinel knows.
    pub(crate) replicas: u32,
}

impl Address {
    /// Whether this is another server than that one, and the primary since a later epoch.
    pub(crate) fn supersedes(&self, old: &Address) -> bool {
        self.epoch > old.epoch && !self.is_same_server(old)
    }

    pub(crate) fn is_same_server(&self, other: &Address) -> bool {
        (&self.host, self.port) == (&other.host, other.port)
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.host, self.port)
    }
}

/// Where the primary is now.
pub(crate) async fn find_primary(config: &Config) -> Result<Address, Fault> {
    let Some(service) = &config.service else {
        let (host, port) = config.hosts[0].clone();
        return Ok(Address { host, port, epoch: 0, replicas: 0 });
    };
    crate::sentinel::find_primary(config, service).await
}

pub(crate) fn unavailable(message: impl Into<std::borrow::Cow<'static, str>>) -> Fault {
    Fault::Refused(Error::new(ErrorKind::Unavailable, message))
}

/// What a connection is for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    Server,
    Sentinel,
}

/// A fresh connection. With `pushes` it speaks RESP3, and what the server says unasked goes there.
pub(crate) async fn open(
    config: &Config,
    host: &str,
    port: u16,
    role: Role,
    pushes: Option<UnboundedSender<PushInfo>>,
) -> Result<MultiplexedConnection, Fault> {
    let login = if role == Role::Server { &config.login } else { &config.sentinel_login };
    let client = client(config, host, port, role, login, pushes.is_some())?;
    let mut settings = patience(config);
    if let Some(pushes) = pushes {
        settings = settings.set_push_sender(pushes);
    }
    match client.get_multiplexed_async_connection_with_config(&settings).await {
        Err(error) if config.tls && error.is_timeout() && answers_plainly(config, host, port).await => {
            let message = format!("{host}:{port} answers without TLS: name its tls-port, or leave TLS out");
            Err(Fault::Refused(Error::new(ErrorKind::Unavailable, message).because(error)))
        }
        Err(error) if !config.tls && error.is_connection_dropped() && !error.is_connection_refusal() => {
            let message =
                format!("{host}:{port} hung up at once: if it wants TLS, write rediss://, or tls=true");
            Err(Fault::Refused(Error::new(ErrorKind::Unavailable, message).because(error)))
        }
        // It repeats what it was sent: the password too.
        Err(error) if error.detail().is_some_and(|detail| detail.contains("unknown command")) => {
            let message = "cannot connect: the server does not know HELLO: Redis 7 or later is needed";
            Err(Fault::Refused(Error::new(ErrorKind::Unsupported, message)))
        }
        outcome => outcome.map_err(Fault::Connect),
    }
}

fn patience(config: &Config) -> AsyncConnectionConfig {
    AsyncConnectionConfig::new()
        .set_connection_timeout(Some(config.connect_timeout))
        .set_response_timeout(Some(config.timeout))
}

/// Whether a server that does not answer by TLS does so without: one that expects a command takes a handshake for the
/// beginning of one, and waits for the rest. It is told nothing that is secret. A server that is stopped keeps whoever
/// asks waiting twice as long for it; that connection had failed already.
async fn answers_plainly(config: &Config, host: &str, port: u16) -> bool {
    let Ok(client) = Client::open(ConnectionAddr::Tcp(host.to_owned(), port)) else { return false };
    client.get_multiplexed_async_connection_with_config(&patience(config)).await.is_ok()
}

fn client(
    config: &Config,
    host: &str,
    port: u16,
    role: Role,
    login: &Login,
    pushes: bool,
) -> Result<Client, Fault> {
    let mut info = RedisConnectionInfo::default().set_lib_name("leasehold", env!("CARGO_PKG_VERSION"));
    if role == Role::Server {
        info = info.set_db(i64::from(config.database));
    }
    if pushes {
        info = info.set_protocol(ProtocolVersion::RESP3);
    }
    if let Some(user) = &login.user {
        info = info.set_username(user);
    }
    if let Some(password) = login.password().map_err(Fault::Refused)? {
        info = info.set_password(password);
    }
    let address = if config.tls {
        tls_address(config, host, port)?
    } else {
        ConnectionAddr::Tcp(host.to_owned(), port)
    };
    let info = address
        .into_connection_info()
        .map_err(Fault::Connect)?
        .set_tcp_settings(tcp_settings(config))
        .set_redis_settings(info);
    open_client(config, info)
}

/// A peer that is gone is noticed by the kernel too: a black hole sends no reset.
fn tcp_settings(config: &Config) -> TcpSettings {
    let probe = Duration::from_secs(5);
    let keepalive = redis::io::tcp::socket2::TcpKeepalive::new().with_time(probe).with_interval(probe);
    let settings = TcpSettings::default().set_nodelay(true).set_keepalive(keepalive);
    #[cfg(target_os = "linux")]
    let settings = settings.set_user_timeout(config.timeout.max(probe) * 2);
    settings
}

/// Without a provider the TLS library would panic. If the program has chosen none, it is ring.
#[cfg(feature = "tls")]
fn tls_address(_: &Config, host: &str, port: u16) -> Result<ConnectionAddr, Fault> {
    if rustls::crypto::CryptoProvider::get_default().is_none() {
        // Fails only if someone else has just installed one.
        let _ = rustls::crypto::ring::default_provider().install_default();
    }
    Ok(ConnectionAddr::TcpTls { host: host.to_owned(), port, insecure: false, tls_params: None })
}

#[cfg(not(feature = "tls"))]
fn tls_address(_: &Config, _: &str, _: u16) -> Result<ConnectionAddr, Fault> {
    let message = "this build has no TLS: build leasehold with the feature \"redis-tls\"";
    Err(Fault::Refused(Error::new(ErrorKind::Unsupported, message)))
}

#[cfg(feature = "tls")]
fn open_client(config: &Config, info: redis::ConnectionInfo) -> Result<Client, Fault> {
    if !config.tls || (config.ca_file.is_none() && config.cert_file.is_none()) {
        return Client::open(info).map_err(Fault::Connect);
    }
    let client_tls = match (&config.cert_file, &config.key_file) {
        (Some(cert), Some(key)) => {
            Some(redis::ClientTlsConfig { client_cert: read_pem(cert)?, client_key: read_pem(key)? })
        }
        _ => None,
    };
    let root_cert = config.ca_file.as_deref().map(read_pem).transpose()?;
    let certificates = redis::TlsCertificates { client_tls, root_cert };
    Client::build_with_tls(info, certificates).map_err(|error| {
        let message = "the certificates or the key cannot be used: they are in PEM, and belong together";
        Fault::Refused(Error::new(ErrorKind::Invalid, message).because(error))
    })
}

/// A file of certificates or a key. Read anew for every connection, so that it can be replaced.
#[cfg(feature = "tls")]
fn read_pem(path: &std::path::Path) -> Result<Vec<u8>, Fault> {
    let invalid = |what: &str| Error::new(ErrorKind::Invalid, format!("{what} {}", path.display()));
    let text = std::fs::read(path).map_err(|error| Fault::Refused(invalid("cannot read").because(error)))?;
    if text.windows(5).any(|word| word == b"-----") {
        Ok(text)
    } else {
        Err(Fault::Refused(invalid("what is needed is in PEM, and not in")))
    }
}

#[cfg(not(feature = "tls"))]
fn open_client(_: &Config, info: redis::ConnectionInfo) -> Result<Client, Fault> {
    Client::open(info).map_err(Fault::Connect)
}

/// What a primary says of itself.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Examined {
    pub(crate) replicas: u32,
    /// The epoch of its cluster; 0 if it is in none.
    pub(crate) epoch: u64,
}

/// That this server is a primary, new enough, and part of a cluster only if it is to be.
///
/// What the user may not ask is taken as it is.
pub(crate) async fn examine(
    config: &Config,
    connection: &mut MultiplexedConnection,
    address: &Address,
    ids: &RequestIds,
) -> Result<Examined, Fault> {
    let mut questions = vec![command(&["ROLE"]), command(&["INFO", "server"]), command(&["INFO", "memory"])];
    if config.cluster {
        questions.push(command(&["CLUSTER", "INFO"]));
    }
    // Epochs are part of tokens, and replicas are counted on: these answers must be of this server and of now.
    let bracket = Bracket::new(ids);
    let answers = connection.send_packed_commands(&bracket.around(&questions), 0, questions.len() + 2).await;
    let answers = bracket.open(answers.map_err(Fault::Connect)?, address).map_err(|fault| match fault {
        Fault::Command(refused) => Fault::Connect(refused),
        // Nothing but these questions was sent.
        other => Fault::Refused(other.into_error().with_effect(Effect::None)),
    })?;
    let mut answers = answers.into_iter();
    let mut answer = || answers.next().unwrap_or(Value::Nil);
    let replicas = role(answer())?;
    let server = info(&answer());
    let mode = server.iter().find(|(name, _)| name == "redis_mode").map(|(_, mode)| mode.as_str());
    if mode.is_some_and(|mode| (mode == "cluster") != config.cluster) {
        let message = if config.cluster {
            "the server is no node of a cluster: write redis://host"
        } else {
            IS_CLUSTERED
        };
        return Err(Fault::Refused(Error::new(ErrorKind::Unsupported, message)));
    }
    let version =
        server.iter().find(|(name, _)| name == "redis_version").map(|(_, version)| version.as_str());
    let major = version.and_then(|version| version.split('.').next()?.parse::<u32>().ok());
    if major.is_some_and(|major| major < 7) {
        let message =
            format!("this is Redis {}: 7.0 or later is needed, or Valkey", version.unwrap_or_default());
        return Err(Fault::Refused(Error::new(ErrorKind::Unsupported, message)));
    }
    let memory = info(&answer());
    let policy =
        memory.iter().find(|(name, _)| name == "maxmemory_policy").map(|(_, policy)| policy.as_str());
    if let Some(policy) = policy.filter(|policy| *policy != "noeviction") {
        tracing::warn!(policy, "the server may evict leases: set maxmemory-policy to noeviction");
    }
    let epoch = if config.cluster { epoch_of(&answer()) } else { 0 };
    Ok(Examined { replicas, epoch })
}

fn command(words: &[&str]) -> Cmd {
    Cmd::new().arg(words).to_owned()
}

/// The newest epoch that a node knows, of its answer to `CLUSTER INFO`.
pub(crate) fn epoch_of(answer: &Value) -> u64 {
    let fields = info(answer);
    let epoch = fields.iter().find(|(name, _)| name == "cluster_current_epoch");
    epoch.and_then(|(_, epoch)| epoch.parse().ok()).unwrap_or(0)
}

/// Why a server is refused that is part of a cluster, where one by itself is meant.
pub(crate) const IS_CLUSTERED: &str = "the server is a node of a cluster: a URL of one server does not do";
/// Why a server is refused that follows another.
pub(crate) const IS_REPLICA: &str = "the server is a replica, not the primary";

/// How many replicas follow a primary, of its answer to `ROLE`; an error if it is none.
pub(crate) fn role(answer: Value) -> Result<u32, Fault> {
    if let Value::ServerError(error) = &answer
        && matches!(error.code(), "LOADING" | "MASTERDOWN" | "BUSY" | "NOAUTH")
    {
        return Err(Fault::Connect(error.clone().into()));
    }
    let Value::Array(fields) = answer else { return Ok(0) };
    match fields.first() {
        Some(Value::BulkString(role)) if role != b"master" => Err(unavailable(IS_REPLICA)),
        _ => {
            let replicas = if let Some(Value::Array(replicas)) = fields.get(2) { replicas.len() } else { 0 };
            Ok(u32::try_from(replicas).unwrap_or(u32::MAX))
        }
    }
}

/// The lines of an answer to `INFO`.
pub(crate) fn info(answer: &Value) -> Vec<(String, String)> {
    let text = match answer {
        Value::BulkString(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        Value::VerbatimString { text, .. } => text.clone(),
        _ => return Vec::new(),
    };
    let pairs = text.lines().filter_map(|line| line.trim_end().split_once(':'));
    pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_role_that_makes_no_sense_is_no_panic() {
        let text = |text: &str| Value::BulkString(text.as_bytes().to_vec());
        let replicas = |fields: Vec<Value>| role(Value::Array(fields)).ok();
        assert_eq!(replicas(vec![text("master"), text("soon"), Value::Array(vec![Value::Nil])]), Some(1));
        assert_eq!(replicas(vec![text("master")]), Some(0));
        assert_eq!(replicas(vec![text("slave")]), None);
    }

    #[cfg(not(feature = "tls"))]
    #[test]
    fn tls_that_cannot_be_had_is_an_error_that_says_what_to_do() {
        let config = Config::parse("rediss://cache.internal/").unwrap();
        let refused = client(&config, "cache.internal", 6379, Role::Server, &config.login, false).err();
        let error = refused.expect("this build has no TLS").into_error();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.to_string().contains("feature \"redis-tls\""), "{error}");
    }

    #[cfg(feature = "tls")]
    #[test]
    fn a_program_need_not_choose_a_provider_and_may() {
        let config = Config::parse("rediss://cache.internal/").unwrap();
        let open = || client(&config, "cache.internal", 6379, Role::Server, &config.login, false);
        assert!(open().is_ok() && open().is_ok());
    }
}
