//! A seed replays exactly, the engine passes, and every planted bug is found.

use leasehold_sim::{run_quorum_seed, run_seed};

fn passes(seeds: impl IntoIterator<Item = u64>) {
    for seed in seeds {
        let report = run_seed(seed, false);
        assert_eq!(
            report.violation, None,
            "replay: cargo run --release -p leasehold-sim -- --seed {seed} --trace"
        );
        assert!(report.counts["grants checked"] > 0, "seed {seed} did nothing");
    }
}

#[test]
fn a_seed_replays_exactly() {
    for seed in [1, 7, 12, 42] {
        let (first, again) = (run_seed(seed, false), run_seed(seed, false));
        assert_eq!((first.hash, first.polls, first.counts), (again.hash, again.polls, again.counts));
    }
    assert_ne!(run_seed(1, false).hash, run_seed(2, false).hash);
}

/// In two halves, for two cores.
#[test]
fn the_engine_passes_the_first_hundred_and_fifty_seeds() {
    passes(1..=150);
}

#[test]
fn the_engine_passes_the_next_hundred_and_fifty_seeds() {
    passes(151..=300);
}

/// Each of these found a bug once; the commit that fixed it names the seed.
#[test]
fn seeds_that_found_a_bug_pass() {
    passes([
        434, 472, 580, 587, 660, 1208, 1646, 1718, 1746, 2071, 2678, 2848, 2856, 5106, 5541, 7441, 9976,
        26_993, 30_855, 41_138,
    ]);
}

fn quorums_pass(seeds: impl IntoIterator<Item = u64>) {
    for seed in seeds {
        let report = run_quorum_seed(seed, false);
        assert_eq!(
            report.violation, None,
            "replay: cargo run --release -p leasehold-sim -- --quorum --seed {seed} --trace"
        );
        assert!(report.counts["grants checked"] > 0, "seed {seed} did nothing");
    }
}

#[test]
fn a_quorum_passes_the_first_seeds() {
    quorums_pass(1..=25);
}

#[test]
fn a_seed_over_a_quorum_replays_exactly() {
    let (first, again) = (run_quorum_seed(3, false), run_quorum_seed(3, false));
    assert_eq!((first.hash, first.polls, first.counts), (again.hash, again.polls, again.counts));
}
