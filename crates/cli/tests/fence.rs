//! `leasehold fence` on a SQLite database, and a command that shows its pass from a shell script.
#![allow(clippy::unwrap_used, reason = "a test")]

mod support;

use std::process::{Command, Output};

use support::TestDir;

/// The database of another program, in the directory of the test.
fn shop(dir: &TestDir) -> String {
    let path = dir.path("shop.db").display().to_string();
    sqlite3(&path, "CREATE TABLE orders (id INTEGER PRIMARY KEY, state TEXT)").unwrap();
    path
}

fn sqlite3(path: &str, script: &str) -> Result<String, String> {
    let output = Command::new("sqlite3").args(["-batch", "-bail", path, script]).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    if output.status.success() { Ok(text(&output.stdout)) } else { Err(text(&output.stderr)) }
}

fn fence(dir: &TestDir, database: &str, words: &[&str]) -> (i32, String, String) {
    let url = format!("sqlite:{database}");
    let output =
        dir.leasehold().args(["fence", words[0], "--database", &url]).args(&words[1..]).output().unwrap();
    exit_and_output(&output)
}

fn exit_and_output(output: &Output) -> (i32, String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    (output.status.code().unwrap(), text(&output.stdout), text(&output.stderr))
}

#[test]
fn a_command_under_a_lease_can_write_and_a_write_without_a_pass_is_refused() {
    let dir = TestDir::new();
    let shop = shop(&dir);
    let (code, said, _) = fence(&dir, &shop, &["install", "--table", "orders", "--resource", "order/{id}"]);
    assert_eq!(
        (code, said.as_str()),
        (0, "orders is fenced: a row is written only with the pass of order/{id}")
    );
    assert!(
        sqlite3(&shop, "INSERT INTO orders VALUES (7, 'nobody')").unwrap_err().contains("no pass was shown")
    );
    // What docs/fencing.md shows.
    let script = r#"
        set -- $LEASEHOLD_PASS
        sqlite3 -bail "$SHOP" "
          PRAGMA foreign_keys = ON;
          BEGIN IMMEDIATE;
          INSERT INTO leasehold_fence_pass (resource, token, owner) VALUES ('$LEASEHOLD_RESOURCE', $1, '$2');
          INSERT OR REPLACE INTO orders VALUES (7, '$STATE');
          DELETE FROM leasehold_fence_pass;
          COMMIT""#;
    let run = |state: &str| {
        let output =
            dir.run(["order/7", "--", "sh", "-c", script]).env("SHOP", &shop).env("STATE", state).output();
        exit_and_output(&output.unwrap())
    };
    assert_eq!(run("paid").0, 0);
    assert_eq!(run("shipped").0, 0);
    assert_eq!(sqlite3(&shop, "SELECT state FROM orders").unwrap(), "shipped");
    let (_, mark, _) = fence(&dir, &shop, &["status", "order/7"]);
    assert!(mark.starts_with("order/7: the highest token seen is "), "{mark}");
}

#[test]
fn a_fence_is_listed_rebased_and_removed() {
    let dir = TestDir::new();
    let shop = shop(&dir);
    let (code, _, said) = fence(&dir, &shop, &["status"]);
    assert!(code == 0 && said.contains("no table is fenced"), "{said}");
    fence(&dir, &shop, &["install", "--table", "orders", "--resource", "order/{id}"]);
    let (_, json, _) = fence(&dir, &shop, &["status", "--json"]);
    assert_eq!(
        json,
        r#"{"tables":[{"active":true,"resource":"order/{id}","table":"orders","truncatable":[]}]}"#
    );
    let (code, _, said) = fence(&dir, &shop, &["rebase", "order/7", "--to", "5", "--reason", "to etcd"]);
    assert!(code == 64 && said.contains("nothing to move"), "{said}");
    sqlite3(&shop, "INSERT INTO leasehold_fence_mark (resource, token) VALUES ('order/7', 1000)").unwrap();
    let words = ["rebase", "order/7", "--to", "10", "--reason", "to etcd", "--by-whom", "ann"];
    let (code, said, _) = fence(&dir, &shop, &words);
    assert_eq!(
        (code, said.as_str()),
        (0, "order/7: tokens above 10 and below 505 are accepted from now on; the mark was 1000")
    );
    let (_, json, _) = fence(&dir, &shop, &["status", "order/7", "--json"]);
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!((&json["mark"]["highest"], &json["mark"]["ceiling"]), (&"10".into(), &"505".into()));
    let rebase = &json["rebases"][0];
    assert_eq!(
        (&rebase["by"], &rebase["why"], &rebase["was"]),
        (&"ann".into(), &"to etcd".into(), &"1000".into())
    );
    let (_, table, _) = fence(&dir, &shop, &["status", "order/7"]);
    assert!(table.contains("from 505 on") && table.contains("to etcd"), "{table}");
    let (code, said, _) = fence(&dir, &shop, &["remove", "--table", "orders"]);
    assert!(code == 0 && said.contains("not fenced any more"), "{said}");
    sqlite3(&shop, "INSERT INTO orders VALUES (7, 'free')").unwrap();
}

#[test]
fn wrong_arguments_are_refused_with_the_reason() {
    let dir = TestDir::new();
    let shop = shop(&dir);
    let cases: &[(&[&str], i32, &str)] = &[
        (&["install", "--table", "orders", "--resource", "order/{id"], 64, "a brace is not closed"),
        (&["install", "--table", "orders", "--resource", "order/{nope}"], 64, "has no column \"nope\""),
        (&["install", "--table", "nothing", "--resource", "order/{id}"], 64, "there is no table"),
        (&["install", "--table", "orders", "--resource", "order/{id}", "--grant", "app"], 64, "no roles"),
        (&["install", "--table", "leasehold_fence_mark", "--resource", "x/1"], 64, "the fence's own"),
        (&["remove", "--table", "orders"], 64, "is not fenced"),
        (&["status", "order/7", "--key", "k"], 64, "leave --key out"),
        (&["rebase", "order/7", "--to", "0", "--reason", "x"], 64, "not a fencing token"),
        (&["rebase", "order/7", "--to", "1", "--reason", " "], 64, "--reason must have 1 to"),
        (&["status", "Order/7"], 64, "kind"),
        (&["status", "order/7"], 78, "no fence yet"),
    ];
    for (words, code, why) in cases {
        let (exit, _, said) = fence(&dir, &shop, words);
        assert!(exit == *code && said.contains(why), "{words:?}: {exit} {said}");
    }
    let (code, _, said) = fence(&dir, "/nowhere/shop.db", &["status"]);
    assert!(code == 78 && said.contains("cannot be opened"), "a wrong path does not create a file: {said}");
    std::fs::write(dir.path("text"), "this is not a database, but it is long enough to be looked at")
        .unwrap();
    let (code, _, said) = fence(&dir, "text", &["status"]);
    assert!(code == 78 && said.contains("not a database") && said.contains("--database"), "{said}");
    let (code, _, said) = fence(&dir, "", &["status"]);
    assert!(code == 64 && said.contains("sqlite:PATH"), "{said}");
    let output =
        dir.leasehold().args(["fence", "status", "--database", "mssql://u:sesame@h/db"]).output().unwrap();
    let (code, _, said) = exit_and_output(&output);
    assert!(code == 64 && said.contains("postgres://") && !said.contains("sesame"), "{said}");
}
