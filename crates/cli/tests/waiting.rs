//! A run whose resource is held: it waits, gives up, shares the resource, or finds that the work is done.

mod support;

use std::{fs, process::Stdio};

use rustix::process::Signal;
use support::{Running, Start as _, TestDir, eventually, exit_and_errors, text};

/// Holds `x/1` until `end` is called.
fn holding(dir: &TestDir, options: &[&str]) -> Running {
    let running = dir.script(options, "echo go; read line").stdin(Stdio::piped()).start();
    running.wait_for_line("go");
    running
}

#[track_caller]
fn end(mut running: Running) {
    running.write("\n");
    assert_eq!(running.code(), 0);
}

#[test]
fn a_run_that_does_not_wait_names_the_holder() {
    let dir = TestDir::new();
    let holder = holding(&dir, &["--label", "nightly"]);
    for wait in [&["-n"][..], &["-w", "0"], &["-w", "0.05"], &["--wait", "50ms"]] {
        let (code, errors) = exit_and_errors(&dir.run(wait).args(["x/1", "true"]).output().unwrap());
        assert_eq!((code, errors.len()), (75, 1), "{errors:?}");
        let who = format!("leasehold: x/1: held by {}@", holder.pid());
        assert!(
            errors[0].starts_with(&who) && errors[0].contains("nightly (renewing; free within "),
            "{errors:?}"
        );
        let hint =
            if wait == ["-n"] || wait == ["-w", "0"] { ". Use -w to wait." } else { ". Wait longer with -w" };
        assert!(errors[0].contains(hint), "{errors:?}");
    }
    let (code, _) = exit_and_errors(&dir.run(["-n", "-E", "9", "x/1", "true"]).output().unwrap());
    assert_eq!(code, 9);
    // A line of cron that may be skipped must not be mailed.
    assert_eq!(exit_and_errors(&dir.run(["-n", "-E", "0", "x/1", "false"]).output().unwrap()), (0, vec![]));
    let quiet = dir.leasehold().args(["-q", "run", "-n", "x/1", "true"]).output().unwrap();
    assert_eq!(exit_and_errors(&quiet), (75, vec![]));
    let (code, errors) =
        exit_and_errors(&dir.leasehold().args(["--json", "run", "-n", "x/1", "true"]).output().unwrap());
    let json: serde_json::Value = serde_json::from_str(&errors[0]).unwrap();
    assert_eq!((code, json["error"]["kind"].as_str()), (75, Some("contended")));
    assert_eq!(json["error"]["effect"], "none");
    end(holder);
}

#[test]
fn a_run_that_may_be_skipped_prints_nothing_while_it_waits() {
    let dir = TestDir::new();
    let holder = holding(&dir, &[]);
    for (global, code) in [(&["run", "-E", "0"][..], 0), (&["-q", "run"], 75)] {
        let mut run = dir.leasehold();
        let output = run.args(global).args(["-w", "1.5", "x/1", "false"]).output().unwrap();
        assert_eq!(exit_and_errors(&output), (code, vec![]), "{global:?}");
    }
    end(holder);
}

#[test]
fn a_run_that_gave_up_waiting_leaves_the_queue() {
    let dir = TestDir::new();
    let holder = holding(&dir, &[]);
    assert_eq!(exit_and_errors(&dir.run(["-w", "0.1", "x/1", "true"]).output().unwrap()).0, 75);
    assert_eq!(dir.look("x", "1").queue_length, 0);
    end(holder);
}

#[test]
fn a_waiting_run_is_granted_when_the_resource_is_free() {
    let dir = TestDir::new();
    let holder = holding(&dir, &[]);
    let waiter = dir.run(["x/1", "--", "echo", "mine"]).start();
    dir.until_waiting(1);
    end(holder);
    waiter.wait_for_line("mine");
    assert_eq!(waiter.code(), 0);
}

#[test]
fn fair_waiters_are_granted_in_order() {
    let dir = TestDir::new();
    let holder = holding(&dir, &["--fair"]);
    let mut waiters = Vec::new();
    for n in 0..4 {
        waiters.push(dir.run(["--fair", "x/1", "--", "sh", "-c", &format!("echo {n} >> order")]).start());
        dir.until_waiting(n + 1);
    }
    end(holder);
    waiters.into_iter().for_each(|waiter| assert_eq!(waiter.code(), 0));
    assert_eq!(fs::read_to_string(dir.path("order")).unwrap(), "0\n1\n2\n3\n");
}

#[test]
fn a_signal_ends_the_wait_and_leaves_the_queue() {
    let dir = TestDir::new();
    let holder = holding(&dir, &[]);
    for (signal, code) in [(Signal::TERM, 143), (Signal::INT, 130), (Signal::HUP, 129), (Signal::QUIT, 131)] {
        let waiter = dir.run(["x/1", "true"]).start();
        dir.until_waiting(1);
        waiter.signal(signal);
        assert_eq!(waiter.code(), code);
        assert_eq!(dir.look("x", "1").queue_length, 0, "it left the queue");
    }
    end(holder);
}

#[test]
fn a_wait_prints_the_holder_its_state_and_the_number_of_waiters_ahead() {
    let dir = TestDir::new();
    let holder = holding(&dir, &["--label", "nightly"]);
    let first = dir.leasehold().args(["-q", "run", "x/1", "true"]).start();
    dir.until_waiting(1);
    let second = dir.run(["x/1", "true"]).start();
    let line = second.next_error_line();
    let who = format!("leasehold: x/1: held by {}@", holder.pid());
    assert!(line.starts_with(&who) && line.contains("nightly (renewing; free within "), "{line}");
    assert!(line.contains(" since 2") && line.contains("Z, 1 ahead of us; waited 1"), "{line}");
    end(holder);
    assert_eq!((first.end(), second.code()), ((0, vec![]), 0));
}

#[test]
fn a_paused_resource_is_reported_with_the_author_and_the_reason() {
    let dir = TestDir::new();
    let mut pause = dir.leasehold();
    pause.args(["pause", "x/1", "--for", "1h", "--reason", "a deployment"]);
    assert_eq!(exit_and_errors(&pause.output().unwrap()).0, 0);
    let (code, errors) = exit_and_errors(&dir.run(["-n", "x/1", "true"]).output().unwrap());
    assert_eq!((code, errors.len()), (75, 1), "{errors:?}");
    assert!(errors[0].starts_with("leasehold: x/1: Paused until 20"), "{errors:?}");
    assert!(errors[0].ends_with(": a deployment; current holders keep it. Use -w to wait."), "{errors:?}");
}

#[test]
fn readers_hold_together_and_a_writer_holds_alone() {
    let dir = TestDir::new();
    let readers = [holding(&dir, &["-s"]), holding(&dir, &["-s"])];
    for writer in [&["-n"][..], &["-n", "-x"]] {
        assert_eq!(exit_and_errors(&dir.run(writer).args(["x/1", "true"]).output().unwrap()).0, 75);
    }
    let writer = dir.run(["x/1", "--", "echo", "alone"]).start();
    dir.until_waiting(1);
    readers.into_iter().for_each(end);
    writer.wait_for_line("alone");
    assert_eq!(writer.code(), 0);
}

#[test]
fn a_reader_waits_for_an_exclusive_holder() {
    let dir = TestDir::new();
    let holder = holding(&dir, &[]);
    assert_eq!(exit_and_errors(&dir.run(["-n", "-s", "x/1", "true"]).output().unwrap()).0, 75);
    let reader = dir.run(["-s", "x/1", "--", "echo", "read"]).start();
    dir.until_waiting(1);
    end(holder);
    reader.wait_for_line("read");
    assert_eq!(reader.code(), 0);
}

#[test]
fn permits_are_granted_up_to_the_capacity() {
    let dir = TestDir::new();
    let holders = [holding(&dir, &["--permits", "1/3"]), holding(&dir, &["--permits", "2/3"])];
    assert_eq!(exit_and_errors(&dir.run(["-n", "--permits", "1/3", "x/1", "true"]).output().unwrap()).0, 75);
    let (code, errors) =
        exit_and_errors(&dir.run(["-n", "--permits", "1/4", "x/1", "true"]).output().unwrap());
    assert_eq!((code, errors.len()), (78, 1), "{errors:?}");
    assert!(errors[0].contains("a semaphore of 3"), "{errors:?}");
    assert_eq!(
        exit_and_errors(&dir.run(["-n", "x/1", "true"]).output().unwrap()).0,
        78,
        "and it is not an exclusive lease"
    );
    holders.into_iter().for_each(end);
    assert_eq!(exit_and_errors(&dir.run(["-n", "--permits", "1/4", "x/1", "true"]).output().unwrap()).0, 0);
}

#[test]
fn at_least_keeps_the_resource_closed_after_the_command() {
    let dir = TestDir::new();
    for (script, code) in [("exit 0", 0), ("exit 7", 7)] {
        let resource = format!("x/{code}");
        let run = |options: &[&str], script| {
            let mut command = dir.run(options);
            exit_and_errors(&command.args([resource.as_str(), "--", "sh", "-c", script]).output().unwrap()).0
        };
        assert_eq!(run(&["--at-least", "1h"], script), code);
        assert_eq!(run(&["-n"], "exit 0"), 75, "closed, whatever its exit code was");
    }
    assert_eq!(exit_and_errors(&dir.run(["--at-least", "1ms", "y/1", "true"]).output().unwrap()).0, 0);
    assert_eq!(
        exit_and_errors(&dir.run(["-n", "y/1", "true"]).output().unwrap()).0,
        0,
        "the time of --at-least has passed"
    );
}

#[test]
fn once_per_skips_further_runs_after_a_success() {
    let dir = TestDir::new();
    let once = |script| {
        let output = dir.run(["--once-per", "1h", "x/1", "--", "sh", "-c", script]).output().unwrap();
        (exit_and_errors(&output), text(&output))
    };
    assert_eq!(once("echo one; exit 3"), ((3, vec![]), "one\n".into()));
    assert_eq!(once("echo two"), ((0, vec![]), "two\n".into()), "a failed run is repeated");
    let ((code, said), printed) = once("echo three");
    assert_eq!((code, said.len(), &*printed), (0, 1, ""), "{said:?}");
    assert!(said[0].starts_with("leasehold: x/1: Skipped: last succeeded "), "{said:?}");
    assert!(said[0].ends_with("s ago (--once-per 1h)."), "{said:?}");
    let json = dir.leasehold().args(["--json", "run", "--once-per", "1h", "x/1", "false"]).output().unwrap();
    let object: serde_json::Value = serde_json::from_slice(&json.stderr).unwrap();
    assert_eq!((json.status.code(), &object["skipped"]["once_per_ms"]), (Some(0), &3_600_000.into()));
    assert_eq!(
        exit_and_errors(
            &dir.leasehold().args(["-q", "run", "--once-per", "1h", "x/1", "false"]).output().unwrap()
        ),
        (0, vec![])
    );
    assert_eq!(exit_and_errors(&dir.run(["-n", "--once-per", "1h", "x/1", "false"]).output().unwrap()).0, 0);
}

#[test]
fn a_waiting_once_per_run_ends_when_another_run_succeeds() {
    let dir = TestDir::new();
    let holder = holding(&dir, &["--once-per", "1h"]);
    let waiter = dir.run(["--once-per", "1h", "x/1", "echo", "again"]).start();
    dir.until_waiting(1);
    end(holder);
    let (code, errors) = waiter.end();
    assert_eq!(code, 0, "{errors:?}");
    assert!(errors.last().unwrap().contains("Skipped: last succeeded "), "{errors:?}");
    assert_eq!(dir.look("x", "1").queue_length, 0);
}

#[test]
fn a_waiting_once_per_run_starts_when_the_other_run_fails() {
    let dir = TestDir::new();
    let mut holder =
        dir.script(&["--once-per", "1h"], "echo go; read line; exit 1").stdin(Stdio::piped()).start();
    holder.wait_for_line("go");
    let waiter = dir.run(["--once-per", "1h", "x/1", "echo", "again"]).start();
    dir.until_waiting(1);
    holder.write("\n");
    waiter.wait_for_line("again");
    assert_eq!((holder.code(), waiter.code()), (1, 0));
    assert!(dir.look("x", "1").holders[0].kept, "the second run succeeded");
}

#[test]
fn the_place_of_a_killed_waiter_expires() {
    let dir = TestDir::new();
    let holder = holding(&dir, &[]);
    let dead = dir.run(["x/1", "true"]).start();
    dir.until_waiting(1);
    dead.signal(Signal::KILL);
    assert_eq!(dead.code(), -9);
    let waiter = dir.run(["x/1", "true"]).start();
    eventually("both are in the queue", || dir.look("x", "1").queue_length == 2);
    end(holder);
    assert_eq!(waiter.code(), 0);
}
