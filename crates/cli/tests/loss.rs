//! When the lease is lost, the command and everything that it started are dead before the resource is granted
//! to another run.

mod support;

use std::{fs, path::Path, process::Stdio};

use leasehold::Eviction;
use rustix::process::Signal;
use support::{Running, Start as _, TIMEOUT, TestDir, children, eventually, is_alive, pid_in, send, state};

/// A lease of two seconds, so that losing it does not take long.
const SHORT: [&str; 2] = ["--ttl", "2s"];

#[track_caller]
fn assert_lost(running: Running) -> Vec<String> {
    let (code, errors) = running.end();
    assert_eq!(code, 79, "{errors:?}");
    let last = errors.last().map_or("", String::as_str);
    assert!(last.contains("the lease was lost, and the command is dead"), "{errors:?}");
    errors
}

#[test]
fn an_eviction_at_expiry_gives_the_command_time_to_end() {
    let dir = TestDir::new();
    let running =
        dir.script(&SHORT, "trap 'echo told; exit 3' TERM; echo go; while :; do sleep 0.05; done").start();
    running.wait_for_line("go");
    dir.evict(Eviction::AtExpiry);
    running.wait_for_line("told");
    let errors = assert_lost(running);
    assert_eq!(errors.len(), 2, "{errors:?}");
    assert_eq!(errors[0], "leasehold: x/1: an operator evicted it: stopping the command");
}

#[test]
fn an_eviction_now_kills_at_once() {
    let dir = TestDir::new();
    let running = dir.script(&SHORT, "trap 'echo told' TERM; echo go; while :; do sleep 0.05; done").start();
    running.wait_for_line("go");
    dir.evict(Eviction::Now);
    let errors = assert_lost(running);
    assert!(errors[0].contains("an operator evicted it"), "{errors:?}");
}

/// Runs a script until it prints `go`, and evicts it. The pids that it has written to these files.
#[track_caller]
fn evicted(script: &str, pids: &[&str]) -> Vec<i32> {
    let dir = TestDir::new();
    let running = dir.script(&SHORT, script).start();
    running.wait_for_line("go");
    let pids: Vec<i32> = pids.iter().map(|name| pid_in(&dir.path(name))).collect();
    assert!(pids.iter().all(|pid| is_alive(*pid)));
    dir.evict(Eviction::AtExpiry);
    assert_lost(running);
    pids
}

#[track_caller]
fn assert_dead(pids: &[i32]) {
    for &pid in pids {
        assert!(!is_alive(pid), "process {pid} outlived the lease");
    }
}

#[test]
fn a_command_that_ignores_term_is_killed() {
    assert_dead(&evicted("trap '' TERM; echo $$ > pid; echo go; while :; do sleep 0.05; done", &["pid"]));
}

#[test]
fn grandchildren_are_killed() {
    let script = "trap '' TERM
        (trap '' TERM; sh -c 'echo $$ > one; trap \"\" TERM; while :; do sleep 0.05; done') &
        echo $$ > pid; until [ -s one ]; do sleep 0.01; done; echo go; wait; while :; do sleep 0.05; done";
    assert_dead(&evicted(script, &["pid", "one"]));
}

#[test]
fn a_grandchild_in_a_session_of_its_own_is_killed() {
    let script = "setsid sh -c 'echo $$ > pid; trap \"\" TERM HUP; while :; do sleep 0.05; done' &
        until [ -s pid ]; do sleep 0.01; done; echo go; wait";
    assert_dead(&evicted(script, &["pid"]));
}

#[test]
fn a_daemon_that_left_its_parents_is_killed() {
    let daemon =
        "(setsid sh -c 'echo $$ > pid; trap \"\" TERM HUP; while :; do sleep 0.05; done' >/dev/null 2>&1 &)";
    assert_dead(&evicted(
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
    assert_dead(&evicted(&script, &["pid"]));
}

#[test]
fn a_command_that_forks_all_the_time_is_killed() {
    // Three chains of processes: each process starts its successor and exits, so there is always a new one.
    let script = "cat > line <<'END'\ntrap '' TERM\n[ -e stop ] || sh ./line &\nEND
        for n in 1 2 3; do sh ./line & done; echo $$ > pid; echo go; trap '' TERM; while :; do sleep 0.05; done";
    let dir = TestDir::new();
    let running = dir.script(&SHORT, script).start();
    running.wait_for_line("go");
    dir.evict(Eviction::Now);
    assert_lost(running);
    let left = std::process::Command::new("pgrep").args(["-f", "sh ./line"]).output().unwrap();
    let here =
        |pid: &&str| fs::read_link(format!("/proc/{pid}/cwd")).is_ok_and(|cwd| cwd == dir.directory.path());
    let left = String::from_utf8(left.stdout).unwrap();
    assert_eq!(left.lines().filter(here).count(), 0, "{left}");
}

#[test]
fn a_stopped_command_is_killed() {
    let dir = TestDir::new();
    let running =
        dir.script(&SHORT, "trap '' TERM; echo $$ > pid; echo go; while :; do sleep 0.05; done").start();
    running.wait_for_line("go");
    let pid = pid_in(&dir.path("pid"));
    send(pid, Signal::STOP);
    eventually("it is stopped", || state(pid) == Some('T'));
    dir.evict(Eviction::AtExpiry);
    assert_lost(running);
    assert_dead(&[pid]);
}

#[test]
fn a_stopped_command_gets_the_term() {
    let dir = TestDir::new();
    let script = "trap 'echo told; exit 0' TERM; echo $$ > pid; echo go; while :; do sleep 0.05; done";
    let running = dir.script(&["--ttl", "6s", "--grace", "2s"], script).start();
    running.wait_for_line("go");
    send(pid_in(&dir.path("pid")), Signal::STOP);
    dir.evict(Eviction::AtExpiry);
    running.wait_for_line("told");
    assert_lost(running);
}

#[test]
fn a_command_that_has_just_ended_is_not_lost() {
    let dir = TestDir::new();
    for _ in 0..20 {
        assert_eq!(dir.script(&SHORT, "exit 0").start().code(), 0);
    }
}

#[test]
fn without_renewal_the_command_gets_term_in_time() {
    let dir = TestDir::new();
    let script = "trap 'echo told; exit 0' TERM; echo go; while :; do sleep 0.05; done";
    let running = dir.script(&["--ttl", "2s", "--no-renew"], script).start();
    running.wait_for_line("go");
    running.wait_for_line("told");
    let errors = assert_lost(running);
    assert!(errors[0].contains("the ttl is over (--no-renew)"), "{errors:?}");
}

#[test]
fn a_command_is_stopped_after_max_hold() {
    let dir = TestDir::new();
    let script = "trap 'echo told; exit 0' TERM; echo go; while :; do sleep 0.05; done";
    let running = dir.script(&["--ttl", "10s", "--max-hold", "1s"], script).start();
    running.wait_for_line("go");
    running.wait_for_line("told");
    let errors = assert_lost(running);
    assert!(errors[0].contains("max_hold"), "{errors:?}");
    assert_eq!(dir.look("x", "1").holder_count, 0, "released once the command was dead");
}

#[test]
fn the_command_is_dead_before_another_one_is_granted() {
    let dir = TestDir::new();
    let alone = "echo in >> log; trap '' TERM; while :; do echo $$ >> log; sleep 0.01; done";
    let first = dir.script(&["--ttl", "1s"], alone).start();
    eventually("it works", || lines(&dir.path("log")) > 3);
    let mut second = dir.run(["x/1", "--", "sh", "-c", "echo next >> log"]).start();
    dir.until_waiting(1);
    dir.evict(Eviction::AtExpiry);
    assert!(second.wait().success());
    let log = fs::read_to_string(dir.path("log")).unwrap();
    assert_eq!(log.lines().last(), Some("next"), "the first one worked on after the second was granted");
    assert_lost(first);
}

fn lines(path: &Path) -> usize {
    fs::read_to_string(path).unwrap_or_default().lines().count()
}

#[test]
fn while_leasehold_is_stopped_the_guardian_keeps_the_deadline() {
    let dir = TestDir::new();
    let script = "trap 'echo told' TERM; echo $$ > pid; echo go; while :; do sleep 0.05; done";
    let running = dir.script(&SHORT, script).start();
    running.wait_for_line("go");
    let pid = pid_in(&dir.path("pid"));
    running.signal(Signal::STOP);
    running.wait_for_line("told");
    eventually("the command is dead", || !is_alive(pid));
    assert_eq!(state(running.pid()), Some('T'), "leasehold is still stopped");
    running.signal(Signal::CONT);
    assert_lost(running);
}

#[test]
fn leasehold_stopped_and_resumed_in_time_goes_on() {
    let dir = TestDir::new();
    let mut running =
        dir.script(&["--ttl", "20s"], "echo go; read line; exit 4").stdin(Stdio::piped()).start();
    running.wait_for_line("go");
    running.signal(Signal::STOP);
    eventually("it is stopped", || state(running.pid()) == Some('T'));
    running.signal(Signal::CONT);
    running.write("\n");
    assert_eq!(running.code(), 4);
}

#[test]
fn if_leasehold_is_killed_the_guardian_ends_the_command() {
    let dir = TestDir::new();
    let daemon = "(setsid sh -c 'echo $$ > daemon; trap \"\" TERM HUP; while :; do sleep 0.05; done' >/dev/null 2>&1 &)";
    let script = format!(
        "{daemon}; trap 'echo told' TERM; echo $$ > pid; until [ -s daemon ]; do sleep 0.01; done; echo go; while :; do sleep 0.05; done"
    );
    let running = dir.script(&SHORT, &script).start();
    running.wait_for_line("go");
    let pids = [pid_in(&dir.path("pid")), pid_in(&dir.path("daemon"))];
    let guardian = children(running.pid())[0];
    running.signal(Signal::KILL);
    running.wait_for_line("told");
    eventually("all of it is dead", || !pids.iter().any(|pid| is_alive(*pid)));
    eventually("the guardian goes", || !is_alive(guardian));
    assert_eq!(running.code(), -9);
    assert_eq!(dir.run(["-w", "30", "x/1", "true"]).start().code(), 0, "and the lease runs out");
}

#[test]
fn if_the_guardian_is_killed_leasehold_ends_the_command() {
    let dir = TestDir::new();
    let running =
        dir.script(&[], "trap '' TERM; echo $$ > pid; echo go; while :; do sleep 0.05; done").start();
    running.wait_for_line("go");
    let pid = pid_in(&dir.path("pid"));
    send(children(running.pid())[0], Signal::KILL);
    let (code, errors) = running.end();
    assert_eq!((code, errors.len()), (70, 1), "{errors:?}");
    assert!(errors[0].contains("guardian"), "{errors:?}");
    assert_dead(&[pid]);
    assert_eq!(dir.look("x", "1").holder_count, 0);
}

#[test]
fn if_the_guardian_is_stopped_leasehold_ends_the_command_in_time() {
    let dir = TestDir::new();
    let running =
        dir.script(&SHORT, "trap '' TERM; echo $$ > pid; echo go; while :; do sleep 0.05; done").start();
    running.wait_for_line("go");
    let (pid, guardian) = (pid_in(&dir.path("pid")), children(running.pid())[0]);
    send(guardian, Signal::STOP);
    eventually("it is stopped", || state(guardian) == Some('T'));
    dir.evict(Eviction::AtExpiry);
    assert_lost(running);
    assert_dead(&[pid, guardian]);
}

#[test]
fn the_guardian_survives_signals_that_end_other_processes() {
    let dir = TestDir::new();
    let mut running = dir.script(&[], "echo go; read line; exit 6").stdin(Stdio::piped()).start();
    running.wait_for_line("go");
    let guardian = children(running.pid())[0];
    for signal in [Signal::TERM, Signal::INT, Signal::HUP, Signal::QUIT, Signal::USR1, Signal::USR2] {
        send(guardian, signal);
    }
    running.write("\n");
    assert_eq!(running.code(), 6);
}

#[test]
fn a_lease_that_was_gone_is_reported_when_the_command_ends() {
    let dir = TestDir::new();
    let mut running = dir.script(&["--ttl", "1h"], "echo go; read line").stdin(Stdio::piped()).start();
    running.wait_for_line("go");
    dir.evict(Eviction::Now);
    running.write("\n");
    let (code, errors) = running.end();
    assert_eq!((code, errors.len()), (79, 1), "{errors:?}");
    assert!(errors[0].contains("gone before the command ended"), "{errors:?}");
}

#[test]
fn an_operators_request_to_finish_is_printed_and_signalled() {
    let dir = TestDir::new();
    let script = "trap 'echo asked; exit 8' USR1; echo go; while :; do sleep 0.05; done";
    let running = dir.script(&["--ttl", "2s", "--on-ask", "USR1"], script).start();
    running.wait_for_line("go");
    dir.order(leasehold::OperatorAction::Ask { within: TIMEOUT });
    running.wait_for_line("asked");
    let (code, errors) = running.end();
    assert_eq!((code, errors.len()), (8, 1), "{errors:?}");
    assert!(errors[0].contains("x/1: a test asks to finish within"), "{errors:?}");
    assert!(errors[0].ends_with("to see what happens"), "{errors:?}");
}

/// The guardian stops the command a little before the engine gives the lease up.
#[test]
fn every_loss_is_counted_and_logged_once() {
    let dir = TestDir::new();
    let metrics = dir.path("metrics.prom");
    for (count, how) in [Eviction::AtExpiry, Eviction::Now].into_iter().enumerate() {
        let mut command = dir.leasehold();
        command.arg("--metrics-file").arg(&metrics).args(["-v", "run", "--ttl", "2s", "x/1", "--"]);
        let script = "trap 'exit 0' TERM; echo go; while :; do sleep 0.02; done";
        let running = command.args(["sh", "-c", script]).start();
        running.wait_for_line("go");
        dir.evict(how);
        let mut logged = 0;
        loop {
            let line = running.next_error_line();
            logged += usize::from(line.contains("event=\"lost\""));
            if line.contains("the lease was lost, and the command is dead") {
                break;
            }
        }
        assert_eq!((logged, running.code()), (1, 79), "{count}");
        let text = fs::read_to_string(&metrics).unwrap();
        let lost = text.lines().filter(|line| line.starts_with("leasehold_lost_total{"));
        let lost: u64 = lost.map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap()).sum();
        assert_eq!(lost, 1, "{how:?}: {text}");
    }
}
