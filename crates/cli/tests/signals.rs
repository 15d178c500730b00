//! Signals are forwarded to the process group of the command, once.

mod support;

use std::{fs, process::Stdio};

use rustix::process::Signal;
use support::{Start as _, TestDir, children, eventually, is_alive, pid_in, state};

#[test]
fn signals_are_forwarded() {
    let dir = TestDir::new();
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
    let running = dir.script(&[], &script).start();
    running.wait_for_line("go");
    for (signal, name) in names {
        running.signal(signal);
        assert_eq!(running.next_line(), name);
    }
    running.signal(Signal::KILL);
}

#[test]
fn a_signal_reaches_the_whole_group_once() {
    let dir = TestDir::new();
    // The inner shell counts the signals; the outer shell waits for it.
    let inner = "trap 'echo term >> count' TERM; trap 'exit 0' USR1; echo go; while :; do sleep 0.02; done";
    let script = format!(
        "trap : TERM USR1; sh -c '{}' & while kill -0 $! 2>/dev/null; do wait $!; done",
        inner.replace('\'', "'\\''")
    );
    let running = dir.script(&[], &script).start();
    running.wait_for_line("go");
    running.signal(Signal::TERM);
    eventually("it has got the signal", || dir.path("count").exists());
    running.signal(Signal::USR1);
    assert_eq!(running.code(), 0);
    assert_eq!(fs::read_to_string(dir.path("count")).unwrap(), "term\n");
}

#[test]
fn leasehold_exits_when_the_command_has_exited_and_not_before() {
    let dir = TestDir::new();
    let script = "trap 'echo not yet' TERM; echo go; read line; while ! read line; do :; done; exit 5";
    let mut running = dir.script(&[], script).stdin(Stdio::piped()).start();
    running.wait_for_line("go");
    for _ in 0..3 {
        running.signal(Signal::TERM);
    }
    running.wait_for_line("not yet");
    assert!(running.is_running());
    running.write("a\nb\nc\nd\n");
    assert_eq!(running.code(), 5);
}

#[test]
fn a_command_that_is_killed_by_a_forwarded_signal_is_128_plus_its_number() {
    let dir = TestDir::new();
    for (signal, code) in [(Signal::TERM, 143), (Signal::INT, 130), (Signal::HUP, 129), (Signal::USR1, 138)] {
        let running = dir.run(["x/1", "--", "sh", "-c", "echo go; exec sleep 600"]).start();
        running.wait_for_line("go");
        running.signal(signal);
        assert_eq!(running.end(), (code, vec![]));
    }
}

#[test]
fn a_signal_that_is_ignored_at_the_start_stays_ignored() {
    let dir = TestDir::new();
    let script = "trap '' HUP INT; exec \"$L\" run x/1 -- sh -c 'echo go; read line; exit 3'";
    let mut running = dir.shell(script).stdin(Stdio::piped()).start();
    running.wait_for_line("go");
    let command = children(children(running.pid())[0])[0];
    let status = fs::read_to_string(format!("/proc/{command}/status")).unwrap();
    assert_eq!(ignored(&status) & 0b11, 0b11, "the command ignores HUP and INT");
    running.signal(Signal::HUP);
    running.signal(Signal::INT);
    running.write("\n");
    assert_eq!(running.code(), 3);
}

#[test]
fn the_command_starts_with_the_signal_dispositions_of_its_caller() {
    let dir = TestDir::new();
    let masks = |output: std::process::Output| {
        let text = String::from_utf8(output.stdout).unwrap();
        text.lines().filter(|line| line.starts_with("Sig")).skip(1).map(str::to_owned).collect::<Vec<_>>()
    };
    let direct = masks(dir.command("cat").arg("/proc/self/status").output().unwrap());
    assert!(direct.len() >= 3);
    assert_eq!(masks(dir.run(["x/1", "--", "cat", "/proc/self/status"]).output().unwrap()), direct);
}

/// Whatever the shell that started the tests ignores: see `support/default_signals.rs`.
#[test]
fn tests_start_programs_with_default_signals() {
    let dir = TestDir::new();
    let status = dir.command("cat").arg("/proc/self/status").output().unwrap();
    // Signals 1 to 31. `env` cannot reset the two after them, which glibc keeps for itself.
    let ignored = ignored(&String::from_utf8(status.stdout).unwrap()) & 0x7fff_ffff;
    assert_eq!(ignored, 0, "{ignored:#x}");
}

/// The signals that a process ignores as a bit mask, from its `/proc/PID/status`.
fn ignored(status: &str) -> u64 {
    let mask =
        status.lines().find_map(|line| line.strip_prefix("SigIgn:")).expect("every process has this line");
    u64::from_str_radix(mask.trim(), 16).expect("the mask is a hex number")
}

#[test]
fn a_stopped_command_continues_when_leasehold_gets_cont() {
    let dir = TestDir::new();
    let mut running =
        dir.script(&[], "echo $$ > pid; echo go; read line; exit 2").stdin(Stdio::piped()).start();
    running.wait_for_line("go");
    let pid = pid_in(&dir.path("pid"));
    support::send(pid, Signal::STOP);
    eventually("it is stopped", || state(pid) == Some('T'));
    assert!(running.is_running(), "leasehold goes on renewing");
    running.signal(Signal::CONT);
    eventually("it goes on", || state(pid) != Some('T'));
    running.write("\n");
    assert_eq!(running.code(), 2);
    assert!(!is_alive(pid));
}
