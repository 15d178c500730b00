//! The program on a real ZooKeeper server: the suite for all servers, and tests for ZooKeeper alone.
#![allow(clippy::unwrap_used, reason = "a test is a program of its own")]

mod server_suite;
mod support;

use std::time::{Duration, Instant};

use leasehold_testkit::servers::ZooKeeperServer;
use serde_json::{Value, json};
use server_suite::{Server, ServerStore};
use support::{Start as _, serving::Serving};

impl Server for ZooKeeperServer {
    const SUITS_CORRECTNESS: bool = true;

    fn start() -> ZooKeeperServer {
        ZooKeeperServer::start()
    }

    /// With the longest session timeout that the server allows, so that a slow test machine does not lose the
    /// session.
    fn url(&self) -> String {
        ZooKeeperServer::url(self).replace("session_timeout=2s", "session_timeout=4s")
    }

    fn freeze(&self) {
        ZooKeeperServer::freeze(self);
    }

    fn thaw(&self) {
        ZooKeeperServer::thaw(self);
    }

    fn kill(&self) {
        ZooKeeperServer::kill(self);
    }

    fn is_held(&self) -> bool {
        self.ask("dump").contains("/leasehold/v1/locks/report/42/")
    }
}

server_suite::run_on!(ZooKeeperServer);

#[test]
fn what_a_session_cannot_do_is_refused_in_one_line_with_the_reason() {
    let store = ServerStore::<ZooKeeperServer>::new();
    store.refuses(&["run", "--ttl", "1s", "report/42", "--", "true"], 78, "session_timeout");
    store.refuses(&["run", "--at-least", "1m", "report/42", "--", "true"], 78, "stay closed");
}

#[test]
fn a_script_needs_a_keeper_which_acquires_its_lease_and_releases_it() {
    let store = ServerStore::<ZooKeeperServer>::new();
    store.refuses(&["acquire", "report/42"], 78, "use --keep $$");
    let kept = store.dir.command("sleep").arg("600").start();
    let pid = kept.pid().to_string();
    let acquire = ["acquire", "-w", "60", "--keep", &pid, "report/42"];
    let owner = store.prints(&acquire);
    assert!(store.server.is_held());
    store.refuses(&["acquire", "-n", "--keep", &pid, "report/42"], 75, "held by");
    store.refuses(&["renew", "report/42", "--owner", owner.trim()], 78, "only its keeper renews it");
    assert_eq!(store.prints(&["release", "report/42", "--owner", owner.trim()]), "");
    assert!(!store.server.is_held());
    store.refuses(&["release", "report/42", "--owner", owner.trim()], 78, "only its keeper can release it");
    store.prints(&acquire);
    kept.signal(rustix::process::Signal::KILL);
    support::eventually("the keeper has released it", || !store.server.is_held());
}

#[test]
fn a_store_that_cannot_be_used_is_reported_in_one_line() {
    let store = ServerStore::<ZooKeeperServer>::new();
    let url = store.server.url();
    let private = |login: &str| url.replace("://", &format!("://{login}@")).replace("/?", "/private?");
    let mut first = store.dir.leasehold();
    // In the command line, a password is warned about.
    first.env("LEASEHOLD_STORE", private("ann:sesame")).args(["run", "x/1", "--", "true"]);
    assert_eq!(support::exit_and_errors(&first.output().unwrap()), (0, vec![]));
    store.refuses_url(&private("ann:guess"), 78, "the user may not");
    store.refuses_url("zookeeper://127.0.0.1:1/?connect_timeout=1s", 69, "cannot connect");
    store.refuses_url(&url.replace("tick=200ms", "tick=2s"), 78, "tickTime");
    store.refuses_url("zookeeper://127.0.0.1/?colour=red", 78, "colour");
}

const OWNER: &str = "0123456789abcdef0123456789abcdef";
const OTHER: &str = "fedcba9876543210fedcba9876543210";

/// `leasehold serve` on ZooKeeper, which ends leases itself.
fn serve(store: &ServerStore<ZooKeeperServer>) -> Serving {
    Serving::run(store.command(&[]), &["--leases-end-with-this-server"])
}

fn send(server: &Serving, verb: &str, body: &Value) -> (u16, Value) {
    server.request("POST", &format!("/v1/{verb}"), &body.to_string())
}

fn claim(resource: &str, owner: &str, ttl_ms: u64) -> Value {
    json!({"resource": resource, "owner": owner, "ttl_ms": ttl_ms})
}

#[test]
fn serve_needs_to_be_told_that_leases_end_with_it_and_says_so_to_its_clients() {
    let store = ServerStore::<ZooKeeperServer>::new();
    store.refuses(&["serve", "--listen", "127.0.0.1:0"], 78, "--leases-end-with-this-server");
    let server = serve(&store);
    let (status, info) = server.request("GET", "/v1/info", "");
    assert_eq!(status, 200);
    assert_eq!(
        (&info["capabilities"]["own_ttl"], &info["survives_server"]),
        (&json!(true), &json!(false)),
        "{info}"
    );
}

#[test]
fn a_client_that_stops_renewing_loses_its_lease_at_its_ttl_although_the_server_lives() {
    let store = ServerStore::<ZooKeeperServer>::new();
    let server = serve(&store);
    let started = Instant::now();
    let (status, granted) = send(&server, "acquire", &claim("report/42", OWNER, 1500));
    assert_eq!((status, &granted["ttl_ms"]), (200, &json!(1500)), "shorter than the session: {granted}");
    let remaining = granted["remaining_ms"].as_u64().unwrap();
    assert!(remaining > 0 && remaining <= 1500, "{granted}");
    let mut next = claim("report/42", OTHER, 1500);
    next["wait_ms"] = json!(60_000);
    let (status, second) = send(&server, "acquire", &next);
    assert_eq!(status, 200, "{second}");
    assert!(
        started.elapsed() >= Duration::from_millis(remaining),
        "nobody else is granted before the deadline"
    );
    let (status, lost) = send(&server, "renew", &claim("report/42", OWNER, 1500));
    assert_eq!((status, &lost["kind"]), (410, &json!("lost")));
    // The store has no holder any more, either.
    support::eventually("the second lease ends as well", || !store.server.is_held());
    // The first owner asks again: a new lease.
    let (status, again) = send(&server, "acquire", &claim("report/42", OWNER, 1500));
    assert_eq!(status, 200, "{again}");
    let token = |answer: &Value| answer["token"].as_str().unwrap().parse::<u64>().unwrap();
    assert!(token(&granted) < token(&second) && token(&second) < token(&again));
}

#[test]
fn a_lease_that_is_renewed_outlives_its_ttl() {
    let store = ServerStore::<ZooKeeperServer>::new();
    let server = serve(&store);
    let (status, granted) = send(&server, "acquire", &claim("report/42", OWNER, 60_000));
    let ttl_ms = granted["ttl_ms"].as_u64().unwrap();
    assert!(status == 200 && ttl_ms <= 4000, "not longer than the session: {granted}");
    let started = Instant::now();
    while started.elapsed() < Duration::from_millis(ttl_ms * 2) {
        let (status, kept) = send(&server, "renew", &claim("report/42", OWNER, ttl_ms));
        assert_eq!((status, &kept["grant"]), (200, &granted["token"]), "{kept}");
        assert_eq!(send(&server, "acquire", &claim("report/42", OTHER, ttl_ms)).0, 423);
        std::thread::sleep(Duration::from_millis(300));
    }
    assert_eq!(send(&server, "release", &json!({"resource": "report/42", "owner": OWNER})).0, 200);
    assert_eq!(send(&server, "acquire", &claim("report/42", OTHER, ttl_ms)).0, 200);
}

#[test]
fn leases_end_with_the_server_and_those_of_others_stay() {
    let store = ServerStore::<ZooKeeperServer>::new();
    let server = serve(&store);
    // Taken on ZooKeeper itself: the server does not end it.
    let (holder, _) = store.hold(&[]);
    let (status, busy) = send(&server, "acquire", &claim("report/42", OWNER, 1500));
    assert_eq!(status, 423, "{busy}");
    assert_eq!(send(&server, "acquire", &claim("report/43", OWNER, 4000)).0, 200);
    std::thread::sleep(Duration::from_millis(1600));
    assert!(store.server.is_held());
    drop(server);
    let mut run = store.command(&["run", "-w", "60s", "report/43", "--", "true"]);
    assert_eq!(support::exit_and_errors(&run.output().unwrap()).0, 0, "the lease ended with the session");
    assert!(store.server.is_held(), "the holder of report/42 has its own session");
    drop(holder);
}
