//! A store of one's own, the real program on it, and holders that live or are dead.
#![allow(dead_code, clippy::unwrap_used, reason = "tests; each file uses a part")]

use std::{
    io::{BufRead as _, BufReader, Read as _},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use leasehold::{Client, FencingToken};
use serde_json::Value;
use tempfile::TempDir;

/// How long anything may take on a loaded machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// A store in a directory of its own.
pub(crate) struct Store(TempDir);

/// What a call of the program came to.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) code: i32,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Answer {
    /// It succeeded, and this is what it printed.
    #[track_caller]
    pub(crate) fn ok(self) -> String {
        assert_eq!(self.code, 0, "{self:?}");
        self.out
    }

    /// It ended with this code, and its error speaks of all of these.
    #[track_caller]
    pub(crate) fn fails(self, code: i32, words: &[&str]) {
        assert_eq!(self.code, code, "{self:?}");
        words.iter().for_each(|word| assert!(self.err.contains(word), "{word:?} is not in {:?}", self.err));
    }
}

impl Store {
    pub(crate) fn new() -> Store {
        Store(tempfile::tempdir().unwrap())
    }

    pub(crate) fn url(&self) -> String {
        format!("sqlite:{}/leases.db", self.0.path().display())
    }

    pub(crate) fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_leasehold"));
        command.args(words).stdin(Stdio::null());
        for name in ["LEASEHOLD_OPERATOR", "NO_COLOR", "SUDO_USER", "LEASEHOLD_CONFIG", "TERM"] {
            command.env_remove(name);
        }
        command.env("LEASEHOLD_STORE", self.url()).env("USER", "anna").env("XDG_CONFIG_HOME", self.0.path());
        command
    }

    pub(crate) fn call(&self, words: &[&str]) -> Answer {
        let output = self.command(words).output().unwrap();
        Answer {
            code: output.status.code().unwrap_or(-1),
            out: String::from_utf8(output.stdout).unwrap(),
            err: String::from_utf8(output.stderr).unwrap(),
        }
    }

    /// What it prints, with `--json`; the call may have found something to complain about.
    #[track_caller]
    pub(crate) fn json(&self, words: &[&str]) -> Value {
        let answer = self.call(&[words, &["--json"]].concat());
        serde_json::from_str(&answer.out).unwrap_or_else(|error| panic!("{error}: {answer:?}"))
    }

    /// The error that it ends with, with `--json`.
    #[track_caller]
    pub(crate) fn json_error(&self, words: &[&str]) -> Value {
        let answer = self.call(&[words, &["--json"]].concat());
        let last = answer.err.lines().last().unwrap_or("");
        serde_json::from_str::<Value>(last).unwrap_or_else(|error| panic!("{error}: {answer:?}"))["error"]
            .take()
    }

    /// A living holder: `leasehold run`, which renews.
    pub(crate) fn hold(&self, words: &[&str]) -> Running {
        let script = ["--", "sh", "-c", "echo $LEASEHOLD_TOKEN; exec sleep 120"];
        let mut command = self.command(&[&["run"], words, &script].concat());
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut token = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut token).unwrap();
        assert!(!token.is_empty(), "{words:?} is not held");
        Running { child, token: token.trim().to_owned() }
    }

    /// A claim that waits in line.
    pub(crate) fn wait_for(&self, resource: &str) -> Running {
        let before = self.json(&["show", resource])["queue_length"].as_u64().unwrap();
        let child = self.command(&["run", resource, "--label", "waiter", "--", "true"]).spawn().unwrap();
        eventually(|| self.json(&["show", resource])["queue_length"].as_u64().unwrap() > before);
        Running { child, token: String::new() }
    }

    /// Runs something with a client of the library, which is gone afterwards: what it forgot is never renewed.
    pub(crate) fn with_client<T>(&self, label: &str, work: impl AsyncFnOnce(&Client) -> T) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let work = async {
            let backend = leasehold::open(&self.url()).await.unwrap();
            let client = Client::builder(backend).label(label).build();
            let answer = work(&client).await;
            std::mem::forget(client);
            answer
        };
        let answer = runtime.block_on(work);
        runtime.shutdown_background();
        answer
    }

    /// A holder that has stopped renewing, as one that hangs.
    pub(crate) fn dead_holder(&self, kind: &str, id: &str, ttl: Duration, label: &str) -> FencingToken {
        self.with_client(label, async |client| {
            let lease = client.lease(kind, id).ttl(ttl).acquire().await.unwrap();
            let token = lease.token();
            std::mem::forget(lease);
            token
        })
    }
}

/// A process that is ended with the test.
pub(crate) struct Running {
    pub(crate) child: Child,
    pub(crate) token: String,
}

impl Running {
    /// Its end: the code, and what it said.
    pub(crate) fn end(mut self) -> (i32, String) {
        let until = Instant::now() + PATIENCE;
        while self.child.try_wait().unwrap().is_none() {
            assert!(Instant::now() < until, "it goes on and on");
            std::thread::sleep(Duration::from_millis(10));
        }
        let code = self.child.wait().unwrap().code().unwrap_or(-1);
        let mut said = String::new();
        self.child.stderr.take().map(|mut err| err.read_to_string(&mut said));
        (code, said)
    }

    /// `kill -9`.
    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[track_caller]
pub(crate) fn eventually(mut is: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is() {
        assert!(began.elapsed() < Duration::from_secs(20), "it never came about");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Nothing that a terminal would obey.
#[track_caller]
pub(crate) fn harmless(text: &str) {
    let bad = |c: char| {
        (c.is_control() && c != '\n') || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    assert!(!text.chars().any(bad), "{text:?}");
}
