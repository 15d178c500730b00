//! Access to the nodes of a quorum: TLS, users and passwords.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, reason = "tests on real servers run in real time")]

#[path = "common/acl.rs"]
mod acl;
#[path = "common/authority.rs"]
mod authority;
mod common;

use std::{sync::Arc, time::Duration};

use authority::Authority;
use common::{LONG, TIMEOUT, claim, eventually, granted, in_time, is_blocked, release, renew, report};
use leasehold::{Backend, BackendExt as _, Client, ErrorKind, Released, Renewal};
use leasehold_testkit::servers::{RedisNodes, RedisServer, TlsFiles};

const GATE: Duration = Duration::from_secs(600);

fn with_tls(files: &TlsFiles) -> RedisNodes {
    let servers = (0..3).map(|_| RedisServer::with_tls(files, &[])).collect();
    RedisNodes { servers }.grown_old(GATE)
}

/// A URL with these hosts and the TLS ports of the nodes.
fn tls_url(nodes: &RedisNodes, hosts: [&str; 3], trusts: &Authority) -> String {
    let host = |(host, server): (&str, &RedisServer)| format!("{host}:{}", server.tls_port());
    let hosts: Vec<_> = hosts.into_iter().zip(&nodes.servers).map(host).collect();
    format!("redlock://{}?tls=true&{}", hosts.join(","), trusts.url_option())
}

async fn open(url: &str) -> Arc<dyn Backend> {
    leasehold::open(url).await.expect("a majority is there")
}

/// Acquires, renews, waits, is woken, releases and inspects.
async fn use_every_verb(nodes: &RedisNodes, url: &str) {
    let (ann, bob) = (Client::new(open(url).await), Client::new(open(url).await));
    let held = ann.lease("report", "42").ttl(LONG).acquire().await.unwrap();
    let next = tokio::spawn(bob.lease("report", "42").ttl(LONG).wait(TIMEOUT).acquire());
    eventually("the subscription", || async {
        nodes.servers[0].command(&["PUBSUB", "NUMSUB", "lock:v1:{report/42}:news"]).ends_with(" 1")
    })
    .await;
    held.extend(LONG).await.unwrap();
    assert_eq!(ann.look("report", "42").await.unwrap().holder_count, 1);
    held.release().await.unwrap();
    in_time("the next grant", next).await.unwrap().unwrap().release().await.unwrap();
}

#[tokio::test]
async fn requests_and_wake_ups_use_tls() {
    let authority = Authority::new();
    let nodes = with_tls(&authority.good());
    use_every_verb(&nodes, &tls_url(&nodes, ["localhost", "127.0.0.1", "localhost"], &authority)).await;
    for server in &nodes.servers {
        let port = format!("laddr=127.0.0.1:{} ", server.port());
        let clients = server.command(&["CLIENT", "LIST"]);
        assert_eq!(
            clients.lines().filter(|line| line.contains(&port)).count(),
            1,
            "only the client of this test has no TLS"
        );
    }
}

#[tokio::test]
async fn one_untrusted_node_has_no_vote_and_a_majority_of_them_is_refused_with_the_reason() {
    let authority = Authority::new();
    let nodes = with_tls(&authority.sign("named", "DNS:localhost", 2));
    // The certificate is for localhost, not for the address.
    let backend = open(&tls_url(&nodes, ["127.0.0.1", "localhost", "localhost"], &authority)).await;
    let ours = claim(&report(), LONG);
    granted(&*backend, &ours).await;
    assert!(is_blocked(&*backend, &claim(&report(), LONG)).await);
    assert!(matches!(renew(&*backend, ours.reference(), LONG).await, Renewal::Renewed(_)));
    assert_eq!(nodes.servers[0].command(&["KEYS", "*:owner"]), "", "no vote was asked of the untrusted node");
    assert_eq!(release(&*backend, &ours).await, Released::Now);

    let url = tls_url(&nodes, ["127.0.0.1", "127.0.0.1", "localhost"], &authority);
    let error = leasehold::open(&url).await.expect_err("two nodes are not trusted");
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    let text = error.to_string();
    assert!(text.contains("2 of 3 nodes") && text.contains("127.0.0.1"), "{text}");
    assert!(text.contains("certificate"), "the reason: {text}");
}

#[tokio::test]
async fn nodes_without_tls_are_reported_as_such_and_not_as_down() {
    let nodes = RedisNodes::long_lived(3, GATE);
    let url = format!("{}?tls=true&connect_timeout=300ms", nodes.url());
    let error = leasehold::open(&url).await.expect_err("no node has TLS");
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains("without TLS"), "{error}");
}

#[tokio::test]
async fn a_user_with_the_documented_permissions_can_do_everything() {
    let nodes = RedisNodes::long_lived(3, GATE);
    let url = acl::create_user_on_nodes(&nodes);
    use_every_verb(&nodes, &url).await;
    // A node that lost its data is quarantined: the user has the permissions for that too.
    nodes.servers[0].command(&["FLUSHALL"]);
    let backend = open(&url).await;
    granted(&*backend, &claim(&report(), LONG)).await;
    eventually("the node has no vote", || async {
        nodes.servers[0].command(&["GET", "lock:v1:birth"]).contains("|quarantined:")
    })
    .await;
}

#[tokio::test]
async fn a_user_with_the_documented_permissions_can_found_a_set_and_bring_a_node_back() {
    let nodes = RedisNodes::start(3, &[]);
    let url = format!("{}?uptime_gate=2s", acl::create_user_on_nodes(&nodes));
    let backend = open(&url).await;
    let ours = claim(&report(), Duration::from_secs(2));
    let mark = |server: &RedisServer| server.command(&["GET", "lock:v1:birth"]);
    eventually("all nodes vote", || async { nodes.servers.iter().all(|it| mark(it).ends_with("|voting")) })
        .await;
    let token = granted(&*backend, &ours).await.token;
    release(&*backend, &ours).await;
    nodes.servers[0].command(&["FLUSHALL"]);
    eventually("the node votes again, and has the last number", || async {
        drop(backend.acquire_one(&claim(&report(), Duration::from_secs(2))).await);
        let register = nodes.servers[0].command(&["GET", "lock:v1:{report/42}:register"]);
        let last = register.split('|').next().and_then(|last| last.parse().ok()).unwrap_or(0);
        mark(&nodes.servers[0]).ends_with("|voting") && last >= token.get()
    })
    .await;
}

#[tokio::test]
async fn a_command_that_is_not_permitted_is_denied_with_its_name_and_the_names_of_the_nodes() {
    let nodes = RedisNodes::long_lived(3, GATE);
    let backend = open(&acl::create_user_on_nodes(&nodes)).await;
    let forbid = |server: &RedisServer| server.command(&["ACL", "SETUSER", "app", "-evalsha"]);
    forbid(&nodes.servers[0]);
    let ours = claim(&report(), LONG);
    granted(&*backend, &ours).await;
    release(&*backend, &ours).await;
    forbid(&nodes.servers[1]);
    let error = backend.acquire_one(&claim(&report(), LONG)).await.expect_err("two of three refuse");
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    let name = format!("127.0.0.1:{}", nodes.servers[1].port());
    assert!(error.to_string().contains(&name) && error.to_string().contains("'evalsha'"), "{error}");
}

#[tokio::test]
async fn a_wrong_password_is_denied_at_the_start_and_a_rotated_password_file_is_read_again() {
    let nodes = RedisNodes::long_lived(3, GATE);
    let url = acl::create_user_on_nodes(&nodes);
    let error = leasehold::open(&url.replace("PASSWORD", "wrong")).await.expect_err("the password is wrong");
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    assert!(error.to_string().contains("node 127.0.0.1:"), "{error}");

    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "PASSWORD\n").unwrap();
    let url = format!("{}?password_file={}", url.replace(":PASSWORD", ""), file.path().display());
    let backend = open(&url).await;
    let ours = claim(&report(), LONG);
    granted(&*backend, &ours).await;
    for server in &nodes.servers {
        assert_eq!(server.command(&["ACL", "SETUSER", "app", "resetpass", ">another"]), "OK");
        server.command(&["CLIENT", "KILL", "USER", "app"]);
    }
    std::fs::write(file.path(), "another\n").unwrap();
    eventually("the new password is used", || async {
        let held = leasehold::RenewRequest::new(ours.reference(), LONG);
        matches!(backend.renew(&[held]).await.remove(0), Ok(Renewal::Renewed(_)))
    })
    .await;
}
