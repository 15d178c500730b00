//! An election and durable jobs: one of two schedulers adds the jobs of the hour, and workers do them.
//!
//! The leader may change in the middle. The jobs have keys, so the second leader does not add again what the
//! first one added, and every job is done once.
//!
//! With a URL it uses that backend (`redis://…`, `sqlite:…`); without one, leases are kept in memory.
//!
//! ```text
//! cargo run -p leasehold-patterns --example scheduler [URL]
//! ```

use std::{
    env,
    error::Error,
    sync::{Arc, Mutex},
    time::Duration,
};

use leasehold::Client;
use leasehold_patterns::jobs::{Jobs, NewJob, SqliteJobs, Worker};

/// The work of the leader: adds the first `count` jobs of nine o'clock. Returns how many were new.
async fn add_jobs(jobs: &dyn Jobs, count: u32) -> Result<u32, leasehold::Error> {
    let mut added = 0;
    for number in 1..=count {
        let job = NewJob::new("reports", number.to_string()).key(&format!("2026-11-15T09:00/{number}"));
        added += u32::from(jobs.add(&job).await?.is_some());
    }
    Ok(added)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let url = env::args().nth(1).unwrap_or_else(|| "memory:".to_owned());
    let backend = leasehold::open(&url).await?;
    let directory = tempfile::tempdir()?;
    let jobs: Arc<dyn Jobs> = Arc::new(SqliteJobs::open(directory.path().join("jobs.db")).await?);

    // The first leader dies after it has added three of five jobs.
    for (name, count) in [("host-a", 3), ("host-b", 5)] {
        let leases = Client::builder(backend.clone()).label(name).build();
        let added =
            leases.election("scheduler", "eu").lead(name, async |_| add_jobs(&*jobs, count).await).await??;
        println!("{name} leads and adds {added} jobs");
    }

    let leases = Client::new(backend);
    let worker = Worker::new(Arc::clone(&jobs), &leases, "reports", "worker-1").hold(Duration::from_secs(30));
    let done = Mutex::new(Vec::new());
    let mut work = async |claim: leasehold_patterns::jobs::JobClaim| {
        let number = String::from_utf8_lossy(&claim.payload).into_owned();
        done.lock().expect("no task panics with the lock").push(number);
        Ok::<_, String>(claim.payload)
    };
    while worker.run_once(&mut work).await? {}
    let mut done = done.into_inner()?;
    done.sort();
    println!("done: {}", done.join(", "));
    assert_eq!(done, ["1", "2", "3", "4", "5"]);
    Ok(())
}
