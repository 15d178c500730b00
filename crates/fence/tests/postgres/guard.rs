//! Triggers, tested with `psql`, a client that does not know leasehold.

use leasehold_core::ErrorKind;
use leasehold_fence::postgres;

use crate::{
    common::{pass_for, stale},
    test_database::{Test, TestDatabase, psql},
};

pub(crate) const TESTS: &[Test] = &[
    ("psql_can_write_only_under_a_pass", plain_client),
    ("every_kind_of_write_is_fenced", every_kind_of_write),
    ("a_row_is_written_under_its_own_pass_and_no_other", own_pass),
    ("a_malformed_pass_is_refused_with_the_reason", malformed),
    ("names_follow_the_rules_of_sql", names),
    ("a_statement_over_many_rows_needs_the_pass_of_each_row", bulk),
    ("writes_to_a_fenced_table_from_other_tables_are_fenced", from_other_tables),
    ("a_partitioned_table_is_fenced_as_one", partitions),
    ("later_partitions_are_fenced_and_status_names_those_that_can_be_truncated", later_partitions),
    ("a_partition_and_its_partitioned_table_are_not_both_fenced", partition_alone),
    ("a_table_is_fenced_after_the_tables_that_inherit_from_it", children),
    ("the_limits_in_the_documentation_are_true", not_covered),
    ("bad_tables_and_templates_are_refused", refused),
    ("a_role_needs_no_rights_to_the_marks_and_has_none", roles),
    ("code_of_another_role_does_not_run_with_the_rights_of_the_fence", no_foreign_code),
    ("a_fence_is_listed_replaced_and_removed", lifecycle),
    ("a_program_enters_and_writes", program),
];

fn fenced(database: &TestDatabase) {
    database.psql("CREATE TABLE orders (id int PRIMARY KEY, state text)").unwrap();
    install(database, "orders", "order/{id}").unwrap();
}

fn install(database: &TestDatabase, table: &str, template: &str) -> leasehold_core::Result<String> {
    let template = template.parse()?;
    database.run(async { postgres::install(&database.client().await, table, &template).await })
}

/// A transaction under these passes.
fn under(database: &TestDatabase, passes: &str, statement: &str) -> Result<String, String> {
    database
        .psql(&format!("BEGIN; SELECT set_config('leasehold.pass', E'{passes}', true); {statement}; COMMIT"))
}

fn state(database: &TestDatabase) -> String {
    database.psql("SELECT string_agg(id || ' ' || state, ', ' ORDER BY id) FROM orders").unwrap()
}

#[track_caller]
fn code(result: Result<String, String>) -> String {
    let error = result.expect_err("it is refused");
    error
        .split_once("ERROR:  ")
        .and_then(|(_, rest)| rest.split_once(':'))
        .map(|(code, _)| code.to_owned())
        .unwrap_or(error)
}

fn plain_client(database: &TestDatabase) {
    fenced(database);
    let error = database.psql("INSERT INTO orders VALUES (7, 'new')").unwrap_err();
    assert!(error.contains("LH003") && error.contains("a write to order/7 needs its pass"), "{error}");
    assert!(error.contains("set_config('leasehold.pass'"), "it says what to do: {error}");
    under(database, "33 - order/7", "INSERT INTO orders VALUES (7, 'A')").unwrap();
    under(database, "34 - order/7", "UPDATE orders SET state = 'B'; UPDATE orders SET state = 'B too'")
        .unwrap();
    let error = under(database, "33 - order/7", "UPDATE orders SET state = 'A, late'").unwrap_err();
    assert!(error.contains("LH001") && error.contains("presented=33 highest=34"), "{error}");
    assert_eq!(
        code(under(database, "34 - order/7", "UPDATE orders SET state = 'twice'")),
        "LH001",
        "no owner, once"
    );
    let hash = "0123456789abcdef0123456789abcdef";
    under(database, &format!("35 {hash} order/7"), "UPDATE orders SET state = 'C'").unwrap();
    under(database, &format!("35 {hash} order/7"), "UPDATE orders SET state = 'C again'").unwrap();
    assert_eq!(state(database), "7 C again");
    // The function `enter` admits the pass and shows it to the triggers.
    let enter = "BEGIN; SELECT leasehold_fence.enter('order/7', 36); UPDATE orders SET state = 'D'; COMMIT";
    database.psql(enter).unwrap();
    assert_eq!(code(database.psql(enter)), "LH001");
    assert_eq!(
        code(database.psql("UPDATE orders SET state = 'E'")),
        "LH003",
        "what was shown ended with its transaction"
    );
    assert_eq!(state(database), "7 D");
}

fn every_kind_of_write(database: &TestDatabase) {
    fenced(database);
    under(database, "1 - order/1", "INSERT INTO orders VALUES (1, 'x')").unwrap();
    let ways = [
        "INSERT INTO orders VALUES (2, 'y')",
        "INSERT INTO orders VALUES (1, 'y') ON CONFLICT (id) DO UPDATE SET state = 'y'",
        "UPDATE orders SET state = 'y'",
        "DELETE FROM orders",
        "WITH gone AS (DELETE FROM orders RETURNING *) SELECT * FROM gone",
        "COPY orders FROM PROGRAM 'echo \"3\ty\"'",
        "MERGE INTO orders USING (VALUES (1)) v(id) ON orders.id = v.id WHEN MATCHED THEN DELETE",
    ];
    for way in ways {
        assert_eq!(code(database.psql(way)), "LH003", "{way}");
        assert_eq!(code(under(database, "9 - order/8", way)), "LH003", "{way}");
    }
    for way in ["TRUNCATE orders", "TRUNCATE orders CASCADE"] {
        assert_eq!(code(under(database, "9 - order/1", way)), "LH005", "{way}");
    }
    assert_eq!(state(database), "1 x");
    under(database, "2 - order/1", "DELETE FROM orders").unwrap();
    assert_eq!(
        code(under(database, "1 - order/1", "INSERT INTO orders VALUES (1, 'back')")),
        "LH001",
        "the mark outlives the row"
    );
}

fn own_pass(database: &TestDatabase) {
    fenced(database);
    let both = "34 - order/1\\n35 - order/2";
    under(database, both, "INSERT INTO orders VALUES (1, 'x'), (2, 'y')").unwrap();
    assert_eq!(
        code(under(database, "40 - order/1", "UPDATE orders SET state = 'z'")),
        "LH003",
        "row 2 has no pass"
    );
    assert_eq!(
        code(under(database, "40 - order/1", "UPDATE orders SET id = 3 WHERE id = 1")),
        "LH003",
        "it moves"
    );
    assert_eq!(state(database), "1 x, 2 y", "all or nothing");
    under(database, "40 - order/1\\n40 - order/3", "UPDATE orders SET id = 3 WHERE id = 1").unwrap();
    assert_eq!(state(database), "2 y, 3 x");
    under(database, "1 - order/3\\n41 - order/3", "UPDATE orders SET state = 'w' WHERE id = 3").unwrap(); // the last counts
}

fn malformed(database: &TestDatabase) {
    fenced(database);
    let insert = "INSERT INTO orders VALUES (1, 'x')";
    for shown in
        ["34", "order/1 34", "34 order/1", "x - order/1", "-1 - order/1", "34  - order/1", "34 ab order/2"]
    {
        let error = under(database, shown, insert).expect_err(shown);
        assert!(error.contains("LH004") && error.contains("TOKEN OWNER RESOURCE"), "{shown}: {error}");
    }
    let error = under(database, "34 ab order/1", insert).unwrap_err();
    assert!(error.contains("LH004") && error.contains("hash of 32"), "{error}");
    assert_eq!(code(under(database, "0 - order/1", insert)), "LH004");
    assert_eq!(code(under(database, "9999999999999999 - order/1", insert)), "LH004");
    for shown in ["", " ", "34 - Order/1", "34 - order/1 ", "34 - order/11", "34 - order/"] {
        assert_eq!(code(under(database, shown, insert)), "LH003", "{shown:?} is not for this row");
    }
    database.psql("CREATE TABLE loose (id int, state text)").unwrap();
    install(database, "loose", "loose/{id}").unwrap();
    let error = under(database, "34 - loose/1", "INSERT INTO loose VALUES (NULL, 'x')").unwrap_err();
    assert!(error.contains("LH004") && error.contains("the column id of the row is null"), "{error}");
    database.psql("ALTER TABLE loose RENAME id TO key").unwrap();
    let error = under(database, "34 - loose/1", "INSERT INTO loose VALUES (1, 'x')").unwrap_err();
    assert!(error.contains("not there"), "a renamed column closes the fence: {error}");
    assert_eq!(state(database), "");
}

fn names(database: &TestDatabase) {
    let table = "\"Sales; DROP\".\"it's \"\"odd\"\"\"";
    database.psql(&format!("CREATE SCHEMA \"Sales; DROP\"; CREATE TABLE {table} (\"Tenant\" text, \"line no\" int, u uuid, n numeric)")).unwrap();
    let name = install(database, table, "{Tenant}:line/it's \\{line no}|{u}").unwrap();
    assert_eq!(name, table);
    let insert =
        format!("INSERT INTO {table} VALUES (''acme'', 7, ''8b3c0d2e-5f5b-4d3c-9a41-0123456789ab'', 1)")
            .replace("''", "'");
    let shown = "5 - acme:line/it\\'s \\\\7|8b3c0d2e-5f5b-4d3c-9a41-0123456789ab";
    under(database, shown, &insert).unwrap();
    let status = database.run(async { postgres::status(&database.client().await).await.unwrap() });
    assert_eq!(
        (status[0].table.as_str(), status[0].template.as_str()),
        (table, "{Tenant}:line/it's \\{line no}|{u}")
    );
    // A tenant that is not a valid namespace fits no pass, so the write is refused.
    let bad = insert.replace("'acme'", "'Acme Inc'");
    assert_eq!(code(under(database, &shown.replace("acme", "Acme Inc"), &bad)), "LH004");
    // A name without quotes is folded to lower case, as everywhere in SQL.
    database.psql("CREATE TABLE Plain (Id int)").unwrap();
    assert_eq!(install(database, "PLAIN", "plain/{id}").unwrap(), "public.plain");
    // Names that are placeholders in our own scripts.
    database.psql("CREATE TABLE seat (\"table\" int, \"template\" int)").unwrap();
    install(database, "seat", "seat/{table}-{template}").unwrap();
    under(database, "1 - seat/7-2", "INSERT INTO seat VALUES (7, 2)").unwrap();
    // A trigger that a migration of a user creates.
    database.psql("CREATE TABLE own (id int); CREATE TRIGGER mine BEFORE INSERT ON own FOR EACH ROW EXECUTE FUNCTION leasehold_fence.guard('own/{id}')").unwrap();
    assert_eq!(code(database.psql("INSERT INTO own VALUES (1)")), "LH003");
    under(database, "1 - own/1", "INSERT INTO own VALUES (1)").unwrap();
}

fn bulk(database: &TestDatabase) {
    database.psql("CREATE UNLOGGED TABLE orders (id int PRIMARY KEY, state text, shop int)").unwrap();
    install(database, "orders", "shop/{shop}").unwrap();
    let fill = "INSERT INTO orders SELECT i, 'x', i / 1000 FROM generate_series(0, 1999) i";
    assert_eq!(code(under(database, "5 - shop/0", fill)), "LH003", "half of them are of another shop");
    under(database, "5 - shop/0\\n5 - shop/1", fill).unwrap();
    assert_eq!(
        code(under(database, "6 - shop/0", "UPDATE orders SET state = 'y'")),
        "LH003",
        "one row in two thousand is enough"
    );
    under(database, "6 - shop/0", "UPDATE orders SET state = 'y' WHERE shop = 0").unwrap();
    assert_eq!(code(under(database, "5 - shop/0", "DELETE FROM orders WHERE shop = 0")), "LH001");
    let changed = "SELECT count(*) FILTER (WHERE state = 'y'), count(*) FROM orders";
    assert_eq!(database.psql(changed).unwrap(), "1000|2000", "a statement is refused as a whole");
}

fn from_other_tables(database: &TestDatabase) {
    database.psql("CREATE TABLE shop (id int PRIMARY KEY); INSERT INTO shop VALUES (1)").unwrap();
    database.psql(
        "CREATE TABLE orders (id int PRIMARY KEY, state text, number int UNIQUE, shop int REFERENCES shop ON DELETE CASCADE)",
    )
    .unwrap();
    database.psql("CREATE VIEW seen AS SELECT * FROM orders").unwrap();
    install(database, "orders", "order/{id}").unwrap();
    under(database, "1 - order/1", "INSERT INTO orders VALUES (1, 'x', 10, 1)").unwrap();
    assert_eq!(code(database.psql("DELETE FROM shop")), "LH003", "a cascade");
    assert_eq!(code(database.psql("TRUNCATE shop CASCADE")), "LH005");
    assert_eq!(code(database.psql("UPDATE seen SET state = 'y'")), "LH003", "a view");
    // The conflicting row belongs to another resource and needs the pass of that resource.
    let other = "INSERT INTO orders VALUES (2, 'y', 10, 1) ON CONFLICT (number) DO UPDATE SET state = 'y'";
    assert_eq!(code(under(database, "2 - order/2", other)), "LH003");
    under(database, "2 - order/2\\n2 - order/1", other).unwrap();
    assert_eq!(state(database), "1 y");
    under(database, "3 - order/1", "DELETE FROM shop").unwrap();
    assert_eq!(state(database), "");
}

fn partitions(database: &TestDatabase) {
    database.psql("CREATE TABLE orders (id int, state text) PARTITION BY LIST (state); CREATE TABLE a PARTITION OF orders FOR VALUES IN ('a'); CREATE TABLE b PARTITION OF orders FOR VALUES IN ('b')").unwrap();
    install(database, "orders", "order/{id}").unwrap();
    for into in ["orders", "a"] {
        assert_eq!(code(database.psql(&format!("INSERT INTO {into} VALUES (1, 'a')"))), "LH003");
    }
    under(database, "1 - order/1", "INSERT INTO orders VALUES (1, 'a')").unwrap();
    under(database, "2 - order/1", "UPDATE orders SET state = 'b'").unwrap();
    assert_eq!(code(under(database, "1 - order/1", "UPDATE orders SET state = 'a'")), "LH001");
    assert_eq!(state(database), "1 b");
    let status = database.run(async { postgres::status(&database.client().await).await.unwrap() });
    assert_eq!(status.len(), 1, "not once for each partition: {status:?}");
    for table in ["orders", "a", "b"] {
        assert_eq!(code(database.psql(&format!("TRUNCATE {table}"))), "LH005", "{table}");
    }
    database.run(async { postgres::remove(&database.client().await, "orders").await.unwrap() });
    database.psql("TRUNCATE a; INSERT INTO orders VALUES (1, 'a')").unwrap();
}

fn later_partitions(database: &TestDatabase) {
    database.psql("CREATE TABLE orders (id int, state text) PARTITION BY LIST (state); CREATE TABLE a PARTITION OF orders FOR VALUES IN ('a')").unwrap();
    install(database, "orders", "order/{id}").unwrap();
    let status = || {
        let status = database.run(async { postgres::status(&database.client().await).await.unwrap() });
        let [orders] = status.try_into().unwrap();
        (orders.active, orders.truncatable.join(" "))
    };
    assert_eq!(status(), (true, String::new()));
    // A created partition, an attached one, one with partitions of its own, and one that another role may truncate.
    database.psql("CREATE TABLE b PARTITION OF orders FOR VALUES IN ('b')").unwrap();
    database
        .psql(
            "CREATE TABLE c (id int, state text); ALTER TABLE orders ATTACH PARTITION c FOR VALUES IN ('c')",
        )
        .unwrap();
    database.psql("CREATE TABLE d PARTITION OF orders FOR VALUES IN ('d') PARTITION BY LIST (id); CREATE TABLE \"D 1\" PARTITION OF d FOR VALUES IN (1)").unwrap();
    let open = ["b", "c", "d", "\"D 1\""];
    for (token, (table, state)) in (1..).zip(open.into_iter().zip(["b", "c", "d", "d"])) {
        let insert = format!("INSERT INTO {table} VALUES (1, '{state}')");
        assert_eq!(code(database.psql(&insert)), "LH003", "rows are fenced: {table}");
        under(database, &format!("{token} - order/1"), &insert).unwrap();
    }
    assert_eq!(status(), (true, "public.\"D 1\" public.b public.c public.d".to_owned()));
    // Until then, TRUNCATE of the whole table is refused, and a role with rights only on the whole table cannot truncate a
    // partition.
    assert_eq!(code(database.psql("TRUNCATE orders")), "LH005");
    let role = format!("user_of_{}", database.name);
    database.psql(&format!("CREATE ROLE {role}; GRANT ALL ON orders TO {role}")).unwrap();
    assert_eq!(code(database.psql(&format!("SET ROLE {role}; TRUNCATE b"))), "42501");
    database.psql("TRUNCATE b").unwrap();
    install(database, "orders", "order/{id}").unwrap();
    assert_eq!(status(), (true, String::new()));
    for table in open {
        assert_eq!(code(database.psql(&format!("TRUNCATE {table}"))), "LH005", "{table}");
    }
    // A trigger that is disabled on one partition is reported.
    database.psql("ALTER TABLE b DISABLE TRIGGER zz_leasehold_fence_truncate").unwrap();
    assert_eq!(status(), (true, "public.b".to_owned()));
    database.psql("ALTER TABLE \"D 1\" DISABLE TRIGGER zz_leasehold_fence").unwrap();
    assert_eq!(status(), (false, "public.b".to_owned()));
    install(database, "orders", "order/{id}").unwrap();
    assert_eq!(status(), (true, String::new()), "installed again, all of it is on");
}

fn partition_alone(database: &TestDatabase) {
    database.psql("CREATE TABLE orders (id int, state text) PARTITION BY LIST (state); CREATE TABLE a PARTITION OF orders FOR VALUES IN ('a')").unwrap();
    install(database, "a", "order/{id}").unwrap();
    assert_eq!(code(database.psql("INSERT INTO orders VALUES (1, 'a')")), "LH003");
    let twice = install(database, "orders", "order/{id}").unwrap_err();
    assert_eq!(twice.kind(), ErrorKind::Invalid, "{twice}");
    assert!(twice.to_string().contains("its partition public.a is fenced by itself"), "{twice}");
    database.run(async { postgres::remove(&database.client().await, "a").await.unwrap() });
    install(database, "orders", "order/{id}").unwrap();
    for change in [
        install(database, "a", "order/{id}"),
        database.run(async { postgres::remove(&database.client().await, "a").await }),
    ] {
        let error = change.unwrap_err();
        assert!(
            error.to_string().contains("public.a is a partition of public.orders, which is fenced"),
            "{error}"
        );
    }
}

fn children(database: &TestDatabase) {
    database.psql("CREATE TABLE orders (id int, state text); CREATE TABLE old () INHERITS (orders); CREATE TABLE older () INHERITS (old)").unwrap();
    for child in ["older", "old"] {
        let open = install(database, "orders", "order/{id}").unwrap_err();
        assert_eq!(open.kind(), ErrorKind::Invalid, "{open}");
        assert!(open.to_string().contains("inherits from it and is not fenced"), "{open}");
        install(database, child, "order/{id}").unwrap();
    }
    install(database, "orders", "order/{id}").unwrap();
    under(database, "1 - order/1", "INSERT INTO older VALUES (1, 'x')").unwrap();
    assert_eq!(code(database.psql("UPDATE orders SET state = 'y'")), "LH003", "a statement on all three");
    assert_eq!(code(database.psql("TRUNCATE orders")), "LH005");
}

fn not_covered(database: &TestDatabase) {
    fenced(database);
    under(database, "34 - order/1", "INSERT INTO orders VALUES (1, 'x')").unwrap();
    database.psql("SET session_replication_role = replica; UPDATE orders SET state = 'replicated'").unwrap();
    assert_eq!(state(database), "1 replicated");
    database.psql("ALTER TABLE orders ALTER state TYPE text USING 'rewritten'").unwrap();
    assert_eq!(state(database), "1 rewritten");
    // A pass that is set for the session outlives the transaction; behind a pool, other clients get it.
    let session =
        "SELECT set_config('leasehold.pass', '35 - order/1', false); UPDATE orders SET state = 'late'";
    database.psql(session).unwrap();
    // Another trigger can change the row afterwards if its name sorts behind ours.
    database
        .psql(
            "CREATE FUNCTION move() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN NEW.id := 2; RETURN NEW; END'",
        )
        .unwrap();
    database.psql("CREATE TRIGGER zzz BEFORE UPDATE ON orders FOR EACH ROW EXECUTE FUNCTION move()").unwrap();
    under(database, "36 - order/1", "UPDATE orders SET state = 'moved'").unwrap();
    assert_eq!(state(database), "2 moved");
}

fn refused(database: &TestDatabase) {
    database.psql(
        "CREATE TABLE orders (id int, twice int GENERATED ALWAYS AS (id * 2) STORED); CREATE VIEW seen AS SELECT * FROM orders; CREATE SEQUENCE numbers",
    )
    .unwrap();
    database.run(async { postgres::setup(&database.client().await).await.unwrap() });
    let cases = [
        ("nothing", "x/{id}", "there is no table nothing"),
        ("nowhere.orders", "x/{id}", "there is no table"),
        ("a.b.c.d", "x/{id}", ""),
        ("\"unclosed", "x/{id}", ""),
        ("seen", "x/{id}", "is a view"),
        ("numbers", "x/{id}", "is not a table"),
        ("orders", "x/{nope}", "has no column \"nope\""),
        ("orders", "x/{ID}", "has no column \"ID\""),
        ("orders", "x/{id", "not closed"),
        ("orders", "x/{ctid}", "has no column \"ctid\""),
        ("orders", "x/{twice}", "is generated"),
        ("leasehold_fence.mark", "x/{resource}", "the fence's own"),
    ];
    for (table, template, why) in cases {
        let error = install(database, table, template).unwrap_err();
        assert!(
            error.kind() == ErrorKind::Invalid && error.to_string().contains(why),
            "{table} {template}: {error}"
        );
    }
}

fn roles(database: &TestDatabase) {
    fenced(database);
    let role = format!("app_{}", database.name);
    database.psql(&format!("CREATE ROLE {role} LOGIN; GRANT ALL ON orders TO {role}")).unwrap();
    let url = database.url_of(&role);
    let write = |number: u64| {
        psql(
            &url,
            &format!(
                "BEGIN; SELECT set_config('leasehold.pass', '{number} - order/1', true); INSERT INTO orders VALUES (1, 'x') ON CONFLICT (id) DO UPDATE SET state = '{number}'; COMMIT"
            ),
        )
    };
    write(34).unwrap();
    assert_eq!(code(write(33)), "LH001");
    let forbidden = [
        "SELECT * FROM leasehold_fence.mark",
        "UPDATE leasehold_fence.mark SET token = 1",
        "DELETE FROM leasehold_fence.mark",
        "SELECT leasehold_fence.admit('order/1', 99)",
        "SELECT leasehold_fence.enter('order/1', 99)",
        "SELECT leasehold_fence.demand('orders', 'order/1')",
        "SELECT leasehold_fence.rebase('order/1', 1, NULL, 'me', 'so')",
        "DROP TRIGGER zz_leasehold_fence ON orders",
        "ALTER TABLE orders DISABLE TRIGGER ALL",
        "SET session_replication_role = replica",
        // With a table of its own, the role could raise any mark.
        "CREATE TEMP TABLE t (id int); CREATE TRIGGER t BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION leasehold_fence.guard('order/{id}')",
    ];
    for statement in forbidden {
        assert_eq!(code(psql(&url, statement)), "42501", "{statement}");
    }
    database.run(async { postgres::grant(&database.client().await, &role).await.unwrap() });
    psql(&url, "SELECT leasehold_fence.enter('order/1', 99)").unwrap();
    // After the grant, it can fence its own tables, although another role owns the schema.
    database.psql(&format!("GRANT CREATE ON SCHEMA public TO {role}")).unwrap();
    psql(&url, "CREATE TABLE mine (id int)").unwrap();
    database.run(async {
        let client = crate::test_database::connect(&url).await;
        postgres::install(&client, "mine", &"mine/{id}".parse().unwrap()).await.unwrap();
        let foreign = postgres::install(&client, "orders", &"order/all".parse().unwrap()).await.unwrap_err();
        assert_eq!(foreign.kind(), ErrorKind::Denied, "not its table: {foreign}");
    });
    assert_eq!(code(psql(&url, "INSERT INTO mine VALUES (1)")), "LH003");
    let error =
        database.run(async { postgres::grant(&database.client().await, "no\"body").await.unwrap_err() });
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
}

fn no_foreign_code(database: &TestDatabase) {
    let role = format!("other_{}", database.name);
    database.psql(&format!("CREATE ROLE {role} LOGIN; GRANT CREATE ON SCHEMA public TO {role}")).unwrap();
    let url = database.url_of(&role);
    psql(&url, "CREATE TABLE orders (id int, state text, paid boolean)").unwrap();
    install(database, "orders", "order/{id}").unwrap();
    // The owner of a type can define its cast to JSON. A function with the rights of another role must not call that cast.
    let own_type = "CREATE TYPE colour AS ENUM ('red', 'blue'); \
        CREATE FUNCTION paint(colour) RETURNS json LANGUAGE plpgsql AS $$ BEGIN RAISE 'ran as %', current_user; END $$; \
        CREATE CAST (colour AS json) WITH FUNCTION paint(colour); \
        CREATE DOMAIN shade AS colour; CREATE DOMAIN yes AS boolean; CREATE TYPE pair AS (a colour, b int)";
    psql(&url, own_type).unwrap();
    psql(&url, "ALTER TABLE orders ADD c colour, ADD s shade, ADD y yes, ADD p pair, ADD many colour[]")
        .unwrap();
    let row = "(1, 'x', true, 'red', 'blue', true, ('red', 1), '{red}')";
    under(database, "1 - order/1", &format!("INSERT INTO orders VALUES {row}")).unwrap();
    assert_eq!(code(under(database, "0 - order/1", "DELETE FROM orders")), "LH004");
    for (template, resource) in [
        ("order/{c}-{s}", "order/red-blue"),
        ("order/{y}-{paid}", "order/true-true"),
        ("order/{id} {many}", "order/1 {red}"),
        ("order/{p}", "order/(red,1)"),
    ] {
        install(database, "orders", template).unwrap();
        assert_eq!(code(database.psql("DELETE FROM orders")), "LH003", "{template}");
        under(database, &format!("1 - {resource}"), "UPDATE orders SET state = 'y'").expect(template);
    }
    install(database, "orders", "order/{c}").unwrap();
    let error = under(database, "2 - order/red", "UPDATE orders SET c = NULL").unwrap_err();
    assert!(error.contains("the column c of the row is null"), "{error}");
    psql(&url, "ALTER TABLE orders RENAME c TO tint").unwrap();
    let error = under(database, "2 - order/red", "DELETE FROM orders").unwrap_err();
    assert!(error.contains("the column c of the row is not there"), "{error}");
}

fn lifecycle(database: &TestDatabase) {
    fenced(database);
    database.psql("CREATE TABLE other (id int)").unwrap();
    install(database, "other", "other/all").unwrap();
    install(database, "other", "other/{id}").unwrap();
    database.psql("ALTER TABLE other DISABLE TRIGGER ALL").unwrap();
    let status = database.run(async { postgres::status(&database.client().await).await.unwrap() });
    let seen: Vec<_> = status.iter().map(|it| (it.table.as_str(), it.template.as_str(), it.active)).collect();
    assert_eq!(seen, [("public.orders", "order/{id}", true), ("public.other", "other/{id}", false)]);
    let remove =
        |table: &str| database.run(async { postgres::remove(&database.client().await, table).await });
    remove("orders").unwrap();
    assert_eq!(remove("orders").unwrap_err().kind(), ErrorKind::Invalid);
    database.psql("INSERT INTO orders VALUES (1, 'free'); TRUNCATE orders").unwrap();
    // A trigger that a migration created under another name.
    let own = "CREATE TRIGGER mine BEFORE INSERT ON orders FOR EACH ROW EXECUTE FUNCTION leasehold_fence.guard('old/{id}')";
    database.psql(own).unwrap();
    let status = database.run(async { postgres::status(&database.client().await).await.unwrap() });
    assert!(!status[0].active, "it lets updates through: {status:?}");
    install(database, "orders", "order/{id}").unwrap();
    under(database, "1 - order/1", "INSERT INTO orders VALUES (1, 'x')").expect("it is replaced");
    remove("orders").unwrap();
    database.psql(own).unwrap();
    remove("orders").unwrap();
    database.psql("INSERT INTO orders VALUES (2, 'free')").unwrap();
}

fn program(database: &TestDatabase) {
    fenced(database);
    database.run(async {
        let mut client = database.client().await;
        let [a, b] = [(33, 1), (34, 2)].map(|(number, owner)| pass_for("order/7", number, owner));
        for (pass, state) in [(&a, "A"), (&b, "B"), (&b, "B again")] {
            let transaction = client.transaction().await.unwrap();
            postgres::enter(&transaction, pass).await.unwrap();
            let upsert = "INSERT INTO orders VALUES (7, $1) ON CONFLICT (id) DO UPDATE SET state = $1";
            transaction.execute(upsert, &[&state]).await.unwrap();
            transaction.commit().await.unwrap();
        }
        // The program shows its pass with set_config and the trigger refuses it: `explain` recognises the error.
        let transaction = client.transaction().await.unwrap();
        let shown = a.to_string();
        transaction.execute("SELECT set_config('leasehold.pass', $1, true)", &[&shown]).await.unwrap();
        let late = transaction.execute("UPDATE orders SET state = 'A, late'", &[]).await;
        assert_eq!(stale(late.map_err(|error| postgres::explain(error, &a))), (33, 34));
    });
    assert_eq!(state(database), "7 B again");
}
