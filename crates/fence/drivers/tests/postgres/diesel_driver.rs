//! diesel, with the connection of diesel-async. The statements are the same on diesel's own `PgConnection`.

use leasehold_testkit::servers::PostgresServer;

use crate::{Test, create_table, pass, run, stale_numbers};

pub(crate) const TESTS: &[Test] = &[("diesel_a_stale_holder_is_refused", stale_holder)];

pub(crate) const SOURCE: &str = include_str!("diesel_driver.rs");

// docs: begin
use std::error::Error;

use diesel::{result::Error as DieselError, sql_query, sql_types};
use diesel_async::{AsyncConnection, AsyncPgConnection, RunQueryDsl};
use leasehold_fence::{Pass, explain_sqlstate};

async fn add(connection: &mut AsyncPgConnection, pass: &Pass, amount: i64) -> Result<(), Box<dyn Error>> {
    let written = connection.transaction(async |transaction| {
        let enter =
            sql_query("SELECT leasehold_fence.enter($1)").bind::<sql_types::Text, _>(pass.to_string());
        enter.execute(transaction).await?;
        let update = sql_query("UPDATE orders SET total = total + $1 WHERE id = 7");
        update.bind::<sql_types::BigInt, _>(amount).execute(transaction).await
    });
    written.await.map(|_| ()).map_err(|error| explain(error, pass))
}

/// diesel does not tell the SQLSTATE: a stale token is recognised by its numbers.
fn explain(error: DieselError, pass: &Pass) -> Box<dyn Error> {
    let refusal = match &error {
        DieselError::DatabaseError(_, refused) => {
            explain_sqlstate(pass, None, refused.message(), refused.details())
        }
        _ => None,
    };
    refusal.map_or_else(|| error.into(), Into::into)
}
// docs: end

fn stale_holder(server: &PostgresServer) {
    let url = create_table(server, "diesel");
    run(async {
        let mut connection = AsyncPgConnection::establish(&url).await.unwrap();
        let [late, next] = [pass("diesel", 33, 1), pass("diesel", 34, 2)];
        add(&mut connection, &late, 20).await.unwrap();
        add(&mut connection, &next, 3).await.unwrap();
        add(&mut connection, &next, 4).await.unwrap(); // the same owner again
        let refused = add(&mut connection, &late, 1000).await.unwrap_err();
        assert_eq!(stale_numbers(&*refused), Some((33, 34)), "{refused}");

        let bare = sql_query("UPDATE orders SET total = 0").execute(&mut connection).await.unwrap_err();
        assert!(bare.to_string().contains("needs its pass"), "{bare}");
        assert!(
            explain(bare, &next).downcast_ref::<DieselError>().is_some(),
            "without a SQLSTATE it is not explained"
        );
    });
    assert_eq!(server.sql("SELECT total FROM diesel.orders"), "127");
}
