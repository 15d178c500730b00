//! `watch`, and output on a terminal: colours and cursor movement only there.
#![allow(clippy::unwrap_used, reason = "tests")]

mod operator_support;

use std::{
    fs::{File, OpenOptions},
    io::{BufRead as _, BufReader, Read as _},
    process::{Child, Command, Stdio},
    time::Duration,
};

use operator_support::{Running, TestStore, assert_printable};
use rustix::{
    process::{Pid, Signal, kill_process},
    pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt},
    termios::{Winsize, tcsetwinsize},
};
use serde_json::Value;

const MINUTE: Duration = Duration::from_secs(60);

/// Runs the command with stdout on a terminal of this width.
fn on_terminal(mut command: Command, columns: u16) -> (Child, File) {
    let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&master).unwrap();
    unlockpt(&master).unwrap();
    let name = ptsname(&master, Vec::new()).unwrap();
    let terminal = OpenOptions::new().read(true).write(true).open(name.to_str().unwrap()).unwrap();
    tcsetwinsize(&terminal, Winsize { ws_row: 24, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 }).unwrap();
    let child = command.stdout(terminal).stderr(Stdio::null()).spawn().unwrap();
    (child, File::from(master))
}

/// Everything that the command prints. Reading a terminal whose last writer has gone returns an error.
fn screen(command: Command, columns: u16) -> String {
    let (mut child, mut master) = on_terminal(command, columns);
    let (mut shown, mut part) = (Vec::new(), [0; 4096]);
    child.wait().unwrap();
    while let Ok(read @ 1..) = master.read(&mut part) {
        shown.extend_from_slice(&part[..read]);
    }
    String::from_utf8(shown).unwrap()
}

#[test]
fn a_terminal_has_colour_and_a_width() {
    let store = TestStore::new();
    let token = store.dead_holder("report", &"long".repeat(40), MINUTE, &"label".repeat(20)).to_string();
    let shown = screen(store.command(&["ls"]), 80);
    assert!(shown.contains("\x1b[1mRESOURCE\x1b[0m") && shown.contains('…'), "{shown:?}");
    assert!(!shown.contains("TOKEN"), "a column that does not fit is left out: {shown:?}");
    for important in ["HOLDER", "STATE", "LEFT", "WAITING"] {
        assert!(shown.contains(important), "{important}: {shown:?}");
    }
    assert!(screen(store.command(&["ls"]), 120).contains(&token), "a token is never cut");
    let mut plain = store.command(&["ls"]);
    plain.env("NO_COLOR", "1");
    let shown = screen(plain, 80);
    assert!(
        !shown.contains('\x1b') && shown.lines().all(|line| line.trim_end().chars().count() <= 80),
        "{shown:?}"
    );
    assert!(!screen(store.command(&["ls", "--json"]), 80).contains('\x1b'));
    for words in [&["ls"][..], &["show", "report/1"], &["why", "report/1"], &["audit"]] {
        let answer = store.call(words);
        assert_printable(&answer.out);
        assert!(!answer.out.contains('…'), "text in a pipe is never cut");
    }
}

#[test]
fn watching_on_a_terminal_redraws_in_place() {
    let store = TestStore::new();
    store.dead_holder("report", "42", MINUTE, "nightly");
    let (mut child, mut master) = on_terminal(store.command(&["watch", "--interval", "100ms"]), 100);
    let (mut shown, mut part) = (String::new(), [0; 4096]);
    while !shown.contains("\x1b[3F\x1b[J") {
        let read = master.read(&mut part).unwrap();
        shown.push_str(&String::from_utf8_lossy(&part[..read]));
    }
    assert!(shown.contains("1 in use") && shown.contains("nightly"), "{shown:?}");
    interrupt(&child);
    std::thread::spawn(move || while matches!(master.read(&mut part), Ok(1..)) {});
    assert_eq!(child.wait().unwrap().code(), Some(0), "Ctrl-C ends it cleanly");
}

fn interrupt(child: &Child) {
    kill_process(Pid::from_child(child), Signal::INT).unwrap();
}

#[test]
fn watching_elsewhere_prints_a_line_for_each_change() {
    let store = TestStore::new();
    let token = store.dead_holder("report", "42", MINUTE, "nightly").to_string();
    let mut command = store.command(&["watch", "report/", "--interval", "100ms", "--json"]);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut watching = Running { child, token: String::new() };
    let mut lines = BufReader::new(watching.child.stdout.take().unwrap()).lines();
    let mut next = || serde_json::from_str::<Value>(&lines.next().unwrap().unwrap()).unwrap();
    let held = next();
    assert_eq!((&held["event"], &held["resource"]), (&"held".into(), &"report/42".into()));
    assert_eq!(held["token"], token.as_str());
    let order = ["--token", &token, "--reason", "deploy"];
    store.call(&[&["pause", "report/42", "--for", "1m"], &order[..]].concat()).ok();
    assert_eq!(next()["event"], "paused");
    store.call(&[&["ask", "report/42", "--by", "9s"], &order[..]].concat()).ok();
    assert_eq!(next()["event"], "asked");
    store
        .call(&[&["evict", "report/42", "--even-if-alive", "--now", "--two-may-run"], &order[..]].concat())
        .ok();
    assert_eq!(next()["event"], "ended");
    store.call(&["resume", "report/42", "--reason", "done"]).ok();
    assert_eq!(next()["event"], "resumed");
    interrupt(&watching.child);
    assert_eq!(watching.end().0, 0);
}

#[test]
fn watching_ends_when_the_reader_has_closed_even_if_nothing_changes() {
    let store = TestStore::new();
    store.dead_holder("report", "42", MINUTE, "");
    for reads in [0, 1] {
        let mut command = store.command(&["watch", "--interval", "100ms"]);
        let child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut watching = Running { child, token: String::new() };
        let lines = BufReader::new(watching.child.stdout.take().unwrap()).lines();
        assert_eq!(lines.take(reads).count(), reads);
        assert_eq!(watching.end().0, 0);
    }
}
