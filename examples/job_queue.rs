//! Durable jobs: a worker dies over one, another takes it over, one that always fails ends as dead, and nobody who comes
//! back too late changes anything.
//!
//! ```text
//! cargo run -p leasehold-patterns --example job_queue
//! ```

#![expect(clippy::disallowed_methods, reason = "a program may sleep")]

use std::{error::Error, sync::Arc, time::Duration};

use leasehold::{Client, Memory};
use leasehold_patterns::jobs::{Backoff, Claim, JobState, Jobs, NewJob, SqliteJobs, Worker};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let directory = tempfile::tempdir()?;
    let jobs: Arc<dyn Jobs> = Arc::new(SqliteJobs::open(directory.path().join("jobs.db")).await?);
    let good = jobs.add(&NewJob::new("mail", b"order 42").key("reminder-42")).await?.ok_or("it is new")?;
    let bad = jobs.add(&NewJob::new("mail", b"order 13").attempts(2)).await?.ok_or("it is new")?;

    let lost = jobs.claim("mail", "worker-1", Duration::from_millis(50)).await?.ok_or("it is ready")?;
    println!("worker-1 takes job {} and dies over it", lost.id);
    tokio::time::sleep(Duration::from_millis(100)).await;

    let leases = Client::new(Arc::new(Memory::new()));
    let soon = Backoff { first: Duration::from_millis(10), most: Duration::from_millis(10) };
    let worker = Worker::new(Arc::clone(&jobs), &leases, "mail", "worker-2").backoff(soon).filtered();
    let mut work = async |claim: Claim| {
        println!("worker-2: job {}, attempt {}, token {}", claim.id, claim.attempt, claim.token);
        if claim.payload == b"order 13" { Err("no such address") } else { Ok(b"sent".to_vec()) }
    };
    for _ in 0..20 {
        if !worker.once(&mut work).await? {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
    println!("worker-1 comes back: its answer is taken: {}", jobs.complete(&lost, b"late").await?);
    let (good, bad) =
        (jobs.look(good).await?.ok_or("it is there")?, jobs.look(bad).await?.ok_or("it is there")?);
    println!("order 42: {:?}; order 13: {:?}, {}", good.state, bad.state, bad.error.as_deref().unwrap_or(""));
    assert_eq!((good.state, bad.state), (JobState::Done, JobState::Dead));
    assert_eq!(good.result.as_deref(), Some(&b"sent"[..]));
    Ok(())
}
