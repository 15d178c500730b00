//! `config.toml`, and `leasehold config show`.
#![allow(clippy::unwrap_used, reason = "a test is a program of its own")]

mod support;

use std::process::Stdio;

use serde_json::Value;
use support::{Start as _, TestDir, exit_and_errors, text};

const FILE: &str = "\
namespace = 'acme'
color = 'never'
log_format = 'json'
metrics_file = 'm.prom'

[run]
ttl = '1m'
wait = '100ms'
conflict_exit_code = 33

[cron]
zone = 'Europe/Berlin'

[elect]
ttl = '5s'
";

fn dir_with(file: &str) -> TestDir {
    let dir = TestDir::new();
    std::fs::write(dir.path("config.toml"), file).unwrap();
    dir
}

fn settings(dir: &TestDir, options: &[&str], variables: &[(&str, &str)]) -> Value {
    let mut command = dir.leasehold();
    command.args(options).args(["--json", "config", "show"]).envs(variables.iter().copied());
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    serde_json::from_str(&text(&output)).unwrap()
}

fn setting<'a>(shown: &'a Value, key: &str) -> (&'a str, &'a Value) {
    let rows = shown["settings"].as_array().unwrap();
    let row = rows.iter().find(|row| row["key"] == key).unwrap_or_else(|| panic!("{key}: {shown}"));
    (row["value"].as_str().unwrap(), &row["source"])
}

#[test]
fn the_file_sets_global_options_and_defaults() {
    let dir = dir_with(FILE);
    let mut holder = dir.leasehold();
    holder.args(["--config", "config.toml", "run", "x/1", "--", "sh", "-c", "echo held; read line"]);
    let mut holder = holder.stdin(Stdio::piped()).start();
    holder.wait_for_line("held");
    // The second run waits for 100 ms and ends with the exit code of the file.
    let output = dir.leasehold().args(["--config", "config.toml", "run", "x/1", "true"]).output().unwrap();
    assert_eq!(exit_and_errors(&output).0, 33);
    holder.write("\n");
    assert_eq!(holder.code(), 0);
    assert!(dir.path("m.prom").exists());
    let next = dir.leasehold().args(["--config", "config.toml", "cron", "next", "@daily"]).output().unwrap();
    assert!(text(&next).contains("Europe/Berlin"), "{next:?}");
}

#[test]
fn the_file_sets_defaults_of_run_and_the_operator() {
    let dir = dir_with("pass_secrets = true\noperator = 'anna'\n[run]\nat_least = '1h'\non_ask = 'USR1'\n");
    let leasehold = || {
        let mut command = dir.leasehold();
        command.args(["--config", "config.toml"]).env("LEASEHOLD_PASSWORD", "sesame");
        command
    };
    let script = "trap 'echo asked; exit 0' USR1; echo $LEASEHOLD_PASSWORD $LEASEHOLD_TOKEN; while :; do sleep 0.05; done";
    let run = leasehold().args(["run", "--ttl", "3s", "x/1", "--", "sh", "-c", script]).start();
    let line = run.next_line();
    let token = line.strip_prefix("sesame ").unwrap();
    let ask = ["ask", "x/1", "--token", token, "--by", "9s", "--reason", "test"];
    assert_eq!(exit_and_errors(&leasehold().args(ask).output().unwrap()).0, 0);
    run.wait_for_line("asked");
    assert_eq!(run.code(), 0);
    let held = dir.look("x", "1");
    assert!(held.holders[0].kept, "at_least: {held:?}");
    let audit = text(&leasehold().arg("audit").output().unwrap());
    assert!(audit.contains("anna"), "{audit}");
    // --once-per and at_least exclude each other.
    let once = leasehold().args(["run", "--once-per", "1s", "x/2", "true"]).output().unwrap();
    assert_eq!(exit_and_errors(&once), (0, vec![]));
    let dir = dir_with("[run]\nno_renew = true\nttl = '1s'\n");
    let run = dir.leasehold().args(["--config", "config.toml", "run", "x/1", "--", "sleep", "60"]).start();
    let (code, errors) = run.end();
    assert!(code == 79 && errors[0].contains("--no-renew"), "{code}: {errors:?}");
}

#[test]
fn an_unknown_key_is_refused_with_its_line() {
    let dir = dir_with("namespace = 'a'\n\n[elect]\nwait = '1s'\n");
    for command in [&["ls"][..], &["config", "show"], &["run", "x/1", "true"]] {
        let output = dir.leasehold().args(["--config", "config.toml"]).args(command).output().unwrap();
        let (code, errors) = exit_and_errors(&output);
        assert_eq!((code, errors.len()), (78, 1), "{errors:?}");
        assert!(errors[0].contains("line 4") && errors[0].contains("wait"), "{errors:?}");
    }
    // What uses no store works with a broken file as well.
    let output = dir.leasehold().args(["--config", "config.toml", "schema", "--help"]).output().unwrap();
    assert_eq!(output.status.code(), Some(0));
}

#[test]
fn config_show_names_the_source_of_every_value() {
    let dir = dir_with(FILE);
    let config = dir.path("config.toml").display().to_string();
    let shown = settings(
        &dir,
        &["--config", "config.toml", "--color", "always"],
        &[("LEASEHOLD_METRICS_FILE", "other.prom"), ("LEASEHOLD_PASSWORD", "sesame")],
    );
    assert_eq!(shown["config_file"], config.as_str());
    let (value, source) = setting(&shown, "color");
    assert_eq!((value, &source["option"]), ("always", &"--color".into()));
    let (value, source) = setting(&shown, "metrics_file");
    assert_eq!(
        (value, &source["variable"]),
        (dir.path("other.prom").to_str().unwrap(), &"LEASEHOLD_METRICS_FILE".into())
    );
    let (value, source) = setting(&shown, "run.ttl");
    assert_eq!((value, &source["file"], &source["line"]), ("1m", &config.as_str().into(), &7.into()));
    let (value, source) = setting(&shown, "run.grace");
    assert_eq!((value, &source["from"]), ("a sixth of the ttl", &"default".into()));
    let (value, source) = setting(&shown, "password");
    assert_eq!((value, &source["variable"]), ("(hidden)", &"LEASEHOLD_PASSWORD".into()));
    assert!(!shown.to_string().contains("sesame"));
    let (value, source) = setting(&shown, "store");
    assert_eq!(
        (value, &source["variable"]),
        (format!("sqlite:{}", dir.database().display()).as_str(), &"LEASEHOLD_DIR".into())
    );
}

#[test]
fn config_show_shows_the_namespace_that_counts() {
    let dir = dir_with("store = 'sqlite:a.db?namespace=in-url'\nnamespace = 'in-file'\n");
    let options = ["--config", "config.toml"];
    let shown = settings(&dir, &options, &[("LEASEHOLD_NAMESPACE", "in-variable")]);
    assert_eq!(setting(&shown, "namespace"), ("in-url", &serde_json::json!({ "from": "url" })));
    let shown = settings(&dir, &[&options[..], &["--namespace", "typed"]].concat(), &[]);
    assert_eq!(setting(&shown, "namespace").0, "typed");
}

#[test]
fn config_show_has_every_key_of_the_file() {
    // The keys are read from the definition, so that a new one cannot be forgotten.
    let source = include_str!("../src/config.rs");
    let dir = TestDir::new();
    let shown = settings(&dir, &[], &[]);
    let mut checked = 0;
    for (table, prefix) in [
        ("Config", ""),
        ("RunDefaults", "run."),
        ("CronDefaults", "cron."),
        ("ElectDefaults", "elect."),
        ("ServeDefaults", "serve."),
    ] {
        let start = source.find(&format!("pub(crate) struct {table} {{")).unwrap();
        let body = &source[start..start + source[start..].find("\n}").unwrap()];
        for line in body.lines().filter_map(|line| line.trim().strip_prefix("pub(crate) ")) {
            let Some((key, kind)) = line.split_once(": ") else { continue };
            if kind.starts_with("Option") && key != "path" {
                setting(&shown, &format!("{prefix}{key}"));
                checked += 1;
            }
        }
    }
    assert!(checked > 15, "{checked}");
}
