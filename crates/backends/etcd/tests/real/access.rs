//! Logins, permissions and TLS certificates.

use std::{
    path::{Path, PathBuf},
    process::Command,
    sync::Arc,
    time::{Duration, Instant},
};

use leasehold::{Backend as _, BackendExt as _, Effect, ErrorKind, Renewal, System};
use leasehold_etcd::{Config, Etcd};
use leasehold_testkit::{Proxy, servers::EtcdCluster};

use crate::common::{
    LONG, TIMEOUT, blocked, claim, eventually, granted, kind_and_effect, open, release, renew, report,
    request_count,
};

/// Enables users on a cluster: `app` has only the permission that it needs.
pub(crate) fn with_users(cluster: EtcdCluster) -> EtcdCluster {
    for words in [
        ["user", "add", "root:secret"].as_slice(),
        &["role", "add", "leases"],
        &["role", "grant-permission", "leases", "readwrite", "--prefix=true", "leasehold/"],
        &["user", "add", "app:first"],
        &["user", "grant-role", "app", "leases"],
        &["user", "grant-role", "root", "root"],
        &["auth", "enable"],
    ] {
        cluster.etcdctl(words);
    }
    cluster.log_in("root:secret");
    cluster
}

fn url(cluster: &EtcdCluster, login: &str, options: &str) -> String {
    format!("etcd://{login}127.0.0.1:{}{options}", cluster.ports()[0])
}

async fn connect_error(url: &str) -> leasehold::Error {
    let config = Config::parse(url).unwrap();
    let error = Etcd::connect(config, Arc::new(System::current())).await.unwrap_err();
    assert!(!format!("{error:?}").contains("hunter2"), "{error:?}");
    error
}

#[tokio::test]
async fn a_wrong_password_is_denied_and_a_rotated_password_file_is_read_again() {
    let cluster = with_users(EtcdCluster::start(1));
    for login in ["", "app:hunter2@", "nobody:hunter2@"] {
        let error = connect_error(&url(&cluster, login, "")).await;
        assert_eq!(kind_and_effect(&error), (ErrorKind::Denied, Effect::None), "{login}: {error:?}");
    }
    let error = connect_error(&url(&cluster, "app:first@", "?root=elsewhere/")).await;
    assert_eq!(
        kind_and_effect(&error),
        (ErrorKind::Denied, Effect::None),
        "keys that the user may not read: {error:?}"
    );

    let file = cluster.folder().join("password");
    std::fs::write(&file, "first\n").unwrap();
    let etcd = open(&url(&cluster, "app@", &format!("?password_file={}", file.display()))).await;
    let ours = claim(&report(), LONG);
    let token = granted(&etcd, &ours).await.token;
    let mut child = cluster.command(&["user", "passwd", "--interactive=false", "app"]);
    let mut child = child.stdin(std::process::Stdio::piped()).spawn().unwrap();
    std::io::Write::write_all(child.stdin.as_mut().unwrap(), b"second\n").unwrap();
    assert!(child.wait().unwrap().success());
    std::fs::write(&file, "second").unwrap();
    // etcd now refuses the login token of the connection, and the password that the connection was made with.
    eventually("the new password is used", || async {
        let held = leasehold::RenewRequest::new(ours.reference(), LONG);
        matches!(etcd.renew(&[held]).await.remove(0), Ok(Renewal::Renewed(kept)) if kept.token == token)
    })
    .await;
    release(&etcd, &ours).await;
}

fn openssl(folder: &Path, words: &str) {
    let mut command = Command::new("openssl");
    let done = command.current_dir(folder).args(words.split(' ')).output().expect("openssl is installed");
    assert!(done.status.success(), "openssl {words}: {}", String::from_utf8_lossy(&done.stderr));
}

/// A cluster whose login tokens expire after this ttl, and the folder with its keys.
fn with_short_tokens(name: &str, ttl: &str) -> (EtcdCluster, PathBuf) {
    let folder = std::env::temp_dir().join(format!("leasehold-etcd-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    openssl(&folder, "genrsa -out key.pem 2048");
    openssl(&folder, "rsa -in key.pem -pubout -out public.pem");
    let file = |name: &str| folder.join(name).display().to_string();
    let keys = format!("pub-key={},priv-key={}", file("public.pem"), file("key.pem"));
    let token = format!("jwt,{keys},sign-method=RS256,ttl={ttl}");
    (with_users(EtcdCluster::with(1, &["--auth-token", &token])), folder)
}

#[tokio::test]
async fn an_expired_login_token_is_renewed_without_an_error() {
    let (cluster, folder) = with_short_tokens("jwt", "3s");
    let etcd = open(&url(&cluster, "app:first@", "")).await;
    let ours = claim(&report(), LONG);
    granted(&etcd, &ours).await;
    tokio::time::sleep(Duration::from_millis(4500)).await;
    let renewal = renew(&etcd, ours.reference(), LONG).await;
    assert!(matches!(renewal, Renewal::Renewed(_)), "{renewal:?}");
    release(&etcd, &ours).await;
    let _ = std::fs::remove_dir_all(&folder);
}

#[tokio::test]
async fn forty_callers_that_lose_their_connection_log_in_once() {
    let cluster = with_users(EtcdCluster::start(1));
    let proxy = Proxy::start(cluster.ports()[0], 1).await;
    let timeouts = "timeout=3s&connect_timeout=1s";
    let etcd = open(&format!("etcd://app:first@127.0.0.1:{}?{timeouts}", proxy.port())).await;
    let forty_callers = async || {
        let asked = (0..40).map(|number| {
            let ours = claim(&format!("report/{number}").parse().unwrap(), LONG);
            let etcd = &etcd;
            async move { etcd.acquire_one(&ours).await }
        });
        futures_util::future::join_all(asked).await
    };
    proxy.black_hole();
    // First the connection does not reply, then no caller can log in. In both cases the callers do not wait
    // one after the other.
    for _ in 0..2 {
        let started = Instant::now();
        assert!(forty_callers().await.iter().all(Result::is_err));
        assert!(started.elapsed() < TIMEOUT, "{:?}", started.elapsed());
    }
    proxy.heal();
    let before = request_count(&cluster, "Authenticate");
    assert!(forty_callers().await.iter().all(Result::is_ok));
    let logins = request_count(&cluster, "Authenticate") - before;
    assert!(logins <= 2, "{logins} logins of 40 callers");
}

#[tokio::test]
async fn a_wait_that_begins_after_the_login_token_expired_is_woken() {
    let (cluster, folder) = with_short_tokens("jwt-watch", "3s");
    let etcd = open(&url(&cluster, "app:first@", "")).await;
    let (holder, waiting) = (claim(&report(), LONG), claim(&report(), LONG).queued());
    granted(&etcd, &holder).await;
    let wait = async |at_most: Duration| {
        let cursor = blocked(&etcd, &waiting).await.cursor;
        let started = Instant::now();
        etcd.wait(&waiting.reference(), &cursor, at_most).await.unwrap();
        started.elapsed()
    };
    let short = Duration::from_millis(400);
    assert!(wait(short).await >= short, "nothing wakes it");
    tokio::time::sleep(Duration::from_secs(5)).await;
    // The first wait may be woken because the stream has to be opened again, but not all of them.
    let mut waited = Vec::new();
    for _ in 0..4 {
        waited.push(wait(short).await >= short);
    }
    assert!(waited.contains(&true), "every wait was woken at once");
    tokio::time::sleep(Duration::from_secs(5)).await;
    let (cursor, started) = (blocked(&etcd, &waiting).await.cursor, Instant::now());
    let release = async {
        tokio::time::sleep(Duration::from_millis(500)).await;
        release(&etcd, &holder).await
    };
    let reference = waiting.reference();
    let (woken, _) = tokio::join!(etcd.wait(&reference, &cursor, TIMEOUT), release);
    woken.unwrap();
    assert!(started.elapsed() < TIMEOUT / 2, "the release did not wake it");
    let _ = std::fs::remove_dir_all(&folder);
}

#[tokio::test]
async fn tls_with_client_certificates_and_with_a_login() {
    let folder = std::env::temp_dir().join(format!("leasehold-etcd-tls-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    openssl(&folder, "req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=ca -keyout ca.key -out ca.pem");
    openssl(
        &folder,
        "req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=other -keyout other.key -out other.pem",
    );
    std::fs::write(folder.join("ext"), "subjectAltName=DNS:localhost,IP:127.0.0.1").unwrap();
    for name in ["server", "client"] {
        openssl(
            &folder,
            &format!("req -newkey rsa:2048 -nodes -subj /CN={name} -keyout {name}.key -out {name}.csr"),
        );
        let sign = format!(
            "x509 -req -days 2 -in {name}.csr -CA ca.pem -CAkey ca.key -CAcreateserial -out {name}.pem"
        );
        openssl(&folder, &format!("{sign} -extfile ext"));
    }
    let cluster = EtcdCluster::with_tls(&folder);
    let file = |name: &str| folder.join(name).display().to_string();
    let own = format!("&cert_file={}&key_file={}", file("client.pem"), file("client.key"));
    let etcd = open(&format!("{}?ca_file={}{own}", cluster.url(), file("ca.pem"))).await;
    let ours = claim(&report(), LONG);
    granted(&etcd, &ours).await;
    release(&etcd, &ours).await;

    let quick = "&timeout=2s&connect_timeout=2s";
    for (options, kind, words) in [
        (format!("?ca_file={}{own}", file("other.pem")), ErrorKind::Denied, "issuer that is not trusted"),
        // The server may close the connection before its reason is read.
        (format!("?ca_file={}", file("ca.pem")), ErrorKind::Unavailable, "127.0.0.1:"),
        (
            format!("?ca_file={}{own}&server_name=example.org", file("ca.pem")),
            ErrorKind::Denied,
            "another host name",
        ),
    ] {
        let error = connect_error(&format!("{}{options}{quick}", cluster.url())).await;
        assert_eq!(kind_and_effect(&error), (kind, Effect::None), "{options}: {error:?}");
        assert!(error.to_string().contains(words), "{options}: {error}");
    }
    let error = connect_error(&format!("{}?ca_file={}", cluster.url(), file("missing.pem"))).await;
    assert_eq!(kind_and_effect(&error), (ErrorKind::Invalid, Effect::None), "{error:?}");

    let cluster = with_users(cluster);
    let login = |login: &str| {
        let url = cluster.url().replace("://", &format!("://{login}@"));
        format!("{url}?ca_file={}{own}", file("ca.pem"))
    };
    let error = connect_error(&login("app:hunter2")).await;
    assert_eq!(kind_and_effect(&error), (ErrorKind::Denied, Effect::None), "{error:?}");
    let etcd = open(&login("app:first")).await;
    let ours = claim(&report(), LONG);
    granted(&etcd, &ours).await;
    assert!(matches!(renew(&etcd, ours.reference(), LONG).await, Renewal::Renewed(_)));
    release(&etcd, &ours).await;
    let _ = std::fs::remove_dir_all(&folder);
}

#[tokio::test]
async fn an_error_of_connecting_says_which_member_and_why() {
    let table = [
        ("127.0.0.1:1", "cannot connect to 127.0.0.1:1: Connection refused"),
        (
            "no-such-host.invalid",
            "cannot connect to no-such-host.invalid:2379: the host name cannot be resolved",
        ),
    ];
    for (member, message) in table {
        let error = connect_error(&format!("etcd://{member}?timeout=2s&connect_timeout=2s")).await;
        assert!(error.to_string().starts_with(message), "{error}");
        assert_eq!(kind_and_effect(&error), (ErrorKind::Unavailable, Effect::None), "{error:?}");
    }
}
