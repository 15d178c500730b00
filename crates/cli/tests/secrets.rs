//! Passwords: out of `ps`, out of the command's environment, out of files that others can read.
#![allow(clippy::unwrap_used, reason = "a test is a program of its own")]

mod support;

use std::{fs, os::unix::fs::PermissionsExt as _, process::Stdio};

use support::{Start as _, TestDir, exit_and_errors, text};

/// A URL of a server that does not exist, so a command with it ends with an error that may show it.
const URL: &str = "redis://app:sesame@127.0.0.1:1/?timeout=1s";

#[test]
fn a_password_in_the_command_line_is_hidden_from_ps_and_warned_about() {
    let dir = TestDir::new();
    // `elect` waits for the store for ever, so its arguments can be read.
    for option in [&["--store", URL][..], &[&format!("--store={URL}")]] {
        let elect = dir.leasehold().args(option).args(["elect", "x/1", "--", "true"]).start();
        let warning = elect.next_error_line();
        assert!(
            warning.contains("can be seen by every user") && warning.contains("LEASEHOLD_PASSWORD_FILE"),
            "{warning}"
        );
        let outage = elect.next_error_line();
        assert!(!outage.contains("can be seen"), "only once: {outage}");
        let line = fs::read(format!("/proc/{}/cmdline", elect.pid())).unwrap();
        let line = String::from_utf8_lossy(&line).replace('\0', " ");
        assert!(!line.contains("sesame") && line.contains("redis://app@127.0.0.1:1/"), "{line}");
        let name = fs::read_to_string(format!("/proc/{}/comm", elect.pid())).unwrap();
        assert_eq!(name, "leasehold\n", "pgrep finds it");
    }
}

#[test]
fn a_hidden_password_still_reaches_the_store() {
    let dir = TestDir::new();
    let output = dir.leasehold().args(["--store", URL, "config", "show"]).output().unwrap();
    let shown = text(&output);
    assert!(!shown.contains("sesame"), "{shown}");
    assert!(
        shown.lines().any(|line| line.trim().starts_with("password") && line.contains("the URL")),
        "{shown}"
    );
    let quiet = dir.leasehold().args(["-q", "--store", URL, "config", "show"]).output().unwrap();
    assert_eq!(exit_and_errors(&quiet), (0, vec![]));
}

#[test]
fn the_command_does_not_get_the_password_unless_asked() {
    let dir = TestDir::new();
    let environment = |options: &[&str]| {
        let mut run = dir.leasehold();
        run.args(options).args(["run", "x/1", "--", "env"]).env("LEASEHOLD_PASSWORD", "sesame");
        text(&run.output().unwrap())
    };
    assert!(!environment(&[]).contains("sesame"));
    assert!(environment(&["--pass-secrets"]).contains("LEASEHOLD_PASSWORD=sesame\n"));
    // The parent of the command is the guardian: its environment is as private as the command's.
    let script = "tr '\\0' '\\n' < /proc/$PPID/environ";
    let output = dir.script(&[], script).env("LEASEHOLD_PASSWORD", "sesame").output().unwrap();
    assert!(!text(&output).contains("sesame"));
}

#[test]
fn elect_passes_the_password_on_only_if_asked() {
    let dir = TestDir::new();
    for (options, passed) in [(&[][..], false), (&["--pass-secrets"], true)] {
        let mut elect = dir.leasehold();
        elect.args(options).args(["elect", "x/1", "--", "env"]).env("LEASEHOLD_PASSWORD", "sesame");
        assert_eq!(text(&elect.output().unwrap()).contains("sesame"), passed);
    }
}

fn with_mode(dir: &TestDir, mode: u32) {
    fs::write(dir.path("password"), "sesame\n").unwrap();
    fs::set_permissions(dir.path("password"), fs::Permissions::from_mode(mode)).unwrap();
}

#[test]
fn a_password_file_that_others_can_read_is_refused() {
    let dir = TestDir::new();
    for url in
        ["redis://app@127.0.0.1:1/?timeout=1s", "redis://app@127.0.0.1:1/?timeout=1s&password_file=password"]
    {
        let look = || {
            let mut command = dir.leasehold();
            command.args(["--store", url, "ls"]);
            if !url.contains("password_file") {
                command.args(["--password-file", "password"]);
            }
            exit_and_errors(&command.output().unwrap())
        };
        for mode in [0o644, 0o640, 0o604] {
            with_mode(&dir, mode);
            let (code, errors) = look();
            assert_eq!((code, errors.len()), (78, 1), "{errors:?}");
            assert!(
                errors[0].contains(&format!("{mode:04o}")) && errors[0].contains("chmod 600"),
                "{errors:?}"
            );
        }
        with_mode(&dir, 0o600);
        assert_eq!(look().0, 69, "the file is used, and there is no server");
    }
}

#[test]
fn a_password_from_a_pipe_is_accepted() {
    let dir = TestDir::new();
    let mut shell = dir.command("bash");
    shell
        .args(["-c", "\"$L\" --store redis://app@127.0.0.1:1/?timeout=1s --password-file <(echo sesame) ls"]);
    let output = shell.env("L", env!("CARGO_BIN_EXE_leasehold")).stdin(Stdio::null()).output().unwrap();
    assert_eq!(exit_and_errors(&output).0, 69);
}

#[cfg(feature = "redis")]
mod on_a_server {
    use leasehold_testkit::servers::RedisServer;

    use super::*;

    const NESTED: &str = "\"$L\" run x/1 -- \"$L\" run -n x/1 -- echo inner";

    #[test]
    fn a_run_within_a_run_needs_the_password_to_be_passed_on() {
        let (dir, server) = (TestDir::new(), RedisServer::start());
        let port = server.port();
        server.command(&["CONFIG", "SET", "requirepass", "sesame"]);
        let (plain, with_password) =
            (format!("redis://127.0.0.1:{port}/"), format!("redis://:sesame@127.0.0.1:{port}/"));
        let in_variable = [("LEASEHOLD_STORE", plain.as_str()), ("LEASEHOLD_PASSWORD", "sesame")];
        let in_url = [("LEASEHOLD_STORE", with_password.as_str())];
        for variables in [&in_variable[..], &in_url[..]] {
            let nested = |script: &str| dir.shell(script).envs(variables.iter().copied()).output().unwrap();
            let (code, errors) = exit_and_errors(&nested(NESTED));
            assert_eq!((code, errors.len()), (78, 1), "{errors:?}");
            assert!(errors[0].contains("--pass-secrets"), "{errors:?}");
            let output = nested(&NESTED.replacen("run", "--pass-secrets run", 1));
            assert_eq!((exit_and_errors(&output), text(&output).as_str()), ((0, vec![]), "inner\n"));
        }
    }

    #[test]
    fn a_typed_password_is_used() {
        let (dir, server) = (TestDir::new(), RedisServer::start());
        server.command(&["CONFIG", "SET", "requirepass", "sesame"]);
        let url = format!("redis://:sesame@127.0.0.1:{}/?namespace=acme", server.port());
        let mut run = dir.leasehold();
        let output = run.args(["-q", "--store", &url, "run", "x/1", "--", "env"]).output().unwrap();
        let environment = text(&output);
        assert_eq!(exit_and_errors(&output), (0, vec![]));
        assert!(environment.contains("LEASEHOLD_RESOURCE=acme:x/1\n"), "{environment}");
        assert!(!environment.contains("sesame"), "{environment}");
    }
}
