//! `ls`, `show`, `why` and `audit`, as text and as JSON.

mod operator_support;

use std::time::Duration;

use operator_support::{TestStore, assert_printable};
use serde_json::{Value, json};

const MINUTE: Duration = Duration::from_secs(60);

#[test]
fn an_empty_store_is_no_error() {
    let store = TestStore::new();
    for words in [&["ls"][..], &["audit"], &["leaks"], &["show", "report/42"], &["why", "report/42"]] {
        let answer = store.call(words);
        assert_eq!(answer.code, 0, "{words:?} {answer:?}");
        assert_printable(&answer.out);
    }
    assert_eq!(store.json(&["ls"]), json!({ "resources": [], "more": 0, "hidden": 0, "unreadable": 0 }));
    assert_eq!(store.json(&["audit"]), json!({ "records": [], "more": false }));
    assert_eq!(store.json(&["leaks"]), json!({ "findings": [] }));
    let shown = store.json(&["show", "report/42"]);
    assert_eq!(
        (&shown["holders"], &shown["last_token"], &shown["audit"]),
        (&json!([]), &Value::Null, &json!([]))
    );
    let why = store.json(&["why", "report/42"]);
    assert_eq!(
        (&why["free"], &why["at_the_latest_ms"], &why["frees"]),
        (&json!(true), &json!(0), &json!([]))
    );
    assert_eq!(store.call(&["why", "report/42"]).ok(), "report/42 is free: a claim is granted at once.\n");
}

#[test]
fn wrong_names_are_usage_errors() {
    let store = TestStore::new();
    for words in [
        &["show", "report/"][..],
        &["show", "Report/1"],
        &["why", ""],
        &["ls", "Report/1"],
        &["watch", "A/b"],
    ] {
        store.call(words).fails(64, &[]);
    }
    store.call(&["ls", "--sort", "size"]).fails(64, &["size"]);
}

#[test]
fn ls_filters_and_sorts() {
    let store = TestStore::new();
    store.dead_holder("report", "1", MINUTE, "first");
    store.dead_holder("import", "2", MINUTE * 5, "second");
    let _waiting = store.wait_for("import/2");
    let names = |words: &[&str]| {
        let listed = store.json(&[&["ls"], words].concat());
        let name = |seen: &Value| seen["resource"].as_str().unwrap().to_owned();
        listed["resources"].as_array().unwrap().iter().map(name).collect::<Vec<_>>()
    };
    assert_eq!(names(&[]), ["import/2", "report/1"]);
    assert_eq!(names(&["rep"]), ["report/1"]);
    assert_eq!(names(&["report/*"]), ["report/1"]);
    assert_eq!(names(&["--kind", "report"]), ["report/1"]);
    assert_eq!(names(&["--waiting"]), ["import/2"]);
    assert_eq!(names(&["--sort", "wait"]), ["import/2", "report/1"]);
    assert_eq!(names(&["--sort", "held"]), ["report/1", "import/2"]);
    assert_eq!(names(&["--sort", "remaining"]), ["report/1", "import/2"]);
    assert_eq!(names(&["--limit", "1"]), ["import/2"]);
    assert_eq!(store.json(&["ls", "--limit", "1"])["more"], 1);
    let table = store.call(&["ls"]).ok();
    let row = table.lines().find(|line| line.starts_with("import/2")).unwrap();
    assert!(row.contains("second") && row.contains("1, oldest"), "{row}");
}

#[test]
fn json_has_milliseconds_and_tokens_as_strings() {
    let store = TestStore::new();
    let token = store.dead_holder("report", "42", MINUTE, "nightly").to_string();
    let shown = store.json(&["show", "report/42"]);
    let holder = &shown["holders"][0];
    assert_eq!(holder["token"], json!(token));
    assert_eq!(shown["last_token"], json!(token));
    assert_eq!(holder["label"], "nightly");
    assert_eq!(holder["pid"], json!(std::process::id()));
    assert!((50_000..=60_000).contains(&holder["remaining_ms"].as_u64().unwrap()), "{holder}");
    let since = holder["since"].as_str().unwrap();
    assert!(since.len() == 24 && since.ends_with('Z') && &since[10..11] == "T", "{since}");
    for field in ["held_for_ms", "weight", "turns"] {
        assert!(holder[field].is_u64(), "{field}");
    }
    // The owner token allows its owner to release the lease, so it is never shown.
    let whole = shown.to_string();
    let digits = |c: char| c.is_ascii_hexdigit();
    assert!(!whole.split(|c| !digits(c)).any(|word| word.len() >= 32), "{whole}");
}

#[test]
fn show_has_the_note_the_queue_and_the_last_orders() {
    let store = TestStore::new();
    store.with_client("leader", async |client| {
        let election = client.election("scheduler", "eu");
        std::mem::forget(election.candidate("eu-1:8080").ttl(MINUTE).acquire().await.unwrap());
    });
    let _waiting = store.wait_for("scheduler/eu");
    let token = store.json(&["show", "scheduler/eu"])["holders"][0]["token"].as_str().unwrap().to_owned();
    store.call(&["ask", "scheduler/eu", "--token", &token, "--by", "30s", "--reason", "deploy"]).ok();
    store.call(&["pause", "scheduler/eu2", "--for", "1m", "--reason", "of another"]).ok();
    let shown = store.call(&["show", "scheduler/eu"]).ok();
    for word in ["eu-1:8080", "waiter", "deploy", "anna@", &token, "1 waiting"] {
        assert!(shown.contains(word), "{word}: {shown}");
    }
    assert!(!shown.contains("of another"), "{shown}");
    let json = store.json(&["show", "scheduler/eu"]);
    assert_eq!(json["holders"][0]["note"], "eu-1:8080");
    assert_eq!(json["holders"][0]["asked"]["why"], "deploy");
    assert_eq!(json["line"][0]["label"], "waiter");
    assert_eq!(json["audit"][0]["command"], "ask");
}

#[test]
fn why_names_the_holder_and_prints_commands_that_work() {
    let store = TestStore::new();
    let token = store.dead_holder("report", "it's 42", MINUTE, "nightly").to_string();
    let said = store.call(&["why", "report/it's 42"]).ok();
    for word in ["is held by", "nightly", &token, "at the latest", "if it stops renewing"] {
        assert!(said.contains(word), "{word}: {said}");
    }
    let why = store.json(&["why", "report/it's 42"]);
    assert_eq!((&why["free"], &why["ahead"]), (&json!(false), &json!(0)));
    assert!(why["at_the_latest_ms"].as_u64().unwrap() > 40_000);
    let frees = why["frees"].as_array().unwrap();
    let ask = frees.iter().find(|way| way["how"] == "ask").unwrap()["command"].as_str().unwrap();
    let line = ask.replacen("leasehold", env!("CARGO_BIN_EXE_leasehold"), 1);
    let ran =
        std::process::Command::new("sh").args(["-c", &line]).env("LEASEHOLD_STORE", store.url()).status();
    assert!(ran.unwrap().success(), "{line}");
    assert!(store.call(&["why", "report/it's 42"]).ok().contains("has been asked to finish"));
}

#[test]
fn text_from_other_programs_cannot_control_the_terminal() {
    let store = TestStore::new();
    let label = "a\u{202e}b\u{200b}\x1b[2Jc";
    store.with_client(label, async |client| {
        let election = client.election("leader", "x\u{202e}y");
        let note: &[u8] = b"\x1b]0;owned\x07";
        std::mem::forget(election.candidate(note).ttl(MINUTE).acquire().await.unwrap());
    });
    let token = store.json(&["ls"])["resources"][0]["holders"][0]["token"].as_str().unwrap().to_owned();
    let name = "leader/x\u{202e}y";
    let reason = "\x1b[31m\u{2066}red\r\nand more";
    store
        .call(&["ask", name, "--token", &token, "--by", "9", "--reason", reason, "--by-whom", "\x1b[0mx"])
        .ok();
    for words in [&["ls"][..], &["show", name], &["why", name], &["audit"], &["leaks", "--over", "0"]] {
        let answer = store.call(words);
        assert_printable(&answer.out);
        assert_printable(&answer.err);
        let answer = store.call(&[words, &["--json"]].concat());
        assert_printable(&answer.out);
    }
    let audit = store.json(&["audit"]);
    assert_eq!(audit["records"][0]["why"], reason, "JSON has the original text");
    let holder = &store.json(&["show", name])["holders"][0];
    assert_eq!((&holder["note"], &holder["note_hex"]), (&Value::Null, &json!("1b5d303b6f776e656407")));
    assert!(store.call(&["show", name]).ok().contains("0x1b5d303b6f776e656407"));
}

#[test]
fn a_hashed_id_can_be_typed_as_it_is_shown() {
    let store = TestStore::new();
    store.with_client("", async |_| {
        let backend = leasehold::open(&store.url()).await.unwrap();
        let client = leasehold::Client::builder(backend).secret(b"secret").build();
        let lease =
            client.lease("account", "anna@example.org").sensitive().ttl(MINUTE).acquire().await.unwrap();
        std::mem::forget(lease);
        std::mem::forget(client);
    });
    let listed = store.json(&["ls"]);
    let name = listed["resources"][0]["resource"].as_str().unwrap();
    assert!(name.starts_with("account/~") && listed["resources"][0]["hashed"] == true, "{listed}");
    assert_eq!(store.json(&["show", name])["holder_count"], 1);
    assert_eq!(store.json(&["ls", &name[..12]])["resources"][0]["resource"], name);
}

#[test]
fn a_printed_command_names_the_configuration_and_the_password_file_that_were_typed() {
    let store = TestStore::new();
    store.dead_holder("report", "42", MINUTE, "");
    let (config, password) = (store.path().join("my config.toml"), store.path().join("password"));
    std::fs::write(&config, format!("store = '{}'", store.url())).unwrap();
    std::fs::write(&password, "sesame").unwrap();
    let (config, password) = (config.to_str().unwrap(), password.to_str().unwrap());
    let mut why =
        store.command(&["--config", config, "--password-file", password, "why", "report/42", "--json"]);
    let why = why.env_remove("LEASEHOLD_STORE").output().unwrap();
    let why: Value = serde_json::from_slice(&why.stdout).unwrap();
    let frees = why["frees"].as_array().unwrap();
    let ask = frees.iter().find(|way| way["how"] == "ask").unwrap()["command"].as_str().unwrap();
    assert!(
        ask.starts_with(&format!("leasehold --config '{config}' --password-file {password} ask ")),
        "{ask}"
    );
    let line = ask.replacen("leasehold", env!("CARGO_BIN_EXE_leasehold"), 1);
    assert!(std::process::Command::new("sh").args(["-c", &line]).status().unwrap().success(), "{line}");
    // From variables they need no option.
    let mut why = store.command(&["why", "report/42"]);
    why.env_remove("LEASEHOLD_STORE")
        .env("LEASEHOLD_CONFIG", config)
        .env("LEASEHOLD_PASSWORD_FILE", password);
    let why = String::from_utf8(why.output().unwrap().stdout).unwrap();
    assert!(why.contains("leasehold ask report/42"), "{why}");
}
