//! A scheduled job with an effect outside: three machines run the same reminder job in the same minute, and
//! the customer of order 42 must get one mail.
//!
//! The tick is claimed once. A lease only saves work, so the mail itself is sent under an idempotency key: a
//! second run, or a run that is started by hand, sends nothing.
//!
//! With a URL it uses that backend (`redis://…`, `sqlite:…`); without one, leases are kept in memory.
//!
//! ```text
//! cargo run -p leasehold-patterns --example reminder_email [URL]
//! ```

use std::{env, error::Error};

use leasehold::Client;
use leasehold_patterns::{
    idempotency::{BeginOutcome, Fingerprint, KeyLifetimes, Keys as _, SqliteKeys},
    schedule::{Cron, Schedule, TickOutcome, TickTime},
};

/// Sends the mail, unless it was sent before.
async fn remind(keys: &SqliteKeys, sent: &mut u32) -> Result<&'static str, Box<dyn Error>> {
    let (mail, lifetimes) = (Fingerprint::of([&b"order 42: please pay"[..]]), KeyLifetimes::default());
    match keys.begin("reminder/order-42", &mail, &lifetimes).await? {
        BeginOutcome::Claimed(claim) => {
            *sent += 1; // send the mail here, with the same key if the mail provider supports keys
            keys.finish(&claim, b"sent", &lifetimes).await?;
            Ok("sent")
        }
        BeginOutcome::Done(_) => Ok("was sent before"),
        other => Err(format!("{other:?}").into()),
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let url = env::args().nth(1).unwrap_or_else(|| "memory:".to_owned());
    let backend = leasehold::open(&url).await?;
    let directory = tempfile::tempdir()?;
    let keys = SqliteKeys::open(directory.path().join("keys.db")).await?;
    let (schedule, mut sent) = (Schedule::parse("0 9 * * *")?, 0);
    let tick: TickTime = "2026-11-15T09:00:00Z".parse().map_err(|()| "not a time")?;

    for machine in ["host-a", "host-b", "host-c"] {
        let leases = Client::builder(backend.clone()).label(machine).build();
        match Cron::new(&leases, "reminders", schedule.clone()).claim(tick).await? {
            Some(claimed) => {
                println!("{machine}: {}", remind(&keys, &mut sent).await?);
                claimed.finish(TickOutcome::Succeeded).await;
            }
            None => println!("{machine}: another machine has this tick"),
        }
    }
    println!("started again by hand: {}", remind(&keys, &mut sent).await?);
    assert_eq!(sent, 1);
    Ok(())
}
