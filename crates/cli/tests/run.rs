//! `leasehold run`: what the command gets, and what the caller gets back.

mod support;

use std::{
    ffi::OsStr,
    fs,
    io::Write as _,
    os::unix::{ffi::OsStrExt as _, fs::PermissionsExt as _},
    process::Stdio,
};

use support::{Start as _, TestDir, exit_and_errors, text};

#[test]
fn the_exit_code_is_the_commands_own() {
    let dir = TestDir::new();
    for code in [0, 1, 2, 42, 75, 79, 126, 127, 128, 255] {
        let output = dir.script(&[], &format!("exit {code}")).output().unwrap();
        assert_eq!(exit_and_errors(&output), (code, vec![]));
    }
}

#[test]
fn a_command_that_was_killed_is_128_and_the_signal() {
    let dir = TestDir::new();
    for (signal, code) in
        [("TERM", 143), ("INT", 130), ("KILL", 137), ("HUP", 129), ("SEGV", 139), ("USR1", 138)]
    {
        let output = dir.script(&[], &format!("kill -{signal} $$")).output().unwrap();
        assert_eq!(exit_and_errors(&output), (code, vec![]), "{signal}");
    }
}

#[test]
fn arguments_arrive_as_they_are() {
    let dir = TestDir::new();
    let odd = OsStr::from_bytes(b"not \xff\xfe UTF-8");
    let print = ["x/1", "--", "printf", "%s\\n", "a b", "", "--", "-n", "$HOME", "'\"\\", "*", "--store"];
    let output = dir.run(print).arg(odd).output().unwrap();
    assert_eq!(exit_and_errors(&output), (0, vec![]));
    assert_eq!(output.stdout, b"a b\n\n--\n-n\n$HOME\n'\"\\\n*\n--store\nnot \xff\xfe UTF-8\n");
}

#[test]
fn the_dashes_before_the_command_may_be_left_out() {
    let dir = TestDir::new();
    let output = dir.run(["-n", "x/1", "echo", "-n", "-w", "--", "x"]).output().unwrap();
    assert_eq!((exit_and_errors(&output), text(&output).as_str()), ((0, vec![]), "-w -- x"));
}

#[test]
fn the_options_of_flock_work() {
    let dir = TestDir::new();
    for letters in [
        &["-x"][..],
        &["-e"],
        &["-s"],
        &["-n"],
        &["--nb"],
        &["-w", "1.5"],
        &["--timeout", "2"],
        &["-o"],
        &["-E", "7"],
    ] {
        let output = dir.run(letters).args(["x/1", "echo", "yes"]).output().unwrap();
        assert_eq!((exit_and_errors(&output), text(&output).as_str()), ((0, vec![]), "yes\n"), "{letters:?}");
    }
    let output = dir.run(["x/1", "-c", "echo $((1 + 1)) | cat"]).env("SHELL", "/bin/sh").output().unwrap();
    assert_eq!((exit_and_errors(&output), text(&output).as_str()), ((0, vec![]), "2\n"));
}

#[test]
fn stdin_passes_through() {
    let dir = TestDir::new();
    let mut child =
        dir.run(["x/1", "--", "cat"]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let bytes: Vec<u8> = (0..=255).cycle().take(300_000).collect();
    let mut stdin = child.stdin.take().unwrap();
    let sent = bytes.clone();
    let writer = std::thread::spawn(move || stdin.write_all(&sent).unwrap());
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap();
    assert!(output.status.success() && output.stdout == bytes);
}

#[test]
fn other_open_files_pass_through() {
    let dir = TestDir::new();
    let output =
        dir.shell("exec 7>seven; \"$L\" run x/1 -- sh -c 'echo here >&7'; cat seven").output().unwrap();
    assert_eq!(text(&output), "here\n");
}

#[test]
fn a_command_may_close_its_stdin() {
    let dir = TestDir::new();
    let output =
        dir.script(&[], "exec 0<&-; exec 1>&-; exec 2>&-; exit 5").stdin(Stdio::piped()).output().unwrap();
    assert_eq!(exit_and_errors(&output), (5, vec![]));
}

#[test]
fn the_environment_of_the_command_describes_its_lease() {
    let dir = TestDir::new();
    let script = "echo $LEASEHOLD_RESOURCE; echo $LEASEHOLD_TOKEN; echo $LEASEHOLD_OWNER; echo $LEASEHOLD_STORE; echo $PLAIN";
    let output = dir.run(["acme:report/4 2", "--", "sh", "-c", script]).env("PLAIN", "too").output().unwrap();
    let (text, store) = (text(&output), format!("sqlite:{}", dir.database().display()));
    let lines: Vec<_> = text.lines().collect();
    assert_eq!((lines[0], lines[3], lines[4]), ("acme:report/4 2", store.as_str(), "too"));
    let token: u64 = lines[1].parse().unwrap();
    let shown = dir.run([
        "acme:report/4 2",
        "--",
        "sh",
        "-c",
        "echo $LEASEHOLD_PASS; echo $LEASEHOLD_TOKEN; printf %s \"$LEASEHOLD_OWNER\" | sha256sum",
    ]);
    let shown = self::text(&{ shown }.output().unwrap());
    let shown: Vec<_> = shown.lines().collect();
    let pass = format!("{} {} acme:report/4 2", shown[1], &shown[2][..32]);
    assert_eq!(shown[0], pass, "the pass for a fence");
    assert!(lines[2].len() == 32 && lines[2].bytes().all(|b| b.is_ascii_hexdigit()));
    let output = dir.run(["acme:report/4 2", "--", "sh", "-c", "echo $LEASEHOLD_TOKEN"]).output().unwrap();
    assert!(self::text(&output).trim().parse::<u64>().unwrap() > token, "tokens grow");
    let output = dir.run(["-s", "x/1", "--", "sh", "-c", "echo [$LEASEHOLD_TOKEN]"]).output().unwrap();
    assert_eq!(self::text(&output), "[]\n", "holders that share have no fencing token");
}

#[test]
fn a_missing_command_is_127() {
    let dir = TestDir::new();
    let is_missing = |command: &str, shown: &str| {
        let (code, errors) = exit_and_errors(&dir.run(["x/1", "--", command]).output().unwrap());
        assert_eq!((code, errors.len()), (127, 1), "{errors:?}");
        let said = format!("leasehold: {shown}: there is no such command");
        assert!(errors[0].starts_with(&said), "{errors:?}");
    };
    for command in ["no-such-command", "./no-such-file", "/no/such/path"] {
        is_missing(command, command);
    }
    is_missing("", "\"\""); // an unset variable in quotes
    assert_eq!(dir.look("x", "1").holder_count, 0, "nothing stays held");
}

#[test]
fn a_command_that_cannot_be_executed_is_126() {
    let dir = TestDir::new();
    fs::write(dir.path("plain"), "text").unwrap();
    for command in ["./plain", "/"] {
        let (code, errors) = exit_and_errors(&dir.run(["x/1", "--", command]).output().unwrap());
        assert_eq!((code, errors.len()), (126, 1), "{errors:?}");
        assert!(errors[0].contains("cannot be run"), "{errors:?}");
    }
    assert_eq!(dir.look("x", "1").holder_count, 0, "nothing stays held");
}

#[test]
fn a_script_without_an_interpreter_line_is_run_by_the_shell() {
    let dir = TestDir::new();
    fs::write(dir.path("script"), "echo \"$1\"; exit 4\n").unwrap();
    fs::set_permissions(dir.path("script"), fs::Permissions::from_mode(0o755)).unwrap();
    let output = dir.run(["x/1", "./script", "a b"]).output().unwrap();
    assert_eq!((exit_and_errors(&output), text(&output).as_str()), ((4, vec![]), "a b\n"));
}

#[test]
fn processes_that_the_command_leaves_behind_go_on_if_it_ended_by_itself() {
    let dir = TestDir::new();
    let mut running = dir.script(&[], "sleep 600 >/dev/null 2>&1 & echo $! > pid").start();
    assert!(running.wait().success());
    let pid = support::pid_in(&dir.path("pid"));
    assert!(support::is_alive(pid));
    assert_eq!(dir.look("x", "1").holder_count, 0, "the lease was released");
    support::send(pid, rustix::process::Signal::KILL);
}

#[test]
fn a_wrong_command_line_is_64_and_one_line() {
    let dir = TestDir::new();
    let long = "x".repeat(5000);
    let overlong = format!("x/{long}");
    let table: [(&[&str], &str); 16] = [
        (&["x/1"], "COMMAND"),
        (&[], "RESOURCE"),
        (&["report/", "true"], "KIND/ID"),
        (&["X/1", "true"], "a-z"),
        (&["--nope", "x/1", "true"], "--nope"),
        (&["-w", "soon", "x/1", "true"], "2m"),
        (&["-E", "256", "x/1", "true"], "256"),
        (&["--permits", "3/2", "x/1", "true"], "at most N"),
        (&["--ttl", "500ms", "x/1", "true"], "1s to 24h"),
        (&["--ttl", "4s", "--grace", "3s", "x/1", "true"], "--grace"),
        (&["-s", "--permits", "1/2", "x/1", "true"], "--permits"),
        (&["--on-ask", "NOPE", "x/1", "true"], "USR1"),
        (&["--ttl", "-1", "x/1", "true"], "'--ttl <TTL>': expected seconds or a duration"),
        (&["-w", "-5", "x/1", "true"], "'--wait <WAIT>': expected seconds or a duration"),
        (&[&overlong, "true"], "an id has 1 to 256 bytes, this one has 5000"),
        (&["--note", &long, "x/1", "true"], "--note has 5000 bytes, and this store allows at most 4096"),
    ];
    for (arguments, word) in table {
        let (code, errors) = exit_and_errors(&dir.run(arguments).output().unwrap());
        assert_eq!((code, errors.len()), (64, 1), "{arguments:?}: {errors:?}");
        assert!(
            errors[0].starts_with("leasehold: ") && errors[0].contains(word),
            "{arguments:?}: {errors:?}"
        );
        assert!(errors[0].len() < 250 && !errors[0].contains("tip: to pass"), "{arguments:?}: {errors:?}");
    }
}

#[test]
fn the_holder_has_the_pid_and_the_label_of_the_run() {
    let dir = TestDir::new();
    let mut running = dir.run(["x/1", "--", "sh", "-c", "echo go; read line"]).stdin(Stdio::piped()).start();
    running.wait_for_line("go");
    let by = &dir.look("x", "1").holders[0].holder;
    assert_eq!((by.pid, by.label.as_str()), (running.pid().unsigned_abs(), "sh"));
    running.write("\n");
    assert_eq!(running.code(), 0);
    let mut running =
        dir.script(&["--label", "the nightly one"], "echo go; read line").stdin(Stdio::piped()).start();
    running.wait_for_line("go");
    assert_eq!(dir.look("x", "1").holders[0].holder.label, "the nightly one");
    running.write("x\n");
    assert_eq!(running.code(), 0);
}

#[test]
fn correctness_accepts_a_store_with_strong_guarantees() {
    let dir = TestDir::new();
    for options in [&["--correctness"][..], &["--correctness", "--fenced"], &["--fair"]] {
        assert_eq!(exit_and_errors(&dir.run(options).args(["x/1", "true"]).output().unwrap()), (0, vec![]));
    }
}
