//! The guardian's side: what runs in the guardian process.
//!
//! The main loop ([`GuardianProcess::run`]) repeats these steps:
//!
//! 1. Read all requests that have arrived. `Quit` ends the loop.
//! 2. Take new deadlines over. They may have arrived while this process was stopped, so they come before the
//!    clock.
//! 3. If `leasehold` has gone, begin to stop the command.
//! 4. Look at the clock: begin to stop the command, or kill it.
//! 5. Carry out the other requests. They come after the clock: a command whose time is up must not be
//!    continued by a signal.
//! 6. Reap children and report what happened to the command.
//! 7. Sleep until a child changes, a request arrives, or the next time to act.

use std::{
    ffi::OsString,
    io,
    os::{
        fd::{AsFd as _, OwnedFd},
        unix::{net::UnixStream, process::CommandExt as _},
    },
    process::{Command, ExitCode, Stdio},
    time::Duration,
};

use leasehold::{Clock as _, SystemClock, Timestamp};
use rustix::{
    event::{PollFd, PollFlags, poll},
    io::Errno,
    process::{Pid, Signal, WaitOptions, getpid, kill_process_group, set_child_subreaper, wait},
    time::{
        Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
        timerfd_settime,
    },
};

use super::{
    process_tree,
    protocol::{
        ConnectionBroken, GuardianEvent, GuardianRequest, Packet as _, StartMessage, StopMode, Variable,
    },
};
use crate::{exit::Exit, signals, terminal::Terminal};

/// How long before the deadline the guardian sends KILL at the latest.
const KILL_BEFORE: Duration = Duration::from_millis(250);
/// The pause before processes that are still alive are killed again, together with what they started
/// meanwhile.
const KILL_AGAIN: Duration = Duration::from_millis(10);
/// How often the loop runs if the timer cannot be set.
const POLL_WITHOUT_TIMER: Timespec = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };
/// A timer that is not set.
const NO_TIME: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };

/// Runs a guardian. Its stdin is the socket to `leasehold`, its arguments are the command.
pub(crate) fn main(command: Vec<OsString>) -> ExitCode {
    match GuardianProcess::start(command) {
        Ok(Some(guardian)) => guardian.run(),
        Ok(None) => {}
        Err(_) => return ExitCode::from(Exit::Internal.code()),
    }
    ExitCode::SUCCESS
}

struct GuardianProcess {
    /// The socket to `leasehold`.
    socket: OwnedFd,
    /// Readable when a child has changed: the handler of SIGCHLD writes to its other end.
    children: UnixStream,
    timer: OwnedFd,
    /// As `leasehold` sent it, but for the deadline: renewals move it.
    start: StartMessage,
    command: Pid,
    /// The command was reaped. Its pid may belong to another process now, so it must not be signalled any
    /// more.
    is_reaped: bool,
    state: CommandState,
    /// `leasehold` has gone: the socket is closed.
    is_alone: bool,
    /// Processes of other users, which cannot be killed and were reported.
    unkillable: Vec<Pid>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CommandState {
    Running,
    /// The command has got TERM and gets KILL at this time.
    Stopping {
        kill_at: Timestamp,
    },
    /// The command and all its descendants have ended.
    AllDead,
}

impl GuardianProcess {
    /// Waits for the [`StartMessage`] and starts the command. `None` if there is nothing to guard: `leasehold`
    /// has ended before, or the command cannot be started, which was reported to `leasehold`.
    fn start(mut command: Vec<OsString>) -> io::Result<Option<GuardianProcess>> {
        // Not the name of the program: after `killall -9 leasehold`, the guardian must be left to end the
        // command.
        let _ = rustix::thread::set_name(c"guardian");
        let socket = io::stdin().as_fd().try_clone_to_owned()?;
        set_child_subreaper(Some(getpid()))?;
        signals::catch_ending()?;
        let (children, child_changed) = UnixStream::pair()?;
        children.set_nonblocking(true)?;
        signal_hook::low_level::pipe::register(Signal::CHILD.as_raw(), child_changed)?;
        // The boot clock goes on while the machine sleeps, as the lease does in the store.
        let timer = timerfd_create(TimerfdClockId::Boottime, TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK)?;
        // This waits until `leasehold` has the lease. Without a message, it has ended or needs no guardian.
        let Ok((start, stdin, variables)) = StartMessage::receive(&socket) else { return Ok(None) };
        if command.is_empty() {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let arguments = command.split_off(1);
        let to_start = CommandToStart { program: &command[0], arguments: &arguments, variables, stdin };
        let pid = match to_start.spawn() {
            Ok(pid) => pid,
            Err(error) => {
                GuardianEvent::NotStarted(error.raw_os_error().unwrap_or(0)).send(&socket)?;
                return Ok(None);
            }
        };
        if start.foreground
            && let Some(terminal) = Terminal::controlling()
        {
            terminal.give_to(pid);
        }
        let guardian = GuardianProcess {
            socket,
            children,
            timer,
            start,
            command: pid,
            is_reaped: false,
            state: CommandState::Running,
            is_alone: false,
            unkillable: Vec::new(),
        };
        guardian.report(GuardianEvent::Started(pid.as_raw_pid()));
        Ok(Some(guardian))
    }

    /// The main loop. Its steps are listed at the top of this file.
    fn run(mut self) {
        loop {
            let (requests, is_closed) = self.receive();
            if requests.contains(&GuardianRequest::Quit) {
                return;
            }
            for request in &requests {
                if let GuardianRequest::Deadline(at) = request {
                    self.start.deadline = self.start.deadline.max(*at);
                }
            }
            if is_closed && !self.is_alone {
                self.is_alone = true;
                self.stop(StopMode::Graceful);
            }
            self.act_on_time();
            for request in requests {
                match request {
                    GuardianRequest::Deadline(_) | GuardianRequest::Quit => {}
                    GuardianRequest::Signal(number) => self.forward(number),
                    GuardianRequest::Stop(mode) => self.stop(mode),
                }
            }
            self.reap();
            if self.is_alone && self.state == CommandState::AllDead {
                return;
            }
            self.sleep();
        }
    }

    /// All requests that have arrived, and whether `leasehold` has closed the socket.
    fn receive(&self) -> (Vec<GuardianRequest>, bool) {
        let mut requests = Vec::new();
        if self.is_alone {
            return (requests, true);
        }
        loop {
            match GuardianRequest::receive(&self.socket) {
                Ok(Some(request)) => requests.push(request),
                Ok(None) => return (requests, false),
                Err(ConnectionBroken) => return (requests, true),
            }
        }
    }

    fn act_on_time(&mut self) {
        let now = SystemClock.now();
        match self.state {
            CommandState::Running if now >= self.stop_at() => {
                self.report(GuardianEvent::Stopping);
                self.stop(StopMode::Graceful);
            }
            CommandState::Stopping { kill_at } if now >= kill_at => self.kill(now),
            _ => {}
        }
    }

    fn stop_at(&self) -> Timestamp {
        self.start.deadline.before(self.start.stop_before)
    }

    fn stop(&mut self, mode: StopMode) {
        let now = SystemClock.now();
        let kill_at = match (mode, self.state) {
            (_, CommandState::AllDead) | (StopMode::Graceful, CommandState::Stopping { .. }) => return,
            (StopMode::Immediate, _) => now,
            (StopMode::Graceful, CommandState::Running) => {
                now.after(self.start.grace).min(self.start.deadline.before(KILL_BEFORE))
            }
        };
        self.state = CommandState::Stopping { kill_at };
        if now >= kill_at {
            return self.kill(now);
        }
        // CONT after TERM: a stopped process acts on TERM only when it is continued.
        for signal in [Signal::TERM, Signal::CONT] {
            self.forward(signal.as_raw());
            // The process group of the command has the signal already. These are the descendants outside of
            // it.
            let group = if self.is_reaped { 0 } else { self.command.as_raw_pid() };
            for process in process_tree::descendants(getpid()).iter().filter(|process| process.group != group)
            {
                let _ = process.signal(signal); // it may have ended meanwhile
            }
        }
    }

    fn kill(&mut self, now: Timestamp) {
        self.state = CommandState::Stopping { kill_at: now.after(KILL_AGAIN) };
        for pid in process_tree::kill_descendants(getpid()) {
            if !self.unkillable.contains(&pid) {
                self.unkillable.push(pid);
                self.report(GuardianEvent::CannotKill(pid.as_raw_pid()));
            }
        }
    }

    /// Sends a signal to the process group of the command.
    fn forward(&self, number: i32) {
        if let Some(signal) = Signal::from_named_raw(number)
            && !self.is_reaped
        {
            let _ = kill_process_group(self.command, signal); // the group may have ended
        }
    }

    fn reap(&mut self) {
        loop {
            match wait(WaitOptions::NOHANG | WaitOptions::UNTRACED) {
                Ok(Some((pid, status))) if pid == self.command => {
                    if let Some(signal) = status.stopping_signal() {
                        self.report(GuardianEvent::Stopped(signal));
                        continue;
                    }
                    self.is_reaped = true;
                    let killed = status.terminating_signal().map(GuardianEvent::Killed);
                    self.report(
                        killed.unwrap_or_else(|| GuardianEvent::Exited(status.exit_status().unwrap_or(0))),
                    );
                }
                Ok(Some(_)) | Err(Errno::INTR) => {}
                Ok(None) => return,
                // ECHILD: no child is left, so no descendant is left (this process is a subreaper).
                Err(_) => {
                    if matches!(self.state, CommandState::Stopping { .. }) {
                        self.state = CommandState::AllDead;
                        self.report(GuardianEvent::AllDead);
                    }
                    return;
                }
            }
        }
    }

    /// Sleeps until a child changes, a request arrives, or it is time to stop or to kill.
    fn sleep(&self) {
        let wake_at = match self.state {
            CommandState::Running => self.stop_at(),
            CommandState::Stopping { kill_at } => kill_at,
            CommandState::AllDead => Timestamp::NEVER,
        };
        let is_set = self.set_timer(wake_at);
        let mut files =
            vec![PollFd::new(&self.children, PollFlags::IN), PollFd::new(&self.timer, PollFlags::IN)];
        if !self.is_alone {
            files.push(PollFd::new(&self.socket, PollFlags::IN));
        }
        // An early return does no harm: the loop looks at everything again.
        let _ = poll(&mut files, (!is_set).then_some(&POLL_WITHOUT_TIMER));
        let mut bytes = [0; 64];
        while matches!(io::Read::read(&mut &self.children, &mut bytes), Ok(64)) {}
    }

    /// Sets the timer to an absolute time of the boot clock. If the machine sleeps past it, the timer fires
    /// as soon as the machine wakes up. False if the kernel refuses.
    fn set_timer(&self, at: Timestamp) -> bool {
        let (seconds, nanos) = (at.as_nanos() / 1_000_000_000, at.as_nanos() % 1_000_000_000);
        let value = Timespec {
            tv_sec: i64::try_from(seconds).unwrap_or(i64::MAX),
            tv_nsec: i64::try_from(nanos.max(1)).unwrap_or(1), // zero would turn the timer off
        };
        let value = if at == Timestamp::NEVER { NO_TIME } else { value };
        let alarm = Itimerspec { it_interval: NO_TIME, it_value: value };
        timerfd_settime(&self.timer, TimerfdTimerFlags::ABSTIME, &alarm).is_ok()
    }

    /// Reports to `leasehold`. If `leasehold` has gone, nobody needs the report.
    fn report(&self, event: GuardianEvent) {
        let _ = event.send(&self.socket);
    }
}

/// What the command is started with.
struct CommandToStart<'a> {
    program: &'a OsString,
    arguments: &'a [OsString],
    /// In addition to the variables of this process.
    variables: Vec<Variable>,
    stdin: OwnedFd,
}

impl CommandToStart<'_> {
    /// Starts the command in a process group of its own.
    fn spawn(self) -> io::Result<Pid> {
        let mut command = Command::new(self.program);
        command.args(self.arguments);
        match self.spawn_as(command) {
            // A script without `#!` is run by the shell, as shells and flock do it.
            Err(error) if error.raw_os_error() == Some(Errno::NOEXEC.raw_os_error()) => {
                let mut shell = Command::new("/bin/sh");
                shell.args(["-c", "exec \"$0\" \"$@\""]).arg(self.program).args(self.arguments);
                self.spawn_as(shell)
            }
            started => started,
        }
    }

    fn spawn_as(&self, mut command: Command) -> io::Result<Pid> {
        command.envs(self.variables.iter().map(|(name, value)| (name, value)));
        let child = command.stdin(Stdio::from(self.stdin.try_clone()?)).process_group(0).spawn()?;
        let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        pid.ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData))
    }
}
