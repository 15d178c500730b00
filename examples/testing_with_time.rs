//! Test what your program does when a lease is lost, without waiting: the test controls the clock.
//!
//! ```text
//! cargo run --example testing_with_time
//! ```
//!
//! It works with the memory backend only, because a test cannot set the clock of a server.

use std::{sync::Arc, time::Duration};

use leasehold::{Client, Error, LeaseView, Memory, State, testing::ManualTime};

/// The program under test. It must not write after it has lost its lease.
fn write(lease: &LeaseView, log: &mut Vec<&'static str>) {
    match lease.check() {
        Ok(()) => log.push("written"),
        Err(_) => log.push("refused"),
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Error> {
    let time = ManualTime::new();
    let memory = Arc::new(Memory::in_environment(Arc::new(time.clone())));
    let leases = Client::builder(memory).environment(Arc::new(time.clone())).build();
    let mut log = Vec::new();

    println!("an hour, with renewals");
    let lease = leases.lease("report", "42").ttl(Duration::from_secs(30)).acquire().await?;
    time.advance(Duration::from_secs(3600)).await; // runs all renewals in between
    write(&lease, &mut log);
    assert_eq!(lease.state(), State::Held);

    println!("the machine is suspended for a minute, and wakes up before the next statement");
    time.jump(Duration::from_secs(60)); // no timer runs, as during a suspend
    write(&lease, &mut log);
    println!("the lease: {:?}; the program: {log:?}", lease.state());
    assert_eq!(log, ["written", "refused"]);
    Ok(())
}
