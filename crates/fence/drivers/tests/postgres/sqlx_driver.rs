//! sqlx.

use leasehold_testkit::servers::PostgresServer;

use crate::{Test, create_table, pass, run, stale_numbers};

pub(crate) const TESTS: &[Test] = &[("sqlx_a_stale_holder_is_refused", stale_holder)];

pub(crate) const SOURCE: &str = include_str!("sqlx_driver.rs");

// docs: begin
use std::error::Error;

use leasehold_fence::{Pass, explain_sqlstate};
use sqlx::{PgPool, postgres::PgDatabaseError};

async fn add(pool: &PgPool, pass: &Pass, amount: i64) -> Result<(), Box<dyn Error>> {
    let mut transaction = pool.begin().await?;
    let enter = sqlx::query("SELECT leasehold_fence.enter($1)").bind(pass.to_string());
    enter.execute(&mut *transaction).await.map_err(|error| explain(error, pass))?;
    let update = sqlx::query("UPDATE orders SET total = total + $1 WHERE id = 7").bind(amount);
    update.execute(&mut *transaction).await.map_err(|error| explain(error, pass))?;
    Ok(transaction.commit().await?)
}

fn explain(error: sqlx::Error, pass: &Pass) -> Box<dyn Error> {
    let refusal = error.as_database_error().and_then(|refused| {
        let detail = refused.try_downcast_ref::<PgDatabaseError>().and_then(|refused| refused.detail());
        explain_sqlstate(pass, refused.code().as_deref(), refused.message(), detail)
    });
    refusal.map_or_else(|| error.into(), Into::into)
}
// docs: end

fn stale_holder(server: &PostgresServer) {
    let url = create_table(server, "sqlx");
    run(async {
        let pool = PgPool::connect(&url).await.unwrap();
        let [late, next] = [pass("sqlx", 33, 1), pass("sqlx", 34, 2)];
        add(&pool, &late, 20).await.unwrap();
        add(&pool, &next, 3).await.unwrap();
        add(&pool, &next, 4).await.unwrap(); // the same owner again
        let refused = add(&pool, &late, 1000).await.unwrap_err();
        assert_eq!(stale_numbers(&*refused), Some((33, 34)), "{refused}");

        // A statement without a pass, and an error that is not of the fence.
        let bare = sqlx::query("UPDATE orders SET total = 0").execute(&pool).await.unwrap_err();
        assert!(explain(bare, &next).downcast_ref::<leasehold_core::Error>().is_some());
        let other = sqlx::query("SELECT 1 / 0").execute(&pool).await.unwrap_err();
        assert!(explain(other, &next).downcast_ref::<sqlx::Error>().is_some());
        pool.close().await;
    });
    assert_eq!(server.sql("SELECT total FROM sqlx.orders"), "127");
}
