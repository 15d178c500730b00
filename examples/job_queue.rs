//! Durable jobs: a worker dies while it does a job, and another worker claims it. A job that always fails
//! ends as dead. A worker that comes back too late changes nothing.
//!
//! ```text
//! cargo run -p leasehold-patterns --example job_queue
//! ```

#![expect(clippy::disallowed_methods, reason = "a program may sleep")]

use std::{error::Error, sync::Arc, time::Duration};

use leasehold::{Client, Memory};
use leasehold_patterns::jobs::{JobClaim, JobState, Jobs, NewJob, RetryBackoff, SqliteJobs, Worker};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let directory = tempfile::tempdir()?;
    let jobs: Arc<dyn Jobs> = Arc::new(SqliteJobs::open(directory.path().join("jobs.db")).await?);
    let good =
        jobs.add(&NewJob::new("mail", b"order 42").key("reminder-42")).await?.ok_or("the key is taken")?;
    let bad = jobs.add(&NewJob::new("mail", b"order 13").attempts(2)).await?.ok_or("the key is taken")?;

    let lost = jobs.claim("mail", "worker-1", Duration::from_millis(50)).await?.ok_or("no job is due")?;
    println!("worker-1 claims job {} and dies", lost.id);
    tokio::time::sleep(Duration::from_millis(100)).await;

    let leases = Client::new(Arc::new(Memory::new()));
    let soon = RetryBackoff { first: Duration::from_millis(10), max: Duration::from_millis(10) };
    let worker = Worker::new(Arc::clone(&jobs), &leases, "mail", "worker-2").backoff(soon).filtered();
    let mut work = async |claim: JobClaim| {
        println!("worker-2: job {}, attempt {}, token {}", claim.id, claim.attempt, claim.token);
        if claim.payload == b"order 13" { Err("no such address") } else { Ok(b"sent".to_vec()) }
    };
    for _ in 0..20 {
        if !worker.run_once(&mut work).await? {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
    println!("worker-1 comes back; its result is stored: {}", jobs.complete(&lost, b"late").await?);
    let (good, bad) = (
        jobs.get(good).await?.ok_or("there is no such job")?,
        jobs.get(bad).await?.ok_or("there is no such job")?,
    );
    println!("order 42: {:?}; order 13: {:?}, {}", good.state, bad.state, bad.error.as_deref().unwrap_or(""));
    assert_eq!((good.state, bad.state), (JobState::Done, JobState::Dead));
    assert_eq!(good.result.as_deref(), Some(&b"sent"[..]));
    Ok(())
}
