//! A `leasehold run` inside another `leasehold run`.

mod support;

use std::process::Stdio;

use leasehold::Eviction;
use support::{Start as _, TestDir, exit_and_errors, is_alive, pid_in, text};

#[test]
fn an_inner_run_of_the_same_resource_uses_the_lease_of_the_outer_run() {
    let dir = TestDir::new();
    let output = dir.shell("\"$L\" run x/1 -- sh -c 'echo $LEASEHOLD_TOKEN; \"$L\" run -n x/1 -- sh -c \"echo \\$LEASEHOLD_TOKEN; exit 3\"; echo $?; \"$L\" run -n x/1 -- true; echo $?'").output().unwrap();
    let text = text(&output);
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(exit_and_errors(&output), (0, vec![]));
    assert!(lines.len() == 4 && lines[0] == lines[1], "the same token: {lines:?}");
    assert_eq!(lines[2..], ["3", "0"], "the inner run did not release the lease");
    assert_eq!(dir.look("x", "1").holder_count, 0);
}

#[test]
fn an_inner_run_finds_the_outer_lease_behind_a_run_of_another_resource() {
    let dir = TestDir::new();
    let output = dir
        .shell("\"$L\" run x/1 -- \"$L\" run y/1 -- \"$L\" run -n x/1 -- sh -c 'echo $LEASEHOLD_RESOURCE'")
        .output()
        .unwrap();
    assert_eq!((exit_and_errors(&output), text(&output).as_str()), ((0, vec![]), "x/1\n"));
}

#[test]
fn an_inner_reader_uses_the_lease_of_an_outer_reader_and_a_writer_is_refused() {
    let dir = TestDir::new();
    let output = dir
        .shell("\"$L\" run -s x/1 -- sh -c '\"$L\" run -n -s x/1 true && \"$L\" run -w 5 x/1 true'")
        .output()
        .unwrap();
    let (code, errors) = exit_and_errors(&output);
    assert_eq!((code, errors.len()), (64, 1), "{errors:?}");
    assert!(errors[0].contains("would wait for ever"), "{errors:?}");
    let output = dir.shell("\"$L\" run x/1 -- \"$L\" run -n -s x/1 -- echo read").output().unwrap();
    assert_eq!(text(&output), "read\n");
}

#[test]
fn the_same_resource_in_another_store_is_claimed_anew() {
    let dir = TestDir::new();
    let output = dir
        .shell("\"$L\" run x/1 -- \"$L\" --store sqlite:other.db run -n x/1 -- sh -c 'echo $LEASEHOLD_STORE'")
        .output()
        .unwrap();
    assert_eq!(
        (exit_and_errors(&output).0, text(&output)),
        (0, format!("sqlite:{}\n", dir.path("other.db").display()))
    );
}

#[test]
fn an_inherited_owner_token_of_an_ended_lease_is_not_believed() {
    let dir = TestDir::new();
    // A daemon inherits LEASEHOLD_HELD and outlives the lease.
    let daemon =
        "until [ -e free ]; do sleep 0.01; done; \"$L\" run -n x/1 true; echo $? > first; touch held";
    let script = format!(
        "setsid sh -c '{daemon}; until [ -e ended ]; do sleep 0.01; done; \"$L\" run -n x/1 true; echo $? > second' > /dev/null 2>&1 &"
    );
    assert_eq!(
        exit_and_errors(
            &dir.shell(&format!("\"$L\" run x/1 -- sh -c '{}'", script.replace('\'', "'\\''")))
                .output()
                .unwrap()
        ),
        (0, vec![])
    );
    let mut other = dir.script(&[], "echo go; read line").stdin(Stdio::piped()).start();
    other.wait_for_line("go");
    std::fs::write(dir.path("free"), "").unwrap();
    assert_eq!(pid_in(&dir.path("first")), 75, "another run holds it");
    other.write("\n");
    assert_eq!(other.code(), 0);
    std::fs::write(dir.path("ended"), "").unwrap();
    assert_eq!(pid_in(&dir.path("second")), 0, "it claims the free resource like any other run");
}

#[test]
fn an_inner_run_ends_with_the_lease_of_the_outer_run() {
    let dir = TestDir::new();
    let script = "\"$L\" run x/1 -- sh -c 'trap \"\" TERM; echo $$ > pid; echo go; while :; do sleep 0.05; done'; echo inner $?";
    let running = dir.script(&["--ttl", "2s"], script).env("L", env!("CARGO_BIN_EXE_leasehold")).start();
    running.wait_for_line("go");
    let pid = pid_in(&dir.path("pid"));
    dir.evict(Eviction::Now);
    let (code, _) = running.end();
    assert_eq!(code, 79);
    assert!(!is_alive(pid));
}

#[test]
fn a_detached_inner_run_ends_when_the_outer_run_releases_the_lease() {
    let dir = TestDir::new();
    let inner = "\"$L\" run x/1 -- sh -c \"echo \\$\\$ > pid; while :; do sleep 0.05; done\"; echo $? > code";
    let script = format!("setsid sh -c '{inner}' > /dev/null 2>&1 & until [ -s pid ]; do sleep 0.01; done");
    let running = dir.script(&[], &script).env("L", env!("CARGO_BIN_EXE_leasehold")).start();
    assert_eq!(running.code(), 0);
    let pid = pid_in(&dir.path("pid"));
    assert_eq!(pid_in(&dir.path("code")), 79);
    assert!(!is_alive(pid));
}
