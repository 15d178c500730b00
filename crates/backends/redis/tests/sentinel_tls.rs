//! Behind Sentinels that speak TLS and want passwords, as do the servers that they watch over.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, reason = "tests on real servers run in real time")]

#[path = "common/acl.rs"]
mod acl;
#[path = "common/authority.rs"]
mod authority;
mod common;

use std::sync::Arc;

use authority::Authority;
use common::{LONG, PATIENCE, claim, client, eventually, granted, in_time, open, renew, report, token_of};
use leasehold::{Backend, Client, Effect, Error, ErrorKind, RenewRequest, Renewal, System};
use leasehold_redis::{Config, Redis};
use leasehold_testkit::servers::{Guard, RedisServer, Replication, Sentinel, TlsFiles};
use tempfile::NamedTempFile;

/// A primary, a replica and their Sentinels, the users that the documentation describes, and their passwords in files.
struct BackendUnderTest {
    servers: Replication,
    trust: String,
    password: NamedTempFile,
    sentinel_password: NamedTempFile,
}

impl BackendUnderTest {
    fn start(authority: &Authority, guard: &Guard<'_>) -> BackendUnderTest {
        let servers = blocking(|| Replication::guarded(1, guard));
        acl::let_in_behind_sentinels(&servers);
        let (password, sentinel_password) = (file("PASSWORD"), file("PASSWORD"));
        BackendUnderTest { servers, trust: authority.option(), password, sentinel_password }
    }

    /// The URL as it is documented.
    fn url(&self) -> String {
        let (password, sentinel_password) = (self.password.path(), self.sentinel_password.path());
        format!(
            "{}?tls=true&{}&password_file={}&sentinel_user=finder&sentinel_password_file={}",
            self.servers.url().replace("://", "://app@"),
            self.trust,
            password.display(),
            sentinel_password.display()
        )
    }
}

fn file(password: &str) -> NamedTempFile {
    let file = NamedTempFile::new().unwrap();
    write(&file, password);
    file
}

fn write(file: &NamedTempFile, password: &str) {
    std::fs::write(file.path(), format!("{password}\n")).unwrap();
}

fn blocking<T>(work: impl FnOnce() -> T) -> T {
    tokio::task::block_in_place(work)
}

async fn refused(url: &str) -> Error {
    // On a loaded machine a handshake takes its time.
    let config = Config::parse(&format!("{url}&connect_timeout=3s")).unwrap();
    let error = Redis::connect(config, Arc::new(System::current())).await.expect_err(url);
    assert_eq!(error.effect(), Effect::None, "{error}");
    assert!(!format!("{error:?}").contains("PASSWORD"), "{error:?}");
    error
}

/// A Sentinel is to blame.
fn blames_sentinel(error: &Error, kind: ErrorKind, word: &str) {
    assert_eq!(error.kind(), kind, "{error}");
    let text = error.to_string();
    assert!(text.contains("the Sentinel at 127.0.0.1:") && text.contains(word), "{word}: {text}");
}

/// The server that the Sentinels name is to blame.
fn blames_server(error: &Error, kind: ErrorKind, word: &str) {
    assert_eq!(error.kind(), kind, "{error}");
    let text = error.to_string();
    assert!(text.contains("the primary at ") && text.contains(word), "{word}: {text}");
    assert!(!text.contains("the Sentinel at"), "{text}");
}

/// Who is connected without TLS: nobody but whoever asks this.
fn plain_clients(list: &str, port: u16) -> usize {
    let port = format!("laddr=127.0.0.1:{port} ");
    list.lines().filter(|line| line.contains(&port)).count() - 1
}

/// How many clients listen to this Sentinel.
fn informed_by(sentinel: &Sentinel) -> usize {
    sentinel.command(&["CLIENT", "LIST", "TYPE", "pubsub"]).matches("user=finder").count()
}

fn assert_nobody_came_without_tls(servers: &Replication) {
    for sentinel in &servers.sentinels {
        assert_eq!(plain_clients(&sentinel.command(&["CLIENT", "LIST"]), sentinel.port()), 0);
    }
    for server in &servers.servers {
        assert_eq!(plain_clients(&server.command(&["CLIENT", "LIST"]), server.port()), 0);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn everything_travels_by_tls_and_wake_ups_do_too() {
    let authority = Authority::new();
    let target = BackendUnderTest::start(&authority, &Guard::new(&authority.good()));
    let (first, second) = (client(&target.url()).await, client(&target.url()).await);
    let held = first.lease("report", "42").ttl(LONG).acquire().await.unwrap();
    let next = tokio::spawn(second.lease("report", "42").ttl(LONG).wait(PATIENCE).acquire());
    let primary = &target.servers.servers[0];
    eventually("the other one waits, and listens", || async {
        let line = first.look("report", "42").await.unwrap().queue_length;
        line == 1 && primary.command(&["CLIENT", "LIST", "TYPE", "pubsub"]).contains("user=app")
    })
    .await;
    held.extend(LONG).await.unwrap();
    held.release().await.unwrap();
    in_time("the next grant", next).await.unwrap().unwrap().release().await.unwrap();
    assert_nobody_came_without_tls(&target.servers);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failover_is_followed_by_tls() {
    let authority = Authority::new();
    let target = BackendUnderTest::start(&authority, &Guard::new(&authority.good()));
    let client = client(&target.url()).await;
    let before = client.lease("report", "42").ttl(LONG).acquire().await.unwrap();
    let old = target.servers.primary_port();
    target.servers.servers[0].kill();
    let asking = tokio::spawn(client.lease("report", "43").wait(PATIENCE).acquire());
    blocking(|| target.servers.await_failover(old));
    let lease = in_time("a grant of the new primary", asking).await.unwrap().unwrap();
    assert!(lease.token() > before.token(), "a minute ahead for each epoch");
    let new = &target.servers.servers[1];
    assert_eq!(plain_clients(&new.command(&["CLIENT", "LIST"]), new.port()), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sentinels_and_servers_that_want_a_certificate_of_the_client_are_shown_one() {
    let authority = Authority::new();
    let files = authority.good();
    let guard = Guard { lines: &["tls-auth-clients yes"], ..Guard::new(&files) };
    let target = BackendUnderTest::start(&authority, &guard);
    blames_sentinel(
        &refused(&target.url()).await,
        ErrorKind::Unavailable,
        "wants a certificate of the client",
    );

    let ours = authority.sign("client", "DNS:client.internal", 2);
    let showing = |files: &TlsFiles| {
        let (certificate, key) = (files.certificate.display(), files.key.display());
        format!("{}&cert_file={certificate}&key_file={key}", target.url())
    };
    for server in &target.servers.servers {
        assert_eq!(server.command(&["CONFIG", "SET", "tls-auth-clients", "yes"]), "OK");
    }
    granted(&open(&showing(&ours)).await, &claim(&report(), LONG)).await;
    let other = Authority::new();
    blames_sentinel(&refused(&showing(&other.good())).await, ErrorKind::Unavailable, "TLS");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sentinel_that_is_not_to_be_trusted_is_refused_and_named() {
    let (authority, other) = (Authority::new(), Authority::new());
    let (files, elsewhere) = (authority.good(), authority.sign("elsewhere", "DNS:cache.internal", 2));
    let guard = Guard { sentinels: &elsewhere, ..Guard::new(&files) };
    let target = BackendUnderTest::start(&authority, &guard);
    let error = refused(&target.url()).await;
    blames_sentinel(&error, ErrorKind::Unavailable, "not for 127.0.0.1, only for cache.internal");

    let untrusted = target.url().replace(&authority.option(), &other.option());
    blames_sentinel(&refused(&untrusted).await, ErrorKind::Unavailable, "issuer that is not trusted");

    let port = target.servers.sentinels[0].port();
    let error = refused(&format!("redis+sentinel://127.0.0.1:{port}/main?tls=true&{}", target.trust)).await;
    assert!(error.to_string().contains("answers without TLS"), "{error}");
    let error = refused(&target.url().replace("tls=true", "tls=false")).await;
    assert!(error.to_string().contains("if it wants TLS"), "{error}");

    target.servers.sentinels[0].freeze();
    blames_sentinel(&refused(&untrusted).await, ErrorKind::Unavailable, "issuer that is not trusted");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_certificate_of_a_server_must_be_for_what_the_sentinels_call_it() {
    let authority = Authority::new();
    let (files, named) = (authority.good(), authority.sign("named", "DNS:localhost", 2));
    let by_address = Guard { servers: &named, ..Guard::new(&files) };
    let target = BackendUnderTest::start(&authority, &by_address);
    let error = refused(&target.url()).await;
    blames_server(&error, ErrorKind::Unavailable, "not for 127.0.0.1, only for localhost");

    let by_name = Guard { host: "localhost", ..by_address };
    let target = BackendUnderTest::start(&authority, &by_name);
    let redis = open(&target.url()).await;
    let before = token_of(&redis, &report()).await;
    let old = target.servers.primary_port();
    target.servers.servers[0].kill();
    blocking(|| target.servers.await_failover(old));
    let theirs = claim(&report(), LONG);
    eventually("the new primary", || async { redis.acquire(&theirs).await.is_ok() }).await;
    assert!(granted(&redis, &theirs).await.token > before);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_refused_a_password_is_told() {
    let authority = Authority::new();
    let target = BackendUnderTest::start(&authority, &Guard::new(&authority.good()));
    let url = target.url();
    open(&url).await;

    write(&target.password, "wrong");
    blames_server(&refused(&url).await, ErrorKind::Denied, "refused the user or the password");
    write(&target.password, "PASSWORD");

    write(&target.sentinel_password, "wrong");
    blames_sentinel(&refused(&url).await, ErrorKind::Denied, "refused the user or the password");
    let nobody = url.split("&sentinel_user").next().unwrap();
    let error = refused(nobody).await;
    blames_sentinel(&error, ErrorKind::Denied, "wants a password");
    assert!(error.to_string().contains("sentinel_password_file"), "{error}");
    write(&target.sentinel_password, "PASSWORD");

    for sentinel in &target.servers.sentinels {
        sentinel.command(&["ACL", "SETUSER", "finder", "-sentinel|master"]);
    }
    blames_sentinel(&refused(&url).await, ErrorKind::Denied, "may not do this");
    for sentinel in &target.servers.sentinels {
        sentinel.command(&["ACL", "SETUSER", "finder", "+sentinel|master"]);
    }
    open(&url).await;

    target.servers.sentinels[0].freeze();
    write(&target.sentinel_password, "wrong");
    blames_sentinel(&refused(&url).await, ErrorKind::Denied, "refused the user or the password");
}

/// Changes the password of a user and hangs up on it.
fn change(command: impl Fn(&[&str]) -> String, user: &str) {
    assert_eq!(command(&["ACL", "SETUSER", user, "resetpass", ">another"]), "OK");
    command(&["CLIENT", "KILL", "USER", user]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn passwords_that_changed_are_read_anew() {
    let authority = Authority::new();
    let target = BackendUnderTest::start(&authority, &Guard::new(&authority.good()));
    let redis = Arc::new(open(&target.url()).await);
    let leases = Client::new(Arc::clone(&redis) as _);
    let lease = leases.lease("report", "43").ttl(LONG).acquire().await.unwrap();
    let ours = claim(&report(), LONG);
    granted(&*redis, &ours).await;

    for server in &target.servers.servers {
        change(|words| server.command(words), "app");
    }
    eventually("it is told that the password is wrong", || async {
        let answer = redis.renew(&[RenewRequest::new(ours.reference(), LONG)]).await.remove(0);
        matches!(answer, Err(error) if error.kind() == ErrorKind::Denied && error.effect() == Effect::None)
    })
    .await;
    write(&target.password, "another");
    assert!(matches!(renew(&*redis, ours.reference(), LONG).await, Renewal::Renewed(_)));

    for sentinel in &target.servers.sentinels {
        change(|words| sentinel.command(words), "finder");
    }
    write(&target.sentinel_password, "another");
    let informants = || target.servers.sentinels.iter().map(informed_by).sum::<usize>();
    eventually("it listens again", || async { informants() == 1 }).await;
    let old = target.servers.primary_port();
    target.servers.servers[0].kill();
    blocking(|| target.servers.await_failover(old));
    eventually("the new primary", || async {
        matches!(
            redis.renew(&[RenewRequest::new(ours.reference(), LONG)]).await.remove(0),
            Ok(Renewal::Renewed(_))
        )
    })
    .await;
    lease.extend(LONG).await.expect("it was kept all the while");
}

/// The old primary is alive and takes itself for one, but the Sentinels cannot reach it; and the Sentinel that would have
/// told us is frozen.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failover_that_nobody_told_of_is_noticed() {
    let authority = Authority::new();
    let target = BackendUnderTest::start(&authority, &Guard::new(&authority.good()));
    let redis = open(&target.url()).await;
    let (ann, bob) = (client(&target.url()).await, client(&target.url()).await);
    let held = ann.lease("report", "42").ttl(LONG).acquire().await.unwrap();
    let next = tokio::spawn(bob.lease("report", "42").ttl(LONG).wait(PATIENCE * 2).acquire());
    let (sentinels, servers) = (&target.servers.sentinels, &target.servers.servers);
    let hears =
        |server: &RedisServer| server.command(&["CLIENT", "LIST", "TYPE", "pubsub"]).contains("user=app");
    eventually("he waits, and listens", || async { hears(&servers[0]) }).await;
    let informants = || sentinels.iter().map(informed_by).sum::<usize>();
    eventually("someone tells each of failovers", || async { informants() == 3 }).await;
    // All three listen to the first that the URL names.
    sentinels[0].freeze();
    servers[0].command(&["ACL", "SETUSER", "sentinel", "off"]);
    servers[0].command(&["CLIENT", "KILL", "USER", "sentinel"]);
    eventually("a failover", || async { servers[1].is_primary() }).await;
    assert!(servers[0].is_primary(), "there are two");
    eventually("it goes to the new one", || async {
        drop(redis.acquire(&claim(&"report/43".parse().unwrap(), LONG)).await);
        servers[1].command(&["EXISTS", "lock:v1:{report/43}:fence"]) == "1"
    })
    .await;
    eventually("he listens there", || async { hears(&servers[1]) }).await;
    eventually("all have left the old one", || async {
        !servers[0].command(&["CLIENT", "LIST"]).contains("user=app")
    })
    .await;
    held.release().await.unwrap();
    in_time("the next grant", next).await.unwrap().unwrap().release().await.unwrap();
}
