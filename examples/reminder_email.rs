//! Three machines run the same reminder job at the same minute, and order 42 is to be reminded once. The tick is claimed
//! once; and because a lease only saves work, the mail itself goes out under an idempotency key, so that a second run, or a
//! hand that starts it again, sends nothing.
//!
//! ```text
//! cargo run -p leasehold-patterns --example reminder_email [URL]
//! ```

use std::{env, error::Error};

use leasehold::Client;
use leasehold_patterns::{
    idempotency::{Begun, Fingerprint, Keys as _, SqliteKeys, Terms},
    schedule::{Cron, Instant, Outcome, Schedule},
};

/// Sends it, unless it was sent.
async fn remind(keys: &SqliteKeys, sent: &mut u32) -> Result<&'static str, Box<dyn Error>> {
    let (mail, terms) = (Fingerprint::of([&b"order 42: please pay"[..]]), Terms::default());
    match keys.begin("reminder/order-42", &mail, &terms).await? {
        Begun::Run(run) => {
            *sent += 1; // here the mail goes out, with the same key for a provider that takes one
            keys.finish(&run, b"sent", &terms).await?;
            Ok("sent")
        }
        Begun::Done(_) => Ok("was sent before"),
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
    let tick: Instant = "2026-11-15T09:00:00Z".parse().map_err(|()| "an instant")?;

    for machine in ["host-a", "host-b", "host-c"] {
        let leases = Client::builder(backend.clone()).label(machine).build();
        match Cron::new(&leases, "reminders", schedule.clone()).claim(tick).await? {
            Some(claimed) => {
                println!("{machine}: {}", remind(&keys, &mut sent).await?);
                claimed.finish(Outcome::Succeeded).await;
            }
            None => println!("{machine}: somebody else has this tick"),
        }
    }
    println!("somebody starts it again by hand: {}", remind(&keys, &mut sent).await?);
    assert_eq!(sent, 1);
    Ok(())
}
