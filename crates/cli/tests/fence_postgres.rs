//! `leasehold fence` on PostgreSQL, and commands under a lease that write with plain `psql`.
#![allow(clippy::unwrap_used, reason = "a test")]

mod support;

use std::process::Output;

use leasehold_testkit::servers::PostgresServer;
use support::TestDir;

fn exit_and_output(output: &Output) -> (i32, String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    (output.status.code().unwrap(), text(&output.stdout), text(&output.stderr))
}

fn fence(dir: &TestDir, url: &str, words: &[&str]) -> (i32, String, String) {
    let mut command = dir.leasehold();
    exit_and_output(
        &command.args(["fence", words[0]]).args(&words[1..]).env("LEASEHOLD_DATABASE", url).output().unwrap(),
    )
}

/// What docs/fencing.md shows.
const WRITE: &str = r#"psql -X -q -v ON_ERROR_STOP=1 -d "$SHOP" -c "
    BEGIN;
    SELECT set_config('leasehold.pass', '$LEASEHOLD_PASS', true);
    UPDATE orders SET state = '$STATE' WHERE id = 7;
    COMMIT" >/dev/null"#;

#[test]
fn install_write_status_rebase_and_remove_work_on_one_server() {
    let (dir, server) = (TestDir::new(), PostgresServer::start());
    let url = server.url();
    server.sql("CREATE TABLE orders (id int PRIMARY KEY, state text); INSERT INTO orders VALUES (7, 'new')");
    server.sql("CREATE ROLE app LOGIN; GRANT ALL ON orders TO app");

    let words = ["install", "--table", "orders", "--resource", "order/{id}", "--grant", "app"];
    let (code, said, error) = fence(&dir, &url, &words);
    assert_eq!(
        (code, said.as_str()),
        (0, "public.orders is fenced: a row is written only with the pass of order/{id}"),
        "{error}"
    );

    // A command under a lease writes, as a role that has no right to the marks; one without a pass does not.
    let app = url.replace("postgres@", "app@");
    let run = |resource: &str, state: &str, script: &str| {
        let mut run = dir.run([resource, "--", "sh", "-c", script]);
        exit_and_output(&run.env("SHOP", &app).env("STATE", state).output().unwrap())
    };
    assert_eq!(run("order/7", "paid", WRITE), (0, String::new(), String::new()));
    assert_eq!(run("order/7", "shipped", WRITE).0, 0);
    let (code, _, error) = run("order/8", "mine", WRITE);
    assert!(
        code != 0 && error.contains("a write to order/7 needs its pass"),
        "the pass of another resource: {error}"
    );
    assert!(
        server.try_sql("UPDATE orders SET state = 'x'").unwrap_err().to_string().contains("needs its pass")
    );

    // A stale pass: the pass of the first run is kept, and used after a second run was granted.
    let keep = dir.path("pass").display().to_string();
    assert_eq!(run("order/7", "", &format!("printf %s \"$LEASEHOLD_PASS\" > {keep}")).0, 0);
    assert_eq!(run("order/7", "delivered", WRITE).0, 0);
    let late = format!("LEASEHOLD_PASS=$(cat {keep}); {WRITE}");
    let (code, _, error) = run("order/9", "late", &late);
    assert!(code != 0 && error.contains("is stale"), "{error}");
    assert_eq!(server.sql("SELECT state FROM orders"), "delivered");

    // Status, rebase, remove.
    let (_, json, _) = fence(&dir, &url, &["status", "--json"]);
    assert_eq!(
        json,
        r#"{"tables":[{"active":true,"resource":"order/{id}","table":"public.orders","truncatable":[]}]}"#
    );
    let (code, said, error) = fence(&dir, &url, &["rebase", "order/7", "--to", "10", "--reason", "to etcd"]);
    assert!(code == 0 && said.contains("tokens above 10 and below "), "{said} {error}");
    let (code, _, error) = run("order/7", "late", WRITE);
    assert!(code != 0 && error.contains("before the rebase"), "{error}");
    let (_, said, _) = fence(&dir, &url, &["status", "order/7"]);
    assert!(
        said.contains("the highest token seen is 10; tokens from ") && said.contains("to etcd"),
        "{said}"
    );
    assert_eq!(fence(&dir, &url, &["remove", "--table", "orders"]).0, 0);
    server.sql("UPDATE orders SET state = 'free'");

    // A partition that was added later is named, with the hint to install the fence again.
    server.sql("CREATE TABLE bills (id int) PARTITION BY LIST (id); CREATE TABLE bills_1 PARTITION OF bills FOR VALUES IN (1)");
    let install = ["install", "--table", "bills", "--resource", "bill/{id}"];
    assert_eq!(fence(&dir, &url, &install).0, 0);
    server.sql("CREATE TABLE bills_2 PARTITION OF bills FOR VALUES IN (2)");
    let (code, said, error) = fence(&dir, &url, &["status"]);
    let hint = "public.bills: TRUNCATE of public.bills_2 is not refused: run leasehold fence install";
    assert!(code == 0 && format!("{said}{error}").contains(hint), "{said} {error}");
    let (_, json, _) = fence(&dir, &url, &["status", "--json"]);
    assert!(json.contains(r#""truncatable":["public.bills_2"]"#), "{json}");
    assert_eq!(fence(&dir, &url, &install).0, 0);
    assert_eq!(fence(&dir, &url, &["status"]).2, "");
    server.try_sql("TRUNCATE bills_2").unwrap_err();

    // The namespace of the URL is that of the resource.
    server.sql("SELECT leasehold_fence.admit('acme:bill/1', 34)");
    let (code, said, error) = fence(&dir, &format!("{url}?namespace=acme"), &["status", "bill/1"]);
    assert_eq!((code, said.as_str()), (0, "acme:bill/1: the highest token seen is 34"), "{error}");
    let (code, _, error) = fence(&dir, &format!("{url}?namespace=acme"), &install);
    assert!(code == 64 && error.contains("write it in --resource"), "{error}");

    // The printed schema can be executed.
    let (code, sql, _) = fence(&dir, &url, &["schema"]);
    assert!(code == 0 && sql.contains("CREATE OR REPLACE FUNCTION leasehold_fence.admit"));
    server.sql(&sql);

    errors_are_reported(&dir, &server);
}

fn errors_are_reported(dir: &TestDir, server: &PostgresServer) {
    let url = server.url();
    let (code, _, error) = fence(dir, &url.replace("/postgres", "/nothing"), &["status"]);
    assert!(code == 78 && error.contains("does not exist"), "{error}");
    let (_, trusted) = server.certificate("nobody");
    let (code, _, error) = fence(dir, &format!("{url}?sslmode=require&ca_file={trusted}"), &["status"]);
    assert!(code == 78 && error.contains("does not support TLS"), "{error}");
    let (code, _, error) = fence(dir, &format!("{url}?sslmode=prefer"), &["status"]);
    assert!(code == 78 && error.contains("sslmode must be disable or require"), "{error}");
    let (code, _, error) = fence(dir, "postgres://u:sesame@127.0.0.1:1/db", &["status"]);
    assert!(code == 69 && !error.contains("sesame"), "{error}");
    server.sql("CREATE ROLE guest LOGIN PASSWORD 'open sesame'");
    server.require_passwords();
    let guest = url.replace("postgres@", "guest@");
    let (code, _, error) = fence(dir, &guest, &["status"]);
    assert!(code != 0 && error.contains("password"), "{error}");
    let mut with = dir.leasehold();
    with.args(["fence", "status", "order/7"])
        .env("LEASEHOLD_DATABASE", &guest)
        .env("PGPASSWORD", "open sesame");
    let (code, _, error) = exit_and_output(&with.output().unwrap());
    assert!(
        code == 78 && error.contains("permission denied"),
        "the password is right, and the role has no permission: {error}"
    );
}

#[test]
fn it_connects_with_the_options_of_a_store_url_tls_and_password() {
    let (dir, server) = (TestDir::new(), PostgresServer::start());
    let certificate = server.speak_tls();
    server.sql("CREATE ROLE guest LOGIN PASSWORD 'open sesame'");
    server.require_passwords();
    let url = |user: &str, host: &str, options: &str| {
        format!("postgres://{user}@{host}:{}/postgres?{options}", server.port())
    };
    let trusted = format!("sslmode=require&ca_file={certificate}");
    let says = |url: &str, environment: &[(&str, &str)]| {
        let mut status = dir.leasehold();
        // In the command line, a password is warned about.
        status.args(["fence", "status"]).env("LEASEHOLD_DATABASE", url).envs(environment.iter().copied());
        let (code, _, error) = exit_and_output(&status.output().unwrap());
        assert!(!error.contains("sesame"), "{error}");
        (code, error)
    };
    let file = dir.path("password");
    std::fs::write(&file, "open sesame\n").unwrap();
    let from_file = format!("{trusted}&password_file={}", file.display());
    let in_env = [("PGPASSWORD", "open sesame")];
    let none = (0, "leasehold: no table is fenced; to fence one, use leasehold fence install".to_owned());
    assert_eq!(says(&url("guest:open%20sesame", "localhost", &trusted), &[]), none);
    assert_eq!(says(&url("guest", "localhost", &from_file), &[("PGPASSWORD", "another sesame")]), none);
    assert_eq!(says(&url("guest", "localhost", &trusted), &in_env), none);
    let table: &[(&str, &str, &str, i32, &str)] = &[
        ("guest", "localhost", &trusted, 78, "password missing"),
        ("guest:another%20sesame", "localhost", &trusted, 78, "password authentication failed"),
        ("guest:open%20sesame", "127.0.0.1", &trusted, 78, "not valid for name"),
        ("guest", "localhost", "sslmode=require&ca_file=/no/such/file", 78, "/no/such/file"),
        ("guest", "localhost", "password_file=/no/such/file", 78, "/no/such/file"),
        ("guest", "localhost", "colour=red", 78, "unknown option colour"),
    ];
    for (user, host, options, wanted, why) in table {
        let (code, error) = says(&url(user, host, options), &[]);
        assert!(code == *wanted && error.contains(why), "{user} {host} {options}: {code} {error}");
    }
}

#[test]
fn an_install_is_atomic_and_gives_up_when_the_table_is_locked() {
    let (dir, server) = (TestDir::new(), PostgresServer::start());
    let url = server.url();
    server.sql("CREATE TABLE orders (id int PRIMARY KEY, state text); CREATE ROLE owner LOGIN");
    let install = |url: &str, more: &[&str]| {
        let words = ["install", "--table", "orders", "--resource", "order/{id}"];
        fence(&dir, url, &[&words, more].concat())
    };
    let (code, _, error) = install(&url, &["--grant", "nobody"]);
    assert!(code == 64 && error.contains("nobody"), "{error}");
    server.sql("INSERT INTO orders VALUES (1, 'still free')");
    // A role that may not make the schema.
    let owner = url.replace("postgres@", "owner@");
    let (code, _, error) = install(&owner, &[]);
    assert!(code == 78 && error.contains("permission denied"), "{error}");
    // Another transaction has locked the table: the install gives up, so that later statements do not wait
    // behind it.
    let mut reader = std::process::Command::new("psql")
        .args(["-X", "-q", "-A", "-t", "-d", &url])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut orders = reader.stdin.take().unwrap();
    std::io::Write::write_all(
        &mut orders,
        b"BEGIN; SELECT state FROM orders; LOCK TABLE orders IN SHARE MODE; SELECT 'locked';\n",
    )
    .unwrap();
    let lines = std::io::BufRead::lines(std::io::BufReader::new(reader.stdout.take().unwrap()));
    assert!(lines.map(Result::unwrap).any(|line| line == "locked"));
    let (code, _, error) = install(&url, &[]);
    assert!(code == 69 && error.contains("another transaction prevented this one"), "{error}");
    drop(orders);
    reader.wait().unwrap();
    assert_eq!(install(&url, &["--grant", "owner"]).0, 0);
    assert_eq!(install(&url, &["--grant", "owner"]).0, 0, "installing twice does no harm");
    let (code, _, error) = install(&owner, &[]);
    assert!(
        code == 78 && error.contains("must be owner"),
        "it may call the fence, but has no such table: {error}"
    );
    assert!(server.try_sql("INSERT INTO orders VALUES (2, 'x')").is_err());
}
