//! `leasehold run -r a/1 -r b/2`: a command that holds several resources at once.
#![allow(clippy::unwrap_used, reason = "a test is a program of its own")]

mod support;

use std::process::Stdio;

use leasehold::{Eviction, OperatorAction, OperatorCommand};
use support::{Running, Start as _, TestDir, eventually, exit_and_errors, text};

const BOTH: [&str; 4] = ["-r", "b/2", "-r", "a/1"];

fn several(dir: &TestDir, options: &[&str], script: &str) -> Running {
    let mut command = dir.run(options);
    let running = command.args(BOTH).args(["--", "sh", "-c", script]).stdin(Stdio::piped()).start();
    running.wait_for_line("go");
    running
}

fn holders(dir: &TestDir) -> (u32, u32) {
    (dir.look("a", "1").holder_count, dir.look("b", "2").holder_count)
}

#[test]
fn all_are_held_and_released_together_and_the_command_knows_them() {
    let dir = TestDir::new();
    let script = "echo \"$LEASEHOLD_RESOURCES|$LEASEHOLD_TOKENS|$LEASEHOLD_RESOURCE|$LEASEHOLD_TOKEN\"; echo go; read line";
    let mut command = dir.run(BOTH);
    let mut running = command.args(["--", "sh", "-c", script]).stdin(Stdio::piped()).start();
    let line = running.next_line();
    running.wait_for_line("go");
    assert_eq!(holders(&dir), (1, 1));
    let token = |kind, id| dir.look(kind, id).holders[0].token;
    let (a, b) = (token("a", "1"), token("b", "2"));
    assert_eq!(line, format!("a/1 b/2|a/1={a} b/2={b}|a/1|{a}"), "in the order of the keys");
    for resource in ["a/1", "b/2"] {
        assert_eq!(exit_and_errors(&dir.run(["-n", resource, "true"]).output().unwrap()).0, 75);
    }
    running.write("\n");
    assert_eq!(running.code(), 0);
    assert_eq!(holders(&dir), (0, 0));
}

#[test]
fn all_or_none_within_one_wait() {
    let dir = TestDir::new();
    let mut holder = dir.run(["b/2", "--", "sh", "-c", "echo go; read line"]).stdin(Stdio::piped()).start();
    holder.wait_for_line("go");
    for wait in [&["-n"][..], &["-w", "0.2"]] {
        let output = dir.run(wait).args(BOTH).args(["--", "true"]).output().unwrap();
        let (code, errors) = exit_and_errors(&output);
        assert_eq!((code, errors.len()), (75, 1), "{errors:?}");
        assert!(errors[0].starts_with("leasehold: b/2: held by "), "{errors:?}");
        assert_eq!(holders(&dir), (0, 1), "nothing stays held");
    }
    let waiter = dir.run(BOTH).args(["--", "echo", "both"]).start();
    eventually("it holds the first and waits for the second", || {
        holders(&dir) == (1, 1) && dir.look("b", "2").queue_length == 1
    });
    holder.write("\n");
    waiter.wait_for_line("both");
    assert_eq!(waiter.code(), 0);
    assert_eq!(holders(&dir), (0, 0));
}

#[test]
fn the_loss_of_one_stops_the_command() {
    let dir = TestDir::new();
    let running = several(&dir, &["--ttl", "2s"], "echo go; exec sleep 600");
    let action = OperatorAction::Evict(Eviction::Now);
    let order = OperatorCommand::new("b/2".parse().unwrap(), action, "a test", "to see what happens");
    dir.with_client(async |client| client.order(&order).await.unwrap());
    let (code, errors) = running.end();
    assert_eq!(code, 79, "{errors:?}");
    assert!(errors[0].starts_with("leasehold: b/2: an operator evicted it: stopping"), "{errors:?}");
    assert!(errors[1].starts_with("leasehold: a/1, b/2: the lease was lost"), "{errors:?}");
    assert_eq!(holders(&dir), (0, 0), "the other one is released");
}

#[test]
fn readers_share_all_of_them_and_an_inner_run_enters() {
    let dir = TestDir::new();
    let readers =
        [several(&dir, &["-s"], "echo go; read line"), several(&dir, &["-s"], "echo go; read line")];
    assert_eq!(holders(&dir), (2, 2));
    for mut reader in readers {
        reader.write("\n");
        assert_eq!(reader.code(), 0);
    }
    let inner = "\"$L\" run -n b/2 -- echo inner";
    let output = dir.shell(&format!("\"$L\" run -r a/1 -r b/2 -- sh -c '{inner}'")).output().unwrap();
    assert_eq!((text(&output).as_str(), output.status.code()), ("inner\n", Some(0)));
}

#[test]
fn what_makes_no_sense_with_several_resources_is_refused() {
    let dir = TestDir::new();
    let table = [
        (&["-r", "a/1", "-r", "a/1", "--", "true"][..], "named twice"),
        (&["--once-per", "1h", "-r", "a/1", "-r", "b/2", "--", "true"], "--once-per is for one resource"),
        (&["-r", "a/1"], "the command is missing"),
        (&["-r", "a/1", "-c", "true", "b/2"], "both -c and a command"),
        (&["-r", "A/1", "--", "true"], "invalid value"),
    ];
    for (words, why) in table {
        let (code, errors) = exit_and_errors(&dir.run(words).output().unwrap());
        assert_eq!((code, errors.len()), (64, 1), "{words:?}: {errors:?}");
        assert!(errors[0].contains(why), "{words:?}: {errors:?}");
    }
    let output = dir.run(["-r", "a/1", "-c", "echo $LEASEHOLD_RESOURCES"]).output().unwrap();
    assert_eq!(text(&output), "a/1\n");
}
