//! A seat is held while its buyer pays, and booked once. The lease is the hold: nobody else is offered the seat, and it
//! comes back by itself when the buyer walks away. The booking is the database's: one row per seat, and a fence against
//! whoever comes back from a long pause with a hold that is over.
//!
//! ```text
//! cargo run -p leasehold-patterns --example ticketing [URL]
//! ```

#![expect(clippy::disallowed_methods, reason = "a program may sleep")]

use std::{env, error::Error, time::Duration};

use leasehold::{Attempt, Client, Lease};
use leasehold_fence::sqlite as fence;
use rusqlite::Connection;

/// Fence and booking in one transaction.
fn book(hall: &mut Connection, hold: &Lease, buyer: &str) -> Result<bool, Box<dyn Error>> {
    let transaction = hall.transaction()?;
    fence::admit(&transaction, &hold.pass())?;
    let booked =
        transaction.execute("INSERT INTO bookings VALUES ('12A', ?1) ON CONFLICT DO NOTHING", [buyer])?;
    transaction.commit()?;
    Ok(booked == 1)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let url = env::args().nth(1).unwrap_or_else(|| "memory:".to_owned());
    let backend = leasehold::open(&url).await?;
    let (anna, berta) = (
        Client::builder(backend.clone()).label("anna").build(),
        Client::builder(backend).label("berta").build(),
    );
    let mut hall = Connection::open_in_memory()?;
    hall.execute_batch("CREATE TABLE bookings (seat TEXT PRIMARY KEY, buyer TEXT NOT NULL);")?;
    fence::setup(&hall)?;

    let hold = anna.lease("seat", "12A").ttl(Duration::from_secs(1)).renew(false).acquire().await?;
    println!("anna holds 12A while she looks for her card");
    if let Attempt::Busy(busy) = berta.lease("seat", "12A").attempt().await? {
        println!("berta is told that it is held, for {:.1?} at the most", busy.holders[0].remaining);
    }
    // Anna does not come back in time. Nobody has to clean up.
    let second = berta.lease("seat", "12A").wait(Duration::from_secs(10)).acquire().await?;
    tokio::time::sleep(Duration::from_millis(10)).await;
    println!("berta holds it now, with a higher token: {}", second.token() > hold.token());
    assert!(book(&mut hall, &second, "berta")?);
    let late = book(&mut hall, &hold, "anna").expect_err("her hold was over");
    println!("anna pays too late: {late}");
    second.release().await?;

    let third = anna.lease("seat", "12A").acquire().await?;
    assert!(!book(&mut hall, &third, "anna")?, "a seat is booked once, whoever holds it");
    let buyer: String =
        hall.query_row("SELECT buyer FROM bookings WHERE seat = '12A'", [], |row| row.get(0))?;
    println!("12A is {buyer}'s");
    assert_eq!(buyer, "berta");
    third.release().await?;
    Ok(())
}
