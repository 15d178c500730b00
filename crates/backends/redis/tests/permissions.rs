//! A user without permissions and a badly configured server: the errors and warnings name the problem.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, reason = "tests on real servers run in real time")]

#[path = "common/acl.rs"]
mod acl;
mod common;

use std::{
    io,
    sync::{Arc, Mutex},
};

use common::{LONG, TIMEOUT, claim, client, eventually, granted, in_time, open, renew, report};
use leasehold::{
    Backend, BackendExt as _, CommandOutcome, Effect, Error, ErrorKind, Listing, OperatorAction,
    OperatorCommand, Page, Query, ReleaseRequest, Renewal,
};
use leasehold_testkit::servers::RedisServer;

fn check(error: &Error, word: &str, effect: Effect) {
    assert_eq!((error.kind(), error.effect()), (ErrorKind::Denied, effect), "{error}");
    assert!(error.to_string().contains(word), "{word}: {error}");
}

#[tokio::test]
async fn a_command_that_is_not_permitted_is_denied_and_named() {
    let (server, url) = acl::start();
    let redis = open(&url).await;
    let app = |permission: &str| assert_eq!(server.command(&["ACL", "SETUSER", "app", permission]), "OK");
    let ours = claim(&report(), LONG);

    app("-evalsha");
    check(&redis.acquire_one(&ours).await.unwrap_err(), "'evalsha'", Effect::None);
    app("+evalsha");

    app("-time");
    check(&redis.acquire_one(&ours).await.unwrap_err(), "TIME", Effect::Unknown);
    app("+time");
    granted(&redis, &ours).await;

    app("-pexpire");
    let refused = redis.renew(&[leasehold::RenewRequest::new(ours.reference(), LONG)]).await.remove(0);
    check(&refused.unwrap_err(), "PEXPIRE", Effect::Unknown);
    app("+pexpire");
    assert!(matches!(renew(&redis, ours.reference(), LONG).await, Renewal::Renewed(_)));

    app("-del");
    let request = ReleaseRequest::new(ours.reference());
    check(&redis.release_one(&request).await.unwrap_err(), "DEL", Effect::Unknown);
    app("+del");
    redis.release_one(&request).await.unwrap();

    app("resetkeys");
    check(&redis.acquire_one(&ours).await.unwrap_err(), "keys", Effect::None);
    app("~lock:v1:*");
    granted(&redis, &ours).await;

    app("-scan");
    let error = redis.inspect(&Query::Resources(Listing::default())).await.unwrap_err();
    check(&error, "'scan'", Effect::None);
}

#[tokio::test]
async fn a_user_with_the_documented_permissions_can_order_and_inspect() {
    let (_server, url) = acl::start();
    let redis = open(&url).await;
    let ours = claim(&report(), LONG);
    granted(&redis, &ours).await;
    let order = OperatorCommand::new(report(), OperatorAction::Pause { lasting: LONG }, "op", "test");
    assert_eq!(redis.order(&order).await.unwrap(), CommandOutcome::Done);
    let Page::Audit { records, .. } = redis.inspect(&Query::Audit(Listing::default())).await.unwrap() else {
        panic!("expected a page of audit records")
    };
    assert_eq!(records.len(), 1);
    let Page::Leaks { found, .. } = redis.inspect(&Query::Leaks(Listing::default())).await.unwrap() else {
        panic!("expected a page of leaks")
    };
    assert!(found.is_empty(), "{found:?}");
}

#[tokio::test]
async fn a_waiter_that_may_not_subscribe_polls() {
    let (server, url) = acl::start();
    server.command(&["ACL", "SETUSER", "app", "-subscribe", "-role", "-info"]);
    let (first, second) = (client(&url).await, client(&url).await);
    let held = first.lease("report", "42").ttl(LONG).acquire().await.unwrap();
    let next = tokio::spawn(second.lease("report", "42").ttl(LONG).wait(TIMEOUT).acquire());
    eventually("the second client waits", || async {
        first.look("report", "42").await.unwrap().queue_length == 1
    })
    .await;
    held.release().await.unwrap();
    in_time("the next grant", next).await.unwrap().unwrap().release().await.unwrap();
}

/// Collects the log.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[tokio::test]
async fn a_server_that_may_evict_leases_causes_a_warning() {
    let log = Log::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer(move || writer.clone()).finish();
    let _guard = tracing::subscriber::set_default(subscriber);
    let warned = || String::from_utf8_lossy(&log.0.lock().unwrap()).contains("maxmemory-policy");

    let safe = RedisServer::start();
    open(&safe.url()).await;
    assert!(!warned());

    let evicts = RedisServer::with(&["--maxmemory-policy", "allkeys-lru"]);
    open(&evicts.url()).await;
    let text = String::from_utf8_lossy(&log.0.lock().unwrap()).into_owned();
    assert!(warned() && text.contains("WARN") && text.contains("allkeys-lru"), "{text}");
}

/// Starts a server that claims this version and answers the first questions of one client. Returns its port.
async fn server_of_version(version: &'static str) -> u16 {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut asked = vec![0; 4096];
        while let Ok(length @ 1..) = stream.read(&mut asked).await {
            for command in String::from_utf8_lossy(&asked[..length]).split('*').skip(1) {
                let info = format!("redis_version:{version}\r\n");
                let answer = match command {
                    it if it.contains("PING\r\n") => it.split_once("PING\r\n").unwrap().1.to_owned(),
                    it if it.contains("ROLE") => "*3\r\n$6\r\nmaster\r\n:0\r\n*0\r\n".to_owned(),
                    it if it.contains("INFO") => format!("${}\r\n{info}\r\n", info.len()),
                    _ => "+OK\r\n".to_owned(),
                };
                stream.write_all(answer.as_bytes()).await.unwrap();
            }
        }
    });
    port
}

#[tokio::test]
async fn an_old_server_is_refused_and_the_error_says_which_version_is_needed() {
    let url = format!("redis://127.0.0.1:{}/", server_of_version("6.2.14").await);
    let config = leasehold_redis::Config::parse(&url).unwrap();
    let environment = Arc::new(leasehold::System::current());
    let error = leasehold_redis::Redis::connect(config, environment).await.unwrap_err();
    assert_eq!((error.kind(), error.effect()), (ErrorKind::Unsupported, Effect::None), "{error}");
    assert!(error.to_string().contains("Redis 6.2.14: 7.0 or later"), "{error}");
}
