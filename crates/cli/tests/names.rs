//! The names that people type: plain names, paths, namespaces, and hashed ids.
#![allow(clippy::unwrap_used, reason = "a test is a program of its own")]

mod support;

use std::os::unix::fs::PermissionsExt as _;

use support::{Start as _, TestDir, exit_and_errors, text};

const KEY: &str = "0123456789abcdef0123456789abcdef";

fn with_key(dir: &TestDir) -> std::path::PathBuf {
    let key = dir.path("key");
    std::fs::write(&key, KEY).unwrap();
    std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o600)).unwrap();
    key
}

/// What `leasehold ARGUMENTS…` prints on stdout.
#[track_caller]
fn printed(dir: &TestDir, arguments: &[&str]) -> String {
    let output = dir.leasehold().args(arguments).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{arguments:?}: {output:?}");
    text(&output)
}

#[test]
fn plain_names_and_paths_are_resources() {
    let dir = TestDir::new();
    let path = format!("path/{}", dir.directory.path().canonicalize().unwrap().join("x.lock").display());
    for (typed, name) in [
        ("backup", "name/backup"),
        ("acme:backup", "acme:name/backup"),
        ("./x.lock", &path),
        ("./sub/../x.lock", &path),
        ("/var/lock/x.lock", "path//var/lock/x.lock"),
    ] {
        let shown = printed(&dir, &["run", typed, "--", "printenv", "LEASEHOLD_RESOURCE"]);
        assert_eq!(shown, format!("{name}\n"));
        for command in ["show", "why"] {
            let about = printed(&dir, &["--json", command, typed]);
            let about: serde_json::Value = serde_json::from_str(&about).unwrap();
            assert_eq!(about["resource"], name, "{command}");
        }
        // What is shown can be typed.
        let again = printed(&dir, &["run", name, "--", "printenv", "LEASEHOLD_RESOURCE"]);
        assert_eq!(again, format!("{name}\n"));
    }
}

#[test]
fn elect_and_orders_take_plain_names() {
    let dir = TestDir::new();
    let shown = printed(&dir, &["elect", "leader", "--", "printenv", "LEASEHOLD_RESOURCE"]);
    assert_eq!(shown, "name/leader\n");
    let paused = printed(&dir, &["--json", "pause", "backup", "--for", "1m", "--reason", "test"]);
    assert!(paused.contains("name/backup"), "{paused}");
    let output = dir.run(["-n", "backup", "true"]).output().unwrap();
    assert_eq!(exit_and_errors(&output).0, 75);
}

#[test]
fn what_is_no_name_gets_an_error_with_the_grammar() {
    let dir = TestDir::new();
    for command in [&["show", "Report/4"][..], &["run", "Report/4", "true"], &["elect", "report/", "true"]] {
        let (code, errors) = exit_and_errors(&dir.leasehold().args(command).output().unwrap());
        assert_eq!((code, errors.len()), (64, 1), "{errors:?}");
        assert!(errors[0].contains("KIND/ID as in report/42"), "{errors:?}");
    }
}

#[test]
fn the_default_namespace_comes_from_option_url_variable_or_file() {
    let dir = TestDir::new();
    let resource = ["run", "x/1", "--", "printenv", "LEASEHOLD_RESOURCE"];
    let run = |options: &[&str], variable: Option<&str>| {
        let mut command = dir.leasehold();
        command.args(options).args(resource);
        variable.map(|namespace| command.env("LEASEHOLD_NAMESPACE", namespace));
        text(&command.output().unwrap()).trim_end().to_owned()
    };
    std::fs::write(dir.path("c.toml"), "namespace = 'in-file'").unwrap();
    let file = ["--config", "c.toml"];
    let in_url = ["--config", "c.toml", "--store", "sqlite:a.db?namespace=in-url"];
    assert_eq!(run(&[], None), "x/1");
    assert_eq!(run(&file, None), "in-file:x/1");
    assert_eq!(run(&file, Some("in-variable")), "in-variable:x/1");
    assert_eq!(run(&in_url, Some("in-variable")), "in-url:x/1");
    assert_eq!(run(&[&in_url[..], &["--namespace", "typed"]].concat(), None), "typed:x/1");
    assert_eq!(run(&[&in_url[..], &["--no-namespace"]].concat(), Some("in-variable")), "x/1");
    let own = printed(&dir, &["--namespace", "a", "run", "b:x/1", "--", "printenv", "LEASEHOLD_RESOURCE"]);
    assert_eq!(own, "b:x/1\n", "a name keeps its own namespace");
}

#[test]
fn a_run_within_a_run_has_the_namespace_of_the_outer_run() {
    let dir = TestDir::new();
    let script = "\"$L\" --store 'sqlite:a.db?namespace=acme' run x/1 -- \"$L\" run -n x/1 -- printenv LEASEHOLD_RESOURCE LEASEHOLD_NAMESPACE";
    let output = dir.shell(script).output().unwrap();
    assert_eq!((exit_and_errors(&output), text(&output).as_str()), ((0, vec![]), "acme:x/1\nacme\n"));
    let script = "\"$L\" --no-namespace run x/1 -- printenv LEASEHOLD_NAMESPACE";
    let output = dir.shell(script).env("LEASEHOLD_NAMESPACE", "acme").output().unwrap();
    assert_eq!(text(&output), "", "it is not inherited past --no-namespace");
}

#[test]
fn lists_show_the_default_namespace_only() {
    let dir = TestDir::new();
    let mut runs = Vec::new();
    for name in ["a:x/1", "b:x/1", "x/1"] {
        let run = dir
            .run([name, "--", "sh", "-c", "echo held; read line"])
            .stdin(std::process::Stdio::piped())
            .start();
        run.wait_for_line("held");
        runs.push(run);
    }
    let listed = |options: &[&str]| {
        let json = printed(&dir, &[&["--json", "ls"], options].concat());
        let json: serde_json::Value = serde_json::from_str(&json).unwrap();
        let rows = json["resources"].as_array().unwrap().clone();
        rows.iter().map(|row| row["resource"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(listed(&[]), ["a:x/1", "b:x/1", "x/1"]);
    assert_eq!(listed(&["--namespace", "a"]), ["a:x/1"]);
    assert_eq!(listed(&["--namespace", "a", "b:"]), ["b:x/1"]);
    assert_eq!(listed(&["--namespace", "a", "--all-namespaces"]), ["a:x/1", "b:x/1", "x/1"]);
    for mut run in runs {
        run.write("\n");
        assert_eq!(run.code(), 0);
    }
}

#[test]
fn a_sensitive_id_is_hashed_everywhere() {
    let dir = TestDir::new();
    with_key(&dir);
    let options = ["--sensitive", "--hash-key-file", "key"];
    let mut run = dir.leasehold();
    run.args(options).args(["-vv", "run", "account/anna", "--", "sh", "-c"]);
    let look = "env | grep anna; printenv LEASEHOLD_RESOURCE; \"$L\" ls; \"$L\" --sensitive why account/anna; \"$L\" --sensitive run -n account/anna -- printenv LEASEHOLD_TOKEN; printenv LEASEHOLD_TOKEN";
    let output = run.arg(look).env("L", env!("CARGO_BIN_EXE_leasehold")).output().unwrap();
    let (shown, errors) = (text(&output), String::from_utf8_lossy(&output.stderr).into_owned());
    assert_eq!(output.status.code(), Some(0), "{errors}");
    assert!(!shown.contains("anna") && !errors.contains("anna"), "{shown}{errors}");
    assert!(shown.starts_with("account/~"), "{shown}");
    let tokens: Vec<_> = shown.lines().rev().take(2).collect();
    assert_eq!(tokens[0], tokens[1], "the inner run means the same resource: {shown}");
    let bytes = std::fs::read(dir.database()).unwrap();
    assert!(!bytes.windows(4).any(|four| four == b"anna"));
    for share in [&["-s"][..], &["--permits", "1/2"]] {
        let mut run = dir.leasehold();
        run.args(options).arg("run").args(share).args([
            "account/ben",
            "--",
            "printenv",
            "LEASEHOLD_RESOURCE",
        ]);
        assert!(text(&run.output().unwrap()).starts_with("account/~"));
        let look = printed(&dir, &["show", "account/ben"]);
        assert!(look.contains("free"), "{look}");
    }
}

#[test]
fn sensitive_needs_a_key_and_one_resource() {
    let dir = TestDir::new();
    with_key(&dir);
    let refused = |arguments: &[&str], code, said: &str| {
        let (got, errors) = exit_and_errors(&dir.leasehold().args(arguments).output().unwrap());
        assert_eq!((got, errors.len()), (code, 1), "{errors:?}");
        assert!(errors[0].contains(said), "{errors:?}");
    };
    refused(&["--sensitive", "run", "account/anna", "true"], 78, "--hash-key-file");
    refused(&["--sensitive", "--hash-key-file", "key", "ls"], 64, "needs one resource");
    std::fs::write(dir.path("key"), "short").unwrap();
    refused(&["--sensitive", "--hash-key-file", "key", "show", "account/anna"], 78, "needs 16");
}

#[test]
fn sensitive_in_the_file_is_for_single_resources() {
    let dir = TestDir::new();
    with_key(&dir);
    std::fs::write(dir.path("c.toml"), "sensitive = true\nhash_key_file = 'key'\n").unwrap();
    let file = ["--config", "c.toml"];
    let name = printed(
        &dir,
        &[&file[..], &["run", "account/anna", "--", "printenv", "LEASEHOLD_RESOURCE"]].concat(),
    );
    assert!(name.starts_with("account/~"), "{name}");
    assert_eq!(printed(&dir, &[&file[..], &["--json", "ls"]].concat()).matches("anna").count(), 0);
    let typed = dir.leasehold().args(file).args(["--sensitive", "ls"]).output().unwrap();
    assert_eq!(exit_and_errors(&typed).0, 64);
    let resource = |command: &str| {
        printed(&dir, &[&file[..], &[command, "leader", "--", "printenv", "LEASEHOLD_RESOURCE"]].concat())
    };
    assert_eq!(resource("elect"), resource("run"), "the child of elect hashes it no second time");
}

#[test]
fn cron_has_the_default_namespace_and_no_sensitive_names() {
    let dir = TestDir::new();
    with_key(&dir);
    let cron = ["* * * * *", "job", "--", "true"];
    let output =
        dir.leasehold().args(["--sensitive", "--hash-key-file", "key", "cron"]).args(cron).output().unwrap();
    assert_eq!(exit_and_errors(&output).0, 64);
    let running = dir.leasehold().args(["-v", "--namespace", "acme", "cron"]).args(cron).start();
    let first = running.next_error_line();
    assert!(first.contains("acme:job"), "{first}");
}
