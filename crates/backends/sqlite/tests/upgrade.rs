//! A file of format 1, which knows nothing of silent claims: it is upgraded when it is opened, and older programs
//! go on using it.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, reason = "a test is a program of its own")]

mod common;

use std::{path::Path, sync::Arc, time::Duration};

use common::{TTL, check_file, claim, granted, open, resource};
use leasehold::{System, testing::ManualTime};
use leasehold_core::{
    Backend, BackendExt as _, Claim, Clock as _, Query, ReleaseRequest, RenewRequest, Renewal, Verdict,
    admission::ANSWER_WITHIN,
};
use leasehold_sqlite::{Config, Sqlite};
use rusqlite::Connection;

/// The file as the older version created it.
fn create_format_1(file: &Path, boot: &str) -> Connection {
    let older = Connection::open(file).unwrap();
    let tables = include_str!("format_1.sql");
    older
        .execute_batch(&format!(
            "PRAGMA journal_mode = WAL; BEGIN IMMEDIATE; {tables} PRAGMA application_id = 1818583411;
             PRAGMA user_version = 1; INSERT INTO meta (name, value) VALUES ('format', 1), ('boot', '{boot}'); COMMIT;"
        ))
        .unwrap();
    older
}

/// Writes what the older version writes when this claim holds the resource and that one waits.
fn hold_and_wait(older: &Connection, now: i64, held: &Claim, queued: &Claim) {
    let (ends, key) = (now + i64::try_from(TTL.as_nanos()).unwrap(), held.resource.key());
    older
        .execute(
            "INSERT INTO resource (key, capacity, held, seats, places, graves, settle_at, paused_until, paused_for,
                paused_wall, last, floor, version, watched_until)
             VALUES (?1, 1, 1, 1, 1, 0, ?2, 0, 0, 0, 5, 0, ?3, 0)",
            (key, ends, now),
        )
        .unwrap();
    let id = older.last_insert_rowid();
    older
        .execute(
            "INSERT INTO seat (resource, owner, ends, token, weight, since, turns, holder, note)
             VALUES (?1, ?2, ?3, 5, 1, ?4, 0, '1@host test', NULL)",
            (id, held.owner.to_bytes(), ends, now),
        )
        .unwrap();
    insert_place(older, id, 0, ends, queued);
}

fn insert_place(older: &Connection, id: i64, arrival: i64, ends: i64, claim: &Claim) {
    older
        .execute(
            "INSERT INTO place (resource, arrival, owner, ends, weight, since, holder)
             VALUES (?1, ?2, ?3, ?4, 1, 0, '1@host test')",
            (id, arrival, claim.owner.to_bytes(), ends),
        )
        .unwrap();
}

fn format(file: &Connection) -> i64 {
    file.query_row("SELECT value FROM meta WHERE name = 'format'", [], |row| row.get(0)).unwrap()
}

async fn is_granted(backend: &Sqlite, claim: &Claim) -> bool {
    matches!(backend.acquire_one(claim).await.unwrap(), Verdict::Granted(_))
}

#[tokio::test]
async fn the_leases_and_the_queue_of_an_older_file_go_on() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("leases.db");
    let time = ManualTime::new();
    let now = i64::try_from(time.now().as_nanos()).unwrap();
    let (held, queued, next) = (claim("door"), claim("door").queued(), claim("door").queued());
    let older = create_format_1(&file, "one");
    hold_and_wait(&older, now, &held, &queued);

    let backend = Sqlite::open(Config::new(&file).pretend_boot("one"), Arc::new(time.clone())).unwrap();
    assert_eq!(format(&older), 2);
    let renewed = backend.renew(&[RenewRequest::new(held.reference(), TTL)]).await.remove(0).unwrap();
    assert!(matches!(renewed, Renewal::Renewed(renewed) if renewed.token.get() == 5));
    let seen = backend.inspect(&Query::One(resource("door"))).await.unwrap().into_snapshots().remove(0);
    assert_eq!((seen.queue_length, seen.queue[0].silent), (1, false));
    // The older version does not write the ttl.
    let holder = &seen.holders[0];
    assert_eq!((holder.holder.to_string().as_str(), holder.ttl), ("1@host test", None));
    assert_eq!(seen.queue[0].holder.to_string(), "1@host test");
    assert!(!is_granted(&backend, &next).await);
    backend.release_one(&ReleaseRequest::new(held.reference())).await.unwrap();
    assert!(!is_granted(&backend, &next).await, "the older claim is ahead");
    assert!(is_granted(&backend, &queued).await);
    check_file(&file);
}

/// An older program does not say when its claims were heard, so they are not passed over.
#[tokio::test]
async fn a_waiter_of_an_older_program_is_not_passed_over() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("leases.db");
    let time = ManualTime::new();
    let backend = Sqlite::open(Config::new(&file), Arc::new(time.clone())).unwrap();
    let (held, queued, next) = (claim("door"), claim("door"), claim("door").queued());
    granted(&backend, &held).await;
    let older = Connection::open(&file).unwrap();
    let ends = i64::try_from((time.now().after(Duration::from_secs(6))).as_nanos()).unwrap();
    insert_place(&older, 1, 0, ends, &queued);
    older.execute("UPDATE resource SET places = 1, settle_at = min(settle_at, ?1)", [ends]).unwrap();
    assert!(!is_granted(&backend, &next).await);
    backend.release_one(&ReleaseRequest::new(held.reference())).await.unwrap();
    for _ in 0..3 {
        time.advance(ANSWER_WITHIN).await;
        assert!(!is_granted(&backend, &next).await, "it may be alive");
    }
    check_file(&file);
    time.advance(ANSWER_WITHIN * 3).await;
    assert!(is_granted(&backend, &next).await, "its place has expired");
    check_file(&file);
}

/// The older version has the file open while it is upgraded, and its statements still work.
#[tokio::test]
async fn an_older_program_goes_on_using_an_upgraded_file() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("leases.db");
    let older = create_format_1(&file, "one");
    let mut head = older
        .prepare(
            "SELECT arrival, weight, owner, ends FROM place WHERE resource = ?1 ORDER BY arrival LIMIT 64",
        )
        .unwrap();
    assert_eq!(head.query([1]).unwrap().next().unwrap().map(|_| ()), None);
    let backend = open(Config::new(&file).pretend_boot("one"));
    let (held, first, second) = (claim("door"), claim("door").queued(), claim("door").queued());
    granted(&backend, &held).await;
    assert!(!is_granted(&backend, &first).await && !is_granted(&backend, &second).await);
    assert!(head.query([1]).unwrap().next().unwrap().is_some());
    // The older version removes a place, and writes the row of the resource without the columns that it does not know.
    older.execute("DELETE FROM place WHERE owner = ?1", [first.owner.to_bytes()]).unwrap();
    older.execute("UPDATE resource SET places = 1, version = version + 1 WHERE id = 1", []).unwrap();
    backend.release_one(&ReleaseRequest::new(held.reference())).await.unwrap();
    assert!(is_granted(&backend, &second).await);
    let version: i64 = older.query_row("PRAGMA user_version", [], |row| row.get(0)).unwrap();
    assert_eq!(version, 1, "the header allows older programs to open the file");
    check_file(&file);
}

#[tokio::test]
async fn many_processes_upgrade_a_file_at_once() {
    for _ in 0..10 {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("leases.db");
        drop(create_format_1(&file, "one"));
        let openers: Vec<_> = (0..8)
            .map(|_| {
                let (config, environment) =
                    (Config::new(&file).pretend_boot("one"), Arc::new(System::current()));
                std::thread::spawn(move || Sqlite::open(config, environment).unwrap())
            })
            .collect();
        let opened: Vec<Sqlite> = openers.into_iter().map(|opener| opener.join().unwrap()).collect();
        granted(&opened[0], &claim("door")).await;
        assert!(!is_granted(&opened[7], &claim("door")).await);
        check_file(&file);
    }
}

/// A file that was upgraded has the same tables as a new one.
#[tokio::test]
async fn an_upgraded_file_has_the_tables_of_a_new_one() {
    let directory = tempfile::tempdir().unwrap();
    let (new, old) = (directory.path().join("new.db"), directory.path().join("old.db"));
    drop(create_format_1(&old, "one"));
    let [new, old] = [new, old].map(|file| {
        drop(open(Config::new(&file).pretend_boot("one")));
        let file = Connection::open(&file).unwrap();
        let columns = "SELECT m.name || '.' || c.name || ' ' || c.type || ' ' || c.\"notnull\" || ' ' ||
                coalesce(c.dflt_value, '-') || ' ' || c.pk
            FROM sqlite_schema m JOIN pragma_table_info(m.name) c WHERE m.type = 'table'
            UNION ALL SELECT sql FROM sqlite_schema WHERE type = 'index' AND sql IS NOT NULL ORDER BY 1";
        let mut statement = file.prepare(columns).unwrap();
        let rows = statement.query_map([], |row| row.get::<_, String>(0)).unwrap();
        rows.map(Result::unwrap).collect::<Vec<_>>()
    });
    assert!(new.len() > 50, "{new:?}");
    assert_eq!(new, old);
}
