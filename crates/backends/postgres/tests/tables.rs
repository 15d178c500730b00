//! The tables: they do not grow without bound, and no verb reads more rows the longer the queue is.
#![allow(clippy::disallowed_methods, reason = "tests on real servers run in real time")]
#![allow(clippy::unwrap_used, reason = "a test is a program of its own")]

mod common;

use common::{LONG, blocked, claim, granted, open, queued_claim, release, report};
use leasehold::{BackendExt as _, Claim, FencingToken, ReleaseRequest, Resource};
use leasehold_testkit::servers::PostgresServer;
use tokio_postgres::{Client, NoTls};

fn resource(number: u32) -> Resource {
    format!("report/{number}").parse().unwrap()
}

#[tokio::test]
async fn idle_resources_are_deleted_and_their_tokens_are_not_repeated() {
    let server = PostgresServer::start();
    let postgres = open(&server.url()).await;
    // One hour less than the furthest that a floor may be ahead of the clock.
    let lead = i64::try_from(FencingToken::FLOOR_LEAD_MAX).unwrap() - 3_600_000_000;
    let far = server.sql(&format!("SELECT leasehold.clock(clock_timestamp()) + {lead}"));
    let ahead = claim(&"ahead/1".parse().unwrap(), LONG).above(far.parse().unwrap());
    granted(&postgres, &ahead).await;
    release(&postgres, &ahead).await;
    for number in 0..60 {
        let ours = claim(&resource(number), LONG);
        granted(&postgres, &ours).await;
        match number {
            // Number 0 keeps its holder and number 1 has a tombstone: neither is idle.
            0 => {}
            1 => {
                let request = ReleaseRequest::new(ours.reference()).with_tombstone(LONG * 100);
                postgres.release_one(&request).await.unwrap();
            }
            _ => drop(release(&postgres, &ours).await),
        }
    }
    server.sql(
        "UPDATE leasehold.resource SET seen = seen - interval '2 hours', \
         last = CASE WHEN key LIKE 'ahead/%' THEN last ELSE last - 7200 * 1000000::bigint END; \
         UPDATE leasehold.seat SET ends = clock_timestamp() + interval '1 hour'",
    );
    let top: i64 =
        server.sql("SELECT max(last) FROM leasehold.resource WHERE key LIKE 'report/%'").parse().unwrap();
    let left = || server.sql("SELECT count(*) FROM leasehold.resource WHERE key LIKE 'report/%'");
    for number in 0..400 {
        let ours = claim(&format!("new/{number}").parse().unwrap(), LONG);
        granted(&postgres, &ours).await;
        if number % 20 == 0 && left() == "2" {
            break;
        }
    }
    assert_eq!(left(), "2", "all idle resources are deleted");
    let there = "SELECT string_agg(key, ' ' ORDER BY key) FROM leasehold.resource WHERE key !~ '^new/'";
    assert_eq!(
        server.sql(there),
        "ahead/1 report/0 report/1",
        "a resource with a token ahead of the clock is not deleted"
    );
    let forgotten: i64 =
        server.sql("SELECT value FROM leasehold.meta WHERE name = 'forgotten'").parse().unwrap();
    assert!(forgotten >= top, "{forgotten} {top}");
    assert_eq!(server.sql("SELECT count(*) FROM leasehold.grave"), "1");
    // Even if the clock went back, a new row begins above the tokens of deleted rows.
    server.sql("UPDATE leasehold.meta SET value = 9000000000000000 WHERE name = 'forgotten'");
    let again = granted(&postgres, &claim(&resource(30), LONG)).await;
    assert!(again.token.get() > 9_000_000_000_000_000);
}

async fn raw(server: &PostgresServer) -> Client {
    let (client, connection) = tokio_postgres::connect(&server.url(), NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

/// Rows that the statements of one transaction read or wrote, in all tables.
async fn rows_touched(client: &mut Client, statements: &[String]) -> i64 {
    const TOUCHED: &str = "SELECT sum(coalesce(seq_tup_read, 0) + coalesce(idx_tup_fetch, 0) + n_tup_ins + n_tup_upd + \
                           n_tup_del)::bigint FROM pg_stat_xact_user_tables WHERE schemaname = 'leasehold'";
    let transaction = client.transaction().await.unwrap();
    let before: i64 = transaction.query_one(TOUCHED, &[]).await.unwrap().get(0);
    for statement in statements {
        transaction.batch_execute(statement).await.unwrap();
    }
    let after: i64 = transaction.query_one(TOUCHED, &[]).await.unwrap().get(0);
    transaction.commit().await.unwrap();
    after - before
}

fn bytes(claim: &Claim) -> String {
    format!("'\\x{}'", claim.owner.reveal())
}

/// Statements for a release, a claim at the head of the queue, a new claim, a claim that does not queue, a wait and a renewal.
fn release_and_requests(holder: &Claim, next: &Claim, late: &Claim) -> Vec<String> {
    let ask = |claim: &Claim, queues: bool| {
        let owner = bytes(claim);
        format!(
            "SELECT leasehold.acquire('report/42', {owner}, 1, 1, 90000000, 90000000, {queues}, NULL, -1, 0, NULL, '1@h', '', \
             1000000)"
        )
    };
    vec![
        format!("SELECT leasehold.release('report/42', {}, -1, 0)", bytes(holder)),
        ask(next, true),
        ask(late, true),
        ask(&queued_claim(&report()), false),
        format!("SELECT leasehold.watch('report/42', {}, 1, 90000000, '')", bytes(late)),
        format!(
            "SELECT leasehold.renew(ARRAY['report/42'], ARRAY[{}::bytea], ARRAY[90000000], ARRAY[NULL::bytea])",
            bytes(late)
        ),
    ]
}

#[tokio::test]
async fn a_release_touches_as_many_rows_with_a_long_queue_as_with_a_short_one() {
    let server = PostgresServer::start();
    let postgres = open(&server.url()).await;
    // The worst case: this session plans its statements while the tables are empty.
    let mut client = raw(&server).await;
    let mut holder = claim(&report(), LONG);
    granted(&postgres, &holder).await;
    let mut queue = std::collections::VecDeque::new();
    let mut costs = Vec::new();
    for length in [1, 1, 1, 1, 1, 1, 1, 100, 1500] {
        while queue.len() < length {
            let next = queued_claim(&report());
            blocked(&postgres, &next).await;
            queue.push_back(next);
        }
        let (next, late): (Claim, Claim) = (queue.pop_front().unwrap(), queued_claim(&report()));
        costs.push(rows_touched(&mut client, &release_and_requests(&holder, &next, &late)).await);
        holder = next;
        queue.push_back(late);
    }
    let (short, long) = (costs[7], costs[8]);
    assert!(long <= short + 10 && short < 400, "rows for a release and the requests after it: {costs:?}");
}

#[tokio::test]
async fn silent_places_at_the_head_of_the_queue_are_not_read() {
    let server = PostgresServer::start();
    let postgres = open(&server.url()).await;
    let mut client = raw(&server).await;
    let mut holder = claim(&report(), LONG);
    granted(&postgres, &holder).await;
    let mut costs = Vec::new();
    for silent in [1, 1000] {
        for _ in 0..silent {
            blocked(&postgres, &queued_claim(&report())).await;
        }
        server.sql("UPDATE leasehold.place SET silent = true");
        let (next, late) = (queued_claim(&report()), queued_claim(&report()));
        assert_eq!(blocked(&postgres, &next).await.ahead, 0, "silent places are not ahead");
        costs.push(rows_touched(&mut client, &release_and_requests(&holder, &next, &late)).await);
        holder = next;
    }
    assert!(costs[1] <= costs[0] + 10, "rows for a release and the requests after it: {costs:?}");
    assert_eq!(server.sql("SELECT count(*) FROM leasehold.place WHERE silent"), "1002");
}
