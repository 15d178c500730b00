//! A seat is reserved while its buyer pays, and booked once.
//!
//! The lease is the reservation: nobody else is offered the seat, and the seat is free again if the buyer
//! does not come back. The booking is a row in the database, one per seat, with a fence against a buyer whose
//! reservation has run out.
//!
//! With a URL it uses that backend (`redis://…`, `sqlite:…`); without one, leases are kept in memory.
//!
//! ```text
//! cargo run -p leasehold-patterns --example ticketing [URL]
//! ```

#![expect(clippy::disallowed_methods, reason = "a program may sleep")]

use std::{env, error::Error, time::Duration};

use leasehold::{Attempt, Client, Lease};
use leasehold_fence::sqlite as fence;
use rusqlite::Connection;

/// Books the seat, with the fence in the same transaction. False if it is booked already.
fn book(hall: &mut Connection, reservation: &Lease, buyer: &str) -> Result<bool, Box<dyn Error>> {
    let transaction = hall.transaction()?;
    fence::admit(&transaction, &reservation.pass())?;
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

    let reservation = anna.lease("seat", "12A").ttl(Duration::from_secs(1)).renew(false).acquire().await?;
    println!("anna has reserved 12A while she pays");
    if let Attempt::Busy(busy) = berta.lease("seat", "12A").attempt().await? {
        println!("berta sees that it is reserved for at most {:.1?}", busy.holders[0].remaining);
    }
    // Anna does not come back in time. Her lease ends by itself.
    let second = berta.lease("seat", "12A").wait(Duration::from_secs(10)).acquire().await?;
    tokio::time::sleep(Duration::from_millis(10)).await;
    println!("berta has reserved it now, with a greater token: {}", second.token() > reservation.token());
    assert!(book(&mut hall, &second, "berta")?);
    let late = book(&mut hall, &reservation, "anna").expect_err("her reservation has run out");
    println!("anna pays too late: {late}");
    drop(second.release().await); // it is booked: a release that fails is repeated in the background

    let third = anna.lease("seat", "12A").acquire().await?;
    assert!(!book(&mut hall, &third, "anna")?, "a seat is booked once");
    let buyer: String =
        hall.query_row("SELECT buyer FROM bookings WHERE seat = '12A'", [], |row| row.get(0))?;
    println!("12A is booked by {buyer}");
    assert_eq!(buyer, "berta");
    drop(third.release().await);
    Ok(())
}
