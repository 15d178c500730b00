//! `leasehold fence schema mariadb`: the client program `mariadb` executes what it prints, and a command under a lease writes.
#![allow(clippy::unwrap_used, reason = "a test")]

mod support;

use leasehold_testkit::servers::MariaDbServer;
use support::TestDir;

fn fence(dir: &TestDir, words: &[&str]) -> (i32, String, String) {
    let output = dir.leasehold().arg("fence").args(words).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code().unwrap(), text(&output.stdout), text(&output.stderr))
}

#[test]
fn the_printed_sql_fences_a_table_for_every_client() {
    let (dir, server) = (TestDir::new(), MariaDbServer::start());
    server.sql("CREATE DATABASE shop; CREATE TABLE shop.orders (id INT PRIMARY KEY, state TEXT)");
    let (code, schema, error) = fence(&dir, &["schema", "mariadb"]);
    assert_eq!(code, 0, "{error}");
    server.sql(&schema);
    let install = ["schema", "mariadb", "--table", "shop.orders", "--resource", "order/{id}"];
    let (code, triggers, error) = fence(&dir, &install);
    assert_eq!(code, 0, "{error}");
    server.sql(&triggers);

    let refused = server.try_sql("INSERT INTO shop.orders VALUES (7, 'x')").unwrap_err().to_string();
    assert!(refused.contains("LH003"), "{refused}");
    let script = r#"mariadb --no-defaults -h 127.0.0.1 -P "$PORT" -u root -e "
        START TRANSACTION;
        CALL leasehold_fence.enter('$LEASEHOLD_PASS');
        INSERT INTO shop.orders VALUES (7, 'paid');
        COMMIT""#;
    let run = dir.run(["order/7", "--", "sh", "-c", script]).env("PORT", server.port().to_string()).output();
    let run = run.unwrap();
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    assert_eq!(server.sql("SELECT state FROM shop.orders"), "paid");
}

#[test]
fn wrong_options_are_refused_with_the_remedy() {
    let dir = TestDir::new();
    let cases: [(&[&str], &str); 4] = [
        (&["schema", "--table", "orders", "--resource", "order/{id}"], "leasehold fence install"),
        (&["schema", "mariadb", "--table", "orders"], "--resource"),
        (&["schema", "mariadb", "--table", "orders", "--resource", "orders"], "kind/id"),
        (&["status", "--database", "mysql://root@db/shop"], "leasehold fence schema mariadb"),
    ];
    for (words, why) in cases {
        let (code, _, error) = fence(&dir, words);
        assert!(code == 64 && error.contains(why), "{words:?}: {code} {error}");
    }
}
