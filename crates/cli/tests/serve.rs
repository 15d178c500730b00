//! `leasehold serve` as a user starts it.
#![allow(clippy::unwrap_used, reason = "a test")]

mod support;

use std::{
    io::{BufRead as _, BufReader},
    os::unix::fs::{MetadataExt as _, PermissionsExt as _},
    process::Stdio,
    time::Duration,
};

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

/// Of twenty tokens made at once, four were in the file.
#[test]
fn tokens_that_are_made_at_once_are_all_in_the_file() {
    let directory = TestDir::new();
    let new = |number: u32| {
        let mut command = directory.leasehold();
        command.args(["token", "--tokens", "t.toml", "new", &number.to_string(), "--role", "client"]);
        command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
    };
    let made: Vec<_> = (0..12).map(new).collect();
    for mut child in made {
        assert!(child.wait().unwrap().success());
    }
    let listed = directory.leasehold().args(["token", "--tokens", "t.toml", "ls"]).output().unwrap();
    assert_eq!(String::from_utf8(listed.stdout).unwrap().lines().count(), 12);
}

/// The file belonged to another user after a change, and the server went on with the revoked token.
#[test]
fn a_changed_tokens_file_keeps_its_owner_and_its_permissions() {
    let directory = TestDir::new();
    let token = |arguments: &[&str]| {
        let made =
            directory.leasehold().args(["token", "--tokens", "t.toml"]).args(arguments).output().unwrap();
        assert!(made.status.success(), "{made:?}");
    };
    token(&["new", "one", "--role", "client"]);
    let path = directory.path("t.toml");
    let owner = if rustix::process::geteuid().is_root() { Some(65534) } else { None };
    std::os::unix::fs::chown(&path, owner, None).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).unwrap();
    let before = std::fs::metadata(&path).unwrap();
    token(&["new", "two", "--role", "client"]);
    let after = std::fs::metadata(&path).unwrap();
    assert_ne!(before.ino(), after.ino(), "it was replaced");
    assert_eq!((before.uid(), before.gid(), before.mode()), (after.uid(), after.gid(), after.mode()));
}

#[test]
fn a_token_that_could_do_nothing_or_is_not_clear_is_refused() {
    let directory = TestDir::new();
    let new = |arguments: &[&str]| {
        let mut command = directory.leasehold();
        command.args(["token", "--tokens", "t.toml", "new", "x", "--role", "client"]).args(arguments);
        let output = command.output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    assert_eq!(new(&["--certificate", "svc.example.org"]).0, Some(0));
    for (arguments, words) in [
        (["--certificate", "SVC.example.org"], "the same certificate"),
        (["--namespace", "Acme Corp:"], "no namespace"),
        (["--kind", "a/b"], "no kind"),
        (["--expires-in", "0s"], "between a second and a hundred years"),
        (["--expires-in", "100000000000y"], "--expires-in"),
        (["--expires-in", "9000y"], "between a second and a hundred years"),
    ] {
        let (code, line) = new(&arguments);
        assert_eq!(code, Some(64), "{arguments:?}: {line}");
        assert!(line.contains(words), "{arguments:?}: {line}");
    }
}

#[test]
fn a_tokens_file_that_becomes_bad_is_reported_without_being_asked() {
    let directory = TestDir::new();
    std::fs::write(directory.path("t.toml"), "").unwrap();
    let mut command = directory.leasehold();
    command.stderr(Stdio::piped());
    let mut server = Serving::run(command, &["--tokens", "t.toml"]);
    std::fs::write(directory.path("t.toml"), "nonsense").unwrap();
    let mut lines = BufReader::new(server.child.stderr.take().unwrap()).lines();
    let line = lines.find_map(|line| line.ok().filter(|line| line.contains("t.toml"))).unwrap();
    assert!(line.contains("ERROR") || line.contains("WARN"), "{line}");
}

/// The script of `docs/http.md`, with shorter times.
#[test]
fn the_shell_script_of_the_documentation_renews_and_stops_its_command() {
    let page = std::fs::read_to_string("../../docs/http.md").unwrap();
    let script = page.split("```sh\n").find(|part| part.starts_with("#!/bin/sh")).unwrap();
    let script = script.split("```").next().unwrap();
    assert!(script.contains("sleep 10") && script.contains("30000") && script.contains("127.0.0.1:7420"));
    let directory = TestDir::new();
    let server = Serving::start(&directory, &[]);
    let script = script.replace("sleep 10", "sleep 0.5").replace("30000", "2000");
    std::fs::write(directory.path("lease.sh"), script.replace("127.0.0.1:7420", &server.address)).unwrap();
    // Longer than the ttl: it is renewed.
    let run = |command: &str| {
        directory.command("sh").args(["lease.sh", "report/1", "sh", "-c", command]).spawn().unwrap()
    };
    let mut ended = run("sleep 4; touch done; exit 7");
    support::eventually("it holds", || {
        server.request("GET", "/v1/resource?name=report/1", "").1["holders"][0].is_object()
    });
    let first = server.request("GET", "/v1/resource?name=report/1", "").1["holders"][0]["token"].clone();
    while ended.try_wait().unwrap().is_none() {
        let seen = server.request("GET", "/v1/resource?name=report/1", "").1;
        let token = &seen["holders"][0]["token"];
        assert!(token.is_null() || *token == first, "{seen}");
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(ended.wait().unwrap().code(), Some(7));
    assert!(directory.path("done").exists());
    support::eventually("it is released", || {
        server.request("GET", "/v1/resource?name=report/1", "").1["holders"]
            .as_array()
            .is_some_and(Vec::is_empty)
    });
    // A server that is gone: the renewal fails, and the command is stopped.
    let mut ended = run("exec sleep 60");
    support::eventually("it holds", || {
        server.request("GET", "/v1/resource?name=report/1", "").1["holders"][0].is_object()
    });
    drop(server);
    support::eventually("the command is stopped", || ended.try_wait().unwrap().is_some());
    assert_eq!(ended.wait().unwrap().code(), Some(143));
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
