//! Two leases at once without deadlock: transfers between two accounts in both directions. All leases are
//! taken or none, in the same order by every client.
//!
//! With a URL it uses that backend (`redis://…`, `sqlite:…`); without one, leases are kept in memory.
//!
//! ```text
//! cargo run --example transfer [URL]
//! ```

#![expect(clippy::disallowed_methods, reason = "a program may sleep")]

use std::{env, time::Duration};

use leasehold::{Client, Error};
use tokio::task::JoinSet;

async fn transfer(leases: Client, from: &'static str, to: &'static str) -> Result<(), Error> {
    let wanted = [leases.lease("account", from), leases.lease("account", to)];
    let work = leases.all(wanted).run(async |both| {
        let passes: Vec<_> = both.passes().map(|pass| pass.to_string()).collect();
        println!("{from} -> {to}, with a pass for each account: {}", passes.join(", "));
        tokio::time::sleep(Duration::from_millis(20)).await;
    });
    work.await
}

#[tokio::main]
async fn main() -> Result<(), Error> {
    let url = env::args().nth(1).unwrap_or_else(|| "memory:".to_owned());
    let backend = leasehold::open(&url).await?;
    let mut transfers = JoinSet::new();
    for _ in 0..3 {
        // With one lock after the other, these two could each hold what the other needs.
        transfers.spawn(transfer(Client::new(backend.clone()), "alice", "bob"));
        transfers.spawn(transfer(Client::new(backend.clone()), "bob", "alice"));
    }
    while let Some(done) = transfers.join_next().await {
        done.expect("a transfer does not panic")?;
    }
    println!("six transfers, no deadlock");
    Ok(())
}
