//! Pairs of acquire and release: 64 tasks side by side, and one task alone. Beside the time: what a pair costs the server.

use std::time::{Duration, Instant};

use leasehold_bench::{Rate, Table, lease_pairs, median, median_ratio, rate};
use leasehold_testkit::servers::RedisServer;

use crate::bare::{Bare, DriverConnection};

pub(crate) const TASKS: usize = 64;
pub(crate) const ROUND: Duration = Duration::from_millis(400);
pub(crate) const ROUNDS: usize = 21;

pub(crate) async fn measure(server: &RedisServer, table: &mut Table) {
    let bare = Bare::connect(server.port()).await;
    let leases = leasehold::connect(&server.url()).await.unwrap();
    for (tasks, name) in [(TASKS, "64 tasks"), (1, "one after the other")] {
        // The two alternate, so that load on the machine slows both.
        let (mut theirs, mut ours) = (Figures::default(), Figures::default());
        for _ in 0..ROUNDS {
            let before = ServerCost::so_far(server);
            theirs.add(rate(tasks, |number| bare_pairs(bare.clone(), number)).await, server, before);
            let before = ServerCost::so_far(server);
            ours.add(rate(tasks, |number| lease_pairs(leases.clone(), number, ROUND)).await, server, before);
        }
        theirs.print(table, &format!("{name}: bare"));
        ours.print(table, &format!("{name}: leasehold"));
        let cpu = median_ratio(&ours.server_micros, &theirs.server_micros);
        let ratio = median_ratio(&ours.per_second, &theirs.per_second);
        if tasks == 1 {
            let ratio = 1.0 / ratio;
            let target = format!("{name}: time of a pair, to bare");
            table.target(&target, &format!("{ratio:.3}"), "≤ 1.2", ratio <= 1.2);
        } else {
            let target = format!("{name}: pairs a second, to bare");
            table.target(&target, &format!("{ratio:.3}"), "≥ 0.95", ratio >= 0.95);
        }
        let target = format!("{name}: processor time of the server for a pair, to bare");
        table.target(&target, &format!("{cpu:.3}"), "≤ 1.5", cpu <= 1.5);
    }
}

/// The figures of one variant, round by round, each for one pair.
#[derive(Default)]
struct Figures {
    per_second: Vec<f64>,
    client_micros: Vec<f64>,
    server_micros: Vec<f64>,
    script_micros: Vec<f64>,
    commands: Vec<f64>,
    bytes_in: Vec<f64>,
}

impl Figures {
    fn add(&mut self, rate: Rate, server: &RedisServer, before: ServerCost) {
        let after = ServerCost::so_far(server);
        let pairs = rate.per_second * ROUND.as_secs_f64();
        self.per_second.push(rate.per_second);
        self.client_micros.push(rate.cpu_micros);
        self.server_micros.push((after.cpu_micros - before.cpu_micros) / pairs);
        self.script_micros.push((after.script_micros - before.script_micros) / pairs);
        self.commands.push((after.commands - before.commands) / pairs);
        self.bytes_in.push((after.bytes_in - before.bytes_in) / pairs);
    }

    fn print(&self, table: &Table, name: &str) {
        let of = |figures: &Vec<f64>| median(figures.clone());
        let (per_second, client, server) =
            (of(&self.per_second), of(&self.client_micros), of(&self.server_micros));
        table.row(&format!("{name}, pairs a second"), &format!("{per_second:.0}"));
        table.row(
            "  processor time of client and server for a pair",
            &format!("{client:.1} + {server:.1} µs"),
        );
        table.row(
            "  in the server for a pair: scripts, commands, bytes in",
            &format!(
                "{:.1} µs, {:.1}, {:.0}",
                of(&self.script_micros),
                of(&self.commands),
                of(&self.bytes_in)
            ),
        );
    }
}

/// What the server has spent since its start.
#[derive(Clone, Copy)]
struct ServerCost {
    cpu_micros: f64,
    /// Time in scripts, with the commands that they call.
    script_micros: f64,
    commands: f64,
    bytes_in: f64,
}

impl ServerCost {
    fn so_far(server: &RedisServer) -> ServerCost {
        let info = server.command(&["INFO", "everything"]);
        let field = |name: &str| {
            let value = info.lines().find_map(|line| line.trim().strip_prefix(name)?.strip_prefix(':'));
            value.and_then(|value| value.parse::<f64>().ok()).unwrap_or(0.0)
        };
        // `cmdstat_get:calls=1,usec=2,…`
        let number = |line: &str, name: &str| -> Option<f64> {
            line.split(name).nth(1)?.split(',').next()?.parse().ok()
        };
        let statistics = || info.lines().filter(|line| line.starts_with("cmdstat_"));
        let of_clients = |line: &&str| !line.starts_with("cmdstat_info");
        let scripts = statistics().filter(|line| line.starts_with("cmdstat_eval"));
        ServerCost {
            cpu_micros: (field("used_cpu_sys") + field("used_cpu_user")) * 1e6,
            script_micros: scripts.filter_map(|line| number(line, "usec=")).sum(),
            commands: statistics().filter(of_clients).filter_map(|line| number(line, "calls=")).sum(),
            bytes_in: field("total_net_input_bytes"),
        }
    }
}

/// Pairs with the bare scripts, until [`ROUND`] has passed. Returns how many it completed.
pub(crate) async fn bare_pairs<C: DriverConnection>(mut bare: Bare<C>, number: usize) -> u64 {
    let (resource, owner) = (format!("bare/{number}"), format!("{number:032x}"));
    let (started, mut done) = (Instant::now(), 0);
    while started.elapsed() < ROUND {
        bare.pair(&resource, &owner).await;
        done += 1;
    }
    done
}
