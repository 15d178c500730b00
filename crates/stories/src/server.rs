//! A real `leasehold serve`, which the runner kills, replaces and drains.

use std::{
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tokio::{
    io::{AsyncBufReadExt as _, BufReader},
    process::{Child, Command},
};

use crate::driver::PATIENCE;

/// How a server is started.
#[derive(Clone, Debug)]
pub(crate) struct ServerOptions {
    /// The program `leasehold`.
    pub(crate) program: PathBuf,
    /// The URL of the store.
    pub(crate) store: String,
    /// The file with tokens, if the server asks for them.
    pub(crate) tokens: Option<PathBuf>,
    /// Further arguments.
    pub(crate) more: Vec<String>,
}

/// A server. It is killed when this is dropped.
pub(crate) struct Server {
    process: Child,
    pub(crate) port: u16,
}

impl Server {
    /// Starts a server on a free port.
    pub(crate) async fn start(options: &ServerOptions) -> Server {
        Server::start_on(options, 0).await
    }

    /// Starts a server on this port.
    pub(crate) async fn start_on(options: &ServerOptions, port: u16) -> Server {
        let mut command = Command::new(&options.program);
        command.args([
            "--store",
            &options.store,
            "--json",
            "serve",
            "--listen",
            &format!("127.0.0.1:{port}"),
        ]);
        if let Some(file) = &options.tokens {
            command.arg("--tokens").arg(file);
        }
        command.args(&options.more).stdout(Stdio::piped()).stderr(Stdio::inherit()).kill_on_drop(true);
        let mut process = command.spawn().unwrap_or_else(|error| panic!("cannot run {command:?}: {error}"));
        let mut stdout = BufReader::new(process.stdout.take().expect("it is piped"));
        let mut line = String::new();
        let read = tokio::time::timeout(PATIENCE, stdout.read_line(&mut line)).await;
        read.unwrap_or_else(|_| panic!("the server did not say where it listens in {PATIENCE:?}"))
            .expect("a pipe can be read");
        // {"level":"database","listening":"http://127.0.0.1:34567","store":"sqlite:…"}
        let said: Value = serde_json::from_str(&line).unwrap_or_default();
        let port = said["listening"].as_str().and_then(|url| url.rsplit(':').next()?.parse().ok());
        let port = port.unwrap_or_else(|| panic!("the server did not start: {line:?}"));
        Server { process, port }
    }

    /// Kills it, as a power cut does to a process.
    pub(crate) async fn kill(mut self) {
        self.process.kill().await.expect("it can be killed");
    }

    /// Asks it to end, as an upgrade does.
    pub(crate) fn drain(&self) {
        let pid = self.process.id().and_then(|pid| i32::try_from(pid).ok()).and_then(Pid::from_raw);
        kill_process(pid.expect("it runs"), Signal::TERM).expect("it can be signalled");
    }

    /// Waits until it has ended.
    pub(crate) async fn ended(mut self) {
        self.process.wait().await.expect("it can be waited for");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        end(&mut self.process);
    }
}

/// Kills a process and waits for its end, so that it writes nothing to the folder of the story while that is removed.
pub(crate) fn end(process: &mut Child) {
    drop(process.start_kill());
    while let Ok(None) = process.try_wait() {
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Makes a token with this role.
pub(crate) async fn new_token(program: &Path, file: &Path, name: &str, roles: &[&str]) -> String {
    let mut command = Command::new(program);
    command.arg("token").arg("--tokens").arg(file).args(["new", name]);
    for role in roles {
        command.args(["--role", role]);
    }
    let output = command.output().await.unwrap_or_else(|error| panic!("cannot run {command:?}: {error}"));
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}
