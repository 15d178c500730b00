//! Configuration, secrets, logs, metrics, completions and manual pages.

mod support;

use std::{fs, process::Stdio};

use support::{Start as _, TestDir, eventually, exit_and_errors, text};

#[test]
fn the_store_comes_from_the_option_the_environment_the_configuration_or_the_users_directory() {
    let dir = TestDir::new();
    let store = |flag: Option<&str>, variable: Option<&str>| {
        let mut command = dir.leasehold();
        command.env_remove("LEASEHOLD_DIR");
        flag.map(|flag| command.args(["--store", flag]));
        variable.map(|variable| command.env("LEASEHOLD_STORE", variable));
        text(&command.args(["run", "x/1", "--", "sh", "-c", "echo $LEASEHOLD_STORE"]).output().unwrap())
    };
    let at = |name: &str| format!("sqlite:{}\n", dir.path(name).display());
    assert_eq!(store(None, None), at(".local/state/leasehold/leases.db"));
    fs::create_dir_all(dir.path(".config/leasehold")).unwrap();
    fs::write(dir.path(".config/leasehold/config.toml"), format!("store = \"{}\"", at("config.db").trim()))
        .unwrap();
    assert_eq!(store(None, None), at("config.db"));
    assert_eq!(store(None, Some("sqlite:variable.db")), at("variable.db"));
    assert_eq!(store(Some("sqlite:flag.db"), Some("sqlite:variable.db")), at("flag.db"));
}

#[test]
fn the_directory_of_the_default_store_can_be_set() {
    let dir = TestDir::new();
    let output = dir.run(["x/1", "--", "true"]).env("LEASEHOLD_DIR", dir.path("a b?/c")).output().unwrap();
    assert_eq!(exit_and_errors(&output), (0, vec![]));
    assert!(dir.path("a b?/c/leases.db").exists());
    let mut nowhere = dir.leasehold();
    nowhere.env_remove("LEASEHOLD_DIR").env_remove("HOME").args(["run", "x/1", "true"]);
    let (code, errors) = exit_and_errors(&nowhere.output().unwrap());
    assert_eq!((code, errors.len()), (78, 1), "{errors:?}");
    assert!(errors[0].contains("set LEASEHOLD_DIR"), "{errors:?}");
}

#[test]
fn the_configuration_has_defaults_of_run() {
    let dir = TestDir::new();
    let config = dir.path("my.toml");
    let run = |text: &str| {
        fs::write(&config, text).unwrap();
        let mut command = dir.leasehold();
        command.arg("--config").arg(&config).args(["run", "x/1", "--", "sh", "-c", "echo go; read line"]);
        command.stdin(Stdio::piped()).start()
    };
    let mut running = run("[run]\nttl = '1h'\ngrace = '5s'");
    running.wait_for_line("go");
    assert!(dir.look("x", "1").holders[0].remaining.as_secs() > 3000);
    running.write("\n");
    assert_eq!(running.code(), 0);
    for wrong in ["[run]\nttl = 'long'", "colour = 'red'", "store = ", "[run]\nttl = '1ms'"] {
        let (code, errors) = run(wrong).end();
        let usage = wrong.contains("1ms");
        assert_eq!((code, errors.len()), (if usage { 64 } else { 78 }, 1), "{wrong}: {errors:?}");
    }
    let (code, errors) = exit_and_errors(
        &dir.leasehold().args(["--config", "none.toml", "run", "x/1", "true"]).output().unwrap(),
    );
    assert_eq!((code, errors.len()), (78, 1), "{errors:?}");
}

/// Checks everything that the program prints about a store with a password, with all output options.
#[test]
fn no_password_is_ever_shown() {
    let dir = TestDir::new();
    let secret = "0pen-sesame";
    fs::write(dir.path("password"), format!("{secret}\n")).unwrap();
    let urls = [
        format!("gopher://user:{secret}@host/"),
        format!("redis://:{secret}@127.0.0.1:1/"),
        format!("postgres://user:{secret}@127.0.0.1:1/db?sslmode=disable"),
        format!("http://127.0.0.1:1/?auth_token={secret}"),
        format!("sqlite:///proc/nowhere/x.db?password={secret}"),
        "redis://user@127.0.0.1:1/".to_owned(),
    ];
    fs::write(dir.path("bad.toml"), format!("store = 'redis://u:{secret}@h/'\nx = '{secret}'")).unwrap();
    for url in &urls {
        for options in [&[][..], &["-vvv"], &["--json"], &["-vvv", "--log-format", "json"]] {
            let file = ["--password-file", "password"];
            let arguments = [options, &file, &["run", "-n", "x/1", "--", "env"]].concat();
            let flag = dir.leasehold().args(["--store", url]).args(&arguments).output().unwrap();
            let variable = dir.leasehold().env("LEASEHOLD_STORE", url).args(&arguments).output().unwrap();
            let help = dir.leasehold().env("LEASEHOLD_STORE", url).arg("--help").output().unwrap();
            for output in [&flag, &variable, &help] {
                let said = [&output.stdout[..], &output.stderr[..]].concat();
                let said = String::from_utf8_lossy(&said);
                assert!(!said.contains(secret), "{url} {options:?}: {said}");
            }
            assert!(matches!(exit_and_errors(&flag).0, 69 | 78), "{url}: {flag:?}");
        }
    }
    let bad = dir.leasehold().args(["--config", "bad.toml", "run", "x/1", "true"]).output().unwrap();
    assert!(!String::from_utf8_lossy(&bad.stderr).contains(secret));
}

#[test]
fn a_missing_password_file_is_reported() {
    let dir = TestDir::new();
    let output = dir
        .leasehold()
        .args(["--store", "redis://h/", "--password-file", "none", "run", "x/1", "true"])
        .output();
    let (code, errors) = exit_and_errors(&output.unwrap());
    assert_eq!((code, errors.len()), (78, 1), "{errors:?}");
    assert!(
        errors[0].contains(&format!("cannot read the password file {}", dir.path("none").display())),
        "{errors:?}"
    );
}

#[test]
fn the_log_is_written_only_on_request() {
    let dir = TestDir::new();
    assert_eq!(exit_and_errors(&dir.run(["x/1", "true"]).output().unwrap()), (0, vec![]));
    let (code, errors) =
        exit_and_errors(&dir.leasehold().args(["-vv", "run", "x/1", "true"]).output().unwrap());
    assert_eq!(code, 0);
    assert!(errors.iter().any(|line| line.contains("acquired")), "{errors:?}");
    let (code, errors) = exit_and_errors(
        &dir.leasehold()
            .args(["-vv", "--log-format", "json", "run", "x/secret-id", "true"])
            .output()
            .unwrap(),
    );
    assert!(code == 0 && !errors.is_empty());
    for line in errors {
        let line: serde_json::Value = serde_json::from_str(&line).unwrap();
        assert!(line["level"].is_string() && line["timestamp"].is_string(), "{line}");
        assert!(!line.to_string().contains("secret-id"), "ids are hashed in logs: {line}");
    }
}

#[test]
fn metrics_are_written_to_a_file() {
    let dir = TestDir::new();
    let mut running = dir.leasehold();
    running.args(["--metrics-file", "leasehold.prom", "run", "x/1", "--", "sh", "-c", "echo go; read line"]);
    let mut running = running.stdin(Stdio::piped()).start();
    running.wait_for_line("go");
    let metrics = || fs::read_to_string(dir.path("leasehold.prom")).unwrap_or_default();
    let held = |count: u32| {
        metrics().contains(&format!("leasehold_held{{kind=\"x\",backend=\"sqlite\"}} {count}\n"))
    };
    eventually("it is counted", || held(1));
    running.write("\n");
    assert_eq!(running.code(), 0);
    assert!(held(0), "{}", metrics());
    let lines = metrics();
    for line in [
        "# HELP leasehold_acquire_total Requests for leases, by outcome.",
        "# TYPE leasehold_acquire_total counter",
        "leasehold_acquire_total{kind=\"x\",backend=\"sqlite\",outcome=\"granted\"} 1",
        "leasehold_release_total{kind=\"x\",backend=\"sqlite\",outcome=\"released\"} 1",
        "leasehold_wait_seconds_count{kind=\"x\",backend=\"sqlite\"} 1",
    ] {
        assert!(lines.lines().any(|other| other == line), "{line} is not in:\n{lines}");
    }
    for name in lines.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next()) {
        assert!(lines.contains(&format!("# HELP {name} ")), "{name} has no help in:\n{lines}");
    }
    let left: Vec<_> =
        fs::read_dir(dir.directory.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(left.iter().all(|name| !name.to_string_lossy().starts_with("leasehold.prom.")), "{left:?}");
    let (code, errors) = exit_and_errors(
        &dir.leasehold().args(["--metrics-file", "/no/where.prom", "run", "x/1", "true"]).output().unwrap(),
    );
    assert_eq!((code, errors.len()), (78, 1), "{errors:?}");
}

#[test]
fn completions_and_manuals_are_printed() {
    let dir = TestDir::new();
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let output = dir.leasehold().args(["completions", shell]).output().unwrap();
        assert!(output.status.success() && text(&output).contains("once-per"), "{shell}");
    }
    for page in [&["man"][..], &["man", "run"], &["man", "completions"]] {
        let output = dir.leasehold().args(page).output().unwrap();
        assert!(output.status.success() && text(&output).contains(".SH NAME"), "{page:?}");
    }
    assert!(text(&dir.leasehold().args(["man", "run"]).output().unwrap()).contains("once\\-per"));
    assert_eq!(exit_and_errors(&dir.leasehold().args(["man", "nothing"]).output().unwrap()).0, 64);
}

#[test]
fn the_version_and_the_help_are_no_errors() {
    let dir = TestDir::new();
    let version = text(&dir.leasehold().arg("--version").output().unwrap());
    assert_eq!(version, concat!("leasehold ", env!("CARGO_PKG_VERSION"), "\n"));
    for help in [&["--help"][..], &["run", "--help"], &["help", "run"]] {
        let output = dir.leasehold().args(help).output().unwrap();
        assert!(output.status.success() && text(&output).contains("Usage:"), "{help:?}");
    }
    assert_eq!(exit_and_errors(&dir.leasehold().output().unwrap()).0, 64);
}

#[test]
fn a_closed_pipe_on_stdout_is_no_error() {
    let dir = TestDir::new();
    let output = dir.shell("\"$L\" completions zsh | head -1; \"$L\" run --help | head -1").output().unwrap();
    assert_eq!(exit_and_errors(&output), (0, vec![]));
}
