//! Pairs of acquire and release: one after the other, and on 64 connections at once.

use std::time::{Duration, Instant};

use leasehold_bench::{Table, lease_pairs, median, median_ratio, rate};
use serde_json::json;

use crate::{
    connection::{self, Connection},
    serving::Serving,
};

const ROUNDS: usize = 9;
const ROUND: Duration = Duration::from_millis(700);
const CONNECTIONS: usize = 64;
/// A request that needs no store.
const HEALTH: &str = "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n";

/// The requests of one connection.
struct Pair {
    acquire: String,
    release: String,
}

impl Pair {
    fn new(number: usize) -> Pair {
        let (resource, owner) = (format!("pair/{number}"), connection::owner(number));
        let acquire = json!({"resource": resource, "owner": owner, "ttl_ms": 30000});
        let release = json!({"resource": resource, "owner": owner});
        Pair {
            acquire: connection::post("/v1/acquire", &acquire),
            release: connection::post("/v1/release", &release),
        }
    }

    /// Two requests that need no store: what a pair costs without leases.
    fn bare() -> Pair {
        Pair { acquire: HEALTH.to_owned(), release: HEALTH.to_owned() }
    }

    /// Acquires and releases until the time is over. Returns how many pairs it completed.
    async fn repeat(&self, connection: &mut Connection, lasting: Duration) -> u64 {
        let (started, mut done) = (Instant::now(), 0);
        while started.elapsed() < lasting {
            connection.ask(&self.acquire).await;
            connection.ask(&self.release).await;
            done += 1;
        }
        done
    }
}

/// The median time of one call, in microseconds.
async fn micros(mut call: impl AsyncFnMut()) -> f64 {
    let (started, mut times) = (Instant::now(), Vec::new());
    while started.elapsed() < ROUND {
        let before = Instant::now();
        call().await;
        times.push(before.elapsed().as_secs_f64() * 1e6);
    }
    median(times)
}

pub(crate) async fn measure(table: &mut Table) {
    let serving = Serving::start();
    let leases = leasehold::connect(&serving.redis.url()).await.unwrap();
    one_by_one(&serving, &leases, table).await;
    at_once(&serving, &leases, table).await;
}

async fn one_by_one(serving: &Serving, leases: &leasehold::Client, table: &mut Table) {
    table.title("a pair of acquire and release, one after the other");
    let mut connection = Connection::open(&serving.address).await;
    let pair = Pair::new(0);
    let (mut bare, mut library, mut server) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        bare.push(micros(async || connection.ask(HEALTH).await).await);
        library.push(
            micros(async || {
                leases.lease("ours", "0").acquire().await.unwrap().release().await.map(drop).unwrap();
            })
            .await,
        );
        server.push(
            micros(async || {
                connection.ask(&pair.acquire).await;
                connection.ask(&pair.release).await;
            })
            .await,
        );
    }
    let added: Vec<f64> = server.iter().zip(&library).map(|(server, library)| server - library).collect();
    let ratio = median_ratio(&added, &bare);
    table.row("a bare HTTP round trip (/healthz), p50", &format!("{:.0} µs", median(bare)));
    table.row("the library, p50", &format!("{:.0} µs", median(library)));
    table.row("the server, p50", &format!("{:.0} µs", median(server)));
    let name = "added by the server, in bare HTTP round trips";
    table.target(name, &format!("× {ratio:.2}"), "< × 2.5", ratio < 2.5);
}

async fn at_once(serving: &Serving, leases: &leasehold::Client, table: &mut Table) {
    table.title("pairs a second, 64 at once");
    let (mut library, mut server, mut bare) = (Vec::new(), Vec::new(), Vec::new());
    let over_http = async |pair: fn(usize) -> Pair| {
        let repeat = |number| {
            let address = serving.address.clone();
            async move { pair(number).repeat(&mut Connection::open(&address).await, ROUND).await }
        };
        rate(CONNECTIONS, repeat).await.per_second
    };
    for _ in 0..ROUNDS {
        library.push(rate(CONNECTIONS, |number| lease_pairs(leases.clone(), number, ROUND)).await.per_second);
        server.push(over_http(Pair::new).await);
        bare.push(over_http(|_| Pair::bare()).await);
    }
    let ratio = median_ratio(&server, &library);
    let to_bare = median_ratio(&server, &bare);
    table.row("the library, 64 tasks", &format!("{:.0}", median(library)));
    table.row("two bare requests (/healthz), 64 connections", &format!("{:.0}", median(bare)));
    table.row("the server, 64 connections", &format!("{:.0}", median(server)));
    table.row("the server, in pairs of bare requests", &format!("× {to_bare:.2}"));
    table.target("the server, in pairs of the library", &format!("× {ratio:.2}"), "≥ × 0.5", ratio >= 0.5);
}
