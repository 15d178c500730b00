//! A Redis, and a `leasehold serve` process on it.

use std::{
    fs,
    io::{BufRead as _, BufReader},
    process::{Child, Command, Stdio},
    time::Duration,
};

use leasehold_testkit::servers::RedisServer;

/// Dropping it ends both.
pub(crate) struct Serving {
    pub(crate) redis: RedisServer,
    pub(crate) address: String,
    child: Child,
}

impl Serving {
    pub(crate) fn start() -> Serving {
        let redis = RedisServer::start();
        let mut child = Command::new(env!("CARGO_BIN_EXE_leasehold"))
            .args(["--json", "--store", &redis.url(), "serve", "--listen", "127.0.0.1:0"])
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let line: serde_json::Value = serde_json::from_str(&line).unwrap();
        let address = line["listening"].as_str().unwrap().strip_prefix("http://").unwrap().to_owned();
        Serving { redis, address, child }
    }

    /// The memory that the server has in use.
    pub(crate) fn resident_megabytes(&self) -> f64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        let kilobytes: f64 = line.trim().trim_end_matches(" kB").trim().parse().unwrap();
        kilobytes / 1000.0
    }

    /// The time that the server has spent on a core.
    pub(crate) fn cpu_time(&self) -> Duration {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.child.id())).unwrap();
        // The name of the program, in parentheses, may have spaces. After it: state is field 3, utime 14, stime 15.
        let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
        let ticks: u64 = fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap();
        Duration::from_millis(ticks * 1000 / rustix::param::clock_ticks_per_second())
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
