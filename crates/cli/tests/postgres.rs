//! The same program on another store, a real PostgreSQL: what is different there, and what is not.
#![allow(clippy::unwrap_used, reason = "a test is a program of its own")]

mod support;

use leasehold_testkit::servers::PostgresServer;
use support::{Site, Store, said as text};

fn store() -> Store<PostgresServer> {
    Store::on(PostgresServer::start(), PostgresServer::url)
}

#[test]
fn a_run_passes_on_what_it_holds_and_how_it_ended_and_operators_look_and_order() {
    let store = store();
    let script = "echo $LEASEHOLD_RESOURCE $LEASEHOLD_TOKEN; exit 7";
    let output = store.output(&["run", "report/42", "--", "sh", "-c", script]);
    assert_eq!(output.status.code(), Some(7), "{}", text(&output.stderr));
    let said = text(&output.stdout);
    let token = said.trim().strip_prefix("report/42 ").unwrap();
    assert_eq!(store.server.sql("SELECT last FROM leasehold.resource"), token);
    assert_eq!(store.server.sql("SELECT count(*) FROM leasehold.seat"), "0", "given back");

    let output = store.output(&["pause", "report/42", "--for", "1m", "--reason", "a test"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let output = store.output(&["run", "-n", "report/42", "--", "true"]);
    assert_eq!(output.status.code(), Some(75), "{}", text(&output.stderr));
    let output = store.output(&["audit"]);
    assert!(text(&output.stdout).contains("a test"), "{}", text(&output.stdout));
}

#[test]
fn a_store_that_cannot_be_used_is_one_clear_line() {
    let store = store();
    store.server.sql("CREATE ROLE guest LOGIN");
    let port = store.server.port();
    let table = [
        (format!("postgres://guest@127.0.0.1:{port}/postgres"), 78, "leasehold schema postgres"),
        (format!("postgres://postgres@127.0.0.1:{port}/nowhere"), 78, "nowhere"),
        ("postgres://nobody@127.0.0.1:1/x".to_owned(), 69, "connect"),
        ("postgres://host/x".to_owned(), 78, "name the user"),
    ];
    for (url, code, word) in table {
        let output = store.site.leasehold().args(["--store", &url, "run", "x/1", "true"]).output().unwrap();
        let errors = text(&output.stderr);
        assert_eq!((output.status.code(), errors.lines().count()), (Some(code), 1), "{errors}");
        assert!(errors.contains(word), "{errors}");
    }
}

#[test]
fn the_schema_is_printed_without_a_server_and_can_be_executed() {
    let site = Site::new();
    let output = site.leasehold().args(["schema", "postgres", "--schema", "locks"]).output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    let server = PostgresServer::start();
    server.sql(&text(&output.stdout));
    assert_eq!(server.sql("SELECT value FROM locks.meta WHERE name = 'format'"), "1");
    let output = site.leasehold().args(["schema", "postgres", "--schema", "x y"]).output().unwrap();
    assert_eq!(output.status.code(), Some(64));
}
