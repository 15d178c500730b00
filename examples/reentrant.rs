//! A re-entrant lease: a function that takes a lease may be called by a function that holds it. A `Scope`
//! that is passed down counts the uses.
//!
//! With a URL it uses that backend (`redis://…`, `sqlite:…`); without one, leases are kept in memory.
//!
//! ```text
//! cargo run --example reentrant [URL]
//! ```

use std::env;

use leasehold::{Client, Error, Released, Scope};

/// Safe to call alone, and safe to call from `ship`, which holds the order already.
async fn charge(leases: &Client, order: &str, scope: &Scope) -> Result<(), Error> {
    let lease = leases.lease("order", order).within(scope).acquire().await?;
    println!("  charging order/{order} under {:?}", lease.token());
    let released = lease.release().await?;
    println!("  inner release: {released:?}");
    Ok(())
}

async fn ship(leases: &Client, order: &str) -> Result<(), Error> {
    let scope = Scope::new(); // stands for this piece of work, on any task or thread
    let lease = leases.lease("order", order).within(&scope).acquire().await?;
    println!("shipping order/{order} under {:?}", lease.token());
    charge(leases, order, &scope).await?; // no round trip, the same token
    lease.check()?;
    let released = lease.release().await?;
    println!("outer release: {released:?}");
    assert_eq!(released, Released::Now);
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Error> {
    let url = env::args().nth(1).unwrap_or_else(|| "memory:".to_owned());
    let leases = leasehold::connect(&url).await?;
    ship(&leases, "7").await?;
    println!("called alone:");
    charge(&leases, "7", &Scope::new()).await
}
