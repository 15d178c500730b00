//! A hand-over: from the release of one client to the grant of another one that waits.

use std::time::{Duration, Instant};

use leasehold::Client;
use leasehold_bench::{Table, median, median_ratio};
use serde_json::json;
use tokio::time::sleep;

use crate::{
    connection::{self, Connection},
    serving::Serving,
};

const ROUNDS: usize = 9;
const HAND_OVERS: usize = 30;
const PATIENCE: Duration = Duration::from_secs(30);
/// So that the waiter waits, and does not just come.
const SETTLE: Duration = Duration::from_millis(4);

pub(crate) async fn measure(table: &mut Table) {
    table.title("a hand-over between two clients, from the release to the grant");
    let serving = Serving::start();
    let mut clients = Vec::new();
    for _ in 0..2 {
        clients.push(leasehold::connect(&serving.redis.url()).await.unwrap());
    }
    let (mut library, mut server) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        library.push(through_the_library(&clients[0], &clients[1]).await);
        server.push(through_the_server(&serving).await);
    }
    let ratio = median_ratio(&server, &library);
    table.row("the library, p50", &format!("{:.0} µs", median(library)));
    table.row("the server, p50", &format!("{:.0} µs", median(server)));
    table.target(
        "the server, in hand-overs of the library",
        &format!("× {ratio:.2}"),
        "≤ × 1.5",
        ratio <= 1.5,
    );
}

async fn through_the_library(one: &Client, other: &Client) -> f64 {
    let mut times = Vec::new();
    let mut held = one.lease("ours", "1").acquire().await.unwrap();
    for turn in 0..HAND_OVERS {
        let waiter = if turn % 2 == 0 { other } else { one };
        let next = tokio::spawn(waiter.lease("ours", "1").wait(PATIENCE).acquire());
        sleep(SETTLE).await;
        let released = Instant::now();
        let release = tokio::spawn(async move { held.release().await.map(drop) });
        held = next.await.unwrap().unwrap();
        times.push(released.elapsed().as_secs_f64() * 1e6);
        release.await.unwrap().unwrap();
    }
    held.release().await.unwrap();
    median(times)
}

async fn through_the_server(serving: &Serving) -> f64 {
    let mut times = Vec::new();
    let mut sides = Vec::new();
    for number in 0..2 {
        let owner = connection::owner(number);
        let acquire = json!({"resource": "hand/1", "owner": owner, "ttl_ms": 30000, "wait_ms": 30000});
        let release = json!({"resource": "hand/1", "owner": owner});
        sides.push((
            Connection::open(&serving.address).await,
            connection::post("/v1/acquire", &acquire),
            connection::post("/v1/release", &release),
        ));
    }
    let (mut holder, mut waiter) = (sides.remove(0), sides.remove(0));
    holder.0.ask(&holder.1).await;
    for _ in 0..HAND_OVERS {
        waiter.0.send(&waiter.1).await;
        sleep(SETTLE).await;
        let released = Instant::now();
        holder.0.send(&holder.2).await;
        waiter.0.answer().await;
        times.push(released.elapsed().as_secs_f64() * 1e6);
        holder.0.answer().await;
        std::mem::swap(&mut holder, &mut waiter);
    }
    holder.0.ask(&holder.2).await;
    median(times)
}
