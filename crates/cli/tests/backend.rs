//! A backend that is down: at the start, during the wait, while holding, at the release. The right code, one clear
//! line, and no hang.

mod support;

use std::{fs, os::unix::fs::PermissionsExt as _, process::Stdio};

use support::{Site, Start as _, ended, is_alive, pid_in};

#[test]
fn a_store_that_makes_no_sense_is_78_and_one_line() {
    let site = Site::new();
    fs::write(
        site.path("text.db"),
        "this is not a database, but it is long enough to be taken for one".repeat(20),
    )
    .unwrap();
    let text = format!("sqlite:{}", site.path("text.db").display());
    let table = [
        ("nonsense", "no backend is called"),
        ("gopher://host/", "no backend is called"),
        ("sqlite:x.db?colour=red", "colour"),
        (text.as_str(), "not a SQLite database"),
    ];
    for (store, word) in table {
        let output = site.leasehold().args(["--store", store, "run", "x/1", "true"]).output().unwrap();
        let (code, errors) = ended(&output);
        assert_eq!((code, errors.len()), (78, 1), "{errors:?}");
        assert!(errors[0].contains(word), "{errors:?}");
    }
}

#[test]
fn a_store_that_is_not_there_is_69_and_one_line() {
    let site = Site::new();
    let output =
        site.leasehold().args(["--store", "sqlite:/proc/nowhere/x.db", "run", "x/1", "true"]).output();
    let (code, errors) = ended(&output.unwrap());
    assert_eq!((code, errors.len()), (69, 1), "{errors:?}");
    assert!(errors[0].contains("/proc/nowhere"), "{errors:?}");
    let output = site
        .leasehold()
        .env("LEASEHOLD_STORE", "sqlite:/proc/nowhere/x.db")
        .args(["--json", "run", "x/1", "true"])
        .output();
    let (code, errors) = ended(&output.unwrap());
    let json: serde_json::Value = serde_json::from_str(&errors[0]).unwrap();
    assert_eq!((code, errors.len(), json["error"]["exit_code"].as_i64()), (69, 1, Some(69)));
    assert_eq!(
        (json["error"]["kind"].as_str(), json["error"]["effect"].as_str()),
        (Some("unavailable"), Some("none"))
    );
}

#[test]
fn a_store_that_may_not_be_written_is_78() {
    if rustix::process::geteuid().is_root() {
        return; // root may
    }
    let site = Site::new();
    fs::set_permissions(site.directory.path(), fs::Permissions::from_mode(0o500)).unwrap();
    let (code, errors) = ended(&site.run(["x/1", "true"]).output().unwrap());
    fs::set_permissions(site.directory.path(), fs::Permissions::from_mode(0o700)).unwrap();
    assert_eq!((code, errors.len()), (78, 1), "{errors:?}");
}

#[test]
fn a_store_that_does_not_answer_at_the_start_is_69() {
    let site = Site::new();
    assert_eq!(ended(&site.run(["x/1", "true"]).output().unwrap()).0, 0);
    let locked = site.lock();
    for wait in [&["-n"][..], &["-w", "1"], &[]] {
        let (code, errors) = ended(&site.run(wait).args(["x/1", "true"]).output().unwrap());
        assert_eq!((code, errors.len()), (69, 1), "{wait:?}: {errors:?}");
        assert!(errors[0].contains("leases.db") || errors[0].contains("no answer"), "{errors:?}");
    }
    drop(locked);
    assert_eq!(ended(&site.run(["x/1", "true"]).output().unwrap()).0, 0);
}

#[test]
fn a_store_that_stops_answering_during_the_wait_is_69() {
    let site = Site::new();
    let mut holder = site.script(&["--ttl", "1h"], "echo go; read line").stdin(Stdio::piped()).start();
    holder.until("go");
    let waiter = site.run(["x/1", "true"]).start();
    site.until_waiting(1);
    let locked = site.lock();
    let (code, errors) = waiter.end();
    assert_eq!((code, errors.len()), (69, 1), "{errors:?}");
    drop(locked);
    holder.write("\n");
    assert_eq!(holder.code(), 0);
}

#[test]
fn a_store_that_stops_answering_while_it_holds_costs_the_lease_in_time() {
    let site = Site::new();
    let script = "trap '' TERM; echo $$ > pid; echo go; while :; do sleep 0.05; done";
    let running = site.script(&["--ttl", "2s"], script).start();
    running.until("go");
    let pid = pid_in(&site.path("pid"));
    let locked = site.lock();
    let (code, errors) = running.end();
    assert_eq!((code, errors.len()), (79, 2), "{errors:?}");
    assert!(errors[0].contains("no renewal succeeded in time: stopping the command"), "{errors:?}");
    assert!(!is_alive(pid));
    drop(locked);
}

#[test]
fn a_store_that_answers_again_in_time_costs_nothing() {
    let site = Site::new();
    let mut running =
        site.script(&["--ttl", "6s"], "echo go; read line; exit 4").stdin(Stdio::piped()).start();
    running.until("go");
    let locked = site.lock();
    std::thread::sleep(std::time::Duration::from_millis(2500)); // a renewal is due, and fails
    drop(locked);
    std::thread::sleep(std::time::Duration::from_millis(3500)); // past the first deadline
    running.write("\n");
    assert_eq!(running.end(), (4, vec![]));
}

#[test]
fn a_store_that_does_not_answer_at_the_release_is_said_and_the_exit_code_stays() {
    let site = Site::new();
    let mut running =
        site.script(&["--ttl", "4s"], "echo go; read line; exit 5").stdin(Stdio::piped()).start();
    running.until("go");
    let locked = site.lock();
    running.write("\n");
    let (code, errors) = running.end();
    assert_eq!((code, errors.len()), (5, 1), "{errors:?}");
    assert!(errors[0].contains("was not given back"), "{errors:?}");
    drop(locked);
    assert_eq!(site.run(["-w", "30", "x/1", "true"]).start().code(), 0, "it ends with its ttl");
}

#[test]
fn a_store_that_was_deleted_costs_the_lease() {
    let site = Site::new();
    let running = site.script(&["--ttl", "2s"], "echo go; while :; do sleep 0.05; done").start();
    running.until("go");
    for name in ["leases.db", "leases.db-wal", "leases.db-shm", "leases.db-bell"] {
        let _ = fs::remove_file(site.path(name));
    }
    assert_eq!(running.code(), 79);
}
