//! What the backend and the engine cost on top of PostgreSQL itself, as ratios within one run.
//!
//! ```text
//! cargo xtask bench postgres [--check]
//! ```
#![allow(clippy::disallowed_methods, reason = "benchmarks run in real time")]
#![allow(clippy::unwrap_used, reason = "a benchmark that cannot run may panic")]

use std::{
    process::ExitCode,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use leasehold::{Client, RenewRequest, Resource};
use leasehold_bench::{BenchArguments, Table, lease_pairs, median, rate};
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

const ACQUIRE: &str = "SELECT *, $17::bigint FROM leasehold.acquire($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, \
                       $13, $14, $15, $16)";
const RELEASE: &str = "SELECT leasehold.release($1, $2, $3, $4), $5::bigint";

/// A connection of the driver that executes the backend's statements, without the backend and the engine.
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
        let no_listener: Option<i32> = None;
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
            (&1i64, Type::INT8),
            (&no_listener, Type::INT4),
            (&0i64, Type::INT8),
        ];
        let rows = self.query(ACQUIRE, &self.acquire, &acquire, prepared).await;
        assert_eq!(rows[0].get::<_, &str>(0), "granted");
        let release: Parameters<'_> = vec![
            (&resource, Type::TEXT),
            (&owner, Type::BYTEA),
            (&-1i64, Type::INT8),
            (&0i64, Type::INT8),
            (&0i64, Type::INT8),
        ];
        assert!(self.query(RELEASE, &self.release, &release, prepared).await[0].get::<_, bool>(0));
    }

    async fn query(
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

/// Pairs with the bare statements until [`ROUND`] has passed. Returns how many it completed.
async fn bare_pairs(bare: Arc<Vec<Bare>>, number: usize, prepared: bool) -> u64 {
    let resource = format!("bare/{number}");
    let (started, mut done) = (Instant::now(), 0);
    while started.elapsed() < ROUND {
        bare[number % bare.len()].pair(&resource, number as u64, prepared).await;
        done += 1;
    }
    done
}

/// Tasks that want the same resource, and the clients that they share.
const RIVALS: usize = 16;
const RIVAL_CLIENTS: usize = 4;
/// How long a task waits between two attempts with the statements of `ShedLock`, which cannot wait for a release.
const POLL_EVERY: Duration = Duration::from_millis(1);

const SHEDLOCK_TABLE: &str = "CREATE TABLE shedlock (name varchar(64) PRIMARY KEY, lock_until timestamp NOT NULL, \
                              locked_at timestamp NOT NULL, locked_by varchar(255) NOT NULL)";
const SHEDLOCK_ACQUIRE: &str = "INSERT INTO shedlock (name, lock_until, locked_at, locked_by) \
     VALUES ($1, timezone('utc', now()) + interval '30 seconds', timezone('utc', now()), $2) \
     ON CONFLICT (name) DO UPDATE SET lock_until = excluded.lock_until, locked_at = excluded.locked_at, \
     locked_by = excluded.locked_by WHERE shedlock.lock_until <= timezone('utc', now())";
const SHEDLOCK_RELEASE: &str =
    "UPDATE shedlock SET lock_until = timezone('utc', now()) WHERE name = $1 AND locked_by = $2";

/// The two statements of a lock table as in `ShedLock`: no fencing token, no queue, no renewal. Each is one commit.
///
/// Every task has a connection to itself and prepared statements, which is the fastest way to use them: commits of many
/// connections share a write to the disk.
struct ShedLock {
    client: tokio_postgres::Client,
    acquire: Statement,
    release: Statement,
}

impl ShedLock {
    async fn connect(port: u16) -> ShedLock {
        let mut config = tokio_postgres::Config::new();
        config.host("127.0.0.1").port(port).user("postgres").dbname("postgres");
        let (client, connection) = config.connect(NoTls).await.unwrap();
        tokio::spawn(connection);
        let acquire = client.prepare(SHEDLOCK_ACQUIRE).await.unwrap();
        let release = client.prepare(SHEDLOCK_RELEASE).await.unwrap();
        ShedLock { client, acquire, release }
    }

    async fn try_acquire(&self, name: &str, by: &str) -> bool {
        self.client.execute(&self.acquire, &[&name, &by]).await.unwrap() == 1
    }

    async fn release(&self, name: &str, by: &str) {
        assert_eq!(self.client.execute(&self.release, &[&name, &by]).await.unwrap(), 1);
    }
}

/// Pairs with the statements of `ShedLock` until [`ROUND`] has passed. Returns how many it completed.
async fn shedlock_pairs(all: Arc<Vec<ShedLock>>, number: usize) -> u64 {
    let (lock, name) = (&all[number], format!("shed/{number}"));
    let (started, mut done) = (Instant::now(), 0);
    while started.elapsed() < ROUND {
        assert!(lock.try_acquire(&name, "host").await);
        lock.release(&name, "host").await;
        done += 1;
    }
    done
}

/// Counts how often the holder of the one resource of a round changes.
#[derive(Default)]
struct Handovers {
    last: AtomicUsize,
    changes: AtomicU64,
}

impl Handovers {
    fn held_by(&self, number: usize) {
        if self.last.swap(number + 1, Ordering::Relaxed) != number + 1 {
            self.changes.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Holds the one resource for no time, over and over, until [`ROUND`] has passed.
async fn shedlock_rival(all: Arc<Vec<ShedLock>>, number: usize, handovers: Arc<Handovers>) -> u64 {
    let (lock, by) = (&all[number], number.to_string());
    let started = Instant::now();
    while started.elapsed() < ROUND {
        if lock.try_acquire("shed/rivals", &by).await {
            handovers.held_by(number);
            lock.release("shed/rivals", &by).await;
        } else {
            tokio::time::sleep(POLL_EVERY).await;
        }
    }
    1
}

async fn lease_rival(leases: Client, number: usize, handovers: Arc<Handovers>) -> u64 {
    let started = Instant::now();
    while started.elapsed() < ROUND {
        let lease = leases.lease("ours", "rivals").acquire().await.unwrap();
        handovers.held_by(number);
        lease.release().await.unwrap();
    }
    1
}

/// Changes of the holder a second, with the statements of `ShedLock` and with leases.
async fn handovers(server: &PostgresServer, shedlock: &Arc<Vec<ShedLock>>, table: &mut Table) {
    for clients in [1, RIVAL_CLIENTS] {
        let mut leases = Vec::new();
        for _ in 0..clients {
            leases.push(leasehold::connect(&server.url()).await.unwrap());
        }
        let (mut theirs, mut ours, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            let counted = Arc::new(Handovers::default());
            let started = Instant::now();
            rate(RIVALS, |number| shedlock_rival(Arc::clone(shedlock), number, Arc::clone(&counted))).await;
            let shed = counted.changes.load(Ordering::Relaxed) as f64 / started.elapsed().as_secs_f64();
            let counted = Arc::new(Handovers::default());
            let started = Instant::now();
            let client = |number: usize| leases[number % clients].clone();
            rate(RIVALS, |number| lease_rival(client(number), number, Arc::clone(&counted))).await;
            let leasehold = counted.changes.load(Ordering::Relaxed) as f64 / started.elapsed().as_secs_f64();
            theirs.push(shed);
            ours.push(leasehold);
            ratios.push(leasehold / shed);
        }
        let name = format!("{RIVALS} tasks of {clients} client(s), one resource");
        table.row(
            &format!("{name}: ShedLock-like, changes of the holder a second"),
            &format!("{:.0}", median(theirs)),
        );
        table.row(
            &format!("{name}: leasehold, changes of the holder a second"),
            &format!("{:.0}", median(ours)),
        );
        let ratio = median(ratios);
        table.target(&format!("{name}: to ShedLock-like"), &format!("{ratio:.2}"), "≥ 1", ratio >= 1.0);
    }
}

/// How many tasks run side by side, and how the table calls that.
const LOADS: [(usize, &str); 2] = [(TASKS, "64 tasks"), (1, "one after the other")];

async fn measure(server: &PostgresServer, table: &mut Table) {
    let url = format!("{}?connections={CONNECTIONS}", server.url());
    let leases = leasehold::connect(&url).await.unwrap();
    let mut bare = Vec::new();
    for _ in 0..CONNECTIONS {
        bare.push(Bare::connect(server.port()).await);
    }
    let bare = Arc::new(bare);
    server.sql(SHEDLOCK_TABLE);
    let mut shedlock = Vec::new();
    for _ in 0..TASKS {
        shedlock.push(ShedLock::connect(server.port()).await);
    }
    let shedlock = Arc::new(shedlock);
    for (tasks, name) in LOADS {
        // The variants alternate, so that load on the machine slows all of them. Each round has its own
        // ratios.
        let (mut unprepared_rates, mut our_rates) = (Vec::new(), Vec::new());
        let (mut to_unprepared, mut to_prepared) = (Vec::new(), Vec::new());
        let (mut shedlock_rates, mut to_shedlock) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            let prepared = rate(tasks, |number| bare_pairs(Arc::clone(&bare), number, true)).await.per_second;
            let unprepared =
                rate(tasks, |number| bare_pairs(Arc::clone(&bare), number, false)).await.per_second;
            let shed = rate(tasks, |number| shedlock_pairs(Arc::clone(&shedlock), number)).await.per_second;
            let ours = rate(tasks, |number| lease_pairs(leases.clone(), number, ROUND)).await.per_second;
            shedlock_rates.push(shed);
            to_shedlock.push(ours / shed);
            unprepared_rates.push(unprepared);
            our_rates.push(ours);
            to_unprepared.push(ours / unprepared);
            to_prepared.push(ours / prepared);
        }
        let figure = |rates: Vec<f64>| format!("{:.0}", median(rates));
        table.row(&format!("{name}: ShedLock-like statements, pairs a second"), &figure(shedlock_rates));
        let (label, ratio) = (format!("{name}: pairs a second, to ShedLock-like"), median(to_shedlock));
        if tasks == TASKS {
            table.target(&label, &format!("{ratio:.2}"), "≥ 2", ratio >= 2.0);
        } else {
            table.row(&label, &format!("{ratio:.2}"));
        }
        table.row(&format!("{name}: the same statements, bare, pairs a second"), &figure(unprepared_rates));
        table.row(&format!("{name}: leasehold, pairs a second"), &figure(our_rates));
        let (label, ratio) = (format!("{name}: pairs a second, to bare"), median(to_unprepared));
        if tasks == TASKS {
            table.target(&label, &format!("{ratio:.3}"), "≥ 0.8", ratio >= 0.8);
        } else {
            table.row(&label, &format!("{ratio:.3}"));
        }
        let to_prepared = format!("{:.3}", median(to_prepared));
        table.row(&format!("{name}: … to bare and prepared beforehand"), &to_prepared);
    }
    handovers(server, &shedlock, table).await;
    behind_a_pool(server, &leases, table).await;
    renewals(server, &leases, table).await;
}

/// The same pairs through PgBouncer in transaction mode, which has as many connections to the server.
async fn behind_a_pool(server: &PostgresServer, direct: &Client, table: &Table) {
    let pool = PgBouncer::start(server, u32::try_from(CONNECTIONS).unwrap());
    let leases = leasehold::connect(&format!("{}?connections={CONNECTIONS}", pool.url())).await.unwrap();
    for (tasks, name) in LOADS {
        let (mut rates, mut ratios) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            let directly = rate(tasks, |number| lease_pairs(direct.clone(), number, ROUND)).await.per_second;
            let pooled = rate(tasks, |number| lease_pairs(leases.clone(), number, ROUND)).await.per_second;
            rates.push(pooled);
            ratios.push(pooled / directly);
        }
        table.row(&format!("{name}: behind PgBouncer, pairs a second"), &format!("{:.0}", median(rates)));
        table.row(&format!("{name}: behind PgBouncer, to directly"), &format!("{:.3}", median(ratios)));
    }
}

/// How long a batch of renewals takes, which is one statement.
async fn renewals(server: &PostgresServer, leases: &Client, table: &Table) {
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
    table.row(&format!("{RENEWED} renewals in one statement take"), &format!("{:.1} ms", median(took)));
}

fn main() -> ExitCode {
    let Some(arguments) = BenchArguments::of_bench_run() else { return ExitCode::SUCCESS };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let server = PostgresServer::durable();
    let mut table = Table::default();
    table.title(&format!("pairs, {CONNECTIONS} connections, every commit waits for the disk"));
    runtime.block_on(measure(&server, &mut table));
    table.finish(arguments.check())
}
