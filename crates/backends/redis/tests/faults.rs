//! Faults of networks and servers.
#![allow(clippy::disallowed_methods, reason = "tests on real servers run in real time")]

mod common;

use std::{sync::Arc, time::Duration};

use common::{
    LONG, TIMEOUT, claim, client, eventually, granted, in_time, is_blocked, kind_and_effect, open, release,
    renew, report,
};
use leasehold::{
    Backend, BackendExt as _, Effect, ErrorKind, GoneReason, ReleaseRequest, Released, RenewRequest, Renewal,
    Share,
};
use leasehold_testkit::{Proxy, proxy::Direction, scenarios::NetworkScenario, servers::RedisServer};

const OWNER: &str = "lock:v1:{report/42}:owner";
const FENCE: &str = "lock:v1:{report/42}:fence";

fn through(proxy: &Proxy) -> String {
    format!("redis://127.0.0.1:{}/?timeout=500ms", proxy.port())
}

/// The server behind a proxy, with this timeout of requests.
async fn scenario(server: &RedisServer, seed: u64, timeout: &str) -> NetworkScenario {
    let proxy = Proxy::start(server.port(), seed).await;
    let through = open(&through(&proxy).replace("500ms", timeout)).await;
    let direct = open(&server.url()).await;
    NetworkScenario { proxy, through: Arc::new(through), direct: Arc::new(direct) }
}

/// How many scripts the server has executed.
fn executed_scripts(server: &RedisServer) -> u64 {
    let stats = server.command(&["INFO", "commandstats"]);
    let line = stats.lines().find(|line| line.starts_with("cmdstat_evalsha:")).unwrap_or("").to_owned();
    line.split("calls=").nth(1).and_then(|rest| rest.split(',').next()?.parse().ok()).unwrap_or(0)
}

#[tokio::test]
async fn after_a_partition_past_the_ttl_the_lease_is_lost_in_time_and_stays_lost() {
    let server = RedisServer::start();
    let scenario = scenario(&server, 1, "500ms").await;
    let (_, next) = scenario.partition_past_the_ttl(Duration::from_secs(3)).await;
    let owner = server.command(&["GET", OWNER]);
    assert!(owner.contains(&next.token().to_string()), "late renewals change nothing: {owner}");
}

#[tokio::test]
async fn a_lost_reply_has_an_unknown_effect_and_asking_again_returns_the_same_grant() {
    let server = RedisServer::start();
    let scenario = scenario(&server, 2, "500ms").await;
    let (ours, grant) = scenario.lost_reply(|proxy| proxy.lose_replies(1)).await;
    assert_eq!(server.command(&["GET", FENCE]), grant.token.to_string(), "granted once");
    assert_eq!(release(&*scenario.through, &ours).await, Released::Now);
}

#[tokio::test]
async fn a_request_executed_twice_is_one_grant_and_one_token() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port(), 3).await;
    let redis = open(&through(&proxy)).await;
    let ours = claim(&report(), LONG);
    granted(&redis, &ours).await;
    release(&redis, &ours).await;
    proxy.send_twice(1);
    let again = claim(&report(), LONG);
    let grant = granted(&redis, &again).await;
    assert_eq!(server.command(&["GET", FENCE]), grant.token.to_string());
    proxy.send_twice(1);
    release(&redis, &again).await;
    assert_eq!(server.command(&["EXISTS", OWNER]), "0");
}

#[tokio::test]
async fn a_request_executed_after_its_tombstone_grants_nothing() {
    let server = RedisServer::start();
    let scenario = scenario(&server, 4, "500ms").await;
    scenario.late_acquire(None, || executed_scripts(&server)).await;
    assert_eq!(server.command(&["EXISTS", OWNER]), "0", "the tombstone stopped it");
    granted(&*scenario.direct, &claim(&report(), LONG)).await;
}

#[tokio::test]
async fn a_connection_cut_at_any_byte_never_gives_a_wrong_reply() {
    let server = RedisServer::start();
    let scenario = scenario(&server, 5, "500ms").await;
    for cut in scenario.connection_cut_anywhere(&[1, 7, 30, 60]).await {
        cut.assert_unknown_effect();
        cut.assert_released_at_once();
    }
}

#[tokio::test]
async fn a_silent_connection_is_replaced() {
    let server = RedisServer::start();
    let failed = scenario(&server, 6, "500ms").await.silent_connection_is_replaced().await;
    assert!(failed <= 2, "{failed} calls failed before a new connection was made");
}

/// The call was cancelled, so a missing reply does not prove that the connection is dead.
#[tokio::test]
async fn a_cancelled_call_does_not_cost_its_connection() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port(), 8).await;
    let redis = open(&format!("redis://127.0.0.1:{}/?timeout=4s", proxy.port())).await;
    common::token_of(&redis, &report()).await;
    let before = proxy.connections();
    let ours = claim(&report(), LONG);
    proxy.hold(Direction::Replies);
    let left = tokio::time::timeout(Duration::from_millis(20), redis.acquire_one(&ours)).await;
    assert!(left.is_err(), "the call ended before it was cancelled");
    proxy.heal();
    // Longer than a reply may take.
    tokio::time::sleep(Duration::from_millis(4100)).await;
    release(&redis, &ours).await;
    assert_eq!(proxy.connections(), before, "no new connection was made");
}

#[tokio::test]
async fn a_slow_network_causes_no_error() {
    let server = RedisServer::start();
    scenario(&server, 7, "2s").await.slow_network(Duration::from_millis(60)).await;
}

#[tokio::test]
async fn a_frozen_server_costs_a_timeout_and_its_late_execution_does_no_harm() {
    let server = RedisServer::start();
    let scenario = scenario(&server, 9, "300ms").await;
    scenario.frozen_server(|| server.freeze(), || server.thaw()).await;
    assert_eq!(server.command(&["EXISTS", OWNER]), "0");
}

#[tokio::test]
async fn after_redis_evicts_the_owner_key_the_renewal_finds_it_gone_and_tokens_grow() {
    let server = RedisServer::start();
    let redis = open(&server.url()).await;
    let ours = claim(&report(), LONG);
    let token = granted(&redis, &ours).await.token;
    server.command(&["CONFIG", "SET", "maxmemory-policy", "volatile-ttl"]);
    server.command(&["CONFIG", "SET", "maxmemory", "1"]);
    server.command(&["SET", "x", "y"]);
    server.command(&["CONFIG", "SET", "maxmemory", "0"]);
    let answer = renew(&redis, ours.reference(), LONG).await;
    assert!(matches!(answer, Renewal::Gone { why: GoneReason::NotThere }), "{answer:?}");
    assert!(granted(&redis, &claim(&report(), LONG)).await.token > token);
}

#[tokio::test]
async fn with_full_memory_nothing_is_granted_but_leases_are_renewed_and_released() {
    let server = RedisServer::start();
    let redis = open(&server.url()).await;
    let (whole, mut reader) = (claim(&report(), LONG), claim(&"index/main".parse().unwrap(), LONG));
    reader.share = Share::READ;
    granted(&redis, &whole).await;
    granted(&redis, &reader).await;
    server.command(&["CONFIG", "SET", "maxmemory", "1"]);
    let error = redis.acquire_one(&claim(&"report/43".parse().unwrap(), LONG)).await.unwrap_err();
    assert_eq!(kind_and_effect(&error), (ErrorKind::Unavailable, Effect::None));
    let held = [
        RenewRequest::new(whole.reference(), LONG),
        RenewRequest::new(reader.reference(), LONG).with_note(*b"note"),
    ];
    for answer in redis.renew(&held).await {
        assert!(matches!(answer.as_ref().unwrap(), Renewal::Renewed(_)), "{answer:?}");
    }
    for claim in [&whole, &reader] {
        let request = ReleaseRequest::new(claim.reference()).with_tombstone(LONG);
        assert_eq!(redis.release_one(&request).await.unwrap(), Released::Now);
    }
}

#[tokio::test]
async fn a_server_that_refuses_to_write_is_unavailable_without_effect_until_it_writes_again() {
    let server = RedisServer::with(&["--enable-protected-configs", "yes"]);
    let redis = open(&server.url()).await;
    let ours = claim(&report(), LONG);
    let folder = server.folder().to_string_lossy().into_owned();
    let refused = async |what: &str| {
        let error = redis.acquire_one(&ours).await.expect_err(what);
        assert_eq!(kind_and_effect(&error), (ErrorKind::Unavailable, Effect::None), "{what}");
    };

    server.command(&["CONFIG", "SET", "min-replicas-to-write", "1"]);
    refused("NOREPLICAS").await;
    server.command(&["CONFIG", "SET", "min-replicas-to-write", "0"]);

    server.command(&["REPLICAOF", "127.0.0.1", "1"]);
    refused("READONLY").await;
    refused("a replica, by its ROLE").await;
    server.command(&["REPLICAOF", "NO", "ONE"]);
    granted(&redis, &ours).await;
    release(&redis, &ours).await;

    server.command(&["CONFIG", "SET", "save", "3600 1"]);
    server.command(&["CONFIG", "SET", "dir", "/proc"]);
    server.command(&["BGSAVE"]);
    eventually("a save that fails", || async {
        server.command(&["INFO", "persistence"]).contains("rdb_last_bgsave_status:err")
    })
    .await;
    refused("MISCONF").await;
    server.command(&["CONFIG", "SET", "dir", &folder]);
    server.command(&["CONFIG", "SET", "stop-writes-on-bgsave-error", "no"]);
    granted(&redis, &ours).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_loads_its_data_is_unavailable_and_then_serves() {
    let server = Arc::new(RedisServer::with(&["--appendonly", "yes", "--key-load-delay", "20000"]));
    let redis = open(&server.url()).await;
    for number in 0..40 {
        server.command(&["SET", &format!("x{number}"), "y"]);
    }
    server.kill();
    let starting = tokio::task::spawn_blocking({
        let server = Arc::clone(&server);
        move || server.run_again()
    });
    let ours = claim(&report(), LONG);
    eventually("a grant", || async {
        match redis.acquire_one(&ours).await {
            Ok(_) => true,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
                false
            }
        }
    })
    .await;
    starting.await.unwrap();
}

#[tokio::test]
async fn a_key_of_a_wrong_type_is_named_and_a_foreign_owner_key_blocks() {
    let server = RedisServer::start();
    let redis = open(&server.url()).await;
    server.command(&["HSET", OWNER, "uuid:7", "1"]);
    assert!(is_blocked(&redis, &claim(&report(), LONG)).await, "another library holds it");
    server.command(&["DEL", OWNER]);
    for (part, words) in [("fence", ["SET", "no number"]), ("line", ["SET", "x"]), ("state", ["SET", "x"])] {
        let key = format!("lock:v1:{{report/42}}:{part}");
        server.command(&[words[0], &key, words[1]]);
        let ours = claim(&report(), LONG).queued();
        let outcome = redis.acquire_one(&ours).await;
        if part != "line" {
            let error = outcome.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{error:?}");
            assert!(error.to_string().contains(&key), "{error}");
        } else {
            // This key is read only when a claim waits.
            let error = redis.acquire_one(&claim(&report(), LONG).queued()).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{error:?}");
            assert!(error.to_string().contains(&key), "{error}");
        }
        server.command(&["FLUSHALL"]);
    }
    granted(&redis, &claim(&report(), LONG)).await;
}

#[tokio::test]
async fn a_corrupt_fence_is_named_with_its_value() {
    let server = RedisServer::start();
    let redis = open(&server.url()).await;
    server.command(&["SET", FENCE, "not a number"]);
    let expected = "key lock:v1:{report/42}:fence is corrupt: expected a number";
    let acquired = redis.acquire_one(&claim(&report(), LONG)).await.map(drop);
    let inspected = redis.inspect(&leasehold::Query::One(report())).await.map(drop);
    for error in [acquired.unwrap_err(), inspected.unwrap_err()] {
        assert_eq!(kind_and_effect(&error), (ErrorKind::Corrupt, Effect::None));
        let text = error.to_string();
        assert!(text.contains(expected) && text.contains("found 'not a number'"), "{text}");
    }
}

#[tokio::test]
async fn a_wrong_password_is_denied_and_a_rotated_password_file_is_read_again() {
    let server = RedisServer::with(&["--requirepass", "first"]);
    let file = server.folder().join("password");
    std::fs::write(&file, "first\n").unwrap();
    let config = |login: &str, options: &str| {
        let url = format!("redis://{login}127.0.0.1:{}/{options}", server.port());
        leasehold_redis::Config::parse(&url).unwrap()
    };
    let connect =
        async |config| leasehold_redis::Redis::connect(config, Arc::new(leasehold::System::current())).await;
    for login in ["", ":hunter2@", "nobody:hunter2@"] {
        let error = connect(config(login, "")).await.unwrap_err();
        assert_eq!(kind_and_effect(&error), (ErrorKind::Denied, Effect::None), "{error:?}");
        assert!(!format!("{error:?}").contains("hunter2"));
    }
    let redis = connect(config("", &format!("?password_file={}", file.display()))).await.unwrap();
    let ours = claim(&report(), LONG);
    granted(&redis, &ours).await;

    let mut admin = redis_admin(&server, "first");
    let _: () = redis::cmd("CONFIG").arg("SET").arg("requirepass").arg("second").query(&mut admin).unwrap();
    let answer = renew(&redis, ours.reference(), LONG).await;
    assert!(matches!(answer, Renewal::Renewed(_)), "an open connection keeps working: {answer:?}");
    let _: () = redis::cmd("CLIENT").arg("KILL").arg("TYPE").arg("normal").query(&mut admin).unwrap();
    let denied =
        || async { redis.acquire_one(&ours).await.is_err_and(|error| error.kind() == ErrorKind::Denied) };
    eventually("the old password is refused", denied).await;
    std::fs::write(&file, "second").unwrap();
    eventually("the new password is used", || async { redis.acquire_one(&ours).await.is_ok() }).await;
}

#[tokio::test]
async fn a_waiter_that_gives_up_during_an_outage_fails_alone() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port(), 13).await;
    let client = client(&through(&proxy)).await;
    client.lease("report", "41").acquire().await.unwrap().release().await.unwrap(); // connected, and the server knows the scripts
    proxy.black_hole();
    let short_wait = tokio::spawn(client.lease("report", "42").wait(Duration::from_secs(1)).acquire());
    tokio::time::sleep(Duration::from_millis(900)).await;
    let long_wait = tokio::spawn(client.lease("report", "42").wait(TIMEOUT * 2).acquire());
    let error = in_time("the end of the first wait", short_wait).await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    proxy.heal();
    in_time("the grant", long_wait).await.unwrap().unwrap().release().await.unwrap();
}

fn redis_admin(server: &RedisServer, password: &str) -> redis::Connection {
    let url = format!("redis://:{password}@127.0.0.1:{}/", server.port());
    let client = redis::Client::open(url).expect("a URL");
    client.get_connection().expect("the server is there")
}

#[tokio::test]
async fn flushed_scripts_are_loaded_again() {
    let server = RedisServer::start();
    let redis = open(&server.url()).await;
    let claims: Vec<_> = (0..100).map(|n| claim(&format!("report/{n}").parse().unwrap(), LONG)).collect();
    for (number, claim) in claims.iter().enumerate() {
        if number % 10 == 0 {
            server.command(&["SCRIPT", "FLUSH"]);
        }
        granted(&redis, claim).await;
    }
    server.command(&["SCRIPT", "FLUSH"]);
    let held: Vec<_> = claims.iter().map(|claim| RenewRequest::new(claim.reference(), LONG)).collect();
    for answer in redis.renew(&held).await {
        assert!(matches!(answer.as_ref().unwrap(), Renewal::Renewed(_)), "{answer:?}");
    }
    server.command(&["SCRIPT", "FLUSH"]);
    let noted: Vec<_> = held.into_iter().map(|held| held.with_note(*b"note")).collect();
    for answer in redis.renew(&noted).await {
        assert!(matches!(answer.as_ref().unwrap(), Renewal::Renewed(_)), "{answer:?}");
    }
    server.command(&["SCRIPT", "FLUSH"]);
    assert_eq!(release(&redis, &claims[0]).await, Released::Now);
}
