//! Acquire and release on a cluster of three primaries, beside the same scripts called bare: a connection to each node,
//! and who has which resource looked up before.

use leasehold_testkit::servers::RedisCluster;

use crate::{
    Table,
    bare::Bare,
    pairs::{ROUND, ROUNDS, TASKS, bare_pairs, median, our_pairs, rate},
};

pub(crate) async fn measure(table: &mut Table) {
    let cluster = RedisCluster::without_replicas();
    let mut nodes = Vec::new();
    for node in &cluster.nodes {
        nodes.push(Bare::connect(node.port()).await);
    }
    let owner = |number| nodes[cluster.owner(cluster.slot(&format!("bare/{number}")))].clone();
    let bare: Vec<Bare> = (0..TASKS).map(owner).collect();
    let leases = leasehold::connect(&cluster.url()).await.unwrap();
    let (mut theirs, mut ours, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    let (mut their_cpu, mut our_cpu) = (Vec::new(), Vec::new());
    let (mut their_servers, mut our_servers) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let start = server_time(&cluster);
        let (before, cpu) = rate(TASKS, |number| bare_pairs(bare[number].clone(), number)).await;
        their_cpu.push(cpu);
        let middle = server_time(&cluster);
        let (pairs, cpu) = rate(TASKS, |number| our_pairs(leases.clone(), number)).await;
        our_cpu.push(cpu);
        let round = ROUND.as_secs_f64();
        their_servers.push((middle - start) * 1e6 / (before * round));
        our_servers.push((server_time(&cluster) - middle) * 1e6 / (pairs * round));
        theirs.push(before);
        ours.push(pairs);
        ratios.push(pairs / before);
    }
    let (ratio, micros) = (median(ratios), |time: f64| format!("{time:.1} µs"));
    let (bare_client, our_client) = (median(their_cpu), median(our_cpu));
    let (bare_all, our_all) = (bare_client + median(their_servers), our_client + median(our_servers));
    table.row("bare scripts, processor time of the client for a pair", &micros(bare_client));
    table.row("leasehold, processor time of the client for a pair", &micros(our_client));
    table.row("bare scripts, with the servers'", &micros(bare_all));
    table.row("leasehold, with the servers'", &micros(our_all));
    table.row("bare scripts on three primaries, pairs a second", &format!("{:.0}", median(theirs)));
    table.row("leasehold on three primaries, pairs a second", &format!("{:.0}", median(ours)));
    table.target("three primaries: pairs a second, to bare", &format!("{ratio:.3}"), "≥ 0.9", ratio >= 0.9);
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
