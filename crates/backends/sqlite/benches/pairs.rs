//! The speed of the SQLite backend: `cargo xtask bench sqlite`.
//!
//! Measures pairs (acquire and release) per second through the backend, beside the same statements executed
//! bare through rusqlite; the time of a hand-over between two processes; and one process per lock, beside
//! flock(1).
#![allow(clippy::disallowed_methods, clippy::unwrap_used, missing_docs, reason = "a program that measures")]

use std::{
    io::{BufRead, BufReader, Write as _},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::Arc,
    time::{Duration, Instant},
};

use leasehold::System;
use leasehold_bench::{median, percentile, rate};
use leasehold_core::{
    Backend, BackendExt as _, Claim, Clock as _, Holder, OwnerToken, ReleaseRequest, Resource, Share,
    SystemClock, Verdict,
};
use leasehold_sqlite::{Config, Durability, Sqlite};
use rusqlite::{Connection, params};

const ROUNDS: usize = 5;
const ROUND: Duration = Duration::from_millis(600);
const TASKS: usize = 64;
const HAND_OVERS: usize = 300;
const PROCESSES: usize = 100;

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    match arguments.get(1).map(String::as_str) {
        Some("follow") => follow(Path::new(&arguments[2])),
        Some("once") => once(Path::new(&arguments[2])),
        Some("count") => count(&arguments[2], arguments[3].parse().unwrap()),
        _ => measure(),
    }
}

/// Executes `pairs` pairs of one variant (`bare`, `task` or `backend`), for a profiler that counts
/// instructions.
fn count(variant: &str, pairs: u128) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("count.db");
    if variant == "bare" {
        // A second thread, because in a process with one thread the kernel and the C library take short cuts.
        std::thread::spawn(std::thread::park);
        let mut bare = Bare::open(&path, Durability::Normal);
        (0..pairs).for_each(|_| bare.pair());
        return;
    }
    let (runtime, backend) = open(&path);
    let work = async move {
        let mut claim = claim(0, 0);
        for turn in 0..pairs {
            claim.owner = OwnerToken::from_bytes(turn.to_be_bytes());
            obtain(&backend, &claim).await;
            backend.release_one(&ReleaseRequest::new(claim.reference())).await.unwrap();
        }
    };
    if variant == "task" {
        runtime.block_on(async { tokio::spawn(work).await.unwrap() });
    } else {
        runtime.block_on(work);
    }
}

fn measure() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    println!("sqlite {}, file in {}", rusqlite::version(), directory.path().display());
    pairs("normal", Durability::Normal, &at);
    pairs("full", Durability::Full, &at);
    hand_over(&at("hand-over.db"));
    processes(&at("once.db"), &at("flock"));
}

fn pairs(name: &str, durability: Durability, at: &dyn Fn(&str) -> PathBuf) {
    let bare_file = at(&format!("bare-{name}.db"));
    let file = at(&format!("backend-{name}.db"));
    let mut bare = Bare::open(&bare_file, durability);
    let threaded = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let single = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let open = |runtime: &tokio::runtime::Runtime, file: &Path| {
        let environment = Arc::new(System::on(runtime.handle().clone()));
        Arc::new(Sqlite::open(Config::new(file).durability(durability), environment).unwrap())
    };
    let (on_threads, on_one) = (open(&threaded, &file), open(&single, &at(&format!("one-{name}.db"))));
    let mut rates = [const { Vec::new() }; 5];
    for _ in 0..ROUNDS {
        rates[0].push(bare.pairs_per_second());
        rates[1].push(single.block_on(many(&on_one, 1)));
        rates[2].push(threaded.block_on(many(&on_threads, 1)));
        rates[3].push(threaded.block_on(many(&on_threads, TASKS)));
        rates[4].push(single.block_on(many(&on_one, TASKS)));
    }
    let rates = rates.map(median);
    println!("\ndurability={name}: acquire+release pairs per second (median of {ROUNDS} rounds)");
    let labels = [
        "the same statements, bare",
        "backend, one task, current-thread runtime",
        "backend, one task, multi-thread runtime",
        "backend, 64 tasks, multi-thread runtime",
        "backend, 64 tasks, current-thread runtime",
    ];
    for (label, rate) in labels.iter().zip(rates) {
        println!("  {label:<45} {rate:>9.0}  {:>5.2}x", rate / rates[0]);
    }
}

/// The statements of an uncontended pair without the backend: the same ten statements, in the same order, on
/// the same tables, with the same durability. The backend also checks that the file still exists, reads the
/// clocks, mints a token, decides, excludes other tasks, and finds the waiters to wake.
struct Bare {
    connection: Connection,
    begin: String,
    find: String,
    update: String,
    insert: String,
    remove: String,
    commit: String,
    number: i64,
}

impl Bare {
    fn open(path: &Path, durability: Durability) -> Bare {
        let connection = Connection::open(path).unwrap();
        connection.query_row("PRAGMA journal_mode = WAL", [], |_| Ok(())).unwrap();
        let synchronous = if durability == Durability::Full { "FULL" } else { "NORMAL" };
        connection.execute_batch(&format!("PRAGMA synchronous = {synchronous}")).unwrap();
        connection.execute_batch(include_str!("../sql/schema.sql")).unwrap();
        let resource = include_str!("../sql/resource.sql");
        let seat = include_str!("../sql/holder.sql");
        let meta = include_str!("../sql/meta.sql");
        for key in 0..TASKS {
            let sql = statement(resource, "insert");
            connection.query_row(&sql, params![format!("bench/{key}"), 1], |_| Ok(())).unwrap();
        }
        Bare {
            connection,
            begin: statement(meta, "begin"),
            find: statement(resource, "find"),
            update: statement(resource, "update"),
            insert: statement(seat, "insert"),
            remove: statement(seat, "remove_only"),
            commit: statement(meta, "commit"),
            number: 1_800_000_000_000_000,
        }
    }

    fn pairs_per_second(&mut self) -> f64 {
        let begin = Instant::now();
        let mut count = 0;
        while begin.elapsed() < ROUND {
            self.pair();
            count += 1;
        }
        f64::from(count) / begin.elapsed().as_secs_f64()
    }

    fn pair(&mut self) {
        self.number += 1;
        let key = format!("bench/{}", self.number % 64);
        let owner = u128::from(self.number.unsigned_abs()).to_be_bytes();
        self.execute(&self.begin, []);
        let (id, version) = self.row(&key);
        let seat =
            params![id, owner, 1i64 << 60, self.number, 1, 1i64 << 50, 0, "1234@host bench", None::<Vec<u8>>];
        self.execute(&self.insert, seat);
        self.execute(
            &self.update,
            params![id, 1, 1, 1, 0, 0, 1i64 << 60, 0, 0, 0, self.number, version + 1, 0],
        );
        self.execute(&self.commit, []);
        self.execute(&self.begin, []);
        let (id, version) = self.row(&key);
        self.execute(&self.remove, params![id, owner]);
        self.execute(
            &self.update,
            params![id, 1, 0, 0, 0, 0, 1i64 << 60, 0, 0, 0, self.number, version + 1, 0],
        );
        self.execute(&self.commit, []);
    }

    fn execute(&self, sql: &str, params: impl rusqlite::Params) {
        self.connection.prepare_cached(sql).unwrap().execute(params).unwrap();
    }

    fn row(&self, key: &str) -> (i64, i64) {
        let mut find = self.connection.prepare_cached(&self.find).unwrap();
        let read = |row: &rusqlite::Row<'_>| {
            let columns: Vec<i64> = (0..14).map(|column| row.get(column).unwrap()).collect();
            Ok((columns[0], columns[12]))
        };
        find.query_row([key], read).unwrap()
    }
}

fn statement(file: &str, name: &str) -> String {
    let part = file.split("-- name: ").find(|part| part.starts_with(&format!("{name}\n"))).unwrap();
    part.lines()
        .skip(1)
        .filter(|line| !line.starts_with("--"))
        .collect::<Vec<_>>()
        .join("\n")
        .trim()
        .to_owned()
}

fn claim(key: usize, owner: u128) -> Claim {
    let resource = Resource::new("bench", &key.to_string()).unwrap();
    let owner = OwnerToken::from_bytes(owner.to_be_bytes());
    let holder = Arc::new(Holder::new("host", 1234, "bench"));
    Claim::new(resource, owner, Share::WHOLE, Duration::from_secs(30), holder)
}

/// Pairs per second of this many tasks, each on a resource of its own.
async fn many(backend: &Arc<Sqlite>, tasks: usize) -> f64 {
    let work = |task: usize| {
        let backend = Arc::clone(backend);
        async move {
            let (started, mut count) = (Instant::now(), 0);
            let mut claim = claim(task, 0);
            while started.elapsed() < ROUND {
                count += 1;
                claim.owner =
                    OwnerToken::from_bytes(((task as u128) << 64 | u128::from(count)).to_be_bytes());
                let verdict = backend.acquire_one(&claim).await.unwrap();
                assert!(matches!(verdict, Verdict::Granted(_)), "{verdict:?}");
                backend.release_one(&ReleaseRequest::new(claim.reference())).await.unwrap();
            }
            count
        }
    };
    rate(tasks, work).await.per_second
}

/// Acquires and waits until the claim is granted.
async fn obtain(backend: &Sqlite, claim: &Claim) {
    loop {
        match backend.acquire_one(claim).await.unwrap() {
            Verdict::Granted(_) => return,
            Verdict::Blocked(blocked) => {
                backend.wait(&claim.reference(), &blocked.cursor, Duration::from_secs(10)).await.unwrap();
            }
            other => panic!("{other:?}"),
        }
    }
}

fn open(path: &Path) -> (tokio::runtime::Runtime, Sqlite) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let environment = Arc::new(System::on(runtime.handle().clone()));
    let backend = Sqlite::open(Config::new(path), environment).unwrap();
    (runtime, backend)
}

/// The other process of a hand-over: waits for the lease, prints when it was granted, and releases it.
fn follow(path: &Path) {
    let (runtime, backend) = open(path);
    runtime.block_on(async {
        for turn in 0..HAND_OVERS {
            let claim = claim(0, (1 << 100) + turn as u128).queued();
            let Verdict::Blocked(blocked) = backend.acquire_one(&claim).await.unwrap() else {
                panic!("it is free")
            };
            println!("waiting");
            std::io::stdout().flush().unwrap();
            backend.wait(&claim.reference(), &blocked.cursor, Duration::from_secs(10)).await.unwrap();
            obtain(&backend, &claim).await;
            let granted = SystemClock.now();
            backend.release_one(&ReleaseRequest::new(claim.reference())).await.unwrap();
            println!("{}", granted.as_nanos());
            std::io::stdout().flush().unwrap();
            let mut line = String::new();
            std::io::stdin().read_line(&mut line).unwrap();
        }
    });
}

fn hand_over(path: &Path) {
    let (runtime, backend) = open(path);
    let mut child = Command::new(std::env::current_exe().unwrap())
        .arg("follow")
        .arg(path)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut line = move || lines.next().unwrap().unwrap();
    let mut took = Vec::new();
    runtime.block_on(async {
        for turn in 0..HAND_OVERS {
            let claim = claim(0, (2 << 100) + turn as u128);
            obtain(&backend, &claim).await;
            if turn > 0 {
                writeln!(child.stdin.as_mut().unwrap()).unwrap();
            }
            assert_eq!(line(), "waiting");
            std::thread::sleep(Duration::from_millis(2)); // until the waiter sleeps
            let released = SystemClock.now();
            backend.release_one(&ReleaseRequest::new(claim.reference())).await.unwrap();
            let granted: u64 = line().parse().unwrap();
            took.push(Duration::from_nanos(granted - released.as_nanos()));
        }
    });
    drop(child.stdin.take());
    child.wait().unwrap();
    let (middle, late) = (median(took.clone()), percentile(took, 99));
    println!("\nhand-over between two processes: median {middle:.1?}, 99th {late:.1?} of {HAND_OVERS}");
}

/// One process that acquires and releases one lease.
fn once(path: &Path) {
    let (runtime, backend) = open(path);
    runtime.block_on(async {
        let claim = claim(0, u128::from(std::process::id()));
        obtain(&backend, &claim).await;
        backend.release_one(&ReleaseRequest::new(claim.reference())).await.unwrap();
    });
}

fn processes(path: &Path, flock: &Path) {
    let loops = |command: String| {
        let begin = Instant::now();
        let script = format!("i=0; while [ $i -lt {PROCESSES} ]; do {command}; i=$((i+1)); done");
        assert!(Command::new("sh").arg("-c").arg(script).status().unwrap().success());
        begin.elapsed().as_secs_f64() * 1000.0 / PROCESSES as f64
    };
    let program = std::env::current_exe().unwrap();
    let ours = loops(format!("'{}' once '{}'", program.display(), path.display()));
    let theirs = loops(format!("flock '{}' true", flock.display()));
    println!(
        "\na shell loop, one process per lock: leasehold-sqlite {ours:.2} ms, flock {theirs:.2} ms each"
    );
}
