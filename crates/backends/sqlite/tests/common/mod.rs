//! What the tests of this backend share: claims, other processes, and a check of the stored rows.
#![allow(dead_code, reason = "each test program uses some of it")]

use std::{
    io::{BufRead, BufReader, Write},
    path::Path,
    process::{Child, Command, Stdio},
    sync::{
        Arc,
        mpsc::{Receiver, channel},
    },
    time::Duration,
};

use leasehold::System;
use leasehold_core::{
    Backend, BackendExt as _, Claim, Environment, Error, Grant, Holder, OwnerToken, Resource, Share, Verdict,
};
use leasehold_sqlite::{Config, Sqlite};

pub(crate) const TTL: Duration = Duration::from_secs(30);

pub(crate) fn open(config: Config) -> Sqlite {
    try_open(config).unwrap()
}

pub(crate) fn try_open(config: Config) -> Result<Sqlite, Error> {
    Sqlite::open(config, Arc::new(System::current()))
}

pub(crate) fn resource(id: &str) -> Resource {
    Resource::new("test", id).unwrap()
}

/// A claim of an exclusive lease, by a new owner.
pub(crate) fn claim(id: &str) -> Claim {
    let owner = OwnerToken::fresh(&System::current() as &dyn Environment);
    let holder = Arc::new(Holder::new("host", std::process::id(), "test"));
    Claim::new(resource(id), owner, Share::WHOLE, TTL, holder)
}

pub(crate) async fn granted(backend: &Sqlite, claim: &Claim) -> Grant {
    match backend.acquire_one(claim).await.unwrap() {
        Verdict::Granted(grant) => grant,
        other => panic!("{claim:?}: {other:?}"),
    }
}

/// Calls `acquire` and `wait` until the claim is granted.
pub(crate) async fn acquire_and_wait(backend: &Sqlite, claim: &Claim) -> Grant {
    loop {
        match backend.acquire_one(claim).await.unwrap() {
            Verdict::Granted(grant) => return grant,
            Verdict::Blocked(blocked) => {
                let at_most = blocked.changes_in.unwrap_or(TTL).min(Duration::from_secs(2));
                backend.wait(&claim.reference(), &blocked.cursor, at_most).await.unwrap();
            }
            other => panic!("{other:?}"),
        }
    }
}

/// Checks that the file is not damaged, and that its sums and counts match its rows.
pub(crate) fn check_file(path: &Path) {
    let file = rusqlite::Connection::open(path).unwrap();
    file.busy_timeout(Duration::from_secs(10)).unwrap();
    let verdict: String = file.query_row("PRAGMA integrity_check", [], |row| row.get(0)).unwrap();
    assert_eq!(verdict, "ok");
    let wrong = "SELECT group_concat(key) FROM resource r WHERE
        held <> (SELECT coalesce(sum(weight), 0) FROM seat WHERE resource = r.id)
        OR seats <> (SELECT count(*) FROM seat WHERE resource = r.id)
        OR places <> (SELECT count(*) FROM place WHERE resource = r.id)
        OR graves <> (SELECT count(*) FROM grave WHERE resource = r.id)
        OR settle_at > coalesce((SELECT min(ends) FROM seat WHERE resource = r.id), settle_at)
        OR settle_at > coalesce((SELECT min(ends) FROM place WHERE resource = r.id), settle_at)
        OR settle_at > coalesce((SELECT min(ends) FROM grave WHERE resource = r.id), settle_at)
        OR last < (SELECT coalesce(max(token), 0) FROM seat WHERE resource = r.id)
        OR silent < (SELECT count(*) > 0 FROM place WHERE resource = r.id AND silent = 1)
        OR EXISTS (SELECT 1 FROM place WHERE resource = r.id AND called > 0 AND heard > 0
                   AND (r.silence_at = 0 OR r.silence_at > called + 1000000000))";
    let wrong: Option<String> = file.query_row(wrong, [], |row| row.get(0)).unwrap();
    assert_eq!(wrong, None, "resources whose sums or counts are wrong");
    let orphans = "SELECT count(*) FROM (SELECT resource FROM seat UNION ALL SELECT resource FROM place
        UNION ALL SELECT resource FROM grave) WHERE resource NOT IN (SELECT id FROM resource)";
    let orphans: i64 = file.query_row(orphans, [], |row| row.get(0)).unwrap();
    assert_eq!(orphans, 0, "rows without a resource");
}

const ROLE: &str = "LEASEHOLD_TEST_ROLE";
const FILE: &str = "LEASEHOLD_TEST_FILE";

/// This test program once more, as another process. It must have a test `the_other_process` that calls
/// [`role`].
pub(crate) struct OtherProcess {
    pub(crate) child: Child,
    lines: Receiver<String>,
}

pub(crate) fn start_process(role: &str, file: &Path) -> OtherProcess {
    start_command(Command::new(std::env::current_exe().unwrap()), role, file)
}

/// The same, started by another program, such as `unshare`.
pub(crate) fn start_command(mut command: Command, role: &str, file: &Path) -> OtherProcess {
    let mut child = command
        .args(["--exact", "the_other_process", "--nocapture"])
        .env(ROLE, role)
        .env(FILE, file)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let output = BufReader::new(child.stdout.take().unwrap());
    let (sender, lines) = channel();
    std::thread::spawn(move || {
        for line in output.lines().map_while(Result::ok) {
            // The lines of the test harness itself have no @.
            if let Some(line) = line.split_once('@').map(|(_, line)| line.to_owned()) {
                let _ = sender.send(line);
            }
        }
    });
    OtherProcess { child, lines }
}

impl OtherProcess {
    /// The next line that the process reports.
    pub(crate) fn next_line(&self) -> String {
        self.lines.recv_timeout(Duration::from_secs(30)).expect("the process reports something")
    }

    pub(crate) fn send_line(&mut self, line: &str) {
        writeln!(self.child.stdin.as_mut().unwrap(), "{line}").unwrap();
    }

    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for OtherProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What this process has to do, if it was started by [`start_process`].
pub(crate) fn role() -> Option<(String, std::path::PathBuf)> {
    Some((std::env::var(ROLE).ok()?, std::env::var_os(FILE)?.into()))
}

/// Reports a line to the process that started this one.
pub(crate) fn report(line: impl std::fmt::Display) {
    println!("@{line}");
    std::io::stdout().flush().unwrap();
}

/// Waits for a line from the process that started this one.
pub(crate) fn read_line() -> String {
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    line.trim().to_owned()
}

/// Random numbers that can be repeated by their seed, which the test prints.
pub(crate) struct SeededRandom(u64);

impl SeededRandom {
    pub(crate) fn new(seed: u64) -> SeededRandom {
        SeededRandom(seed | 1)
    }

    pub(crate) fn fresh() -> SeededRandom {
        let mut bytes = [0; 8];
        System::current().fill(&mut bytes);
        let seed = u64::from_ne_bytes(bytes);
        println!("seed {seed}");
        SeededRandom::new(seed)
    }

    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}

/// Whether this process may mount file systems. If it may not, the test fails, unless
/// `LEASEHOLD_TEST_UNPRIVILEGED=1` is set.
pub(crate) fn is_privileged() -> bool {
    let root = rustix::process::geteuid().is_root();
    let is_excused = std::env::var_os("LEASEHOLD_TEST_UNPRIVILEGED").is_some_and(|value| value == "1");
    assert!(
        root || is_excused,
        "this test mounts file systems: run it as root, or set LEASEHOLD_TEST_UNPRIVILEGED=1"
    );
    root
}

/// Runs a command that must succeed.
pub(crate) fn shell(command: &str) {
    let status = Command::new("sh").args(["-ec", command]).status().unwrap();
    assert!(status.success(), "{command}: {status}");
}

/// A mounted file system. Dropping this value unmounts it.
pub(crate) struct Mounted(pub(crate) std::path::PathBuf);

impl Mounted {
    pub(crate) fn new(at: &Path, mount: &str) -> Mounted {
        std::fs::create_dir_all(at).unwrap();
        shell(&format!("mount {mount} '{}'", at.display()));
        Mounted(at.to_owned())
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}
