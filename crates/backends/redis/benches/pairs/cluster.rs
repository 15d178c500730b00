//! Acquire and release on a cluster of three primaries, beside the bare scripts (`bare.rs`) called in two ways:
//! through the driver's own cluster client, and through a connection to the node that is known to have the
//! slot.

use leasehold_bench::{Rate, Table, lease_pairs, median, median_ratio, rate};
use leasehold_testkit::servers::RedisCluster;

use crate::{
    bare::Bare,
    pairs::{ROUND, ROUNDS, TASKS, bare_pairs},
};

/// The figures of one variant, round by round.
#[derive(Default)]
struct VariantFigures {
    /// Pairs a second.
    pairs: Vec<f64>,
    /// Microseconds of the client's CPU time for one pair.
    client: Vec<f64>,
    /// Microseconds of the servers' CPU time for one pair.
    servers: Vec<f64>,
}

impl VariantFigures {
    fn add(&mut self, rate: Rate, server_seconds: f64) {
        self.pairs.push(rate.per_second);
        self.client.push(rate.cpu_micros);
        self.servers.push(server_seconds * 1e6 / (rate.per_second * ROUND.as_secs_f64()));
    }

    fn print(&self, table: &Table, name: &str) {
        let (client, servers) = (median(self.client.clone()), median(self.servers.clone()));
        table.row(&format!("{name}, pairs a second"), &format!("{:.0}", median(self.pairs.clone())));
        table.row(
            "  processor time of client and servers for a pair",
            &format!("{client:.1} + {servers:.1} µs"),
        );
    }

    /// How many times as many pairs a second as the other variant.
    fn ratio_to(&self, other: &VariantFigures) -> f64 {
        median_ratio(&self.pairs, &other.pairs)
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
        (VariantFigures::default(), VariantFigures::default(), VariantFigures::default());
    for _ in 0..ROUNDS {
        let start = server_time(&cluster);
        let rated = rate(TASKS, |number| bare_pairs(driver.clone(), number)).await;
        let one = server_time(&cluster);
        by_driver.add(rated, one - start);
        let rated = rate(TASKS, |number| bare_pairs(known[number].clone(), number)).await;
        let two = server_time(&cluster);
        by_map.add(rated, two - one);
        let rated = rate(TASKS, |number| lease_pairs(leases.clone(), number, ROUND)).await;
        ours.add(rated, server_time(&cluster) - two);
    }
    by_driver.print(table, "bare scripts, the driver's client");
    by_map.print(table, "bare scripts, the map known");
    ours.print(table, "leasehold");
    let (ratio, to_known) = (ours.ratio_to(&by_driver), ours.ratio_to(&by_map));
    table.row("pairs a second, to bare with the map known", &format!("{to_known:.3}"));
    let name = "pairs a second, to bare with the driver's client";
    table.target(name, &format!("{ratio:.3}"), "≥ 0.9", ratio >= 0.9);
}

/// CPU seconds of all nodes so far.
fn server_time(cluster: &RedisCluster) -> f64 {
    let used = |text: &str| {
        let lines = text.lines().filter_map(|line| line.trim().split_once(':'));
        let main = lines.filter(|(name, _)| matches!(*name, "used_cpu_sys" | "used_cpu_user"));
        main.filter_map(|(_, seconds)| seconds.parse::<f64>().ok()).sum::<f64>()
    };
    cluster.nodes.iter().map(|node| used(&node.command(&["INFO", "cpu"]))).sum()
}
