//! A process that holds a lease, which a test can kill, stop and continue.
//!
//! The program is `leasehold-client-process` of this package, or any other program with the same protocol: it
//! prints `waiting`, then `granted TOKEN`, and one line for each command that it reads.

mod program;

pub use program::{main, main_with_tests, program_with_tests};

use std::{
    io::{BufRead, BufReader, Write},
    path::Path,
    process::{Child, ChildStdin, Command, Stdio},
    sync::mpsc::{Receiver, RecvTimeoutError, channel},
    time::Duration,
};

use leasehold_core::FencingToken;

use crate::command_with_default_signals;

/// How long a client process may take to print an expected line, on a loaded machine.
const LINE_TIMEOUT: Duration = Duration::from_secs(30);

/// A running client process. It is killed when this handle is dropped.
#[derive(Debug)]
pub struct ClientProcess {
    child: Child,
    input: ChildStdin,
    lines: Receiver<String>,
}

impl ClientProcess {
    /// Starts the program at `path` and returns when it waits for the lease.
    ///
    /// # Panics
    /// If it cannot be started.
    pub fn start(path: &Path, url: &str, resource: &str, ttl: Duration) -> ClientProcess {
        ClientProcess::start_with(path, &[url, resource, &ttl.as_millis().to_string()])
    }

    /// Starts another program with the same protocol.
    ///
    /// # Panics
    /// If it cannot be started.
    pub fn start_with(path: &Path, arguments: &[&str]) -> ClientProcess {
        let mut child = command_with_default_signals(path)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("`env` can be started");
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
        let process = ClientProcess { child, input, lines };
        process.expect_line("waiting");
        process
    }

    /// The next line of its output, if it prints one within `at_most`.
    pub fn line_within(&self, at_most: Duration) -> Option<String> {
        self.lines.recv_timeout(at_most).ok()
    }

    /// Waits for the next line, which must begin with `beginning`. Returns the rest of the line.
    ///
    /// # Panics
    /// If the line begins otherwise, or no line comes in time.
    pub fn expect_line(&self, beginning: &str) -> String {
        let line = match self.lines.recv_timeout(LINE_TIMEOUT) {
            Ok(line) => line,
            Err(RecvTimeoutError::Timeout) => {
                panic!("the client process did not print {beginning:?} within {LINE_TIMEOUT:?}")
            }
            Err(RecvTimeoutError::Disconnected) => {
                panic!("the client process ended before it printed {beginning:?}")
            }
        };
        match line.strip_prefix(beginning) {
            Some(rest) => rest.trim().to_owned(),
            None => panic!("the client process printed {line:?}, expected {beginning:?}"),
        }
    }

    /// Waits until the process is granted the lease. Returns the fencing token.
    ///
    /// # Panics
    /// If that takes too long.
    pub fn granted(&self) -> FencingToken {
        self.expect_line("granted").parse().expect("a token")
    }

    /// Sends a command: a line on its standard input.
    ///
    /// # Panics
    /// If the process has closed its input.
    pub fn send(&mut self, command: &str) {
        writeln!(self.input, "{command}").expect("the client process reads its input");
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends a signal, by the name that `kill` knows: `STOP`, `CONT`, `KILL`.
    ///
    /// # Panics
    /// If it cannot be sent.
    pub fn signal(&self, name: &str) {
        let sent = Command::new("kill").args([&format!("-{name}"), &self.pid().to_string()]).status();
        assert!(sent.is_ok_and(|status| status.success()), "kill -{name}");
    }

    /// Kills the process, as a crash would: it releases nothing.
    ///
    /// # Panics
    /// If it cannot be killed.
    pub fn kill(mut self) {
        self.child.kill().expect("a child can be killed");
        self.child.wait().expect("a killed child ends");
    }
}

impl Drop for ClientProcess {
    fn drop(&mut self) {
        // Errors are ignored: the process may have ended already.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}
