//! `leasehold advise`: the questions, the advice, and that the documentation has the same table.
#![allow(clippy::unwrap_used, reason = "a test is a program of its own")]

mod support;

use std::{
    fs,
    path::Path,
    process::{Output, Stdio},
};

use serde_json::Value;
use support::{TestDir, exit_and_errors, pty::Terminal, text};

fn advise(arguments: &[&str]) -> Output {
    TestDir::new().leasehold().arg("advise").args(arguments).stdin(Stdio::null()).output().unwrap()
}

fn json(arguments: &[&str]) -> Value {
    let output = advise(&[arguments, &["--json"]].concat());
    assert_eq!(exit_and_errors(&output), (0, vec![]));
    serde_json::from_str(&text(&output)).unwrap()
}

/// The known cases: the role of the lease, and whether fencing, a transaction and duplicates are needed or
/// allowed.
#[test]
fn the_named_cases_are_classified() {
    let table = [
        ("cache-rebuild", "enough", false, false, true),
        ("index-refresh", "enough", false, false, true),
        ("report-export", "fenced", true, false, false),
        ("monthly-invoices", "pre-guard", true, true, false),
        ("payment-capture", "pre-guard", true, true, false),
        ("legal-assignment", "pre-guard", true, true, false),
    ];
    for (case, lease, fencing, transaction, duplicates) in table {
        let said = json(&["--case", case]);
        assert_eq!(said["case"], case);
        assert_eq!(said["lease"], lease, "{case}");
        assert_eq!(said["fencing_required"], fencing, "{case}");
        assert_eq!(said["transaction_required"], transaction, "{case}");
        assert_eq!(said["duplicates_acceptable"], duplicates, "{case}");
    }
}

const ANSWERS: [&str; 26] = [
    "--protects",
    "external",
    "--overlap",
    "harm",
    "--duplicates",
    "no",
    "--idempotent",
    "no",
    "--fence",
    "no",
    "--survive",
    "yes",
    "--lasts",
    "5m",
    "--split",
    "no",
    "--conditional",
    "no",
    "--consensus",
    "no",
    "--redis-only",
    "no",
    "--regions",
    "no",
    "--audit",
    "no",
];

#[test]
fn options_answer_all_questions_and_the_advice_may_be_no_lock() {
    let said = json(&ANSWERS);
    assert_eq!((said["name"].as_str(), said["lease"].as_str()), (Some("reconcile"), Some("no")));
    assert_eq!((said["backends"].as_array().map(Vec::len), said["least_level"].as_str()), (Some(0), None));
    let output = text(&advise(&ANSWERS));
    assert!(output.starts_with("do          Write down the intent"), "{output}");
    assert!(output.contains("INSERT INTO intents"), "{output}");
}

/// A lease that must survive a server was advised on SQLite, with an example on one Redis.
#[test]
fn the_stores_and_the_example_fit_the_answers() {
    let mut answers = ANSWERS;
    (answers[1], answers[3], answers[5], answers[7]) = ("job", "waste", "yes", "yes");
    let said = json(&answers);
    let stores = |said: &Value| {
        said["backends"]
            .as_array()
            .unwrap()
            .iter()
            .map(|it| it.as_str().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    assert_eq!(stores(&said), ["postgres", "redlock", "etcd", "zookeeper"]);
    assert!(said["snippet"].as_str().unwrap().contains("--store postgres://"), "{said}");
    answers[21] = "yes"; // only Redis
    let said = json(&answers);
    assert_eq!(stores(&said), ["redlock"]);
    let snippet = said["snippet"].as_str().unwrap();
    assert!(snippet.contains("--store redlock://") && !snippet.contains("--once-per"), "{snippet}");
    let output = text(&advise(&["--case", "payment-capture"]));
    assert!(output.contains("redis"), "Redis is a pre-guard there: {output}");
}

#[test]
fn questions_without_an_option_are_asked() {
    let given = [&ANSWERS[..16], &ANSWERS[20..]].concat().join(" ");
    let script = format!("printf 'nonsense\\nyes\\nn\\n' | $L advise --json {given}");
    let output = TestDir::new().shell(&script).output().unwrap();
    let said: Value = serde_json::from_str(&text(&output)).unwrap();
    assert_eq!(said["answers"]["conditional"], true);
    assert_eq!(said["name"], "transaction");
    let asked = String::from_utf8(output.stderr).unwrap();
    assert_eq!(asked.matches(" of 13  ").count(), 2, "{asked}");
    assert_eq!(
        asked.matches("[yes/no]").count(),
        3,
        "a question is asked again after an invalid answer: {asked}"
    );
}

#[test]
fn in_a_terminal_the_questions_are_asked() {
    let dir = TestDir::new();
    let mut terminal = Terminal::open(&dir);
    terminal.enter("\"$L\" advise; echo code=$?");
    let answers = ["job", "damage", "no", "n", "YES", "no", "5m", "y", "no", "no", "n", "n", "n"];
    for (number, answer) in (1..).zip(answers) {
        terminal.wait_for(&format!("{number} of 13"));
        terminal.wait_for("] ");
        terminal.enter(answer);
    }
    terminal.wait_for("A lease with fencing, and durable job state");
    terminal.wait_for("code=0");
}

#[test]
fn without_answers_the_missing_options_are_named() {
    let (code, errors) = exit_and_errors(&advise(&ANSWERS[..14]));
    let last = errors.last().unwrap();
    assert_eq!(code, 64);
    let missing = "--split, --conditional, --consensus, --redis-only, --regions, --audit";
    assert!(last.contains("6 of 13") && last.ends_with(missing), "{errors:?}");
    for wrong in [&["--case", "lottery"][..], &["--fence", "perhaps"], &["--lasts", "-1"], &["ttl"]] {
        assert_eq!(exit_and_errors(&advise(wrong)).0, 64, "{wrong:?}");
    }
}

#[test]
fn a_ttl_is_advised_from_a_percentile_or_from_samples() {
    let said = json(&["ttl", "--p999", "24s"]);
    let millis = ["ttl_ms", "renew_every_ms", "stop_below_ms"].map(|field| said[field].as_u64().unwrap());
    assert_eq!(millis, [30_000, 10_000, 5_000]);
    let short = text(&advise(&["ttl", "--p999", "1ms", "--pause", "0", "--network", "0"]));
    assert!(short.contains("300ms is the shortest") && short.contains("run --ttl 1s "), "{short}");
    let dir = TestDir::new();
    let lines: String = (1..=2000).map(|millis| format!("{millis}ms\n")).collect();
    fs::write(dir.path("samples"), format!("# measured\n\n{lines}")).unwrap();
    let path = dir.path("samples");
    let said = json(&["ttl", "--samples", path.to_str().unwrap(), "--pause", "0", "--network", "0"]);
    assert_eq!(
        ["samples", "p999_ms", "ttl_ms"].map(|field| said[field].as_u64().unwrap()),
        [2000, 1998, 1998]
    );
    assert_eq!(said["remarks"].as_array().unwrap().len(), 0);
    for (content, complaint) in [("1s\nsoon\n", "line 2"), ("\n", "no samples")] {
        fs::write(&path, content).unwrap();
        let (code, errors) = exit_and_errors(&advise(&["ttl", "--samples", path.to_str().unwrap()]));
        assert_eq!((code, errors.len()), (64, 1), "{errors:?}");
        assert!(errors[0].contains(complaint), "{errors:?}");
    }
}

#[test]
fn the_page_on_choosing_has_the_same_table() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/choosing.md");
    let page = fs::read_to_string(page).unwrap();
    let (_, rest) = page.split_once("<!-- leasehold advise --markdown -->\n").unwrap();
    let (table, _) = rest.split_once("<!-- end -->").unwrap();
    let printed = text(&advise(&["--markdown"]));
    assert!(table == printed, "put what `leasehold advise --markdown` prints into docs/choosing.md");
}
