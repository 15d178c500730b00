//! Runs the real program on a SQLite store of its own, with live and dead holders.
#![allow(dead_code, clippy::unwrap_used, reason = "tests; each file uses a part")]

use std::{
    io::{BufRead as _, BufReader, Read as _},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use leasehold::{Client, FencingToken};
use serde_json::Value;
use tempfile::TempDir;

#[path = "../support/default_signals.rs"]
mod default_signals;

/// How long a test waits for the end of a process.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A SQLite store in a temporary directory.
pub(crate) struct TestStore(TempDir);

/// The exit code and the output of a call of the program.
#[derive(Debug)]
pub(crate) struct CallOutput {
    pub(crate) code: i32,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl CallOutput {
    /// Panics unless the call succeeded. What it printed on stdout.
    #[track_caller]
    pub(crate) fn ok(self) -> String {
        assert_eq!(self.code, 0, "{self:?}");
        self.out
    }

    /// Panics unless the call ended with this code and its stderr contains all of these texts.
    #[track_caller]
    pub(crate) fn fails(self, code: i32, words: &[&str]) {
        assert_eq!(self.code, code, "{self:?}");
        words.iter().for_each(|word| assert!(self.err.contains(word), "{word:?} is not in {:?}", self.err));
    }
}

impl TestStore {
    /// An empty store. Its file exists: commands that look create none.
    pub(crate) fn new() -> TestStore {
        let store = TestStore(tempfile::tempdir().unwrap());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async { leasehold::connect(&store.url()).await.unwrap() });
        store
    }

    pub(crate) fn url(&self) -> String {
        format!("sqlite:{}/leases.db", self.0.path().display())
    }

    /// The directory of the store.
    pub(crate) fn path(&self) -> &std::path::Path {
        self.0.path()
    }

    pub(crate) fn command(&self, words: &[&str]) -> Command {
        let mut command = default_signals::command(env!("CARGO_BIN_EXE_leasehold"));
        command.args(words).stdin(Stdio::null());
        for name in ["LEASEHOLD_OPERATOR", "NO_COLOR", "SUDO_USER", "LEASEHOLD_CONFIG", "TERM"] {
            command.env_remove(name);
        }
        command.env("LEASEHOLD_STORE", self.url()).env("USER", "anna").env("XDG_CONFIG_HOME", self.0.path());
        command
    }

    pub(crate) fn call(&self, words: &[&str]) -> CallOutput {
        let output = self.command(words).output().unwrap();
        CallOutput {
            code: output.status.code().unwrap_or(-1),
            out: String::from_utf8(output.stdout).unwrap(),
            err: String::from_utf8(output.stderr).unwrap(),
        }
    }

    /// What the call prints with `--json`, whatever its exit code.
    #[track_caller]
    pub(crate) fn json(&self, words: &[&str]) -> Value {
        let output = self.call(&[words, &["--json"]].concat());
        serde_json::from_str(&output.out).unwrap_or_else(|error| panic!("{error}: {output:?}"))
    }

    /// The error of the call with `--json`.
    #[track_caller]
    pub(crate) fn json_error(&self, words: &[&str]) -> Value {
        let output = self.call(&[words, &["--json"]].concat());
        let last = output.err.lines().last().unwrap_or("");
        serde_json::from_str::<Value>(last).unwrap_or_else(|error| panic!("{error}: {output:?}"))["error"]
            .take()
    }

    /// A live holder: `leasehold run`, which renews its lease.
    pub(crate) fn hold(&self, words: &[&str]) -> Running {
        let script = ["--", "sh", "-c", "echo $LEASEHOLD_TOKEN; exec sleep 120"];
        let mut command = self.command(&[&["run"], words, &script].concat());
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut token = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut token).unwrap();
        assert!(!token.is_empty(), "{words:?} is not held");
        Running { child, token: token.trim().to_owned() }
    }

    /// A claim that waits in the queue.
    pub(crate) fn wait_for(&self, resource: &str) -> Running {
        let before = self.json(&["show", resource])["line_length"].as_u64().unwrap();
        let child = self.command(&["run", resource, "--label", "waiter", "--", "true"]).spawn().unwrap();
        eventually(|| self.json(&["show", resource])["line_length"].as_u64().unwrap() > before);
        Running { child, token: String::new() }
    }

    /// Runs `work` with a client of the library. The client stops afterwards, so leases that `work` has
    /// forgotten are not renewed any more.
    pub(crate) fn with_client<T>(&self, label: &str, work: impl AsyncFnOnce(&Client) -> T) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let work = async {
            let backend = leasehold::open(&self.url()).await.unwrap();
            let client = Client::builder(backend).label(label).build();
            let result = work(&client).await;
            std::mem::forget(client);
            result
        };
        let result = runtime.block_on(work);
        runtime.shutdown_background();
        result
    }

    /// A holder that has stopped renewing, as if it hung.
    pub(crate) fn dead_holder(&self, kind: &str, id: &str, ttl: Duration, label: &str) -> FencingToken {
        self.with_client(label, async |client| {
            let lease = client.lease(kind, id).ttl(ttl).acquire().await.unwrap();
            let token = lease.token();
            std::mem::forget(lease);
            token
        })
    }
}

/// A process that is killed at the end of the test.
pub(crate) struct Running {
    pub(crate) child: Child,
    pub(crate) token: String,
}

impl Running {
    /// Waits for the end. The exit code, and what the process printed on stderr.
    pub(crate) fn end(mut self) -> (i32, String) {
        let until = Instant::now() + TIMEOUT;
        while self.child.try_wait().unwrap().is_none() {
            assert!(Instant::now() < until, "it does not end");
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

/// Waits until the condition is true. Panics after a while.
#[track_caller]
pub(crate) fn eventually(mut condition: impl FnMut() -> bool) {
    let began = Instant::now();
    while !condition() {
        assert!(began.elapsed() < Duration::from_secs(20), "gave up waiting");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Panics if the text has characters that a terminal acts on.
#[track_caller]
pub(crate) fn assert_printable(text: &str) {
    let bad = |c: char| {
        (c.is_control() && c != '\n') || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    assert!(!text.chars().any(bad), "{text:?}");
}
