//! Makes a client or a backend from a URL.

use std::{future::Future, pin::Pin, sync::Arc};

use leasehold_core::{Backend, Environment, Error, ErrorKind, Resource, Result};
use leasehold_support::url::take_option;

use crate::{client::Client, memory::Memory, system::System};

/// A backend, and the namespace in its URL.
struct OpenedUrl {
    backend: Arc<dyn Backend>,
    namespace: Option<String>,
}

/// A boxed future, made by a function that is not generic. So the code of all backends is generated in this crate, once.
/// As one future, it would be generated again at every build of every program that calls `connect` (ADR 0053).
type Opening<'a> = Pin<Box<dyn Future<Output = Result<OpenedUrl>> + Send + 'a>>;

/// Connects to the backend that the URL names, and makes a client of it.
///
/// | URL | backend | feature |
/// |---|---|---|
/// | `sqlite:PATH` | a file, for many processes of one host | `sqlite`, on by default |
/// | `redis://HOST` | a Redis server | `redis`, on by default |
/// | `rediss://HOST` | the same with TLS | `redis-tls` |
/// | `redis+sentinel://HOST,HOST/SERVICE` | the server that the Sentinels name as the primary | `redis` |
/// | `redis+cluster://HOST,HOST` | a Redis Cluster, found by some of its nodes | `redis` |
/// | `redlock://HOST,HOST,HOST` | a majority of independent Redis servers | `redis` |
/// | `postgres://USER@HOST/DATABASE` | PostgreSQL; of several hosts, the one that accepts writes | `postgres`; with TLS, `postgres-tls` |
/// | `etcd://HOST,HOST` | an etcd cluster | `etcd`, which needs `protoc` to build |
/// | `etcds://HOST,HOST` | the same with TLS | `etcd-tls` |
/// | `zookeeper://HOST,HOST/CHROOT` | a ZooKeeper ensemble | `zookeeper` |
/// | `http://HOST` | a leasehold server, over whichever store it serves | `http` |
/// | `https://HOST` | the same with TLS | `http-tls` |
/// | `memory:` | this process's memory: for tests, and for programs of one process | |
///
/// With the option `?namespace=NAME`, every URL also sets the namespace of the client: [`Client::namespace`].
///
/// # Cancel safety
/// It leaves nothing behind if it is dropped part-way.
///
/// # Errors
/// `Invalid` for a URL that names no backend; `Unsupported` for a backend that this build does not include, and outside of
/// a tokio runtime ([`blocking`](crate::blocking) is for programs without one); the backend's error if it cannot be opened.
///
/// # Examples
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
/// let leases = leasehold::connect("memory:").await?;
/// leases.lease("report", "42").run(async |lease| println!("{:?}", lease.token())).await?;
/// # Ok(()) }
/// ```
pub async fn connect(url: &str) -> Result<Client> {
    let environment: Arc<dyn Environment> = Arc::new(System::try_current()?);
    let OpenedUrl { backend, namespace } = open_url(url, &environment).await?;
    let client = Client::builder(backend).environment(environment).build();
    Ok(namespace.map_or(client.clone(), |namespace| client.namespace(&namespace)))
}

/// Connects to the backend that the URL names, for a [`Client::builder`].
///
/// # Cancel safety
/// As [`connect`].
///
/// # Errors
/// As [`connect`]; `Invalid` for a URL with a namespace, because a namespace belongs to a client.
pub async fn open(url: &str) -> Result<Arc<dyn Backend>> {
    let environment: Arc<dyn Environment> = Arc::new(System::try_current()?);
    match open_url(url, &environment).await? {
        OpenedUrl { backend, namespace: None } => Ok(backend),
        _ => {
            let message = "a namespace belongs to a client, not to a backend: use `connect`, or `ClientBuilder::namespace`";
            Err(Error::new(ErrorKind::Invalid, message))
        }
    }
}

#[inline(never)]
fn open_url<'a>(url: &'a str, environment: &'a Arc<dyn Environment>) -> Opening<'a> {
    let (scheme, _) = url.split_once(':').unwrap_or((url, ""));
    match scheme {
        "memory" => ready(memory(url)),
        "sqlite" => sqlite(url, environment),
        "redis" | "rediss" | "redis+sentinel" | "redis+cluster" => redis(url, environment),
        "redlock" => redlock(url, environment),
        "postgres" | "postgresql" => postgres(url, environment),
        "etcd" | "etcds" => etcd(url, environment),
        "zookeeper" => zookeeper(url, environment),
        "http" | "https" => http(url, environment),
        _ => {
            // The rest of the URL may hold a password, so it is not in the message.
            let message = format!("no backend is called {scheme:.20?}: write one of {KNOWN}");
            ready(Err(Error::new(ErrorKind::Invalid, message)))
        }
    }
}

fn memory(url: &str) -> Result<OpenedUrl> {
    let (_, namespace) = take_namespace(url)?;
    Ok(OpenedUrl { backend: Arc::new(Memory::new()), namespace })
}

/// The URL without `?namespace=NAME`, and that namespace. For backends whose own options do not have it.
fn take_namespace(url: &str) -> Result<(String, Option<String>)> {
    let (url, namespace) = take_option(url, "namespace")?;
    if let Some(namespace) = &namespace {
        Resource::new("kind", "id")?.in_namespace(namespace)?; // report a wrong one now, not at the first request
    }
    Ok((url, namespace))
}

fn ready<'a>(outcome: Result<OpenedUrl>) -> Opening<'a> {
    Box::pin(std::future::ready(outcome))
}

const KNOWN: &str = "sqlite:PATH, redis://HOST, redlock://HOST,HOST,HOST, postgres://USER@HOST/DATABASE, etcd://HOST, \
                     zookeeper://HOST, http://HOST or memory:";

#[cfg(feature = "sqlite")]
fn sqlite<'a>(url: &'a str, environment: &'a Arc<dyn Environment>) -> Opening<'a> {
    Box::pin(async move {
        let (url, namespace) = take_namespace(url)?;
        let config = leasehold_sqlite::Config::parse(url.strip_prefix("sqlite:").unwrap_or(&url))?;
        let backend = Arc::new(leasehold_sqlite::Sqlite::connect(config, Arc::clone(environment)).await?);
        Ok(OpenedUrl { backend, namespace })
    })
}

#[cfg(feature = "redis")]
fn redlock<'a>(url: &'a str, environment: &'a Arc<dyn Environment>) -> Opening<'a> {
    Box::pin(async move {
        let nodes = leasehold_redis::Nodes::parse(url)?;
        let servers = nodes.open(environment);
        let quorum = crate::Quorum::connect(servers, nodes.gate(), Arc::clone(environment)).await?;
        Ok(OpenedUrl { backend: Arc::new(quorum), namespace: nodes.namespace().map(str::to_owned) })
    })
}

/// The backends that need nothing but a URL.
macro_rules! servers {
    ($($name:ident: $feature:literal, $library:ident::$backend:ident;)*) => { $(
        #[cfg(feature = $feature)]
        fn $name<'a>(url: &'a str, environment: &'a Arc<dyn Environment>) -> Opening<'a> {
            Box::pin(async move {
                let config = $library::Config::parse(url)?;
                let namespace = config.namespace().map(str::to_owned);
                let backend = Arc::new($library::$backend::connect(config, Arc::clone(environment)).await?);
                Ok(OpenedUrl { backend, namespace })
            })
        }
    )* };
}

servers! {
    postgres: "postgres", leasehold_postgres::Postgres;
    etcd: "etcd", leasehold_etcd::Etcd;
    http: "http", leasehold_http::Http;
    redis: "redis", leasehold_redis::Redis;
    zookeeper: "zookeeper", leasehold_zookeeper::ZooKeeper;
}

/// For backends that this build does not include: an error that says how to get them.
macro_rules! not_included {
    ($($name:ident: $feature:literal, $backend:literal $(, $first:literal)?;)*) => {
        $(
            #[cfg(not(feature = $feature))]
            fn $name<'a>(_: &'a str, _: &'a Arc<dyn Environment>) -> Opening<'a> {
                let message = not_included!(@ $feature, $backend $(, $first)?);
                ready(Err(Error::new(ErrorKind::Unsupported, message)))
            }
        )*

        /// All of these texts, in every build.
        #[cfg(test)]
        const NOT_INCLUDED: &[(&str, &str)] = &[$(($feature, not_included!(@ $feature, $backend $(, $first)?)),)*];
    };
    (@ $feature:literal, $backend:literal $(, $first:literal)?) => {
        concat!("this build has no ", $backend, ": ", $($first, " and ",)? "build leasehold with the feature \"", $feature,
            "\", or run `cargo xtask build`")
    };
}

not_included! {
    postgres: "postgres", "PostgreSQL";
    sqlite: "sqlite", "SQLite";
    redis: "redis", "Redis";
    redlock: "redis", "Redis";
    etcd: "etcd", "etcd", "install protoc (Debian: protobuf-compiler and libprotobuf-dev)";
    zookeeper: "zookeeper", "ZooKeeper";
    http: "http", "HTTP client";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_backend_that_is_not_included_says_how_to_get_it() {
        for (feature, text) in NOT_INCLUDED {
            assert!(text.contains(&format!("feature \"{feature}\", or run `cargo xtask build`")), "{text}");
            assert_eq!(text.contains("install protoc"), *feature == "etcd", "{text}");
        }
    }

    #[cfg(feature = "sqlite")]
    #[tokio::test]
    async fn every_url_can_set_a_namespace() {
        let directory = std::env::temp_dir().join(format!("leasehold-connect-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let file = format!("sqlite:{}/leases.db?namespace=acme&durability=normal", directory.display());
        for url in ["memory:?namespace=acme", &file] {
            let client = connect(url).await.unwrap();
            let resource = client.lease("report", "42").resource().unwrap().to_string();
            assert_eq!(resource, "acme:report/42", "{url}");
            assert_eq!(open(url).await.unwrap_err().kind(), ErrorKind::Invalid, "{url}");
        }
        std::fs::remove_dir_all(directory).unwrap();
        assert_eq!(connect("memory:?namespace=A b").await.unwrap_err().kind(), ErrorKind::Invalid);
    }

    #[cfg(not(feature = "etcd"))]
    #[tokio::test]
    async fn a_build_without_etcd_refuses_it_and_does_not_repeat_the_url() {
        let error = connect("etcd://app:hunter2@127.0.0.1").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        let text = error.to_string();
        assert!(text.contains("protoc") && !text.contains("hunter2"), "{text}");
    }
}
