//! The works, the same for every lock.

use std::{
    io::{BufRead as _, Write as _},
    sync::Arc,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use serde::Serialize;
use tokio::{sync::mpsc, task::JoinHandle};

use crate::{Arguments, lock::Lock};

/// Leases that are acquired side by side at the start of `keep`.
const ACQUIRED_AT_ONCE: usize = 200;
/// Attempts to acquire each of them.
const ATTEMPTS_MAX: u32 = 5;
/// The pause after an error, so that a peer that fails at once does not spin.
const PAUSE_AFTER_ERROR: Duration = Duration::from_millis(1);
/// How long the waiters of `fair` may take to queue.
const QUEUE_TIMEOUT: Duration = Duration::from_secs(120);
const QUEUE_POLL: Duration = Duration::from_millis(200);
/// Numbers of holders: the process times this, plus the task.
const TASKS_MAX: usize = 100_000;

/// What this process is to do.
pub(crate) struct Work {
    kind: Kind,
    tasks: usize,
    hold: Duration,
    prefix: String,
    process: usize,
}

enum Kind {
    Pair,
    Handover,
    Fair,
    Keep,
}

/// What one run measured.
#[derive(Default, Serialize)]
struct Measured {
    done: u64,
    took_ns: u64,
    errors: u64,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    latencies_ns: Vec<u64>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    grants: Vec<u64>,
}

impl Measured {
    fn add(&mut self, other: Measured) {
        self.done += other.done;
        self.errors += other.errors;
        self.latencies_ns.extend(other.latencies_ns);
        self.grants.extend(other.grants);
    }
}

impl Work {
    pub(crate) fn of(arguments: &Arguments) -> Result<Work, String> {
        let kind = match arguments.text("work")? {
            "pair" => Kind::Pair,
            "handover" => Kind::Handover,
            "fair" => Kind::Fair,
            "keep" => Kind::Keep,
            other => return Err(format!("there is no work called {other}")),
        };
        Ok(Work {
            kind,
            tasks: usize::try_from(arguments.number("tasks")?).map_err(|error| error.to_string())?,
            hold: Duration::from_micros(arguments.number("hold_us")?),
            prefix: arguments.text("prefix")?.to_owned(),
            process: usize::try_from(arguments.number("process")?).map_err(|error| error.to_string())?,
        })
    }

    /// The number of tasks that use the lock side by side.
    pub(crate) fn tasks(&self) -> usize {
        self.tasks
    }

    /// Serves `go` lines until the input ends.
    pub(crate) async fn serve<L: Lock>(&self, lock: L) -> Result<(), String> {
        let lock = Arc::new(lock);
        match self.kind {
            Kind::Pair => {
                self.check(&lock).await?;
                self.each_go(async |lasting| self.pairs(&lock, lasting).await).await
            }
            Kind::Handover => self.each_go(async |lasting| self.handovers(&lock, lasting).await).await,
            Kind::Fair => self.fair(&lock).await,
            Kind::Keep => self.keep(&lock).await,
        }
    }

    /// One pair before `ready`: the connections are made, and a lock that does not work at all says why.
    async fn check<L: Lock>(&self, lock: &Arc<L>) -> Result<(), String> {
        let name = format!("{}-check-{}", self.prefix, self.process);
        let held = lock.acquire(0, &name).await?;
        lock.release(0, &name, held).await
    }

    async fn each_go(&self, mut run: impl AsyncFnMut(Duration) -> Measured) -> Result<(), String> {
        let mut orders = orders();
        say("ready")?;
        while let Some(lasting) = orders.recv().await {
            let started = Instant::now();
            let mut measured = run(lasting).await;
            measured.took_ns = nanos(started.elapsed());
            say(&serde_json::to_string(&measured).map_err(|error| error.to_string())?)?;
        }
        Ok(())
    }

    async fn pairs<L: Lock>(&self, lock: &Arc<L>, lasting: Duration) -> Measured {
        let until = Instant::now() + lasting;
        let running = (0..self.tasks).map(|task| {
            let (lock, name) = (Arc::clone(lock), format!("{}-{}-{task}", self.prefix, self.process));
            tokio::spawn(async move {
                let mut measured = Measured::default();
                loop {
                    let started = Instant::now();
                    if started >= until {
                        return measured;
                    }
                    match pair(&*lock, task, &name).await {
                        Ok(()) => {
                            measured.done += 1;
                            measured.latencies_ns.push(nanos(started.elapsed()));
                        }
                        Err(error) => failed(&mut measured, &error).await,
                    }
                }
            })
        });
        all(running.collect()).await
    }

    async fn handovers<L: Lock>(&self, lock: &Arc<L>, lasting: Duration) -> Measured {
        let until = Instant::now() + lasting;
        let running = (0..self.tasks).map(|task| {
            let (lock, name, hold) = (Arc::clone(lock), self.prefix.clone(), self.hold);
            let holder = self.holder(task);
            tokio::spawn(async move {
                let mut measured = Measured::default();
                while Instant::now() < until {
                    match turn(&*lock, task, &name, hold).await {
                        Ok(granted_at) if Instant::now() < until => {
                            measured.done += 1;
                            measured.grants.extend([granted_at, holder]);
                        }
                        Ok(_) => {}
                        Err(error) => failed(&mut measured, &error).await,
                    }
                }
                measured
            })
        });
        all(running.collect()).await
    }

    /// All tasks wait in line while one more task holds the lock. Each task that was granted queues again.
    async fn fair<L: Lock>(&self, lock: &Arc<L>) -> Result<(), String> {
        let first = lock.acquire(self.tasks, &self.prefix).await?;
        let (grants, mut granted) = mpsc::unbounded_channel();
        for task in 0..self.tasks {
            let (lock, name, grants) = (Arc::clone(lock), self.prefix.clone(), grants.clone());
            let holder = self.holder(task);
            tokio::spawn(async move {
                loop {
                    match turn(&*lock, task, &name, Duration::ZERO).await {
                        Ok(granted_at) => {
                            let _ = grants.send(Some([granted_at, holder]));
                        }
                        Err(error) => {
                            let _ = grants.send(None);
                            failed(&mut Measured::default(), &error).await;
                        }
                    }
                }
            });
        }
        let until = Instant::now() + QUEUE_TIMEOUT;
        while lock.waiting(&self.prefix).await? < self.tasks {
            if Instant::now() > until {
                return Err(format!("{} waiters do not queue within {QUEUE_TIMEOUT:?}", self.tasks));
            }
            tokio::time::sleep(QUEUE_POLL).await;
        }
        let mut first = Some(first);
        self.each_go(async |lasting| {
            if let Some(first) = first.take() {
                let _ = lock.release(self.tasks, &self.prefix, first).await;
            }
            while granted.try_recv().is_ok() {} // between two runs nobody counts
            tokio::time::sleep(lasting).await;
            let mut measured = Measured::default();
            while let Ok(grant) = granted.try_recv() {
                match grant {
                    Some(grant) => {
                        measured.done += 1;
                        measured.grants.extend(grant);
                    }
                    None => measured.errors += 1,
                }
            }
            measured
        })
        .await
    }

    async fn keep<L: Lock>(&self, lock: &Arc<L>) -> Result<(), String> {
        let mut all = Vec::with_capacity(self.tasks);
        for start in (0..self.tasks).step_by(ACQUIRED_AT_ONCE) {
            let end = (start + ACQUIRED_AT_ONCE).min(self.tasks);
            let some: Vec<_> = (start..end)
                .map(|task| {
                    let (lock, name) = (Arc::clone(lock), format!("{}-{task}", self.prefix));
                    tokio::spawn(async move { acquire_at_last(&*lock, task, &name).await })
                })
                .collect();
            for held in some {
                all.push(held.await.map_err(|error| error.to_string())??);
            }
        }
        self.each_go(async |lasting| {
            tokio::time::sleep(lasting).await;
            let alive = all.iter().filter(|held| L::is_alive(held)).count();
            Measured { done: alive as u64, ..Measured::default() }
        })
        .await
    }

    fn holder(&self, task: usize) -> u64 {
        (self.process * TASKS_MAX + task) as u64
    }
}

async fn pair<L: Lock>(lock: &L, task: usize, name: &str) -> Result<(), String> {
    let held = lock.acquire(task, name).await?;
    lock.release(task, name, held).await
}

/// Acquires a lease that is to be kept. A busy machine may need several attempts.
async fn acquire_at_last<L: Lock>(lock: &L, task: usize, name: &str) -> Result<L::Held, String> {
    let mut outcome = lock.acquire(task, name).await;
    for _ in 1..ATTEMPTS_MAX {
        if outcome.is_ok() {
            break;
        }
        outcome = lock.acquire(task, name).await;
    }
    outcome
}

/// Holds the lock once. Returns when it was granted.
async fn turn<L: Lock>(lock: &L, task: usize, name: &str, hold: Duration) -> Result<u64, String> {
    let held = lock.acquire(task, name).await?;
    let granted_at = now();
    if !hold.is_zero() {
        tokio::time::sleep(hold).await;
    }
    lock.release(task, name, held).await?;
    Ok(granted_at)
}

async fn failed(measured: &mut Measured, error: &str) {
    measured.errors += 1;
    eprintln!("{error}");
    tokio::time::sleep(PAUSE_AFTER_ERROR).await;
}

async fn all(running: Vec<JoinHandle<Measured>>) -> Measured {
    let mut measured = Measured::default();
    for task in running {
        match task.await {
            Ok(more) => measured.add(more),
            Err(error) => {
                eprintln!("{error}");
                measured.errors += 1;
            }
        }
    }
    measured
}

/// The `go` lines of the standard input.
fn orders() -> mpsc::UnboundedReceiver<Duration> {
    let (orders, received) = mpsc::unbounded_channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            let millis = line.strip_prefix("go ").and_then(|millis| millis.trim().parse().ok());
            if let Some(millis) = millis
                && orders.send(Duration::from_millis(millis)).is_err()
            {
                return;
            }
        }
    });
    received
}

fn say(line: &str) -> Result<(), String> {
    let mut output = std::io::stdout().lock();
    writeln!(output, "{line}").and_then(|()| output.flush()).map_err(|error| error.to_string())
}

/// Nanoseconds of the time of day: the processes of one host share it.
fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, nanos)
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
