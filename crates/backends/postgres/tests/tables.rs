//! The tables themselves: they do not grow without bound, and no verb reads more of them the longer the line is.
#![allow(clippy::disallowed_methods, reason = "tests on real servers run in real time")]
#![allow(clippy::unwrap_used, reason = "a test is a program of its own")]

mod common;

use common::{LONG, blocked, claim, granted, open, release, report, waiting};
use leasehold::{Backend as _, Claim, FencingToken, ReleaseRequest, Resource};
use leasehold_testkit::servers::PostgresServer;
use tokio_postgres::{Client, NoTls};

fn resource(number: u32) -> Resource {
    format!("report/{number}").parse().unwrap()
}

#[tokio::test]
async fn idle_resources_are_forgotten_and_their_tokens_are_not_repeated() {
    let server = PostgresServer::start();
    let postgres = open(&server.url()).await;
    // As far ahead of the clock as a floor may be, but for an hour.
    let lead = i64::try_from(FencingToken::FLOOR_LEAD_MAX).unwrap() - 3_600_000_000;
    let far = server.sql(&format!("SELECT leasehold.clock(clock_timestamp()) + {lead}"));
    let ahead = claim(&"ahead/1".parse().unwrap(), LONG).above(far.parse().unwrap());
    granted(&postgres, &ahead).await;
    release(&postgres, &ahead).await;
    for number in 0..60 {
        let ours = claim(&resource(number), LONG);
        granted(&postgres, &ours).await;
        match number {
            // Someone is there, someone waits for a tombstone to end, an operator paused it: none of these is idle.
            0 => {}
            1 => {
                let request = ReleaseRequest::new(ours.reference()).with_tombstone(LONG * 100);
                postgres.release(&request).await.unwrap();
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
    assert_eq!(left(), "2", "all that are idle are gone");
    let there = "SELECT string_agg(key, ' ' ORDER BY key) FROM leasehold.resource WHERE key !~ '^new/'";
    assert_eq!(
        server.sql(there),
        "ahead/1 report/0 report/1",
        "a token ahead of the clock is never forgotten"
    );
    let forgotten: i64 =
        server.sql("SELECT value FROM leasehold.meta WHERE name = 'forgotten'").parse().unwrap();
    assert!(forgotten >= top, "{forgotten} {top}");
    assert_eq!(server.sql("SELECT count(*) FROM leasehold.grave"), "1");
    // Even if the clock went back, a new row begins above what was forgotten.
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

/// Gives it up, and has the next one, a newcomer, one in a hurry, a waiting one and a renewal ask.
fn hand_over(holder: &Claim, next: &Claim, late: &Claim) -> Vec<String> {
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
        ask(&waiting(&report()), false),
        format!("SELECT leasehold.watch('report/42', {}, 1, 90000000, '')", bytes(late)),
        format!(
            "SELECT leasehold.renew(ARRAY['report/42'], ARRAY[{}::bytea], ARRAY[90000000], ARRAY[NULL::bytea])",
            bytes(late)
        ),
    ]
}

#[tokio::test]
async fn a_hand_over_touches_as_many_rows_behind_a_long_line_as_behind_a_short_one() {
    let server = PostgresServer::start();
    let postgres = open(&server.url()).await;
    // A session that has planned its statements while the tables were empty is the worst case.
    let mut client = raw(&server).await;
    let mut holder = claim(&report(), LONG);
    granted(&postgres, &holder).await;
    let mut line = std::collections::VecDeque::new();
    let mut costs = Vec::new();
    for length in [1, 1, 1, 1, 1, 1, 1, 100, 1500] {
        while line.len() < length {
            let next = waiting(&report());
            blocked(&postgres, &next).await;
            line.push_back(next);
        }
        let (next, late): (Claim, Claim) = (line.pop_front().unwrap(), waiting(&report()));
        costs.push(rows_touched(&mut client, &hand_over(&holder, &next, &late)).await);
        holder = next;
        line.push_back(late);
    }
    let (short, long) = (costs[7], costs[8]);
    assert!(long <= short + 10 && short < 400, "rows for a hand-over and those who ask: {costs:?}");
}
