//! A fence in a transaction: an auction ends, and two workers settle it. One of them stalls for longer than
//! its lease and comes back. The fence refuses its transaction, and the auction is settled once, for the
//! highest bid.
//!
//! With a URL it uses that backend (`redis://…`, `sqlite:…`); without one, leases are kept in memory.
//!
//! ```text
//! cargo run -p leasehold-patterns --example auction_settlement [URL]
//! ```

#![expect(clippy::disallowed_methods, reason = "a program may sleep")]

use std::{env, error::Error, time::Duration};

use leasehold::{Client, Lease};
use leasehold_fence::sqlite as fence;
use rusqlite::Connection;

fn auction() -> Result<Connection, Box<dyn Error>> {
    let database = Connection::open_in_memory()?;
    database.execute_batch(
        "CREATE TABLE auctions (id INTEGER PRIMARY KEY, state TEXT NOT NULL, winner TEXT, cents INTEGER);
         CREATE TABLE bids (auction INTEGER NOT NULL, bidder TEXT NOT NULL, cents INTEGER NOT NULL);
         INSERT INTO auctions VALUES (5, 'ended', NULL, NULL);
         INSERT INTO bids VALUES (5, 'anna', 900), (5, 'berta', 1200), (5, 'carla', 1100);",
    )?;
    fence::setup(&database)?;
    Ok(database)
}

/// Reads, decides and writes in one transaction. The fence is its first statement. False if the auction is
/// settled already.
fn settle(database: &mut Connection, lease: &Lease) -> Result<bool, Box<dyn Error>> {
    let transaction = database.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)?;
    fence::admit(&transaction, &lease.pass())?;
    let settled = transaction.execute(
        "UPDATE auctions SET state = 'settled', (winner, cents) =
             (SELECT bidder, cents FROM bids WHERE auction = 5 ORDER BY cents DESC, rowid LIMIT 1)
         WHERE id = 5 AND state = 'ended'",
        [],
    )?;
    transaction.commit()?;
    Ok(settled == 1)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let url = env::args().nth(1).unwrap_or_else(|| "memory:".to_owned());
    let backend = leasehold::open(&url).await?;
    let (one, two) = (
        Client::builder(backend.clone()).label("worker-1").build(),
        Client::builder(backend).label("worker-2").build(),
    );
    let mut database = auction()?;

    let stalled = one.lease("auction", "5").ttl(Duration::from_millis(300)).renew(false).acquire().await?;
    tokio::time::sleep(Duration::from_millis(350)).await;
    println!("worker-1 stalled for longer than its lease, with token {}", stalled.token());
    let lease = two.lease("auction", "5").acquire().await?;
    assert!(settle(&mut database, &lease)?);
    println!("worker-2 settled it, with token {}", lease.token());
    let refused = settle(&mut database, &stalled).expect_err("the token is old");
    println!("worker-1 comes back: {refused}");
    drop(lease.release().await); // it is settled: a release that fails is repeated in the background

    let (winner, cents): (String, i64) =
        database.query_row("SELECT winner, cents FROM auctions", [], |row| Ok((row.get(0)?, row.get(1)?)))?;
    println!("{winner} wins for {cents}");
    assert_eq!((winner.as_str(), cents), ("berta", 1200));
    Ok(())
}
