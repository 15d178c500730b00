//! Acquire on a quorum of five nodes, beside the same script sent to the same nodes without the backend and
//! the engine.

use std::{
    future::{Future, poll_fn},
    pin::Pin,
    task::Poll,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use leasehold::Client;
use leasehold_bench::{Table, median, median_ratio};
use leasehold_testkit::{
    Proxy,
    servers::{RedisNodes, RedisServer},
};
use redis::{Cmd, RedisResult, Value, aio::MultiplexedConnection};

const VOTE: &str =
    concat!("#!lua\n", include_str!("../../scripts/node.lua"), include_str!("../../scripts/node_vote.lua"));
const UNDO: &str = concat!(
    "#!lua flags=allow-oom\n",
    include_str!("../../scripts/node.lua"),
    include_str!("../../scripts/node_undo.lua")
);
const SIZE: usize = 5;
const MAJORITY: usize = 3;
const ROUNDS: usize = 15;
const SAMPLES: usize = 60;
/// The pause between two samples, so that the rest of the work of one sample is not counted with the next.
const SAMPLE_PAUSE: Duration = Duration::from_micros(300);

pub(crate) async fn measure(table: &mut Table) {
    let nodes = RedisNodes::long_lived(SIZE, Duration::from_secs(600));
    let ports: Vec<u16> = nodes.servers.iter().map(RedisServer::port).collect();
    let healthy = compare(table, "five nodes", &nodes, &ports, 1.0).await;
    let proxy = Proxy::start(ports[0], 7).await;
    let through: Vec<u16> = std::iter::once(proxy.port()).chain(ports[1..].iter().copied()).collect();
    // Connected before the delay: the benchmark is about a node that becomes slow later.
    let (bare, leases) = connect(&nodes, &through).await;
    proxy.delay(Duration::from_millis(50));
    compare_on(table, "one of five up to 50 ms slower each way", bare, &leases, healthy).await;
    drop(proxy);
    let (bare, leases) = connect(&nodes, &ports).await;
    nodes.servers[..2].iter().for_each(RedisServer::freeze);
    compare_on(table, "two of five stopped", bare, &leases, healthy).await;
    nodes.servers[..2].iter().for_each(RedisServer::thaw);
}

async fn connect(nodes: &RedisNodes, ports: &[u16]) -> (BareQuorum, Client) {
    let bare = BareQuorum::connect(nodes, ports).await;
    let leases = leasehold::connect(&RedisNodes::url_of(ports.iter().copied())).await.unwrap();
    (bare, leases)
}

async fn compare(table: &mut Table, name: &str, nodes: &RedisNodes, ports: &[u16], healthy: f64) -> f64 {
    let (bare, leases) = connect(nodes, ports).await;
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

/// A connection to each node, which has the scripts loaded.
struct BareQuorum {
    nodes: Vec<(MultiplexedConnection, String)>,
    vote: String,
    undo: String,
    attempt: u64,
}

impl BareQuorum {
    async fn connect(nodes: &RedisNodes, ports: &[u16]) -> BareQuorum {
        let mut bare = BareQuorum { nodes: Vec::new(), vote: String::new(), undo: String::new(), attempt: 0 };
        for (server, &port) in nodes.servers.iter().zip(ports) {
            let address = redis::ConnectionAddr::Tcp("127.0.0.1".to_owned(), port);
            let info = redis::IntoConnectionInfo::into_connection_info(address).unwrap();
            let info = info.set_tcp_settings(redis::io::tcp::TcpSettings::default().set_nodelay(true));
            let client = redis::Client::open(info).unwrap();
            let settings = redis::AsyncConnectionConfig::new().set_response_timeout(None);
            let mut connection =
                client.get_multiplexed_async_connection_with_config(&settings).await.unwrap();
            let mut load = async |text: &str| -> String {
                redis::cmd("SCRIPT").arg("LOAD").arg(text).query_async(&mut connection).await.unwrap()
            };
            (bare.vote, bare.undo) = (load(VOTE).await, load(UNDO).await);
            let info = server.command(&["INFO", "server"]);
            let run = info.lines().find_map(|line| line.trim_end().strip_prefix("run_id:")).unwrap();
            bare.nodes.push((connection, run.to_owned()));
        }
        bare
    }

    /// Acquires once and releases. Returns the microseconds of the acquire.
    async fn acquire(&mut self) -> f64 {
        let key = |part: &str| format!("lock:v1:{{redlock/bare}}:{part}");
        self.attempt += 1;
        let (owner, attempt) = (format!("{:032x}", self.attempt), format!("{:016x}", self.attempt));
        let started = Instant::now();
        let proposal = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_micros().to_string();
        let asks = self.nodes.iter().map(|(connection, run)| {
            let mut call = redis::cmd("EVALSHA");
            call.arg(&self.vote).arg(5).arg(key("owner")).arg(key("register")).arg("lock:v1:birth");
            call.arg(key(&format!("grave:{owner}"))).arg(key(&format!("grave:{owner}:{attempt}")));
            call.arg("vote").arg(&owner).arg(&attempt).arg(30_000).arg(&proposal).arg("1@host").arg("");
            call.arg(run).arg(600_000_000).arg(7_200_000);
            send(connection.clone(), call)
        });
        let yes = first_of(asks.collect(), MAJORITY).await;
        let took = started.elapsed().as_secs_f64() * 1e6;
        for answer in yes {
            let Ok(Value::Array(fields)) = answer else { panic!("{answer:?}") };
            assert_eq!(fields[1], Value::BulkString(b"yours".to_vec()));
        }
        let undo = self.nodes.iter().map(|(connection, _)| {
            let mut call = redis::cmd("EVALSHA");
            call.arg(&self.undo).arg(2).arg(key("owner")).arg(key("grave:none"));
            call.arg(&owner).arg("").arg(-1).arg(key("news"));
            send(connection.clone(), call)
        });
        first_of(undo.collect(), MAJORITY).await;
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
