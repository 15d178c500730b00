//! From a URL to a client.

use std::sync::Arc;

use leasehold_core::{Backend, Error, ErrorKind, Result};

use crate::{client::Client, memory::Memory};

/// A backend, and the namespace that its URL asks for.
struct Opened {
    backend: Arc<dyn Backend>,
    namespace: Option<String>,
}

/// A client of the backend that the URL names.
///
/// | URL | backend | feature |
/// |---|---|---|
/// | `sqlite:PATH` | a file, for many processes of one host | `sqlite`, on by default |
/// | `redis://HOST` | a Redis server | `redis`, on by default |
/// | `rediss://HOST` | the same with TLS | `redis-tls` |
/// | `redis+sentinel://HOST,HOST/SERVICE` | whichever server the Sentinels say is the primary | `redis` |
/// | `redis+cluster://HOST,HOST` | a Redis Cluster, found by some of its nodes | `redis` |
/// | `redlock://HOST,HOST,HOST` | a majority of independent Redis servers | `redis` |
/// | `etcd://HOST,HOST` | an etcd cluster | `etcd`, which needs `protoc` to build |
/// | `etcds://HOST,HOST` | the same with TLS | `etcd-tls` |
/// | `postgres://USER@HOST/DATABASE` | a PostgreSQL server, or whichever of several hosts takes writes | `postgres`; with TLS, `postgres-tls` |
/// | `memory:` | this process's memory: for tests, and for programs of one process | |
///
/// # Errors
/// `Invalid` for a URL that names no backend; `Unsupported` for one that this build has not; whatever opening says.
pub async fn connect(url: &str) -> Result<Client> {
    let Opened { backend, namespace } = opened(url).await?;
    let client = Client::new(backend);
    Ok(namespace.map_or(client.clone(), |namespace| client.namespace(&namespace)))
}

/// The backend that the URL names, for a [`Client::builder`].
///
/// # Errors
/// As [`connect`]; `Invalid` for a URL with a namespace, which is the client's.
pub async fn open(url: &str) -> Result<Arc<dyn Backend>> {
    match opened(url).await? {
        Opened { backend, namespace: None } => Ok(backend),
        _ => {
            let message =
                "a namespace is the client's, not the backend's: use `connect`, or the client's builder";
            Err(Error::new(ErrorKind::Invalid, message))
        }
    }
}

async fn opened(url: &str) -> Result<Opened> {
    let (scheme, _) = url.split_once(':').unwrap_or((url, ""));
    match scheme {
        "memory" => Ok(Opened { backend: Arc::new(Memory::new()), namespace: None }),
        "sqlite" => sqlite(url).await,
        "redis" | "rediss" | "redis+sentinel" | "redis+cluster" => redis(url).await,
        "redlock" => redlock(url).await,
        "etcd" | "etcds" => etcd(url).await,
        "postgres" | "postgresql" => postgres(url).await,
        _ => {
            // The rest of the URL may hold a password: it is not repeated.
            let message = format!("no backend is called {scheme:.20?}: write one of {KNOWN}");
            Err(Error::new(ErrorKind::Invalid, message))
        }
    }
}

const KNOWN: &str = "sqlite:PATH, redis://HOST, redlock://HOST,HOST,HOST, postgres://USER@HOST/DATABASE, \
     etcd://HOST or memory:";

#[cfg(feature = "sqlite")]
async fn sqlite(url: &str) -> Result<Opened> {
    let config = leasehold_sqlite::Config::parse(url.strip_prefix("sqlite:").unwrap_or(url))?;
    let environment = Arc::new(crate::System::current());
    let backend = Arc::new(leasehold_sqlite::Sqlite::connect(config, environment).await?);
    Ok(Opened { backend, namespace: None })
}

#[cfg(feature = "redis")]
async fn redlock(url: &str) -> Result<Opened> {
    let nodes = leasehold_redis::Nodes::parse(url)?;
    let environment: Arc<dyn leasehold_core::Environment> = Arc::new(crate::System::current());
    let quorum = crate::Quorum::connect(nodes.open(&environment), nodes.gate(), environment).await?;
    Ok(Opened { backend: Arc::new(quorum), namespace: nodes.namespace().map(str::to_owned) })
}

/// The backends whose URL says everything.
macro_rules! servers {
    ($($name:ident: $feature:literal, $library:ident::$backend:ident;)*) => { $(
        #[cfg(feature = $feature)]
        async fn $name(url: &str) -> Result<Opened> {
            let config = $library::Config::parse(url)?;
            let namespace = config.namespace().map(str::to_owned);
            let environment = Arc::new(crate::System::current());
            let backend = Arc::new($library::$backend::connect(config, environment).await?);
            Ok(Opened { backend, namespace })
        }
    )* };
}

servers! {
    etcd: "etcd", leasehold_etcd::Etcd;
    postgres: "postgres", leasehold_postgres::Postgres;
    redis: "redis", leasehold_redis::Redis;
}

/// What this build has not, and how to get it.
macro_rules! absent {
    ($($name:ident: $feature:literal, $why:literal;)*) => { $(
        #[cfg(not(feature = $feature))]
        async fn $name(_: &str) -> Result<Opened> {
            Err(Error::new(ErrorKind::Unsupported, concat!("this build has no ", $why)))
        }
    )* };
}

absent! {
    sqlite: "sqlite", "SQLite: build leasehold with the feature \"sqlite\"";
    redis: "redis", "Redis: build leasehold with the feature \"redis\"";
    postgres: "postgres", "PostgreSQL: build leasehold with the feature \"postgres\"";
    redlock: "redis", "Redis: build leasehold with the feature \"redis\"";
    etcd: "etcd", "etcd: install protoc (Debian: protobuf-compiler and libprotobuf-dev) and build leasehold with the \
        feature \"etcd\", or run `cargo xtask build`";
}

#[cfg(all(test, not(feature = "etcd")))]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_build_without_etcd_says_how_to_get_it() {
        let error = connect("etcd://app:hunter2@127.0.0.1").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        let text = error.to_string();
        assert!(
            text.contains("protoc") && text.contains("cargo xtask build") && !text.contains("hunter2"),
            "{text}"
        );
    }
}
