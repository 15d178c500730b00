//! `leasehold run` beside `flock`: the time to run a command, the time until a waiter's command starts, and
//! the memory of a waiter.
//!
//! `cargo bench -p leasehold-cli`. The two alternate, so that load on the host slows both.

use std::{
    env, fs,
    io::{BufRead as _, BufReader, Write as _},
    path::Path,
    process::{Child, Command, ExitCode, Stdio},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use leasehold_bench::median;

const ROUNDS: usize = 100;
const HAND_OVERS: usize = 40;

fn main() -> ExitCode {
    let mut arguments = env::args().skip(1);
    match arguments.next().as_deref() {
        // The commands that the tools run: they print when they start and when they end.
        Some("--hold") => {
            println!("started");
            let _ = std::io::stdin().read_line(&mut String::new());
            println!("{}", now());
            return ExitCode::SUCCESS;
        }
        Some("--stamp") => {
            println!("{}", now());
            return ExitCode::SUCCESS;
        }
        _ => {}
    }
    let directory = env::temp_dir().join(format!("leasehold-bench-{}", std::process::id()));
    fs::create_dir_all(&directory).expect("the temporary directory can be written");
    let passed = compare(&directory);
    let _ = fs::remove_dir_all(&directory);
    if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn compare(directory: &Path) -> bool {
    let tools = [Tool { name: "flock", directory }, Tool { name: "leasehold run", directory }];
    println!("{:<44}{:>12}{:>16}   target", "", tools[0].name, tools[1].name);
    let [flock, ours] = medians(ROUNDS, tools, |tool| tool.run_true());
    let ratio = ours.as_secs_f64() / flock.as_secs_f64();
    let first = row(
        &format!("run `true`, median: {ratio:.2} × flock"),
        &millis(flock),
        &millis(ours),
        "2 × flock",
        ratio <= 2.0,
    );
    let [flock, ours] = medians(HAND_OVERS, tools, |tool| tool.hand_over());
    let second = row(
        "from the end to a waiter's start, median",
        &millis(flock),
        &millis(ours),
        "20 ms",
        ours <= Duration::from_millis(20),
    );
    let [flock, ours] = tools.map(|tool| tool.waiting_memory());
    let third =
        row("resident memory of a waiter", &kilobytes(flock), &kilobytes(ours), "15 MB", ours <= 15_000);
    first && second && third
}

fn row(what: &str, flock: &str, ours: &str, target: &str, met: bool) -> bool {
    println!("{what:<44}{flock:>12}{ours:>16}   {target}: {}", if met { "met" } else { "MISSED" });
    met
}

/// The median time of each tool. The tools alternate.
fn medians(rounds: usize, tools: [Tool<'_>; 2], measure: impl Fn(Tool<'_>) -> Duration) -> [Duration; 2] {
    let mut times = [Vec::new(), Vec::new()];
    for round in 0..=rounds {
        for (tool, times) in tools.into_iter().zip(&mut times) {
            let time = measure(tool);
            if round > 0 {
                times.push(time); // the first round creates the files
            }
        }
    }
    times.map(median)
}

#[derive(Clone, Copy)]
struct Tool<'a> {
    name: &'static str,
    directory: &'a Path,
}

impl Tool<'_> {
    /// The command line of this tool, to which the command to run is appended.
    fn command(self) -> Command {
        if self.name == "flock" {
            let mut command = Command::new("flock");
            command.arg(self.directory.join("file"));
            return command;
        }
        let mut command = Command::new(env!("CARGO_BIN_EXE_leasehold"));
        command.env("LEASEHOLD_DIR", self.directory).env_remove("LEASEHOLD_STORE").args(["run", "x/1", "--"]);
        command
    }

    fn run_true(self) -> Duration {
        let started = Instant::now();
        let ended = self.command().arg("true").status().expect("it can be run");
        assert!(ended.success());
        started.elapsed()
    }

    fn hold(self) -> (Child, impl Iterator<Item = String>) {
        let myself = env::current_exe().expect("a program knows itself");
        let mut holder = self
            .command()
            .arg(myself)
            .arg("--hold")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("it can be run");
        let mut lines = BufReader::new(holder.stdout.take().expect("piped")).lines().map_while(Result::ok);
        assert_eq!(lines.next().as_deref(), Some("started"));
        (holder, lines)
    }

    fn hand_over(self) -> Duration {
        let myself = env::current_exe().expect("a program knows itself");
        let (mut holder, mut lines) = self.hold();
        let waiter =
            self.command().arg(myself).arg("--stamp").stdout(Stdio::piped()).spawn().expect("it can be run");
        std::thread::sleep(Duration::from_millis(60)); // until it waits in the queue
        holder.stdin.take().expect("piped").write_all(b"\n").expect("it reads");
        let ended: u64 = lines.next().and_then(|line| line.parse().ok()).expect("it says when");
        let output = waiter.wait_with_output().expect("it ends");
        let started: u64 = String::from_utf8_lossy(&output.stdout).trim().parse().expect("it says when");
        holder.wait().expect("it ends");
        Duration::from_nanos(started.saturating_sub(ended))
    }

    /// The resident memory of a waiter, in kilobytes.
    fn waiting_memory(self) -> u64 {
        let (mut holder, _lines) = self.hold();
        let mut waiter = self.command().arg("true").spawn().expect("it can be run");
        std::thread::sleep(Duration::from_millis(500));
        let status = fs::read_to_string(format!("/proc/{}/status", waiter.id())).unwrap_or_default();
        let memory = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).map(str::trim);
        let memory = memory.and_then(|memory| memory.split(' ').next()?.parse().ok()).unwrap_or(u64::MAX);
        drop(holder.stdin.take());
        holder.wait().and(waiter.wait()).expect("they end");
        memory
    }
}

fn now() -> u128 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos()
}

fn millis(duration: Duration) -> String {
    format!("{:.2} ms", duration.as_secs_f64() * 1000.0)
}

fn kilobytes(kilobytes: u64) -> String {
    format!("{:.1} MB", f64::from(u32::try_from(kilobytes).unwrap_or(u32::MAX)) / 1000.0)
}
