//! Two accounts at once, from both sides at once, without deadlock: all or none, taken in one order by everyone.
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
    let both = leases.all(wanted).acquire().await?;
    both.hold(async {
        let tokens = [from, to].map(|id| both.token("account", id).map_or(0, |token| token.get()));
        println!("{from} -> {to}, with tokens {tokens:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    })
    .await?;
    both.release().await
}

#[tokio::main]
async fn main() -> Result<(), Error> {
    let url = env::args().nth(1).unwrap_or_else(|| "memory:".to_owned());
    let backend = leasehold::open(&url).await?;
    let mut transfers = JoinSet::new();
    for _ in 0..3 {
        // One after the other with plain locks, these two would each hold what the other wants.
        transfers.spawn(transfer(Client::new(backend.clone()), "alice", "bob"));
        transfers.spawn(transfer(Client::new(backend.clone()), "bob", "alice"));
    }
    while let Some(done) = transfers.join_next().await {
        done.expect("a transfer does not panic")?;
    }
    println!("six transfers, no deadlock");
    Ok(())
}
