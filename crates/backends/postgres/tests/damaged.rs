//! Rows that were changed by hand: a list shows them as unreadable and goes on; a query for one resource fails.
#![allow(clippy::disallowed_methods, reason = "tests on real servers run in real time")]
#![allow(clippy::unwrap_used, reason = "a test is a program of its own")]

mod common;

use common::{LONG, blocked, claim, granted, open, queued_claim};
use leasehold::{
    Backend as _, ErrorKind, Listing, OperatorAction, OperatorCommand, Page, Query, Resource, Snapshot,
};
use leasehold_postgres::Postgres;
use leasehold_testkit::servers::PostgresServer;

async fn list(postgres: &Postgres) -> Vec<Snapshot> {
    postgres.inspect(&Query::Resources(Listing::default())).await.unwrap().into_snapshots()
}

#[tokio::test]
async fn a_row_that_cannot_be_read_does_not_hide_the_others() {
    let server = PostgresServer::start();
    let postgres = open(&server.url()).await;
    // What is changed by hand, and the column that the message names.
    let damages = [
        ("capacity", "UPDATE leasehold.resource SET capacity = -1", "resource.capacity holds -1"),
        (
            "last",
            "UPDATE leasehold.resource SET last = 9007199254740992",
            "resource.last holds 9007199254740992",
        ),
        ("token", "UPDATE leasehold.seat SET token = -5", "seat.token holds -5"),
        ("weight", "UPDATE leasehold.seat SET weight = 5000000000", "seat.weight holds 5000000000"),
        ("turns", "UPDATE leasehold.seat SET turns = -2", "seat.turns holds -2"),
        ("place", "UPDATE leasehold.place SET weight = -7", "place.weight holds -7"),
        ("ends", "UPDATE leasehold.seat SET ends = 'infinity'", "resource, seat or place"),
    ];
    let resource = |name: &str| -> Resource { format!("report/{name}").parse().unwrap() };
    for name in ["a-good-one", "z-good-one", "renamed"].into_iter().chain(damages.map(|(name, ..)| name)) {
        granted(&postgres, &claim(&resource(name), LONG)).await;
        blocked(&postgres, &queued_claim(&resource(name))).await;
    }
    for (name, sql, _) in damages {
        let id = format!("(SELECT id FROM leasehold.resource WHERE key = 'report/{name}')");
        let column = if sql.contains("leasehold.resource") { "id" } else { "resource" };
        server.sql(&format!("{sql} WHERE {column} = {id}"));
    }
    server.sql("UPDATE leasehold.resource SET key = 'no resource' WHERE key = 'report/renamed'");

    let seen = list(&postgres).await;
    assert_eq!(seen.len(), 2 + damages.len(), "the row without a valid key is left out: {seen:?}");
    for snapshot in &seen {
        let key = snapshot.resource.key();
        let Some((_, _, column)) = damages.iter().find(|(name, ..)| key == format!("report/{name}")) else {
            assert!(snapshot.unreadable.is_none() && snapshot.holder_count == 1, "{snapshot:?}");
            continue;
        };
        let why = snapshot.unreadable.as_deref().unwrap_or_else(|| panic!("{key} is readable: {snapshot:?}"));
        assert!(why.contains(column), "{key}: {why}");
        let error = postgres.inspect(&Query::One(snapshot.resource.clone())).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{key}: {error}");
    }
    let good = postgres.inspect(&Query::One(resource("a-good-one"))).await.unwrap().into_snapshots();
    assert_eq!((good[0].holder_count, good[0].queue_length), (1, 1));
}

#[tokio::test]
async fn an_audit_record_that_cannot_be_read_is_left_out() {
    let server = PostgresServer::start();
    let postgres = open(&server.url()).await;
    let resource: Resource = "report/42".parse().unwrap();
    for _ in 0..3 {
        let pause = OperatorAction::Pause { lasting: LONG };
        let command = OperatorCommand::new(resource.clone(), pause, "ops", "why");
        postgres.order(&command).await.unwrap();
    }
    server.sql("UPDATE leasehold.audit SET resource = 'no resource' WHERE sequence = 2");
    server.sql("UPDATE leasehold.audit SET at = 'infinity' WHERE sequence = 1");
    let page = postgres.inspect(&Query::Audit(Listing::default())).await.unwrap();
    let Page::Audit { records, .. } = page else { panic!("{page:?}") };
    assert_eq!(records.len(), 2, "{records:?}");
}
