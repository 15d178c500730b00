//! `leasehold serve --demo`: what it shows, and what it leaves.
#![allow(clippy::unwrap_used, reason = "a test")]

mod support;

use std::{fs, process::Command};

use rustix::process::Signal;
use serde_json::{Value, json};
use support::{TestDir, eventually, serving::Serving};

/// The program, with its temporary folder in the folder of the test.
fn program(directory: &TestDir) -> Command {
    fs::create_dir_all(directory.path("tmp")).unwrap();
    let mut command = directory.leasehold();
    command.env("TMPDIR", directory.path("tmp"));
    command
}

fn demo(directory: &TestDir, arguments: &[&str]) -> Serving {
    Serving::run(program(directory), &[&["--demo"], arguments].concat())
}

fn left_behind(directory: &TestDir) -> usize {
    fs::read_dir(directory.path("tmp")).unwrap().count()
}

/// What the overview says of one resource. `Null` if it is not there.
fn item(server: &Serving, name: &str) -> Value {
    let (status, body) = server.request("GET", &format!("/v1/overview?limit=200&q={name}"), "");
    assert_eq!(status, 200, "{body}");
    body["items"].as_array().unwrap().iter().find(|item| item["key"] == *name).cloned().unwrap_or_default()
}

#[test]
fn it_shows_what_can_go_wrong() {
    let directory = TestDir::new();
    let server = demo(&directory, &["--stuck-after", "1s", "--sample-every", "200ms"]);
    eventually("a stuck queue", || {
        let item = item(&server, "deploy/production");
        item["stuck"] == json!(true) && item["queue_length"] == json!(4)
    });
    eventually("a paused resource", || !item(&server, "import/partner-feed")["paused_for_ms"].is_null());
    eventually("a process that is gone", || {
        let (_, body) = server.request("GET", "/v1/overview?only=gone&sort=name", "");
        let items = body["items"].as_array().unwrap();
        let keys: Vec<_> = items.iter().map(|item| item["key"].as_str().unwrap()).collect();
        keys == ["export/customers", "export/orders"]
            && items.iter().all(|item| item["next_step"]["step"] == json!("evict_now"))
    });
    eventually("two processes that wait for each other", || {
        let (_, body) = server.request("GET", "/v1/deadlocks", "");
        body["deadlocks"][0]["sentence"]
            .as_str()
            .is_some_and(|said| said.contains("billing-1") && said.contains("billing-2"))
    });
    eventually("an election, which is not stuck", || {
        let item = item(&server, "scheduler/eu");
        item["queue_length"] == json!(2)
            && item["oldest_wait_ms"].as_u64() > Some(1000)
            && item["stuck"] == json!(false)
    });
    eventually("a hold that is unusual for its kind", || {
        let (_, body) = server.request("GET", "/v1/overview?only=unusual", "");
        body["items"][0]["key"] == json!("customer/118")
    });
    for kind in ["report", "stock", "customer", "thumbnail", "gpu", "index"] {
        eventually(kind, || {
            let (_, body) = server.request("GET", &format!("/v1/overview?kind={kind}"), "");
            body["matched"].as_u64() > Some(0)
        });
    }
    let (_, jobs) = server.request("GET", "/v1/jobs", "");
    let outcome = |name: &str| {
        jobs["schedules"].as_array().unwrap().iter().find(|job| job["name"] == *name).unwrap()["last_outcome"]
            .clone()
    };
    assert_eq!(outcome("backup"), json!("failed"), "{jobs}");
    assert_eq!(outcome("newsletter"), json!("missed"), "{jobs}");
    assert_eq!(jobs["elections"][0]["key"], json!("scheduler/eu"), "{jobs}");
    eventually("orders in the audit trail", || {
        let (_, audit) = server.request("GET", "/v1/audit", "");
        let records = audit["records"].as_array().unwrap();
        ["ask", "evict", "evict-now", "pause"]
            .iter()
            .all(|action| records.iter().any(|one| one["command"] == **action))
    });
}

/// As the introduction says.
#[test]
fn the_commands_see_the_same() {
    let directory = TestDir::new();
    let server = demo(&directory, &[]);
    eventually("a stuck queue", || item(&server, "deploy/production")["queue_length"] == json!(4));
    let folder = fs::read_dir(directory.path("tmp")).unwrap().next().unwrap().unwrap().path();
    let store = format!("sqlite:{}", folder.join("leases.db").display());
    let listed = program(&directory).args(["--store", &store, "ls"]).output().unwrap();
    let listed = String::from_utf8(listed.stdout).unwrap();
    assert!(
        listed.contains("4127@build-7 deploy 2026.11.3") && listed.matches(" gone ").count() == 2,
        "{listed}"
    );
}

#[test]
fn everyone_may_give_orders_and_the_queue_moves_on() {
    let directory = TestDir::new();
    let server = demo(&directory, &["--sample-every", "200ms"]);
    let order = |body: Value| server.request("POST", "/v1/orders", &body.to_string());
    eventually("a stuck queue", || item(&server, "deploy/production")["queue_length"] == json!(4));
    let token = item(&server, "deploy/production")["holders"][0]["token"].clone();
    let evict =
        json!({"resource": "deploy/production", "action": "evict-now", "token": token, "why": "it hangs"});
    assert_eq!(order(evict).0, 200);
    eventually("the next in the queue", || {
        item(&server, "deploy/production")["holders"][0]["holder"]["host"] == json!("build-2")
    });
    let resume =
        json!({"resource": "import/partner-feed", "action": "resume", "why": "they have repaired it"});
    assert_eq!(order(resume).0, 200);
    eventually("the resource is granted again", || {
        item(&server, "import/partner-feed")["paused_for_ms"].is_null()
    });
}

#[test]
fn a_signal_ends_it_and_its_store_is_removed() {
    let directory = TestDir::new();
    for signal in [Signal::INT, Signal::TERM] {
        let mut server = demo(&directory, &[]);
        assert_eq!(left_behind(&directory), 1);
        server.signal(signal);
        assert_eq!(server.child.wait().unwrap().code(), Some(0), "{signal:?}");
        assert_eq!(left_behind(&directory), 0, "{signal:?}");
    }
}

#[test]
fn tokens_say_who_may_do_what() {
    let directory = TestDir::new();
    fs::write(directory.path("t.toml"), "").unwrap();
    let server = demo(&directory, &["--tokens", "t.toml"]);
    assert_eq!(server.request("GET", "/v1/overview", "").0, 401);
}

#[test]
fn a_store_is_refused_and_nothing_is_left() {
    let directory = TestDir::new();
    let refused = program(&directory).args(["serve", "--demo", "--store", "sqlite:x.db"]).output().unwrap();
    let line = String::from_utf8(refused.stderr).unwrap();
    assert_eq!(refused.status.code(), Some(64), "{line}");
    assert!(line.contains("--demo") && line.contains("--store"), "{line}");
    let address = demo(&directory, &[]);
    let taken = program(&directory).args(["serve", "--demo", "--listen", &address.address]).output().unwrap();
    assert_eq!(taken.status.code(), Some(78));
    drop(address);
    assert!(!directory.path("x.db").exists());
    assert_eq!(left_behind(&directory), 1, "only of the server that was killed");
}

#[test]
fn a_store_in_the_environment_is_left_alone() {
    let directory = TestDir::new();
    let mut command = program(&directory);
    command.env("LEASEHOLD_STORE", format!("sqlite:{}", directory.path("mine.db").display()));
    let server = Serving::run(command, &["--demo"]);
    assert_eq!(server.request("GET", "/readyz", "").0, 200);
    assert!(!directory.path("mine.db").exists());
}
