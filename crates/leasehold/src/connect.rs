//! From a URL to a client.

use std::sync::Arc;

use leasehold_core::{Backend, Error, ErrorKind, Result};

use crate::{client::Client, memory::Memory};

/// A client of the backend that the URL names.
///
/// | URL | backend | feature |
/// |---|---|---|
/// | `sqlite:PATH` | a file, for many processes of one host | `sqlite`, on by default |
/// | `redis://HOST` | a Redis server | `redis`, on by default |
/// | `rediss://HOST` | the same with TLS | `redis-tls` |
/// | `redis+sentinel://HOST,HOST/SERVICE` | whichever server the Sentinels say is the primary | `redis` |
/// | `zookeeper://HOST,HOST/CHROOT` | a ZooKeeper ensemble | `zookeeper` |
/// | `memory:` | this process's memory: for tests, and for programs of one process | |
///
/// # Errors
/// `Invalid` for a URL that names no backend; `Unsupported` for one that this build has not; whatever opening says.
pub async fn connect(url: &str) -> Result<Client> {
    #[cfg(feature = "redis")]
    if is_redis(url) {
        let config = leasehold_redis::Config::parse(url)?;
        let namespace = config.namespace().map(str::to_owned);
        let environment = Arc::new(crate::System::current());
        let backend = Arc::new(leasehold_redis::Redis::connect(config, environment).await?);
        let client = Client::new(backend);
        return Ok(namespace.map_or(client.clone(), |namespace| client.namespace(&namespace)));
    }
    #[cfg(feature = "zookeeper")]
    if url.starts_with("zookeeper:") {
        let config = leasehold_zookeeper::Config::parse(url)?;
        let namespace = config.namespace().map(str::to_owned);
        let environment = Arc::new(crate::System::current());
        let backend = Arc::new(leasehold_zookeeper::ZooKeeper::connect(config, environment).await?);
        let client = Client::new(backend);
        return Ok(namespace.map_or(client.clone(), |namespace| client.namespace(&namespace)));
    }
    Ok(Client::new(open(url).await?))
}

fn is_redis(url: &str) -> bool {
    matches!(url.split_once(':'), Some(("redis" | "rediss" | "redis+sentinel", _)))
}

/// The backend that the URL names, for a [`Client::builder`].
///
/// # Errors
/// As [`connect`].
pub async fn open(url: &str) -> Result<Arc<dyn Backend>> {
    let (scheme, rest) = url.split_once(':').unwrap_or((url, ""));
    match scheme {
        "memory" => Ok(Arc::new(Memory::new())),
        "sqlite" => sqlite(rest).await,
        "zookeeper" => zookeeper(url).await,
        _ if is_redis(url) => redis(url).await,
        _ => {
            // The rest of the URL may hold a password: it is not repeated.
            let message = format!(
                "no backend is called {scheme:.20?}: write sqlite:PATH, redis://HOST, zookeeper://HOST or memory:"
            );
            Err(Error::new(ErrorKind::Invalid, message))
        }
    }
}

#[cfg(feature = "sqlite")]
async fn sqlite(rest: &str) -> Result<Arc<dyn Backend>> {
    let config = leasehold_sqlite::Config::parse(rest)?;
    let environment = Arc::new(crate::System::current());
    Ok(Arc::new(leasehold_sqlite::Sqlite::connect(config, environment).await?))
}

#[cfg(not(feature = "sqlite"))]
async fn sqlite(_: &str) -> Result<Arc<dyn Backend>> {
    let message = "this build has no SQLite: build leasehold with the feature \"sqlite\"";
    Err(Error::new(ErrorKind::Unsupported, message))
}

#[cfg(feature = "redis")]
async fn redis(url: &str) -> Result<Arc<dyn Backend>> {
    let config = leasehold_redis::Config::parse(url)?;
    if config.namespace().is_some() {
        let message =
            "a namespace is the client's, not the backend's: use `connect`, or the client's builder";
        return Err(Error::new(ErrorKind::Invalid, message));
    }
    let environment = Arc::new(crate::System::current());
    Ok(Arc::new(leasehold_redis::Redis::connect(config, environment).await?))
}

#[cfg(not(feature = "redis"))]
async fn redis(_: &str) -> Result<Arc<dyn Backend>> {
    let message = "this build has no Redis: build leasehold with the feature \"redis\"";
    Err(Error::new(ErrorKind::Unsupported, message))
}

#[cfg(feature = "zookeeper")]
async fn zookeeper(url: &str) -> Result<Arc<dyn Backend>> {
    let config = leasehold_zookeeper::Config::parse(url)?;
    if config.namespace().is_some() {
        let message =
            "a namespace is the client's, not the backend's: use `connect`, or the client's builder";
        return Err(Error::new(ErrorKind::Invalid, message));
    }
    let environment = Arc::new(crate::System::current());
    Ok(Arc::new(leasehold_zookeeper::ZooKeeper::connect(config, environment).await?))
}

#[cfg(not(feature = "zookeeper"))]
async fn zookeeper(_: &str) -> Result<Arc<dyn Backend>> {
    let message = "this build has no ZooKeeper: build leasehold with the feature \"zookeeper\", which for the \
                   program is `cargo build --release -p leasehold-cli --features zookeeper`";
    Err(Error::new(ErrorKind::Unsupported, message))
}
