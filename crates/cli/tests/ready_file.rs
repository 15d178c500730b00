//! `--ready-file` never touches a file that leasehold did not make.
#![allow(clippy::unwrap_used, reason = "a test is a program of its own")]

mod support;

use std::{fs, os::unix::fs::symlink};

use rustix::process::Signal;
use support::{Start as _, TestDir, eventually, exit_and_errors};

#[test]
fn a_file_of_someone_else_is_left_alone() {
    let dir = TestDir::new();
    fs::write(dir.path("important"), "x/1 17\n").unwrap();
    fs::write(dir.path("empty"), "").unwrap();
    fs::create_dir(dir.path("folder")).unwrap();
    symlink(dir.path("important"), dir.path("link")).unwrap();
    for name in ["important", "empty", "folder", "link"] {
        let output = dir.run(["--ready-file", name, "x/1", "--", "touch", "ran"]).output().unwrap();
        let (code, errors) = exit_and_errors(&output);
        assert_eq!((code, errors.len()), (78, 1), "{errors:?}");
        assert!(errors[0].contains(name) && errors[0].contains("not from leasehold"), "{errors:?}");
    }
    assert_eq!(fs::read_to_string(dir.path("important")).unwrap(), "x/1 17\n");
    assert!(dir.path("empty").exists() && dir.path("folder").exists() && dir.path("link").is_symlink());
    assert!(!dir.path("ran").exists());
}

#[test]
fn a_file_that_appears_during_the_run_is_left_alone() {
    let dir = TestDir::new();
    let script = "until [ -e ready ]; do sleep 0.01; done; rm ready; echo mine > ready";
    assert_eq!(dir.script(&["--ready-file", "ready"], script).start().code(), 0);
    assert_eq!(fs::read_to_string(dir.path("ready")).unwrap(), "mine\n");
}

#[test]
fn a_file_that_a_killed_run_left_is_replaced() {
    let dir = TestDir::new();
    let ready = dir.path("ready");
    let killed = dir.script(&["--ttl", "1s", "--ready-file", "ready"], "echo go; exec sleep 600").start();
    killed.wait_for_line("go");
    eventually("it is ready", || ready.exists());
    killed.signal(Signal::KILL);
    assert_eq!(killed.code(), -9);
    let first = fs::read_to_string(&ready).unwrap();
    // Its writer is gone from the process table only when it was waited for, which `code` has done.
    let script = format!(
        "until [ -e ready ] && ! grep -q '{}' ready; do sleep 0.01; done",
        first.lines().last().unwrap()
    );
    assert_eq!(dir.script(&["--ready-file", "ready"], &script).start().code(), 0);
    assert!(!ready.exists());
}
