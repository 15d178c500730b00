//! A quorum of five real servers that are killed, frozen, restarted without data, slow, or have a clock that
//! jumps.
#![allow(clippy::disallowed_methods, reason = "tests on real servers run in real time")]

mod common;

use std::{sync::Arc, time::Duration};

use tokio::sync::Mutex;

use common::{LONG, claim, eventually, granted, in_time, is_blocked, release, renew, report};
use leasehold::{Backend, BackendExt as _, Client, Cursor, ErrorKind, FencingToken, Renewal, Verdict};
use leasehold_testkit::{
    Proxy,
    servers::{RedisNodes, RedisServer, ServerClock},
};

/// Longer than any ttl of these tests.
const GATE: Duration = Duration::from_secs(600);
/// Long enough for a loaded machine: a node has a tenth of it to reply.
const TTL: Duration = Duration::from_secs(4);

async fn open(url: &str) -> Arc<dyn Backend> {
    leasehold::open(url).await.expect("a majority is there")
}

fn keys(server: &RedisServer, pattern: &str) -> String {
    server.command(&["KEYS", pattern])
}

fn locks(server: &RedisServer) -> String {
    keys(server, "lock:v1:{*:owner")
}

/// Waits until all nodes have executed a grant or a release, which returns when a majority has.
async fn all_nodes_follow(nodes: &RedisNodes, held: bool) {
    for server in &nodes.servers {
        eventually("every node has executed it", || async { locks(server).is_empty() != held }).await;
    }
}

fn mark(server: &RedisServer) -> String {
    server.command(&["GET", "lock:v1:birth"])
}

#[tokio::test]
async fn a_lease_survives_one_and_two_killed_nodes_of_five() {
    let nodes = RedisNodes::long_lived(5, GATE);
    let client = Client::new(open(&nodes.url()).await);
    let lease = client.lease("report", "42").ttl(TTL).acquire().await.expect("it is free");
    let token = lease.token();
    for (number, killed) in nodes.servers[..2].iter().enumerate() {
        killed.kill();
        tokio::time::sleep(TTL).await;
        lease.check().expect("the other nodes renew it");
        let other =
            client.lease("other", &number.to_string()).ttl(TTL).acquire().await.expect("a majority is there");
        other.release().await.expect("a majority is there");
    }
    assert_eq!(lease.token(), token);
    lease.release().await.expect("a majority is there");
    let next = client.lease("report", "42").ttl(TTL).acquire().await.expect("it is free");
    assert!(next.token() > token);
}

#[tokio::test]
async fn with_three_killed_nodes_of_five_nothing_is_granted_and_holders_keep_their_deadline() {
    let nodes = RedisNodes::long_lived(5, GATE);
    let (backend, other) = (open(&nodes.url()).await, open(&nodes.url()).await);
    let client = Client::new(backend);
    let lease = client.lease("report", "42").ttl(TTL).acquire().await.expect("it is free");
    nodes.servers[..3].iter().for_each(RedisServer::kill);
    lease.check().expect("it holds until its deadline");
    let elsewhere = claim(&"report/43".parse().expect("a valid name"), TTL);
    for attempt in [&claim(&report(), TTL), &elsewhere, &elsewhere] {
        match in_time("an attempt", other.acquire_one(attempt)).await {
            Ok(Verdict::Blocked(_)) => assert_eq!(attempt.resource, report()),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
            }
            granted => panic!("granted by two of five nodes: {granted:?}"),
        }
    }
    let ending = in_time("the loss", lease.ended()).await;
    assert!(lease.check().is_err(), "the holder knows: {ending:?}");
    drop(lease);
    for server in &nodes.servers[3..] {
        eventually("nothing is left behind", || async { locks(server).is_empty() }).await;
    }
}

#[tokio::test]
async fn a_frozen_node_delays_nothing_and_its_late_execution_is_undone() {
    let nodes = RedisNodes::long_lived(5, GATE);
    let backend = open(&nodes.url()).await;
    let warm = claim(&report(), LONG);
    granted(&*backend, &warm).await;
    release(&*backend, &warm).await;
    all_nodes_follow(&nodes, false).await;
    nodes.servers[0].freeze();
    let started = std::time::Instant::now();
    let first = claim(&report(), LONG);
    granted(&*backend, &first).await;
    let rival = claim(&report(), LONG);
    assert!(is_blocked(&*backend, &rival).await);
    assert!(matches!(renew(&*backend, first.reference(), LONG).await, Renewal::Renewed(_)));
    release(&*backend, &first).await;
    let took = started.elapsed();
    assert!(took < LONG / 10, "no call waited for the frozen node: {took:?}");
    nodes.servers[0].thaw();
    eventually("the frozen node executes the release", || async { locks(&nodes.servers[0]).is_empty() })
        .await;
    granted(&*backend, &claim(&report(), LONG)).await;
}

/// The classic double grant: A holds three of five nodes, one of those restarts without data, and B takes it
/// and the other two.
#[tokio::test]
async fn a_node_that_restarts_without_data_does_not_grant_again() {
    let nodes = RedisNodes::long_lived(5, GATE);
    let (ann, bob) = (open(&nodes.url()).await, open(&nodes.url()).await);
    nodes.servers[3..].iter().for_each(RedisServer::freeze);
    let first = claim(&report(), TTL);
    let token = granted(&*ann, &first).await.token;
    let until = std::time::Instant::now() + TTL;
    // The two nodes that were frozen execute the vote late; the test deletes it, as if it had never arrived.
    nodes.servers[3..].iter().for_each(RedisServer::thaw);
    for server in &nodes.servers[3..] {
        eventually("the late vote is executed", || async { !locks(server).is_empty() }).await;
        server.command(&["DEL", "lock:v1:{report/42}:owner"]);
    }
    nodes.servers[0].kill();
    nodes.servers[0].run_again();
    assert_eq!(mark(&nodes.servers[0]), "", "it has lost its data");
    let mut attempts = 0;
    loop {
        let verdict = bob.acquire_one(&claim(&report(), TTL)).await;
        if let Ok(Verdict::Granted(grant)) = verdict {
            assert!(std::time::Instant::now() >= until - TTL / 50, "granted twice after {attempts} attempts");
            assert!(grant.token > token);
            break;
        }
        attempts += 1;
        assert!(std::time::Instant::now() < until + common::TIMEOUT, "{verdict:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(attempts > 0, "it was refused while the first claim held");
    eventually("the restarted node has no vote", || async {
        mark(&nodes.servers[0]).contains("|quarantined:")
    })
    .await;
}

#[tokio::test]
async fn a_new_set_waits_for_its_gate_and_a_node_that_lost_its_data_votes_again_after_it() {
    let nodes = RedisNodes::start(3, &[]);
    let gate = Duration::from_secs(5);
    let url = format!("{}?uptime_gate=5s", nodes.url());
    let backend = open(&url).await;
    let early = backend.acquire_one(&claim(&report(), TTL)).await;
    if let Err(error) = &early {
        assert!(error.to_string().contains("gate"), "{error}");
    }
    let client = Client::new(Arc::clone(&backend));
    let too_long =
        client.lease("report", "42").ttl(gate * 2).try_acquire().await.expect_err("longer than the gate");
    assert_eq!(too_long.kind(), ErrorKind::Limit);
    eventually("the gate passes", || async {
        matches!(backend.acquire_one(&claim(&report(), TTL)).await, Ok(Verdict::Granted(_)))
    })
    .await;
    eventually("all nodes vote", || async { nodes.servers.iter().all(|it| mark(it).ends_with("|voting")) })
        .await;
    let lease = client.lease("kept", "42").ttl(TTL).acquire().await.expect("it is free");
    let register = |server: &RedisServer| server.command(&["GET", "lock:v1:{kept/42}:register"]);
    assert!(!register(&nodes.servers[1]).is_empty());
    nodes.servers[0].kill();
    nodes.servers[0].run_again();
    assert_eq!(register(&nodes.servers[0]), "");
    eventually("the node votes again", || async { mark(&nodes.servers[0]).ends_with("|voting") }).await;
    assert!(
        register(&nodes.servers[0]).starts_with(&lease.token().to_string()),
        "its register was raised to the accepted number"
    );
    eventually("the node gets the lease back", || async { !locks(&nodes.servers[0]).is_empty() }).await;
    lease.check().expect("a majority had it all the time");
    lease.release().await.expect("a majority answers");
    for server in &nodes.servers {
        let without_expiry: Vec<String> = keys(server, "*")
            .split(' ')
            .filter(|key| !key.is_empty() && server.command(&["PTTL", key]) == "-1")
            .map(str::to_owned)
            .collect();
        assert_eq!(without_expiry, ["lock:v1:birth"], "every other key expires");
    }
}

/// Before there was a founding command, five new servers refused everything for ten minutes.
#[tokio::test]
async fn founding_makes_new_servers_grant_at_once_and_a_node_that_loses_its_data_stays_out() {
    let nodes = RedisNodes::start(5, &[]);
    let url = nodes.url();
    let backend = open(&url).await;
    let early = backend.acquire_one(&claim(&report(), TTL)).await.expect_err("the gate has not passed");
    for remedy in ["leasehold redlock found", "uptime_gate"] {
        assert!(early.to_string().contains(remedy), "{early}");
    }
    let founded = leasehold::found_redlock(&url).await.expect("they are new");
    assert_eq!((founded.nodes, founded.gate, founded.already), (5, GATE, false));
    let first = claim(&report(), TTL);
    let token = granted(&*open(&url).await, &first).await.token;
    // The client that was there before notices it.
    eventually("it is refused because of the holder", || async {
        matches!(backend.acquire_one(&claim(&report(), TTL)).await, Ok(Verdict::Blocked(_)))
    })
    .await;
    assert!(leasehold::found_redlock(&url).await.expect("it is harmless").already);
    nodes.servers[0].kill();
    nodes.servers[0].run_again();
    let refused = leasehold::found_redlock(&url).await.expect_err("a node has lost its data");
    assert_eq!(refused.kind(), ErrorKind::Invalid);
    assert!(refused.to_string().contains("may have forgotten"), "{refused}");
    eventually("the node is in quarantine", || async {
        drop(backend.acquire_one(&claim(&report(), TTL)).await);
        mark(&nodes.servers[0]).contains("|quarantined:")
    })
    .await;
    assert!(leasehold::found_redlock(&url).await.is_err(), "and it stays there");
    release(&*backend, &first).await;
    assert!(granted(&*backend, &claim(&report(), TTL)).await.token > token);
}

#[tokio::test]
async fn founding_refuses_servers_that_were_used_or_do_not_all_answer() {
    let nodes = RedisNodes::start(3, &[]);
    nodes.servers[1].command(&["SET", "lock:v1:{report/42}:register", "1|"]);
    let used = leasehold::found_redlock(&nodes.url()).await.expect_err("it has a token");
    assert_eq!(used.kind(), ErrorKind::Invalid);
    assert!(used.to_string().contains("report/42") && used.to_string().contains("not new"), "{used}");
    assert!(nodes.servers.iter().all(|it| !mark(it).ends_with("|voting")), "no node votes");
    nodes.servers[1].command(&["DEL", "lock:v1:{report/42}:register"]);
    nodes.servers[2].kill();
    let missing = leasehold::found_redlock(&nodes.url()).await.expect_err("one does not answer");
    assert_eq!(missing.kind(), ErrorKind::Unavailable, "{missing}");
    nodes.servers[2].run_again();
    assert!(!leasehold::found_redlock(&nodes.url()).await.expect("they are new").already);
    granted(&*open(&nodes.url()).await, &claim(&report(), TTL)).await;
}

/// The option had no effect once a client without it had looked at the servers.
#[tokio::test]
async fn a_gate_that_is_named_after_a_first_try_counts() {
    let nodes = RedisNodes::start(3, &[]);
    let early = open(&nodes.url()).await.acquire_one(&claim(&report(), TTL)).await;
    assert!(early.is_err(), "{early:?}");
    let backend = open(&format!("{}?uptime_gate=5s", nodes.url())).await;
    eventually("the gate of five seconds passes", || async {
        matches!(backend.acquire_one(&claim(&report(), TTL)).await, Ok(Verdict::Granted(_)))
    })
    .await;
}

/// Every program that started waited for the connect timeout.
#[tokio::test]
async fn a_stopped_node_does_not_delay_a_program_that_starts_and_joins_when_it_goes_on() {
    let nodes = RedisNodes::long_lived(5, GATE);
    nodes.servers[1].freeze();
    let started = std::time::Instant::now();
    let backend = open(&format!("{}?connect_timeout=10s&timeout=10s", nodes.url())).await;
    let first = claim(&report(), LONG);
    granted(&*backend, &first).await;
    let took = started.elapsed();
    // The health of a node is waited for three seconds, and its connection for ten.
    assert!(took < Duration::from_millis(2500), "to connect and to acquire took {took:?}");
    nodes.servers[1].thaw();
    eventually("the node gets the lease", || async {
        assert!(matches!(renew(&*backend, first.reference(), LONG).await, Renewal::Renewed(_)));
        !locks(&nodes.servers[1]).is_empty()
    })
    .await;
    // With two others down, its vote is needed.
    nodes.servers[2..4].iter().for_each(RedisServer::kill);
    release(&*backend, &first).await;
    eventually("its vote counts", || async {
        matches!(backend.acquire_one(&claim(&report(), LONG)).await, Ok(Verdict::Granted(_)))
    })
    .await;
}

/// With three nodes, a server that is named twice would be a majority by itself.
#[tokio::test]
async fn a_server_that_is_named_twice_is_refused_also_if_it_was_slow_under_one_name_at_the_start() {
    let nodes = RedisNodes::long_lived(3, GATE);
    let proxy = Proxy::start(nodes.servers[0].port(), 7).await;
    proxy.black_hole();
    let ports = [nodes.servers[0].port(), nodes.servers[1].port(), proxy.port()];
    let backend = open(&format!("{}?connect_timeout=20s&timeout=20s", RedisNodes::url_of(ports))).await;
    nodes.servers[1].kill();
    proxy.heal();
    eventually("it is refused with the reason", || async {
        match backend.acquire_one(&claim(&report(), LONG)).await {
            Ok(Verdict::Granted(grant)) => panic!("granted by one server: {grant:?}"),
            Err(error) => error.kind() == ErrorKind::Invalid && error.to_string().contains("same server"),
            Ok(_) => false,
        }
    })
    .await;
}

#[tokio::test]
async fn nodes_that_sync_every_write_vote_at_once_and_after_a_restart() {
    let nodes = RedisNodes::start(3, &["--appendonly", "yes", "--appendfsync", "always"]);
    let backend = open(&nodes.url()).await;
    let first = claim(&report(), LONG);
    let grant = granted(&*backend, &first).await;
    for server in &nodes.servers {
        server.kill();
        server.run_again();
    }
    let again = open(&nodes.url()).await;
    assert!(is_blocked(&*again, &claim(&report(), LONG)).await, "nothing was forgotten");
    release(&*again, &first).await;
    assert!(granted(&*again, &claim(&report(), LONG)).await.token > grant.token);
}

/// Five servers. The returned clock sets the time of the first `wrong` of them.
fn with_clock(wrong: usize) -> (RedisNodes, ServerClock) {
    let clock = ServerClock::new();
    let start = |number| {
        let environment = if number < wrong { clock.environment() } else { Vec::new() };
        RedisServer::in_environment(&[], environment)
    };
    let nodes = RedisNodes { servers: (0..5).map(start).collect() }.grown_old(GATE);
    (nodes, clock)
}

#[tokio::test]
async fn a_clock_jump_on_a_minority_changes_nothing() {
    let (nodes, clock) = with_clock(2);
    let backend = open(&nodes.url()).await;
    let first = claim(&report(), LONG);
    let grant = granted(&*backend, &first).await;
    all_nodes_follow(&nodes, true).await;
    for jump in [LONG.as_secs() as i64 + 11, -3600] {
        clock.set_ahead(jump);
        // On those servers the lock has expired, or will not expire for an hour.
        eventually("the server has seen the jump", || async {
            let jumped = nodes.servers[0].command(&["TIME"]);
            let there: i64 = jumped.split(' ').next().and_then(|it| it.parse().ok()).expect("seconds");
            let here = nodes.servers[4].command(&["TIME"]);
            let here: i64 = here.split(' ').next().and_then(|it| it.parse().ok()).expect("seconds");
            (there - here - jump).abs() < 5
        })
        .await;
        assert!(is_blocked(&*backend, &claim(&report(), LONG)).await, "three of five have it");
        assert!(matches!(renew(&*backend, first.reference(), LONG).await, Renewal::Renewed(_)));
    }
    release(&*backend, &first).await;
    let next = granted(&*backend, &claim(&report(), LONG)).await;
    let apart = next.token.get() - grant.token.get();
    assert!(next.token > grant.token && apart < 600_000_000, "tokens follow the majority: {apart}");
}

/// A documented limit: exclusion depends on the clocks of a majority. Tokens do not.
#[tokio::test]
async fn a_clock_jump_on_a_majority_grants_twice_and_the_tokens_still_grow() {
    let (nodes, clock) = with_clock(3);
    let backend = open(&nodes.url()).await;
    let first = claim(&report(), LONG);
    let grant = granted(&*backend, &first).await;
    all_nodes_follow(&nodes, true).await;
    clock.set_ahead(LONG.as_secs() as i64 + 11);
    let second = claim(&report(), LONG);
    eventually("the jump is seen", || async {
        matches!(backend.acquire_one(&second).await, Ok(Verdict::Granted(_)))
    })
    .await;
    let again = granted(&*backend, &second).await;
    assert!(again.token > grant.token, "a fence refuses the first token from now on");
    assert!(
        matches!(renew(&*backend, first.reference(), LONG).await, Renewal::Gone { .. }),
        "the first holder knows"
    );
}

#[tokio::test]
async fn a_slow_node_delays_no_call() {
    let nodes = RedisNodes::long_lived(5, GATE);
    let proxy = Proxy::start(nodes.servers[0].port(), 7).await;
    let ports = std::iter::once(proxy.port()).chain(nodes.servers[1..].iter().map(RedisServer::port));
    let backend = open(&RedisNodes::url_of(ports)).await;
    let slow = Duration::from_secs(3);
    proxy.delay(slow);
    let started = std::time::Instant::now();
    let mut rounds = 0;
    while rounds < 20 {
        let claim = claim(&report(), LONG);
        granted(&*backend, &claim).await;
        release(&*backend, &claim).await;
        rounds += 1;
    }
    // If the slow node delayed calls, each round would take seconds.
    let took = started.elapsed();
    assert!(took < slow * 3, "{rounds} rounds took {took:?}");
}

/// As many rivals as nodes, each with its own connections: votes are split, and the rivals settle that.
/// ADR 0017.
#[tokio::test]
async fn rivals_are_granted_one_at_a_time_with_growing_tokens() {
    let nodes = RedisNodes::long_lived(5, GATE);
    let inside = Arc::new(Mutex::new(None::<FencingToken>));
    let mut rivals = Vec::new();
    for _ in 0..5 {
        let client = Client::new(open(&nodes.url()).await);
        let inside = Arc::clone(&inside);
        rivals.push(tokio::spawn(async move {
            for _ in 0..6 {
                let request = client.lease("report", "42").ttl(Duration::from_secs(20));
                let lease =
                    request.wait(common::TIMEOUT).acquire().await.expect("every rival is granted in the end");
                let before =
                    inside.try_lock().expect("no other rival holds the lease").replace(lease.token());
                assert!(before < Some(lease.token()), "{before:?} was before {:?}", lease.token());
                let mut holds = inside.try_lock().expect("no other rival holds the lease");
                tokio::time::sleep(Duration::from_millis(2)).await;
                *holds = Some(lease.token());
                drop(holds);
                lease.release().await.expect("a majority answers");
            }
        }));
    }
    for rival in rivals {
        in_time("all grants", rival).await.expect("no rival fails");
    }
    for server in &nodes.servers {
        eventually("nothing is left behind", || async { locks(server).is_empty() }).await;
    }
}

#[tokio::test]
async fn a_release_wakes_the_waiter() {
    let nodes = RedisNodes::long_lived(3, GATE);
    let (ann, bob) = (open(&nodes.url()).await, open(&nodes.url()).await);
    let rounds = 6;
    let started = std::time::Instant::now();
    for _ in 0..rounds {
        let held = claim(&report(), LONG);
        granted(&*ann, &held).await;
        let waits = claim(&report(), LONG);
        assert!(is_blocked(&*bob, &waits).await);
        let waiting = tokio::spawn({
            let bob = Arc::clone(&bob);
            async move { bob.wait(&waits.reference(), &Cursor::default(), LONG).await }
        });
        eventually("the subscription", || async {
            nodes.servers[0].command(&["PUBSUB", "NUMSUB", "lock:v1:{report/42}:news"]).ends_with(" 1")
        })
        .await;
        release(&*ann, &held).await;
        in_time("the wait", waiting).await.expect("no panic").expect("a wake-up is no error");
    }
    // Without a wake-up each round would take at least a second.
    let took = started.elapsed();
    assert!(took < Duration::from_secs(1) * rounds, "{rounds} rounds took {took:?}");
}

#[tokio::test]
async fn servers_that_are_no_quorum_are_refused_with_the_reason() {
    let nodes = RedisNodes::long_lived(3, GATE);
    let of = format!("127.0.0.1 {}", nodes.servers[0].port());
    let replica = RedisServer::with(&["--replicaof", &of]);
    let clustered = RedisServer::with(&["--cluster-enabled", "yes"]);
    let port = |index: usize| nodes.servers[index].port();
    let table = [
        (format!("redlock://127.0.0.1:{},127.0.0.1:{}", port(0), port(1)), "at least 3"),
        (
            format!("redlock://127.0.0.1:{},localhost:{},127.0.0.1:{}", port(0), port(0), port(1)),
            "same server",
        ),
        (RedisNodes::url_of([port(0), port(1), replica.port()]), "replica"),
        (RedisNodes::url_of([port(0), port(1), clustered.port()]), "node of a cluster: a quorum needs"),
        (format!("{},127.0.0.1:1,127.0.0.1:2", nodes.url()), "a set of 3"),
    ];
    for (url, word) in table {
        // A node that is slower than a majority is checked after the start.
        let mut refused = None;
        for _ in 0..5 {
            refused = refused.or(leasehold::open(&url).await.err());
        }
        let error = refused.expect("it is no quorum");
        assert_eq!(error.kind(), ErrorKind::Invalid, "{url}: {error}");
        assert!(error.to_string().contains(word), "{url}: {error}");
    }
}
