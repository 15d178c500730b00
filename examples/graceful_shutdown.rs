//! A worker that stops well: on Ctrl-C, when its lease is lost, or when the work is done; and leaves nothing held.
//!
//! ```text
//! cargo run --example graceful_shutdown [URL]
//! ```

#![expect(clippy::disallowed_methods, reason = "a program may sleep")]

use std::{env, time::Duration};

use leasehold::Error;

/// One piece of work: short, so that stopping between two pieces is soon enough.
async fn work_a_little(piece: u32) {
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
    let mut ended = std::pin::pin!(lease.ended()); // owns what it needs: `release` stays callable
    let mut asked = std::pin::pin!(lease.asked());
    for piece in 1..=5 {
        tokio::select! {
            biased; // a loss comes first
            ending = &mut ended => {
                println!("stopping: {ending}");
                break; // whatever is written from here on, a fence would have to refuse
            }
            _ = &mut interrupt => {
                println!("stopping: interrupted");
                break;
            }
            wish = &mut asked => {
                if let Some(wish) = wish {
                    println!("stopping: {} asks, because {}", wish.by, wish.why);
                }
                break;
            }
            () = work_a_little(piece) => {}
        }
    }
    println!("released: {:?}", lease.release().await?);
    leases.shutdown().await; // nothing that was dropped is still on its way
    Ok(())
}
