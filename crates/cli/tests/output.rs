//! What is said besides the command's own words: configuration, secrets, logs, metrics, manuals.

mod support;

use std::{fs, process::Stdio};

use support::{Site, Start as _, ended, eventually, text};

#[test]
fn the_store_is_the_flags_then_the_environments_then_the_configurations_then_the_users() {
    let site = Site::new();
    let store = |flag: Option<&str>, variable: Option<&str>| {
        let mut command = site.leasehold();
        command.env_remove("LEASEHOLD_DIR");
        flag.map(|flag| command.args(["--store", flag]));
        variable.map(|variable| command.env("LEASEHOLD_STORE", variable));
        text(&command.args(["run", "x/1", "--", "sh", "-c", "echo $LEASEHOLD_STORE"]).output().unwrap())
    };
    let at = |name: &str| format!("sqlite:{}\n", site.path(name).display());
    assert_eq!(store(None, None), at(".local/state/leasehold/leases.db"));
    fs::create_dir_all(site.path(".config/leasehold")).unwrap();
    fs::write(site.path(".config/leasehold/config.toml"), format!("store = \"{}\"", at("config.db").trim()))
        .unwrap();
    assert_eq!(store(None, None), at("config.db"));
    assert_eq!(store(None, Some("sqlite:variable.db")), at("variable.db"));
    assert_eq!(store(Some("sqlite:flag.db"), Some("sqlite:variable.db")), at("flag.db"));
    assert_eq!(store(None, Some("")), at("config.db"), "an empty one is none");
}

#[test]
fn the_directory_may_be_named() {
    let site = Site::new();
    let output = site.run(["x/1", "--", "true"]).env("LEASEHOLD_DIR", site.path("a b?/c")).output().unwrap();
    assert_eq!(ended(&output), (0, vec![]));
    assert!(site.path("a b?/c/leases.db").exists());
    let mut nowhere = site.leasehold();
    nowhere.env_remove("LEASEHOLD_DIR").env_remove("HOME").args(["run", "x/1", "true"]);
    let (code, errors) = ended(&nowhere.output().unwrap());
    assert_eq!((code, errors.len()), (78, 1), "{errors:?}");
    assert!(errors[0].contains("set LEASEHOLD_DIR"), "{errors:?}");
}

#[test]
fn the_configuration_says_what_run_takes() {
    let site = Site::new();
    let config = site.path("my.toml");
    let run = |text: &str| {
        fs::write(&config, text).unwrap();
        let mut command = site.leasehold();
        command.arg("--config").arg(&config).args(["run", "x/1", "--", "sh", "-c", "echo go; read line"]);
        command.stdin(Stdio::piped()).start()
    };
    let mut running = run("[run]\nttl = '1h'\ngrace = '5s'");
    running.until("go");
    assert!(site.look("x", "1").holders[0].remaining.as_secs() > 3000);
    running.write("\n");
    assert_eq!(running.code(), 0);
    for wrong in ["[run]\nttl = 'long'", "colour = 'red'", "store = ", "[run]\nttl = '1ms'"] {
        let (code, errors) = run(wrong).end();
        let usage = wrong.contains("1ms");
        assert_eq!((code, errors.len()), (if usage { 64 } else { 78 }, 1), "{wrong}: {errors:?}");
    }
    let (code, errors) =
        ended(&site.leasehold().args(["--config", "none.toml", "run", "x/1", "true"]).output().unwrap());
    assert_eq!((code, errors.len()), (78, 1), "{errors:?}");
}

/// Everything that the program says about a store with a password in it, in any mood.
#[test]
fn no_password_is_ever_shown() {
    let site = Site::new();
    let secret = "0pen-sesame";
    fs::write(site.path("password"), format!("{secret}\n")).unwrap();
    let urls = [
        format!("gopher://user:{secret}@host/"),
        format!("redis://:{secret}@127.0.0.1:1/"),
        format!("postgres://user:{secret}@127.0.0.1:1/db?sslmode=disable"),
        format!("http://127.0.0.1:1/?auth_token={secret}"),
        format!("sqlite:///proc/nowhere/x.db?password={secret}"),
        "redis://user@127.0.0.1:1/".to_owned(),
    ];
    fs::write(site.path("bad.toml"), format!("store = 'redis://u:{secret}@h/'\nx = '{secret}'")).unwrap();
    for url in &urls {
        for mood in [&[][..], &["-vvv"], &["--json"], &["-vvv", "--log-format", "json"]] {
            let file = ["--password-file", "password"];
            let arguments = [mood, &file, &["run", "-n", "x/1", "--", "env"]].concat();
            let flag = site.leasehold().args(["--store", url]).args(&arguments).output().unwrap();
            let variable = site.leasehold().env("LEASEHOLD_STORE", url).args(&arguments).output().unwrap();
            let help = site.leasehold().env("LEASEHOLD_STORE", url).arg("--help").output().unwrap();
            for output in [&flag, &variable, &help] {
                let said = [&output.stdout[..], &output.stderr[..]].concat();
                let said = String::from_utf8_lossy(&said);
                assert!(!said.contains(secret), "{url} {mood:?}: {said}");
            }
            assert!(matches!(ended(&flag).0, 69 | 78), "{url}: {flag:?}");
        }
    }
    let bad = site.leasehold().args(["--config", "bad.toml", "run", "x/1", "true"]).output().unwrap();
    assert!(!String::from_utf8_lossy(&bad.stderr).contains(secret));
}

#[test]
fn a_password_file_that_is_not_there_is_said() {
    let site = Site::new();
    let output = site
        .leasehold()
        .args(["--store", "redis://h/", "--password-file", "none", "run", "x/1", "true"])
        .output();
    let (code, errors) = ended(&output.unwrap());
    assert_eq!((code, errors.len()), (78, 1), "{errors:?}");
    assert!(errors[0].contains("none: the password cannot be read"), "{errors:?}");
}

#[test]
fn the_log_is_there_when_it_is_asked_for() {
    let site = Site::new();
    assert_eq!(ended(&site.run(["x/1", "true"]).output().unwrap()), (0, vec![]));
    let (code, errors) = ended(&site.leasehold().args(["-vv", "run", "x/1", "true"]).output().unwrap());
    assert_eq!(code, 0);
    assert!(errors.iter().any(|line| line.contains("acquired")), "{errors:?}");
    let (code, errors) = ended(
        &site
            .leasehold()
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
fn metrics_are_kept_in_a_file() {
    let site = Site::new();
    let mut running = site.leasehold();
    running.args(["--metrics-file", "leasehold.prom", "run", "x/1", "--", "sh", "-c", "echo go; read line"]);
    let mut running = running.stdin(Stdio::piped()).start();
    running.until("go");
    let metrics = || fs::read_to_string(site.path("leasehold.prom")).unwrap_or_default();
    let held = |count: u32| {
        metrics().contains(&format!("leasehold_held{{kind=\"x\",backend=\"sqlite\"}} {count}\n"))
    };
    eventually("it is counted", || held(1));
    running.write("\n");
    assert_eq!(running.code(), 0);
    assert!(held(0), "{}", metrics());
    let lines = metrics();
    for line in [
        "# TYPE leasehold_acquire_total counter",
        "leasehold_acquire_total{kind=\"x\",backend=\"sqlite\",outcome=\"granted\"} 1",
        "leasehold_release_total{kind=\"x\",backend=\"sqlite\",outcome=\"released\"} 1",
        "leasehold_wait_seconds_count{kind=\"x\",backend=\"sqlite\"} 1",
    ] {
        assert!(lines.lines().any(|other| other == line), "{line} is not in:\n{lines}");
    }
    let left: Vec<_> =
        fs::read_dir(site.directory.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(left.iter().all(|name| !name.to_string_lossy().starts_with("leasehold.prom.")), "{left:?}");
    let (code, errors) = ended(
        &site.leasehold().args(["--metrics-file", "/no/where.prom", "run", "x/1", "true"]).output().unwrap(),
    );
    assert_eq!((code, errors.len()), (78, 1), "{errors:?}");
}

#[test]
fn completions_and_manuals_are_printed() {
    let site = Site::new();
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let output = site.leasehold().args(["completions", shell]).output().unwrap();
        assert!(output.status.success() && text(&output).contains("once-per"), "{shell}");
    }
    for page in [&["man"][..], &["man", "run"], &["man", "completions"]] {
        let output = site.leasehold().args(page).output().unwrap();
        assert!(output.status.success() && text(&output).contains(".SH NAME"), "{page:?}");
    }
    assert!(text(&site.leasehold().args(["man", "run"]).output().unwrap()).contains("once\\-per"));
    assert_eq!(ended(&site.leasehold().args(["man", "nothing"]).output().unwrap()).0, 64);
}

#[test]
fn the_version_and_the_help_are_no_errors() {
    let site = Site::new();
    let version = text(&site.leasehold().arg("--version").output().unwrap());
    assert_eq!(version, concat!("leasehold ", env!("CARGO_PKG_VERSION"), "\n"));
    for help in [&["--help"][..], &["run", "--help"], &["help", "run"]] {
        let output = site.leasehold().args(help).output().unwrap();
        assert!(output.status.success() && text(&output).contains("Usage:"), "{help:?}");
    }
    assert_eq!(ended(&site.leasehold().output().unwrap()).0, 64);
}

#[test]
fn a_reader_that_has_had_enough_is_no_error() {
    let site = Site::new();
    let output =
        site.shell("\"$L\" completions zsh | head -1; \"$L\" run --help | head -1").output().unwrap();
    assert_eq!(ended(&output), (0, vec![]));
}
