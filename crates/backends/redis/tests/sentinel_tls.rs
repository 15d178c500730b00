//! Sentinels and servers with TLS and passwords.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, reason = "tests on real servers run in real time")]

#[path = "common/acl.rs"]
mod acl;
#[path = "common/authority.rs"]
mod authority;
mod common;

use std::sync::Arc;

use authority::Authority;
use common::{LONG, TIMEOUT, claim, client, eventually, granted, in_time, open, renew, report, token_of};
use leasehold::{Backend, BackendExt as _, Client, Effect, Error, ErrorKind, RenewRequest, Renewal, System};
use leasehold_redis::{Config, Redis};
use leasehold_testkit::servers::{RedisServer, Replication, ReplicationSecurity, Sentinel, TlsFiles};
use tempfile::NamedTempFile;

/// A primary, a replica and their Sentinels, with the documented users and their passwords in files.
struct SentinelSetup {
    servers: Replication,
    trust: String,
    password: NamedTempFile,
    sentinel_password: NamedTempFile,
}

impl SentinelSetup {
    fn start(authority: &Authority, guard: &ReplicationSecurity<'_>) -> SentinelSetup {
        let servers = blocking(|| Replication::guarded(1, guard));
        acl::create_users_behind_sentinels(&servers);
        let (password, sentinel_password) = (file("PASSWORD"), file("PASSWORD"));
        SentinelSetup { servers, trust: authority.url_option(), password, sentinel_password }
    }

    /// The documented URL.
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
    // On a loaded machine a handshake takes long.
    let config = Config::parse(&format!("{url}&connect_timeout=3s")).unwrap();
    let error = Redis::connect(config, Arc::new(System::current())).await.expect_err(url);
    assert_eq!(error.effect(), Effect::None, "{error}");
    assert!(!format!("{error:?}").contains("PASSWORD"), "{error:?}");
    error
}

/// Checks that the error names a Sentinel.
fn check_names_sentinel(error: &Error, kind: ErrorKind, word: &str) {
    assert_eq!(error.kind(), kind, "{error}");
    let text = error.to_string();
    assert!(text.contains("the Sentinel at 127.0.0.1:") && text.contains(word), "{word}: {text}");
}

/// Checks that the error names the primary, and no Sentinel.
fn check_names_primary(error: &Error, kind: ErrorKind, word: &str) {
    assert_eq!(error.kind(), kind, "{error}");
    let text = error.to_string();
    assert!(text.contains("the primary at ") && text.contains(word), "{word}: {text}");
    assert!(!text.contains("the Sentinel at"), "{text}");
}

/// How many clients are connected without TLS, except the one that asks.
fn plain_clients(list: &str, port: u16) -> usize {
    let port = format!("laddr=127.0.0.1:{port} ");
    list.lines().filter(|line| line.contains(&port)).count() - 1
}

/// How many clients of leasehold are subscribed to this Sentinel.
fn subscribers_of(sentinel: &Sentinel) -> usize {
    sentinel.command(&["CLIENT", "LIST", "TYPE", "pubsub"]).matches("user=finder").count()
}

fn assert_no_client_without_tls(servers: &Replication) {
    for sentinel in &servers.sentinels {
        assert_eq!(plain_clients(&sentinel.command(&["CLIENT", "LIST"]), sentinel.port()), 0);
    }
    for server in &servers.servers {
        assert_eq!(plain_clients(&server.command(&["CLIENT", "LIST"]), server.port()), 0);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_and_wake_ups_use_tls() {
    let authority = Authority::new();
    let target = SentinelSetup::start(&authority, &ReplicationSecurity::new(&authority.good()));
    let (first, second) = (client(&target.url()).await, client(&target.url()).await);
    let held = first.lease("report", "42").ttl(LONG).acquire().await.unwrap();
    let next = tokio::spawn(second.lease("report", "42").ttl(LONG).wait(TIMEOUT).acquire());
    let primary = &target.servers.servers[0];
    eventually("the second client waits, and is subscribed", || async {
        let queue_length = first.look("report", "42").await.unwrap().queue_length;
        queue_length == 1 && primary.command(&["CLIENT", "LIST", "TYPE", "pubsub"]).contains("user=app")
    })
    .await;
    held.extend(LONG).await.unwrap();
    held.release().await.unwrap();
    in_time("the next grant", next).await.unwrap().unwrap().release().await.unwrap();
    assert_no_client_without_tls(&target.servers);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failover_is_followed_by_tls() {
    let authority = Authority::new();
    let target = SentinelSetup::start(&authority, &ReplicationSecurity::new(&authority.good()));
    let client = client(&target.url()).await;
    let before = client.lease("report", "42").ttl(LONG).acquire().await.unwrap();
    let old = target.servers.primary_port();
    target.servers.servers[0].kill();
    let asking = tokio::spawn(client.lease("report", "43").wait(TIMEOUT).acquire());
    blocking(|| target.servers.await_failover(old));
    let lease = in_time("a grant of the new primary", asking).await.unwrap().unwrap();
    assert!(lease.token() > before.token(), "each epoch adds a minute to tokens");
    let new = &target.servers.servers[1];
    assert_eq!(plain_clients(&new.command(&["CLIENT", "LIST"]), new.port()), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_client_certificate_is_sent_to_sentinels_and_servers() {
    let authority = Authority::new();
    let files = authority.good();
    let guard = ReplicationSecurity { lines: &["tls-auth-clients yes"], ..ReplicationSecurity::new(&files) };
    let target = SentinelSetup::start(&authority, &guard);
    check_names_sentinel(
        &refused(&target.url()).await,
        ErrorKind::Denied,
        "wants a certificate of the client",
    );

    let ours = authority.sign("client", "DNS:client.internal", 2);
    let with_certificate = |files: &TlsFiles| {
        let (certificate, key) = (files.certificate.display(), files.key.display());
        format!("{}&cert_file={certificate}&key_file={key}", target.url())
    };
    for server in &target.servers.servers {
        assert_eq!(server.command(&["CONFIG", "SET", "tls-auth-clients", "yes"]), "OK");
    }
    granted(&open(&with_certificate(&ours)).await, &claim(&report(), LONG)).await;
    let other = Authority::new();
    check_names_sentinel(
        &refused(&with_certificate(&other.good())).await,
        ErrorKind::Denied,
        "refused the certificate in cert_file",
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_untrusted_sentinel_is_refused_and_named() {
    let (authority, other) = (Authority::new(), Authority::new());
    let (files, elsewhere) = (authority.good(), authority.sign("elsewhere", "DNS:cache.internal", 2));
    let guard = ReplicationSecurity { sentinels: &elsewhere, ..ReplicationSecurity::new(&files) };
    let target = SentinelSetup::start(&authority, &guard);
    let error = refused(&target.url()).await;
    check_names_sentinel(&error, ErrorKind::Denied, "not for 127.0.0.1, only for cache.internal");

    let untrusted = target.url().replace(&authority.url_option(), &other.url_option());
    check_names_sentinel(&refused(&untrusted).await, ErrorKind::Denied, "of an unknown issuer");

    let port = target.servers.sentinels[0].port();
    let error = refused(&format!("redis+sentinel://127.0.0.1:{port}/main?tls=true&{}", target.trust)).await;
    assert!(error.to_string().contains("answers without TLS"), "{error}");
    let error = refused(&target.url().replace("tls=true", "tls=false").replace(&target.trust, "")).await;
    assert!(error.to_string().contains("if it wants TLS"), "{error}");

    target.servers.sentinels[0].freeze();
    check_names_sentinel(&refused(&untrusted).await, ErrorKind::Denied, "of an unknown issuer");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_certificate_of_a_server_must_be_for_the_name_that_the_sentinels_use() {
    let authority = Authority::new();
    let (files, named) = (authority.good(), authority.sign("named", "DNS:localhost", 2));
    let by_address = ReplicationSecurity { servers: &named, ..ReplicationSecurity::new(&files) };
    let target = SentinelSetup::start(&authority, &by_address);
    let error = refused(&target.url()).await;
    check_names_primary(&error, ErrorKind::Denied, "not for 127.0.0.1, only for localhost");

    let by_name = ReplicationSecurity { host: "localhost", ..by_address };
    let target = SentinelSetup::start(&authority, &by_name);
    let redis = open(&target.url()).await;
    let before = token_of(&redis, &report()).await;
    let old = target.servers.primary_port();
    target.servers.servers[0].kill();
    blocking(|| target.servers.await_failover(old));
    let theirs = claim(&report(), LONG);
    eventually("the new primary", || async { redis.acquire_one(&theirs).await.is_ok() }).await;
    assert!(granted(&redis, &theirs).await.token > before);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_error_says_which_server_refused_the_password() {
    let authority = Authority::new();
    let target = SentinelSetup::start(&authority, &ReplicationSecurity::new(&authority.good()));
    let url = target.url();
    open(&url).await;

    write(&target.password, "wrong");
    check_names_primary(&refused(&url).await, ErrorKind::Denied, "refused the user or the password");
    write(&target.password, "PASSWORD");

    write(&target.sentinel_password, "wrong");
    check_names_sentinel(&refused(&url).await, ErrorKind::Denied, "refused the user or the password");
    let without_sentinel_login = url.split("&sentinel_user").next().unwrap();
    let error = refused(without_sentinel_login).await;
    check_names_sentinel(&error, ErrorKind::Denied, "wants a password");
    assert!(error.to_string().contains("sentinel_password_file"), "{error}");
    write(&target.sentinel_password, "PASSWORD");

    for sentinel in &target.servers.sentinels {
        sentinel.command(&["ACL", "SETUSER", "finder", "-sentinel|master"]);
    }
    check_names_sentinel(&refused(&url).await, ErrorKind::Denied, "may not do this");
    for sentinel in &target.servers.sentinels {
        sentinel.command(&["ACL", "SETUSER", "finder", "+sentinel|master"]);
    }
    open(&url).await;

    target.servers.sentinels[0].freeze();
    write(&target.sentinel_password, "wrong");
    check_names_sentinel(&refused(&url).await, ErrorKind::Denied, "refused the user or the password");
}

/// Changes the password of a user and closes its connections.
fn change_password(command: impl Fn(&[&str]) -> String, user: &str) {
    assert_eq!(command(&["ACL", "SETUSER", user, "resetpass", ">another"]), "OK");
    command(&["CLIENT", "KILL", "USER", user]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rotated_password_files_are_read_again() {
    let authority = Authority::new();
    let target = SentinelSetup::start(&authority, &ReplicationSecurity::new(&authority.good()));
    let redis = Arc::new(open(&target.url()).await);
    let leases = Client::new(Arc::clone(&redis) as _);
    let lease = leases.lease("report", "43").ttl(LONG).acquire().await.unwrap();
    let ours = claim(&report(), LONG);
    granted(&*redis, &ours).await;

    for server in &target.servers.servers {
        change_password(|words| server.command(words), "app");
    }
    eventually("the old password is refused", || async {
        let answer = redis.renew(&[RenewRequest::new(ours.reference(), LONG)]).await.remove(0);
        matches!(answer, Err(error) if error.kind() == ErrorKind::Denied && error.effect() == Effect::None)
    })
    .await;
    write(&target.password, "another");
    assert!(matches!(renew(&*redis, ours.reference(), LONG).await, Renewal::Renewed(_)));

    for sentinel in &target.servers.sentinels {
        change_password(|words| sentinel.command(words), "finder");
    }
    write(&target.sentinel_password, "another");
    let subscriptions = || target.servers.sentinels.iter().map(subscribers_of).sum::<usize>();
    eventually("it is subscribed again", || async { subscriptions() == 1 }).await;
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
    lease.extend(LONG).await.expect("it was renewed all the time");
}

/// The old primary is alive and still a primary, but the Sentinels cannot reach it; and the Sentinel to which
/// the clients are subscribed is frozen.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failover_that_no_message_announced_is_noticed() {
    let authority = Authority::new();
    let target = SentinelSetup::start(&authority, &ReplicationSecurity::new(&authority.good()));
    let redis = open(&target.url()).await;
    let (ann, bob) = (client(&target.url()).await, client(&target.url()).await);
    let held = ann.lease("report", "42").ttl(LONG).acquire().await.unwrap();
    let next = tokio::spawn(bob.lease("report", "42").ttl(LONG).wait(TIMEOUT * 2).acquire());
    let (sentinels, servers) = (&target.servers.sentinels, &target.servers.servers);
    let is_subscribed =
        |server: &RedisServer| server.command(&["CLIENT", "LIST", "TYPE", "pubsub"]).contains("user=app");
    eventually("the waiter is subscribed", || async { is_subscribed(&servers[0]) }).await;
    let subscriptions = || sentinels.iter().map(subscribers_of).sum::<usize>();
    eventually("all clients are subscribed to a Sentinel", || async { subscriptions() == 3 }).await;
    // All three are subscribed to the first Sentinel of the URL.
    sentinels[0].freeze();
    servers[0].command(&["ACL", "SETUSER", "sentinel", "off"]);
    servers[0].command(&["CLIENT", "KILL", "USER", "sentinel"]);
    eventually("a failover", || async { servers[1].is_primary() }).await;
    assert!(servers[0].is_primary(), "there are two primaries");
    eventually("the client uses the new primary", || async {
        drop(redis.acquire_one(&claim(&"report/43".parse().unwrap(), LONG)).await);
        servers[1].command(&["EXISTS", "lock:v1:{report/43}:fence"]) == "1"
    })
    .await;
    eventually("the waiter is subscribed at the new primary", || async { is_subscribed(&servers[1]) }).await;
    eventually("no client uses the old primary", || async {
        !servers[0].command(&["CLIENT", "LIST"]).contains("user=app")
    })
    .await;
    held.release().await.unwrap();
    in_time("the next grant", next).await.unwrap().unwrap().release().await.unwrap();
}
