//! A fence in PostgreSQL: a table that refuses writes without a current fencing token, from this program and
//! from `psql`.
//!
//! ```text
//! cargo run -p leasehold-fence --example fence_postgres [URL]
//! ```
//!
//! Without a URL it starts a server of its own.

#![expect(clippy::disallowed_methods, reason = "a program may spawn")]

use std::{env, error::Error};

use leasehold_core::ErrorKind;
use leasehold_fence::{Pass, postgres};
use leasehold_testkit::servers::PostgresServer;
use tokio_postgres::{Client, NoTls};

/// Adds to the total of an order. The fence keeps holders of older leases from writing between the read and
/// the write.
async fn add(client: &mut Client, pass: &Pass, amount: i64) -> Result<i64, Box<dyn Error>> {
    let transaction = client.transaction().await?;
    postgres::enter(&transaction, pass).await?; // before the first read
    let total: i64 = transaction.query_one("SELECT total FROM orders WHERE id = 7", &[]).await?.get(0);
    let total = total + amount;
    transaction.execute("UPDATE orders SET total = $1 WHERE id = 7", &[&total]).await?;
    transaction.commit().await?;
    Ok(total)
}

async fn example(url: &str) -> Result<(), Box<dyn Error>> {
    let (mut client, connection) = tokio_postgres::connect(url, NoTls).await?;
    tokio::spawn(connection);
    client
        .batch_execute(
            "CREATE TEMP TABLE orders (id int PRIMARY KEY, total bigint); INSERT INTO orders VALUES (7, 100)",
        )
        .await?;
    let table = postgres::install(&client, "orders", &"order/{id}".parse()?).await?;
    println!("{table} is fenced");

    // Leases in a file: tokens of the memory backend start at 1 each time, but the database keeps the last
    // token.
    let folder = tempfile::tempdir()?;
    let leases = leasehold::connect(&format!("sqlite:{}/leases.db", folder.path().display())).await?;
    let first = leases.lease("order", "7").acquire().await?;
    let pass = first.pass();
    println!("under {pass}: {}", add(&mut client, &pass, 20).await?);
    drop(first.release().await); // it is written: a release that fails is repeated in the background

    let second = leases.lease("order", "7").acquire().await?;
    println!("under {}: {}", second.pass(), add(&mut client, &second.pass(), 3).await?);

    // The first holder comes back, and does not check its lease.
    let late = add(&mut client, &pass, 1000).await.expect_err("the token is old");
    println!("refused: {late}");
    // A client that does not use leases.
    let bare = client.execute("UPDATE orders SET total = 0", &[]).await.expect_err("there is no token");
    let bare = postgres::explain(bare, &pass);
    println!("refused: {bare}");
    assert_eq!(bare.kind(), ErrorKind::Invalid);
    let total: i64 = client.query_one("SELECT total FROM orders", &[]).await?.get(0);
    assert_eq!(total, 123);
    drop(second.release().await);
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    match env::args().nth(1) {
        Some(url) => example(&url).await,
        None => {
            let server = PostgresServer::start();
            example(&server.url()).await
        }
    }
}
