//! A program that shows its pass in its own transaction, or keeps the mark in a column of its own.

use leasehold_fence::rule::{self, Admission, Mark};

use crate::test_server::{Session, Test, TestServer, pass, refusal, stale, token};

pub(crate) const TESTS: &[Test] = &[
    ("a_stale_writer_is_refused_and_the_data_stays", stale_writer),
    ("without_an_owner_a_token_is_admitted_for_one_transaction", without_an_owner),
    ("a_mark_is_rolled_back_with_its_effect", rolled_back),
    ("without_enter_an_update_is_lost_and_with_it_the_stale_one_is_refused", read_modify_write),
    ("many_writers_take_effect_in_the_order_of_their_tokens", many_writers),
    ("a_column_admits_each_token_once", column),
    ("the_rule_in_sql_equals_the_pure_rule", same_rule),
    ("errors_say_what_to_do", errors),
    ("the_schema_can_be_executed_again_by_the_client_program", schema_again),
    ("the_example_of_the_documentation_is_the_one_that_runs", documented),
];

// docs: begin
use leasehold_core::{Error, ErrorKind};
use leasehold_fence::{Pass, explain_sqlstate};
use sqlx::{Connection, MySqlConnection, mysql::MySqlDatabaseError};

async fn write(connection: &mut MySqlConnection, pass: &Pass, id: &str, body: &str) -> Result<(), Error> {
    let mut transaction = connection.begin().await.map_err(|error| explain(error, pass))?;
    let written = async {
        let admit = sqlx::query("CALL leasehold_fence.admit(?)").bind(pass.to_string());
        admit.execute(&mut *transaction).await?;
        let update = sqlx::query("UPDATE report SET body = ? WHERE id = ?").bind(body).bind(id);
        update.execute(&mut *transaction).await
    };
    // After an error, MariaDB keeps the transaction and its locks until it is told to end it.
    let ended = match written.await {
        Ok(_) => transaction.commit().await,
        Err(refused) => transaction.rollback().await.and(Err(refused)),
    };
    ended.map_err(|error| explain(error, pass))
}

fn explain(error: sqlx::Error, pass: &Pass) -> Error {
    let refusal = error.as_database_error().and_then(|refused| {
        let state = refused.try_downcast_ref::<MySqlDatabaseError>().and_then(|refused| refused.code());
        explain_sqlstate(pass, state, refused.message(), None)
    });
    refusal.unwrap_or_else(|| Error::new(ErrorKind::Unavailable, error.to_string()).because(error))
}
// docs: end

/// A session, and a report with this id.
async fn ready(server: &TestServer, id: &str) -> Session {
    let mut session = server.connect().await;
    let create = "CREATE TABLE IF NOT EXISTS report (id VARCHAR(40) PRIMARY KEY, body TEXT) ENGINE = InnoDB";
    session.execute(create).await.unwrap();
    session.execute_with("INSERT INTO report VALUES (?, '0')", &[Some(id)]).await.unwrap();
    session
}

async fn body(session: &mut Session, id: &str) -> String {
    session.text(format!("SELECT body FROM report WHERE id = '{id}'")).await.unwrap()
}

fn stale_writer(server: &TestServer) {
    server.run(async {
        let mut connection = ready(server, "stale").await;
        let of = |number, owner| pass("report/stale", number, owner);
        write(&mut connection.0, &of(33, 1), "stale", "A").await.unwrap();
        write(&mut connection.0, &of(34, 2), "stale", "B").await.unwrap();
        assert_eq!(stale(write(&mut connection.0, &of(33, 1), "stale", "A, late").await), (33, 34));
        write(&mut connection.0, &of(34, 2), "stale", "B again").await.unwrap();
        assert_eq!(stale(write(&mut connection.0, &of(34, 3), "stale", "another 34").await), (34, 34));
        assert_eq!(body(&mut connection, "stale").await, "B again");
    });
}

fn without_an_owner(server: &TestServer) {
    server.run(async {
        let mut session = ready(server, "nobody").await;
        let shown = pass("report/nobody", 33, 0);
        session.execute("START TRANSACTION").await.unwrap();
        for _ in 0..2 {
            session.admit(&shown).await.unwrap();
        }
        session.execute("COMMIT").await.unwrap();
        assert_eq!(stale(write(&mut session.0, &shown, "nobody", "twice").await), (33, 33));
    });
}

fn rolled_back(server: &TestServer) {
    server.run(async {
        let mut session = ready(server, "rolled").await;
        let of = |number| pass("report/rolled", number, 1);
        for _ in 0..2 {
            session.execute("START TRANSACTION").await.unwrap();
            session.admit(&of(34)).await.unwrap();
            session.execute("ROLLBACK").await.unwrap();
            write(&mut session.0, &of(33), "rolled", "A").await.unwrap();
        }
        assert_eq!(body(&mut session, "rolled").await, "A");
    });
}

/// 33 reads and pauses, 34 reads, 33 writes, 34 writes. Each adds one, and each step is a transaction of its own.
fn read_modify_write(server: &TestServer) {
    server.run(async {
        let (mut one, mut two) = (ready(server, "sum").await, server.connect().await);
        for (enter, refusals) in [(false, 0), (true, 1)] {
            one.execute("UPDATE report SET body = '0' WHERE id = 'sum'").await.unwrap();
            let resource = format!("report/sum-{enter}");
            let (a, b) = (pass(&resource, 33, 1), pass(&resource, 34, 2));
            let mut sums = Vec::new();
            for (connection, pass) in [(&mut one, &a), (&mut two, &b)] {
                if enter {
                    connection.enter(pass).await.unwrap();
                }
                sums.push((body(connection, "sum").await.parse::<i32>().unwrap() + 1).to_string());
            }
            let wrote =
                [write(&mut one.0, &a, "sum", &sums[0]).await, write(&mut two.0, &b, "sum", &sums[1]).await];
            let refused = wrote.iter().filter(|wrote| wrote.is_err()).count();
            // Without enter both updates are admitted, and one of them is lost without an error.
            assert_eq!(
                (body(&mut one, "sum").await.as_str(), refused),
                ("1", refusals),
                "with enter: {enter}"
            );
        }
    });
}

fn many_writers(server: &TestServer) {
    server.run(async {
        let mut session = server.connect().await;
        let create = "CREATE TABLE log (at BIGINT AUTO_INCREMENT PRIMARY KEY, token BIGINT) ENGINE = InnoDB";
        session.execute(create).await.unwrap();
        let mut tasks = tokio::task::JoinSet::new();
        for writer in 0..6 {
            tasks.spawn(admitted_writes(server.connect().await, writer));
        }
        let admitted: usize = tasks.join_all().await.into_iter().sum();
        let tokens: Vec<i64> =
            sqlx::query_scalar("SELECT token FROM log ORDER BY at").fetch_all(&mut session.0).await.unwrap();
        assert!(tokens.is_sorted() && tokens.len() == admitted && admitted >= 6, "{tokens:?}");
    });
}

/// Writes with fifteen tokens, which grow as those of the other writers do. Returns how many were admitted.
async fn admitted_writes(mut session: Session, writer: u64) -> usize {
    let mut admitted = 0;
    for round in 0..15 {
        let number = 1 + round * 6 + (writer * 5 + round) % 6;
        let shown = pass("report/many", number, 1 + writer as u8);
        session.execute("START TRANSACTION").await.unwrap();
        match session.admit(&shown).await.map_err(|error| explain(error, &shown)) {
            Ok(_) => {
                session.execute(format!("INSERT INTO log (token) VALUES ({number})")).await.unwrap();
                session.execute("COMMIT").await.unwrap();
                admitted += 1;
            }
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::StaleToken, "{error:?}");
                session.execute("ROLLBACK").await.unwrap();
            }
        }
    }
    admitted
}

/// The statement of docs/fencing.md: no procedure, and one statement for the check and the effect.
fn column(server: &TestServer) {
    server.run(async {
        let mut session = server.connect().await;
        let create =
            "CREATE TABLE job (id INT PRIMARY KEY, state TEXT, last_fencing_token BIGINT NOT NULL DEFAULT 0)";
        session.execute(create).await.unwrap();
        session.execute("INSERT INTO job (id) VALUES (1)").await.unwrap();
        for (number, changed) in [(34, 1), (34, 0), (33, 0), (35, 1)] {
            let update = format!(
                "UPDATE job SET state = 'RUNNING', last_fencing_token = {number} \
                 WHERE id = 1 AND last_fencing_token < {number}"
            );
            assert_eq!(session.execute(update).await.unwrap(), changed, "{number}");
        }
    });
}

/// Compares the server with the pure rule, for random passes.
fn same_rule(server: &TestServer) {
    use proptest::strategy::{Strategy as _, ValueTree as _};
    server.run(async {
        let mut connection = server.connect().await;
        let mut runner = proptest::test_runner::TestRunner::deterministic();
        let strategy =
            (proptest::collection::vec((1u64..8, 1u8..4), 1..24), proptest::option::of(4u64..8));
        for case in 0..40 {
            let (shown, ceiling) = strategy.new_tree(&mut runner).unwrap().current();
            let resource = format!("rule/{case}");
            let mut model: Option<Mark> = None;
            if let Some(ceiling) = ceiling {
                model = Some(Mark { highest: token(1), owner: None, ceiling: Some(token(ceiling)) });
                let insert = format!(
                    "INSERT INTO leasehold_fence.mark (resource, token, ceiling) VALUES ('{resource}', 1, {ceiling})"
                );
                connection.execute(insert).await.unwrap();
            }
            for (number, owner) in &shown {
                let pass = pass(&resource, *number, *owner);
                let expected = rule::judge(model.as_ref(), &pass);
                let answer = connection.enter(&pass).await;
                match (answer.map_err(|error| explain(error, &pass)), expected) {
                    (Ok(_), Ok(_)) => {}
                    (Err(error), Err(refusal)) => {
                        let wanted = Error::from(refusal);
                        assert_eq!(error.stale_token(), wanted.stale_token(), "{error}");
                        assert!(error.to_string().ends_with(&wanted.to_string()), "{error} {wanted}");
                    }
                    (answer, expected) => panic!("{shown:?}: {answer:?}, wanted {expected:?}"),
                }
                if expected == Ok(Admission::Raised) {
                    model = Some(Mark::raised(model.as_ref(), &pass));
                }
                let mark = format!("SELECT CONCAT_WS(' ', token, owner) FROM leasehold_fence.mark WHERE resource = '{resource}'");
                let wanted = model.map(|mark| {
                    let owner = mark.owner.map(|owner| format!(" {owner}")).unwrap_or_default();
                    format!("{}{owner}", mark.highest)
                });
                assert_eq!(connection.text(mark).await, wanted);
            }
        }
    });
}

fn errors(server: &TestServer) {
    server.run(async {
        let mut connection = server.connect().await;
        let shown = pass("order/4 2", 34, 1);
        let cases = [
            (shown.resource.to_string(), "this is not a pass: give Pass::to_string"),
            (shown.resource.key().to_owned(), "this is not a pass: give Pass::to_string"),
            ("34".to_owned(), "this is not a pass"),
            ("34 me order/7".to_owned(), "this is not a pass"),
            ("34 - Order/7".to_owned(), "kind/id"),
            ("34 - order".to_owned(), "kind/id"),
            ("34 - order/a\nb".to_owned(), "kind/id"),
            (format!("34 - order/{}", "x".repeat(257)), "kind/id"),
            ("0 - order/7".to_owned(), "1 to 2^53 - 1"),
            ("9007199254740992 - order/7".to_owned(), "1 to 2^53 - 1"),
        ];
        for (text, why) in cases {
            let (state, message) =
                refusal(connection.execute_with("CALL leasehold_fence.enter(?)", &[Some(&text)]).await);
            assert!(state == "LH004" && message.contains(why), "{text}: {state} {message}");
        }
        // An effect after a check outside of a transaction would be another step.
        let (state, message) = refusal(connection.admit(&shown).await);
        assert!(state == "LH004" && message.contains("START TRANSACTION"), "{message}");
        // Ids of the whole grammar have marks of their own, and the numbers are not cut off a long message.
        let long = "ü".repeat(128);
        for id in ["a 'b'; \\ {c} \u{1F600}", "A", "a", "a ", "a%20", "ä", &long] {
            let resource = format!("odd:order/{id}");
            for (number, owner) in [(9_007_199_254_740_991, 1), (9_007_199_254_740_990, 2)] {
                let shown = pass(&resource, number, owner);
                let enter = connection.enter(&shown).await.map_err(|error| explain(error, &shown));
                if owner == 1 {
                    enter.unwrap();
                } else {
                    assert_eq!(stale(enter), (9_007_199_254_740_990, 9_007_199_254_740_991), "{id}");
                }
            }
        }
    });
}

fn schema_again(server: &TestServer) {
    for _ in 0..2 {
        server.server.sql(leasehold_fence::mariadb::SCHEMA);
    }
    assert_eq!(server.server.sql("SELECT COUNT(*) FROM leasehold_fence.format"), "1");
}

fn documented(_: &TestServer) {
    let page = include_str!("../../../../../docs/fencing.md");
    let (_, rest) = include_str!("program.rs").split_once("// docs: begin\n").unwrap();
    let (example, _) = rest.split_once("// docs: end").unwrap();
    assert!(page.contains(example.trim_end()), "docs/fencing.md does not have this example:\n{example}");
}
