//! sea-orm.

use leasehold_testkit::servers::PostgresServer;

use crate::{Test, create_table, pass, run, stale_numbers};

pub(crate) const TESTS: &[Test] = &[("sea_orm_a_stale_holder_is_refused", stale_holder)];

pub(crate) const SOURCE: &str = include_str!("sea_orm_driver.rs");

// docs: begin
use std::error::Error;

use leasehold_fence::{Pass, explain_sqlstate};
use sea_orm::{
    ConnectionTrait, DatabaseConnection, DbBackend, DbErr, RuntimeErr, Statement, TransactionTrait,
};

async fn add(database: &DatabaseConnection, pass: &Pass, amount: i64) -> Result<(), Box<dyn Error>> {
    let transaction = database.begin().await?;
    let statement = |sql, value| Statement::from_sql_and_values(DbBackend::Postgres, sql, [value]);
    let enter = statement("SELECT leasehold_fence.enter($1)", pass.to_string().into());
    transaction.execute_raw(enter).await.map_err(|error| explain(error, pass))?;
    let update = statement("UPDATE orders SET total = total + $1 WHERE id = 7", amount.into());
    transaction.execute_raw(update).await.map_err(|error| explain(error, pass))?;
    Ok(transaction.commit().await?)
}

fn explain(error: DbErr, pass: &Pass) -> Box<dyn Error> {
    let refusal = match &error {
        DbErr::Exec(RuntimeErr::SqlxError(cause)) | DbErr::Query(RuntimeErr::SqlxError(cause)) => {
            cause.as_database_error().and_then(|refused| {
                // The message has the numbers, too.
                explain_sqlstate(pass, refused.code().as_deref(), refused.message(), None)
            })
        }
        _ => None,
    };
    refusal.map_or_else(|| error.into(), Into::into)
}
// docs: end

fn stale_holder(server: &PostgresServer) {
    let url = create_table(server, "sea_orm");
    run(async {
        let database = sea_orm::Database::connect(url).await.unwrap();
        let [late, next] = [pass("sea_orm", 33, 1), pass("sea_orm", 34, 2)];
        add(&database, &late, 20).await.unwrap();
        add(&database, &next, 3).await.unwrap();
        add(&database, &next, 4).await.unwrap(); // the same owner again
        let refused = add(&database, &late, 1000).await.unwrap_err();
        assert_eq!(stale_numbers(&*refused), Some((33, 34)), "{refused}");

        let bare = database.execute_unprepared("UPDATE orders SET total = 0").await.unwrap_err();
        let bare = explain(bare, &next);
        assert!(bare.downcast_ref::<leasehold_core::Error>().is_some(), "{bare}");
        database.close().await.unwrap();
    });
    assert_eq!(server.sql("SELECT total FROM sea_orm.orders"), "127");
}
