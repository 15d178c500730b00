//! Acquire and release on a cluster of three primaries, beside the same scripts called bare: a connection to each node,
//! and who has which resource looked up before.

use leasehold_testkit::servers::RedisCluster;

use crate::{
    Table,
    bare::Bare,
    pairs::{ROUNDS, TASKS, bare_pairs, median, our_pairs, rate},
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
    for _ in 0..ROUNDS {
        let (before, cpu) = rate(TASKS, |number| bare_pairs(bare[number].clone(), number)).await;
        their_cpu.push(cpu);
        let (pairs, cpu) = rate(TASKS, |number| our_pairs(leases.clone(), number)).await;
        our_cpu.push(cpu);
        theirs.push(before);
        ours.push(pairs);
        ratios.push(pairs / before);
    }
    let ratio = median(ratios);
    table.row(
        "bare scripts, processor time of the client for a pair",
        &format!("{:.1} µs", median(their_cpu)),
    );
    table.row("leasehold, processor time of the client for a pair", &format!("{:.1} µs", median(our_cpu)));
    table.row("bare scripts on three primaries, pairs a second", &format!("{:.0}", median(theirs)));
    table.row("leasehold on three primaries, pairs a second", &format!("{:.0}", median(ours)));
    table.target("three primaries: pairs a second, to bare", &format!("{ratio:.3}"), "≥ 0.9", ratio >= 0.9);
}
