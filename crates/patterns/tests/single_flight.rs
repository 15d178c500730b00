//! Many ask, one computes, all get it: on SQLite, PostgreSQL and Redis, within a process and across processes.
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
    Cache, Entry, Failure, PostgresCache, RedisCache, SingleFlight, SqliteCache,
};
use leasehold_testkit::servers::{PostgresServer, RedisServer};
use tokio::sync::Notify;
use tokio_postgres::NoTls;

/// Longer than anything takes: a test that gets here has failed.
const PATIENCE: Duration = Duration::from_secs(60);

/// The same test on every cache.
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

fn value(text: &str) -> Entry {
    Entry::Value(text.as_bytes().into())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cache_goes_on_when_the_connection_or_the_database_was_lost() {
    let server = PostgresServer::start();
    let cache = PostgresCache::new(ConnectionManager::new(server.url().parse().unwrap(), NoTls));
    cache.create().await.unwrap();
    for (token, kill) in [(34, false), (36, true)] {
        cache.put(&value("before"), PATIENCE, &pass(token)).await.unwrap();
        if kill {
            server.kill();
            let error = cache.put(&value("away"), PATIENCE, &pass(token + 1)).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
            server.run_again();
        } else {
            let others = "FROM pg_stat_activity WHERE pid <> pg_backend_pid()";
            server.sql(&format!("SELECT pg_terminate_backend(pid) {others}"));
        }
        let until = Instant::now() + PATIENCE;
        // That the connection is over is noticed by a statement, or shortly before.
        while let Err(error) = cache.get(&home()).await {
            assert!(error.kind() == ErrorKind::Unavailable && Instant::now() < until, "{error}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let error = cache.put(&value("late"), PATIENCE, &pass(token - 1)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::StaleToken, "the mark has outlived it: {error}");
        assert_eq!(cache.get(&home()).await.unwrap(), Some(value("before")));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_ghost_cannot_overwrite_a_newer_value_even_after_its_end() {
    caches(async |cache| {
        let short = Duration::from_millis(50);
        let hostile = Resource::new("flight", "hostile '{}' key").unwrap();
        assert_eq!(cache.get(&home()).await.unwrap(), None);
        cache.put(&value("34"), PATIENCE, &pass(34)).await.unwrap();
        let error = cache.put(&value("33"), PATIENCE, &pass(33)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::StaleToken, "{cache:?}");
        assert_eq!(cache.get(&home()).await.unwrap(), Some(value("34")));
        cache.put(&value("35"), short, &pass(35)).await.unwrap();
        tokio::time::sleep(4 * short).await;
        assert_eq!(cache.get(&home()).await.unwrap(), None, "it was good for a moment");
        let error = cache.put(&value("34 again"), PATIENCE, &pass(34)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::StaleToken, "the mark outlives the value: {cache:?}");
        cache.put(&Entry::Failed("no disk".into()), PATIENCE, &pass(36)).await.unwrap();
        assert_eq!(cache.get(&home()).await.unwrap(), Some(Entry::Failed("no disk".into())));
        assert_eq!(cache.get(&hostile).await.unwrap(), None, "{cache:?}");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn of_a_thousand_askers_in_four_clients_one_computes() {
    caches(async |cache| {
        let (memory, computed) = (Arc::new(Memory::new()), Arc::new(AtomicUsize::new(0)));
        let mut askers = tokio::task::JoinSet::new();
        for _ in 0..4 {
            let flight = Arc::new(SingleFlight::new(&Client::new(memory.clone()), cache.clone()));
            for _ in 0..250 {
                let (flight, computed) = (Arc::clone(&flight), Arc::clone(&computed));
                askers.spawn(async move {
                    let compute = async || {
                        computed.fetch_add(1, Ordering::SeqCst);
                        tokio::time::sleep(Duration::from_millis(100)).await;
                        Ok::<_, String>(b"value".to_vec())
                    };
                    flight.get("home", compute).await.unwrap()
                });
            }
        }
        assert!(askers.join_all().await.iter().all(|value| **value == *b"value"));
        assert_eq!(computed.load(Ordering::SeqCst), 1, "{cache:?}");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn errors_are_shared_for_a_moment_and_then_tried_again() {
    caches(async |cache| {
        let memory = Arc::new(Memory::new());
        let flights = [(); 2].map(|()| SingleFlight::new(&Client::new(memory.clone()), cache.clone()));
        let began = Instant::now();
        let failing = flights[0].get("broken", async || Err::<Vec<u8>, _>("no disk")).await;
        assert!(matches!(failing, Err(Failure::Computing(why)) if why == "no disk"));
        let shared = flights[1].get("broken", async || Ok::<_, String>(b"mended".to_vec())).await;
        // On a machine that is very busy the second may be over.
        let within = began.elapsed() < Duration::from_millis(900);
        assert!(!within || matches!(shared, Err(Failure::Computing(why)) if why == "no disk"));
        tokio::time::sleep(Duration::from_millis(1100)).await;
        let mended = flights[1].get("broken", async || Ok::<_, String>(b"mended".to_vec())).await;
        assert_eq!(&mended.unwrap()[..], b"mended");
    })
    .await;
}

#[tokio::test]
async fn one_that_is_dropped_while_it_computes_is_replaced() {
    let directory = tempfile::tempdir().unwrap();
    let cache = Arc::new(SqliteCache::open(directory.path().join("cache.db")).await.unwrap());
    let flight = Arc::new(SingleFlight::new(&Client::new(Arc::new(Memory::new())), cache));
    let (begun, computing) = tokio::sync::oneshot::channel();
    let begun = std::sync::Mutex::new(Some(begun));
    let first = tokio::spawn({
        let flight = Arc::clone(&flight);
        async move {
            let never = async || {
                begun.lock().unwrap().take().map(|begun| begun.send(()));
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
    assert_eq!(&tokio::time::timeout(PATIENCE, second).await.unwrap().unwrap().unwrap()[..], b"second");
}

/// No timer fires in this test: whoever gets the value was woken when the lease was given back.
#[tokio::test]
async fn whoever_waits_is_woken_with_the_value() {
    let directory = tempfile::tempdir().unwrap();
    let cache = Arc::new(SqliteCache::open(directory.path().join("cache.db")).await.unwrap());
    let time = ManualTime::new();
    let memory = Arc::new(Memory::in_environment(Arc::new(time.clone())));
    let flights = [(); 4].map(|()| {
        let client = Client::builder(memory.clone()).environment(Arc::new(time.clone())).build();
        Arc::new(SingleFlight::new(&client, cache.clone()))
    });
    let (begun, ready) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let ask = |flight: &Arc<SingleFlight>| {
        let (flight, begun, ready) = (Arc::clone(flight), Arc::clone(&begun), Arc::clone(&ready));
        tokio::spawn(async move {
            let compute = async || {
                begun.notify_one();
                ready.notified().await;
                Ok::<_, String>(b"value".to_vec())
            };
            flight.get("home", compute).await.unwrap()
        })
    };
    let first = ask(&flights[0]);
    begun.notified().await;
    let others: Vec<_> = flights.iter().cycle().take(100).map(ask).collect();
    let watcher = Client::builder(memory.clone()).environment(Arc::new(time.clone())).build();
    while watcher.look("flight", "home").await.unwrap().queue_length < 3 {
        tokio::task::yield_now().await;
    }
    ready.notify_one();
    for asker in others.into_iter().chain([first]) {
        let value = tokio::time::timeout(PATIENCE, asker).await.expect("woken").unwrap();
        assert_eq!(&value[..], b"value");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_value_has_at_most_a_mebibyte_and_what_is_larger_is_an_error_for_all() {
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
            assert!(matches!(large, Err(Failure::Computing(why)) if why.contains("at most 1048576 bytes")));
        }
        let shared = flights[1].get("large", async || Ok::<_, String>(Vec::new())).await;
        // On a machine that is very busy the second may be over.
        assert!(shared.is_err() || began.elapsed() > Duration::from_millis(900), "{cache:?}");
        let long = flights[0].get("long", async || Err::<Vec<u8>, _>("é".repeat(1 << 20))).await;
        assert!(matches!(long, Err(Failure::Computing(why)) if why.chars().count() == 4096));
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
async fn what_is_badly_named_gets_a_clear_error() {
    let directory = tempfile::tempdir().unwrap();
    let cache = Arc::new(SqliteCache::open(directory.path().join("cache.db")).await.unwrap());
    let flight = SingleFlight::new(&Client::new(Arc::new(Memory::new())), cache);
    for key in ["", "a\nb", &"x".repeat(257)] {
        let answer = flight.get(key, async || Ok::<_, String>(vec![])).await;
        assert!(matches!(answer, Err(Failure::Leasehold(error)) if error.kind() == ErrorKind::Invalid));
    }
}

/// One of four processes: 250 tasks ask, and whoever computes writes a line.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "run by the test below, in processes of their own"]
async fn a_process_that_asks() {
    let store = env::var("FLIGHT_STORE").unwrap();
    let leases = leasehold::connect(&format!("sqlite:{store}/leases.db")).await.unwrap();
    let cache = Arc::new(SqliteCache::open(format!("{store}/cache.db")).await.unwrap());
    let flight = Arc::new(SingleFlight::new(&leases, cache).ttl(Duration::from_secs(1)));
    let mut askers = tokio::task::JoinSet::new();
    for _ in 0..250 {
        let (flight, store) = (Arc::clone(&flight), store.clone());
        askers.spawn(async move {
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
    assert!(askers.join_all().await.iter().all(|value| **value == *b"value"));
}

#[test]
fn of_a_thousand_askers_in_four_processes_one_computes_and_one_that_dies_is_replaced() {
    let directory = tempfile::tempdir().unwrap();
    let start = |dies: bool| {
        let mut command = Command::new(env::current_exe().unwrap());
        command.args(["--ignored", "--exact", "a_process_that_asks"]).env("FLIGHT_STORE", directory.path());
        if dies {
            command.env("FLIGHT_DIES", "1");
        }
        command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
    };
    let computed = || fs::read_to_string(directory.path().join("computed")).unwrap().lines().count();
    assert!(!start(true).wait().unwrap().success(), "it died over it");
    assert_eq!(computed(), 1);
    let mut processes = [(); 4].map(|()| start(false));
    assert!(processes.iter_mut().all(|process| process.wait().unwrap().success()));
    assert_eq!(computed(), 2, "one that died, and one for all the others");
}
