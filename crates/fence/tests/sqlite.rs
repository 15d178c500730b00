//! The fence of SQLite: in the transaction of a program, in a column, and with triggers for any client.
#![allow(clippy::unwrap_used, reason = "a test")]

mod common;

use std::{path::Path, process::Command};

use common::{pass, pass_for, stale, token};
use leasehold_core::{ErrorKind, Pass};
use leasehold_fence::{
    Rebase, Template,
    rule::{self, Admission, Mark},
    sqlite,
};
use proptest::prelude::*;
use rusqlite::Connection;

fn database() -> Connection {
    let database = Connection::open_in_memory().unwrap();
    database.execute_batch("CREATE TABLE report (id INTEGER PRIMARY KEY, body TEXT)").unwrap();
    sqlite::setup(&database).unwrap();
    database
}

fn template(text: &str) -> Template {
    text.parse().unwrap()
}

fn write(database: &mut Connection, pass: &Pass, body: &str) -> leasehold_core::Result<()> {
    let transaction = database.transaction().unwrap();
    sqlite::admit(&transaction, pass)?;
    transaction.execute("INSERT OR REPLACE INTO report VALUES (42, ?1)", [body]).unwrap();
    transaction.commit().unwrap();
    Ok(())
}

fn body(database: &Connection) -> String {
    database.query_row("SELECT body FROM report WHERE id = 42", [], |row| row.get(0)).unwrap()
}

#[test]
fn a_stale_writer_is_refused_and_the_data_stays() {
    let mut database = database();
    write(&mut database, &pass(33, 1), "A").unwrap();
    write(&mut database, &pass(34, 2), "B").unwrap();
    assert_eq!(stale(write(&mut database, &pass(33, 1), "A, late")), (33, 34));
    write(&mut database, &pass(34, 2), "B again").unwrap();
    assert_eq!(stale(write(&mut database, &pass(34, 3), "another 34")), (34, 34));
    assert_eq!(body(&database), "B again");
}

#[test]
fn without_an_owner_each_token_is_admitted_once() {
    let mut database = database();
    write(&mut database, &pass(33, 0), "once").unwrap();
    assert_eq!(stale(write(&mut database, &pass(33, 0), "twice")), (33, 33));
    assert_eq!(body(&database), "once");
}

#[test]
fn a_mark_is_rolled_back_with_its_effect() {
    let mut database = database();
    let transaction = database.transaction().unwrap();
    assert_eq!(sqlite::admit(&transaction, &pass(34, 1)).unwrap(), Admission::Raised);
    assert_eq!(sqlite::admit(&transaction, &pass(34, 1)).unwrap(), Admission::Again);
    drop(transaction); // rolled back
    write(&mut database, &pass(33, 1), "A").unwrap();
    assert_eq!(body(&database), "A");
}

#[test]
fn outside_a_transaction_nothing_is_admitted() {
    let mut database = database();
    let error = sqlite::admit(&database, &pass(1, 1)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert_eq!(sqlite::under(&database, &pass(1, 1), |_| ()).unwrap_err().kind(), ErrorKind::Invalid);
    let transaction = database.transaction().unwrap();
    let error = sqlite::Column::new("report", "id").raise(&transaction, 1, &pass(1, 1)).unwrap_err();
    assert!(error.to_string().contains("last_fencing_token"), "{error}");
    drop(transaction);
    let bare = Connection::open_in_memory().unwrap();
    bare.execute_batch("BEGIN").unwrap();
    let error = sqlite::admit(&bare, &pass(1, 1)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
}

/// 33 reads and pauses, 34 reads, 33 writes, 34 writes. Each adds one. Returns the sum, and how many were refused.
fn read_modify_write(enter: bool) -> (i64, usize) {
    let mut database = database();
    database.execute("INSERT INTO report VALUES (42, '0')", []).unwrap();
    let (a, b) = (pass(33, 1), pass(34, 2));
    let read = |database: &mut Connection, pass: &Pass| {
        if enter {
            sqlite::enter(database, pass).unwrap();
        }
        body(database).parse::<i64>().unwrap()
    };
    let read_by_a = read(&mut database, &a);
    let read_by_b = read(&mut database, &b);
    let wrote_a = write(&mut database, &a, &(read_by_a + 1).to_string());
    let wrote_b = write(&mut database, &b, &(read_by_b + 1).to_string());
    (body(&database).parse().unwrap(), [wrote_a, wrote_b].iter().filter(|done| done.is_err()).count())
}

#[test]
fn without_enter_an_update_is_lost_and_with_it_the_stale_one_is_refused() {
    assert_eq!(read_modify_write(false), (1, 0), "two updates went through, and one of them is gone");
    assert_eq!(read_modify_write(true), (1, 1), "one update went through, and the other one knows");
}

#[test]
fn a_column_admits_each_token_once() {
    let mut database = database();
    let add = "ALTER TABLE report ADD COLUMN last_fencing_token INTEGER NOT NULL DEFAULT 0";
    database.execute_batch(&format!("{add}; INSERT INTO report (id, body) VALUES (42, '')")).unwrap();
    let fence = sqlite::Column::new("report", "id");
    let mut raise = |id: i64, pass: Pass| {
        let transaction = database.transaction().unwrap();
        let raised = fence.raise(&transaction, id, &pass);
        transaction.commit().unwrap();
        raised
    };
    raise(42, pass(34, 1)).unwrap();
    assert_eq!(stale(raise(42, pass(34, 1))), (34, 34), "strict: the same owner, too");
    assert_eq!(stale(raise(42, pass(33, 1))), (33, 34));
    raise(42, pass(35, 1)).unwrap();
    let missing = raise(43, pass(36, 1)).unwrap_err();
    assert!(
        missing.kind() == ErrorKind::Invalid && missing.to_string().contains("no row has this key"),
        "{missing}"
    );
}

#[test]
fn a_row_of_a_fenced_table_is_written_only_under_its_own_pass() {
    let mut database = database();
    sqlite::install(&database, "report", &template("report/{id}")).unwrap();
    for statement in [
        "INSERT INTO report VALUES (1, 'x')",
        "INSERT OR IGNORE INTO report VALUES (1, 'x')",
        "INSERT OR REPLACE INTO report VALUES (1, 'x')",
        "INSERT INTO report (body) VALUES ('x')",
    ] {
        let error = database.execute(statement, []).expect_err(statement).to_string();
        assert!(error.contains("no pass was shown"), "{statement}: {error}");
    }
    let rows = |database: &Connection| {
        database.query_row("SELECT count(*) FROM report", [], |row| row.get::<_, i64>(0)).unwrap()
    };
    assert_eq!(rows(&database), 0);
    let mut under = |pass: Pass, statement: &str| {
        let transaction = database.transaction().unwrap();
        let done = sqlite::under(&transaction, &pass, |it| {
            it.execute(statement, []).map_err(|error| error.to_string())
        });
        if done.as_ref().is_ok_and(|done| done.is_ok()) {
            transaction.commit().unwrap();
        }
        done
    };
    let one = |number, owner| pass_for("report/1", number, owner);
    under(one(34, 1), "INSERT INTO report VALUES (1, 'x')").unwrap().unwrap();
    // The rowid that SQLite chooses can be the id of the resource, too: here it would be 2.
    under(one(34, 1), "INSERT INTO report (body) VALUES ('x')").unwrap().expect_err("another resource");
    under(one(34, 1), "UPDATE report SET id = 2").unwrap().expect_err("it moves to another resource");
    under(pass_for("report/2", 34, 1), "UPDATE report SET body = 'y'").unwrap().expect_err("another pass");
    under(pass_for("report/2", 34, 1), "DELETE FROM report").unwrap().expect_err("another pass");
    assert_eq!(stale(under(one(33, 2), "UPDATE report SET body = 'late'")), (33, 34));
    under(one(35, 0), "UPDATE report SET body = 'y'; ").unwrap().unwrap();
    assert_eq!(
        stale(under(one(35, 0), "UPDATE report SET body = 'z'")),
        (35, 35),
        "no owner: one transaction each"
    );
    under(one(36, 1), "DELETE FROM report").unwrap().unwrap();
}

#[test]
fn a_pass_cannot_outlive_its_transaction() {
    let database = database();
    sqlite::install(&database, "report", &template("report/{id}")).unwrap();
    let show = "INSERT INTO leasehold_fence_pass (resource, token) VALUES ('report/1', 34)";
    assert!(database.execute(show, []).is_err(), "without a transaction it would stay");
    database.execute_batch(&format!("BEGIN; {show}; INSERT INTO report VALUES (1, 'x')")).unwrap();
    let error = database.execute_batch("COMMIT").unwrap_err().to_string();
    assert!(error.contains("FOREIGN KEY"), "{error}");
    assert!(database.execute("UPDATE leasehold_fence_pass SET token = 35", []).is_err());
    database.execute_batch("DELETE FROM leasehold_fence_pass; COMMIT").unwrap();
    assert!(database.execute("UPDATE report SET body = 'y'", []).is_err(), "what was shown is over");
    database.execute_batch("PRAGMA foreign_keys = OFF; BEGIN").unwrap();
    let error = database.execute(&show.replace("34", "35"), []).unwrap_err().to_string();
    assert!(error.contains("foreign keys"), "{error}");
    database.execute_batch("ROLLBACK; PRAGMA foreign_keys = ON; BEGIN").unwrap();
    for (bad, why) in [
        ("0", "whole number"),
        ("'x'", "whole number"),
        ("1.5", "whole number"),
        ("9007199254740992", "whole number"),
    ] {
        let error = database.execute(&show.replace("34", bad), []).expect_err(bad).to_string();
        assert!(error.contains(why), "{bad}: {error}");
    }
    let owned = "INSERT INTO leasehold_fence_pass (resource, token, owner) VALUES ('report/1', 36, 'me')";
    assert!(database.execute(owned, []).unwrap_err().to_string().contains("hash"));
}

/// Runs the program `sqlite3`, a client that does not know leasehold.
fn shell(file: &Path, script: &str) -> Result<String, String> {
    let output = Command::new("sqlite3").arg("-batch").arg("-bail").arg(file).arg(script).output();
    let output = output.expect("the package sqlite3 is installed");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    if output.status.success() && output.stderr.is_empty() {
        Ok(text(&output.stdout))
    } else {
        Err(text(&output.stderr))
    }
}

#[test]
fn the_sqlite_shell_is_fenced() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("app.db");
    shell(&file, "CREATE TABLE orders (id INTEGER PRIMARY KEY, state TEXT)").unwrap();
    sqlite::install(&Connection::open(&file).unwrap(), "orders", &template("order/{id}")).unwrap();
    let write = |token: u64, statement: &str| {
        let show = format!("INSERT INTO leasehold_fence_pass (resource, token) VALUES ('order/7', {token})");
        shell(
            &file,
            &format!(
                "PRAGMA foreign_keys = ON; BEGIN IMMEDIATE; {show}; {statement}; DELETE FROM leasehold_fence_pass; COMMIT"
            ),
        )
    };
    let error = shell(&file, "INSERT INTO orders VALUES (7, 'new')").unwrap_err();
    assert!(error.contains("no pass was shown for this row's resource"), "{error}");
    write(33, "INSERT INTO orders VALUES (7, 'A')").unwrap();
    write(34, "UPDATE orders SET state = 'B'").unwrap();
    let error = write(33, "UPDATE orders SET state = 'A, late'").unwrap_err();
    assert!(error.contains("stale token"), "{error}");
    assert_eq!(shell(&file, "SELECT state FROM orders").unwrap(), "B");
}

#[test]
fn a_fence_is_installed_listed_replaced_and_removed() {
    let database = database();
    database
        .execute_batch("CREATE TABLE \"or\"\"d;er's\" (\"the id\" TEXT, n INT); CREATE VIEW v AS SELECT 1")
        .unwrap();
    let odd = "or\"d;er's";
    sqlite::install(&database, odd, &template("order/it's {the id}-{n}")).unwrap();
    sqlite::install(&database, odd, &template("acme:order/it's {the id}-{n}")).unwrap();
    sqlite::install(&database, "report", &template("reports/all")).unwrap();
    let all: Vec<_> =
        sqlite::status(&database).unwrap().into_iter().map(|it| (it.table, it.template)).collect();
    let want = [
        (odd.to_owned(), "acme:order/it's {the id}-{n}".to_owned()),
        ("report".to_owned(), "reports/all".to_owned()),
    ];
    assert_eq!(all, want);
    database.execute_batch("BEGIN").unwrap();
    let insert = |it: &Connection| it.execute("INSERT INTO \"or\"\"d;er's\" VALUES ('a', 1)", []);
    sqlite::under(&database, &pass_for("acme:order/it's a-1", 1, 1), insert).unwrap().unwrap();
    database.execute_batch("COMMIT").unwrap();
    for (table, of, why) in [
        ("nothing", "x/{id}", "no table"),
        ("v", "x/y", "is a view"),
        ("report", "x/{nope}", "no column \"nope\""),
        ("leasehold_fence_mark", "x/{resource}", "the fence's own"),
    ] {
        let error = sqlite::install(&database, table, &template(of)).unwrap_err();
        assert!(error.kind() == ErrorKind::Invalid && error.to_string().contains(why), "{error}");
    }
    sqlite::remove(&database, odd).unwrap();
    assert_eq!(sqlite::remove(&database, odd).unwrap_err().kind(), ErrorKind::Invalid);
    insert(&database).unwrap();
}

#[test]
fn every_kind_of_write_is_fenced() {
    let database = database();
    database.execute_batch("CREATE TABLE orders (id INTEGER PRIMARY KEY, state TEXT)").unwrap();
    sqlite::install(&database, "orders", &template("order/{id}")).unwrap();
    let under = |pass: Pass, statement: &str| {
        database.execute_batch("BEGIN").unwrap();
        let done = sqlite::under(&database, &pass, |it| it.execute_batch(statement)).unwrap();
        database.execute_batch(if done.is_ok() { "COMMIT" } else { "ROLLBACK" }).unwrap();
        done
    };
    under(pass_for("order/1", 1, 1), "INSERT INTO orders VALUES (1, 'x')").unwrap();
    let ways = [
        "INSERT OR IGNORE INTO orders VALUES (2, 'y')",
        "INSERT OR REPLACE INTO orders VALUES (1, 'y')",
        "REPLACE INTO orders VALUES (1, 'y')",
        "INSERT INTO orders VALUES (1, 'y') ON CONFLICT (id) DO UPDATE SET state = 'y'",
        "INSERT INTO orders SELECT id + 1, state FROM orders",
        "UPDATE OR IGNORE orders SET state = 'y'",
        "UPDATE OR REPLACE orders SET id = 3",
        "UPDATE orders SET id = 8",
        "WITH one AS (SELECT 1) DELETE FROM orders WHERE id IN one",
        // Without a condition SQLite truncates the table, unless it has triggers.
        "DELETE FROM orders",
    ];
    for way in ways {
        let bare = database.execute_batch(way).expect_err(way).to_string();
        assert!(bare.contains("no pass was shown"), "{way}: {bare}");
        under(pass_for("order/8", 9, 1), way).expect_err(way);
    }
    let all = || database.query_row("SELECT group_concat(id || state) FROM orders", [], |row| row.get(0));
    assert_eq!(all(), Ok("1x".to_owned()));
    // No OR clause of the INSERT makes a stale pass admitted.
    for or in ["OR IGNORE", "OR REPLACE"] {
        let show =
            format!("BEGIN; INSERT {or} INTO leasehold_fence_pass (resource, token) VALUES ('order/1', 1)");
        let late = database.execute_batch(&show).expect_err(or).to_string();
        database.execute_batch("ROLLBACK").unwrap();
        assert!(late.contains("stale token"), "{or}: {late}");
    }
}

#[test]
fn a_fence_stays_on_a_renamed_table() {
    let database = database();
    sqlite::install(&database, "report", &template("report/{id}")).unwrap();
    database.execute_batch("ALTER TABLE report RENAME TO former; CREATE TABLE report (id INT)").unwrap();
    sqlite::install(&database, "report", &template("report/{id}")).unwrap();
    let fenced = |database: &Connection| -> Vec<_> {
        sqlite::status(database).unwrap().into_iter().map(|it| (it.table, it.active)).collect()
    };
    assert_eq!(fenced(&database), [("former".into(), true), ("report".into(), true)]);
    for table in ["former", "report"] {
        database.execute(&format!("INSERT INTO {table} (id) VALUES (1)"), []).expect_err(table);
    }
    sqlite::install(&database, "former", &template("former/{id}")).unwrap();
    sqlite::remove(&database, "former").unwrap();
    database.execute("INSERT INTO former (id) VALUES (1)", []).unwrap();
    assert_eq!(fenced(&database), [("report".into(), true)]);
    database.execute_batch("DROP TRIGGER leasehold_fence_guard_report_update_2").unwrap();
    assert_eq!(fenced(&database), [("report".into(), false)], "a trigger is missing");
    // A table that is created again, as many migrations do, has no fence.
    database.execute_batch("DROP TABLE report; ALTER TABLE former RENAME TO report").unwrap();
    assert_eq!(fenced(&database), []);
}

#[test]
fn columns_can_have_any_name_and_be_generated() {
    let database = database();
    database
        .execute_batch(
            "CREATE TABLE seat (\"table\" INT, old INT, name TEXT AS (\"table\" || '.' || old), kept TEXT AS ('k' || old) STORED)",
        )
        .unwrap();
    let insert = |it: &Connection| it.execute("INSERT INTO seat (\"table\", old) VALUES (7, 2)", []);
    for (of, resource) in [
        ("seat/{table}-{old}", "seat/7-2"),
        ("seat/{name} {kept}", "seat/7.2 k2"),
        ("seat/{old} */ {table}", "seat/2 */ 7"),
    ] {
        sqlite::install(&database, "seat", &template(of)).unwrap();
        assert_eq!(sqlite::status(&database).unwrap()[0].template, of.replace("*/", "* /"));
        insert(&database).expect_err("without a pass");
        database.execute_batch("BEGIN").unwrap();
        sqlite::under(&database, &pass_for(resource, 1, 1), insert).unwrap().expect(resource);
        database.execute_batch("COMMIT").unwrap();
    }
}

#[test]
fn after_a_rebase_smaller_tokens_are_admitted_former_ones_are_refused_and_it_is_audited() {
    let mut database = database();
    let rebase = |to, ceiling| Rebase { to: token(to), ceiling, by: "ann".into(), why: "to etcd".into() };
    let unknown = sqlite::rebase(&mut database, &pass(1, 1).resource, &rebase(1, None)).unwrap_err();
    assert_eq!(unknown.kind(), ErrorKind::Invalid);
    write(&mut database, &pass(1_000_000, 1), "redis").unwrap();
    write(&mut database, &pass(500, 2), "etcd, too early").unwrap_err();
    let (before, after) = sqlite::rebase(&mut database, &pass(1, 1).resource, &rebase(400, None)).unwrap();
    assert_eq!(
        (before.highest, after.highest, after.ceiling),
        (token(1_000_000), token(400), Some(token(500_200)))
    );
    write(&mut database, &pass(500, 2), "etcd").unwrap();
    for former in [999_999, 1_000_000, 1_000_001] {
        let error = write(&mut database, &pass(former, 1), "redis, late").unwrap_err();
        assert!(
            error.kind() == ErrorKind::StaleToken && error.to_string().contains("before the rebase"),
            "{error}"
        );
    }
    assert_eq!(body(&database), "etcd");
    let audit: (String, String, String, i64, i64) = database
        .query_row("SELECT by, why, resource, was, now FROM leasehold_fence_audit", [], |row| {
            Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?, row.get(4)?))
        })
        .unwrap();
    assert_eq!(audit, ("ann".into(), "to etcd".into(), "report/42".into(), 1_000_000, 400));
}

#[test]
fn a_newer_format_is_refused() {
    let database = database();
    database.execute("UPDATE leasehold_fence_format SET version = 2", []).unwrap();
    let error = sqlite::setup(&database).unwrap_err();
    assert!(error.kind() == ErrorKind::Corrupt && error.to_string().contains("format 2"), "{error}");
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(64) })]

    /// The SQL of the trigger, the function and the pure rule agree, for any passes in any order.
    #[test]
    fn the_rule_in_sql_equals_the_pure_rule(shown in proptest::collection::vec((1u64..8, 1u8..4, any::<bool>()), 1..24), ceiling in proptest::option::of(4u64..8)) {
        let mut database = database();
        let mut model: Option<Mark> = None;
        if let Some(ceiling) = ceiling {
            model = Some(Mark { highest: token(1), owner: None, ceiling: Some(token(ceiling)) });
            let row = format!("INSERT INTO leasehold_fence_mark VALUES ('report/42', 1, NULL, {ceiling})");
            database.execute(&row, []).unwrap();
        }
        for (number, owner, by_trigger) in shown {
            let pass = pass(number, owner);
            let expected = rule::judge(model.as_ref(), &pass);
            let transaction = database.transaction().unwrap();
            let answer = if by_trigger {
                sqlite::under(&transaction, &pass, |_| ())
            } else {
                sqlite::admit(&transaction, &pass).map(|admission| assert_eq!(Ok(admission), expected))
            };
            transaction.commit().unwrap();
            prop_assert_eq!(answer.is_ok(), expected.is_ok());
            if expected == Ok(Admission::Raised) {
                model = Some(Mark::raised(model.as_ref(), &pass));
            }
            prop_assert_eq!(sqlite::mark(&database, &pass.resource).unwrap(), model);
        }
    }
}
