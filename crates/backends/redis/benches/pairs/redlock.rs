//! Acquire on a quorum of five nodes, beside what the documents of Redlock show: `SET NX PX` sent to the same nodes, and a
//! script that compares and deletes. It has no fencing tokens, and no memory of a node that restarts.

use std::{
    future::{Future, poll_fn},
    pin::Pin,
    task::Poll,
    time::{Duration, Instant},
};

use leasehold::Client;
use leasehold_bench::{Table, median, median_ratio};
use leasehold_testkit::{
    Proxy,
    servers::{RedisNodes, RedisServer},
};
use redis::{Cmd, RedisResult, Value, aio::MultiplexedConnection};

use crate::bare::RELEASE;

const SIZE: usize = 5;
const MAJORITY: usize = 3;
const ROUNDS: usize = 15;
const SAMPLES: usize = 60;
/// The pause between two samples, so that the rest of the work of one sample is not counted with the next.
const SAMPLE_PAUSE: Duration = Duration::from_micros(300);

pub(crate) async fn measure(table: &mut Table) {
    let nodes = RedisNodes::long_lived(SIZE, Duration::from_secs(600));
    let ports: Vec<u16> = nodes.servers.iter().map(RedisServer::port).collect();
    let healthy = compare(table, "five nodes", &ports, 1.0).await;
    let proxy = Proxy::start(ports[0], 7).await;
    let through: Vec<u16> = std::iter::once(proxy.port()).chain(ports[1..].iter().copied()).collect();
    // Connected before the delay: the benchmark is about a node that becomes slow later.
    let (bare, leases) = connect(&through).await;
    proxy.delay(Duration::from_millis(50));
    compare_on(table, "one of five up to 50 ms slower each way", bare, &leases, healthy).await;
    drop(proxy);
    let (bare, leases) = connect(&ports).await;
    nodes.servers[..2].iter().for_each(RedisServer::freeze);
    compare_on(table, "two of five stopped", bare, &leases, healthy).await;
    nodes.servers[..2].iter().for_each(RedisServer::thaw);
}

async fn connect(ports: &[u16]) -> (BareQuorum, Client) {
    let bare = BareQuorum::connect(ports).await;
    let leases = leasehold::connect(&RedisNodes::url_of(ports.iter().copied())).await.unwrap();
    (bare, leases)
}

async fn compare(table: &mut Table, name: &str, ports: &[u16], healthy: f64) -> f64 {
    let (bare, leases) = connect(ports).await;
    compare_on(table, name, bare, &leases, healthy).await
}

/// Returns the microseconds of a bare acquire. `healthy` is that figure with five healthy nodes.
async fn compare_on(
    table: &mut Table,
    name: &str,
    mut bare: BareQuorum,
    leases: &Client,
    healthy: f64,
) -> f64 {
    let (mut theirs, mut ours) = (Vec::new(), Vec::new());
    for round in 0..=ROUNDS {
        // The two alternate, so that load on the machine slows both.
        let (mut bare_round, mut our_round) = (Vec::new(), Vec::new());
        for _ in 0..SAMPLES {
            bare_round.push(bare.acquire().await);
            tokio::time::sleep(SAMPLE_PAUSE).await;
        }
        for _ in 0..SAMPLES {
            let started = Instant::now();
            let lease = leases.lease("redlock", "ours").acquire().await.unwrap();
            our_round.push(started.elapsed().as_secs_f64() * 1e6);
            lease.release().await.unwrap();
            tokio::time::sleep(SAMPLE_PAUSE).await;
        }
        // The first round is the warm-up: in it the clients notice a dead node.
        if round > 0 {
            theirs.push(median(bare_round));
            ours.push(median(our_round));
        }
    }
    let ratio = median_ratio(&ours, &theirs);
    let (theirs, ours) = (median(theirs), median(ours));
    table.row(&format!("{name}: bare, until a majority has answered"), &format!("{theirs:.1} µs"));
    table.row(&format!("{name}: leasehold, acquire"), &format!("{ours:.1} µs"));
    if healthy > 1.0 {
        table.row(&format!("{name}: acquire, to bare with all well"), &format!("{:.3}", ours / healthy));
    }
    table.target(&format!("{name}: acquire, to bare"), &format!("{ratio:.3}"), "≤ 1.2", ratio <= 1.2);
    theirs
}

/// A connection to each node, which has the script of the release loaded.
struct BareQuorum {
    nodes: Vec<MultiplexedConnection>,
    release: String,
    attempt: u64,
}

impl BareQuorum {
    async fn connect(ports: &[u16]) -> BareQuorum {
        let mut bare = BareQuorum { nodes: Vec::new(), release: String::new(), attempt: 0 };
        for &port in ports {
            let address = redis::ConnectionAddr::Tcp("127.0.0.1".to_owned(), port);
            let info = redis::IntoConnectionInfo::into_connection_info(address).unwrap();
            let info = info.set_tcp_settings(redis::io::tcp::TcpSettings::default().set_nodelay(true));
            let client = redis::Client::open(info).unwrap();
            let settings = redis::AsyncConnectionConfig::new().set_response_timeout(None);
            let mut connection =
                client.get_multiplexed_async_connection_with_config(&settings).await.unwrap();
            let load = redis::cmd("SCRIPT").arg("LOAD").arg(RELEASE).query_async(&mut connection).await;
            bare.release = load.unwrap();
            bare.nodes.push(connection);
        }
        bare
    }

    /// Acquires once and releases. Returns the microseconds of the acquire.
    async fn acquire(&mut self) -> f64 {
        const LOCK: &str = "bare:redlock";
        self.attempt += 1;
        let owner = format!("{:032x}", self.attempt);
        let started = Instant::now();
        let asks = self.nodes.iter().map(|connection| {
            let mut call = redis::cmd("SET");
            call.arg(LOCK).arg(&owner).arg("NX").arg("PX").arg(30_000);
            send(connection.clone(), call)
        });
        let yes = first_of(asks.collect(), MAJORITY).await;
        let took = started.elapsed().as_secs_f64() * 1e6;
        for answer in yes {
            assert_eq!(answer.unwrap(), Value::Okay);
        }
        let release = self.nodes.iter().map(|connection| {
            let mut call = redis::cmd("EVALSHA");
            call.arg(&self.release).arg(1).arg(LOCK).arg(&owner);
            send(connection.clone(), call)
        });
        first_of(release.collect(), MAJORITY).await;
        took
    }
}

type PendingReply = Pin<Box<dyn Future<Output = RedisResult<Value>>>>;

fn send(mut connection: MultiplexedConnection, call: Cmd) -> PendingReply {
    Box::pin(async move { connection.send_packed_command(&call).await })
}

/// Waits for the first `needed` replies.
async fn first_of(mut pending: Vec<PendingReply>, needed: usize) -> Vec<RedisResult<Value>> {
    let mut answers = Vec::new();
    poll_fn(|cx| {
        pending.retain_mut(|answer| match answer.as_mut().poll(cx) {
            Poll::Ready(answer) => {
                answers.push(answer);
                false
            }
            Poll::Pending => true,
        });
        if answers.len() >= needed { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    answers
}
