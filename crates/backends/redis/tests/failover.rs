//! How long grants take after a failover behind Sentinel: the time that the servers need, and the time that
//! this client adds. Each test prints a timeline.
#![allow(clippy::disallowed_methods, reason = "tests on real servers run in real time")]
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

mod common;

use std::{
    thread,
    time::{Duration, Instant},
};

use common::{LONG, TIMEOUT, claim, client, eventually, granted, in_time, open, report};
use leasehold::{BackendExt as _, Client, Effect};
use leasehold_testkit::servers::Replication;

/// How much time this client may add on a loaded machine.
const OURS_MAX: Duration = Duration::from_secs(3);
/// How many clients acquire free resources.
const CLIENTS: usize = 6;
/// The pause between two looks at the servers.
/// Less than the 20 s that the holder's lease lasts. Redis and Sentinel usually need 2 to 9 s; seldom, no replica follows the new
/// primary for half a minute.
const SERVERS_MAX: Duration = Duration::from_secs(15);
const ATTEMPTS: usize = 3;
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// When the servers were ready, counted from the death of the primary.
struct ServerTimeline {
    /// A Sentinel names another primary.
    elected: Duration,
    /// The new primary accepts writes.
    writable: Duration,
    /// A write to it is acknowledged by a replica.
    replicated: Duration,
}

/// Sends commands to one server over a new connection. `None` if that fails.
fn ask<T: redis::FromRedisValue>(port: u16, commands: &[&[&str]]) -> Option<T> {
    let client = redis::Client::open(format!("redis://127.0.0.1:{port}/")).ok()?;
    let mut connection = client.get_connection_with_timeout(Duration::from_millis(500)).ok()?;
    connection.set_read_timeout(Some(Duration::from_secs(1))).ok()?;
    let mut answer = None;
    for words in commands {
        let mut command = redis::Cmd::new();
        words.iter().for_each(|word| {
            command.arg(word);
        });
        answer = Some(command.query::<redis::Value>(&mut connection).ok()?);
    }
    redis::from_redis_value(answer?).ok()
}

/// Waits until the servers can make a grant that `acks` replicas acknowledge. `None` if they need longer than `SERVERS_MAX`.
fn watch(servers: &Replication, old: u16, killed: Instant, acks: u32) -> Option<ServerTimeline> {
    let since = || killed.elapsed();
    let until = killed + SERVERS_MAX;
    let in_time = |what: &str| {
        let in_time = Instant::now() < until;
        if !in_time {
            println!("after {SERVERS_MAX:?} {what}");
        }
        in_time.then_some(())
    };
    let elected = |sentinel: u16| {
        let named: Vec<String> =
            ask(sentinel, &[&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", Replication::SERVICE]])?;
        named.get(1)?.parse::<u16>().ok().filter(|port| *port != old)
    };
    let primary = loop {
        let found = servers.sentinels.iter().find_map(|sentinel| elected(sentinel.port()));
        if let Some(port) = found {
            break port;
        }
        in_time("there is no new primary")?;
        thread::sleep(LOOK_EVERY);
    };
    let elected = since();
    while ask::<String>(primary, &[&["SET", "probe", "1"]]).is_none() {
        in_time("the new primary takes no writes")?;
        thread::sleep(LOOK_EVERY);
    }
    let writable = since();
    loop {
        let wait = ["WAIT", &acks.to_string(), "100"];
        if ask::<u32>(primary, &[&["SET", "probe", "1"], &wait]).is_some_and(|had| had >= acks) {
            return Some(ServerTimeline { elected, writable, replicated: since() });
        }
        in_time("no replica follows the new primary")?;
    }
}

/// Acquires and releases until the primary is dead. Returns when the next grant came, counted from its death.
async fn grants(
    client: Client,
    id: String,
    killed: tokio::sync::watch::Receiver<Option<Instant>>,
) -> Duration {
    loop {
        let lease = client.lease("report", &id).wait(TIMEOUT).acquire().await;
        let since = killed.borrow().map(|killed| killed.elapsed());
        match (lease, since) {
            (Ok(lease), Some(since)) => {
                // A grant so soon was still made by the old primary.
                if since > Duration::from_millis(100) {
                    return since;
                }
                let _ = lease.release().await;
            }
            (Ok(lease), None) => {
                let _ = lease.release().await;
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            (Err(error), since) => println!("  {id}: after {since:?}: {error}"),
        }
    }
}

/// Makes the replicas need a full copy of the next primary, which it begins to send after `delay` seconds.
/// Redis does so whenever the other replica has more data than the promoted one; its default delay is 5 s.
fn need_all_data(servers: &Replication, delay: &str) {
    for replica in &servers.servers[1..] {
        assert_eq!(replica.command(&["DEBUG", "CHANGE-REPL-ID"]), "OK");
        assert_eq!(replica.command(&["CONFIG", "SET", "repl-diskless-sync-delay", delay]), "OK");
    }
}

/// Kills the primary while clients ask. The clients may be late by `OURS_MAX`, counted from what the servers themselves need. If these
/// need very long, there is nothing to compare with, and others are started.
async fn fail_over(options: &str, acks: u32, prepare: impl Fn(&Replication)) {
    for _ in 0..ATTEMPTS {
        if fail_over_once(options, acks, &prepare).await {
            return;
        }
    }
    panic!("the servers needed more than {SERVERS_MAX:?}, {ATTEMPTS} times");
}

/// Returns whether the servers were in time. Prints the timeline.
async fn fail_over_once(options: &str, acks: u32, prepare: impl Fn(&Replication)) -> bool {
    let servers = Replication::start(2);
    prepare(&servers);
    let url = format!("{}{options}", servers.url());
    let (holds, waits) = (client(&url).await, client(&url).await);
    let ttl = Duration::from_secs(20);
    let held = holds.lease("report", "42").ttl(ttl).acquire().await.unwrap();
    let waiting = tokio::spawn(waits.lease("report", "42").ttl(ttl).wait(TIMEOUT * 2).acquire());
    let (announce, killed) = tokio::sync::watch::channel(None);
    let mut asking = Vec::new();
    for number in 0..CLIENTS {
        let client = client(&url).await;
        asking.push(tokio::spawn(grants(client, format!("free-{number}"), killed.clone())));
    }
    tokio::time::sleep(Duration::from_millis(300)).await;
    let old = servers.primary_port();
    tokio::task::block_in_place(|| servers.servers[0].kill());
    let death = Instant::now();
    announce.send_replace(Some(death));
    let of_servers = tokio::task::block_in_place(|| watch(&servers, old, death, acks));
    let Some(ServerTimeline { elected, writable, replicated }) = of_servers else {
        asking.iter().for_each(tokio::task::JoinHandle::abort);
        waiting.abort();
        return false;
    };
    println!("the servers: elected {elected:?}, writable {writable:?}, replicated {replicated:?}");
    let mut ours = Vec::new();
    for asking in asking {
        ours.push(in_time("a grant of the new primary", asking).await.unwrap());
    }
    println!("granted, free: {ours:?}");
    let released = death.elapsed();
    let state = held.check();
    println!("the holder: {state:?}");
    let _ = held.release().await;
    let next = in_time("the waiter's grant", waiting).await.unwrap().expect("a grant");
    println!("released after {released:?}, granted to the waiter after {:?}", death.elapsed());
    state.expect("a failover within the ttl keeps a lease that a replica had");
    let _ = next.release().await;
    for ours in ours {
        let more = ours.saturating_sub(replicated);
        assert!(more < OURS_MAX, "{more:?} later than the servers could");
    }
    true
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_replicas_a_grant_comes_as_soon_as_a_replica_follows_the_new_primary() {
    fail_over("?replicas=1", 1, |_| ()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_grant_comes_as_soon_as_a_replica_has_loaded_all_data() {
    fail_over("?replicas=1", 1, |servers| need_all_data(servers, "5")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_replicas_a_grant_comes_as_soon_as_the_new_primary_accepts_writes() {
    fail_over("", 0, |_| ()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_call_waits_for_the_next_primary_and_its_replica() {
    let servers = Replication::start(2);
    let redis = open(&format!("{}?replicas=1&timeout=20s", servers.url())).await;
    granted(&redis, &claim(&"warm/up".parse().unwrap(), LONG)).await;
    tokio::task::block_in_place(|| servers.servers[0].kill());
    // The client notices that the connection is dead.
    redis.acquire_one(&claim(&report(), LONG)).await.expect_err("the primary is dead");
    let grant = in_time("the grant", granted(&redis, &claim(&"report/43".parse().unwrap(), LONG))).await;
    assert!(grant.acks >= Some(1), "{grant:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_written_before_enough_replicas_follow_the_primary() {
    const OWNER: &str = "lock:v1:{report/42}:owner";
    let servers = Replication::without_sentinels(1);
    let redis = open(&format!("{}?replicas=1&timeout=20s", servers.servers[0].url())).await;
    granted(&redis, &claim(&"warm/up".parse().unwrap(), LONG)).await;
    servers.servers[1].kill();
    eventually("the primary has no replica", || async {
        servers.servers[0].command(&["INFO", "replication"]).contains("connected_slaves:0")
    })
    .await;
    let error = redis.acquire_one(&claim(&"report/41".parse().unwrap(), LONG)).await.unwrap_err();
    assert_eq!(error.effect(), Effect::None, "written, and taken back: {error:?}");
    let asking = tokio::spawn(async move { granted(&redis, &claim(&report(), LONG)).await });
    // Longer than `WAIT` waits for replicas.
    tokio::time::sleep(Duration::from_millis(1500)).await;
    assert!(!asking.is_finished(), "it waits for a replica");
    assert_eq!(servers.servers[0].command(&["EXISTS", OWNER]), "0");
    tokio::task::block_in_place(|| servers.servers[1].run_again());
    let grant = in_time("the grant", asking).await.unwrap();
    assert_eq!(grant.acks, Some(1));
}
