//! A function that takes a lease may be called by one that holds it: a scope, handed down, counts who is in.
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
    println!("  left the inner part: {released:?}");
    Ok(())
}

async fn ship(leases: &Client, order: &str) -> Result<(), Error> {
    let scope = Scope::new(); // this piece of work, whatever tasks and threads it runs on
    let lease = leases.lease("order", order).within(&scope).acquire().await?;
    println!("shipping order/{order} under {:?}", lease.token());
    charge(leases, order, &scope).await?; // no round trip, the same token
    lease.check()?;
    let released = lease.release().await?;
    println!("left the outer part: {released:?}");
    assert_eq!(released, Released::Now);
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Error> {
    let url = env::args().nth(1).unwrap_or_else(|| "memory:".to_owned());
    let leases = leasehold::connect(&url).await?;
    ship(&leases, "7").await?;
    println!("and on its own:");
    charge(&leases, "7", &Scope::new()).await
}
