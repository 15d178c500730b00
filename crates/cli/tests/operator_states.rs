//! The state of a holder, as `ls`, `show`, `why` and `leaks` mark it, and what `ls` leaves out.
#![allow(clippy::unwrap_used, reason = "tests")]

mod operator_support;

use std::{
    io::{BufRead as _, BufReader},
    process::Stdio,
    time::Duration,
};

use operator_support::{Running, TestStore, eventually};
use serde_json::{Value, json};

const HOUR: Duration = Duration::from_secs(3600);

/// The row of this resource in `ls`.
fn row(store: &TestStore, resource: &str, words: &[&str]) -> String {
    let table = store.call(&[&["ls"], words].concat()).ok();
    let row = table.lines().find(|line| line.starts_with(resource));
    row.unwrap_or_else(|| panic!("{resource} is not in {table}")).to_owned()
}

#[test]
fn why_answers_for_an_exclusive_claim_unless_it_is_told_the_share() {
    let store = TestStore::new();
    let _reader = store.hold(&["--shared", "report/42"]);
    store.call(&["run", "-n", "report/42", "--", "true"]).fails(75, &[]);
    let exclusive = store.json(&["why", "report/42"]);
    assert_eq!((&exclusive["free"], &exclusive["wanted"]), (&json!(false), &json!("exclusive")));
    assert!(!store.call(&["why", "report/42"]).ok().contains("There is room"));
    store.call(&["run", "-n", "--shared", "report/42", "--", "true"]).ok();
    for share in ["-s", "--shared"] {
        assert_eq!(store.json(&["why", "report/42", share])["free"], true);
    }
    assert!(store.call(&["why", "-s", "report/42"]).ok().contains("There is room"));

    let _permit = store.hold(&["--permits", "1/2", "export/acme"]);
    let refused = store.call(&["why", "export/acme"]).ok();
    assert!(
        refused.contains("An exclusive claim is refused") && refused.contains("--permits K/2"),
        "{refused}"
    );
    for (permits, free) in [("1/2", true), ("2/2", false), ("1", true), ("1/3", false)] {
        assert_eq!(store.json(&["why", "export/acme", "--permits", permits])["free"], free, "{permits}");
    }
    store.call(&["why", "export/acme", "--permits", "3/2"]).fails(64, &["at most N"]);
}

#[test]
fn a_holder_has_the_mark_of_its_state() {
    let store = TestStore::new();
    let _lives = store.hold(&["--ttl", "1h", "report/lives"]);
    let mut killed = store.hold(&["--ttl", "1h", "report/killed"]);
    killed.kill();
    store.dead_holder("report", "silent", Duration::from_secs(12), "");
    eventually(|| row(&store, "report/silent", &[]).contains("late"));
    eventually(|| row(&store, "report/silent", &[]).contains("silent "));
    assert!(row(&store, "report/lives", &[]).contains("renewing"));
    assert!(row(&store, "report/killed", &[]).contains("gone"));
    let show = |name: &str| store.call(&["show", name]).ok();
    assert!(show("report/lives").contains("renewing"));
    assert!(show("report/killed").contains("gone: its process on this host is gone"));
    assert!(store.call(&["why", "report/lives"]).ok().contains("It renews."));
    let why = store.call(&["why", "report/killed"]).ok();
    assert!(why.contains("Its process on this host is gone."), "{why}");
    let holder = |name: &str| store.json(&["show", name])["holders"][0].take();
    let (lives, killed) = (holder("report/lives"), holder("report/killed"));
    assert_eq!((&lives["state"], &lives["process_gone"]), (&json!("renewing"), &json!(false)));
    assert_eq!((&lives["ttl_ms"], &killed["process_gone"]), (&json!(3_600_000), &json!(true)));
}

#[test]
fn each_command_that_why_and_leaks_print_frees_the_resource() {
    let store = TestStore::new();
    for from in ["why", "leaks"] {
        let mut killed = store.hold(&["--ttl", "1h", "report/42"]);
        killed.kill();
        let command = match from {
            "why" => {
                let frees = store.json(&["why", "report/42"])["frees"].take();
                let evict =
                    frees.as_array().unwrap().iter().find(|way| way["how"] == "evict").unwrap().clone();
                evict["command"].clone()
            }
            _ => store.json(&["leaks"])["findings"][0]["command"].take(),
        };
        let line = command.as_str().unwrap().replacen("leasehold", env!("CARGO_BIN_EXE_leasehold"), 1);
        let mut shell = std::process::Command::new("sh");
        let ran = shell.args(["-c", &line]).env("LEASEHOLD_STORE", store.url()).status();
        assert!(ran.unwrap().success(), "{line}");
        assert_eq!(store.json(&["why", "report/42"])["free"], true, "{line}");
    }
    assert!(store.call(&["leaks"]).ok().is_empty());
}

#[test]
fn mode_and_capacity_are_shown() {
    let store = TestStore::new();
    let _exclusive = store.hold(&["a/exclusive"]);
    let _reads = store.hold(&["--shared", "a/reads"]);
    let _permits = store.hold(&["--permits", "2/5", "a/permits"]);
    let heading = store.call(&["ls"]).ok();
    assert!(heading.lines().next().unwrap().contains("MODE       CAPACITY"), "{heading}");
    for (name, mode) in [
        ("a/exclusive", &["exclusive", "1"][..]),
        ("a/reads", &["read", "unlimited"]),
        ("a/permits", &["2 of 5", "5"]),
    ] {
        let row = row(&store, name, &[]);
        let cells: Vec<_> = row.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).collect();
        assert!(cells.windows(2).any(|pair| pair == mode), "{row}");
    }
    let listed = store.json(&["ls"]);
    let modes: Vec<_> = listed["resources"].as_array().unwrap().iter().map(|seen| &seen["mode"]).collect();
    assert_eq!(modes, ["exclusive", "semaphore", "read-write"]);
}

#[test]
fn what_is_only_kept_closed_is_left_out() {
    let store = TestStore::new();
    store.call(&["run", "--once-per", "1h", "mail/digest", "--", "true"]).ok();
    let names = |words: &[&str]| {
        let listed = store.json(&[&["ls"], words].concat());
        let name = |seen: &Value| seen["resource"].as_str().unwrap().to_owned();
        listed["resources"].as_array().unwrap().iter().map(name).collect::<Vec<_>>()
    };
    assert_eq!(names(&[]), [""; 0]);
    assert_eq!(store.json(&["ls"])["hidden"], 1);
    let listed = store.call(&["ls"]);
    assert!(listed.err.contains("1 kept closed") && listed.err.contains("--all"), "{listed:?}");
    for words in [&["--all"][..], &["mail/"], &["--kind", "mail"]] {
        assert_eq!(names(words), ["mail/digest"], "{words:?}");
    }
    assert!(row(&store, "mail/digest", &["--all"]).contains("kept"));
    store.call(&["pause", "mail/digest", "--token", &token(&store), "--for", "1m", "--reason", "x"]).ok();
    assert_eq!(names(&[]), ["mail/digest"], "a pause is shown");
}

#[test]
fn what_is_only_kept_closed_is_left_out_of_the_default_namespace_too() {
    let store = TestStore::new();
    store.call(&["run", "--once-per", "1h", "acme:mail/digest", "--", "true"]).ok();
    let _holder = store.hold(&["acme:report/42"]);
    let acme = ["--namespace", "acme"];
    let listed = store.json(&[&acme[..], &["ls"]].concat());
    assert_eq!(
        (&listed["hidden"], &listed["resources"][0]["resource"]),
        (&json!(1), &json!("acme:report/42"))
    );
    // A prefix that is typed lists all.
    let typed = store.json(&[&acme[..], &["ls", "mail/"]].concat());
    assert_eq!(typed["resources"][0]["resource"], "acme:mail/digest");
    for (options, first) in [(&["watch"][..], "acme:report/42"), (&["watch", "--all"], "acme:mail/digest")] {
        let mut command = store.command(&[&acme[..], options].concat());
        let child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut watch = Running { child, token: String::new() };
        let line = BufReader::new(watch.child.stdout.take().unwrap()).lines().next().unwrap().unwrap();
        assert!(line.contains(first), "{line}");
    }
}

fn token(store: &TestStore) -> String {
    store.json(&["ls", "--all"])["resources"][0]["holders"][0]["token"].as_str().unwrap().to_owned()
}

#[test]
fn a_limit_reads_no_more_than_it_takes_and_says_that_there_are_more() {
    let store = TestStore::new();
    for number in 0..5 {
        store.dead_holder("report", &number.to_string(), HOUR, "");
    }
    let listed = store.json(&["ls", "--limit", "2"]);
    assert_eq!(listed["resources"].as_array().unwrap().len(), 2);
    assert_eq!(listed["more"], 1, "at least one more");
    assert_eq!(store.json(&["ls", "--limit", "5"])["more"], 0);
    assert!(store.call(&["ls", "--limit", "2"]).err.contains("--limit"));
}

#[test]
fn a_pause_says_who_and_why_wherever_it_is_shown() {
    let store = TestStore::new();
    let said = store.call(&["pause", "report/42", "--for", "10m", "--reason", "deploy"]).ok();
    for shown in [said, store.call(&["why", "report/42"]).ok(), store.call(&["show", "report/42"]).ok()] {
        assert!(shown.contains("Paused until 2") && shown.contains(" by anna@"), "{shown}");
        assert!(shown.contains(": deploy; current holders keep it."), "{shown}");
    }
    store.call(&["resume", "report/42", "--reason", "done"]).ok();
    let again = store.call(&["resume", "report/42", "--reason", "done"]).ok();
    assert!(again.contains("Not paused; nothing changed."), "{again}");
    store.call(&["pause", "report/42", "--for", "30M", "--reason", "x"]).fails(64, &["m for minutes"]);
}

#[test]
fn the_audit_trail_knows_the_user_without_variables() {
    let store = TestStore::new();
    let none = store.call(&["audit"]);
    assert!(none.err.contains("No operator actions recorded."), "{none:?}");
    let mut command = store.command(&["pause", "report/42", "--for", "1m", "--reason", "x"]);
    assert!(command.env_remove("USER").env_remove("LOGNAME").output().unwrap().status.success());
    let name = std::process::Command::new("id").arg("-un").output().unwrap().stdout;
    let by = store.json(&["audit"])["records"][0]["by"].take();
    let expected = format!("{}@", String::from_utf8(name).unwrap().trim());
    assert!(by.as_str().unwrap().starts_with(&expected), "{by} does not start with {expected}");
}

#[test]
fn every_answer_in_json_is_an_object() {
    let store = TestStore::new();
    for words in [&["ls"][..], &["leaks"], &["audit"], &["show", "a/b"], &["why", "a/b"]] {
        assert!(store.json(words).is_object(), "{words:?}");
    }
    assert!(store.json(&["pause", "a/b", "--for", "1m", "--reason", "x"]).is_object());
}
