//! A program that shows its pass in its own transaction.

use leasehold_core::{Effect, ErrorKind, Pass, Result};
use leasehold_fence::{
    postgres,
    rule::{self, Admission, Mark},
};
use leasehold_testkit::servers::PgBouncer;
use tokio_postgres::{Client, Transaction};

use crate::{
    common::{pass, stale, token},
    test_database::{Test, TestDatabase, connect},
};

pub(crate) const TESTS: &[Test] = &[
    ("a_stale_writer_is_refused_and_the_data_stays", stale_writer),
    ("without_an_owner_a_token_is_admitted_for_one_transaction", without_an_owner),
    ("a_mark_is_rolled_back_with_its_effect", rolled_back),
    ("without_enter_an_update_is_lost_and_with_it_the_stale_one_is_refused", read_modify_write),
    ("in_one_transaction_the_pass_must_come_before_the_read", in_one_transaction),
    ("a_higher_token_waits_for_the_transaction_that_was_admitted", waits),
    ("many_writers_take_effect_in_the_order_of_their_tokens", many_writers),
    ("a_column_admits_each_token_once", column),
    ("the_rule_in_sql_equals_the_pure_rule", same_rule),
    ("errors_say_what_to_do", errors),
    ("a_pool_that_shares_connections_leaks_no_pass", pooled),
];

async fn ready(database: &TestDatabase) -> Client {
    let client = database.client().await;
    client.batch_execute("CREATE TABLE report (id int PRIMARY KEY, body text)").await.unwrap();
    client.execute("INSERT INTO report VALUES (42, '0')", &[]).await.unwrap();
    postgres::setup(&client).await.unwrap();
    client
}

async fn write(client: &mut Client, pass: &Pass, body: &str) -> Result<Admission> {
    let transaction = client.transaction().await.unwrap();
    let admission = postgres::admit(&transaction, pass).await?;
    transaction.execute("UPDATE report SET body = $1 WHERE id = 42", &[&body]).await.unwrap();
    transaction.commit().await.unwrap();
    Ok(admission)
}

async fn body(client: &Client) -> String {
    client.query_one("SELECT body FROM report WHERE id = 42", &[]).await.unwrap().get(0)
}

fn stale_writer(database: &TestDatabase) {
    database.run(async {
        let mut client = ready(database).await;
        assert_eq!(write(&mut client, &pass(33, 1), "A").await.unwrap(), Admission::Raised);
        assert_eq!(write(&mut client, &pass(34, 2), "B").await.unwrap(), Admission::Raised);
        let refused = write(&mut client, &pass(33, 1), "A, late").await;
        assert_eq!(refused.as_ref().unwrap_err().effect(), Effect::None);
        assert_eq!(stale(refused), (33, 34));
        assert_eq!(write(&mut client, &pass(34, 2), "B again").await.unwrap(), Admission::Again);
        assert_eq!(stale(write(&mut client, &pass(34, 3), "another 34").await), (34, 34));
        assert_eq!(body(&client).await, "B again");
    });
}

fn without_an_owner(database: &TestDatabase) {
    database.run(async {
        let mut client = ready(database).await;
        let transaction = client.transaction().await.unwrap();
        assert_eq!(postgres::admit(&transaction, &pass(33, 0)).await.unwrap(), Admission::Raised);
        assert_eq!(postgres::admit(&transaction, &pass(33, 0)).await.unwrap(), Admission::Again);
        transaction.commit().await.unwrap();
        assert_eq!(stale(write(&mut client, &pass(33, 0), "twice").await), (33, 33));
    });
}

fn rolled_back(database: &TestDatabase) {
    database.run(async {
        let mut client = ready(database).await;
        let transaction = client.transaction().await.unwrap();
        postgres::admit(&transaction, &pass(34, 1)).await.unwrap();
        transaction.rollback().await.unwrap();
        write(&mut client, &pass(33, 1), "A").await.unwrap();
        assert_eq!(body(&client).await, "A");
    });
}

/// 33 reads and pauses, 34 reads, 33 writes, 34 writes. Each adds one, and each step is a transaction of its own.
fn read_modify_write(database: &TestDatabase) {
    database.run(async {
        let (mut client, mut other) = (ready(database).await, database.client().await);
        for (enter, refusals) in [(false, 0), (true, 1)] {
            client
                .batch_execute("UPDATE report SET body = '0'; DELETE FROM leasehold_fence.mark")
                .await
                .unwrap();
            let (a, b) = (pass(33, 1), pass(34, 2));
            let mut sums = Vec::new();
            for (client, pass) in [(&client, &a), (&other, &b)] {
                if enter {
                    postgres::enter(client, pass).await.unwrap();
                }
                sums.push((body(client).await.parse::<i32>().unwrap() + 1).to_string());
            }
            let wrote = [write(&mut client, &a, &sums[0]).await, write(&mut other, &b, &sums[1]).await];
            let refused = wrote.iter().filter(|wrote| wrote.is_err()).count();
            let (sum, went_through) = (body(&client).await.parse::<usize>().unwrap(), 2 - refused);
            assert_eq!((sum, refused), (1, refusals), "with enter: {enter}");
            // Without it both updates are admitted, and one of them is lost without an error.
            assert_eq!(sum == went_through, enter);
        }
    });
}

/// The same with one transaction for each writer, at READ COMMITTED. One transaction is not enough: the pass must come first.
fn in_one_transaction(database: &TestDatabase) {
    database.run(async {
        let (mut client, mut other) = (ready(database).await, database.client().await);
        let look = database.client().await;
        let (pass_a, pass_b) = (pass(33, 1), pass(34, 2));

        let [a, b] = [client.transaction().await.unwrap(), other.transaction().await.unwrap()];
        let read = [sum(&a).await, sum(&b).await];
        add(a, &pass_a, read[0]).await;
        add(b, &pass_b, read[1]).await;
        assert_eq!(body(&look).await, "1", "both were admitted, and one of two updates is lost");

        look.batch_execute("UPDATE report SET body = '0'; DELETE FROM leasehold_fence.mark").await.unwrap();
        let [a, b] = [client.transaction().await.unwrap(), other.transaction().await.unwrap()];
        postgres::admit(&a, &pass_a).await.unwrap();
        let read = sum(&a).await;
        let second = async {
            postgres::admit(&b, &pass_b).await.unwrap(); // waits for the first
            let read = sum(&b).await;
            add(b, &pass_b, read).await;
        };
        let first = async {
            session_waits(&look).await;
            add(a, &pass_a, read).await;
        };
        tokio::join!(first, second);
        assert_eq!(body(&look).await, "2", "both were admitted, and both are there");
    });
}

async fn sum(transaction: &Transaction<'_>) -> i32 {
    let row = transaction.query_one("SELECT body FROM report WHERE id = 42", &[]).await.unwrap();
    row.get::<_, String>(0).parse().unwrap()
}

async fn add(transaction: Transaction<'_>, pass: &Pass, read: i32) {
    postgres::admit(&transaction, pass).await.unwrap();
    let body = (read + 1).to_string();
    transaction.execute("UPDATE report SET body = $1 WHERE id = 42", &[&body]).await.unwrap();
    transaction.commit().await.unwrap();
}

/// Waits until a session of this database waits for a lock.
async fn session_waits(client: &Client) {
    let count = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'";
    for _ in 0..3000 {
        if client.query_one(count, &[]).await.unwrap().get::<_, i64>(0) > 0 {
            return;
        }
        #[expect(clippy::disallowed_methods, reason = "the server sends no event when a session waits")]
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    panic!("no session waits for a lock");
}

fn waits(database: &TestDatabase) {
    database.run(async {
        let (mut client, mut other) = (ready(database).await, database.client().await);
        let look = database.client().await;
        let (pass_a, pass_b) = (pass(33, 1), pass(34, 2));
        for again in [false, true] {
            look.batch_execute("DELETE FROM leasehold_fence.mark").await.unwrap();
            if again {
                write(&mut client, &pass_a, "A").await.unwrap(); // so that the next time changes nothing
            }
            let a = client.transaction().await.unwrap();
            postgres::admit(&a, &pass_a).await.unwrap();
            let first = async {
                session_waits(&look).await;
                a.execute("UPDATE report SET body = 'A' WHERE id = 42", &[]).await.unwrap();
                a.commit().await.unwrap();
            };
            let ((), second) = tokio::join!(first, write(&mut other, &pass_b, "B"));
            second.unwrap();
            assert_eq!(body(&look).await, "B", "B's write came after A's");
        }
    });
}

fn many_writers(database: &TestDatabase) {
    database.run(async {
        let client = ready(database).await;
        client
            .batch_execute("CREATE TABLE log (at bigint GENERATED ALWAYS AS IDENTITY, token bigint)")
            .await
            .unwrap();
        let writers = (0..8u64).map(|writer| {
            let url = database.url();
            async move {
                let mut client = connect(&url).await;
                let mut admitted = 0;
                for round in 0..25 {
                    let pass = pass(1 + round * 8 + (writer * 5 + round) % 8, 1 + writer as u8);
                    let transaction = client.transaction().await.unwrap();
                    match postgres::admit(&transaction, &pass).await {
                        Ok(_) => {
                            let insert = "INSERT INTO log (token) VALUES ($1)";
                            transaction.execute(insert, &[&pass.token.as_i64()]).await.unwrap();
                            transaction.commit().await.unwrap();
                            admitted += 1;
                        }
                        Err(error) => assert_eq!(error.kind(), ErrorKind::StaleToken, "{error:?}"),
                    }
                }
                admitted
            }
        });
        #[expect(clippy::disallowed_methods, reason = "a test has a runtime")]
        let tasks: Vec<_> = writers.map(tokio::spawn).collect();
        let mut admitted = 0;
        for task in tasks {
            admitted += task.await.unwrap();
        }
        let rows = client.query("SELECT token FROM log ORDER BY at", &[]).await.unwrap();
        let tokens: Vec<i64> = rows.iter().map(|row| row.get(0)).collect();
        assert!(tokens.is_sorted() && tokens.len() == admitted && admitted >= 8, "{tokens:?}");
    });
}

fn column(database: &TestDatabase) {
    database.run(async {
        let mut client = ready(database).await;
        let make = "CREATE SCHEMA \"My Schema\"; CREATE TABLE \"My Schema\".\"Job\" (\"Id\" uuid PRIMARY KEY, last_fencing_token bigint NOT NULL DEFAULT 0); \
                    INSERT INTO \"My Schema\".\"Job\" VALUES ('00000000-0000-0000-0000-000000000001')";
        client.batch_execute(make).await.unwrap();
        let row: String = client.query_one("SELECT \"Id\"::text FROM \"My Schema\".\"Job\"", &[]).await.unwrap().get(0);
        client.batch_execute("ALTER TABLE \"My Schema\".\"Job\" ALTER \"Id\" TYPE text").await.unwrap();
        let fence = postgres::Column::new(["My Schema", "Job"], "Id");
        let cases = [
            (row.as_str(), pass(34, 1), None),
            (&row, pass(34, 1), Some((34, 34))), // strict: the same owner, too
            (&row, pass(33, 1), Some((33, 34))),
            (&row, pass(35, 1), None),
        ];
        for (key, pass, refused) in cases {
            let transaction = client.transaction().await.unwrap();
            let raised = fence.raise(&transaction, &key, &pass).await;
            transaction.commit().await.unwrap();
            match refused {
                None => raised.unwrap(),
                Some(numbers) => assert_eq!(stale(raised), numbers),
            }
        }
        let transaction = client.transaction().await.unwrap();
        let missing = fence.raise(&transaction, &"nobody", &pass(36, 1)).await.unwrap_err();
        assert!(missing.kind() == ErrorKind::Invalid && missing.to_string().contains("no row has this key"), "{missing}");
        // A key of another type than its column, and a column that is too small for a token.
        let wrong = fence.raise(&transaction, &7i32, &pass(36, 1)).await.unwrap_err();
        assert_eq!((wrong.kind(), wrong.effect()), (ErrorKind::Invalid, Effect::None), "{wrong}");
        transaction.batch_execute("ALTER TABLE report ADD last_fencing_token int").await.unwrap();
        let small = postgres::Column::new(["report"], "id");
        let wrong = small.raise(&transaction, &42i32, &pass(36, 1)).await.unwrap_err();
        assert!(wrong.kind() == ErrorKind::Invalid && wrong.to_string().contains("another type"), "{wrong}");
    });
}

/// Compares the server with the pure rule, for random passes.
fn same_rule(database: &TestDatabase) {
    database.run(async {
        let client = ready(database).await;
        let mut runner = proptest::test_runner::TestRunner::deterministic();
        let strategy = (
            proptest::collection::vec((1u64..8, 1u8..4, proptest::bool::ANY), 1..24),
            proptest::option::of(4u64..8),
        );
        for _ in 0..40 {
            use proptest::strategy::{Strategy as _, ValueTree as _};
            let (shown, ceiling) = strategy.new_tree(&mut runner).unwrap().current();
            client.batch_execute("DELETE FROM leasehold_fence.mark").await.unwrap();
            let mut model: Option<Mark> = None;
            if let Some(ceiling) = ceiling {
                model = Some(Mark { highest: token(1), owner: None, ceiling: Some(token(ceiling)) });
                let row =
                    format!("INSERT INTO leasehold_fence.mark VALUES ('report/42', 1, NULL, {ceiling})");
                client.batch_execute(&row).await.unwrap();
            }
            for (number, owner, _) in &shown {
                let pass = pass(*number, *owner);
                let expected = rule::judge(model.as_ref(), &pass);
                let answer = postgres::enter(&client, &pass).await;
                match (answer, expected) {
                    (Ok(admission), Ok(wanted)) => assert_eq!(admission, wanted),
                    (Err(error), Err(refusal)) => {
                        let wanted = leasehold_core::Error::from(refusal);
                        assert_eq!(error.stale_token(), wanted.stale_token(), "{error}");
                        assert!(error.to_string().ends_with(&wanted.to_string()), "{error} {wanted}");
                    }
                    (answer, expected) => panic!("{shown:?}: {answer:?}, wanted {expected:?}"),
                }
                if expected == Ok(Admission::Raised) {
                    model = Some(Mark::raised(model.as_ref(), &pass));
                }
                assert_eq!(postgres::mark(&client, &pass.resource).await.unwrap(), model);
            }
        }
    });
}

fn errors(database: &TestDatabase) {
    database.run(async {
        let client = database.client().await;
        let error = postgres::enter(&client, &pass(1, 1)).await.unwrap_err();
        assert_eq!((error.kind(), error.effect()), (ErrorKind::Unsupported, Effect::None), "{error:?}");
        postgres::setup(&client).await.unwrap();
        let cases = [
            ("SELECT leasehold_fence.admit('Order/1', 1)", "is not a resource"),
            ("SELECT leasehold_fence.admit('order', 1)", "is not a resource"),
            ("SELECT leasehold_fence.admit(NULL, 1)", "null is not a resource"),
            ("SELECT leasehold_fence.admit('order/1', 0)", "0 is not a fencing token"),
            ("SELECT leasehold_fence.admit('order/1', 9007199254740992)", "is not a fencing token"),
            ("SELECT leasehold_fence.admit('order/1', NULL)", "null is not a fencing token"),
            ("SELECT leasehold_fence.admit('order/1', 1, 'me')", "hash of 32"),
        ];
        for (statement, why) in cases {
            let error = database.psql(statement).expect_err(statement);
            assert!(error.contains("LH004") && error.contains(why), "{statement}: {error}");
        }
        // An id can be anything that the grammar allows.
        let odd = "acme:order/a 'b'; \\ {c} ü \u{1F600}";
        let pass = crate::common::pass_for(odd, 7, 1);
        postgres::enter(&client, &pass).await.unwrap();
        assert_eq!(postgres::mark(&client, &pass.resource).await.unwrap().unwrap().highest, token(7));
        // The server ends the session.
        database.server.sql(&format!(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{}'",
            database.name
        ));
        let error = postgres::enter(&client, &pass).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
    });
}

fn pooled(database: &TestDatabase) {
    let bouncer = PgBouncer::start(&database.server, 1);
    let url = bouncer.url().replace("/postgres", &format!("/{}", database.name));
    database.run(async {
        let client = ready(database).await;
        postgres::install(&client, "report", &"report/{id}".parse().unwrap()).await.unwrap();
        let (mut one, two) = (connect(&url).await, connect(&url).await);
        let transaction = one.transaction().await.unwrap();
        postgres::enter(&transaction, &pass(34, 1)).await.unwrap();
        transaction.batch_execute("UPDATE report SET body = 'A'").await.unwrap();
        transaction.commit().await.unwrap();
        let error = two.batch_execute("UPDATE report SET body = 'nobody'").await.unwrap_err();
        assert_eq!(
            error.code().unwrap().code(),
            "LH003",
            "the same connection of the server, and no pass: {error:?}"
        );
        assert_eq!(body(&client).await, "A");
    });
}
