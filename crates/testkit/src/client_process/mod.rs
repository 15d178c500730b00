//! A process that holds a lease, to kill, stop and continue. The program is `leasehold-client-process`, of this package.

mod program;

pub use program::{main, main_with_tests, program_with_tests};

use std::{
    io::{BufRead, BufReader, Write},
    path::Path,
    process::{Child, ChildStdin, Command, Stdio},
    sync::mpsc::{Receiver, channel},
    time::Duration,
};

use leasehold_core::FencingToken;

/// How long anything that a taker is to say may take on a loaded machine.
const PATIENCE: Duration = Duration::from_secs(30);

/// A running taker. Killed when dropped.
#[derive(Debug)]
pub struct ClientProcess {
    child: Child,
    input: ChildStdin,
    lines: Receiver<String>,
}

impl ClientProcess {
    /// Starts the program at `path`; it waits for the lease in its own time.
    ///
    /// # Panics
    /// If it cannot be started.
    pub fn start(path: &Path, url: &str, resource: &str, ttl: Duration) -> ClientProcess {
        ClientProcess::start_with(path, &[url, resource, &ttl.as_millis().to_string()])
    }

    /// Starts another program that talks like the taker: `waiting`, `granted TOKEN`, and a line for each command.
    ///
    /// # Panics
    /// If it cannot be started.
    pub fn start_with(path: &Path, arguments: &[&str]) -> ClientProcess {
        let mut child = Command::new(path)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the client_process is built with this package");
        let input = child.stdin.take().expect("piped");
        let output = BufReader::new(child.stdout.take().expect("piped"));
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        let client_process = ClientProcess { child, input, lines };
        client_process.hears("waiting");
        client_process
    }

    /// The next line that it says, if it says one in this time.
    pub fn says_within(&self, at_most: Duration) -> Option<String> {
        self.lines.recv_timeout(at_most).ok()
    }

    /// The next line, which must begin so; returns the rest of it.
    ///
    /// # Panics
    /// If it says something else, or nothing.
    pub fn hears(&self, beginning: &str) -> String {
        let line = self.says_within(PATIENCE).unwrap_or_else(|| panic!("waited in vain for {beginning:?}"));
        match line.strip_prefix(beginning) {
            Some(rest) => rest.trim().to_owned(),
            None => panic!("wanted {beginning:?}, heard {line:?}"),
        }
    }

    /// Waits until it is granted the lease.
    ///
    /// # Panics
    /// If that takes too long.
    pub fn granted(&self) -> FencingToken {
        self.hears("granted").parse().expect("a token")
    }

    /// Gives it a command.
    ///
    /// # Panics
    /// If it does not listen any more.
    pub fn tell(&mut self, command: &str) {
        writeln!(self.input, "{command}").expect("it listens");
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends it a signal by the name that `kill` knows: `STOP`, `CONT`, `KILL`.
    ///
    /// # Panics
    /// If it cannot be sent.
    pub fn signal(&self, name: &str) {
        let sent = Command::new("kill").args([&format!("-{name}"), &self.pid().to_string()]).status();
        assert!(sent.is_ok_and(|status| status.success()), "kill -{name}");
    }

    /// Kills it, as a crash does: no farewell is said.
    ///
    /// # Panics
    /// If it cannot be killed.
    pub fn kill(mut self) {
        self.child.kill().expect("it is ours to kill");
        self.child.wait().expect("it was killed");
    }
}

impl Drop for ClientProcess {
    fn drop(&mut self) {
        // Perhaps it is gone already.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}
