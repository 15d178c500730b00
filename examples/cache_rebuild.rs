//! Single-flight: a cache entry has expired, and forty requests on two machines want it. One computes the
//! value, all get it.
//!
//! With a URL it uses that backend (`redis://…`, `sqlite:…`); without one, leases are kept in memory.
//!
//! ```text
//! cargo run -p leasehold-patterns --example cache_rebuild [URL]
//! ```

#![expect(clippy::disallowed_methods, reason = "a program may sleep")]

use std::{
    env,
    error::Error,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use leasehold::Client;
use leasehold_patterns::single_flight::{SingleFlight, SqliteCache};
use tokio::task::JoinSet;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let url = env::args().nth(1).unwrap_or_else(|| "memory:".to_owned());
    let backend = leasehold::open(&url).await?;
    let directory = tempfile::tempdir()?;
    let computed = Arc::new(AtomicU32::new(0));
    let mut requests = JoinSet::new();
    for _machine in 0..2 {
        let cache = Arc::new(SqliteCache::open(directory.path().join("cache.db")).await?);
        let pages =
            SingleFlight::new(&Client::new(backend.clone()), cache).fresh_for(Duration::from_secs(60));
        let pages = Arc::new(pages);
        for _ in 0..20 {
            let (pages, computed) = (Arc::clone(&pages), Arc::clone(&computed));
            requests.spawn(async move {
                let render = async || {
                    computed.fetch_add(1, Ordering::SeqCst);
                    tokio::time::sleep(Duration::from_millis(50)).await; // an expensive computation
                    Ok::<_, String>(b"<h1>home</h1>".to_vec())
                };
                pages.get("home", render).await
            });
        }
    }
    let pages: Result<Vec<_>, _> = requests.join_all().await.into_iter().collect();
    let (served, computed) = (pages?.len(), computed.load(Ordering::SeqCst));
    println!("{served} requests got the value, which was computed {computed} time");
    assert_eq!((served, computed), (40, 1));
    Ok(())
}
