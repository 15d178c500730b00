//! Acquire and release on a cluster of three primaries, beside the same scripts called bare: through the driver's own
//! client of a cluster, and through a connection to each node by one who has looked up before who has which resource.

use leasehold_testkit::servers::RedisCluster;

use crate::{
    Table,
    bare::Bare,
    pairs::{ROUND, ROUNDS, TASKS, bare_pairs, median, our_pairs, rate},
};

/// One way to do it, round by round.
#[derive(Default)]
struct Direction {
    pairs: Vec<f64>,
    client: Vec<f64>,
    servers: Vec<f64>,
}

impl Direction {
    fn add(&mut self, (pairs, client): (f64, f64), servers: f64) {
        self.pairs.push(pairs);
        self.client.push(client);
        self.servers.push(servers * 1e6 / (pairs * ROUND.as_secs_f64()));
    }

    fn print(&self, table: &Table, name: &str) {
        let (client, servers) = (median(self.client.clone()), median(self.servers.clone()));
        table.row(&format!("{name}, pairs a second"), &format!("{:.0}", median(self.pairs.clone())));
        table.row(
            "  processor time of client and servers for a pair",
            &format!("{client:.1} + {servers:.1} µs"),
        );
    }

    /// How many times as many pairs a second as the other: each round beside the same round.
    fn to(&self, other: &Direction) -> f64 {
        median(self.pairs.iter().zip(&other.pairs).map(|(ours, theirs)| ours / theirs).collect())
    }
}

pub(crate) async fn measure(table: &mut Table) {
    let cluster = RedisCluster::without_replicas();
    let mut nodes = Vec::new();
    for node in &cluster.nodes {
        nodes.push(Bare::connect(node.port()).await);
    }
    let owner = |number| nodes[cluster.owner(cluster.slot(&format!("bare/{number}")))].clone();
    let known: Vec<Bare> = (0..TASKS).map(owner).collect();
    let ports: Vec<u16> = cluster.nodes.iter().map(|node| node.port()).collect();
    let driver = nodes[0].on_cluster(&ports).await;
    let leases = leasehold::connect(&cluster.url()).await.unwrap();
    let (mut by_driver, mut by_map, mut ours) =
        (Direction::default(), Direction::default(), Direction::default());
    for _ in 0..ROUNDS {
        let start = server_time(&cluster);
        let rated = rate(TASKS, |number| bare_pairs(driver.clone(), number)).await;
        let one = server_time(&cluster);
        by_driver.add(rated, one - start);
        let rated = rate(TASKS, |number| bare_pairs(known[number].clone(), number)).await;
        let two = server_time(&cluster);
        by_map.add(rated, two - one);
        let rated = rate(TASKS, |number| our_pairs(leases.clone(), number)).await;
        ours.add(rated, server_time(&cluster) - two);
    }
    by_driver.print(table, "bare scripts, the driver's client");
    by_map.print(table, "bare scripts, the map known");
    ours.print(table, "leasehold");
    let (ratio, to_known) = (ours.to(&by_driver), ours.to(&by_map));
    table.row("pairs a second, to bare with the map known", &format!("{to_known:.3}"));
    let name = "pairs a second, to bare with the driver's client";
    table.target(name, &format!("{ratio:.3}"), "≥ 0.9", ratio >= 0.9);
}

/// Seconds that the nodes have spent on a processor so far.
fn server_time(cluster: &RedisCluster) -> f64 {
    let used = |text: &str| {
        let lines = text.lines().filter_map(|line| line.trim().split_once(':'));
        let main = lines.filter(|(name, _)| matches!(*name, "used_cpu_sys" | "used_cpu_user"));
        main.filter_map(|(_, seconds)| seconds.parse::<f64>().ok()).sum::<f64>()
    };
    cluster.nodes.iter().map(|node| used(&node.command(&["INFO", "cpu"]))).sum()
}
