//! Rows that were changed by hand: a list shows them as unreadable and goes on; a query for one resource fails.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, reason = "a test is a program of its own")]

mod common;

use common::{TTL, claim, granted, open, resource};
use leasehold_core::{
    Backend as _, BackendExt as _, ErrorKind, Listing, OperatorAction, OperatorCommand, Page, Query, Verdict,
};
use leasehold_sqlite::Config;
use rusqlite::Connection;

#[tokio::test]
async fn a_row_that_cannot_be_read_does_not_hide_the_others() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("leases.db");
    let backend = open(Config::new(&file));
    // What is changed by hand, and the column that the message names.
    let damages = [
        ("capacity", "UPDATE resource SET capacity = -1", "resource.capacity holds -1"),
        ("seats", "UPDATE resource SET seats = -2", "resource.seats holds -2"),
        ("last", "UPDATE resource SET last = 9007199254740992", "resource.last holds 9007199254740992"),
        ("token", "UPDATE seat SET token = -5", "seat.token holds -5"),
        ("weight", "UPDATE seat SET weight = 5000000000", "seat.weight holds 5000000000"),
        ("holder", "UPDATE seat SET holder = CAST(x'66ff' AS TEXT)", "seat.holder holds text"),
        ("by", "UPDATE seat SET asked_until = 1, asked_by = CAST(x'ff' AS TEXT)", "seat.asked_by holds text"),
        ("place", "UPDATE place SET weight = -7", "place.weight holds -7"),
        ("waiter", "UPDATE place SET holder = CAST(x'66ff' AS TEXT)", "place.holder holds text"),
    ];
    let others = ["a-good-one", "z-good-one", "renamed", "binary"];
    for name in others.into_iter().chain(damages.map(|(name, ..)| name)) {
        granted(&backend, &claim(name)).await;
        let verdict = backend.acquire_one(&claim(name).queued()).await.unwrap();
        assert!(matches!(verdict, Verdict::Blocked(_)));
    }
    let editor = Connection::open(&file).unwrap();
    for (name, sql, _) in damages {
        let column = if sql.contains("UPDATE resource") { "id" } else { "resource" };
        let key = resource(name).key().to_owned();
        editor
            .execute(&format!("{sql} WHERE {column} = (SELECT id FROM resource WHERE key = ?1)"), [key])
            .unwrap();
    }
    editor
        .execute_batch(
            "UPDATE resource SET key = 'no resource' WHERE key = 'test/renamed';
             UPDATE resource SET key = CAST(x'746573742fff' AS TEXT) WHERE key = 'test/binary'",
        )
        .unwrap();

    let page = backend.inspect(&Query::Resources(Listing::default())).await.unwrap();
    let seen = page.into_snapshots();
    assert_eq!(seen.len(), 2 + damages.len(), "rows without a valid key are left out: {seen:?}");
    for snapshot in &seen {
        let key = snapshot.resource.key();
        let Some((_, _, column)) = damages.iter().find(|(name, ..)| *key == *resource(name).key()) else {
            assert!(snapshot.unreadable.is_none() && snapshot.holder_count == 1, "{snapshot:?}");
            continue;
        };
        let why = snapshot.unreadable.as_deref().unwrap_or_else(|| panic!("{key} is readable: {snapshot:?}"));
        assert!(why.contains(column), "{key}: {why}");
        let error = backend.inspect(&Query::One(snapshot.resource.clone())).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{key}: {error}");
        assert!(error.to_string().contains(column), "{key}: {error}");
    }
    let good = backend.inspect(&Query::One(resource("a-good-one"))).await.unwrap().into_snapshots();
    assert_eq!((good[0].holder_count, good[0].queue_length), (1, 1));
}

#[tokio::test]
async fn an_audit_record_that_cannot_be_read_is_left_out() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("leases.db");
    let backend = open(Config::new(&file));
    for _ in 0..4 {
        let pause = OperatorAction::Pause { lasting: TTL };
        backend.order(&OperatorCommand::new(resource("x"), pause, "ops", "why")).await.unwrap();
    }
    let editor = Connection::open(&file).unwrap();
    editor
        .execute_batch(
            "UPDATE audit SET resource = 'no resource' WHERE sequence = 1;
             UPDATE audit SET by = CAST(x'ff' AS TEXT) WHERE sequence = 2;
             UPDATE audit SET token = -1 WHERE sequence = 3",
        )
        .unwrap();
    let page = backend.inspect(&Query::Audit(Listing::default())).await.unwrap();
    let Page::Audit { records, .. } = page else { panic!("{page:?}") };
    assert_eq!(records.len(), 1, "{records:?}");
}
