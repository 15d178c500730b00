//! A fence in Redis: set, hash set and delete with a fencing token, each in one round trip.
//!
//! ```text
//! cargo run -p leasehold-fence --example fence_redis [URL]
//! ```
//!
//! Without a URL it starts a server of its own.

use std::{env, error::Error};

use leasehold_fence::redis::Fence;
use leasehold_testkit::servers::RedisServer;

async fn example(url: &str) -> Result<(), Box<dyn Error>> {
    let leases = leasehold::connect(url).await?;
    let mut connection = redis::Client::open(url)?.get_multiplexed_async_connection().await?;
    let fence = Fence::new();

    let first = leases.lease("report", "example").acquire().await?;
    let stale = first.pass();
    // The same hash tag in braces, so both keys share one last token.
    fence.set(&stale, "report:{example}:body", "first draft")?.run(&mut connection).await?;
    drop(first.release().await); // it is written: a release that fails is repeated in the background

    let second = leases.lease("report", "example").acquire().await?;
    let fields = [("state", "done"), ("pages", "3")];
    fence.hash_set(&second.pass(), "report:{example}", &fields)?.run(&mut connection).await?;

    let late = fence.set(&stale, "report:{example}:body", "too late")?.run(&mut connection).await;
    println!("refused: {}", late.expect_err("the token is old"));
    let body: String = redis::cmd("GET").arg("report:{example}:body").query_async(&mut connection).await?;
    println!("the report is {body:?}");
    assert_eq!(body, "first draft");
    for key in ["report:{example}:body", "report:{example}"] {
        fence.delete(&second.pass(), key)?.run(&mut connection).await?;
    }
    drop(second.release().await);
    leases.shutdown().await;
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    match env::args().nth(1) {
        Some(url) => example(&url).await,
        None => {
            let server = RedisServer::start();
            example(&server.url()).await
        }
    }
}
