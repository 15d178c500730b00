//! Triggers, against clients that know nothing of us: plain `psql`.

use leasehold_core::ErrorKind;
use leasehold_fence::postgres;

use crate::{
    common::{pass_for, stale},
    site::{Site, Test, psql},
};

pub(crate) const TESTS: &[Test] = &[
    ("psql_writes_under_a_pass_and_not_without", plain_client),
    ("every_way_to_write_is_fenced", every_way),
    ("a_row_is_written_under_its_own_pass_and_no_other", own_pass),
    ("what_is_no_pass_is_refused_with_the_reason", malformed),
    ("names_are_what_sql_makes_of_them", names),
    ("a_statement_over_many_rows_is_under_the_pass_of_each", bulk),
    ("what_other_tables_do_to_a_fenced_one_is_fenced", from_elsewhere),
    ("a_partitioned_table_is_fenced_as_one", partitions),
    ("partitions_that_come_later_are_fenced_and_status_names_those_that_truncate_empties", later_partitions),
    ("a_partition_and_its_whole_are_not_fenced_twice", partition_alone),
    ("a_table_with_children_is_fenced_after_them", children),
    ("what_the_page_says_is_not_covered_is_not", not_covered),
    ("bad_tables_and_templates_are_refused", refused),
    ("a_role_needs_no_right_to_the_marks_and_has_none", roles),
    ("what_another_role_wrote_does_not_run_as_the_fence", no_foreign_code),
    ("a_fence_is_seen_replaced_and_removed", lifecycle),
    ("a_program_enters_and_writes", program),
];

fn fenced(site: &Site) {
    site.psql("CREATE TABLE orders (id int PRIMARY KEY, state text)").unwrap();
    install(site, "orders", "order/{id}").unwrap();
}

fn install(site: &Site, table: &str, template: &str) -> leasehold_core::Result<String> {
    let template = template.parse()?;
    site.run(async { postgres::install(&site.client().await, table, &template).await })
}

/// A transaction under these passes.
fn under(site: &Site, passes: &str, statement: &str) -> Result<String, String> {
    site.psql(&format!("BEGIN; SELECT set_config('leasehold.pass', E'{passes}', true); {statement}; COMMIT"))
}

fn state(site: &Site) -> String {
    site.psql("SELECT string_agg(id || ' ' || state, ', ' ORDER BY id) FROM orders").unwrap()
}

#[track_caller]
fn code(answer: Result<String, String>) -> String {
    let error = answer.expect_err("it is refused");
    error
        .split_once("ERROR:  ")
        .and_then(|(_, rest)| rest.split_once(':'))
        .map(|(code, _)| code.to_owned())
        .unwrap_or(error)
}

fn plain_client(site: &Site) {
    fenced(site);
    let error = site.psql("INSERT INTO orders VALUES (7, 'new')").unwrap_err();
    assert!(error.contains("LH003") && error.contains("a write to order/7 needs its pass"), "{error}");
    assert!(error.contains("set_config('leasehold.pass'"), "it says what to do: {error}");
    under(site, "33 - order/7", "INSERT INTO orders VALUES (7, 'A')").unwrap();
    under(site, "34 - order/7", "UPDATE orders SET state = 'B'; UPDATE orders SET state = 'B too'").unwrap();
    let error = under(site, "33 - order/7", "UPDATE orders SET state = 'A, late'").unwrap_err();
    assert!(error.contains("LH001") && error.contains("presented=33 highest=34"), "{error}");
    assert_eq!(
        code(under(site, "34 - order/7", "UPDATE orders SET state = 'twice'")),
        "LH001",
        "no owner, once"
    );
    let hash = "0123456789abcdef0123456789abcdef";
    under(site, &format!("35 {hash} order/7"), "UPDATE orders SET state = 'C'").unwrap();
    under(site, &format!("35 {hash} order/7"), "UPDATE orders SET state = 'C again'").unwrap();
    assert_eq!(state(site), "7 C again");
    // The function does both: it enters, and shows.
    let enter = "BEGIN; SELECT leasehold_fence.enter('order/7', 36); UPDATE orders SET state = 'D'; COMMIT";
    site.psql(enter).unwrap();
    assert_eq!(code(site.psql(enter)), "LH001");
    assert_eq!(
        code(site.psql("UPDATE orders SET state = 'E'")),
        "LH003",
        "what was shown ended with its transaction"
    );
    assert_eq!(state(site), "7 D");
}

fn every_way(site: &Site) {
    fenced(site);
    under(site, "1 - order/1", "INSERT INTO orders VALUES (1, 'x')").unwrap();
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
        assert_eq!(code(site.psql(way)), "LH003", "{way}");
        assert_eq!(code(under(site, "9 - order/8", way)), "LH003", "{way}");
    }
    for way in ["TRUNCATE orders", "TRUNCATE orders CASCADE"] {
        assert_eq!(code(under(site, "9 - order/1", way)), "LH005", "{way}");
    }
    assert_eq!(state(site), "1 x");
    under(site, "2 - order/1", "DELETE FROM orders").unwrap();
    assert_eq!(
        code(under(site, "1 - order/1", "INSERT INTO orders VALUES (1, 'back')")),
        "LH001",
        "the mark outlives the row"
    );
}

fn own_pass(site: &Site) {
    fenced(site);
    let both = "34 - order/1\\n35 - order/2";
    under(site, both, "INSERT INTO orders VALUES (1, 'x'), (2, 'y')").unwrap();
    assert_eq!(
        code(under(site, "40 - order/1", "UPDATE orders SET state = 'z'")),
        "LH003",
        "row 2 has no pass"
    );
    assert_eq!(
        code(under(site, "40 - order/1", "UPDATE orders SET id = 3 WHERE id = 1")),
        "LH003",
        "it moves"
    );
    assert_eq!(state(site), "1 x, 2 y", "all or nothing");
    under(site, "40 - order/1\\n40 - order/3", "UPDATE orders SET id = 3 WHERE id = 1").unwrap();
    assert_eq!(state(site), "2 y, 3 x");
    under(site, "1 - order/3\\n41 - order/3", "UPDATE orders SET state = 'w' WHERE id = 3").unwrap(); // the last counts
}

fn malformed(site: &Site) {
    fenced(site);
    let insert = "INSERT INTO orders VALUES (1, 'x')";
    for shown in
        ["34", "order/1 34", "34 order/1", "x - order/1", "-1 - order/1", "34  - order/1", "34 ab order/2"]
    {
        let error = under(site, shown, insert).expect_err(shown);
        assert!(error.contains("LH004") && error.contains("TOKEN OWNER RESOURCE"), "{shown}: {error}");
    }
    let error = under(site, "34 ab order/1", insert).unwrap_err();
    assert!(error.contains("LH004") && error.contains("hash of 32"), "{error}");
    assert_eq!(code(under(site, "0 - order/1", insert)), "LH004");
    assert_eq!(code(under(site, "9999999999999999 - order/1", insert)), "LH004");
    for shown in ["", " ", "34 - Order/1", "34 - order/1 ", "34 - order/11", "34 - order/"] {
        assert_eq!(code(under(site, shown, insert)), "LH003", "{shown:?} is not for this row");
    }
    site.psql("CREATE TABLE loose (id int, state text)").unwrap();
    install(site, "loose", "loose/{id}").unwrap();
    let error = under(site, "34 - loose/1", "INSERT INTO loose VALUES (NULL, 'x')").unwrap_err();
    assert!(error.contains("LH004") && error.contains("the column id of the row is null"), "{error}");
    site.psql("ALTER TABLE loose RENAME id TO key").unwrap();
    let error = under(site, "34 - loose/1", "INSERT INTO loose VALUES (1, 'x')").unwrap_err();
    assert!(error.contains("not there"), "a renamed column closes the fence: {error}");
    assert_eq!(state(site), "");
}

fn names(site: &Site) {
    let table = "\"Sales; DROP\".\"it's \"\"odd\"\"\"";
    site.psql(&format!("CREATE SCHEMA \"Sales; DROP\"; CREATE TABLE {table} (\"Tenant\" text, \"line no\" int, u uuid, n numeric)")).unwrap();
    let name = install(site, table, "{Tenant}:line/it's \\{line no}|{u}").unwrap();
    assert_eq!(name, table);
    let insert =
        format!("INSERT INTO {table} VALUES (''acme'', 7, ''8b3c0d2e-5f5b-4d3c-9a41-0123456789ab'', 1)")
            .replace("''", "'");
    let shown = "5 - acme:line/it\\'s \\\\7|8b3c0d2e-5f5b-4d3c-9a41-0123456789ab";
    under(site, shown, &insert).unwrap();
    let status = site.run(async { postgres::status(&site.client().await).await.unwrap() });
    assert_eq!(
        (status[0].table.as_str(), status[0].template.as_str()),
        (table, "{Tenant}:line/it's \\{line no}|{u}")
    );
    // A tenant that is no namespace fits no pass; it is refused when it is written.
    let bad = insert.replace("'acme'", "'Acme Inc'");
    assert_eq!(code(under(site, &shown.replace("acme", "Acme Inc"), &bad)), "LH004");
    // A name without quotes is folded, as everywhere in SQL.
    site.psql("CREATE TABLE Plain (Id int)").unwrap();
    assert_eq!(install(site, "PLAIN", "plain/{id}").unwrap(), "public.plain");
    // Words that stand for something in our own scripts.
    site.psql("CREATE TABLE seat (\"table\" int, \"template\" int)").unwrap();
    install(site, "seat", "seat/{table}-{template}").unwrap();
    under(site, "1 - seat/7-2", "INSERT INTO seat VALUES (7, 2)").unwrap();
    // As a user of this program would, in a migration.
    site.psql("CREATE TABLE own (id int); CREATE TRIGGER mine BEFORE INSERT ON own FOR EACH ROW EXECUTE FUNCTION leasehold_fence.guard('own/{id}')").unwrap();
    assert_eq!(code(site.psql("INSERT INTO own VALUES (1)")), "LH003");
    under(site, "1 - own/1", "INSERT INTO own VALUES (1)").unwrap();
}

fn bulk(site: &Site) {
    site.psql("CREATE UNLOGGED TABLE orders (id int PRIMARY KEY, state text, shop int)").unwrap();
    install(site, "orders", "shop/{shop}").unwrap();
    let fill = "INSERT INTO orders SELECT i, 'x', i / 1000 FROM generate_series(0, 1999) i";
    assert_eq!(code(under(site, "5 - shop/0", fill)), "LH003", "half of them are of another shop");
    under(site, "5 - shop/0\\n5 - shop/1", fill).unwrap();
    assert_eq!(
        code(under(site, "6 - shop/0", "UPDATE orders SET state = 'y'")),
        "LH003",
        "one row in two thousand is enough"
    );
    under(site, "6 - shop/0", "UPDATE orders SET state = 'y' WHERE shop = 0").unwrap();
    assert_eq!(code(under(site, "5 - shop/0", "DELETE FROM orders WHERE shop = 0")), "LH001");
    let changed = "SELECT count(*) FILTER (WHERE state = 'y'), count(*) FROM orders";
    assert_eq!(site.psql(changed).unwrap(), "1000|2000", "a statement is refused as a whole");
}

fn from_elsewhere(site: &Site) {
    site.psql("CREATE TABLE shop (id int PRIMARY KEY); INSERT INTO shop VALUES (1)").unwrap();
    site.psql(
        "CREATE TABLE orders (id int PRIMARY KEY, state text, number int UNIQUE, shop int REFERENCES shop ON DELETE CASCADE)",
    )
    .unwrap();
    site.psql("CREATE VIEW seen AS SELECT * FROM orders").unwrap();
    install(site, "orders", "order/{id}").unwrap();
    under(site, "1 - order/1", "INSERT INTO orders VALUES (1, 'x', 10, 1)").unwrap();
    assert_eq!(code(site.psql("DELETE FROM shop")), "LH003", "a cascade");
    assert_eq!(code(site.psql("TRUNCATE shop CASCADE")), "LH005");
    assert_eq!(code(site.psql("UPDATE seen SET state = 'y'")), "LH003", "a view");
    // The row that is in the way is another's, and so is its pass.
    let other = "INSERT INTO orders VALUES (2, 'y', 10, 1) ON CONFLICT (number) DO UPDATE SET state = 'y'";
    assert_eq!(code(under(site, "2 - order/2", other)), "LH003");
    under(site, "2 - order/2\\n2 - order/1", other).unwrap();
    assert_eq!(state(site), "1 y");
    under(site, "3 - order/1", "DELETE FROM shop").unwrap();
    assert_eq!(state(site), "");
}

fn partitions(site: &Site) {
    site.psql("CREATE TABLE orders (id int, state text) PARTITION BY LIST (state); CREATE TABLE a PARTITION OF orders FOR VALUES IN ('a'); CREATE TABLE b PARTITION OF orders FOR VALUES IN ('b')").unwrap();
    install(site, "orders", "order/{id}").unwrap();
    for into in ["orders", "a"] {
        assert_eq!(code(site.psql(&format!("INSERT INTO {into} VALUES (1, 'a')"))), "LH003");
    }
    under(site, "1 - order/1", "INSERT INTO orders VALUES (1, 'a')").unwrap();
    under(site, "2 - order/1", "UPDATE orders SET state = 'b'").unwrap();
    assert_eq!(code(under(site, "1 - order/1", "UPDATE orders SET state = 'a'")), "LH001");
    assert_eq!(state(site), "1 b");
    let status = site.run(async { postgres::status(&site.client().await).await.unwrap() });
    assert_eq!(status.len(), 1, "not once for each partition: {status:?}");
    for table in ["orders", "a", "b"] {
        assert_eq!(code(site.psql(&format!("TRUNCATE {table}"))), "LH005", "{table}");
    }
    site.run(async { postgres::remove(&site.client().await, "orders").await.unwrap() });
    site.psql("TRUNCATE a; INSERT INTO orders VALUES (1, 'a')").unwrap();
}

fn later_partitions(site: &Site) {
    site.psql("CREATE TABLE orders (id int, state text) PARTITION BY LIST (state); CREATE TABLE a PARTITION OF orders FOR VALUES IN ('a')").unwrap();
    install(site, "orders", "order/{id}").unwrap();
    let status = || {
        let status = site.run(async { postgres::status(&site.client().await).await.unwrap() });
        let [orders] = status.try_into().unwrap();
        (orders.active, orders.truncatable.join(" "))
    };
    assert_eq!(status(), (true, String::new()));
    // One that is made, one that is attached, one with a partition of its own, and one that is another role's to empty.
    site.psql("CREATE TABLE b PARTITION OF orders FOR VALUES IN ('b')").unwrap();
    site.psql(
        "CREATE TABLE c (id int, state text); ALTER TABLE orders ATTACH PARTITION c FOR VALUES IN ('c')",
    )
    .unwrap();
    site.psql("CREATE TABLE d PARTITION OF orders FOR VALUES IN ('d') PARTITION BY LIST (id); CREATE TABLE \"D 1\" PARTITION OF d FOR VALUES IN (1)").unwrap();
    let open = ["b", "c", "d", "\"D 1\""];
    for (token, (table, state)) in (1..).zip(open.into_iter().zip(["b", "c", "d", "d"])) {
        let insert = format!("INSERT INTO {table} VALUES (1, '{state}')");
        assert_eq!(code(site.psql(&insert)), "LH003", "rows are fenced: {table}");
        under(site, &format!("{token} - order/1"), &insert).unwrap();
    }
    assert_eq!(status(), (true, "public.\"D 1\" public.b public.c public.d".to_owned()));
    // Meanwhile: all of it is not emptied, nor a part by whoever is no more than a user of the whole.
    assert_eq!(code(site.psql("TRUNCATE orders")), "LH005");
    let role = format!("user_of_{}", site.database);
    site.psql(&format!("CREATE ROLE {role}; GRANT ALL ON orders TO {role}")).unwrap();
    assert_eq!(code(site.psql(&format!("SET ROLE {role}; TRUNCATE b"))), "42501");
    site.psql("TRUNCATE b").unwrap();
    install(site, "orders", "order/{id}").unwrap();
    assert_eq!(status(), (true, String::new()));
    for table in open {
        assert_eq!(code(site.psql(&format!("TRUNCATE {table}"))), "LH005", "{table}");
    }
    // What is switched off on one partition is seen.
    site.psql("ALTER TABLE b DISABLE TRIGGER zz_leasehold_fence_truncate").unwrap();
    assert_eq!(status(), (true, "public.b".to_owned()));
    site.psql("ALTER TABLE \"D 1\" DISABLE TRIGGER zz_leasehold_fence").unwrap();
    assert_eq!(status(), (false, "public.b".to_owned()));
    install(site, "orders", "order/{id}").unwrap();
    assert_eq!(status(), (true, String::new()), "installed again, all of it is on");
}

fn partition_alone(site: &Site) {
    site.psql("CREATE TABLE orders (id int, state text) PARTITION BY LIST (state); CREATE TABLE a PARTITION OF orders FOR VALUES IN ('a')").unwrap();
    install(site, "a", "order/{id}").unwrap();
    assert_eq!(code(site.psql("INSERT INTO orders VALUES (1, 'a')")), "LH003");
    let twice = install(site, "orders", "order/{id}").unwrap_err();
    assert_eq!(twice.kind(), ErrorKind::Invalid, "{twice}");
    assert!(twice.to_string().contains("its partition public.a is fenced by itself"), "{twice}");
    site.run(async { postgres::remove(&site.client().await, "a").await.unwrap() });
    install(site, "orders", "order/{id}").unwrap();
    for change in [
        install(site, "a", "order/{id}"),
        site.run(async { postgres::remove(&site.client().await, "a").await }),
    ] {
        let error = change.unwrap_err();
        assert!(
            error.to_string().contains("public.a is a partition of public.orders, which is fenced"),
            "{error}"
        );
    }
}

fn children(site: &Site) {
    site.psql("CREATE TABLE orders (id int, state text); CREATE TABLE old () INHERITS (orders); CREATE TABLE older () INHERITS (old)").unwrap();
    for child in ["older", "old"] {
        let open = install(site, "orders", "order/{id}").unwrap_err();
        assert_eq!(open.kind(), ErrorKind::Invalid, "{open}");
        assert!(open.to_string().contains("inherits from it and is not fenced"), "{open}");
        install(site, child, "order/{id}").unwrap();
    }
    install(site, "orders", "order/{id}").unwrap();
    under(site, "1 - order/1", "INSERT INTO older VALUES (1, 'x')").unwrap();
    assert_eq!(code(site.psql("UPDATE orders SET state = 'y'")), "LH003", "a statement on all three");
    assert_eq!(code(site.psql("TRUNCATE orders")), "LH005");
}

fn not_covered(site: &Site) {
    fenced(site);
    under(site, "34 - order/1", "INSERT INTO orders VALUES (1, 'x')").unwrap();
    site.psql("SET session_replication_role = replica; UPDATE orders SET state = 'replicated'").unwrap();
    assert_eq!(state(site), "1 replicated");
    site.psql("ALTER TABLE orders ALTER state TYPE text USING 'rewritten'").unwrap();
    assert_eq!(state(site), "1 rewritten");
    // A pass for the session outlives the transaction, and with a pool its owner.
    let session =
        "SELECT set_config('leasehold.pass', '35 - order/1', false); UPDATE orders SET state = 'late'";
    site.psql(session).unwrap();
    // Another trigger has the last word if its name sorts behind.
    site.psql(
        "CREATE FUNCTION move() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN NEW.id := 2; RETURN NEW; END'",
    )
    .unwrap();
    site.psql("CREATE TRIGGER zzz BEFORE UPDATE ON orders FOR EACH ROW EXECUTE FUNCTION move()").unwrap();
    under(site, "36 - order/1", "UPDATE orders SET state = 'moved'").unwrap();
    assert_eq!(state(site), "2 moved");
}

fn refused(site: &Site) {
    site.psql(
        "CREATE TABLE orders (id int, twice int GENERATED ALWAYS AS (id * 2) STORED); CREATE VIEW seen AS SELECT * FROM orders; CREATE SEQUENCE numbers",
    )
    .unwrap();
    site.run(async { postgres::setup(&site.client().await).await.unwrap() });
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
        let error = install(site, table, template).unwrap_err();
        assert!(
            error.kind() == ErrorKind::Invalid && error.to_string().contains(why),
            "{table} {template}: {error}"
        );
    }
}

fn roles(site: &Site) {
    fenced(site);
    let role = format!("app_{}", site.database);
    site.psql(&format!("CREATE ROLE {role} LOGIN; GRANT ALL ON orders TO {role}")).unwrap();
    let url = site.url_of(&role);
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
        // A table of its own would be a way to raise any mark.
        "CREATE TEMP TABLE t (id int); CREATE TRIGGER t BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION leasehold_fence.guard('order/{id}')",
    ];
    for statement in forbidden {
        assert_eq!(code(psql(&url, statement)), "42501", "{statement}");
    }
    site.run(async { postgres::grant(&site.client().await, &role).await.unwrap() });
    psql(&url, "SELECT leasehold_fence.enter('order/1', 99)").unwrap();
    // Granted, it fences tables of its own, though the schema is not its own.
    site.psql(&format!("GRANT CREATE ON SCHEMA public TO {role}")).unwrap();
    psql(&url, "CREATE TABLE mine (id int)").unwrap();
    site.run(async {
        let client = crate::site::connect(&url).await;
        postgres::install(&client, "mine", &"mine/{id}".parse().unwrap()).await.unwrap();
        let foreign = postgres::install(&client, "orders", &"order/all".parse().unwrap()).await.unwrap_err();
        assert_eq!(foreign.kind(), ErrorKind::Denied, "not its table: {foreign}");
    });
    assert_eq!(code(psql(&url, "INSERT INTO mine VALUES (1)")), "LH003");
    let error = site.run(async { postgres::grant(&site.client().await, "no\"body").await.unwrap_err() });
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
}

fn no_foreign_code(site: &Site) {
    let role = format!("other_{}", site.database);
    site.psql(&format!("CREATE ROLE {role} LOGIN; GRANT CREATE ON SCHEMA public TO {role}")).unwrap();
    let url = site.url_of(&role);
    psql(&url, "CREATE TABLE orders (id int, state text, paid boolean)").unwrap();
    install(site, "orders", "order/{id}").unwrap();
    // Whoever has a type can say how it becomes JSON. That must not be asked by a function of another role.
    let own_type = "CREATE TYPE colour AS ENUM ('red', 'blue'); \
        CREATE FUNCTION paint(colour) RETURNS json LANGUAGE plpgsql AS $$ BEGIN RAISE 'ran as %', current_user; END $$; \
        CREATE CAST (colour AS json) WITH FUNCTION paint(colour); \
        CREATE DOMAIN shade AS colour; CREATE DOMAIN yes AS boolean; CREATE TYPE pair AS (a colour, b int)";
    psql(&url, own_type).unwrap();
    psql(&url, "ALTER TABLE orders ADD c colour, ADD s shade, ADD y yes, ADD p pair, ADD many colour[]")
        .unwrap();
    let row = "(1, 'x', true, 'red', 'blue', true, ('red', 1), '{red}')";
    under(site, "1 - order/1", &format!("INSERT INTO orders VALUES {row}")).unwrap();
    assert_eq!(code(under(site, "0 - order/1", "DELETE FROM orders")), "LH004");
    for (template, resource) in [
        ("order/{c}-{s}", "order/red-blue"),
        ("order/{y}-{paid}", "order/true-true"),
        ("order/{id} {many}", "order/1 {red}"),
        ("order/{p}", "order/(red,1)"),
    ] {
        install(site, "orders", template).unwrap();
        assert_eq!(code(site.psql("DELETE FROM orders")), "LH003", "{template}");
        under(site, &format!("1 - {resource}"), "UPDATE orders SET state = 'y'").expect(template);
    }
    install(site, "orders", "order/{c}").unwrap();
    let error = under(site, "2 - order/red", "UPDATE orders SET c = NULL").unwrap_err();
    assert!(error.contains("the column c of the row is null"), "{error}");
    psql(&url, "ALTER TABLE orders RENAME c TO tint").unwrap();
    let error = under(site, "2 - order/red", "DELETE FROM orders").unwrap_err();
    assert!(error.contains("the column c of the row is not there"), "{error}");
}

fn lifecycle(site: &Site) {
    fenced(site);
    site.psql("CREATE TABLE other (id int)").unwrap();
    install(site, "other", "other/all").unwrap();
    install(site, "other", "other/{id}").unwrap();
    site.psql("ALTER TABLE other DISABLE TRIGGER ALL").unwrap();
    let status = site.run(async { postgres::status(&site.client().await).await.unwrap() });
    let seen: Vec<_> = status.iter().map(|it| (it.table.as_str(), it.template.as_str(), it.active)).collect();
    assert_eq!(seen, [("public.orders", "order/{id}", true), ("public.other", "other/{id}", false)]);
    let remove = |table: &str| site.run(async { postgres::remove(&site.client().await, table).await });
    remove("orders").unwrap();
    assert_eq!(remove("orders").unwrap_err().kind(), ErrorKind::Invalid);
    site.psql("INSERT INTO orders VALUES (1, 'free'); TRUNCATE orders").unwrap();
    // One that a migration made, by whatever name.
    let own = "CREATE TRIGGER mine BEFORE INSERT ON orders FOR EACH ROW EXECUTE FUNCTION leasehold_fence.guard('old/{id}')";
    site.psql(own).unwrap();
    let status = site.run(async { postgres::status(&site.client().await).await.unwrap() });
    assert!(!status[0].active, "it lets updates through: {status:?}");
    install(site, "orders", "order/{id}").unwrap();
    under(site, "1 - order/1", "INSERT INTO orders VALUES (1, 'x')").expect("it is replaced");
    remove("orders").unwrap();
    site.psql(own).unwrap();
    remove("orders").unwrap();
    site.psql("INSERT INTO orders VALUES (2, 'free')").unwrap();
}

fn program(site: &Site) {
    fenced(site);
    site.run(async {
        let mut client = site.client().await;
        let [a, b] = [(33, 1), (34, 2)].map(|(number, owner)| pass_for("order/7", number, owner));
        for (pass, state) in [(&a, "A"), (&b, "B"), (&b, "B again")] {
            let transaction = client.transaction().await.unwrap();
            postgres::enter(&transaction, pass).await.unwrap();
            let upsert = "INSERT INTO orders VALUES (7, $1) ON CONFLICT (id) DO UPDATE SET state = $1";
            transaction.execute(upsert, &[&state]).await.unwrap();
            transaction.commit().await.unwrap();
        }
        // It shows its pass by hand and is refused by the trigger: the error is ours all the same.
        let transaction = client.transaction().await.unwrap();
        let shown = a.to_string();
        transaction.execute("SELECT set_config('leasehold.pass', $1, true)", &[&shown]).await.unwrap();
        let late = transaction.execute("UPDATE orders SET state = 'A, late'", &[]).await;
        assert_eq!(stale(late.map_err(|error| postgres::explain(error, &a))), (33, 34));
    });
    assert_eq!(state(site), "7 B again");
}
