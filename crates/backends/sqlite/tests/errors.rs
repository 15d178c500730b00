//! Wrong input and failures of the disk or of other processes: one clear error each, and nothing is lost.
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
    Backend, BackendExt as _, Effect, Error, ErrorKind, Query, ReleaseRequest, Released, RenewRequest,
    Renewal, Verdict,
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
async fn the_files_are_for_their_owner_alone() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("leases.db");
    granted(&open(Config::new(&file)), &claim("x")).await;
    for suffix in ["", "-wal", "-shm", "-bell"] {
        let path = format!("{}{suffix}", file.display());
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600, "{path}");
    }
}

#[tokio::test]
async fn no_directory_is_created() {
    let directory = tempfile::tempdir().unwrap();
    let error = refused(&directory.path().join("a/b/leases.db"));
    assert_eq!(error.kind(), ErrorKind::Invalid);
    let folder = directory.path().join("a/b").display().to_string();
    assert!(error.to_string().contains(&format!("there is no directory {folder}")), "{error}");
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
}

#[tokio::test]
async fn a_store_that_must_exist_is_not_created() {
    let directory = tempfile::tempdir().unwrap();
    let count = || fs::read_dir(directory.path()).unwrap().count();
    for name in ["leases.db", "a/leases.db"] {
        let file = directory.path().join(name);
        let error = try_open(Config::new(&file).must_exist()).unwrap_err();
        let text = format!("there is no store at {}; nothing was ever leased there", file.display());
        assert_eq!((error.kind(), error.to_string()), (ErrorKind::Invalid, text));
        assert_eq!(count(), 0, "nothing was created");
    }
    // An empty file is no store either.
    let file = directory.path().join("leases.db");
    fs::write(&file, "").unwrap();
    let error = try_open(Config::new(&file).must_exist()).unwrap_err();
    assert!(error.to_string().starts_with("there is no store at "), "{error}");
    assert_eq!((count(), fs::metadata(&file).unwrap().len()), (1, 0));

    let held = claim("x");
    granted(&open(Config::new(&file)), &held).await;
    let reader = open(Config::new(&file).must_exist());
    let page = reader.inspect(&Query::One(held.resource)).await.unwrap();
    assert_eq!(page.into_snapshots()[0].holder_count, 1);
    // Nor is it created anew when it is deleted while it is open.
    shell(&format!("rm {}/*", directory.path().display()));
    for _ in 0..2 {
        reader.acquire_one(&claim("y")).await.unwrap_err();
    }
    assert!(!file.exists());
}

/// Runs in a thread, because a program that opens a FIFO may wait for ever.
fn refused_in_time(file: &Path) -> String {
    let (sender, reply) = std::sync::mpsc::channel();
    let config = Config::new(file);
    let runtime = tokio::runtime::Handle::current();
    std::thread::spawn(move || {
        let _entered = runtime.enter();
        sender.send(try_open(config).map(drop))
    });
    let error = reply.recv_timeout(Duration::from_secs(60)).expect("the file is opened without waiting");
    let error = error.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    error.to_string()
}

#[tokio::test(flavor = "multi_thread")]
async fn something_else_in_place_of_a_file_is_named_and_nothing_waits_for_it() {
    let shell_command = |command: &'static str| move |path: &str| shell(&format!("{command} {path}"));
    let socket = |path: &str| drop(std::os::unix::net::UnixListener::bind(path).unwrap());
    type Maker<'a> = &'a dyn Fn(&str);
    let table: [(&str, Maker<'_>); 4] = [
        ("a FIFO", &shell_command("mkfifo")),
        ("a directory", &shell_command("mkdir")),
        ("a device", &shell_command("ln -s /dev/null")),
        ("a socket", &socket),
    ];
    for (name, make) in table {
        for suffix in ["", "-bell"] {
            let directory = tempfile::tempdir().unwrap();
            let file = directory.path().join("leases.db");
            let odd = format!("{}{suffix}", file.display());
            make(&odd);
            let text = refused_in_time(&file);
            assert!(text.contains(&format!("{odd}: is {name}")), "{text}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fifo_that_replaces_the_change_file_does_not_stop_the_store() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("leases.db");
    let backend = std::sync::Arc::new(open(Config::new(&file)));
    let bell = format!("{}-bell", file.display());
    shell(&format!("rm {bell} && mkfifo {bell}"));
    // A waiter of another client, so that a signal is sent.
    let holder = claim("x");
    granted(&backend, &holder).await;
    let mut waiter = claim("x");
    waiter.when_blocked = leasehold_core::WhenBlocked::Queue;
    assert!(matches!(backend.acquire_one(&waiter).await.unwrap(), Verdict::Blocked(_)));
    let released = tokio::spawn({
        let (backend, request) = (backend.clone(), ReleaseRequest::new(holder.reference()));
        async move { backend.release(&[request]).await.remove(0).unwrap() }
    });
    let released = tokio::time::timeout(Duration::from_secs(60), released).await.unwrap().unwrap();
    assert!(matches!(released, Released::Now));
    granted(&backend, &waiter).await;
}

#[tokio::test]
async fn the_files_beside_the_database_have_its_permissions() {
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
    let text = "some other text, ".repeat(1000);
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
async fn a_path_that_is_not_that_of_a_file_is_refused() {
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
    assert!(matches!(there.acquire_one(&claim("x")).await.unwrap(), Verdict::Blocked(_)));
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
    assert!(error.to_string().contains("version 7, this one knows 2"), "{error}");
}

/// A later format may add columns and tables. This version keeps working with the file, and leaves those
/// alone.
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
    assert_eq!(format, 2, "the older version does not change the format");
}

#[tokio::test]
async fn a_directory_that_cannot_be_written_is_denied() {
    let directory = tempfile::tempdir().unwrap();
    let sealed = directory.path().join("sealed");
    let (new, old) = (sealed.join("new.db"), sealed.join("old.db"));
    let mounted = if is_privileged() {
        let mounted = Mounted::new(&sealed, "-t tmpfs -o size=4m tmpfs");
        drop(open(Config::new(&old)));
        shell(&format!("mount -o remount,ro '{}'", sealed.display()));
        Some(mounted)
    } else {
        drop(open(Config::new(&old)));
        fs::set_permissions(&sealed, fs::Permissions::from_mode(0o500)).unwrap();
        fs::set_permissions(&old, fs::Permissions::from_mode(0o400)).unwrap();
        None
    };
    for path in [&new, &old] {
        let error = refused(path);
        assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    }
    drop(mounted);
}

/// One request fails; then the backend opens the file that is at the path now.
#[tokio::test]
async fn a_deleted_file_is_reported_once_and_created_again() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("leases.db");
    let backend = open(Config::new(&file));
    let mine = claim("x");
    let before = granted(&backend, &mine).await.token;
    for suffix in ["", "-wal", "-shm", "-bell"] {
        fs::remove_file(format!("{}{suffix}", file.display())).unwrap();
    }
    let error = backend.acquire_one(&claim("x")).await.unwrap_err();
    assert_eq!((error.kind(), error.effect()), (ErrorKind::Unavailable, Effect::None));
    assert!(error.to_string().contains("deleted or replaced"), "{error}");
    let renewed = backend.renew(&[RenewRequest::new(mine.reference(), TTL)]).await.remove(0).unwrap();
    assert!(matches!(renewed, Renewal::Gone { .. }), "the holder learns that its lease is gone: {renewed:?}");
    assert!(granted(&backend, &claim("x")).await.token > before, "tokens still grow, by the wall clock");
    let seen = backend.inspect(&Query::One(resource("x"))).await.unwrap().into_snapshots().remove(0);
    assert_eq!(seen.holder_count, 1);
    check_file(&file);
}

#[tokio::test]
async fn another_file_at_the_same_path_is_noticed() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("leases.db");
    let backend = open(Config::new(&file));
    granted(&backend, &claim("x")).await;
    for suffix in ["", "-wal", "-shm"] {
        let moved = directory.path().join(format!("backup.db{suffix}"));
        fs::rename(format!("{}{suffix}", file.display()), moved).unwrap();
    }
    fs::write(&file, "something else".repeat(100)).unwrap();
    assert_eq!(backend.acquire_one(&claim("x")).await.unwrap_err().kind(), ErrorKind::Unavailable);
    let error = backend.acquire_one(&claim("x")).await.unwrap_err();
    assert_eq!((error.kind(), error.effect()), (ErrorKind::Corrupt, Effect::None), "{error}");
    fs::remove_file(&file).unwrap();
    granted(&backend, &claim("x")).await;
}

/// On a full disk, a claim that needs more space is refused without effect. A lease that is held can be
/// renewed and released.
#[tokio::test]
async fn a_full_disk_refuses_new_claims_and_keeps_those_that_hold() {
    if !is_privileged() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let small = Mounted::new(&directory.path().join("small"), "-t tmpfs -o size=16m tmpfs");
    let file = small.0.join("leases.db");
    let backend = open(Config::new(&file));
    let held = claim("held");
    granted(&backend, &held).await;
    for round in 0..100 {
        let renewed =
            backend.renew(&[RenewRequest::new(held.reference(), TTL + Duration::from_millis(round))]).await;
        assert!(matches!(renewed[0], Ok(Renewal::Renewed(_))), "{renewed:?}");
    }
    let _ = std::process::Command::new("dd")
        .args(["if=/dev/zero", "bs=4k", &format!("of={}", small.0.join("junk").display())])
        .stderr(std::process::Stdio::null())
        .status();
    for round in 0..3000 {
        let longer = TTL * 2 + Duration::from_millis(round);
        let renewed = backend.renew(&[RenewRequest::new(held.reference(), longer)]).await.remove(0);
        assert!(matches!(renewed, Ok(Renewal::Renewed(_))), "{round}: {renewed:?}");
    }
    let refusal = fill(&backend).await;
    assert_eq!((refusal.kind(), refusal.effect()), (ErrorKind::Unavailable, Effect::None));
    assert!(refusal.to_string().contains("disk is full"), "{refusal}");
    fs::remove_file(small.0.join("junk")).unwrap();
    assert!(matches!(fill_once(&backend).await, Ok(Verdict::Granted(_))));
    assert_eq!(backend.release_one(&ReleaseRequest::new(held.reference())).await.unwrap(), Released::Now);
    check_file(&file);
    drop(backend);
}

/// Acquires one more resource, with a long note.
async fn fill_once(backend: &Sqlite) -> Result<Verdict, Error> {
    let mut claim = claim(&format!("filler/{:?}", Instant::now()));
    claim.note = Some(vec![0; 4000].into());
    backend.acquire_one(&claim).await
}

/// Acquires more and more resources until the disk is full.
async fn fill(backend: &Sqlite) -> Error {
    for _ in 0..100_000 {
        if let Err(error) = fill_once(backend).await {
            return error;
        }
    }
    panic!("the disk is not full")
}

/// Another process keeps the write lock: the request waits in the writer thread, and the runtime is not
/// blocked.
#[tokio::test]
async fn a_request_waits_for_the_write_lock_until_the_busy_timeout() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("leases.db");
    let backend = open(Config::new(&file).busy_timeout(Duration::from_millis(200)));
    let mine = claim("x");
    granted(&backend, &mine).await;
    let other_process = Connection::open(&file).unwrap();
    other_process.execute_batch("BEGIN IMMEDIATE").unwrap();

    let begin = Instant::now();
    let ticks = async {
        for _ in 0..10 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        begin.elapsed()
    };
    let other = claim("y");
    let (error, ticked) = tokio::join!(backend.acquire_one(&other), ticks);
    let error = error.unwrap_err();
    assert_eq!((error.kind(), error.effect()), (ErrorKind::Unavailable, Effect::None), "{error}");
    assert!(begin.elapsed() >= Duration::from_millis(200));
    assert!(ticked < begin.elapsed(), "the runtime was not blocked");
    let seen = backend.inspect(&Query::One(resource("x"))).await.unwrap().into_snapshots().remove(0);
    assert_eq!(seen.holder_count, 1, "inspect needs no lock");

    let waiting = backend.acquire_one(&other);
    let unlock = async {
        tokio::time::sleep(Duration::from_millis(50)).await;
        other_process.execute_batch("COMMIT").unwrap();
    };
    let (verdict, ()) = tokio::join!(waiting, unlock);
    assert!(matches!(verdict.unwrap(), Verdict::Granted(_)));
}

/// The error for a damaged row names its resource, and other requests of the same commit succeed.
#[tokio::test]
async fn a_damaged_row_is_corrupt_and_other_requests_succeed() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("leases.db");
    let backend = open(Config::new(&file));
    let (good, bad) = (claim("good"), claim("bad"));
    granted(&backend, &good).await;
    granted(&backend, &bad).await;
    let editor = Connection::open(&file).unwrap();
    let damage =
        "UPDATE seat SET token = -5 WHERE resource = (SELECT id FROM resource WHERE key = 'test/bad')";
    editor.execute_batch(damage).unwrap();
    let held = [&bad, &good].map(|claim| RenewRequest::new(claim.reference(), TTL));
    let (bad, good) = tokio::join!(backend.renew(&held[..1]), backend.renew(&held[1..]));
    let error = bad.into_iter().next().unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    assert!(error.to_string().starts_with("test/bad: "), "{error}");
    assert!(matches!(good[0], Ok(Renewal::Renewed(_))));
}

#[tokio::test]
async fn a_dropped_request_leaves_the_writer_usable() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("leases.db");
    let backend = open(Config::new(&file).busy_timeout(Duration::from_millis(500)));
    granted(&backend, &claim("x")).await;
    let other_process = Connection::open(&file).unwrap();
    other_process.execute_batch("BEGIN IMMEDIATE").unwrap();
    for number in 0..20 {
        let claim = claim(&number.to_string());
        let dropped =
            tokio::time::timeout(Duration::from_millis(number % 3), backend.acquire_one(&claim)).await;
        assert!(dropped.is_err());
    }
    other_process.execute_batch("COMMIT").unwrap();
    granted(&backend, &claim("y")).await;
    check_file(&file);
}

/// The processes of `leasehold run` are mostly alone and short. Each of them reads the whole log.
#[tokio::test]
async fn the_log_of_processes_that_come_and_go_stays_short() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("leases.db");
    let log = || fs::metadata(directory.path().join("leases.db-wal")).unwrap().len();
    let (mut longest, mut shortened) = (0, 0);
    for round in 0..150 {
        let before = if round == 0 { 0 } else { log() };
        let backend = open(Config::new(&file));
        let claim = claim(&format!("x{}", round % 7));
        granted(&backend, &claim).await;
        backend.release_one(&ReleaseRequest::new(claim.reference())).await.unwrap();
        drop(backend); // waits for nothing: the writer thread may still be at work
        let deadline = std::time::Instant::now() + Duration::from_secs(10);
        while before > 512 << 10 && log() > 512 << 10 {
            assert!(std::time::Instant::now() < deadline, "the log is {} bytes long", log());
            std::thread::sleep(Duration::from_millis(1));
        }
        shortened += u32::from(log() < before);
        longest = longest.max(log());
    }
    assert!(shortened > 0 && longest < 640 << 10, "{longest} bytes, shortened {shortened} times");
    check_file(&file);
}

#[tokio::test]
async fn a_long_log_is_copied_into_the_file_by_the_next_process_that_opens_it() {
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
