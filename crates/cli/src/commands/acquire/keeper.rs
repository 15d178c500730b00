//! The keeper of `leasehold acquire --keep PID`: a process in the background that holds the lease as long as PID lives.
//!
//! 1. It starts as a child of the process that the shell waits for, with a socket to it as stdin. It makes a session of its own, so
//!    that no terminal sends it signals.
//! 2. It acquires the lease. Until then it may print on the shell's stderr: who holds the resource, or what is wrong.
//! 3. It lets go of the shell: stdout, stderr, every inherited file, the directory. A `$(…)` would wait for them.
//! 4. It sends the lease to the process that the shell waits for. If that ends before it has printed the lease, nobody has the owner
//!    token, and the lease is released.
//! 5. [`Keeping::hold`] waits for the first of: the process ends, the owner releases the lease, the lease is lost, a signal.

use std::{
    fs, io,
    os::fd::{AsFd as _, RawFd},
    process::ExitCode,
    time::Duration,
};

use leasehold::{Clock as _, FinishRequest, Released, Resource, SystemClock, Timestamp};
use rustix::process::{Signal, chdir, setsid};
use tokio::{io::AsyncWriteExt as _, net::UnixStream};

use super::{
    Acquire, Acquired, Interruption, OnLoss, by_calendar,
    control::{Control, ReleaseReply},
    granted::Granted,
};
use crate::{
    args::Global,
    commands::Context,
    exit::Failure,
    held_leases::HeldLeases,
    kept_process::KeptProcess,
    lease_file::{LeaseFile, LeaseRecord, RecordedState},
    output::Output,
    process_id::ProcessId,
    signals::{Signals, ended_by},
    syslog,
};

/// The hidden word that makes the program a keeper. The process to keep the lease for follows.
pub(super) const COMMAND: &str = "__keep";
/// What the process that printed the lease sends.
pub(super) const PRINTED: &[u8] = b"p";
/// How long to wait for the store when the lease is released at the end.
const RELEASE_MAX: Duration = Duration::from_secs(30);

/// A keeper that has just been started.
#[derive(Debug)]
pub(crate) struct KeeperStart {
    process: ProcessId,
    /// The files that were inherited, besides stdin, stdout and stderr.
    inherited: Vec<RawFd>,
}

impl KeeperStart {
    /// Takes the words of a keeper out of the command line. `None` if this process is no keeper. Called before anything is opened.
    pub(crate) fn take(words: &mut Vec<std::ffi::OsString>) -> Option<KeeperStart> {
        if words.get(1).is_none_or(|word| word != COMMAND) {
            return None;
        }
        let process = ProcessId::read(words.get(2)?.to_str()?)?;
        words.drain(1..3);
        Some(KeeperStart { process, inherited: inherited_files() })
    }

    pub(super) async fn run(
        self,
        acquire: &Acquire,
        global: &Global,
        output: Output,
    ) -> Result<ExitCode, Failure> {
        let _ = setsid(); // it fails only if this process leads a group, which a child never does
        let shell = WaitingProcess::on_stdin().map_err(Failure::host)?;
        let mut signals = Signals::ending().map_err(Failure::host)?;
        let ended = || has_ended(&acquire.resource, self.process.pid);
        let process = KeptProcess::open(self.process).map_err(Failure::host)?.ok_or_else(ended)?;
        let context = Context::new(global, output)?;
        let interruption = Box::pin(async {
            tokio::select! {
                _ = shell.answer() => Interruption::NobodyWaits,
                () = process.ended() => Interruption::ProcessEnded,
            }
        });
        let acquired = match acquire.acquire(global, &context, &mut signals, interruption).await? {
            Ok(acquired) => acquired,
            Err(Interruption::Signal(signal)) => return Ok(ended_by(signal)),
            Err(Interruption::NobodyWaits) => return Ok(ExitCode::FAILURE),
            Err(Interruption::ProcessEnded) => return Err(ended()),
        };
        let Acquired { leases, file, record, granted } = acquired;
        let control = Control::listen(record.held.owner)
            .inspect_err(|error| tracing::warn!(%error, "the keeper cannot be asked to release"))
            .ok();
        let deadline = leases.deadline().unwrap_or_else(|| SystemClock.now());
        let keeping = Keeping { acquire, process, control, deadline, leases, file, record };
        let mut shell = shell;
        let sent = let_go(&self.inherited).is_ok() && shell.send(&granted).await.is_ok();
        keeping.run(sent.then_some(shell), &mut signals).await;
        context.write_metrics();
        Ok(ExitCode::SUCCESS)
    }
}

/// The error for a process that has ended before the lease could be kept for it.
pub(super) fn has_ended(resource: &Resource, pid: i32) -> Failure {
    let message = format!("{resource}: there is no process {pid} to keep the lease for (--keep)");
    Failure::usage(message).hint("name a process that runs, such as $$ for the shell itself")
}

/// The open files besides stdin, stdout and stderr.
fn inherited_files() -> Vec<RawFd> {
    let names = fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
    let files: Vec<RawFd> = names.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    // The directory itself was among them, and is closed now.
    let is_open = |fd: &RawFd| fs::symlink_metadata(format!("/proc/self/fd/{fd}")).is_ok();
    files.into_iter().filter(|fd| *fd > 2).filter(is_open).collect()
}

/// Lets go of all that belongs to the shell. A password file may have been among the inherited files, so not earlier.
fn let_go(inherited: &[RawFd]) -> io::Result<()> {
    let null = fs::OpenOptions::new().read(true).write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdout(&null)?;
    rustix::stdio::dup2_stderr(&null)?;
    for fd in inherited {
        let _ = nix::unistd::close(*fd);
    }
    chdir("/").map_err(Into::into)
}

/// The process that prints the lease, at the other end of our stdin.
struct WaitingProcess(UnixStream);

impl WaitingProcess {
    fn on_stdin() -> io::Result<WaitingProcess> {
        let socket = std::os::unix::net::UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
        socket.set_nonblocking(true)?;
        Ok(WaitingProcess(UnixStream::from_std(socket)?))
    }

    async fn send(&mut self, granted: &Granted) -> io::Result<()> {
        self.0.write_all((serde_json::to_string(granted)? + "\n").as_bytes()).await
    }

    /// Whether the other process has printed the lease. It has not if it ends before it says so.
    ///
    /// # Cancel safety
    /// No answer is lost.
    async fn answer(&self) -> bool {
        let mut byte = [0; 1];
        loop {
            if self.0.readable().await.is_err() {
                return false;
            }
            match self.0.try_read(&mut byte) {
                Ok(length) => return length == 1,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(_) => return false,
            }
        }
    }
}

/// Why the keeper ends.
enum Ending {
    /// The process has ended, or nobody has the owner token.
    Unused,
    Requested(ReleaseReply),
    Lost(String),
    /// This process was told to end.
    Signal(Signal),
}

/// A lease that is kept.
struct Keeping<'a> {
    acquire: &'a Acquire,
    process: KeptProcess,
    control: Option<Control>,
    /// Until when no other claim is granted, unless the lease is renewed.
    deadline: Timestamp,
    leases: HeldLeases,
    file: Option<LeaseFile>,
    record: LeaseRecord,
}

impl Keeping<'_> {
    /// Keeps the lease, and releases it at the end. `shell` is the process that prints the lease, if it could be told.
    async fn run(mut self, shell: Option<WaitingProcess>, signals: &mut Signals) {
        let ending = match shell {
            Some(shell) => self.hold(shell, signals).await,
            None => Ending::Unused,
        };
        let mut reply = None;
        let (is_lost, is_told) = (matches!(ending, Ending::Lost(_)), matches!(ending, Ending::Signal(_)));
        match ending {
            Ending::Unused => {}
            Ending::Requested(to) => reply = Some(to),
            Ending::Lost(why) => reply = self.lost(&why).await,
            Ending::Signal(signal) => reply = self.told_to_end(signal).await,
        }
        let Keeping { leases, file, record, process, .. } = self;
        if is_told && reply.is_none() && !process.has_ended() {
            // It still works: nobody else may be granted at once.
            return leases.leave();
        }
        let release = tokio::time::timeout(RELEASE_MAX, leases.release(None));
        let released = release.await.unwrap_or_else(|_| {
            Err(leasehold::Error::new(
                leasehold::ErrorKind::Unavailable,
                "the store did not reply to the release",
            ))
        });
        if !is_lost && matches!(released, Ok(Released::Now | Released::StillHeld)) {
            let _ = file.map(|file| file.released(&record.held));
        }
        if let Some(reply) = reply {
            reply.send(&released).await;
        }
    }

    /// Waits until there is a reason to end. Renewals go on meanwhile.
    async fn hold(&mut self, shell: WaitingProcess, signals: &mut Signals) -> Ending {
        let (mut ended, mut asked) = (self.leases.ended(), self.leases.finish_requested());
        let (mut is_printed, mut was_asked) = (false, false);
        loop {
            tokio::select! {
                biased;
                () = self.process.ended() => return Ending::Unused,
                reply = release_requested(self.control.as_ref()) => return Ending::Requested(reply),
                (_, reason) = &mut ended => return Ending::Lost(reason.to_string()),
                signal = signals.next() => return Ending::Signal(signal),
                printed = shell.answer(), if !is_printed => {
                    if !printed {
                        return Ending::Unused;
                    }
                    is_printed = true;
                    forget_stdin();
                }
                () = self.leases.deadline_changed() => self.renewed(),
                request = &mut asked, if !was_asked => {
                    was_asked = true;
                    request.iter().for_each(|request| self.finish_requested(request));
                }
            }
        }
    }

    fn renewed(&mut self) {
        let Some(deadline) = self.leases.deadline() else { return };
        self.deadline = deadline;
        self.record.deadline = by_calendar(deadline);
        self.update_file();
    }

    fn update_file(&self) {
        if let Some(Err(error)) = self.file.as_ref().map(|file| file.update(&self.record)) {
            self.log(&format!("the lease file cannot be written: {error}"));
        }
    }

    fn finish_requested(&self, request: &FinishRequest) {
        self.log(&format!("{} asks to finish: {}", request.by, request.why));
        if let Some(signal) = self.acquire.on_ask {
            self.process.signal(signal);
        }
    }

    /// Tells the process that its lease is lost. No other claim is granted before the deadline, unless the lease was taken from us.
    async fn lost(&mut self, why: &str) -> Option<ReleaseReply> {
        self.tell_process(&format!("the lease is lost: {why}"));
        self.record.state = RecordedState::Lost;
        self.update_file();
        self.until_process_ends(self.deadline).await
    }

    /// Without its keeper the process would work on without a lease, so it is told as if the lease were lost. It has one ttl to end,
    /// and what remains of the lease then.
    async fn told_to_end(&self, signal: Signal) -> Option<ReleaseReply> {
        self.tell_process(&format!("the keeper of the lease got signal {}", signal.as_raw()));
        match self.on_loss() {
            OnLoss::Nothing => None,
            OnLoss::Signal(_) => self.until_process_ends(SystemClock.now().after(self.record.held.ttl)).await,
        }
    }

    fn on_loss(&self) -> OnLoss {
        self.acquire.on_loss.unwrap_or(OnLoss::Signal(Signal::TERM))
    }

    fn tell_process(&self, why: &str) {
        self.log(why);
        if let OnLoss::Signal(signal) = self.on_loss() {
            self.process.signal(signal);
            // A stopped process acts on a signal only when it is continued.
            self.process.signal(Signal::CONT);
        }
    }

    /// Waits until the process has ended, at most until this time. Returns early if the owner releases the lease.
    async fn until_process_ends(&self, at_most: Timestamp) -> Option<ReleaseReply> {
        tokio::select! {
            () = self.process.ended() => None,
            reply = release_requested(self.control.as_ref()) => Some(reply),
            () = tokio::time::sleep(SystemClock.now().until(at_most)) => None,
        }
    }

    fn log(&self, text: &str) {
        syslog::warn(&format!("{}: {text}", self.acquire.resource));
    }
}

async fn release_requested(control: Option<&Control>) -> ReleaseReply {
    match control {
        Some(control) => control.release_requested().await,
        None => std::future::pending().await,
    }
}

/// Closes our end of the socket to the process that has printed the lease.
fn forget_stdin() {
    if let Ok(null) = fs::File::open("/dev/null") {
        let _ = rustix::stdio::dup2_stdin(&null);
    }
}
