//! Interleaved repetitions of one work.
//!
//! 1. The store of the work is started: fresh, for this work alone.
//! 2. The processes of all peers are started and connect. They stay for all repetitions, so that a compiler
//!    that optimises while it runs has done so.
//! 3. Each peer warms up.
//! 4. The repetitions: each peer in turn, again and again, so that load on the machine slows all of them.
//!
//! A fair line and kept leases are loads that never pause. There each repetition has a process of its own, so
//! that no peer disturbs the next.

use std::{collections::BTreeMap, io::Write as _, time::Duration};

use leasehold_bench::percentile;
use tokio::runtime::Runtime;

use crate::{
    grants::{changes, merge, read_grants, spread},
    peers::{Peer, Program, Programs},
    results::{Row, Table},
    stores::{Store, Usage},
    worker::{Measured, Worker},
    works::{Kind, StoreKind, Work},
};

/// How long a process may take to connect, or to acquire all that it is to keep.
const READY_TIMEOUT: Duration = Duration::from_secs(240);
/// How long a run may take beyond its time: pollers that sleep, a line that drains.
const RUN_TIMEOUT: Duration = Duration::from_secs(60);
/// The Java compiler needs this before it is as fast as it gets, on top of the usual warm-up.
const JAVA_WARM_UP: Duration = Duration::from_secs(3);
/// Renewals come every 10 s, or every 30 s: a window that has the same number of each.
const KEEP_WINDOW: Duration = Duration::from_secs(30);

/// How much is measured.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    /// Repetitions of each work.
    pub repetitions: usize,
    /// How long each one lasts.
    pub lasting: Duration,
    /// Repetitions of a fair line and of kept leases, which have a process of their own.
    pub long_repetitions: usize,
    /// How long a repetition of a fair line lasts, after a warm-up of half of that.
    pub fair_lasting: Duration,
    /// Commands of each shell in one repetition.
    pub commands: usize,
}

/// The figures of one repetition.
pub type Figures = BTreeMap<&'static str, f64>;

/// Measures works.
#[derive(Debug)]
pub struct Runner {
    /// The programs of the peers.
    pub programs: Programs,
    /// How much is measured.
    pub effort: Effort,
    /// Runs the proxy in front of a slow node.
    pub runtime: Runtime,
    /// Whether progress is shown on one line that is written over.
    pub terminal: bool,
    /// The versions of the servers that were started.
    pub versions: BTreeMap<String, String>,
}

/// The processes of one peer.
struct Group {
    peer: &'static Peer,
    workers: Vec<Worker>,
}

impl Runner {
    /// Measures one work with these peers.
    pub fn measure(&mut self, work: &Work, peers: &[&'static Peer]) -> Table {
        let rows = match self.start_store(work.store) {
            Err(why) => peers.iter().map(|peer| Row::not_run(peer.name, why.clone())).collect(),
            Ok(store) => {
                if let Some((name, version)) = store.version.split_once(' ') {
                    self.versions.insert(name.to_owned(), version.to_owned());
                }
                match work.kind {
                    Kind::Shell => self.shell(work, peers, &store),
                    Kind::Fair { .. } | Kind::Keep { .. } => self.one_at_a_time(work, peers, &store),
                    Kind::Pair { .. } | Kind::Handover { .. } => self.side_by_side(work, peers, &store),
                }
            }
        };
        self.progress("");
        Table { work: work.name.to_owned(), rows }
    }

    fn start_store(&mut self, kind: StoreKind) -> Result<Store, String> {
        let mut store = Store::start(kind, &self.runtime)?;
        if kind == StoreKind::Served {
            store.serve(&self.programs.command(Program::Shell)?)?;
        }
        Ok(store)
    }

    fn side_by_side(&mut self, work: &Work, peers: &[&'static Peer], store: &Store) -> Vec<Row> {
        let mut started: Vec<(&'static Peer, Result<Group, String>)> = Vec::new();
        for peer in peers {
            self.progress(&format!("{}: {} starts", work.name, peer.name));
            started.push((peer, self.start(work, peer, store)));
        }
        store.injure();
        let mut rows: Vec<Row> = Vec::new();
        let mut groups: Vec<Option<Group>> = Vec::new();
        for (peer, group) in started {
            self.progress(&format!("{}: {} warms up", work.name, peer.name));
            let warm_up = if peer.program == Program::Java { JAVA_WARM_UP } else { Duration::ZERO };
            let warm = group.and_then(|mut group| {
                run_once(work, &mut group, store, self.effort.lasting + warm_up).map(|_| group)
            });
            match warm {
                Ok(group) => {
                    rows.push(Row { peer: peer.name.to_owned(), not_run: None, figures: BTreeMap::new() });
                    groups.push(Some(group));
                }
                Err(why) => {
                    rows.push(Row::not_run(peer.name, why));
                    groups.push(None);
                }
            }
        }
        for repetition in 1..=self.effort.repetitions {
            for (row, slot) in rows.iter_mut().zip(&mut groups) {
                let Some(group) = slot else { continue };
                self.progress(&format!(
                    "{}: {} of {}, {}",
                    work.name, repetition, self.effort.repetitions, group.peer.name
                ));
                match run_once(work, group, store, self.effort.lasting) {
                    Ok(figures) => row.add(&figures),
                    Err(why) => {
                        *row = Row::not_run(group.peer.name, why);
                        *slot = None;
                    }
                }
            }
        }
        rows
    }

    fn one_at_a_time(&mut self, work: &Work, peers: &[&'static Peer], store: &Store) -> Vec<Row> {
        let new_row = |peer: &&'static Peer| Row {
            peer: peer.name.to_owned(),
            not_run: None,
            figures: BTreeMap::new(),
        };
        let mut rows: Vec<Row> = peers.iter().map(new_row).collect();
        let (repetitions, lasting) = match work.kind {
            Kind::Keep { .. } => (self.effort.long_repetitions, KEEP_WINDOW),
            _ => (self.effort.long_repetitions, self.effort.fair_lasting),
        };
        for repetition in 1..=repetitions {
            for (row, peer) in rows.iter_mut().zip(peers).filter(|(row, _)| row.not_run.is_none()) {
                self.progress(&format!("{}: {repetition} of {repetitions}, {}", work.name, peer.name));
                let figures = self.start(work, peer, store).and_then(|mut group| {
                    if let Kind::Fair { .. } = work.kind {
                        let _ = run_once(work, &mut group, store, lasting / 2)?;
                    }
                    let figures = run_once(work, &mut group, store, lasting);
                    group.workers.into_iter().for_each(Worker::kill);
                    figures
                });
                store.clear();
                match figures {
                    Ok(figures) => row.add(&figures),
                    Err(why) => *row = Row::not_run(peer.name, why),
                }
            }
        }
        rows
    }

    /// Starts the processes of a peer, and waits until all of them are connected.
    fn start(&mut self, work: &Work, peer: &'static Peer, store: &Store) -> Result<Group, String> {
        let command = self.programs.command(peer.program)?;
        let (kind, processes, tasks, hold_us) = match work.kind {
            Kind::Pair { tasks } => ("pair", 1, tasks, 0),
            Kind::Handover { processes, tasks, hold_us } => ("handover", processes, tasks, hold_us),
            Kind::Fair { waiters } => ("fair", 1, waiters, 0),
            Kind::Keep { leases } => ("keep", 1, leases, 0),
            Kind::Shell => return Err("a shell has no worker".to_owned()),
        };
        let workers: Result<Vec<Worker>, String> = (0..processes)
            .map(|process| {
                let words = [
                    format!("lock={}", peer.lock),
                    format!("address={}", store.address),
                    format!("url={}", store.url),
                    format!("work={kind}"),
                    format!("tasks={tasks}"),
                    format!("hold_us={hold_us}"),
                    format!("prefix={}", peer.lock),
                    format!("process={process}"),
                ];
                Worker::start(&command, &words, &format!("{}-{}-{process}", work.name, peer.name))
            })
            .collect();
        let group = Group { peer, workers: workers? };
        for worker in &group.workers {
            worker.await_ready(READY_TIMEOUT)?;
        }
        Ok(group)
    }

    fn shell(&mut self, work: &Work, peers: &[&'static Peer], store: &Store) -> Vec<Row> {
        let programs = &mut self.programs;
        let effort = self.effort;
        crate::shell::measure(
            peers,
            store,
            effort,
            |program| programs.command(program),
            |text| {
                show_progress(self.terminal, &format!("{}: {text}", work.name));
            },
        )
    }

    fn progress(&self, text: &str) {
        show_progress(self.terminal, text);
    }
}

fn show_progress(terminal: bool, text: &str) {
    if terminal {
        print!("\r\x1b[K{text}");
        let _ = std::io::stdout().flush();
    }
}

/// Lets the processes of one peer work once.
fn run_once(work: &Work, group: &mut Group, store: &Store, lasting: Duration) -> Result<Figures, String> {
    let usage = store.usage();
    let cpu: Vec<_> = group.workers.iter().map(Worker::cpu_time).collect();
    for worker in &mut group.workers {
        worker.go(lasting)?;
    }
    let measured: Result<Vec<Measured>, String> =
        group.workers.iter().map(|worker| worker.measured(lasting + RUN_TIMEOUT)).collect();
    let measured = measured?;
    let client_cpu: Duration =
        group.workers.iter().zip(cpu).map(|(worker, cpu)| worker.cpu_time().since(cpu)).sum();
    let spent = Spent { lasting, client_cpu, before: usage, after: store.usage() };
    Ok(match work.kind {
        Kind::Keep { .. } => keep_figures(&measured, &spent, store.keys()),
        Kind::Handover { .. } | Kind::Fair { .. } => grant_figures(&measured, &spent, work),
        Kind::Pair { .. } | Kind::Shell => pair_figures(&measured, &spent),
    })
}

/// What a run has cost.
struct Spent {
    lasting: Duration,
    client_cpu: Duration,
    before: Usage,
    after: Usage,
}

impl Spent {
    fn server_cpu(&self) -> Duration {
        self.after.cpu.since(self.before.cpu)
    }

    /// The cost of one of `done` operations.
    fn of_each(&self, done: f64, figures: &mut Figures) {
        if done == 0.0 {
            return;
        }
        figures.insert("client_cpu_us", self.client_cpu.as_secs_f64() * 1e6 / done);
        figures.insert("server_cpu_us", self.server_cpu().as_secs_f64() * 1e6 / done);
        if let (Some(before), Some(after)) = (self.before.traffic, self.after.traffic) {
            let traffic = after.since(before);
            figures.insert("commands", traffic.commands / done);
            figures.insert("bytes_in", traffic.bytes_in / done);
            figures.insert("bytes_out", traffic.bytes_out / done);
        }
    }
}

fn pair_figures(measured: &[Measured], spent: &Spent) -> Figures {
    let mut figures = Figures::new();
    let done: u64 = measured.iter().map(|one| one.done).sum();
    let rate: f64 = measured.iter().map(|one| one.done as f64 * 1e9 / one.took_ns.max(1) as f64).sum();
    figures.insert("per_second", rate);
    figures.insert("errors", measured.iter().map(|one| one.errors).sum::<u64>() as f64);
    let latencies: Vec<f64> =
        measured.iter().flat_map(|one| &one.latencies_ns).map(|nanos| *nanos as f64 / 1e3).collect();
    if !latencies.is_empty() {
        figures.insert("p50_us", percentile(latencies.clone(), 50));
        figures.insert("p99_us", percentile(latencies, 99));
    }
    spent.of_each(done as f64, &mut figures);
    figures
}

fn grant_figures(measured: &[Measured], spent: &Spent, work: &Work) -> Figures {
    let grants = merge(measured.iter().map(|one| read_grants(&one.grants)));
    let seconds = spent.lasting.as_secs_f64();
    let mut figures = Figures::new();
    figures.insert("per_second", grants.len() as f64 / seconds);
    figures.insert("errors", measured.iter().map(|one| one.errors).sum::<u64>() as f64);
    figures.insert("changes_per_second", changes(&grants) as f64 / seconds);
    if let Kind::Handover { .. } = work.kind {
        figures.insert("spread", spread(&grants, work.waiters()));
    }
    spent.of_each(grants.len() as f64, &mut figures);
    figures
}

fn keep_figures(measured: &[Measured], spent: &Spent, keys: Option<u64>) -> Figures {
    let percent = |cpu: Duration| cpu.as_secs_f64() / spent.lasting.as_secs_f64() * 100.0;
    let alive: u64 = measured.iter().map(|one| one.done).sum();
    let mut figures = Figures::from([
        ("client_core_percent", percent(spent.client_cpu)),
        ("server_core_percent", percent(spent.server_cpu())),
        // Each lease has at least one key.
        ("alive", alive.min(keys.unwrap_or(alive)) as f64),
    ]);
    if let (Some(before), Some(after)) = (spent.before.traffic, spent.after.traffic) {
        let traffic = after.since(before);
        figures.insert("commands_per_second", traffic.commands / spent.lasting.as_secs_f64());
    }
    figures
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spent() -> Spent {
        let usage = Usage { cpu: crate::stores::CpuTime::default(), traffic: None };
        Spent {
            lasting: Duration::from_secs(2),
            client_cpu: Duration::from_millis(10),
            before: usage,
            after: usage,
        }
    }

    #[test]
    fn pairs_of_all_processes_are_added_up() {
        let one = Measured {
            done: 100,
            took_ns: 2_000_000_000,
            errors: 1,
            latencies_ns: vec![1_000, 2_000, 3_000],
            grants: Vec::new(),
        };
        let figures = pair_figures(&[one.clone(), one], &spent());
        assert_eq!(figures["per_second"], 100.0);
        assert_eq!(figures["p50_us"], 2.0);
        assert_eq!(figures["errors"], 2.0);
        assert_eq!(figures["client_cpu_us"], 50.0);
        assert!(!figures.contains_key("commands"), "this store counts no commands");
    }

    #[test]
    fn hand_overs_count_changes_of_holder_across_processes() {
        let work = crate::works::work_named("redis-handover-4x4-0ms").unwrap();
        let of = |grants: &[u64]| Measured { grants: grants.to_vec(), ..Measured::default() };
        let figures =
            grant_figures(&[of(&[1, 0, 2, 0, 5, 0]), of(&[3, 100_000, 4, 100_000])], &spent(), work);
        assert_eq!(figures["per_second"], 2.5);
        assert_eq!(figures["changes_per_second"], 1.5);
        assert_eq!(figures["spread"], f64::INFINITY, "14 waiters got nothing");
    }
}
