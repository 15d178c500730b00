//! Export a report once, although several machines want to: a lease, work that stops when the lease is lost,
//! and a store that refuses writes with an old fencing token.
//!
//! With a URL it uses that backend (`redis://…`, `sqlite:…`); without one, leases are kept in memory.
//!
//! ```text
//! cargo run --example report_export [URL]
//! ```

#![expect(clippy::disallowed_methods, reason = "a program may sleep")]

use std::{
    env,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use leasehold::{Attempt, Client, Error, FencingToken, LeaseView};

/// A store of reports with a fence. The last token and the report change in one step: a fence needs that.
#[derive(Default)]
struct Store(Mutex<(u64, String)>);

impl Store {
    fn put(&self, token: FencingToken, report: &str) -> Result<(), Error> {
        let mut inner = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if token.get() < inner.0 {
            return Err(Error::stale(token, FencingToken::new(inner.0)?));
        }
        *inner = (token.get(), report.to_owned());
        Ok(())
    }
}

async fn export(lease: LeaseView, store: &Store) -> Result<(), Error> {
    for page in 1..=3 {
        tokio::time::sleep(Duration::from_millis(20)).await;
        println!("  page {page}, with {:.1?} left", lease.remaining());
    }
    store.put(lease.token(), "three pages")
}

#[tokio::main]
async fn main() -> Result<(), Error> {
    let url = env::args().nth(1).unwrap_or_else(|| "memory:".to_owned());
    let backend = leasehold::open(&url).await?;
    // Two clients stand for two machines.
    let here = Client::builder(backend.clone()).label("nightly export").build();
    let there = Client::builder(backend).label("another export").build();
    let store = Store::default();

    println!("exporting report/42 on {url}");
    let lease = here.lease("report", "42").acquire().await?;
    if let Attempt::Busy(busy) = there.lease("report", "42").attempt().await? {
        let by = &busy.holders[0];
        println!("  on the other machine: busy, held by {} for {:.1?} more", by.holder, by.remaining);
    }
    lease.run(async |lease| export(lease, &store).await).await??; // the first ? is for the lease, the second for the work

    println!("a worker stalls for longer than its lease");
    let stalled = here.lease("report", "42").ttl(Duration::from_millis(300)).renew(false).acquire().await?;
    tokio::time::sleep(Duration::from_millis(350)).await;
    println!("  it can check its lease: {}", stalled.check().expect_err("the lease has run out"));
    let next = there.lease("report", "42").acquire().await?;
    store.put(next.token(), "written by the next holder")?;
    let refused = store.put(stalled.token(), "written too late").expect_err("the token is old");
    println!("  if it does not check, the store refuses: {refused}");
    drop(next.release().await); // the work is done: a release that fails is repeated in the background
    Ok(())
}
