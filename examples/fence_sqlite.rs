//! A fence in SQLite: a worker stalls for longer than its lease, and the database refuses what it writes
//! then.
//!
//! ```text
//! cargo run -p leasehold-fence --example fence_sqlite
//! ```

#![expect(clippy::disallowed_methods, reason = "a program may sleep")]

use std::{error::Error, time::Duration};

use leasehold_fence::{Pass, sqlite};
use rusqlite::Connection;

fn write(database: &mut Connection, pass: &Pass, body: &str) -> Result<(), Box<dyn Error>> {
    let transaction = database.transaction()?;
    sqlite::admit(&transaction, pass)?; // in the same transaction as the write
    transaction.execute("INSERT OR REPLACE INTO report VALUES (42, ?1)", [body])?;
    transaction.commit()?;
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let leases = leasehold::connect("memory:").await?;
    let mut database = Connection::open_in_memory()?;
    database.execute_batch("CREATE TABLE report (id INTEGER PRIMARY KEY, body TEXT)")?;
    sqlite::setup(&database)?;

    let ttl = Duration::from_millis(300);
    let stalled = leases.lease("report", "42").ttl(ttl).renew(false).acquire().await?;
    write(&mut database, &stalled.pass(), "first draft")?;
    tokio::time::sleep(ttl).await; // longer than the lease lasts

    let next = leases.lease("report", "42").acquire().await?;
    write(&mut database, &next.pass(), "written by the next holder")?;
    let refused = write(&mut database, &stalled.pass(), "written too late").expect_err("the token is old");
    println!("refused: {refused}");

    let body: String = database.query_row("SELECT body FROM report", [], |row| row.get(0))?;
    println!("the report is {body:?}");
    assert_eq!(body, "written by the next holder");
    drop(next.release().await); // it is written: a release that fails is repeated in the background
    Ok(())
}
