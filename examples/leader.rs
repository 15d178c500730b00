//! Leader election: two candidates, and an observer that sees which one leads.
//!
//! With a URL it uses that backend (`redis://…`, `sqlite:…`); without one, leases are kept in memory.
//!
//! ```text
//! cargo run --example leader [URL]
//! ```

#![expect(clippy::disallowed_methods, reason = "a program may sleep")]

use std::{
    env,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use leasehold::{Client, Error};
use tokio::task::JoinSet;

#[tokio::main]
async fn main() -> Result<(), Error> {
    let url = env::args().nth(1).unwrap_or_else(|| "memory:".to_owned());
    let backend = leasehold::open(&url).await?;

    let (mut candidates, leaders) = (JoinSet::new(), Arc::new(AtomicU32::new(0)));
    for address in ["http://host-a:8080", "http://host-b:8080"] {
        let election = Client::new(backend.clone()).election("scheduler", "eu");
        let leaders = Arc::clone(&leaders);
        candidates.spawn(async move {
            let lead = election.candidate(address).acquire().await?; // waits until it leads
            assert_eq!(leaders.fetch_add(1, Ordering::SeqCst), 0, "no other candidate leads");
            lead.hold(tokio::time::sleep(Duration::from_millis(200))).await?; // the work of the leader
            lead.set_note(format!("{address} (leaving)")).await?; // the value may change while it leads
            tokio::time::sleep(Duration::from_millis(100)).await;
            leaders.fetch_sub(1, Ordering::SeqCst);
            drop(lead.release().await); // its work is done: a release that fails is repeated in the background
            Ok::<(), Error>(())
        });
    }

    let mut observer = Client::new(backend).election("scheduler", "eu").observe()?;
    let mut finished = 0;
    while finished < 2 || !candidates.is_empty() {
        tokio::select! {
            seen = observer.next() => match seen? {
                Some(leader) => println!("{} leads, {:?}", leader.value().unwrap_or("?"), leader.token),
                None => println!("nobody leads"),
            },
            Some(candidate) = candidates.join_next() => {
                candidate.expect("a candidate does not panic")?;
                finished += 1;
            }
        }
    }
    Ok(())
}
