//! Batches: many claims, or releases, in one statement (ADR 0040). Each must be answered as if it had come alone.
#![allow(clippy::disallowed_methods, reason = "tests on real servers run in real time")]
#![allow(clippy::unwrap_used, reason = "a test is a program of its own")]

mod common;

use std::{
    collections::BTreeMap,
    sync::{Arc, OnceLock},
    time::{Duration, Instant},
};

use common::{LONG, claim, eventually, granted, in_time, kind_and_effect, open, queued_claim};
use leasehold::{
    Backend, BackendExt as _, Claim, ClientId, Effect, ErrorKind, FencingToken, Memory, OwnerToken,
    ReleaseRequest, Released, RenewRequest, Resource, Result, Share, Verdict,
};
use leasehold_testkit::{
    Proxy,
    proxy::Misdelivery,
    servers::{PgBouncer, PostgresServer},
};
use tokio_postgres::NoTls;

/// One server for all tests. Each has its own schema.
fn shared() -> &'static PostgresServer {
    static SERVER: OnceLock<PostgresServer> = OnceLock::new();
    SERVER.get_or_init(|| PostgresServer::with(&["fsync=off", "track_functions=all", "max_connections=200"]))
}

fn url(schema: &str) -> String {
    format!("{}?schema={schema}", shared().url())
}

fn resource(name: impl std::fmt::Display) -> Resource {
    format!("report/{name}").parse().unwrap()
}

fn claims(names: std::ops::Range<u32>) -> Vec<Claim> {
    names.map(|number| claim(&resource(number), LONG)).collect()
}

fn releases(claims: &[Claim]) -> Vec<ReleaseRequest> {
    claims.iter().map(|claim| ReleaseRequest::new(claim.reference())).collect()
}

fn is_granted(result: &Result<Verdict>) -> bool {
    matches!(result, Ok(Verdict::Granted(_)))
}

/// How many times the functions with these names were called in a schema.
fn calls(schema: &str, names: &str) -> u64 {
    let sql = format!(
        "SELECT coalesce(sum(calls), 0) FROM pg_stat_user_functions WHERE schemaname = '{schema}' AND funcname IN ({names})"
    );
    shared().sql(&sql).parse().unwrap()
}

/// A session of its own, as of a person with psql.
async fn session(schema: &str) -> tokio_postgres::Client {
    let (client, connection) = tokio_postgres::connect(&shared().url(), NoTls).await.unwrap();
    tokio::spawn(connection);
    client.batch_execute(&format!("SET search_path = {schema}")).await.unwrap();
    client
}

/// The sums in the rows of the resources must be those of the seats and places.
fn assert_sums_are_right(schema: &str) {
    let wrong = shared().sql(&format!(
        "SELECT count(*) FROM {schema}.resource r WHERE (seats, held, places) IS DISTINCT FROM (\
         (SELECT count(*) FROM {schema}.seat WHERE resource = r.id), \
         (SELECT coalesce(sum(weight), 0) FROM {schema}.seat WHERE resource = r.id), \
         (SELECT count(*) FROM {schema}.place WHERE resource = r.id)) OR held > capacity"
    ));
    assert_eq!(wrong, "0", "rows of resources with wrong sums");
}

#[tokio::test]
async fn a_batch_of_free_resources_is_one_call_and_one_transaction() {
    let postgres = open(&url("one_call")).await;
    for round in 0..2 {
        let batch = claims(0..32);
        let before = calls("one_call", "'acquire_many', 'release_many'");
        let verdicts = postgres.acquire(&batch).await;
        assert!(verdicts.iter().all(is_granted), "{verdicts:?}");
        let transactions = "SELECT count(DISTINCT xmin::text) || ' ' || count(*) FROM one_call.seat";
        assert_eq!(shared().sql(transactions), "1 32");
        let released = postgres.release(&releases(&batch)).await;
        assert!(released.iter().all(|released| matches!(released, Ok(Released::Now))), "{released:?}");
        let again = postgres.release(&releases(&batch)).await;
        assert!(again.iter().all(|released| matches!(released, Ok(Released::AlreadyGone))), "{again:?}");
        // The server counts with a delay.
        eventually("three calls", || async {
            calls("one_call", "'acquire_many', 'release_many'") == before + 3
        })
        .await;
        assert_eq!(calls("one_call", "'acquire'"), 0, "round {round}: no claim was carried out alone");
    }
    assert_sums_are_right("one_call");
}

#[tokio::test]
async fn tokens_of_batches_and_of_single_claims_grow() {
    let postgres = open(&url("tokens")).await;
    let mut last: BTreeMap<u32, FencingToken> = BTreeMap::new();
    for round in 0..6 {
        let batch = claims(0..8);
        let verdicts = if round % 2 == 0 {
            postgres.acquire(&batch).await
        } else {
            let mut verdicts = Vec::new();
            for claim in &batch {
                verdicts.extend(postgres.acquire(std::slice::from_ref(claim)).await);
            }
            verdicts
        };
        for (number, verdict) in (0..).zip(verdicts) {
            let Ok(Verdict::Granted(grant)) = verdict else { panic!("{verdict:?}") };
            assert!(last.insert(number, grant.token).is_none_or(|before| before < grant.token));
            assert!(grant.remaining > LONG - Duration::from_secs(5) && grant.remaining <= LONG);
        }
        postgres.release(&releases(&batch)).await;
    }
}

#[tokio::test]
async fn a_claim_above_a_floor_gets_a_token_above_it() {
    let postgres = open(&url("floors")).await;
    let mut batch = claims(0..3);
    let far = shared().sql("SELECT floors.clock(clock_timestamp()) + 1000000000");
    let far: FencingToken = far.parse().unwrap();
    batch[1] = batch[1].clone().above(far);
    let verdicts = postgres.acquire(&batch).await;
    let Ok(Verdict::Granted(grant)) = &verdicts[1] else { panic!("{verdicts:?}") };
    assert!(grant.token > far);
}

#[tokio::test]
async fn claims_on_one_resource_are_carried_out_in_their_order() {
    let postgres = open(&url("order_in")).await;
    let pair = Share::new(1, 2).unwrap();
    let mut batch: Vec<Claim> = (0..4).map(|_| queued_claim(&resource("shared"))).collect();
    batch.iter_mut().for_each(|claim| claim.share = pair);
    batch.insert(1, claim(&resource("other"), LONG));
    batch.push(claim(&resource("other"), LONG));
    // Twice: on new rows, and on rows that exist.
    for _ in 0..2 {
        let verdicts = postgres.acquire(&batch).await;
        let [
            Ok(Verdict::Granted(first)),
            Ok(Verdict::Granted(_)),
            Ok(Verdict::Granted(second)),
            third,
            fourth,
            other,
        ] = &verdicts[..]
        else {
            panic!("{verdicts:?}")
        };
        assert!(first.token < second.token);
        for (blocked, ahead) in [(third, 0), (fourth, 1)] {
            let Ok(Verdict::Blocked(blocked)) = blocked else { panic!("{verdicts:?}") };
            assert_eq!((blocked.queued, blocked.ahead, blocked.holders.len()), (true, ahead, 2));
        }
        let Ok(Verdict::Blocked(other)) = other else { panic!("{verdicts:?}") };
        assert_eq!((other.queued, other.holders.len()), (false, 1), "the claim sees the one before it");
        // The same owner twice: the second request returns the same grant.
        let again = postgres.acquire(&[batch[0].clone(), batch[0].clone()]).await;
        for verdict in &again {
            assert!(
                matches!(verdict, Ok(Verdict::Granted(grant)) if grant.token == first.token),
                "{again:?}"
            );
        }
        let mut twice = releases(&batch);
        twice.push(ReleaseRequest::new(batch[0].reference()));
        let released = postgres.release(&twice).await;
        let expected = [true, true, true, true, true, false, false];
        for (released, expected) in released.iter().zip(expected) {
            assert_eq!(matches!(released, Ok(Released::Now)), expected, "{released:?}");
        }
        assert_sums_are_right("order_in");
    }
}

#[tokio::test]
async fn a_locked_row_holds_back_its_own_claim_only() {
    let postgres = open(&url("locked")).await;
    let batch = claims(0..8);
    postgres.acquire(&batch).await;
    postgres.release(&releases(&batch)).await;
    let person = session("locked").await;
    person.batch_execute("BEGIN; SELECT FROM resource WHERE key = 'report/3' FOR UPDATE").await.unwrap();
    let started = Instant::now();
    let verdicts = postgres.acquire(&batch).await;
    assert!(started.elapsed() < Duration::from_secs(2), "{:?}", started.elapsed());
    for (number, verdict) in verdicts.iter().enumerate() {
        match verdict {
            Err(error) if number == 3 => {
                assert_eq!(kind_and_effect(error), (ErrorKind::Unavailable, Effect::None), "{error:?}");
                assert!(error.to_string().contains("report/3"), "{error}");
            }
            other => assert!(is_granted(other), "{number}: {other:?}"),
        }
    }
    // The releases, too: number 3 is not held, and its row cannot be read.
    let released = postgres.release(&releases(&batch)).await;
    for (number, released) in released.iter().enumerate() {
        match released {
            Err(error) => assert_eq!((number, error.effect()), (3, Effect::None), "{error:?}"),
            released => {
                assert!(number != 3 && matches!(released, Ok(Released::Now)), "{number}: {released:?}");
            }
        }
    }
    person.batch_execute("COMMIT").await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_is_carried_out_when_a_short_lock_ends() {
    let postgres = Arc::new(open(&url("short")).await);
    let batch = Arc::new(claims(0..8));
    postgres.acquire(&batch).await;
    let person = session("short").await;
    // A lock of a row, as another client has it, and of a seat, as a renewal has it.
    for lock in [
        "SELECT FROM resource WHERE key = 'report/3' FOR UPDATE",
        "SELECT FROM seat WHERE resource = 3 FOR UPDATE",
    ] {
        // On a loaded machine the lock may last longer than the batch waits for it: then nothing was carried out.
        let mut in_one_call = false;
        for _ in 0..20 {
            postgres.acquire(&batch).await;
            person.batch_execute(&format!("BEGIN; {lock}")).await.unwrap();
            let releasing = tokio::spawn({
                let (postgres, batch) = (Arc::clone(&postgres), Arc::clone(&batch));
                async move { postgres.release(&releases(&batch)).await }
            });
            eventually("seven are released", || async {
                shared().sql("SELECT count(*) FROM short.seat") == "1"
            })
            .await;
            person.batch_execute("COMMIT").await.unwrap();
            let released = in_time("the releases", releasing).await.unwrap();
            in_one_call = released.iter().all(|released| matches!(released, Ok(Released::Now)));
            if in_one_call {
                break;
            }
        }
        assert!(in_one_call, "the release waited for the lock: {lock}");
    }
    assert_sums_are_right("short");
}

#[tokio::test]
async fn a_locked_place_holds_back_its_own_claim_only() {
    let postgres = open(&url("locked_place")).await;
    let holders = claims(0..4);
    postgres.acquire(&holders).await;
    let waiters: Vec<Claim> = (0..4).map(|number| queued_claim(&resource(number))).collect();
    postgres.acquire(&waiters).await;
    let person = session("locked_place").await;
    let lock = "BEGIN; SELECT FROM place WHERE resource = (SELECT id FROM resource WHERE key = 'report/2') FOR UPDATE";
    person.batch_execute(lock).await.unwrap();
    let verdicts = in_time("the verdicts", postgres.acquire(&waiters)).await;
    for (number, verdict) in verdicts.iter().enumerate() {
        match verdict {
            Err(error) => assert_eq!((number, error.effect()), (2, Effect::None), "{error:?}"),
            verdict => {
                assert!(matches!(verdict, Ok(Verdict::Blocked(_))) && number != 2, "{number}: {verdict:?}");
            }
        }
    }
    person.batch_execute("COMMIT").await.unwrap();
}

#[tokio::test]
async fn a_bad_claim_in_the_middle_fails_alone() {
    let server = shared();
    let pool = PgBouncer::start(server, 4);
    let full = Share::new(1, 3).unwrap();
    for (number, url) in [url("bad"), format!("{}?schema=bad", pool.url())].into_iter().enumerate() {
        let config = leasehold_postgres::Config::parse(&url).unwrap().pretend_queue_max(1);
        let postgres = leasehold_postgres::Postgres::connect(config, Arc::new(leasehold::System::current()))
            .await
            .unwrap();
        let name = |part: &str| resource(format!("{part}-{number}"));
        // A full queue, a tombstone, and a row that was damaged by hand.
        granted(&postgres, &claim(&name("full"), LONG)).await;
        common::blocked(&postgres, &queued_claim(&name("full"))).await;
        let cancelled = claim(&name("cancelled"), LONG);
        let cancel = ReleaseRequest::new(cancelled.reference()).with_tombstone(LONG);
        postgres.release(&[cancel]).await.remove(0).unwrap();
        let mut other_capacity = claim(&name("mismatch"), LONG);
        granted(&postgres, &claim(&name("mismatch"), LONG)).await;
        other_capacity.share = full;
        let absurd = FencingToken::new(FencingToken::LIMIT - 2).unwrap();
        let mut batch = vec![
            claim(&name("first"), LONG),
            claim(&name("floor"), LONG).above(absurd),
            queued_claim(&name("full")),
            cancelled,
            claim(&name("note"), LONG).with_note(vec![0; 5000]),
            other_capacity,
            claim(&name("last"), LONG),
        ];
        let verdicts = postgres.acquire(&batch).await;
        let kinds = |index: usize| verdicts[index].as_ref().map_err(kind_and_effect);
        assert!(is_granted(&verdicts[0]) && is_granted(&verdicts[6]), "{verdicts:?}");
        assert_eq!(kinds(1).unwrap_err(), (ErrorKind::Invalid, Effect::None));
        assert_eq!(kinds(2).unwrap_err(), (ErrorKind::Limit, Effect::None));
        assert!(matches!(verdicts[3], Ok(Verdict::Cancelled)), "{verdicts:?}");
        assert_eq!(kinds(4).unwrap_err(), (ErrorKind::Limit, Effect::None));
        assert!(matches!(verdicts[5], Ok(Verdict::Mismatch { capacity: 1 })), "{verdicts:?}");
        let own = |index: usize| verdicts[index].as_ref().unwrap_err().to_string();
        assert!(own(1).contains("report/floor") && own(2).contains("report/full"), "{verdicts:?}");

        // A damaged row: a seat that the row of the resource does not count. Its claim fails with an error of the database.
        let damaged = claim(&name("damaged"), LONG);
        granted(&postgres, &damaged).await;
        server
            .sql(&format!("UPDATE bad.resource SET seats = 0, held = 0 WHERE key = '{}'", damaged.resource));
        batch = vec![claim(&name("before"), LONG), damaged, claim(&name("after"), LONG)];
        let verdicts = postgres.acquire(&batch).await;
        assert!(is_granted(&verdicts[0]) && is_granted(&verdicts[2]), "{verdicts:?}");
        let error = verdicts[1].as_ref().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error:?}");
    }
}

#[tokio::test]
async fn a_reply_that_names_other_requests_is_not_believed() {
    let server = shared();
    for (schema, shift) in [
        // Each claim gets the row of the next one.
        ("shifted", "number % cardinality(keys) + 1, key, owner"),
        // The right numbers, and the rows of other claims.
        ("renamed", "number, keys[number % cardinality(keys) + 1], owner"),
        ("other_owner", "number, key, owners[number % cardinality(keys) + 1]"),
    ] {
        let postgres = open(&format!("{}&connections=1", url(schema))).await;
        let batch = claims(0..4);
        assert!(postgres.acquire(&batch).await.iter().all(is_granted));
        let rest = "said, token, remaining, capacity, placed, ahead, changes_in, paused, version, held_for, turns, evicting, \
                    kept, holder, note, asked_for, asked_by, asked_why, why";
        let types = "keys text[], owners bytea[], a bigint[], b bigint[], c bigint[], d bigint[], e boolean[], f bigint[], \
                     g bytea[], h text[], i text, j bigint, k bigint[], l integer";
        server.sql(&format!(
            "ALTER FUNCTION {schema}.acquire_many RENAME TO right_acquire; \
             CREATE FUNCTION {schema}.acquire_many({types}) RETURNS SETOF {schema}.numbered_verdict LANGUAGE sql AS $$ \
             SELECT {shift}, {rest} FROM {schema}.right_acquire(keys, owners, a, b, c, d, e, f, g, h, i, j, k, l) $$"
        ));
        let sessions = format!(
            "SELECT string_agg(pid::text, ' ') FROM pg_stat_activity WHERE query LIKE '%{schema}.acquire_many%' \
             AND application_name = 'leasehold'"
        );
        for result in postgres.acquire(&batch).await {
            let error = result.unwrap_err();
            assert_eq!(kind_and_effect(&error), (ErrorKind::Unavailable, Effect::Unknown), "{error:?}");
        }
        eventually("the connection is closed", || async { server.sql(&sessions).is_empty() }).await;
        server.sql(&format!(
            "DROP FUNCTION {schema}.acquire_many; ALTER FUNCTION {schema}.right_acquire RENAME TO acquire_many"
        ));
        let verdicts = postgres.acquire(&batch).await;
        assert!(verdicts.iter().all(is_granted), "the same grants: {verdicts:?}");
    }
}

#[tokio::test]
async fn a_release_that_names_other_requests_is_not_believed() {
    let (server, schema) = (shared(), "released_other");
    let postgres = open(&url(schema)).await;
    let batch = claims(0..4);
    assert!(postgres.acquire(&batch).await.iter().all(is_granted));
    server.sql(&format!(
        "ALTER FUNCTION {schema}.release_many RENAME TO right_release; \
         CREATE FUNCTION {schema}.release_many(a text[], b bytea[], c bigint[], d bigint[]) \
         RETURNS SETOF {schema}.numbered_release LANGUAGE sql AS \
         $$ SELECT * FROM {schema}.right_release(a, b, c, d) WHERE number <> 3 $$"
    ));
    for result in postgres.release(&releases(&batch)).await {
        let error = result.unwrap_err();
        assert_eq!(kind_and_effect(&error), (ErrorKind::Unavailable, Effect::Unknown), "{error:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_misdelivered_reply_to_a_batch_is_not_believed() {
    let server = shared();
    let proxy = Proxy::start(server.port(), 40).await;
    let url = format!(
        "postgres://postgres@127.0.0.1:{}/postgres?schema=stale&timeout=500ms&connections=1",
        proxy.port()
    );
    let (through, direct) = (open(&url).await, open(&self::url("stale")).await);
    for how in [Misdelivery::Repeat, Misdelivery::Stale] {
        let (held, free) = (claims(0..4), claims(10..14));
        assert!(direct.acquire(&held).await.iter().all(is_granted));
        if how == Misdelivery::Repeat {
            proxy.misdeliver(how, 1);
        }
        let _ = through.acquire(&free).await;
        if how == Misdelivery::Stale {
            proxy.misdeliver(how, 1);
        }
        // The reply to the batch of free resources must not be taken for the reply to this one.
        let rivals = claims(0..4);
        for verdict in through.acquire(&rivals).await {
            match verdict {
                Ok(Verdict::Blocked(_)) => {}
                Err(error) => assert_eq!(error.effect(), Effect::Unknown, "{error:?}"),
                Ok(other) => panic!("{how:?}: {other:?}"),
            }
        }
        proxy.heal();
        direct.release(&releases(&held)).await;
        eventually("the handle works again", || async {
            through.release(&releases(&free)).await.iter().all(Result::is_ok)
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_that_is_dropped_does_no_harm() {
    let pool = PgBouncer::start(shared(), 4);
    for (schema, url) in [
        ("dropped_batch", url("dropped_batch")),
        ("dropped_pool", format!("{}?schema=dropped_pool&connections=2", pool.url())),
    ] {
        let postgres = Arc::new(open(&url).await);
        for round in 0..30 {
            let batch = claims(0..16);
            let asking = tokio::spawn({
                let (postgres, batch) = (Arc::clone(&postgres), batch.clone());
                async move { postgres.acquire(&batch).await }
            });
            tokio::time::sleep(Duration::from_micros(150 * round)).await;
            asking.abort();
            drop(asking.await);
            // The effect is unknown: a release with a tombstone ends each claim, whenever it was executed.
            let cancels: Vec<ReleaseRequest> = batch
                .iter()
                .map(|claim| ReleaseRequest::new(claim.reference()).with_tombstone(LONG))
                .collect();
            for released in in_time("the releases", postgres.release(&cancels)).await {
                released.unwrap();
            }
            for verdict in postgres.acquire(&batch).await {
                assert!(matches!(verdict, Ok(Verdict::Cancelled)), "{verdict:?}");
            }
        }
        eventually("nobody holds", || async {
            shared().sql(&format!("SELECT count(*) FROM {schema}.seat")) == "0"
        })
        .await;
        assert!(postgres.acquire(&claims(0..16)).await.iter().all(is_granted));
        assert_sums_are_right(schema);
    }
}

/// The part of a verdict that must be the same on every backend.
fn summary(verdict: &Result<Verdict>) -> String {
    match verdict {
        Ok(Verdict::Granted(_)) => "granted".to_owned(),
        Ok(Verdict::Blocked(blocked)) => {
            format!("blocked {} {} {}", blocked.queued, blocked.ahead, blocked.holders.len())
        }
        other => format!("{other:?}"),
    }
}

/// Numbers that look random and are the same in every run (ADR 0032).
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.0 >> 33).unwrap() % limit
    }
}

async fn compare_with_the_model(url: &str) {
    let (postgres, model) = (open(url).await, Memory::new());
    let mut numbers = Numbers(42);
    let owners: Vec<OwnerToken> = (0..12).map(|_| common::owner()).collect();
    let shares = [Share::WHOLE, Share::new(1, 3).unwrap(), Share::new(2, 3).unwrap()];
    for round in 0..250 {
        let size = 1 + numbers.below(10);
        if numbers.below(5) < 3 {
            let batch: Vec<Claim> = (0..size)
                .map(|_| {
                    let number = numbers.below(6);
                    let mut claim = queued_claim(&resource(number));
                    claim.owner = owners[numbers.below(owners.len())];
                    // Mostly the same capacity for a resource.
                    claim.share = if number < 3 { shares[0] } else { shares[1 + numbers.below(2)] };
                    if numbers.below(12) == 0 {
                        claim.share = shares[numbers.below(3)];
                    }
                    if numbers.below(3) == 0 {
                        claim.when_blocked = leasehold::WhenBlocked::Leave;
                    }
                    claim
                })
                .collect();
            let (ours, expected) = (postgres.acquire(&batch).await, model.acquire(&batch).await);
            let ours: Vec<String> = ours.iter().map(summary).collect();
            let expected: Vec<String> = expected.iter().map(summary).collect();
            assert_eq!(ours, expected, "round {round}");
        } else {
            let batch: Vec<ReleaseRequest> = (0..size)
                .map(|_| {
                    let claim = claim(&resource(numbers.below(6)), LONG);
                    let mut request = ReleaseRequest::new(claim.reference());
                    request.owner = owners[numbers.below(owners.len())];
                    match numbers.below(20) {
                        0 => request.with_tombstone(LONG),
                        _ => request,
                    }
                })
                .collect();
            let (ours, expected) = (postgres.release(&batch).await, model.release(&batch).await);
            assert_eq!(format!("{ours:?}"), format!("{expected:?}"), "round {round}");
        }
    }
}

#[tokio::test]
async fn batches_are_answered_as_by_the_model() {
    compare_with_the_model(&url("compared")).await;
    assert_sums_are_right("compared");
}

#[tokio::test]
async fn batches_are_answered_as_by_the_model_behind_a_pool() {
    let pool = PgBouncer::start(shared(), 4);
    compare_with_the_model(&format!("{}?schema=compared_pool", pool.url())).await;
    assert_sums_are_right("compared_pool");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn batches_beside_renewals_and_single_claims_do_not_deadlock() {
    const LASTING: Duration = Duration::from_secs(5);
    let server = PostgresServer::with(&[
        "fsync=off",
        "deadlock_timeout=50ms",
        "log_lock_waits=on",
        "max_connections=200",
    ]);
    let resources: Arc<Vec<Resource>> = Arc::new((0..24).map(resource).collect());
    let mut tasks = Vec::new();
    for task in 0..12_u64 {
        let (resources, url) = (Arc::clone(&resources), server.url());
        tasks.push(tokio::spawn(async move {
            // Several clients, as several processes would be.
            let postgres = open(&format!("{url}?connections=2")).await;
            let (mut numbers, mut ours, started) = (Numbers(task), Vec::<Claim>::new(), Instant::now());
            let mut granted = 0;
            while started.elapsed() < LASTING {
                let size = 2 + numbers.below(16);
                let mut batch: Vec<Claim> = (0..size)
                    .map(|_| {
                        // Some resources are new, so that rows are inserted and swept.
                        let number = numbers.below(resources.len() + 2);
                        let fresh = numbers.below(10_000);
                        let resource = resources
                            .get(number)
                            .cloned()
                            .unwrap_or_else(|| resource(format!("new-{fresh}")));
                        let mut claim = queued_claim(&resource);
                        // Some places expire, and some are passed over: they last longer than a waiter may take to answer.
                        claim.place_ttl = Duration::from_millis([300, 3_000][numbers.below(2)]);
                        claim.ttl = Duration::from_secs(1);
                        claim.client = ClientId::from_number(task + 1);
                        if numbers.below(2) == 0 {
                            claim.when_blocked = leasehold::WhenBlocked::Leave;
                        }
                        claim
                    })
                    .collect();
                batch.extend(ours.iter().take(8).cloned());
                if task % 4 == 3 {
                    batch.truncate(1);
                }
                for verdict in postgres.acquire(&batch).await {
                    match verdict {
                        Ok(verdict) => granted += usize::from(matches!(verdict, Verdict::Granted(_))),
                        Err(error) => assert_eq!(error.effect(), Effect::None, "{error:?}"),
                    }
                }
                ours.extend(batch);
                let renewed: Vec<RenewRequest> = (0..ours.len().min(24))
                    .map(|_| {
                        let claim = &ours[numbers.below(ours.len())];
                        let request = RenewRequest::new(claim.reference(), Duration::from_secs(1));
                        if numbers.below(4) == 0 { request.with_note(*b"x") } else { request }
                    })
                    .collect();
                for renewal in postgres.renew(&renewed).await {
                    renewal.unwrap();
                }
                let ended: Vec<Claim> =
                    (0..ours.len() / 2).map(|_| ours.swap_remove(numbers.below(ours.len()))).collect();
                if !ended.is_empty() {
                    for released in postgres.release(&releases(&ended)).await {
                        if let Err(error) = released {
                            assert_eq!(error.effect(), Effect::None, "{error:?}");
                        }
                    }
                }
            }
            granted
        }));
    }
    let mut all = 0;
    for task in tasks {
        all += in_time("a task", task).await.unwrap();
    }
    assert!(all > 100, "{all} grants");
    let deadlocks = server.sql("SELECT deadlocks FROM pg_stat_database WHERE datname = 'postgres'");
    let log = std::fs::read_to_string(server.folder().join("log")).unwrap_or_default();
    assert_eq!(deadlocks, "0", "deadlocks: {log}");
    let two_holders = "SELECT count(*) FROM leasehold.resource r WHERE held > capacity OR (seats, held) IS DISTINCT FROM (\
                       (SELECT count(*) FROM leasehold.seat WHERE resource = r.id), \
                       (SELECT coalesce(sum(weight), 0) FROM leasehold.seat WHERE resource = r.id))";
    assert_eq!(server.sql(two_holders), "0");
}

#[tokio::test]
async fn a_batch_does_not_wait_for_a_place_that_it_calls() {
    let schema = "called";
    let postgres = open(&url(schema)).await;
    let held = claims(0..2);
    assert!(postgres.acquire(&held).await.iter().all(is_granted));
    let next = queued_claim(&held[0].resource);
    common::blocked(&postgres, &next).await;
    let other = session(schema).await;
    other.batch_execute("BEGIN; SELECT FROM place FOR UPDATE").await.unwrap();
    let released = in_time("the releases", postgres.release(&releases(&held))).await;
    assert!(released.iter().all(|released| matches!(released, Ok(Released::Now))), "{released:?}");
    let is_called = || shared().sql(&format!("SELECT called_at IS NOT NULL FROM {schema}.place"));
    assert_eq!(is_called(), "f", "another session has locked the place");
    other.batch_execute("ROLLBACK").await.unwrap();
    // Any later verb calls it, such as one of a claim that does not queue.
    let verdict = postgres.acquire_one(&claim(&held[0].resource, LONG)).await.unwrap();
    assert!(matches!(verdict, Verdict::Blocked(_)), "{verdict:?}");
    assert_eq!(is_called(), "t");
    assert_sums_are_right(schema);
}

/// Makes the next batches of a schema wait, after their statement has taken its snapshot, until the gate is open.
fn close_gate(schema: &str) {
    shared().sql(&format!(
        "CREATE TABLE {schema}.gate (open boolean); \
         CREATE OR REPLACE FUNCTION {schema}.is_free(r {schema}.resource, moment timestamptz) RETURNS boolean \
         LANGUAGE plpgsql VOLATILE AS $$ BEGIN \
             FOR turn IN 1 .. 3000 LOOP \
                 EXIT WHEN EXISTS (SELECT FROM {schema}.gate); \
                 PERFORM pg_sleep(0.01); \
             END LOOP; \
             RETURN r.seats = 0 AND r.places = 0; \
         END $$"
    ));
}

/// SKIP LOCKED waits all the same if it finds an updated row at the wrong moment, and another transaction has locked the newer
/// version. That a third one has a weak lock on the older version makes it the wrong moment every time. ADR 0067.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_does_not_wait_for_the_newer_version_of_a_row() {
    let schema = "newer_version";
    let postgres = Arc::new(open(&url(schema)).await);
    let batch = claims(0..6);
    assert!(postgres.acquire(&batch).await.iter().all(is_granted));
    postgres.release(&releases(&batch)).await;
    close_gate(schema);
    let (reader, locker) = (session(schema).await, session(schema).await);
    let row = "SELECT FROM resource WHERE key = 'report/3'";
    reader.batch_execute(&format!("BEGIN; {row} FOR KEY SHARE")).await.unwrap();
    let asking = tokio::spawn({
        let (postgres, batch) = (Arc::clone(&postgres), batch.clone());
        async move { postgres.acquire(&batch).await }
    });
    let at_gate = format!(
        "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep' AND query LIKE '%{schema}.acquire_many%'"
    );
    eventually("the batch is at the gate", || async { shared().sql(&at_gate) == "1" }).await;
    shared().sql(&format!("UPDATE {schema}.resource SET seen = seen WHERE key = 'report/3'"));
    locker.batch_execute(&format!("BEGIN; {row} FOR NO KEY UPDATE")).await.unwrap();
    shared().sql(&format!("INSERT INTO {schema}.gate VALUES (true)"));
    let verdicts = in_time("the verdicts", asking).await.unwrap();
    for (number, verdict) in verdicts.iter().enumerate() {
        match verdict {
            Err(error) => assert_eq!((number, error.effect()), (3, Effect::None), "{verdicts:?}"),
            verdict => assert!(is_granted(verdict) && number != 3, "{verdicts:?}"),
        }
    }
    for session in [reader, locker] {
        session.batch_execute("COMMIT").await.unwrap();
    }
    assert_sums_are_right(schema);
}

/// A renewal with a note writes the row of its resource. It must not write one that it has not locked: another claim may be granted
/// between its reading and its writing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_renewal_does_not_write_a_resource_that_appeared_meanwhile() {
    const RENEWED_TTL: Duration = Duration::from_micros(12_345_678);
    let schema = "appeared";
    let renewer = open(&url(schema)).await;
    // Requests of a client share a connection, and would wait behind the renewal.
    let postgres = Arc::new(open(&url(schema)).await);
    // Stops the renewal after it has locked what it found, and before it writes.
    shared().sql(&format!(
        "CREATE TABLE {schema}.gate (open boolean); \
         CREATE OR REPLACE FUNCTION {schema}.span(micros bigint) RETURNS interval LANGUAGE plpgsql VOLATILE AS $$ BEGIN \
             FOR turn IN 1 .. CASE WHEN micros = {} THEN 3000 ELSE 0 END LOOP \
                 EXIT WHEN EXISTS (SELECT FROM {schema}.gate); \
                 PERFORM pg_sleep(0.01); \
             END LOOP; \
             RETURN micros * interval '1 microsecond'; \
         END $$",
        RENEWED_TTL.as_micros()
    ));
    let count = |wait: &str, function: &str| {
        let activity = "SELECT count(*) FROM pg_stat_activity WHERE state = 'active'";
        shared().sql(&format!("{activity} AND {wait} AND query LIKE '%{schema}.{function}(%'"))
    };
    let [first, second, third] = [(); 3].map(|()| claim(&resource(1), LONG));
    let renewal = RenewRequest::new(first.reference(), RENEWED_TTL).with_note(*b"x");
    let renewing = tokio::spawn(async move { renewer.renew(&[renewal]).await });
    let at_gate = || async { count("wait_event = 'PgSleep'", "renew") == "1" };
    eventually("the renewal is at the gate", at_gate).await;

    granted(&*postgres, &second).await;
    postgres.release_one(&ReleaseRequest::new(second.reference())).await.unwrap();
    let locker = session(schema).await;
    locker.batch_execute("BEGIN; SELECT FROM resource FOR NO KEY UPDATE").await.unwrap();
    let acquiring = tokio::spawn({
        let (postgres, third) = (Arc::clone(&postgres), third.clone());
        async move { postgres.acquire_one(&third).await }
    });
    let waits = || async { count("wait_event_type = 'Lock'", "acquire") == "1" };
    eventually("the claim waits for the row", waits).await;
    shared().sql(&format!("INSERT INTO {schema}.gate VALUES (true)"));
    let is_through = || async { renewing.is_finished() || count("wait_event_type = 'Lock'", "renew") == "1" };
    eventually("the renewal has read the row", is_through).await;
    locker.batch_execute("COMMIT").await.unwrap();

    assert!(is_granted(&in_time("the claim", acquiring).await.unwrap()));
    in_time("the renewal", renewing).await.unwrap();
    assert_sums_are_right(schema);
    let verdict = postgres.acquire_one(&claim(&resource(1), LONG)).await.unwrap();
    assert!(matches!(verdict, Verdict::Blocked(_)), "{verdict:?}");
}
