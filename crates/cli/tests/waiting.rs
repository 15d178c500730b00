//! Who comes when someone else holds it: waits, leaves, shares, or finds that it has been done.

mod support;

use std::{fs, process::Stdio};

use rustix::process::Signal;
use support::{Running, Site, Start as _, ended, eventually, text};

/// Holds `x/1` until it is told to end.
fn holding(site: &Site, options: &[&str]) -> Running {
    let running = site.script(options, "echo go; read line").stdin(Stdio::piped()).start();
    running.until("go");
    running
}

#[track_caller]
fn end(mut running: Running) {
    running.write("\n");
    assert_eq!(running.code(), 0);
}

#[test]
fn who_will_not_wait_is_told_who_holds_it() {
    let site = Site::new();
    let holder = holding(&site, &["--label", "nightly"]);
    for wait in [&["-n"][..], &["-w", "0"], &["-w", "0.05"], &["--wait", "50ms"]] {
        let (code, errors) = ended(&site.run(wait).args(["x/1", "true"]).output().unwrap());
        assert_eq!((code, errors.len()), (75, 1), "{errors:?}");
        let who = format!("leasehold: x/1: held by {}@", holder.pid());
        assert!(errors[0].starts_with(&who) && errors[0].contains("nightly"), "{errors:?}");
    }
    let (code, _) = ended(&site.run(["-n", "-E", "9", "x/1", "true"]).output().unwrap());
    assert_eq!(code, 9);
    let (code, _) = ended(&site.run(["-n", "-E", "0", "x/1", "false"]).output().unwrap());
    assert_eq!(code, 0);
    let (code, errors) =
        ended(&site.leasehold().args(["--json", "run", "-n", "x/1", "true"]).output().unwrap());
    let json: serde_json::Value = serde_json::from_str(&errors[0]).unwrap();
    assert_eq!((code, json["error"]["kind"].as_str()), (75, Some("contended")));
    assert_eq!(json["error"]["effect"], "none");
    end(holder);
}

#[test]
fn who_gave_up_waiting_is_in_nobodys_way() {
    let site = Site::new();
    let holder = holding(&site, &[]);
    assert_eq!(ended(&site.run(["-w", "0.1", "x/1", "true"]).output().unwrap()).0, 75);
    assert_eq!(site.look("x", "1").queue_length, 0);
    end(holder);
}

#[test]
fn who_waits_gets_it_when_it_is_free() {
    let site = Site::new();
    let holder = holding(&site, &[]);
    let waiter = site.run(["x/1", "--", "echo", "mine"]).start();
    site.until_waiting(1);
    end(holder);
    waiter.until("mine");
    assert_eq!(waiter.end(), (0, vec![]));
}

#[test]
fn waiters_come_in_order() {
    let site = Site::new();
    let holder = holding(&site, &["--fair"]);
    let mut waiters = Vec::new();
    for n in 0..4 {
        waiters.push(site.run(["--fair", "x/1", "--", "sh", "-c", &format!("echo {n} >> order")]).start());
        site.until_waiting(n + 1);
    }
    end(holder);
    waiters.into_iter().for_each(|waiter| assert_eq!(waiter.code(), 0));
    assert_eq!(fs::read_to_string(site.path("order")).unwrap(), "0\n1\n2\n3\n");
}

#[test]
fn a_signal_ends_the_wait_and_leaves_the_line() {
    let site = Site::new();
    let holder = holding(&site, &[]);
    for (signal, code) in [(Signal::TERM, 143), (Signal::INT, 130), (Signal::HUP, 129), (Signal::QUIT, 131)] {
        let waiter = site.run(["x/1", "true"]).start();
        site.until_waiting(1);
        waiter.signal(signal);
        assert_eq!(waiter.end(), (code, vec![]));
        assert_eq!(site.look("x", "1").queue_length, 0, "it left the line");
    }
    end(holder);
}

#[test]
fn those_who_watch_are_told_who_holds_it_and_how_many_are_ahead() {
    let site = Site::new();
    let holder = holding(&site, &["--label", "nightly"]);
    let first = site.run(["x/1", "true"]).start();
    site.until_waiting(1);
    let second = site.leasehold().args(["-v", "run", "x/1", "true"]).start();
    let line = second.error();
    let who = format!("leasehold: x/1: held by {}@", holder.pid());
    assert!(line.starts_with(&who) && line.contains("nightly for ") && line.contains("(since 2"), "{line}");
    assert!(line.ends_with("Z), 1 ahead of us"), "{line}");
    end(holder);
    assert_eq!((first.end(), second.code()), ((0, vec![]), 0));
}

#[test]
fn readers_are_there_together_and_writers_alone() {
    let site = Site::new();
    let readers = [holding(&site, &["-s"]), holding(&site, &["-s"])];
    for writer in [&["-n"][..], &["-n", "-x"]] {
        assert_eq!(ended(&site.run(writer).args(["x/1", "true"]).output().unwrap()).0, 75);
    }
    let writer = site.run(["x/1", "--", "echo", "alone"]).start();
    site.until_waiting(1);
    readers.into_iter().for_each(end);
    writer.until("alone");
    assert_eq!(writer.code(), 0);
}

#[test]
fn a_reader_waits_for_one_that_holds_it_alone() {
    let site = Site::new();
    let holder = holding(&site, &[]);
    assert_eq!(ended(&site.run(["-n", "-s", "x/1", "true"]).output().unwrap()).0, 75);
    let reader = site.run(["-s", "x/1", "--", "echo", "read"]).start();
    site.until_waiting(1);
    end(holder);
    reader.until("read");
    assert_eq!(reader.code(), 0);
}

#[test]
fn permits_are_shared_up_to_their_number() {
    let site = Site::new();
    let holders = [holding(&site, &["--permits", "1/3"]), holding(&site, &["--permits", "2/3"])];
    assert_eq!(ended(&site.run(["-n", "--permits", "1/3", "x/1", "true"]).output().unwrap()).0, 75);
    let (code, errors) = ended(&site.run(["-n", "--permits", "1/4", "x/1", "true"]).output().unwrap());
    assert_eq!((code, errors.len()), (78, 1), "{errors:?}");
    assert!(errors[0].contains("a semaphore of 3"), "{errors:?}");
    assert_eq!(ended(&site.run(["-n", "x/1", "true"]).output().unwrap()).0, 78, "nor is it a lease");
    holders.into_iter().for_each(end);
    assert_eq!(ended(&site.run(["-n", "--permits", "1/4", "x/1", "true"]).output().unwrap()).0, 0);
}

#[test]
fn at_least_keeps_it_closed_when_the_command_has_ended() {
    let site = Site::new();
    for (script, code) in [("exit 0", 0), ("exit 7", 7)] {
        let resource = format!("x/{code}");
        let run = |options: &[&str], script| {
            let mut command = site.run(options);
            ended(&command.args([resource.as_str(), "--", "sh", "-c", script]).output().unwrap()).0
        };
        assert_eq!(run(&["--at-least", "1h"], script), code);
        assert_eq!(run(&["-n"], "exit 0"), 75, "closed, whatever became of it");
    }
    assert_eq!(ended(&site.run(["--at-least", "1ms", "y/1", "true"]).output().unwrap()).0, 0);
    assert_eq!(ended(&site.run(["-n", "y/1", "true"]).output().unwrap()).0, 0, "that time has passed");
}

#[test]
fn once_per_hour_is_once_if_it_succeeds() {
    let site = Site::new();
    let once = |script| {
        let output = site.run(["--once-per", "1h", "x/1", "--", "sh", "-c", script]).output().unwrap();
        (ended(&output), text(&output))
    };
    assert_eq!(once("echo one; exit 3"), ((3, vec![]), "one\n".into()));
    assert_eq!(once("echo two"), ((0, vec![]), "two\n".into()), "what failed is done again");
    let done = ((0, vec!["leasehold: x/1: done not long ago".to_owned()]), String::new());
    assert_eq!(once("echo three"), done);
    assert_eq!(
        ended(&site.leasehold().args(["-q", "run", "--once-per", "1h", "x/1", "false"]).output().unwrap()),
        (0, vec![])
    );
    assert_eq!(ended(&site.run(["-n", "--once-per", "1h", "x/1", "false"]).output().unwrap()).0, 0);
}

#[test]
fn who_waits_for_what_is_done_meanwhile_need_not_do_it() {
    let site = Site::new();
    let holder = holding(&site, &["--once-per", "1h"]);
    let waiter = site.run(["--once-per", "1h", "x/1", "echo", "again"]).start();
    site.until_waiting(1);
    end(holder);
    let (code, errors) = waiter.end();
    assert_eq!((code, errors.len()), (0, 1), "{errors:?}");
    assert_eq!(site.look("x", "1").queue_length, 0);
}

#[test]
fn who_waits_for_what_fails_does_it() {
    let site = Site::new();
    let mut holder =
        site.script(&["--once-per", "1h"], "echo go; read line; exit 1").stdin(Stdio::piped()).start();
    holder.until("go");
    let waiter = site.run(["--once-per", "1h", "x/1", "echo", "again"]).start();
    site.until_waiting(1);
    holder.write("\n");
    waiter.until("again");
    assert_eq!((holder.code(), waiter.code()), (1, 0));
    assert!(site.look("x", "1").holders[0].kept, "and now it is done");
}

#[test]
fn a_place_of_a_waiter_that_was_killed_is_given_up() {
    let site = Site::new();
    let holder = holding(&site, &[]);
    let dead = site.run(["x/1", "true"]).start();
    site.until_waiting(1);
    dead.signal(Signal::KILL);
    assert_eq!(dead.code(), -9);
    let waiter = site.run(["x/1", "true"]).start();
    eventually("both are in line", || site.look("x", "1").queue_length == 2);
    end(holder);
    assert_eq!(waiter.code(), 0);
}
