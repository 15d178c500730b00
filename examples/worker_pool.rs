//! A semaphore: at most three exports at a time for one customer, with any number of workers.
//!
//! With a URL it uses that backend (`redis://…`, `sqlite:…`); without one, leases are kept in memory.
//!
//! ```text
//! cargo run --example worker_pool [URL]
//! ```

#![expect(clippy::disallowed_methods, reason = "a program may sleep")]

use std::{
    env,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering::SeqCst},
    },
    time::Duration,
};

use leasehold::{Client, Error};
use tokio::task::JoinSet;

const AT_ONCE: u32 = 3;

#[tokio::main]
async fn main() -> Result<(), Error> {
    let url = env::args().nth(1).unwrap_or_else(|| "memory:".to_owned());
    let backend = leasehold::open(&url).await?;
    let (running, most) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
    let mut workers = JoinSet::new();
    for number in 1..=8 {
        // A client for each worker, as if each were a process of its own.
        let exports = Client::new(backend.clone()).semaphore("export", "acme", AT_ONCE);
        let (running, most) = (Arc::clone(&running), Arc::clone(&most));
        workers.spawn(async move {
            let work = async |_| {
                let now = running.fetch_add(1, SeqCst) + 1;
                most.fetch_max(now, SeqCst);
                println!("worker {number} starts; {now} running");
                tokio::time::sleep(Duration::from_millis(60)).await;
                running.fetch_sub(1, SeqCst);
            };
            exports.permits(1).run(work).await
        });
    }
    while let Some(worker) = workers.join_next().await {
        worker.expect("a worker does not panic")?;
    }
    let most = most.load(SeqCst);
    println!("all done; never more than {most} at once");
    assert!(most <= AT_ONCE);
    Ok(())
}
