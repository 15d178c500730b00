//! A worker that stops cleanly: on Ctrl-C, when its lease is lost, when an operator asks, or when the work is
//! done. It leaves no lease behind.
//!
//! With a URL it uses that backend (`redis://…`, `sqlite:…`); without one, leases are kept in memory.
//!
//! ```text
//! cargo run --example graceful_shutdown [URL]
//! ```

#![expect(clippy::disallowed_methods, reason = "a program may sleep")]

use std::{env, time::Duration};

use leasehold::Error;

/// One piece of work. It is short, so that it is enough to stop between two pieces.
async fn do_piece(piece: u32) {
    tokio::time::sleep(Duration::from_millis(200)).await;
    println!("piece {piece} is done");
}

#[tokio::main]
async fn main() -> Result<(), Error> {
    let url = env::args().nth(1).unwrap_or_else(|| "memory:".to_owned());
    let leases = leasehold::connect(&url).await?;
    let lease = leases.lease("queue", "mails").ttl(Duration::from_secs(5)).acquire().await?;
    println!("working on queue/mails with {:?}; press Ctrl-C to stop", lease.token());

    let mut interrupt = std::pin::pin!(tokio::signal::ctrl_c());
    let mut ended = std::pin::pin!(lease.ended()); // owns its data, so `release` can still be called
    let mut asked = std::pin::pin!(lease.asked());
    for piece in 1..=5 {
        tokio::select! {
            biased; // check first whether the lease is lost
            ending = &mut ended => {
                println!("stopping: {ending}");
                break; // from here on, a fence would refuse our writes
            }
            _ = &mut interrupt => {
                println!("stopping: interrupted");
                break;
            }
            request = &mut asked => {
                if let Some(request) = request {
                    println!("stopping: {} asks for it, because {}", request.by, request.why);
                }
                break;
            }
            () = do_piece(piece) => {}
        }
    }
    // What was done is done, also if this fails: then it is repeated in the background.
    println!("released: {:?}", lease.release().await);
    leases.shutdown().await; // waits until every release in the background has ended
    Ok(())
}
