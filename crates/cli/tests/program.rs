//! How the program feels: help, colours, completions, manual pages, the list of variables.
#![allow(clippy::unwrap_used, reason = "a test is a program of its own")]

mod support;

use std::{collections::BTreeSet, fs, path::Path};

use support::{TestDir, exit_and_errors, text};

#[test]
fn a_bare_call_prints_the_short_help() {
    let dir = TestDir::new();
    for store in [None, Some("sqlite:a.db")] {
        let mut command = dir.leasehold();
        store.map(|store| command.env("LEASEHOLD_STORE", store));
        let output = command.output().unwrap();
        let (code, lines) = exit_and_errors(&output);
        assert_eq!((code, text(&output).as_str()), (64, ""));
        assert!(lines.len() > 20 && !lines[0].starts_with("leasehold: "), "{lines:?}");
        assert!(lines.iter().any(|line| line == "Look:"), "{lines:?}");
    }
}

#[test]
fn help_has_groups_options_and_variables() {
    let dir = TestDir::new();
    for arguments in [&["--help"][..], &["help"], &["-h"]] {
        let help = text(&dir.leasehold().args(arguments).output().unwrap());
        for part in [
            "Run a command under a lease:",
            "Look:",
            "Order:",
            "More:",
            "--namespace <NAME>",
            "LEASEHOLD_DIR",
        ] {
            assert!(help.contains(part), "{part}: {help}");
        }
        assert!(!help.contains("complete-resources"));
    }
    let help = text(&dir.leasehold().args(["help", "run"]).output().unwrap());
    assert!(help.contains("--nonblock") && !help.contains("Order:"));
}

/// The names `LEASEHOLD_…` in a text.
fn variables(text: &str) -> BTreeSet<String> {
    let is_part = |c: char| c.is_ascii_uppercase() || c == '_';
    let found = text
        .match_indices("LEASEHOLD_")
        .map(|(at, _)| text[at..].chars().take_while(|c| is_part(*c)).collect());
    found.filter(|name: &String| name.len() > "LEASEHOLD_".len() && !name.ends_with('_')).collect()
}

fn sources(directory: &Path) -> String {
    let mut all = String::new();
    for entry in fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()) {
        all.push_str(&if entry.is_dir() { sources(&entry) } else { fs::read_to_string(&entry).unwrap() });
    }
    all
}

#[test]
fn every_variable_is_in_the_help_and_in_the_documentation() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut used = variables(&sources(&root.join("src")));
    // Between two executions of the same process only: see `typed_urls`.
    assert!(used.remove("LEASEHOLD_TYPED_URLS"));
    let help = text(&TestDir::new().leasehold().arg("--help").output().unwrap());
    assert_eq!(variables(&help), used);
    let page = fs::read_to_string(root.join("../../docs/run.md")).unwrap();
    let missing: Vec<_> = used.difference(&variables(&page)).cloned().collect();
    assert!(missing.is_empty(), "not in docs/run.md: {missing:?}");
}

#[test]
fn colours_follow_the_option_and_the_variables() {
    let dir = TestDir::new();
    assert_eq!(exit_and_errors(&dir.run(["x/1", "true"]).output().unwrap()), (0, vec![]));
    let is_coloured = |options: &[&str], variables: &[(&str, &str)]| {
        let mut command = dir.leasehold();
        command.env_remove("NO_COLOR").env_remove("CLICOLOR_FORCE");
        command.args(options).args(["show", "x/1"]).envs(variables.iter().copied());
        text(&command.output().unwrap()).contains('\x1b')
    };
    assert!(!is_coloured(&[], &[]), "stdout is not a terminal");
    assert!(is_coloured(&["--color", "always"], &[("NO_COLOR", "1")]));
    assert!(is_coloured(&["--color=auto"], &[("CLICOLOR_FORCE", "1")]));
    assert!(!is_coloured(&[], &[("CLICOLOR_FORCE", "0")]));
    assert!(!is_coloured(&[], &[("CLICOLOR_FORCE", "1"), ("NO_COLOR", "1")]));
    assert!(!is_coloured(&["--color=never"], &[("CLICOLOR_FORCE", "1")]));
    assert!(is_coloured(&[], &[("LEASEHOLD_COLOR", "always")]));
    assert_eq!(exit_and_errors(&dir.leasehold().args(["--color", "red", "ls"]).output().unwrap()).0, 64);
}

#[test]
fn there_is_a_manual_page_for_nested_commands() {
    let dir = TestDir::new();
    let page = text(&dir.leasehold().args(["man", "cron", "ls"]).output().unwrap());
    assert!(page.contains("leasehold\\-cron\\-ls") && page.contains("\\-\\-check"), "{page}");
    let (code, errors) = exit_and_errors(&dir.leasehold().args(["man", "cron", "nosuch"]).output().unwrap());
    assert_eq!(code, 64);
    assert!(errors[0].contains("cron nosuch") && errors[0].contains("leasehold cron --help"), "{errors:?}");
}

#[test]
fn resources_are_completed_and_no_store_is_created() {
    let dir = TestDir::new();
    let complete = |start: &str| {
        let output = dir.leasehold().args(["complete-resources", start]).output().unwrap();
        assert_eq!(exit_and_errors(&output), (0, vec![]));
        text(&output).lines().map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(complete(""), [""; 0]);
    assert!(!dir.database().exists());
    for name in ["backup", "report/1", "report/2", "/var/x"] {
        let run = dir.run(["--at-least", "1h", name, "true"]).output().unwrap();
        assert_eq!(exit_and_errors(&run).0, 0);
    }
    assert_eq!(complete("rep"), ["report/1", "report/2"]);
    assert_eq!(complete("ba"), ["backup"]);
    assert_eq!(complete("/va"), ["/var/x"]);
    assert_eq!(complete("").len(), 4);
    // Without a reply in time there is nothing to complete, and no error.
    let lock = dir.lock();
    let _ = complete("");
    drop(lock);
}

#[test]
fn the_completion_script_of_bash_completes_resources() {
    let dir = TestDir::new();
    let run = dir.run(["--at-least", "1h", "report/one", "true"]).output().unwrap();
    assert_eq!(exit_and_errors(&run).0, 0);
    let script = text(&dir.leasehold().args(["completions", "bash"]).output().unwrap());
    fs::write(dir.path("completions"), script).unwrap();
    fs::create_dir(dir.path("bin")).unwrap();
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_leasehold"), dir.path("bin/leasehold")).unwrap();
    let complete = |line: &str| {
        let words: Vec<_> = line.split(' ').collect();
        let typed = format!(
            "PATH=$PWD/bin:$PATH; source ./completions; COMP_WORDS=({line}); [ -n '{last}' ] || COMP_WORDS+=(''); \
             COMP_CWORD={at}; COMP_LINE='{line}'; COMP_POINT=${{#COMP_LINE}}; spec=$(complete -p leasehold); [[ $spec =~ -F\\ ([^ ]+) ]]; \
             ${{BASH_REMATCH[1]}} leasehold '{last}' '{before}'; printf '%s\\n' \"${{COMPREPLY[@]}}\"",
            last = words[words.len() - 1],
            before = words[words.len() - 2],
            at = words.len() - 1,
        );
        let mut shell = dir.command("bash");
        text(&shell.args(["--norc", "-c", &typed]).output().unwrap())
    };
    for line in
        ["leasehold run rep", "leasehold show rep", "leasehold -v why ", "leasehold --store sqlite:x evict "]
    {
        assert!(complete(line).contains("report/one"), "{line}: {}", complete(line));
    }
    assert!(complete("leasehold sho").contains("show"));
    assert!(complete("leasehold show --js").contains("--json"));
    assert!(!complete("leasehold run report/one ").contains("report/one"), "then comes the command");
}

#[test]
fn the_completion_scripts_of_zsh_and_fish_ask_for_resources() {
    let dir = TestDir::new();
    for shell in ["zsh", "fish"] {
        let script = text(&dir.leasehold().args(["completions", shell]).output().unwrap());
        assert!(script.contains("leasehold complete-resources"), "{shell}");
    }
}

#[test]
fn every_json_answer_is_an_object() {
    let dir = TestDir::new();
    for command in [&["advise", "--cases"][..], &["ls"], &["config", "show"], &["leaks"], &["audit"]] {
        let output = dir.leasehold().arg("--json").args(command).output().unwrap();
        let json: serde_json::Value = serde_json::from_str(&text(&output)).unwrap();
        assert!(json.is_object(), "{command:?}: {json}");
    }
}
