//! Two releases on one database: this one, and the previous one, whose functions have revision 1.
//!
//! `releases/revision_1.sql` is the output of `leasehold schema postgres` of the previous release. The statements here are
//! those that it sent.
#![allow(clippy::disallowed_methods, reason = "tests on real servers run in real time")]
#![allow(clippy::unwrap_used, reason = "a test is a program of its own")]

mod common;

use common::{LONG, blocked, claim, granted, open, owner, release, renew, report};
use leasehold::{
    Backend as _, CommandOutcome, Listing, OperatorAction, OperatorCommand, Page, Query, ReleaseRequest,
    Released, Renewal, Verdict,
};
use leasehold_testkit::servers::PostgresServer;
use tokio_postgres::{
    Client, NoTls, Row,
    types::{ToSql, Type},
};

const REVISION_1: &str = include_str!("releases/revision_1.sql");
/// The revision of the functions in this release.
const CURRENT: &str = "6";

type Parameters<'a> = &'a [(&'a (dyn ToSql + Sync), Type)];

/// A client of the previous release.
struct PreviousClient(Client);

impl PreviousClient {
    async fn connect(server: &PostgresServer) -> PreviousClient {
        let (client, connection) = tokio_postgres::connect(&server.url(), NoTls).await.unwrap();
        tokio::spawn(connection);
        PreviousClient(client)
    }

    async fn query(&self, sql: &str, parameters: Parameters<'_>) -> Vec<Row> {
        self.0.query_typed(sql, parameters).await.unwrap()
    }

    /// The verdict and the token.
    async fn acquire(&self, owner: &[u8], queues: bool) -> (String, Option<i64>) {
        let none: Option<&[u8]> = None;
        let sql =
            "SELECT * FROM leasehold.acquire($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14)";
        let rows = self
            .query(
                sql,
                &[
                    (&"report/42", Type::TEXT),
                    (&owner, Type::BYTEA),
                    (&1i64, Type::INT8),
                    (&1i64, Type::INT8),
                    (&90_000_000i64, Type::INT8),
                    (&90_000_000i64, Type::INT8),
                    (&queues, Type::BOOL),
                    (&none, Type::BYTEA),
                    (&-1i64, Type::INT8),
                    (&0i64, Type::INT8),
                    (&none, Type::BYTEA),
                    (&"1@host", Type::TEXT),
                    (&"", Type::TEXT),
                    (&1_000_000i64, Type::INT8),
                ],
            )
            .await;
        assert_eq!(rows[0].len(), 18, "columns are read by their number");
        (rows[0].get(0), rows[0].get(1))
    }

    async fn release(&self, owner: &[u8]) -> bool {
        let parameters: Parameters<'_> =
            &[(&"report/42", Type::TEXT), (&owner, Type::BYTEA), (&-1i64, Type::INT8), (&0i64, Type::INT8)];
        self.query("SELECT leasehold.release($1, $2, $3, $4)", parameters).await[0].get(0)
    }

    async fn renew(&self, owner: &[u8]) -> String {
        let none: Option<Vec<u8>> = None;
        let parameters: Parameters<'_> = &[
            (&vec!["report/42"], Type::TEXT_ARRAY),
            (&vec![owner], Type::BYTEA_ARRAY),
            (&vec![90_000_000i64], Type::INT8_ARRAY),
            (&vec![none], Type::BYTEA_ARRAY),
        ];
        let rows = self.query("SELECT * FROM leasehold.renew($1, $2, $3, $4)", parameters).await;
        assert_eq!(rows[0].len(), 8, "columns are read by their number");
        rows[0].get(1)
    }

    async fn watch(&self, owner: &[u8]) -> i64 {
        let parameters: Parameters<'_> = &[
            (&"report/42", Type::TEXT),
            (&owner, Type::BYTEA),
            (&1i64, Type::INT8),
            (&90_000_000i64, Type::INT8),
            (&"", Type::TEXT),
        ];
        self.query("SELECT leasehold.watch($1, $2, $3, $4, $5)", parameters).await[0].get(0)
    }

    async fn resume(&self) -> bool {
        let parameters: Parameters<'_> = &[
            (&"report/42", Type::TEXT),
            (&0i64, Type::INT8),
            (&"ops", Type::TEXT),
            (&"why", Type::TEXT),
            (&"resume", Type::TEXT),
            (&0i64, Type::INT8),
        ];
        self.query("SELECT * FROM leasehold.command($1, $2, $3, $4, $5, $6)", parameters).await[0].get(0)
    }
}

fn revision(server: &PostgresServer) -> String {
    server.sql("SELECT value FROM leasehold.meta WHERE name = 'revision'")
}

#[tokio::test]
async fn both_releases_use_one_database_at_the_same_time() {
    let server = PostgresServer::start();
    server.sql(REVISION_1);
    let previous = PreviousClient::connect(&server).await;
    let (theirs, later) = (owner().to_bytes(), owner().to_bytes());
    let (said, first) = previous.acquire(&theirs, false).await;
    assert_eq!(said, "granted");
    assert_eq!(revision(&server), "1");

    // The newer client replaces the functions and sees the existing holder.
    let postgres = open(&server.url()).await;
    assert_eq!(revision(&server), CURRENT);
    let ours = common::queued_claim(&report());
    let there = blocked(&postgres, &ours).await;
    assert_eq!(there.holders[0].token.as_i64(), first.unwrap());
    // The older client does not write the ttl.
    assert_eq!((there.holders[0].holder.to_string().as_str(), there.holders[0].ttl), ("1@host", None));

    // The older client goes on, on the same session.
    assert_eq!(previous.renew(&theirs).await, "kept");
    assert_eq!(previous.acquire(&theirs, false).await, ("granted".to_owned(), first), "the same grant");
    assert_eq!(previous.acquire(&later, true).await.0, "blocked");
    assert_eq!(previous.watch(&later).await, 0, "it has a place");
    assert!(previous.resume().await);
    assert!(previous.release(&theirs).await);
    let grant = granted(&postgres, &ours).await;
    assert!(grant.token.as_i64() > first.unwrap());
    assert_eq!(previous.acquire(&later, true).await.0, "blocked");
    assert_eq!(release(&postgres, &ours).await, Released::Now);
    let (said, last) = previous.acquire(&later, true).await;
    assert_eq!(said, "granted");
    assert!(last.unwrap() > grant.token.as_i64());
}

#[tokio::test]
async fn an_update_does_not_wait_for_a_table_that_is_in_use_for_long() {
    let server = PostgresServer::start();
    server.sql(REVISION_1);
    let previous = PreviousClient::connect(&server).await;
    let (theirs, later) = (owner().to_bytes(), owner().to_bytes());
    assert_eq!(previous.acquire(&theirs, false).await.0, "granted");
    assert_eq!(previous.acquire(&later, true).await.0, "blocked");
    let other = PreviousClient::connect(&server).await;
    other.0.batch_execute("BEGIN; SELECT FROM leasehold.place FOR UPDATE").await.unwrap();
    let postgres = open(&server.url()).await;
    assert_eq!(revision(&server), "1");
    assert!(!postgres.info().capabilities.passes_over);
    let ours = common::queued_claim(&report());
    blocked(&postgres, &ours).await;
    other.0.batch_execute("ROLLBACK").await.unwrap();

    // The next client adds the columns. The places in the queue stay.
    let postgres = open(&server.url()).await;
    assert_eq!(revision(&server), CURRENT);
    assert!(postgres.info().capabilities.passes_over);
    assert!(previous.release(&theirs).await);
    let state = "SELECT string_agg(CASE WHEN silent THEN 'silent' WHEN called_at IS NOT NULL THEN 'called' ELSE 'waits' END, \
                 ' ' ORDER BY arrival) FROM leasehold.place";
    assert_eq!(server.sql(state), "called waits");
    assert_eq!(previous.renew(&later).await, "queued");
    assert_eq!(previous.acquire(&later, true).await.0, "granted");
}

#[tokio::test]
async fn this_release_works_with_the_functions_of_the_previous_one_if_it_may_not_replace_them() {
    let server = PostgresServer::start();
    server.sql(REVISION_1);
    server.sql(
        "CREATE ROLE guest LOGIN; GRANT USAGE ON SCHEMA leasehold TO guest; \
         GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA leasehold TO guest",
    );
    let postgres = open(&format!("postgres://guest@127.0.0.1:{}/postgres", server.port())).await;
    assert_eq!(revision(&server), "1");
    assert!(!postgres.info().capabilities.passes_over);
    let (ours, theirs) = (claim(&report(), LONG), common::queued_claim(&report()));
    let grant = granted(&postgres, &ours).await;
    assert!(matches!(renew(&postgres, ours.reference(), LONG).await, Renewal::Renewed(_)));
    let cursor = blocked(&postgres, &theirs).await.cursor;
    assert_eq!(release(&postgres, &ours).await, Released::Now);
    postgres.wait(&theirs.reference(), &cursor, LONG).await.unwrap();
    assert!(granted(&postgres, &theirs).await.token > grant.token);
    let resume = OperatorCommand::new(report(), OperatorAction::Resume, "ops", "why");
    assert_eq!(postgres.order(&resume).await.unwrap(), CommandOutcome::Done);
    assert_eq!(postgres.inspect(&Query::One(report())).await.unwrap().into_snapshots()[0].holder_count, 1);
    let listing = || Listing::default();
    assert_eq!(postgres.inspect(&Query::Resources(listing())).await.unwrap().into_snapshots().len(), 1);
    let Page::Audit { records, .. } = postgres.inspect(&Query::Audit(listing())).await.unwrap() else {
        panic!("expected a page of the audit trail")
    };
    assert_eq!(records.len(), 1);
    // The previous functions have no batches: several claims in one call are sent one by one.
    let both = [claim(&"report/a".parse().unwrap(), LONG), claim(&"report/b".parse().unwrap(), LONG)];
    let verdicts = postgres.acquire(&both).await;
    assert!(verdicts.iter().all(|verdict| matches!(verdict, Ok(Verdict::Granted(_)))), "{verdicts:?}");
    let requests = both.map(|claim| ReleaseRequest::new(claim.reference()));
    let released = postgres.release(&requests).await;
    assert!(released.iter().all(|released| matches!(released, Ok(Released::Now))), "{released:?}");
}
