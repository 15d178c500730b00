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
/// | `postgres://USER@HOST/DATABASE` | PostgreSQL, whichever of several hosts takes writes | `postgres`; with TLS, `postgres-tls` |
/// | `etcd://HOST,HOST` | an etcd cluster | `etcd`, which needs `protoc` to build |
/// | `etcds://HOST,HOST` | the same with TLS | `etcd-tls` |
/// | `zookeeper://HOST,HOST/CHROOT` | a ZooKeeper ensemble | `zookeeper` |
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
        "postgres" | "postgresql" => postgres(url).await,
        "etcd" | "etcds" => etcd(url).await,
        "zookeeper" => zookeeper(url).await,
        _ => {
            // The rest of the URL may hold a password: it is not repeated.
            let message = format!("no backend is called {scheme:.20?}: write one of {KNOWN}");
            Err(Error::new(ErrorKind::Invalid, message))
        }
    }
}

const KNOWN: &str = "sqlite:PATH, redis://HOST, redlock://HOST,HOST,HOST, postgres://USER@HOST/DATABASE, etcd://HOST, \
                     zookeeper://HOST or memory:";

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
    postgres: "postgres", leasehold_postgres::Postgres;
    etcd: "etcd", leasehold_etcd::Etcd;
    redis: "redis", leasehold_redis::Redis;
    zookeeper: "zookeeper", leasehold_zookeeper::ZooKeeper;
}

/// What this build has not, and how to get it.
macro_rules! absent {
    ($($name:ident: $feature:literal, $backend:literal $(, $first:literal)?;)*) => {
        $(
            #[cfg(not(feature = $feature))]
            async fn $name(_: &str) -> Result<Opened> {
                Err(Error::new(ErrorKind::Unsupported, absent!(@ $feature, $backend $(, $first)?)))
            }
        )*

        /// What each says, whatever this build has.
        #[cfg(test)]
        const ABSENT: &[(&str, &str)] = &[$(($feature, absent!(@ $feature, $backend $(, $first)?)),)*];
    };
    (@ $feature:literal, $backend:literal $(, $first:literal)?) => {
        concat!("this build has no ", $backend, ": ", $($first, " and ",)? "build leasehold with the feature \"", $feature,
            "\", or run `cargo xtask build`")
    };
}

absent! {
    postgres: "postgres", "PostgreSQL";
    sqlite: "sqlite", "SQLite";
    redis: "redis", "Redis";
    redlock: "redis", "Redis";
    etcd: "etcd", "etcd", "install protoc (Debian: protobuf-compiler and libprotobuf-dev)";
    zookeeper: "zookeeper", "ZooKeeper";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_backend_that_was_left_out_says_how_to_get_it() {
        for (feature, text) in ABSENT {
            assert!(text.contains(&format!("feature \"{feature}\", or run `cargo xtask build`")), "{text}");
            assert_eq!(text.contains("install protoc"), *feature == "etcd", "{text}");
        }
    }

    #[cfg(not(feature = "etcd"))]
    #[tokio::test]
    async fn a_build_without_etcd_refuses_it_without_a_word_of_the_url() {
        let error = connect("etcd://app:hunter2@127.0.0.1").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        let text = error.to_string();
        assert!(text.contains("protoc") && !text.contains("hunter2"), "{text}");
    }
}
