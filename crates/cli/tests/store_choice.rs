//! Which store a command uses, and when it is created.
#![allow(clippy::unwrap_used, reason = "a test is a program of its own")]

mod support;

use std::process::Command;

use support::{Start as _, TestDir, exit_and_errors, text};

/// Runs `leasehold ARGUMENTS…` and expects this exit code and this text in the only line on stderr.
#[track_caller]
fn refused(command: &mut Command, code: i32, said: &[&str]) {
    let (got, errors) = exit_and_errors(&command.output().unwrap());
    assert_eq!((got, errors.len()), (code, 1), "{errors:?}");
    for text in said {
        assert!(errors[0].contains(text), "{text}: {errors:?}");
    }
}

#[test]
fn a_store_in_memory_is_refused() {
    let dir = TestDir::new();
    for url in ["memory:", "sqlite::memory:", "memory:?namespace=a"] {
        refused(
            dir.leasehold().args(["--store", url, "run", "x/1", "--", "echo", "granted"]),
            78,
            &["lives in one process", "sqlite:PATH"],
        );
        refused(dir.leasehold().args(["--store", url, "ls"]), 78, &["lives in one process"]);
    }
    assert!(!dir.path(":memory:").exists());
}

#[test]
fn an_empty_store_is_refused_and_the_variable_is_named() {
    let dir = TestDir::new();
    let run = ["run", "x/1", "--", "true"];
    refused(dir.leasehold().args(["--store", ""]).args(run), 64, &["--store is empty", "leave --store out"]);
    refused(
        dir.leasehold().args(run).env("LEASEHOLD_STORE", ""),
        64,
        &["LEASEHOLD_STORE is empty", "unset it"],
    );
    refused(dir.leasehold().args(["--store", "sqlite:"]).args(run), 64, &["no path", "leave --store out"]);
    refused(dir.leasehold().args(run).env("LEASEHOLD_STORE", "sqlite:"), 64, &["LEASEHOLD_STORE", "no path"]);
    refused(dir.leasehold().args(run).env("LEASEHOLD_DIR", ""), 64, &["LEASEHOLD_DIR is empty", "unset it"]);
    refused(
        dir.leasehold().args(run).env("LEASEHOLD_PASSWORD_FILE", ""),
        64,
        &["LEASEHOLD_PASSWORD_FILE is empty"],
    );
    refused(dir.leasehold().args(run).env("LEASEHOLD_NAMESPACE", ""), 64, &["LEASEHOLD_NAMESPACE is empty"]);
    assert!(!dir.database().exists());
    // A value that was typed counts, whatever the variable holds.
    let output =
        dir.leasehold().args(["--store", "sqlite:a.db"]).args(run).env("LEASEHOLD_STORE", "").output();
    assert_eq!(exit_and_errors(&output.unwrap()), (0, vec![]));
}

#[test]
fn a_tilde_is_the_home_directory() {
    let dir = TestDir::new();
    let output = dir.leasehold().args(["--store", "sqlite:~/a.db", "run", "x/1", "true"]).output().unwrap();
    assert_eq!(exit_and_errors(&output), (0, vec![]));
    assert!(dir.path("a.db").exists() && !dir.path("~").exists());
}

#[test]
fn only_the_directory_of_the_default_store_is_created() {
    let dir = TestDir::new();
    let url = format!("sqlite:{}/no/such/x.db", dir.directory.path().display());
    refused(
        dir.leasehold().args(["--store", &url, "run", "x/1", "true"]),
        78,
        &["there is no directory", "/no/such", "create it"],
    );
    assert!(!dir.path("no").exists());
    let output = dir.run(["x/1", "true"]).env("LEASEHOLD_DIR", dir.path("new/deep")).output().unwrap();
    assert_eq!(exit_and_errors(&output), (0, vec![]));
    assert!(dir.path("new/deep/leases.db").exists());
}

#[test]
fn commands_that_read_create_no_store() {
    let reading: &[&[&str]] = &[
        &["ls"],
        &["show", "x/1"],
        &["why", "x/1"],
        &["audit"],
        &["leaks"],
        &["cron", "ls"],
        &["resume", "x/1", "--reason", "test"],
    ];
    for command in reading {
        let dir = TestDir::new();
        let output = dir.leasehold().args(*command).env("LEASEHOLD_DIR", dir.path("state")).output().unwrap();
        let (code, errors) = exit_and_errors(&output);
        assert_eq!(code, 0, "{command:?}: {errors:?}");
        assert!(
            errors[0].contains("there is no store at") && errors[0].contains("state/leases.db"),
            "{errors:?}"
        );
        refused(
            dir.leasehold().args(["--store", "sqlite:named.db"]).args(*command),
            78,
            &["there is no store at", "named.db", "check the path"],
        );
        let left: Vec<_> = std::fs::read_dir(dir.directory.path()).unwrap().collect();
        assert!(left.is_empty(), "{command:?}: {left:?}");
    }
}

#[test]
fn the_list_of_a_missing_default_store_is_empty_json() {
    let dir = TestDir::new();
    let output = dir.leasehold().args(["--json", "ls"]).output().unwrap();
    let json: serde_json::Value = serde_json::from_str(&text(&output)).unwrap();
    assert_eq!(json["resources"], serde_json::json!([]));
}

#[test]
fn watch_and_observe_see_the_default_store_as_soon_as_it_exists() {
    let dir = TestDir::new();
    let watch = dir.leasehold().args(["watch", "--interval", "100ms"]).start();
    let observer = dir.leasehold().args(["elect", "--observe", "x/1"]).start();
    for command in [&watch, &observer] {
        assert!(command.next_error_line().contains("there is no store at"));
    }
    assert!(observer.next_line().contains("there is no leader"));
    assert!(!dir.database().exists());
    let mut run = dir.script(&[], "echo held; read line").stdin(std::process::Stdio::piped()).start();
    run.wait_for_line("held");
    assert!(watch.next_line().contains("x/1"));
    assert!(observer.next_line().contains("is the leader"));
    run.write("\n");
    assert_eq!(run.code(), 0);
}

#[test]
fn the_command_finds_the_same_store_after_it_has_changed_its_directory() {
    let dir = TestDir::new();
    std::fs::create_dir(dir.path("elsewhere")).unwrap();
    std::fs::create_dir(dir.path("rel")).unwrap();
    let inner = "cd elsewhere && printenv LEASEHOLD_TOKEN && \"$L\" run -n x/1 -- printenv LEASEHOLD_TOKEN";
    for (variable, value, option) in [
        ("LEASEHOLD_DIR", "rel", ""),
        ("LEASEHOLD_STORE", "sqlite:rel/b.db", ""),
        ("UNUSED", "", "--store sqlite:rel/c.db"),
    ] {
        let script = format!("\"$L\" {option} run x/1 -- sh -c '{inner}'");
        let output = dir.shell(&script).env(variable, value).output().unwrap();
        assert_eq!(exit_and_errors(&output), (0, vec![]), "{variable} {option}");
        let tokens = text(&output);
        let tokens: Vec<_> = tokens.lines().collect();
        assert_eq!(tokens[0], tokens[1], "the same lease: {variable} {option}");
    }
    let left: Vec<_> = std::fs::read_dir(dir.path("elsewhere")).unwrap().collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn files_are_absolute_for_the_command() {
    let dir = TestDir::new();
    std::fs::write(dir.path("c.toml"), "").unwrap();
    let variables =
        ["LEASEHOLD_CONFIG", "LEASEHOLD_METRICS_FILE", "LEASEHOLD_HASH_KEY_FILE", "LEASEHOLD_PASSWORD_FILE"];
    let mut run = dir.run(["x/1", "--", "printenv"]);
    let output = run
        .args(variables)
        .env("LEASEHOLD_CONFIG", "c.toml")
        .env("LEASEHOLD_METRICS_FILE", "m.prom")
        .env("LEASEHOLD_HASH_KEY_FILE", "key")
        .env("LEASEHOLD_PASSWORD_FILE", "./p")
        .output()
        .unwrap();
    let expected: Vec<_> =
        ["c.toml", "m.prom", "key", "p"].map(|name| dir.path(name).display().to_string()).into();
    assert_eq!(text(&output).lines().collect::<Vec<_>>(), expected, "{output:?}");
}

#[test]
fn a_relative_path_in_the_configuration_file_is_relative_to_the_file() {
    let dir = TestDir::new();
    std::fs::create_dir(dir.path("etc")).unwrap();
    std::fs::write(dir.path("etc/c.toml"), "store = 'sqlite:a.db'").unwrap();
    let output = dir.leasehold().args(["--config", "etc/c.toml", "run", "x/1", "true"]).output().unwrap();
    assert_eq!(exit_and_errors(&output), (0, vec![]));
    assert!(dir.path("etc/a.db").exists());
}
