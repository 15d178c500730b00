//! What the tests of this backend share: claims, processes, and a look behind the curtain.
#![allow(dead_code, reason = "each test program uses its part")]

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
    Backend, Claim, Environment, Error, Grant, Holder, OwnerToken, Resource, Share, Verdict,
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

/// Of an exclusive lease, by a fresh owner.
pub(crate) fn claim(id: &str) -> Claim {
    let owner = OwnerToken::fresh(&System::current() as &dyn Environment);
    let holder = Arc::new(Holder::new("host", std::process::id(), "test"));
    Claim::new(resource(id), owner, Share::WHOLE, TTL, holder)
}

pub(crate) async fn granted(backend: &Sqlite, claim: &Claim) -> Grant {
    match backend.acquire(claim).await.unwrap() {
        Verdict::Granted(grant) => grant,
        other => panic!("{claim:?}: {other:?}"),
    }
}

/// Asks, waits, and asks again until it is granted. The hint is all it goes by.
pub(crate) async fn obtain(backend: &Sqlite, claim: &Claim) -> Grant {
    loop {
        match backend.acquire(claim).await.unwrap() {
            Verdict::Granted(grant) => return grant,
            Verdict::Blocked(blocked) => {
                let at_most = blocked.changes_in.unwrap_or(TTL).min(Duration::from_secs(2));
                backend.wait(&claim.reference(), &blocked.cursor, at_most).await.unwrap();
            }
            other => panic!("{other:?}"),
        }
    }
}

/// The file is whole, and its sums and counts are those of its rows.
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
        OR last < (SELECT coalesce(max(token), 0) FROM seat WHERE resource = r.id)";
    let wrong: Option<String> = file.query_row(wrong, [], |row| row.get(0)).unwrap();
    assert_eq!(wrong, None, "rows that do not agree");
    let lost = "SELECT count(*) FROM (SELECT resource FROM seat UNION ALL SELECT resource FROM place
        UNION ALL SELECT resource FROM grave) WHERE resource NOT IN (SELECT id FROM resource)";
    let lost: i64 = file.query_row(lost, [], |row| row.get(0)).unwrap();
    assert_eq!(lost, 0, "rows of no resource");
}

const ROLE: &str = "LEASEHOLD_TEST_ROLE";
const FILE: &str = "LEASEHOLD_TEST_FILE";

/// This test program once more, as another process. It must have a test of this name that calls [`role`].
pub(crate) struct Other {
    pub(crate) child: Child,
    lines: Receiver<String>,
}

pub(crate) fn other(role: &str, file: &Path) -> Other {
    start(Command::new(std::env::current_exe().unwrap()), role, file)
}

/// The same, behind a program that changes its surroundings.
pub(crate) fn start(mut command: Command, role: &str, file: &Path) -> Other {
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
            // What the test harness itself says is not marked.
            if let Some(said) = line.split_once('@').map(|(_, said)| said.to_owned()) {
                let _ = sender.send(said);
            }
        }
    });
    Other { child, lines }
}

impl Other {
    pub(crate) fn hear(&self) -> String {
        self.lines.recv_timeout(Duration::from_secs(30)).expect("it says something")
    }

    pub(crate) fn tell(&mut self, word: &str) {
        writeln!(self.child.stdin.as_mut().unwrap(), "{word}").unwrap();
    }

    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What this process is to do, if it is the other one.
pub(crate) fn role() -> Option<(String, std::path::PathBuf)> {
    Some((std::env::var(ROLE).ok()?, std::env::var_os(FILE)?.into()))
}

pub(crate) fn say(word: impl std::fmt::Display) {
    println!("@{word}");
    std::io::stdout().flush().unwrap();
}

pub(crate) fn listen() -> String {
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    line.trim().to_owned()
}

/// A generator that repeats by its seed, which the test prints.
pub(crate) struct Chance(u64);

impl Chance {
    pub(crate) fn new(seed: u64) -> Chance {
        Chance(seed | 1)
    }

    pub(crate) fn fresh() -> Chance {
        let mut bytes = [0; 8];
        System::current().fill(&mut bytes);
        let seed = u64::from_ne_bytes(bytes);
        println!("seed {seed}");
        Chance::new(seed)
    }

    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}

/// Whether this process may mount file systems. A test that needs to says so by failing, unless told not to.
pub(crate) fn is_privileged() -> bool {
    let root = rustix::process::geteuid().is_root();
    let excused = std::env::var_os("LEASEHOLD_TEST_UNPRIVILEGED").is_some_and(|value| value == "1");
    assert!(
        root || excused,
        "this test mounts file systems: run it as root, or set LEASEHOLD_TEST_UNPRIVILEGED=1"
    );
    root
}

/// Runs a command that must succeed.
pub(crate) fn shell(command: &str) {
    let status = Command::new("sh").args(["-ec", command]).status().unwrap();
    assert!(status.success(), "{command}: {status}");
}

/// A file system of its own, gone with this value.
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
