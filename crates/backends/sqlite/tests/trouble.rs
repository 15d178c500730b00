//! Bad input and bad days: one clear error each, and nothing lost.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, reason = "a test is a program of its own")]

mod common;

use std::{
    fs,
    os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink},
    path::Path,
    time::{Duration, Instant},
};

use common::{Mounted, TTL, check_file, claim, granted, is_privileged, open, resource, shell, try_open};
use leasehold_core::{
    Backend, Effect, Error, ErrorKind, Query, ReleaseRequest, Released, RenewRequest, Renewal, Verdict,
};
use leasehold_sqlite::{Config, Sqlite};
use rusqlite::Connection;

fn refused(path: &Path) -> Error {
    let error = try_open(Config::new(path)).unwrap_err();
    assert_eq!(error.effect(), Effect::None);
    let text = error.to_string();
    assert!(text.contains(path.file_name().unwrap().to_str().unwrap()), "it names the file: {text}");
    assert!(!text.contains('\n'), "it is one line: {text}");
    error
}

#[tokio::test]
async fn directories_are_made_and_nobody_else_may_look() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("a/b/leases.db");
    granted(&open(Config::new(&file)), &claim("x")).await;
    assert_eq!(fs::metadata(file.parent().unwrap()).unwrap().mode() & 0o777, 0o700);
    for suffix in ["", "-wal", "-shm", "-bell"] {
        let path = format!("{}{suffix}", file.display());
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600, "{path}");
    }
}

#[tokio::test]
async fn a_file_made_for_a_group_stays_so() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("leases.db");
    fs::write(&file, "").unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o660)).unwrap();
    granted(&open(Config::new(&file)), &claim("x")).await;
    for suffix in ["", "-wal", "-shm", "-bell"] {
        let path = format!("{}{suffix}", file.display());
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o660, "{path}");
    }
}

#[tokio::test]
async fn a_file_that_is_not_a_database_is_refused_and_left_as_it_is() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("notes.txt");
    let text = "dear diary, ".repeat(1000);
    fs::write(&file, &text).unwrap();
    let error = refused(&file);
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert!(error.to_string().contains("not a SQLite database"), "{error}");
    assert_eq!(fs::read_to_string(&file).unwrap(), text);
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1, "nothing is left beside it");
}

#[tokio::test]
async fn the_database_of_another_program_is_refused_and_left_as_it_is() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("browser.db");
    let other = Connection::open(&file).unwrap();
    other.execute_batch("PRAGMA journal_mode = WAL; CREATE TABLE cookie (jar)").unwrap();
    drop(other);
    let before = fs::read(&file).unwrap();
    let error = refused(&file);
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert!(error.to_string().contains("another program"), "{error}");
    assert_eq!(fs::read(&file).unwrap(), before);
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1, "nothing is left beside it");
}

#[tokio::test]
async fn a_directory_is_no_file_and_a_file_is_no_directory() {
    let directory = tempfile::tempdir().unwrap();
    assert_eq!(refused(directory.path()).kind(), ErrorKind::Invalid);
    let file = directory.path().join("file");
    fs::write(&file, "").unwrap();
    let error = try_open(Config::new(file.join("leases.db"))).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
}

#[tokio::test]
async fn symbolic_links_lead_to_the_same_leases() {
    let directory = tempfile::tempdir().unwrap();
    let (file, link) = (directory.path().join("leases.db"), directory.path().join("link.db"));
    let here = open(Config::new(&file));
    symlink(&file, &link).unwrap();
    let there = open(Config::new(&link));
    granted(&here, &claim("x")).await;
    assert!(matches!(there.acquire(&claim("x")).await.unwrap(), Verdict::Blocked(_)));
    assert!(!directory.path().join("link.db-bell").exists());
}

#[tokio::test]
async fn a_newer_format_is_refused_with_both_versions_named() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("leases.db");
    drop(open(Config::new(&file)));
    Connection::open(&file).unwrap().execute_batch("PRAGMA user_version = 7").unwrap();
    let error = refused(&file);
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("version 7, this one knows 1"), "{error}");
}

/// The next format may add columns and tables; this version goes on beside it, and keeps what it does not know.
#[tokio::test]
async fn this_version_and_the_next_share_a_file() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("leases.db");
    let this = open(Config::new(&file));
    let held = claim("before");
    granted(&this, &held).await;
    let next = Connection::open(&file).unwrap();
    next.execute_batch(
        "BEGIN IMMEDIATE; UPDATE meta SET value = 2 WHERE name = 'format';
         ALTER TABLE seat ADD COLUMN colour TEXT NOT NULL DEFAULT 'blue';
         ALTER TABLE resource ADD COLUMN weather TEXT; CREATE TABLE novelty (value) STRICT; COMMIT;"
            .replace(" STRICT", "")
            .as_str(),
    )
    .unwrap();
    next.execute_batch("UPDATE seat SET colour = 'red'").unwrap();
    let renewed = this.renew(&[RenewRequest::new(held.reference(), TTL * 2)]).await.remove(0).unwrap();
    assert!(matches!(renewed, Renewal::Renewed(_)));
    let colour: String = next.query_row("SELECT colour FROM seat", [], |row| row.get(0)).unwrap();
    assert_eq!(colour, "red");
    granted(&open(Config::new(&file)), &claim("after")).await;
    let format: i64 =
        next.query_row("SELECT value FROM meta WHERE name = 'format'", [], |row| row.get(0)).unwrap();
    assert_eq!(format, 2, "the older one does not claim to have written it");
}

#[tokio::test]
async fn a_directory_that_cannot_be_written_is_denied() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path().join("sealed");
    let (new, old) = (place.join("new.db"), place.join("old.db"));
    let mounted = if is_privileged() {
        let mounted = Mounted::new(&place, "-t tmpfs -o size=4m tmpfs");
        drop(open(Config::new(&old)));
        shell(&format!("mount -o remount,ro '{}'", place.display()));
        Some(mounted)
    } else {
        drop(open(Config::new(&old)));
        fs::set_permissions(&place, fs::Permissions::from_mode(0o500)).unwrap();
        fs::set_permissions(&old, fs::Permissions::from_mode(0o400)).unwrap();
        None
    };
    for path in [&new, &old] {
        let error = refused(path);
        assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    }
    drop(mounted);
}

/// Every verb says so once; then the backend goes on with whatever is at the path.
#[tokio::test]
async fn a_deleted_file_is_told_once_and_made_anew() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("leases.db");
    let backend = open(Config::new(&file));
    let mine = claim("x");
    let before = granted(&backend, &mine).await.token;
    for suffix in ["", "-wal", "-shm", "-bell"] {
        fs::remove_file(format!("{}{suffix}", file.display())).unwrap();
    }
    let error = backend.acquire(&claim("x")).await.unwrap_err();
    assert_eq!((error.kind(), error.effect()), (ErrorKind::Unavailable, Effect::None));
    assert!(error.to_string().contains("deleted or replaced"), "{error}");
    let renewed = backend.renew(&[RenewRequest::new(mine.reference(), TTL)]).await.remove(0).unwrap();
    assert!(matches!(renewed, Renewal::Gone { .. }), "the holder is told: {renewed:?}");
    assert!(granted(&backend, &claim("x")).await.token > before, "tokens go on by the calendar");
    let seen = backend.inspect(&Query::One(resource("x"))).await.unwrap().into_snapshots().remove(0);
    assert_eq!(seen.holder_count, 1);
    check_file(&file);
}

#[tokio::test]
async fn a_file_put_in_its_place_is_noticed() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("leases.db");
    let backend = open(Config::new(&file));
    granted(&backend, &claim("x")).await;
    for suffix in ["", "-wal", "-shm"] {
        let moved = directory.path().join(format!("backup.db{suffix}"));
        fs::rename(format!("{}{suffix}", file.display()), moved).unwrap();
    }
    fs::write(&file, "something else".repeat(100)).unwrap();
    assert_eq!(backend.acquire(&claim("x")).await.unwrap_err().kind(), ErrorKind::Unavailable);
    let error = backend.acquire(&claim("x")).await.unwrap_err();
    assert_eq!((error.kind(), error.effect()), (ErrorKind::Corrupt, Effect::None), "{error}");
    fs::remove_file(&file).unwrap();
    granted(&backend, &claim("x")).await;
}

/// Someone fills the disk: what needs more room is refused without effect, what is held goes on and is given back.
#[tokio::test]
async fn a_full_disk_refuses_new_claims_and_keeps_the_old_ones() {
    if !is_privileged() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let small = Mounted::new(&directory.path().join("small"), "-t tmpfs -o size=16m tmpfs");
    let file = small.0.join("leases.db");
    let backend = open(Config::new(&file));
    let held = claim("held");
    granted(&backend, &held).await;
    for turn in 0..100 {
        let renewed =
            backend.renew(&[RenewRequest::new(held.reference(), TTL + Duration::from_millis(turn))]).await;
        assert!(matches!(renewed[0], Ok(Renewal::Renewed(_))), "{renewed:?}");
    }
    let _ = std::process::Command::new("dd")
        .args(["if=/dev/zero", "bs=4k", &format!("of={}", small.0.join("junk").display())])
        .stderr(std::process::Stdio::null())
        .status();
    for turn in 0..3000 {
        let longer = TTL * 2 + Duration::from_millis(turn);
        let renewed = backend.renew(&[RenewRequest::new(held.reference(), longer)]).await.remove(0);
        assert!(matches!(renewed, Ok(Renewal::Renewed(_))), "{turn}: {renewed:?}");
    }
    let refusal = fill(&backend).await;
    assert_eq!((refusal.kind(), refusal.effect()), (ErrorKind::Unavailable, Effect::None));
    assert!(refusal.to_string().contains("disk is full"), "{refusal}");
    fs::remove_file(small.0.join("junk")).unwrap();
    assert!(matches!(fill_once(&backend).await, Ok(Verdict::Granted(_))));
    assert_eq!(backend.release(&ReleaseRequest::new(held.reference())).await.unwrap(), Released::Now);
    check_file(&file);
    drop(backend);
}

async fn fill_once(backend: &Sqlite) -> Result<Verdict, Error> {
    let mut claim = claim(&format!("filler/{:?}", Instant::now()));
    claim.note = Some(vec![0; 4000].into());
    backend.acquire(&claim).await
}

/// Takes more and more until there is no room.
async fn fill(backend: &Sqlite) -> Error {
    for _ in 0..100_000 {
        if let Err(error) = fill_once(backend).await {
            return error;
        }
    }
    panic!("the disk is not full")
}

/// Another process keeps the write lock: the verb waits its time in another thread, and the runtime goes on.
#[tokio::test]
async fn a_lock_that_is_kept_is_waited_for_and_then_unavailable() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("leases.db");
    let backend = open(Config::new(&file).busy_timeout(Duration::from_millis(200)));
    let mine = claim("x");
    granted(&backend, &mine).await;
    let stranger = Connection::open(&file).unwrap();
    stranger.execute_batch("BEGIN IMMEDIATE").unwrap();

    let begin = Instant::now();
    let ticks = async {
        for _ in 0..10 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        begin.elapsed()
    };
    let other = claim("y");
    let (error, ticked) = tokio::join!(backend.acquire(&other), ticks);
    let error = error.unwrap_err();
    assert_eq!((error.kind(), error.effect()), (ErrorKind::Unavailable, Effect::None), "{error}");
    assert!(begin.elapsed() >= Duration::from_millis(200));
    assert!(ticked < begin.elapsed(), "the runtime was not blocked");
    let seen = backend.inspect(&Query::One(resource("x"))).await.unwrap().into_snapshots().remove(0);
    assert_eq!(seen.holder_count, 1, "looking needs no lock");

    let waiting = backend.acquire(&other);
    let unlock = async {
        tokio::time::sleep(Duration::from_millis(50)).await;
        stranger.execute_batch("COMMIT").unwrap();
    };
    let (verdict, ()) = tokio::join!(waiting, unlock);
    assert!(matches!(verdict.unwrap(), Verdict::Granted(_)));
}

/// A row that makes no sense is named, and hurts nobody else.
#[tokio::test]
async fn a_strange_row_is_corrupt_and_others_go_on() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("leases.db");
    let backend = open(Config::new(&file));
    let (good, bad) = (claim("good"), claim("bad"));
    granted(&backend, &good).await;
    granted(&backend, &bad).await;
    let meddler = Connection::open(&file).unwrap();
    let meddle =
        "UPDATE seat SET token = -5 WHERE resource = (SELECT id FROM resource WHERE key = 'test/bad')";
    meddler.execute_batch(meddle).unwrap();
    let held = [&bad, &good].map(|claim| RenewRequest::new(claim.reference(), TTL));
    let (bad, good) = tokio::join!(backend.renew(&held[..1]), backend.renew(&held[1..]));
    let error = bad.into_iter().next().unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    assert!(error.to_string().starts_with("test/bad: "), "{error}");
    assert!(matches!(good[0], Ok(Renewal::Renewed(_))));
}

#[tokio::test]
async fn dropping_a_verb_part_way_leaves_the_desk_in_order() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("leases.db");
    let backend = open(Config::new(&file).busy_timeout(Duration::from_millis(500)));
    granted(&backend, &claim("x")).await;
    let stranger = Connection::open(&file).unwrap();
    stranger.execute_batch("BEGIN IMMEDIATE").unwrap();
    for number in 0..20 {
        let claim = claim(&number.to_string());
        let dropped = tokio::time::timeout(Duration::from_millis(number % 3), backend.acquire(&claim)).await;
        assert!(dropped.is_err());
    }
    stranger.execute_batch("COMMIT").unwrap();
    granted(&backend, &claim("y")).await;
    check_file(&file);
}

#[tokio::test]
async fn a_long_log_that_was_left_behind_is_written_back_by_the_next_one_to_come() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("leases.db");
    drop(open(Config::new(&file)));
    let left = Connection::open(&file).unwrap();
    left.set_db_config(rusqlite::config::DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true).unwrap();
    left.execute_batch("PRAGMA wal_autocheckpoint = 0").unwrap();
    let why = "x".repeat(9 << 20);
    let record = "INSERT INTO audit (at, resource, command, token, by, why, done) VALUES (1, 'x', 'pause', 0, '', ?1, 1)";
    left.execute(record, [&why]).unwrap();
    drop(left);
    let log = || fs::metadata(directory.path().join("leases.db-wal")).unwrap().len();
    assert!(log() > 9 << 20);
    let one = open(Config::new(&file));
    assert!(log() < 1 << 20, "{}", log());
    granted(&one, &claim("x")).await;
    drop(one);
    check_file(&file);
    let kept: String =
        Connection::open(&file).unwrap().query_row("SELECT why FROM audit", [], |row| row.get(0)).unwrap();
    assert_eq!(kept, why, "nothing is lost");
}
