//! What a client of any driver gives to the SQL functions: the text of a pass, or its parts. Everything else is refused with a
//! message that says what to give.

use leasehold_core::{ErrorKind, Pass, Resource};
use leasehold_fence::{explain_sqlstate, postgres};
use tokio_postgres::Client;

use crate::{
    common::{pass, pass_for, token},
    test_database::{Test, TestDatabase},
};

pub(crate) const TESTS: &[Test] = &[
    ("the_text_of_a_pass_is_the_one_argument", text_of_a_pass),
    ("the_key_of_a_resource_is_refused_and_the_error_says_what_to_pass", key_instead_of_pass),
    ("a_resource_or_a_pass_in_the_wrong_place_is_refused", wrong_place),
    ("an_id_that_looks_like_a_key_is_shown_in_a_pass", looks_like_a_key),
    ("explain_sqlstate_explains_what_the_server_says", explained),
];

/// Calls a function as a program with any driver does. Returns its result, or the SQLSTATE, message and hint.
async fn call(
    client: &Client,
    sql: &str,
    arguments: &[&(dyn tokio_postgres::types::ToSql + Sync)],
) -> Result<bool, (String, String)> {
    let row = client.query_one(sql, arguments).await;
    row.map(|row| row.get(0)).map_err(|error| {
        let refusal = error.as_db_error().unwrap_or_else(|| panic!("{error}"));
        let text = format!("{} {}", refusal.message(), refusal.hint().unwrap_or_default());
        (refusal.code().code().to_owned(), text)
    })
}

async fn fenced(database: &TestDatabase) -> Client {
    let client = database.client().await;
    postgres::setup(&client).await.unwrap();
    client
}

const FUNCTIONS: [&str; 2] = ["SELECT leasehold_fence.admit($1)", "SELECT leasehold_fence.enter($1)"];
const IN_PARTS: [&str; 2] =
    ["SELECT leasehold_fence.admit($1, $2, $3)", "SELECT leasehold_fence.enter($1, $2, $3)"];

fn text_of_a_pass(database: &TestDatabase) {
    database.run(async {
        let client = fenced(database).await;
        for (index, id) in ["order/7", "acme:order/a 'b'; \\ {c} ü", "order/~"].into_iter().enumerate() {
            for (sql, raised) in [(FUNCTIONS[0], true), (FUNCTIONS[1], false)] {
                let shown = pass_for(id, 34 + index as u64, 1);
                assert_eq!(call(&client, sql, &[&shown.to_string()]).await, Ok(raised), "{shown}");
                let mark = postgres::mark(&client, &shown.resource).await.unwrap().unwrap();
                assert_eq!((mark.highest, mark.owner), (shown.token, shown.owner));
            }
        }
        let hashed = Resource::new("order", "me@example.org").unwrap().hashed(b"sesame");
        let shown = Pass::new(hashed, token(7));
        assert_eq!(call(&client, FUNCTIONS[0], &[&shown.to_string()]).await, Ok(true));
    });
}

/// The mark of a key is another one than the mark of the resource, so a fence that took both would protect nothing.
fn key_instead_of_pass(database: &TestDatabase) {
    database.run(async {
        let client = fenced(database).await;
        for id in ["order/4 2", "acme:order/a/b", "order/ü"] {
            let resource: Resource = id.parse().unwrap();
            for sql in IN_PARTS {
                let refused =
                    call(&client, sql, &[&resource.key(), &34i64, &None::<&str>]).await.unwrap_err();
                assert_eq!(refused.0, "LH004", "{refused:?}");
                assert!(refused.1.contains(resource.key()), "{refused:?}");
                assert!(refused.1.contains("pass.to_string(), not resource.key()"), "{refused:?}");
            }
            assert_eq!(call(&client, IN_PARTS[0], &[&id, &34i64, &None::<&str>]).await, Ok(true), "{id}");
        }
        // A key without an escape is the text of the resource, too.
        assert_eq!(
            call(&client, IN_PARTS[0], &[&"order/a:b@c+d=e,f", &34i64, &None::<&str>]).await,
            Ok(true)
        );
    });
}

fn wrong_place(database: &TestDatabase) {
    database.run(async {
        let client = fenced(database).await;
        let shown = pass(34, 1);
        for sql in FUNCTIONS {
            for wrong in
                [shown.resource.to_string(), shown.token.to_string(), "34 report/42".into(), String::new()]
            {
                let refused = call(&client, sql, &[&wrong]).await.unwrap_err();
                assert_eq!(refused.0, "LH004", "{refused:?}");
                assert!(refused.1.contains("a pass is TOKEN OWNER RESOURCE"), "{refused:?}");
                assert!(refused.1.contains("pass.to_string(), not resource.to_string()"), "{refused:?}");
            }
        }
        for sql in IN_PARTS {
            let refused = call(&client, sql, &[&shown.to_string(), &34i64, &None::<&str>]).await.unwrap_err();
            assert!(refused.0 == "LH004" && refused.1.contains("only argument"), "{refused:?}");
        }
        assert_eq!(postgres::mark(&client, &shown.resource).await.unwrap(), None);
    });
}

fn looks_like_a_key(database: &TestDatabase) {
    database.run(async {
        let client = fenced(database).await;
        let odd = pass_for("page/a%20b", 34, 1);
        postgres::enter(&client, &odd).await.unwrap();
        assert_eq!(postgres::mark(&client, &odd.resource).await.unwrap().unwrap().highest, token(34));
        // These are no keys: a key has no escape for a plain character, and no other characters.
        for text in ["page/100%", "page/a%41", "page/a%20b c", "page/%2f"] {
            assert_eq!(call(&client, IN_PARTS[0], &[&text, &34i64, &None::<&str>]).await, Ok(true), "{text}");
        }
    });
}

fn explained(database: &TestDatabase) {
    database.run(async {
        let client = fenced(database).await;
        let explain = |error: &tokio_postgres::Error, pass: &Pass, with_detail: bool| {
            let refusal = error.as_db_error().unwrap();
            let detail = refusal.detail().filter(|_| with_detail);
            explain_sqlstate(pass, Some(refusal.code().code()), refusal.message(), detail)
        };
        let [late, next] = [pass(33, 1), pass(34, 2)];
        client.query_one(FUNCTIONS[0], &[&next.to_string()]).await.unwrap();
        let refused = client.query_one(FUNCTIONS[0], &[&late.to_string()]).await.unwrap_err();
        for with_detail in [true, false] {
            let error = explain(&refused, &late, with_detail).unwrap();
            assert_eq!(error.stale_token(), Some((token(33), token(34))), "{error}");
        }
        client.batch_execute("UPDATE leasehold_fence.mark SET ceiling = 50").await.unwrap();
        let former = pass(99, 3);
        let refused = client.query_one(FUNCTIONS[0], &[&former.to_string()]).await.unwrap_err();
        let error = explain(&refused, &former, true).unwrap();
        assert!(
            error.kind() == ErrorKind::StaleToken && error.to_string().contains("before the rebase"),
            "{error}"
        );
        let refused = client.query_one(FUNCTIONS[0], &[&"order/7"]).await.unwrap_err();
        assert_eq!(explain(&refused, &late, true).unwrap().kind(), ErrorKind::Invalid);
        let other = client.query_one("SELECT 1 / 0", &[]).await.unwrap_err();
        assert!(explain(&other, &late, true).is_none());
    });
}
