//! `leasehold serve` as a user starts it.
#![allow(clippy::unwrap_used, reason = "a test")]

mod support;

use rustix::process::Signal;
use serde_json::{Value, json};
use support::{TestDir, serving::Serving};

const OWNER: &str = "0123456789abcdef0123456789abcdef";

#[test]
fn a_lease_over_http_is_the_lease_of_the_store() {
    let directory = TestDir::new();
    let server = Serving::start(&directory, &[]);
    let claim =
        json!({"resource": "report/1", "owner": OWNER, "ttl_ms": 30000, "label": "by curl"}).to_string();
    let (status, granted) = server.request("POST", "/v1/acquire", &claim);
    assert_eq!((status, &granted["verdict"]), (200, &json!("granted")));
    // The program on the same store sees it, and waits for it.
    let busy = directory.leasehold().args(["run", "-n", "report/1", "--", "true"]).output().unwrap();
    assert_eq!(busy.status.code(), Some(75), "{busy:?}");
    let listed = directory.leasehold().arg("ls").output().unwrap();
    assert!(String::from_utf8(listed.stdout).unwrap().contains("by curl"));
    // Leases are in the store, not in the server.
    drop(server);
    let server = Serving::start(&directory, &[]);
    let (status, kept) = server.request(
        "POST",
        "/v1/renew",
        &json!({"resource": "report/1", "owner": OWNER, "ttl_ms": 30000}).to_string(),
    );
    assert_eq!((status, &kept["grant"]), (200, &granted["token"]));
    let (status, _) =
        server.request("POST", "/v1/release", &json!({"resource": "report/1", "owner": OWNER}).to_string());
    assert_eq!(status, 200);
}

#[test]
fn a_signal_drains_the_server_and_it_ends_well() {
    let directory = TestDir::new();
    for signal in [Signal::TERM, Signal::INT] {
        let mut server = Serving::start(&directory, &[]);
        assert_eq!(server.request("GET", "/readyz", "").0, 200);
        server.signal(signal);
        assert_eq!(server.child.wait().unwrap().code(), Some(0));
    }
}

#[test]
fn an_address_that_other_machines_reach_is_refused() {
    let directory = TestDir::new();
    for address in ["0.0.0.0:0", "[::]:0"] {
        let refused = directory.leasehold().args(["serve", "--listen", address]).output().unwrap();
        let line = String::from_utf8(refused.stderr).unwrap();
        assert_eq!(refused.status.code(), Some(78), "{line}");
        assert!(
            line.contains("other machines") && line.contains("127.0.0.1:7420") && line.contains("--tokens"),
            "{line}"
        );
    }
    let typo = directory.leasehold().args(["serve", "--listen", "nowhere"]).output().unwrap();
    assert_eq!(typo.status.code(), Some(64));
}

#[test]
fn a_port_that_is_taken_is_named() {
    let directory = TestDir::new();
    let server = Serving::start(&directory, &[]);
    let refused = directory.leasehold().args(["serve", "--listen", &server.address]).output().unwrap();
    let line = String::from_utf8(refused.stderr).unwrap();
    assert_eq!(refused.status.code(), Some(78), "{line}");
    assert!(
        line.contains(&format!("cannot listen on {}", server.address)) && line.contains("--listen"),
        "{line}"
    );
}

#[test]
fn a_token_is_made_used_listed_and_revoked() {
    let directory = TestDir::new();
    let token = |arguments: &[&str]| {
        directory.leasehold().args(["token", "--tokens", "t.toml"]).args(arguments).output().unwrap()
    };
    let new = |name: &str, arguments: &[&str]| {
        let made = token(&[&["new", name], arguments].concat());
        assert!(made.status.success(), "{made:?}");
        String::from_utf8(made.stdout).unwrap().trim().to_owned()
    };
    let client = new(
        "billing \"team\"",
        &["--role", "client", "--namespace", "acme", "--expires-in", "90d", "--max-ttl", "1h"],
    );
    let operator = new("ops", &["--role", "operator", "--role", "client"]);
    let file = std::fs::read_to_string(directory.path("t.toml")).unwrap();
    let secret = client.rsplit('_').next().unwrap();
    assert!(
        !file.contains(secret) && !file.contains(operator.rsplit('_').next().unwrap()),
        "only hashes are stored"
    );
    let mode = std::os::unix::fs::MetadataExt::mode(&std::fs::metadata(directory.path("t.toml")).unwrap());
    assert_eq!(mode & 0o777, 0o600);

    let server = Serving::start(&directory, &["--tokens", "t.toml"]);
    let send = |token: &str, path: &str, body: Value| {
        server.request_with(&format!("Authorization: Bearer {token}\r\n"), "POST", path, &body.to_string())
    };
    assert_eq!(server.request("GET", "/v1/info", "").0, 401);
    let claim = |resource: &str| json!({"resource": resource, "owner": OWNER, "ttl_ms": 7_200_000});
    let (status, granted) = send(&client, "/v1/acquire", claim("acme:report/1"));
    assert_eq!((status, &granted["ttl_ms"]), (200, &json!(3_600_000)));
    assert_eq!(send(&client, "/v1/acquire", claim("report/1")).0, 403);
    let order =
        json!({"resource": "acme:report/1", "action": "evict-now", "token": granted["token"], "why": "test"});
    assert_eq!(send(&client, "/v1/orders", order.clone()).0, 403);
    assert_eq!(send(&operator, "/v1/orders", order).0, 200);
    let audit = directory.leasehold().arg("audit").output().unwrap();
    assert!(String::from_utf8(audit.stdout).unwrap().contains("ops"), "the subject is in the audit trail");

    let listed = String::from_utf8(token(&["ls"]).stdout).unwrap();
    assert!(
        listed.contains("billing") && listed.contains("namespaces acme") && !listed.contains(secret),
        "{listed}"
    );
    let id = client.split('_').nth(1).unwrap();
    assert!(token(&["revoke", id]).status.success());
    support::eventually("the server reads the file again", || {
        send(&client, "/v1/renew", claim("acme:report/1")).0 == 401
    });
    assert_eq!(send(&operator, "/v1/acquire", claim("acme:report/2")).0, 200);
    let unknown = token(&["revoke", id]);
    assert_eq!(unknown.status.code(), Some(64));
    assert!(String::from_utf8(unknown.stderr).unwrap().contains("leasehold token ls"));
    let bad = token(&["new", "x", "--role", "root"]);
    assert_eq!(bad.status.code(), Some(64));
}

#[test]
fn a_bad_tokens_file_is_named() {
    let directory = TestDir::new();
    std::fs::write(directory.path("t.toml"), "nonsense").unwrap();
    for file in ["t.toml", "missing.toml"] {
        let refused = directory
            .leasehold()
            .args(["serve", "--tokens", file, "--listen", "127.0.0.1:0"])
            .output()
            .unwrap();
        let line = String::from_utf8(refused.stderr).unwrap();
        assert_eq!(refused.status.code(), Some(78), "{line}");
        assert!(line.contains(file), "{line}");
    }
}

#[test]
fn metrics_have_an_address_of_their_own() {
    let directory = TestDir::new();
    std::fs::write(directory.path("t.toml"), "").unwrap();
    // A port that was free a moment ago.
    let metrics = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let arguments =
        ["--tokens", "t.toml", "--metrics-listen", &metrics, "--sample-every", "500ms", "--bury-always"];
    let mut server = Serving::start(&directory, &arguments);
    assert_eq!(server.request("GET", "/metrics", "").0, 401);
    server.address = metrics;
    for (path, status) in [("/metrics", 200), ("/readyz", 200), ("/v1/info", 404)] {
        assert_eq!(server.request("GET", path, "").0, status, "{path}");
    }
}

#[test]
fn the_option_for_zookeeper_is_refused_where_leases_stay() {
    let directory = TestDir::new();
    let mut serve = directory.leasehold();
    let refused =
        serve.args(["serve", "--listen", "127.0.0.1:0", "--leases-end-with-this-server"]).output().unwrap();
    let line = String::from_utf8(refused.stderr).unwrap();
    assert_eq!(refused.status.code(), Some(78), "{line}");
    assert!(line.contains("leases stay"), "{line}");
}
