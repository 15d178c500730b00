//! What the backend and the engine cost on top of PostgreSQL itself, as ratios within one run.
//!
//! ```text
//! cargo xtask bench postgres [--check]
//! ```
#![allow(clippy::disallowed_methods, reason = "benchmarks run in real time")]
#![allow(clippy::unwrap_used, reason = "a benchmark that cannot run may panic")]

use std::{
    future::Future,
    process::ExitCode,
    sync::Arc,
    time::{Duration, Instant},
};

use leasehold::{Client, RenewRequest, Resource};
use leasehold_testkit::servers::{PgBouncer, PostgresServer};
use tokio_postgres::{
    NoTls, Statement,
    types::{ToSql, Type},
};

const TASKS: usize = 64;
const CONNECTIONS: usize = 8;
const ROUND: Duration = Duration::from_millis(500);
const ROUNDS: usize = 11;
const RENEWED: usize = 1000;

const ACQUIRE: &str = "SELECT *, $15::bigint FROM leasehold.acquire($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, \
                       $13, $14)";
const RELEASE: &str = "SELECT leasehold.release($1, $2, $3, $4), $5::bigint";

/// The same statements through the same driver, with nothing of ours around them.
struct Bare {
    client: tokio_postgres::Client,
    acquire: Statement,
    release: Statement,
}

type Parameters<'a> = Vec<(&'a (dyn ToSql + Sync), Type)>;

impl Bare {
    async fn connect(port: u16) -> Bare {
        let mut config = tokio_postgres::Config::new();
        config.host("127.0.0.1").port(port).user("postgres").dbname("postgres");
        let (client, connection) = config.connect(NoTls).await.unwrap();
        tokio::spawn(connection);
        let acquire = client.prepare(ACQUIRE).await.unwrap();
        let release = client.prepare(RELEASE).await.unwrap();
        Bare { client, acquire, release }
    }

    /// Acquires and releases once.
    async fn pair(&self, resource: &str, number: u64, prepared: bool) {
        let mut owner = [7; 16];
        owner[..8].copy_from_slice(&number.to_be_bytes());
        let (owner, none): (&[u8], Option<&[u8]>) = (&owner, None);
        let acquire: Parameters<'_> = vec![
            (&resource, Type::TEXT),
            (&owner, Type::BYTEA),
            (&1i64, Type::INT8),
            (&1i64, Type::INT8),
            (&30_000_000i64, Type::INT8),
            (&6_000_000i64, Type::INT8),
            (&false, Type::BOOL),
            (&none, Type::BYTEA),
            (&-1i64, Type::INT8),
            (&0i64, Type::INT8),
            (&none, Type::BYTEA),
            (&"1@host", Type::TEXT),
            (&"leasehold_0", Type::TEXT),
            (&1_000_000i64, Type::INT8),
            (&0i64, Type::INT8),
        ];
        let rows = self.ask(ACQUIRE, &self.acquire, &acquire, prepared).await;
        assert_eq!(rows[0].get::<_, &str>(0), "granted");
        let release: Parameters<'_> = vec![
            (&resource, Type::TEXT),
            (&owner, Type::BYTEA),
            (&-1i64, Type::INT8),
            (&0i64, Type::INT8),
            (&0i64, Type::INT8),
        ];
        assert!(self.ask(RELEASE, &self.release, &release, prepared).await[0].get::<_, bool>(0));
    }

    async fn ask(
        &self,
        sql: &str,
        statement: &Statement,
        parameters: &Parameters<'_>,
        prepared: bool,
    ) -> Vec<tokio_postgres::Row> {
        if !prepared {
            return self.client.query_typed(sql, parameters).await.unwrap();
        }
        let parameters: Vec<_> = parameters.iter().map(|(value, _)| *value).collect();
        self.client.query(statement, &parameters).await.unwrap()
    }
}

async fn bare_pairs(bare: Arc<Vec<Bare>>, number: usize, prepared: bool) -> u64 {
    let resource = format!("bare/{number}");
    let (started, mut done) = (Instant::now(), 0);
    while started.elapsed() < ROUND {
        bare[number % bare.len()].pair(&resource, number as u64, prepared).await;
        done += 1;
    }
    done
}

async fn our_pairs(leases: Client, number: usize) -> u64 {
    let id = number.to_string();
    let (started, mut done) = (Instant::now(), 0);
    while started.elapsed() < ROUND {
        let lease = leases.lease("ours", &id).acquire().await.unwrap();
        lease.release().await.unwrap();
        done += 1;
    }
    done
}

/// Pairs a second.
async fn rate<F: Future<Output = u64> + Send + 'static>(tasks: usize, work: impl Fn(usize) -> F) -> f64 {
    let started = Instant::now();
    let running: Vec<_> = (0..tasks).map(|number| tokio::spawn(work(number))).collect();
    let mut done = 0;
    for task in running {
        done += task.await.unwrap();
    }
    done as f64 / started.elapsed().as_secs_f64()
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn row(name: &str, measured: &str) {
    println!("  {name:<62} {measured:>16}");
}

async fn measure(server: &PostgresServer) -> bool {
    let url = format!("{}?connections={CONNECTIONS}", server.url());
    let leases = leasehold::connect(&url).await.unwrap();
    let mut bare = Vec::new();
    for _ in 0..CONNECTIONS {
        bare.push(Bare::connect(server.port()).await);
    }
    let (bare, mut met) = (Arc::new(bare), true);
    for (tasks, name) in [(TASKS, "64 tasks"), (1, "one after the other")] {
        // Alternating, so that a machine that slows down slows all. Each round has ratios of its own.
        let (mut same, mut ours) = (Vec::new(), Vec::new());
        let (mut to_same, mut to_prepared) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            let prepared = rate(tasks, |number| bare_pairs(Arc::clone(&bare), number, true)).await;
            let as_ours = rate(tasks, |number| bare_pairs(Arc::clone(&bare), number, false)).await;
            let our_rate = rate(tasks, |number| our_pairs(leases.clone(), number)).await;
            same.push(as_ours);
            ours.push(our_rate);
            to_same.push(our_rate / as_ours);
            to_prepared.push(our_rate / prepared);
        }
        row(&format!("{name}: the same statements, bare, pairs a second"), &format!("{:.0}", median(same)));
        row(&format!("{name}: leasehold, pairs a second"), &format!("{:.0}", median(ours)));
        let ratio = median(to_same);
        if tasks == TASKS {
            met = ratio >= 0.8;
            let mark = if met { '✓' } else { '✗' };
            println!(
                "  {:<62} {:>16}   ≥ 0.8    {mark}",
                "64 tasks: pairs a second, to bare",
                format!("{ratio:.3}")
            );
        } else {
            row(&format!("{name}: pairs a second, to bare"), &format!("{ratio:.3}"));
        }
        row(&format!("{name}: … to bare and prepared beforehand"), &format!("{:.3}", median(to_prepared)));
    }
    behind_a_pool(server, &leases).await;
    renewals(server, &leases).await;
    met
}

/// The same pairs through PgBouncer in transaction mode, which has as many connections to the server.
async fn behind_a_pool(server: &PostgresServer, direct: &Client) {
    let pool = PgBouncer::start(server, u32::try_from(CONNECTIONS).unwrap());
    let leases = leasehold::connect(&format!("{}?connections={CONNECTIONS}", pool.url())).await.unwrap();
    for (tasks, name) in [(TASKS, "64 tasks"), (1, "one after the other")] {
        let (mut rates, mut ratios) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            let directly = rate(tasks, |number| our_pairs(direct.clone(), number)).await;
            let pooled = rate(tasks, |number| our_pairs(leases.clone(), number)).await;
            rates.push(pooled);
            ratios.push(pooled / directly);
        }
        row(&format!("{name}: behind PgBouncer, pairs a second"), &format!("{:.0}", median(rates)));
        row(&format!("{name}: behind PgBouncer, to directly"), &format!("{:.3}", median(ratios)));
    }
}

/// A batch of renewals is one statement.
async fn renewals(server: &PostgresServer, leases: &Client) {
    let mut held = Vec::new();
    for number in 0..RENEWED {
        held.push(
            leases.lease("held", &number.to_string()).ttl(Duration::from_secs(600)).acquire().await.unwrap(),
        );
    }
    let backend = leasehold::open(&server.url()).await.unwrap();
    let batch: Vec<RenewRequest> = held
        .iter()
        .map(|lease| {
            let resource: Resource = lease.resource().clone();
            let claim = leasehold::ClaimRef { resource, owner: lease.owner_token() };
            RenewRequest::new(claim, Duration::from_secs(600))
        })
        .collect();
    let mut took = Vec::new();
    for _ in 0..ROUNDS {
        let started = Instant::now();
        assert!(backend.renew(&batch).await.iter().all(Result::is_ok));
        took.push(started.elapsed().as_secs_f64() * 1e3);
    }
    row(&format!("{RENEWED} renewals in one statement take"), &format!("{:.1} ms", median(took)));
}

fn main() -> ExitCode {
    // `cargo bench` and `cargo test` add arguments of their own.
    let args: Vec<String> = std::env::args().skip(1).collect();
    if args.iter().any(|arg| arg == "--test" || arg == "--list") || !args.iter().any(|arg| arg == "--bench") {
        return ExitCode::SUCCESS; // run as a test: there is nothing to check
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let server = PostgresServer::durable();
    println!("\npairs, {CONNECTIONS} connections, every commit waits for the disk");
    let met = runtime.block_on(measure(&server));
    let check = args.iter().any(|arg| arg == "--check");
    if met || !check { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
