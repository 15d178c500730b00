//! A run within a run.

mod support;

use std::process::Stdio;

use leasehold::Eviction;
use support::{Site, Start as _, ended, is_alive, pid_in, text};

#[test]
fn a_run_within_a_run_of_the_same_resource_re_enters() {
    let site = Site::new();
    let output = site.shell("\"$L\" run x/1 -- sh -c 'echo $LEASEHOLD_TOKEN; \"$L\" run -n x/1 -- sh -c \"echo \\$LEASEHOLD_TOKEN; exit 3\"; echo $?; \"$L\" run -n x/1 -- true; echo $?'").output().unwrap();
    let text = text(&output);
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(ended(&output), (0, vec![]));
    assert!(lines.len() == 4 && lines[0] == lines[1], "the same grant: {lines:?}");
    assert_eq!(lines[2..], ["3", "0"], "and the inner one did not give it back");
    assert_eq!(site.look("x", "1").holder_count, 0);
}

#[test]
fn it_re_enters_through_another_resource_in_between() {
    let site = Site::new();
    let output = site
        .shell("\"$L\" run x/1 -- \"$L\" run y/1 -- \"$L\" run -n x/1 -- sh -c 'echo $LEASEHOLD_RESOURCE'")
        .output()
        .unwrap();
    assert_eq!((ended(&output), text(&output).as_str()), ((0, vec![]), "x/1\n"));
}

#[test]
fn a_reader_within_a_reader_re_enters_and_a_writer_is_refused() {
    let site = Site::new();
    let output = site
        .shell("\"$L\" run -s x/1 -- sh -c '\"$L\" run -n -s x/1 true && \"$L\" run -w 5 x/1 true'")
        .output()
        .unwrap();
    let (code, errors) = ended(&output);
    assert_eq!((code, errors.len()), (64, 1), "{errors:?}");
    assert!(errors[0].contains("would wait for ever"), "{errors:?}");
    let output = site.shell("\"$L\" run x/1 -- \"$L\" run -n -s x/1 -- echo read").output().unwrap();
    assert_eq!(text(&output), "read\n");
}

#[test]
fn another_store_is_another_resource() {
    let site = Site::new();
    let output = site
        .shell("\"$L\" run x/1 -- \"$L\" --store sqlite:other.db run -n x/1 -- sh -c 'echo $LEASEHOLD_STORE'")
        .output()
        .unwrap();
    assert_eq!(
        (ended(&output).0, text(&output)),
        (0, format!("sqlite:{}\n", site.path("other.db").display()))
    );
}

#[test]
fn an_old_owner_token_holds_nothing() {
    let site = Site::new();
    // A daemon inherits what was held, and outlives it.
    let daemon =
        "until [ -e free ]; do sleep 0.01; done; \"$L\" run -n x/1 true; echo $? > first; touch held";
    let script = format!(
        "setsid sh -c '{daemon}; until [ -e ended ]; do sleep 0.01; done; \"$L\" run -n x/1 true; echo $? > second' > /dev/null 2>&1 &"
    );
    assert_eq!(
        ended(
            &site
                .shell(&format!("\"$L\" run x/1 -- sh -c '{}'", script.replace('\'', "'\\''")))
                .output()
                .unwrap()
        ),
        (0, vec![])
    );
    let mut other = site.script(&[], "echo go; read line").stdin(Stdio::piped()).start();
    other.until("go");
    std::fs::write(site.path("free"), "").unwrap();
    assert_eq!(pid_in(&site.path("first")), 75, "it is another one's");
    other.write("\n");
    assert_eq!(other.code(), 0);
    std::fs::write(site.path("ended"), "").unwrap();
    assert_eq!(pid_in(&site.path("second")), 0, "and a claim like any other when it is free");
}

#[test]
fn an_inner_run_ends_with_the_lease_of_the_outer_one() {
    let site = Site::new();
    let script = "\"$L\" run x/1 -- sh -c 'trap \"\" TERM; echo $$ > pid; echo go; while :; do sleep 0.05; done'; echo inner $?";
    let running = site.script(&["--ttl", "2s"], script).env("L", env!("CARGO_BIN_EXE_leasehold")).start();
    running.until("go");
    let pid = pid_in(&site.path("pid"));
    site.evict(Eviction::Now);
    let (code, _) = running.end();
    assert_eq!(code, 79);
    assert!(!is_alive(pid));
}

#[test]
fn an_inner_run_that_left_the_outer_one_ends_when_that_gives_the_lease_back() {
    let site = Site::new();
    let inner = "\"$L\" run x/1 -- sh -c \"echo \\$\\$ > pid; while :; do sleep 0.05; done\"; echo $? > code";
    let script = format!("setsid sh -c '{inner}' > /dev/null 2>&1 & until [ -s pid ]; do sleep 0.01; done");
    let running = site.script(&[], &script).env("L", env!("CARGO_BIN_EXE_leasehold")).start();
    assert_eq!(running.code(), 0);
    let pid = pid_in(&site.path("pid"));
    assert_eq!(pid_in(&site.path("code")), 79);
    assert!(!is_alive(pid));
}
