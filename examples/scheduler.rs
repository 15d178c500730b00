//! One scheduler of two hands out the jobs of the hour, and workers do them. The leader may change in the middle: jobs have
//! keys, so that what the first leader added is not added again, and every job is done once.
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

/// What the leader does: adds the jobs of nine o'clock, as far as it gets.
async fn plan(jobs: &dyn Jobs, as_far_as: u32) -> Result<u32, leasehold::Error> {
    let mut added = 0;
    for number in 1..=as_far_as {
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

    // The first leader dies after three of five.
    for (name, as_far_as) in [("host-a", 3), ("host-b", 5)] {
        let leases = Client::builder(backend.clone()).label(name).build();
        let added =
            leases.election("scheduler", "eu").lead(name, async |_| plan(&*jobs, as_far_as).await).await??;
        println!("{name} leads, and adds {added} jobs");
    }

    let leases = Client::new(backend);
    let worker = Worker::new(Arc::clone(&jobs), &leases, "reports", "worker-1").hold(Duration::from_secs(30));
    let done = Mutex::new(Vec::new());
    let mut work = async |claim: leasehold_patterns::jobs::Claim| {
        let number = String::from_utf8_lossy(&claim.payload).into_owned();
        done.lock().expect("nobody panics here").push(number);
        Ok::<_, String>(claim.payload)
    };
    while worker.once(&mut work).await? {}
    let mut done = done.into_inner()?;
    done.sort();
    println!("done: {}", done.join(", "));
    assert_eq!(done, ["1", "2", "3", "4", "5"]);
    Ok(())
}
