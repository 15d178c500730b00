//! Signals reach the command, its whole group, and nobody twice.

mod support;

use std::{fs, process::Stdio};

use rustix::process::Signal;
use support::{Site, Start as _, children, eventually, is_alive, pid_in, state};

#[test]
fn signals_are_passed_on() {
    let site = Site::new();
    let names = [
        (Signal::HUP, "HUP"),
        (Signal::INT, "INT"),
        (Signal::QUIT, "QUIT"),
        (Signal::TERM, "TERM"),
        (Signal::USR1, "USR1"),
        (Signal::USR2, "USR2"),
        (Signal::ALARM, "ALRM"),
        (Signal::WINCH, "WINCH"),
    ];
    let traps: String = names.iter().map(|(_, name)| format!("trap 'echo {name}' {name}; ")).collect();
    let script = format!("{traps} trap 'echo one more' CONT; echo go; while :; do sleep 0.02; done");
    let running = site.script(&[], &script).start();
    running.until("go");
    for (signal, name) in names {
        running.signal(signal);
        assert_eq!(running.line(), name);
    }
    running.signal(Signal::KILL);
}

#[test]
fn a_signal_reaches_the_whole_group_once() {
    let site = Site::new();
    // The inner one counts; the shell around it waits for it.
    let inner = "trap 'echo term >> count' TERM; trap 'exit 0' USR1; echo go; while :; do sleep 0.02; done";
    let script = format!(
        "trap : TERM USR1; sh -c '{}' & while kill -0 $! 2>/dev/null; do wait $!; done",
        inner.replace('\'', "'\\''")
    );
    let running = site.script(&[], &script).start();
    running.until("go");
    running.signal(Signal::TERM);
    eventually("it is told", || site.path("count").exists());
    running.signal(Signal::USR1);
    assert_eq!(running.code(), 0);
    assert_eq!(fs::read_to_string(site.path("count")).unwrap(), "term\n");
}

#[test]
fn leasehold_goes_when_the_command_has_gone_and_not_before() {
    let site = Site::new();
    let script = "trap 'echo not yet' TERM; echo go; read line; while ! read line; do :; done; exit 5";
    let mut running = site.script(&[], script).stdin(Stdio::piped()).start();
    running.until("go");
    for _ in 0..3 {
        running.signal(Signal::TERM);
    }
    running.until("not yet");
    assert!(running.is_running());
    running.write("a\nb\nc\nd\n");
    assert_eq!(running.code(), 5);
}

#[test]
fn a_command_that_dies_of_the_signal_says_so() {
    let site = Site::new();
    for (signal, code) in [(Signal::TERM, 143), (Signal::INT, 130), (Signal::HUP, 129), (Signal::USR1, 138)] {
        let running = site.run(["x/1", "--", "sh", "-c", "echo go; exec sleep 600"]).start();
        running.until("go");
        running.signal(signal);
        assert_eq!(running.end(), (code, vec![]));
    }
}

#[test]
fn what_is_ignored_stays_ignored() {
    let site = Site::new();
    let script = "trap '' HUP INT; exec \"$L\" run x/1 -- sh -c 'echo go; read line; exit 3'";
    let mut running = site.shell(script).stdin(Stdio::piped()).start();
    running.until("go");
    let command = children(children(running.pid())[0])[0];
    let ignored = |pid: i32| {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap().trim().to_owned();
        u64::from_str_radix(&mask, 16).unwrap()
    };
    assert_eq!(ignored(command) & 0b11, 0b11, "the command ignores HUP and INT");
    running.signal(Signal::HUP);
    running.signal(Signal::INT);
    running.write("\n");
    assert_eq!(running.code(), 3);
}

#[test]
fn the_command_begins_with_ordinary_signals() {
    let site = Site::new();
    let masks = |output: std::process::Output| {
        let text = String::from_utf8(output.stdout).unwrap();
        text.lines().filter(|line| line.starts_with("Sig")).skip(1).map(str::to_owned).collect::<Vec<_>>()
    };
    let direct = masks(site.command("cat").arg("/proc/self/status").output().unwrap());
    assert!(direct.len() >= 3);
    assert_eq!(masks(site.run(["x/1", "--", "cat", "/proc/self/status"]).output().unwrap()), direct);
}

#[test]
fn a_stopped_command_goes_on_when_told_through_leasehold() {
    let site = Site::new();
    let mut running =
        site.script(&[], "echo $$ > pid; echo go; read line; exit 2").stdin(Stdio::piped()).start();
    running.until("go");
    let pid = pid_in(&site.path("pid"));
    support::send(pid, Signal::STOP);
    eventually("it is stopped", || state(pid) == Some('T'));
    assert!(running.is_running(), "leasehold goes on renewing");
    running.signal(Signal::CONT);
    eventually("it goes on", || state(pid) != Some('T'));
    running.write("\n");
    assert_eq!(running.code(), 2);
    assert!(!is_alive(pid));
}
