//! The guardian's end: starts the command, watches the deadline, passes signals on, and ends what must end.

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
    descendants,
    wire::{Begin, Broken, Manner, News, Packet as _, Wish},
};
use crate::{exit::Exit, signals, terminal::Terminal};

/// How long before the deadline the last KILL is sent.
pub(crate) const KILL_BEFORE: Duration = Duration::from_millis(250);
/// How often those who do not die are killed again, together with what they started meanwhile.
const KILL_AGAIN: Duration = Duration::from_millis(10);

/// Is a guardian: its stdin is the link, its arguments are the command.
pub(crate) fn main(command: Vec<OsString>) -> ExitCode {
    match Watch::begin(command) {
        Ok(Some(watch)) => watch.keep(),
        Ok(None) => {}
        Err(_) => return ExitCode::from(Exit::Internal.code()),
    }
    ExitCode::SUCCESS
}

struct Watch {
    link: OwnedFd,
    /// Readable when a child has changed.
    children: UnixStream,
    timer: OwnedFd,
    begin: Begin,
    command: Pid,
    /// The command was reaped: its pid is nobody's, or somebody else's.
    is_reaped: bool,
    stage: Stage,
    /// `leasehold` is gone.
    is_alone: bool,
    /// Whom we may not kill, once told.
    untouchable: Vec<Pid>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Running,
    Stopping { kill_at: Timestamp },
    AllDead,
}

impl Watch {
    /// None if the command could not be started: that has been told.
    fn begin(mut command: Vec<OsString>) -> io::Result<Option<Watch>> {
        // Not the program's name: `killall -9 leasehold` is to leave someone who ends the command.
        let _ = rustix::thread::set_name(c"guardian");
        let link = io::stdin().as_fd().try_clone_to_owned()?;
        set_child_subreaper(Some(getpid()))?;
        signals::outlive()?;
        let (children, bell) = UnixStream::pair()?;
        children.set_nonblocking(true)?;
        signal_hook::low_level::pipe::register(Signal::CHILD.as_raw(), bell)?;
        let timer = timerfd_create(TimerfdClockId::Boottime, TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK)?;
        let (begin, stdin) = Begin::receive(&link).map_err(|Broken| io::ErrorKind::BrokenPipe)?;
        if command.is_empty() {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let arguments = command.split_off(1);
        let pid = match start(&command[0], &arguments, &stdin) {
            Ok(pid) => pid,
            Err(error) => {
                News::NotStarted(error.raw_os_error().unwrap_or(0)).send(&link)?;
                return Ok(None);
            }
        };
        if begin.foreground
            && let Some(terminal) = Terminal::controlling()
        {
            terminal.give_to(pid);
        }
        tell(&link, News::Started(pid.as_raw_pid()));
        Ok(Some(Watch {
            link,
            children,
            timer,
            begin,
            command: pid,
            is_reaped: false,
            stage: Stage::Running,
            is_alone: false,
            untouchable: Vec::new(),
        }))
    }

    fn keep(mut self) {
        loop {
            let (wishes, gone) = self.hear();
            if wishes.contains(&Wish::ReleaseRequest) {
                return;
            }
            // New deadlines first: they may have come while this process was stopped. Then the clock, and only then
            // what else is wished: a command whose time is up is not woken by a signal.
            for wish in &wishes {
                if let Wish::Deadline(at) = wish {
                    self.begin.deadline = self.begin.deadline.max(*at);
                }
            }
            if gone && !self.is_alone {
                self.is_alone = true;
                self.stop(Manner::Gently);
            }
            self.look_at_the_clock();
            for wish in wishes {
                match wish {
                    Wish::Deadline(_) | Wish::ReleaseRequest => {}
                    Wish::Signal(number) => self.pass_on(number),
                    Wish::Stop(manner) => self.stop(manner),
                }
            }
            self.reap();
            if self.is_alone && self.stage == Stage::AllDead {
                return;
            }
            self.sleep();
        }
    }

    /// Everything that has been said, and whether nobody is there to say more.
    fn hear(&self) -> (Vec<Wish>, bool) {
        let mut wishes = Vec::new();
        if self.is_alone {
            return (wishes, true);
        }
        loop {
            match Wish::receive(&self.link) {
                Ok(Some(wish)) => wishes.push(wish),
                Ok(None) => return (wishes, false),
                Err(Broken) => return (wishes, true),
            }
        }
    }

    fn look_at_the_clock(&mut self) {
        let now = SystemClock.now();
        match self.stage {
            Stage::Running if now >= self.stop_at() => {
                self.tell(News::Stopping);
                self.stop(Manner::Gently);
            }
            Stage::Stopping { kill_at } if now >= kill_at => self.kill(now),
            _ => {}
        }
    }

    fn stop_at(&self) -> Timestamp {
        self.begin.deadline.before(self.begin.stop_before)
    }

    fn stop(&mut self, manner: Manner) {
        let now = SystemClock.now();
        let kill_at = match (manner, self.stage) {
            (_, Stage::AllDead) | (Manner::Gently, Stage::Stopping { .. }) => return,
            (Manner::AtOnce, _) => now,
            (Manner::Gently, Stage::Running) => {
                now.after(self.begin.grace).min(self.begin.deadline.before(KILL_BEFORE))
            }
        };
        self.stage = Stage::Stopping { kill_at };
        if now >= kill_at {
            return self.kill(now);
        }
        // CONT, so that one that is stopped hears the TERM.
        for signal in [Signal::TERM, Signal::CONT] {
            self.pass_on(signal.as_raw());
            let group = if self.is_reaped { 0 } else { self.command.as_raw_pid() };
            for process in descendants::below(getpid()).iter().filter(|process| process.group != group) {
                let _ = process.signal(signal); // what has gone meanwhile need not be told
            }
        }
    }

    fn kill(&mut self, now: Timestamp) {
        self.stage = Stage::Stopping { kill_at: now.after(KILL_AGAIN) };
        for pid in descendants::kill_below(getpid()) {
            if !self.untouchable.contains(&pid) {
                self.untouchable.push(pid);
                self.tell(News::CannotKill(pid.as_raw_pid()));
            }
        }
    }

    fn pass_on(&self, number: i32) {
        if let Some(signal) = Signal::from_named_raw(number)
            && !self.is_reaped
        {
            let _ = kill_process_group(self.command, signal); // a group that is gone need not be told
        }
    }

    fn reap(&mut self) {
        loop {
            match wait(WaitOptions::NOHANG | WaitOptions::UNTRACED) {
                Ok(Some((pid, status))) if pid == self.command => {
                    if let Some(signal) = status.stopping_signal() {
                        self.tell(News::Stopped(signal));
                        continue;
                    }
                    self.is_reaped = true;
                    let killed = status.terminating_signal().map(News::Killed);
                    self.tell(killed.unwrap_or_else(|| News::Exited(status.exit_status().unwrap_or(0))));
                }
                Ok(Some(_)) | Err(Errno::INTR) => {}
                Ok(None) => return,
                Err(_) => {
                    if matches!(self.stage, Stage::Stopping { .. }) {
                        self.stage = Stage::AllDead;
                        self.tell(News::AllDead);
                    }
                    return;
                }
            }
        }
    }

    /// Until a child has changed, something is said, or the time has come.
    fn sleep(&self) {
        let until = match self.stage {
            Stage::Running => self.stop_at(),
            Stage::Stopping { kill_at } => kill_at,
            Stage::AllDead => Timestamp::NEVER,
        };
        // On the boot clock: a machine that slept through the deadline wakes this up first thing.
        let (seconds, nanos) = (until.as_nanos() / 1_000_000_000, until.as_nanos() % 1_000_000_000);
        let never = Timespec { tv_sec: 0, tv_nsec: 0 };
        let at = Timespec {
            tv_sec: i64::try_from(seconds).unwrap_or(i64::MAX),
            tv_nsec: i64::try_from(nanos.max(1)).unwrap_or(1),
        };
        let at = if until == Timestamp::NEVER { never } else { at };
        let alarm = Itimerspec { it_interval: never, it_value: at };
        let armed = timerfd_settime(&self.timer, TimerfdTimerFlags::ABSTIME, &alarm);
        let blind = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };
        let mut files =
            vec![PollFd::new(&self.children, PollFlags::IN), PollFd::new(&self.timer, PollFlags::IN)];
        if !self.is_alone {
            files.push(PollFd::new(&self.link, PollFlags::IN));
        }
        let _ = poll(&mut files, armed.is_err().then_some(&blind)); // woken for nothing, it looks and sleeps again
        let mut bytes = [0; 64];
        while matches!(io::Read::read(&mut &self.children, &mut bytes), Ok(64)) {}
    }

    fn tell(&self, news: News) {
        tell(&self.link, news);
    }
}

/// Whoever is gone need not be told.
fn tell(link: &OwnedFd, news: News) {
    let _ = news.send(link);
}

fn start(program: &OsString, arguments: &[OsString], stdin: &OwnedFd) -> io::Result<Pid> {
    let spawn = |mut command: Command| {
        let child = command.stdin(Stdio::from(stdin.try_clone()?)).process_group(0).spawn()?;
        let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        pid.ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData))
    };
    let mut command = Command::new(program);
    command.args(arguments);
    match spawn(command) {
        // A script without `#!`: the shell's, as for every shell and for flock.
        Err(error) if error.raw_os_error() == Some(Errno::NOEXEC.raw_os_error()) => {
            let mut shell = Command::new("/bin/sh");
            shell.args(["-c", "exec \"$0\" \"$@\""]).arg(program).args(arguments);
            spawn(shell)
        }
        started => started,
    }
}
