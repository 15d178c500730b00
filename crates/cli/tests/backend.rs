//! A store that is down at the start, during the wait, while the command runs, or at the release: the right
//! exit code, one line on stderr, and no hang.

mod support;

use std::{fs, os::unix::fs::PermissionsExt as _, process::Stdio};

use support::{Start as _, TestDir, exit_and_errors, is_alive, pid_in};

#[test]
fn a_wrong_store_url_is_78_and_one_line() {
    let dir = TestDir::new();
    fs::write(
        dir.path("text.db"),
        "this is not a database, but it is long enough to be taken for one".repeat(20),
    )
    .unwrap();
    let text = format!("sqlite:{}", dir.path("text.db").display());
    let table = [
        ("nonsense", "no backend is called"),
        ("gopher://host/", "no backend is called"),
        ("sqlite:x.db?colour=red", "colour"),
        (text.as_str(), "not a SQLite database"),
    ];
    for (store, word) in table {
        let output = dir.leasehold().args(["--store", store, "run", "x/1", "true"]).output().unwrap();
        let (code, errors) = exit_and_errors(&output);
        assert_eq!((code, errors.len()), (78, 1), "{errors:?}");
        assert!(errors[0].contains(word), "{errors:?}");
    }
}

#[test]
fn a_store_that_is_not_there_is_69_and_one_line() {
    let dir = TestDir::new();
    let output = dir.leasehold().args(["--store", "sqlite:/proc/x.db", "run", "-n", "x/1", "true"]).output();
    let (code, errors) = exit_and_errors(&output.unwrap());
    assert_eq!((code, errors.len()), (69, 1), "{errors:?}");
    assert!(errors[0].contains("/proc/x.db"), "{errors:?}");
    let output = dir
        .leasehold()
        .env("LEASEHOLD_STORE", "sqlite:/proc/x.db")
        .args(["--json", "run", "-n", "x/1", "true"])
        .output();
    let (code, errors) = exit_and_errors(&output.unwrap());
    let json: serde_json::Value = serde_json::from_str(&errors[0]).unwrap();
    assert_eq!((code, errors.len(), json["error"]["exit_code"].as_i64()), (69, 1, Some(69)));
    assert_eq!(
        (json["error"]["kind"].as_str(), json["error"]["effect"].as_str()),
        (Some("unavailable"), Some("none"))
    );
}

#[test]
fn a_store_without_write_permission_is_78() {
    if rustix::process::geteuid().is_root() {
        return; // root may
    }
    let dir = TestDir::new();
    fs::set_permissions(dir.directory.path(), fs::Permissions::from_mode(0o500)).unwrap();
    let (code, errors) = exit_and_errors(&dir.run(["x/1", "true"]).output().unwrap());
    fs::set_permissions(dir.directory.path(), fs::Permissions::from_mode(0o700)).unwrap();
    assert_eq!((code, errors.len()), (78, 1), "{errors:?}");
}

#[test]
fn a_store_that_does_not_reply_at_the_start_is_69() {
    let dir = TestDir::new();
    assert_eq!(exit_and_errors(&dir.run(["x/1", "true"]).output().unwrap()).0, 0);
    let locked = dir.lock();
    for wait in [&["-n"][..], &["-w", "1"]] {
        let (code, errors) = exit_and_errors(&dir.run(wait).args(["x/1", "true"]).output().unwrap());
        assert_eq!((code, errors.len()), (69, 1), "{wait:?}: {errors:?}");
        assert!(errors[0].contains("leases.db") || errors[0].contains("no answer"), "{errors:?}");
    }
    drop(locked);
    assert_eq!(exit_and_errors(&dir.run(["x/1", "true"]).output().unwrap()).0, 0);
}

#[test]
fn a_store_that_stops_replying_during_the_wait_is_69() {
    let dir = TestDir::new();
    let mut holder = dir.script(&["--ttl", "1h"], "echo go; read line").stdin(Stdio::piped()).start();
    holder.wait_for_line("go");
    let waiter = dir.leasehold().args(["-q", "run", "-w", "3", "x/1", "true"]).start();
    dir.until_waiting(1);
    let locked = dir.lock();
    let (code, errors) = waiter.end();
    assert_eq!((code, errors.len()), (69, 1), "{errors:?}");
    drop(locked);
    holder.write("\n");
    assert_eq!(holder.code(), 0);
}

#[test]
fn a_store_that_stops_replying_while_the_command_runs_loses_the_lease_in_time() {
    let dir = TestDir::new();
    let script = "trap '' TERM; echo $$ > pid; echo go; while :; do sleep 0.05; done";
    let running = dir.script(&["--ttl", "2s"], script).start();
    running.wait_for_line("go");
    let pid = pid_in(&dir.path("pid"));
    let locked = dir.lock();
    let (code, errors) = running.end();
    assert_eq!((code, errors.len()), (79, 2), "{errors:?}");
    assert!(errors[0].contains("no renewal succeeded in time: stopping the command"), "{errors:?}");
    assert!(!is_alive(pid));
    drop(locked);
}

#[test]
fn a_store_that_replies_again_in_time_does_not_lose_the_lease() {
    let dir = TestDir::new();
    let mut running =
        dir.script(&["--ttl", "6s"], "echo go; read line; exit 4").stdin(Stdio::piped()).start();
    running.wait_for_line("go");
    let locked = dir.lock();
    std::thread::sleep(std::time::Duration::from_millis(2500)); // a renewal is due, and fails
    drop(locked);
    std::thread::sleep(std::time::Duration::from_millis(3500)); // past the first deadline
    running.write("\n");
    assert_eq!(running.end(), (4, vec![]));
}

#[test]
fn a_store_that_does_not_reply_at_the_release_is_reported_and_the_exit_code_stays() {
    let dir = TestDir::new();
    let mut running =
        dir.script(&["--ttl", "4s"], "echo go; read line; exit 5").stdin(Stdio::piped()).start();
    running.wait_for_line("go");
    let locked = dir.lock();
    running.write("\n");
    let (code, errors) = running.end();
    assert_eq!((code, errors.len()), (5, 1), "{errors:?}");
    assert!(errors[0].contains("was not given back"), "{errors:?}");
    drop(locked);
    assert_eq!(dir.run(["-w", "30", "x/1", "true"]).start().code(), 0, "the lease runs out");
}

#[test]
fn a_store_that_was_deleted_loses_the_lease() {
    let dir = TestDir::new();
    let running = dir.script(&["--ttl", "2s"], "echo go; while :; do sleep 0.05; done").start();
    running.wait_for_line("go");
    for name in ["leases.db", "leases.db-wal", "leases.db-shm", "leases.db-bell"] {
        let _ = fs::remove_file(dir.path(name));
    }
    assert_eq!(running.code(), 79);
}
