//! When the lease is lost: the command and everything that it started is dead before anyone else can be granted.

mod support;

use std::{fs, path::Path, process::Stdio};

use leasehold::Eviction;
use rustix::process::Signal;
use support::{PATIENCE, Running, Site, Start as _, children, eventually, is_alive, pid_in, send, state};

/// A lease of two seconds, so that losing it does not take long.
const SHORT: [&str; 2] = ["--ttl", "2s"];

#[track_caller]
fn is_lost(running: Running) -> Vec<String> {
    let (code, errors) = running.end();
    assert_eq!(code, 79, "{errors:?}");
    let last = errors.last().map_or("", String::as_str);
    assert!(last.contains("the lease was lost, and the command is dead"), "{errors:?}");
    errors
}

#[test]
fn an_eviction_at_expiry_lets_the_command_end_in_good_order() {
    let site = Site::new();
    let running =
        site.script(&SHORT, "trap 'echo told; exit 3' TERM; echo go; while :; do sleep 0.05; done").start();
    running.until("go");
    site.evict(Eviction::AtExpiry);
    running.until("told");
    let errors = is_lost(running);
    assert_eq!(errors.len(), 2, "{errors:?}");
    assert_eq!(errors[0], "leasehold: x/1: an operator evicted it: stopping the command");
}

#[test]
fn an_eviction_now_kills_at_once() {
    let site = Site::new();
    let running = site.script(&SHORT, "trap 'echo told' TERM; echo go; while :; do sleep 0.05; done").start();
    running.until("go");
    site.evict(Eviction::Now);
    let errors = is_lost(running);
    assert!(errors[0].contains("an operator evicted it"), "{errors:?}");
}

/// Runs a script until it says `go`, evicts it, and returns what it wrote as its pids.
#[track_caller]
fn evicted(script: &str, pids: &[&str]) -> Vec<i32> {
    let site = Site::new();
    let running = site.script(&SHORT, script).start();
    running.until("go");
    let pids: Vec<i32> = pids.iter().map(|name| pid_in(&site.path(name))).collect();
    assert!(pids.iter().all(|pid| is_alive(*pid)));
    site.evict(Eviction::AtExpiry);
    is_lost(running);
    pids
}

#[track_caller]
fn are_dead(pids: &[i32]) {
    for &pid in pids {
        assert!(!is_alive(pid), "process {pid} outlived the lease");
    }
}

#[test]
fn a_command_that_ignores_term_is_killed() {
    are_dead(&evicted("trap '' TERM; echo $$ > pid; echo go; while :; do sleep 0.05; done", &["pid"]));
}

#[test]
fn grandchildren_are_killed() {
    let script = "trap '' TERM
        (trap '' TERM; sh -c 'echo $$ > one; trap \"\" TERM; while :; do sleep 0.05; done') &
        echo $$ > pid; until [ -s one ]; do sleep 0.01; done; echo go; wait; while :; do sleep 0.05; done";
    are_dead(&evicted(script, &["pid", "one"]));
}

#[test]
fn a_grandchild_in_a_session_of_its_own_is_killed() {
    let script = "setsid sh -c 'echo $$ > pid; trap \"\" TERM HUP; while :; do sleep 0.05; done' &
        until [ -s pid ]; do sleep 0.01; done; echo go; wait";
    are_dead(&evicted(script, &["pid"]));
}

#[test]
fn a_daemon_that_left_its_parents_is_killed() {
    let daemon =
        "(setsid sh -c 'echo $$ > pid; trap \"\" TERM HUP; while :; do sleep 0.05; done' >/dev/null 2>&1 &)";
    are_dead(&evicted(
        &format!("{daemon}; until [ -s pid ]; do sleep 0.01; done; echo go; sleep 600"),
        &["pid"],
    ));
}

#[test]
fn a_daemon_is_killed_even_if_the_command_itself_ends_on_term() {
    let daemon =
        "(setsid sh -c 'echo $$ > pid; trap \"\" TERM HUP; while :; do sleep 0.05; done' >/dev/null 2>&1 &)";
    let script = format!(
        "{daemon}; until [ -s pid ]; do sleep 0.01; done; trap 'exit 0' TERM; echo go; while :; do sleep 0.05; done"
    );
    are_dead(&evicted(&script, &["pid"]));
}

#[test]
fn one_that_forks_as_fast_as_it_can_is_killed() {
    // Each of a few lines of descent starts its successor and goes: there is never a moment without a new process.
    let script = "cat > line <<'END'\ntrap '' TERM\n[ -e stop ] || sh ./line &\nEND
        for n in 1 2 3; do sh ./line & done; echo $$ > pid; echo go; trap '' TERM; while :; do sleep 0.05; done";
    let site = Site::new();
    let running = site.script(&SHORT, script).start();
    running.until("go");
    site.evict(Eviction::Now);
    is_lost(running);
    let left = std::process::Command::new("pgrep").args(["-f", "sh ./line"]).output().unwrap();
    let here =
        |pid: &&str| fs::read_link(format!("/proc/{pid}/cwd")).is_ok_and(|cwd| cwd == site.directory.path());
    let left = String::from_utf8(left.stdout).unwrap();
    assert_eq!(left.lines().filter(here).count(), 0, "{left}");
}

#[test]
fn a_stopped_command_is_killed() {
    let site = Site::new();
    let running =
        site.script(&SHORT, "trap '' TERM; echo $$ > pid; echo go; while :; do sleep 0.05; done").start();
    running.until("go");
    let pid = pid_in(&site.path("pid"));
    send(pid, Signal::STOP);
    eventually("it is stopped", || state(pid) == Some('T'));
    site.evict(Eviction::AtExpiry);
    is_lost(running);
    are_dead(&[pid]);
}

#[test]
fn a_stopped_command_hears_the_term() {
    let site = Site::new();
    let script = "trap 'echo told; exit 0' TERM; echo $$ > pid; echo go; while :; do sleep 0.05; done";
    let running = site.script(&["--ttl", "6s", "--grace", "2s"], script).start();
    running.until("go");
    send(pid_in(&site.path("pid")), Signal::STOP);
    site.evict(Eviction::AtExpiry);
    running.until("told");
    is_lost(running);
}

#[test]
fn a_command_that_has_just_ended_is_not_lost() {
    let site = Site::new();
    for _ in 0..20 {
        assert_eq!(site.script(&SHORT, "exit 0").start().code(), 0);
    }
}

#[test]
fn a_command_is_told_in_time_without_renewal() {
    let site = Site::new();
    let script = "trap 'echo told; exit 0' TERM; echo go; while :; do sleep 0.05; done";
    let running = site.script(&["--ttl", "2s", "--no-renew"], script).start();
    running.until("go");
    running.until("told");
    let errors = is_lost(running);
    assert!(errors[0].contains("its time is up"), "{errors:?}");
}

#[test]
fn a_command_is_stopped_when_it_was_held_long_enough() {
    let site = Site::new();
    let script = "trap 'echo told; exit 0' TERM; echo go; while :; do sleep 0.05; done";
    let running = site.script(&["--ttl", "10s", "--max-hold", "1s"], script).start();
    running.until("go");
    running.until("told");
    let errors = is_lost(running);
    assert!(errors[0].contains("max_hold"), "{errors:?}");
    assert_eq!(site.look("x", "1").holder_count, 0, "given back once it was dead");
}

#[test]
fn the_command_is_dead_before_another_one_is_granted() {
    let site = Site::new();
    let alone = "echo in >> log; trap '' TERM; while :; do echo $$ >> log; sleep 0.01; done";
    let first = site.script(&["--ttl", "1s"], alone).start();
    eventually("it works", || lines(&site.path("log")) > 3);
    let mut second = site.run(["x/1", "--", "sh", "-c", "echo next >> log"]).start();
    site.until_waiting(1);
    site.evict(Eviction::AtExpiry);
    assert!(second.wait().success());
    let log = fs::read_to_string(site.path("log")).unwrap();
    assert_eq!(log.lines().last(), Some("next"), "the first one worked on after the second was granted");
    is_lost(first);
}

fn lines(path: &Path) -> usize {
    fs::read_to_string(path).unwrap_or_default().lines().count()
}

#[test]
fn while_leasehold_is_stopped_the_guardian_keeps_the_deadline() {
    let site = Site::new();
    let script = "trap 'echo told' TERM; echo $$ > pid; echo go; while :; do sleep 0.05; done";
    let running = site.script(&SHORT, script).start();
    running.until("go");
    let pid = pid_in(&site.path("pid"));
    running.signal(Signal::STOP);
    running.until("told");
    eventually("the command is dead", || !is_alive(pid));
    assert_eq!(state(running.pid()), Some('T'), "leasehold is still stopped");
    running.signal(Signal::CONT);
    is_lost(running);
}

#[test]
fn leasehold_stopped_and_resumed_in_time_goes_on() {
    let site = Site::new();
    let mut running =
        site.script(&["--ttl", "20s"], "echo go; read line; exit 4").stdin(Stdio::piped()).start();
    running.until("go");
    running.signal(Signal::STOP);
    eventually("it is stopped", || state(running.pid()) == Some('T'));
    running.signal(Signal::CONT);
    running.write("\n");
    assert_eq!(running.code(), 4);
}

#[test]
fn if_leasehold_is_killed_the_guardian_ends_the_command() {
    let site = Site::new();
    let daemon = "(setsid sh -c 'echo $$ > daemon; trap \"\" TERM HUP; while :; do sleep 0.05; done' >/dev/null 2>&1 &)";
    let script = format!(
        "{daemon}; trap 'echo told' TERM; echo $$ > pid; until [ -s daemon ]; do sleep 0.01; done; echo go; while :; do sleep 0.05; done"
    );
    let running = site.script(&SHORT, &script).start();
    running.until("go");
    let pids = [pid_in(&site.path("pid")), pid_in(&site.path("daemon"))];
    let guardian = children(running.pid())[0];
    running.signal(Signal::KILL);
    running.until("told");
    eventually("all of it is dead", || !pids.iter().any(|pid| is_alive(*pid)));
    eventually("the guardian goes", || !is_alive(guardian));
    assert_eq!(running.code(), -9);
    assert_eq!(site.run(["-w", "30", "x/1", "true"]).start().code(), 0, "and the lease runs out");
}

#[test]
fn if_the_guardian_is_killed_leasehold_ends_the_command() {
    let site = Site::new();
    let running =
        site.script(&[], "trap '' TERM; echo $$ > pid; echo go; while :; do sleep 0.05; done").start();
    running.until("go");
    let pid = pid_in(&site.path("pid"));
    send(children(running.pid())[0], Signal::KILL);
    let (code, errors) = running.end();
    assert_eq!((code, errors.len()), (70, 1), "{errors:?}");
    assert!(errors[0].contains("guardian"), "{errors:?}");
    are_dead(&[pid]);
    assert_eq!(site.look("x", "1").holder_count, 0);
}

#[test]
fn if_the_guardian_is_stopped_leasehold_ends_the_command_in_time() {
    let site = Site::new();
    let running =
        site.script(&SHORT, "trap '' TERM; echo $$ > pid; echo go; while :; do sleep 0.05; done").start();
    running.until("go");
    let (pid, guardian) = (pid_in(&site.path("pid")), children(running.pid())[0]);
    send(guardian, Signal::STOP);
    eventually("it is stopped", || state(guardian) == Some('T'));
    site.evict(Eviction::AtExpiry);
    is_lost(running);
    are_dead(&[pid, guardian]);
}

#[test]
fn the_guardian_outlives_what_ends_others() {
    let site = Site::new();
    let mut running = site.script(&[], "echo go; read line; exit 6").stdin(Stdio::piped()).start();
    running.until("go");
    let guardian = children(running.pid())[0];
    for signal in [Signal::TERM, Signal::INT, Signal::HUP, Signal::QUIT, Signal::USR1, Signal::USR2] {
        send(guardian, signal);
    }
    running.write("\n");
    assert_eq!(running.code(), 6);
}

#[test]
fn a_lease_that_vanished_is_told_when_the_command_ends() {
    let site = Site::new();
    let mut running = site.script(&["--ttl", "1h"], "echo go; read line").stdin(Stdio::piped()).start();
    running.until("go");
    site.evict(Eviction::Now);
    running.write("\n");
    let (code, errors) = running.end();
    assert_eq!((code, errors.len()), (79, 1), "{errors:?}");
    assert!(errors[0].contains("gone before the command ended"), "{errors:?}");
}

#[test]
fn an_operators_wish_is_told_and_passed_on() {
    let site = Site::new();
    let script = "trap 'echo asked; exit 8' USR1; echo go; while :; do sleep 0.05; done";
    let running = site.script(&["--ttl", "2s", "--on-ask", "USR1"], script).start();
    running.until("go");
    site.order(leasehold::OperatorAction::Ask { within: PATIENCE });
    running.until("asked");
    let (code, errors) = running.end();
    assert_eq!((code, errors.len()), (8, 1), "{errors:?}");
    assert!(errors[0].contains("x/1: a test asks to finish within"), "{errors:?}");
    assert!(errors[0].ends_with("to see what happens"), "{errors:?}");
}
