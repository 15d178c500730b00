//! `leasehold run`: what the command gets, and what its caller gets back.

mod support;

use std::{
    ffi::OsStr,
    fs,
    io::Write as _,
    os::unix::{ffi::OsStrExt as _, fs::PermissionsExt as _},
    process::Stdio,
};

use support::{Site, Start as _, ended, text};

#[test]
fn the_exit_code_is_the_commands_own() {
    let site = Site::new();
    for code in [0, 1, 2, 42, 75, 79, 126, 127, 128, 255] {
        let output = site.script(&[], &format!("exit {code}")).output().unwrap();
        assert_eq!(ended(&output), (code, vec![]));
    }
}

#[test]
fn a_command_that_was_killed_is_128_and_the_signal() {
    let site = Site::new();
    for (signal, code) in
        [("TERM", 143), ("INT", 130), ("KILL", 137), ("HUP", 129), ("SEGV", 139), ("USR1", 138)]
    {
        let output = site.script(&[], &format!("kill -{signal} $$")).output().unwrap();
        assert_eq!(ended(&output), (code, vec![]), "{signal}");
    }
}

#[test]
fn arguments_arrive_as_they_are() {
    let site = Site::new();
    let odd = OsStr::from_bytes(b"not \xff\xfe UTF-8");
    let print = ["x/1", "--", "printf", "%s\\n", "a b", "", "--", "-n", "$HOME", "'\"\\", "*", "--store"];
    let output = site.run(print).arg(odd).output().unwrap();
    assert_eq!(ended(&output), (0, vec![]));
    assert_eq!(output.stdout, b"a b\n\n--\n-n\n$HOME\n'\"\\\n*\n--store\nnot \xff\xfe UTF-8\n");
}

#[test]
fn the_dashes_before_the_command_may_be_left_out() {
    let site = Site::new();
    let output = site.run(["-n", "x/1", "echo", "-n", "-w", "--", "x"]).output().unwrap();
    assert_eq!((ended(&output), text(&output).as_str()), ((0, vec![]), "-w -- x"));
}

#[test]
fn flocks_letters_work() {
    let site = Site::new();
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
        let output = site.run(letters).args(["x/1", "echo", "yes"]).output().unwrap();
        assert_eq!((ended(&output), text(&output).as_str()), ((0, vec![]), "yes\n"), "{letters:?}");
    }
    let output = site.run(["x/1", "-c", "echo $((1 + 1)) | cat"]).env("SHELL", "/bin/sh").output().unwrap();
    assert_eq!((ended(&output), text(&output).as_str()), ((0, vec![]), "2\n"));
}

#[test]
fn stdin_passes_through() {
    let site = Site::new();
    let mut child =
        site.run(["x/1", "--", "cat"]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
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
    let site = Site::new();
    let output =
        site.shell("exec 7>seven; \"$L\" run x/1 -- sh -c 'echo here >&7'; cat seven").output().unwrap();
    assert_eq!(text(&output), "here\n");
}

#[test]
fn a_command_that_closes_its_stdin_is_no_trouble() {
    let site = Site::new();
    let output =
        site.script(&[], "exec 0<&-; exec 1>&-; exec 2>&-; exit 5").stdin(Stdio::piped()).output().unwrap();
    assert_eq!(ended(&output), (5, vec![]));
}

#[test]
fn the_environment_says_what_is_held() {
    let site = Site::new();
    let script = "echo $LEASEHOLD_RESOURCE; echo $LEASEHOLD_TOKEN; echo $LEASEHOLD_OWNER; echo $LEASEHOLD_STORE; echo $PLAIN";
    let output =
        site.run(["acme:report/4 2", "--", "sh", "-c", script]).env("PLAIN", "too").output().unwrap();
    let (text, store) = (text(&output), format!("sqlite:{}", site.database().display()));
    let lines: Vec<_> = text.lines().collect();
    assert_eq!((lines[0], lines[3], lines[4]), ("acme:report/4 2", store.as_str(), "too"));
    let token: u64 = lines[1].parse().unwrap();
    let shown = site.run([
        "acme:report/4 2",
        "--",
        "sh",
        "-c",
        "echo $LEASEHOLD_PASS; echo $LEASEHOLD_TOKEN; printf %s \"$LEASEHOLD_OWNER\" | sha256sum",
    ]);
    let shown = self::text(&{ shown }.output().unwrap());
    let shown: Vec<_> = shown.lines().collect();
    let pass = format!("{} {} acme:report/4 2", shown[1], &shown[2][..32]);
    assert_eq!(shown[0], pass, "and what to show at a fence");
    assert!(lines[2].len() == 32 && lines[2].bytes().all(|b| b.is_ascii_hexdigit()));
    let output = site.run(["acme:report/4 2", "--", "sh", "-c", "echo $LEASEHOLD_TOKEN"]).output().unwrap();
    assert!(self::text(&output).trim().parse::<u64>().unwrap() > token, "tokens grow");
    let output = site.run(["-s", "x/1", "--", "sh", "-c", "echo [$LEASEHOLD_TOKEN]"]).output().unwrap();
    assert_eq!(self::text(&output), "[]\n", "those who share are in no order");
}

#[test]
fn a_command_that_is_not_there_is_127() {
    let site = Site::new();
    let there_is_none = |command: &str, shown: &str| {
        let (code, errors) = ended(&site.run(["x/1", "--", command]).output().unwrap());
        assert_eq!((code, errors.len()), (127, 1), "{errors:?}");
        let said = format!("leasehold: {shown}: there is no such command");
        assert!(errors[0].starts_with(&said), "{errors:?}");
    };
    for command in ["no-such-command", "./no-such-file", "/no/such/path"] {
        there_is_none(command, command);
    }
    there_is_none("", "\"\""); // an unset variable in quotes
    assert_eq!(site.look("x", "1").holder_count, 0, "nothing stays held");
}

#[test]
fn a_command_that_cannot_be_executed_is_126() {
    let site = Site::new();
    fs::write(site.path("plain"), "text").unwrap();
    for command in ["./plain", "/"] {
        let (code, errors) = ended(&site.run(["x/1", "--", command]).output().unwrap());
        assert_eq!((code, errors.len()), (126, 1), "{errors:?}");
        assert!(errors[0].contains("cannot be run"), "{errors:?}");
    }
    assert_eq!(site.look("x", "1").holder_count, 0, "nothing stays held");
}

#[test]
fn a_script_without_an_interpreter_is_the_shells() {
    let site = Site::new();
    fs::write(site.path("script"), "echo \"$1\"; exit 4\n").unwrap();
    fs::set_permissions(site.path("script"), fs::Permissions::from_mode(0o755)).unwrap();
    let output = site.run(["x/1", "./script", "a b"]).output().unwrap();
    assert_eq!((ended(&output), text(&output).as_str()), ((4, vec![]), "a b\n"));
}

#[test]
fn what_the_command_leaves_running_goes_on_when_it_ended_well() {
    let site = Site::new();
    let mut running = site.script(&[], "sleep 600 >/dev/null 2>&1 & echo $! > pid").start();
    assert!(running.wait().success());
    let pid = support::pid_in(&site.path("pid"));
    assert!(support::is_alive(pid));
    assert_eq!(site.look("x", "1").holder_count, 0, "and holds nothing");
    support::send(pid, rustix::process::Signal::KILL);
}

#[test]
fn what_makes_no_sense_is_64_and_one_line() {
    let site = Site::new();
    let long = "x".repeat(5000);
    let overlong = format!("x/{long}");
    let table: [(&[&str], &str); 16] = [
        (&["x/1"], "COMMAND"),
        (&[], "RESOURCE"),
        (&["x", "true"], "kind/id"),
        (&["X/1", "true"], "a-z"),
        (&["--nope", "x/1", "true"], "--nope"),
        (&["-w", "soon", "x/1", "true"], "2m"),
        (&["-E", "256", "x/1", "true"], "256"),
        (&["--permits", "3/2", "x/1", "true"], "at most all"),
        (&["--ttl", "500ms", "x/1", "true"], "1s to 24h"),
        (&["--ttl", "4s", "--grace", "3s", "x/1", "true"], "--grace"),
        (&["-s", "--permits", "1/2", "x/1", "true"], "--permits"),
        (&["--on-ask", "NOPE", "x/1", "true"], "USR1"),
        (&["--ttl", "-1", "x/1", "true"], "'--ttl <TTL>': write seconds or a duration"),
        (&["-w", "-5", "x/1", "true"], "'--wait <WAIT>': write seconds or a duration"),
        (&[&overlong, "true"], "an id has 1 to 256 bytes, this one has 5000"),
        (&["--note", &long, "x/1", "true"], "a note has at most 4096 bytes here, this one has 5000"),
    ];
    for (arguments, word) in table {
        let (code, errors) = ended(&site.run(arguments).output().unwrap());
        assert_eq!((code, errors.len()), (64, 1), "{arguments:?}: {errors:?}");
        assert!(
            errors[0].starts_with("leasehold: ") && errors[0].contains(word),
            "{arguments:?}: {errors:?}"
        );
        assert!(errors[0].len() < 250 && !errors[0].contains("tip: to pass"), "{arguments:?}: {errors:?}");
    }
}

#[test]
fn who_runs_it_can_be_seen() {
    let site = Site::new();
    let mut running = site.run(["x/1", "--", "sh", "-c", "echo go; read line"]).stdin(Stdio::piped()).start();
    running.until("go");
    let by = &site.look("x", "1").holders[0].holder;
    assert_eq!((by.pid, by.label.as_str()), (running.pid().unsigned_abs(), "sh"));
    running.write("\n");
    assert_eq!(running.code(), 0);
    let mut running =
        site.script(&["--label", "the nightly one"], "echo go; read line").stdin(Stdio::piped()).start();
    running.until("go");
    assert_eq!(site.look("x", "1").holders[0].holder.label, "the nightly one");
    running.write("x\n");
    assert_eq!(running.code(), 0);
}

#[test]
fn a_store_that_promises_enough_is_taken_when_it_must_be_right() {
    let site = Site::new();
    for options in [&["--correctness"][..], &["--correctness", "--fenced"], &["--fair"]] {
        assert_eq!(ended(&site.run(options).args(["x/1", "true"]).output().unwrap()), (0, vec![]));
    }
}
