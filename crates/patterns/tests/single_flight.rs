//! Many callers want a value, one computes it, all get it: on SQLite, PostgreSQL and Redis, within a process
//! and across processes.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "a test is a program of its own")]

use std::{
    env, fs,
    io::Write as _,
    process::{Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use leasehold::{Client, ErrorKind, FencingToken, Memory, Pass, Resource, testing::ManualTime};
use leasehold_fence::postgres::ConnectionManager;
use leasehold_patterns::single_flight::{
    Cache, CacheEntry, FlightError, PostgresCache, RedisCache, SingleFlight, SqliteCache,
};
use leasehold_testkit::servers::{PostgresServer, RedisServer};
use tokio::sync::Notify;
use tokio_postgres::NoTls;

/// Longer than any step takes: a test that waits this long has failed.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Runs the test on every cache.
async fn caches(test: impl AsyncFn(Arc<dyn Cache>)) {
    let directory = tempfile::tempdir().unwrap();
    test(Arc::new(SqliteCache::open(directory.path().join("cache.db")).await.unwrap())).await;
    let redis = RedisServer::start();
    let connection =
        redis::Client::open(redis.url()).unwrap().get_multiplexed_async_connection().await.unwrap();
    test(Arc::new(RedisCache::new(connection))).await;
    let postgres = PostgresServer::start();
    let cache = PostgresCache::new(ConnectionManager::new(postgres.url().parse().unwrap(), NoTls));
    cache.create().await.unwrap();
    test(Arc::new(cache)).await;
}

fn home() -> Resource {
    Resource::new("flight", "home").unwrap()
}

fn pass(token: u64) -> Pass {
    Pass::new(home(), FencingToken::new(token).unwrap())
}

fn value(text: &str) -> CacheEntry {
    CacheEntry::Value(text.as_bytes().into())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cache_works_again_after_a_lost_connection_and_a_restarted_database() {
    let server = PostgresServer::start();
    let cache = PostgresCache::new(ConnectionManager::new(server.url().parse().unwrap(), NoTls));
    cache.create().await.unwrap();
    for (token, kill) in [(34, false), (36, true)] {
        cache.put(&value("before"), TIMEOUT, &pass(token)).await.unwrap();
        if kill {
            server.kill();
            let error = cache.put(&value("away"), TIMEOUT, &pass(token + 1)).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
            server.run_again();
        } else {
            let others = "FROM pg_stat_activity WHERE pid <> pg_backend_pid()";
            server.sql(&format!("SELECT pg_terminate_backend(pid) {others}"));
        }
        let until = Instant::now() + TIMEOUT;
        // The first statement may find that the connection is lost.
        while let Err(error) = cache.get(&home()).await {
            assert!(error.kind() == ErrorKind::Unavailable && Instant::now() < until, "{error}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let error = cache.put(&value("late"), TIMEOUT, &pass(token - 1)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::StaleToken, "the token is still known: {error}");
        assert_eq!(cache.get(&home()).await.unwrap(), Some(value("before")));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_old_token_cannot_overwrite_a_newer_value_even_after_it_has_expired() {
    caches(async |cache| {
        let short = Duration::from_millis(50);
        let hostile = Resource::new("flight", "hostile '{}' key").unwrap();
        assert_eq!(cache.get(&home()).await.unwrap(), None);
        cache.put(&value("34"), TIMEOUT, &pass(34)).await.unwrap();
        let error = cache.put(&value("33"), TIMEOUT, &pass(33)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::StaleToken, "{cache:?}");
        assert_eq!(cache.get(&home()).await.unwrap(), Some(value("34")));
        cache.put(&value("35"), short, &pass(35)).await.unwrap();
        tokio::time::sleep(4 * short).await;
        assert_eq!(cache.get(&home()).await.unwrap(), None, "it has expired");
        let error = cache.put(&value("34 again"), TIMEOUT, &pass(34)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::StaleToken, "the token is kept longer than the value: {cache:?}");
        cache.put(&CacheEntry::Failed("no disk".into()), TIMEOUT, &pass(36)).await.unwrap();
        assert_eq!(cache.get(&home()).await.unwrap(), Some(CacheEntry::Failed("no disk".into())));
        assert_eq!(cache.get(&hostile).await.unwrap(), None, "{cache:?}");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn of_a_thousand_callers_in_four_clients_one_computes() {
    caches(async |cache| {
        let (memory, computed) = (Arc::new(Memory::new()), Arc::new(AtomicUsize::new(0)));
        let mut callers = tokio::task::JoinSet::new();
        for _ in 0..4 {
            let flight = Arc::new(SingleFlight::new(&Client::new(memory.clone()), cache.clone()));
            for _ in 0..250 {
                let (flight, computed) = (Arc::clone(&flight), Arc::clone(&computed));
                callers.spawn(async move {
                    let compute = async || {
                        computed.fetch_add(1, Ordering::SeqCst);
                        tokio::time::sleep(Duration::from_millis(100)).await;
                        Ok::<_, String>(b"value".to_vec())
                    };
                    flight.get("home", compute).await.unwrap()
                });
            }
        }
        assert!(callers.join_all().await.iter().all(|value| **value == *b"value"));
        assert_eq!(computed.load(Ordering::SeqCst), 1, "{cache:?}");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn errors_are_shared_for_a_second_and_then_computed_again() {
    caches(async |cache| {
        let memory = Arc::new(Memory::new());
        let flights = [(); 2].map(|()| SingleFlight::new(&Client::new(memory.clone()), cache.clone()));
        let began = Instant::now();
        let failing = flights[0].get("broken", async || Err::<Vec<u8>, _>("no disk")).await;
        assert!(matches!(failing, Err(FlightError::Computing(why)) if why == "no disk"));
        let shared = flights[1].get("broken", async || Ok::<_, String>(b"mended".to_vec())).await;
        // On a machine that is very busy the second may be over.
        let within = began.elapsed() < Duration::from_millis(900);
        assert!(!within || matches!(shared, Err(FlightError::Computing(why)) if why == "no disk"));
        tokio::time::sleep(Duration::from_millis(1100)).await;
        let mended = flights[1].get("broken", async || Ok::<_, String>(b"mended".to_vec())).await;
        assert_eq!(&mended.unwrap()[..], b"mended");
    })
    .await;
}

#[tokio::test]
async fn if_a_caller_is_dropped_while_it_computes_another_one_computes() {
    let directory = tempfile::tempdir().unwrap();
    let cache = Arc::new(SqliteCache::open(directory.path().join("cache.db")).await.unwrap());
    let flight = Arc::new(SingleFlight::new(&Client::new(Arc::new(Memory::new())), cache));
    let (started, computing) = tokio::sync::oneshot::channel();
    let started = std::sync::Mutex::new(Some(started));
    let first = tokio::spawn({
        let flight = Arc::clone(&flight);
        async move {
            let never = async || {
                started.lock().unwrap().take().map(|started| started.send(()));
                std::future::pending::<Result<Vec<u8>, String>>().await
            };
            flight.get("home", never).await
        }
    });
    computing.await.unwrap();
    let second = tokio::spawn({
        let flight = Arc::clone(&flight);
        async move { flight.get("home", async || Ok::<_, String>(b"second".to_vec())).await }
    });
    tokio::task::yield_now().await;
    first.abort();
    assert_eq!(&tokio::time::timeout(TIMEOUT, second).await.unwrap().unwrap().unwrap()[..], b"second");
}

/// No timer fires in this test: every caller that gets the value was woken when the lease was released.
#[tokio::test]
async fn waiting_callers_are_woken_when_the_value_is_there() {
    let directory = tempfile::tempdir().unwrap();
    let cache = Arc::new(SqliteCache::open(directory.path().join("cache.db")).await.unwrap());
    let time = ManualTime::new();
    let memory = Arc::new(Memory::in_environment(Arc::new(time.clone())));
    let flights = [(); 4].map(|()| {
        let client = Client::builder(memory.clone()).environment(Arc::new(time.clone())).build();
        Arc::new(SingleFlight::new(&client, cache.clone()))
    });
    let (started, ready) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let call = |flight: &Arc<SingleFlight>| {
        let (flight, started, ready) = (Arc::clone(flight), Arc::clone(&started), Arc::clone(&ready));
        tokio::spawn(async move {
            let compute = async || {
                started.notify_one();
                ready.notified().await;
                Ok::<_, String>(b"value".to_vec())
            };
            flight.get("home", compute).await.unwrap()
        })
    };
    let first = call(&flights[0]);
    started.notified().await;
    let others: Vec<_> = flights.iter().cycle().take(100).map(call).collect();
    let watcher = Client::builder(memory.clone()).environment(Arc::new(time.clone())).build();
    while watcher.look("flight", "home").await.unwrap().queue_length < 3 {
        tokio::task::yield_now().await;
    }
    ready.notify_one();
    for caller in others.into_iter().chain([first]) {
        let value = tokio::time::timeout(TIMEOUT, caller).await.expect("woken").unwrap();
        assert_eq!(&value[..], b"value");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_value_larger_than_a_mebibyte_is_an_error_for_all_callers() {
    caches(async |cache| {
        let memory = Arc::new(Memory::new());
        let flights = [(); 2].map(|()| SingleFlight::new(&Client::new(memory.clone()), cache.clone()));
        let most = flights[0].get("most", async || Ok::<_, String>(vec![7; 1 << 20])).await;
        assert_eq!(most.unwrap().len(), 1 << 20);
        let most = flights[1].get("most", async || Err::<Vec<u8>, _>("it is there")).await;
        assert_eq!(most.unwrap().len(), 1 << 20, "{cache:?}");
        let began = Instant::now();
        for flight in &flights {
            let large = flight.get("large", async || Ok::<_, String>(vec![0; (1 << 20) + 1])).await;
            assert!(
                matches!(large, Err(FlightError::Computing(why)) if why.contains("at most 1048576 bytes"))
            );
        }
        let shared = flights[1].get("large", async || Ok::<_, String>(Vec::new())).await;
        // On a machine that is very busy the second may be over.
        assert!(shared.is_err() || began.elapsed() > Duration::from_millis(900), "{cache:?}");
        let long = flights[0].get("long", async || Err::<Vec<u8>, _>("é".repeat(1 << 20))).await;
        assert!(matches!(long, Err(FlightError::Computing(why)) if why.chars().count() == 4096));
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tenants_do_not_share_values() {
    caches(async |cache| {
        let client = Client::new(Arc::new(Memory::new()));
        for tenant in ["acme", "zenith"] {
            let flight = SingleFlight::new(&client.namespace(tenant), cache.clone());
            let value = flight.get("home", async || Ok::<_, String>(tenant.into())).await.unwrap();
            assert_eq!(&value[..], tenant.as_bytes(), "{cache:?}");
        }
    })
    .await;
}

#[tokio::test]
async fn an_invalid_key_gets_a_clear_error() {
    let directory = tempfile::tempdir().unwrap();
    let cache = Arc::new(SqliteCache::open(directory.path().join("cache.db")).await.unwrap());
    let flight = SingleFlight::new(&Client::new(Arc::new(Memory::new())), cache);
    for key in ["", "a\nb", &"x".repeat(257)] {
        let result = flight.get(key, async || Ok::<_, String>(vec![])).await;
        assert!(matches!(result, Err(FlightError::Leasehold(error)) if error.kind() == ErrorKind::Invalid));
    }
}

/// One of four processes: 250 tasks want the value, and the one that computes it writes a line.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "run by the test below, in processes of their own"]
async fn a_process_that_wants_the_value() {
    let store = env::var("FLIGHT_STORE").unwrap();
    let leases = leasehold::connect(&format!("sqlite:{store}/leases.db")).await.unwrap();
    let cache = Arc::new(SqliteCache::open(format!("{store}/cache.db")).await.unwrap());
    let flight = Arc::new(SingleFlight::new(&leases, cache).ttl(Duration::from_secs(1)));
    let mut callers = tokio::task::JoinSet::new();
    for _ in 0..250 {
        let (flight, store) = (Arc::clone(&flight), store.clone());
        callers.spawn(async move {
            let compute = async || {
                let mut file = fs::OpenOptions::new()
                    .append(true)
                    .create(true)
                    .open(format!("{store}/computed"))
                    .unwrap();
                writeln!(file, "{}", std::process::id()).unwrap();
                if env::var_os("FLIGHT_DIES").is_some() {
                    std::process::abort();
                }
                tokio::time::sleep(Duration::from_millis(300)).await;
                Ok::<_, String>(b"value".to_vec())
            };
            flight.get("home", compute).await.unwrap()
        });
    }
    assert!(callers.join_all().await.iter().all(|value| **value == *b"value"));
}

#[test]
fn of_a_thousand_callers_in_four_processes_one_computes_and_one_that_dies_is_replaced() {
    let directory = tempfile::tempdir().unwrap();
    let start = |dies: bool| {
        let mut command = Command::new(env::current_exe().unwrap());
        command
            .args(["--ignored", "--exact", "a_process_that_wants_the_value"])
            .env("FLIGHT_STORE", directory.path());
        if dies {
            command.env("FLIGHT_DIES", "1");
        }
        command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
    };
    let computed = || fs::read_to_string(directory.path().join("computed")).unwrap().lines().count();
    assert!(!start(true).wait().unwrap().success(), "it dies while it computes");
    assert_eq!(computed(), 1);
    let mut processes = [(); 4].map(|()| start(false));
    assert!(processes.iter_mut().all(|process| process.wait().unwrap().success()));
    assert_eq!(computed(), 2, "the one that died, and one for all the others");
}
