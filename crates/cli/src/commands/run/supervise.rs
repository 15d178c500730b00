//! Supervises the command and its lease at the same time.
//!
//! One loop ([`Supervisor::watch`]) waits for the first of these:
//!
//! | what happens | what is done |
//! |---|---|
//! | the guardian reports something | note that the command started, stopped or ended |
//! | the lease ends | have the guardian stop the command |
//! | the guardian is late | kill everything ourselves (ADR 0013) |
//! | a signal arrives | forward it to the command |
//! | the lease is renewed | send the new deadline to the guardian |
//! | an operator asks to finish | print it, and send the signal of `--on-ask` |

use std::time::Duration;

use leasehold::{Clock as _, EndReason, FinishRequest, SystemClock, Timestamp};

use super::{Run, ready_file::ReadyFile, timing::RunTimes};
use crate::{
    claim,
    commands::Context,
    exit::Failure,
    guardian::{
        self, EndingGuardian, Guardian, GuardianEvent, GuardianRequest, StartMessage, StopMode,
        WaitingGuardian,
    },
    held_leases::HeldLeases,
    job_control::JobControl,
    signals::Signals,
    terminal,
};

/// How the command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RunOutcome {
    Exited(i32),
    Killed(i32),
    /// The command could not be started: the errno.
    NotStarted(i32),
    /// The lease was lost. The command and everything that it started are dead.
    Lost,
    /// The guardian was killed. The command and everything that it started are dead.
    Unguarded,
}

/// Runs the command of a run under its lease.
pub(super) struct Supervisor<'a> {
    pub(super) run: &'a Run,
    pub(super) times: &'a RunTimes,
    pub(super) context: &'a Context,
}

/// How often the metrics file is written.
const METRICS_EVERY: Duration = Duration::from_secs(15);
/// How long before the deadline we kill everything ourselves if the guardian has not. It is shorter than the
/// guardian's own reserve (250 ms), so the guardian always comes first.
const RESERVE: Duration = Duration::from_millis(100);

/// A lease that ends more than this before the time to stop has ended early.
const EARLY_BY: Duration = Duration::from_millis(100);

/// Sleeps until this time of the boot clock, for ever without one. The timers of tokio stop while the machine
/// sleeps, so look at the clock again after each.
async fn sleep_until(time: Option<Timestamp>) {
    let Some(time) = time else { return std::future::pending().await };
    while SystemClock.now() < time {
        tokio::time::sleep(SystemClock.now().until(time)).await;
    }
}

impl Supervisor<'_> {
    /// Runs the command. Returns when it has ended; if the lease was lost, when everything that it started
    /// has ended.
    pub(super) async fn supervise(
        &self,
        leases: &mut HeldLeases,
        guardian: WaitingGuardian,
        signals: &mut Signals,
    ) -> Result<(RunOutcome, Option<EndingGuardian>), Failure> {
        let Some(deadline) = leases.deadline() else { return Ok((RunOutcome::Lost, None)) };
        // The lease of an outer run may have another ttl.
        let ttl = leases.ttl();
        let times = if ttl == self.times.ttl { *self.times } else { self.times.within(ttl) };
        let job = JobControl::new();
        let foreground = job.is_foreground_job() && terminal::is_exclusively_ours();
        let start = StartMessage { deadline, stop_before: times.stop_before, grace: times.grace, foreground };
        let guardian = guardian
            .start_command(start, &claim::variables(self.context, self.run.claim.share(), leases))
            .map_err(Failure::host)?;
        let ready_file = ReadyFile::new(self.run.ready_file.clone());
        let mut command = RunningCommand { guardian, job, start, overdue_at: None, ready_file };
        let outcome = self.watch(leases, signals, &mut command).await;
        if outcome == RunOutcome::Lost {
            // Before the release: the engine would take the loss for a release.
            leases.report_losses(times.stop_before);
        }
        command.job.end(matches!(outcome, RunOutcome::Exited(_) | RunOutcome::NotStarted(_)));
        if outcome == RunOutcome::Unguarded {
            guardian::kill_all_descendants();
        }
        Ok((outcome, Some(command.guardian.quit())))
    }

    async fn watch(
        &self,
        leases: &mut HeldLeases,
        signals: &mut Signals,
        command: &mut RunningCommand,
    ) -> RunOutcome {
        let (mut ended, mut finish_requested) = (leases.ended(), leases.finish_requested());
        let mut was_requested = false;
        let mut metrics = tokio::time::interval(METRICS_EVERY);
        loop {
            tokio::select! {
                biased;
                event = command.guardian.next() => {
                    if let Some(outcome) = self.handle(event, leases, command) {
                        return outcome;
                    }
                }
                (resource, reason) = &mut ended, if command.overdue_at.is_none() => {
                    self.context.output.note(&format!("{resource}: {reason}: stopping the command"));
                    command.stop(reason);
                }
                () = sleep_until(command.overdue_at) => {
                    // The guardian is stopped or gets no CPU time. This kills it as well.
                    guardian::kill_all_descendants();
                    return RunOutcome::Lost;
                }
                signal = signals.next() => {
                    command.job.forwarded(signal);
                    command.guardian.request(GuardianRequest::Signal(signal.as_raw()));
                }
                () = leases.deadline_changed() => {
                    if let Some(deadline) = leases.deadline() {
                        command.start.deadline = deadline;
                        command.guardian.request(GuardianRequest::Deadline(deadline));
                    }
                }
                request = &mut finish_requested, if !was_requested => {
                    was_requested = true;
                    request.iter().for_each(|request| self.forward_request(request, &command.guardian));
                }
                _ = metrics.tick() => self.context.write_metrics(),
            }
        }
    }

    /// Handles an event of the guardian. Returns the outcome if the event was the last one.
    fn handle(
        &self,
        event: Option<GuardianEvent>,
        leases: &HeldLeases,
        command: &mut RunningCommand,
    ) -> Option<RunOutcome> {
        // Once the lease is lost, the end of the command is not enough: wait until all that it started is
        // dead.
        let is_lost = command.overdue_at.is_some();
        match event {
            None => return Some(RunOutcome::Unguarded),
            Some(GuardianEvent::NotStarted(errno)) => return Some(RunOutcome::NotStarted(errno)),
            Some(GuardianEvent::Exited(code)) if !is_lost => return Some(RunOutcome::Exited(code)),
            Some(GuardianEvent::Killed(signal)) if !is_lost => return Some(RunOutcome::Killed(signal)),
            Some(GuardianEvent::AllDead) => return Some(RunOutcome::Lost),
            Some(GuardianEvent::Started(pid)) => {
                command.job.started(pid);
                if let Err(error) = command.ready_file.create(leases) {
                    self.note(&format!("cannot write the file of --ready-file: {error}"));
                }
            }
            Some(GuardianEvent::Stopped(signal)) => command.job.stopped(signal, &command.guardian),
            Some(GuardianEvent::Stopping) if !is_lost => {
                command.ready_file.remove();
                command.overdue_at = Some(command.start.deadline.before(RESERVE));
                self.note(&format!("{}: stopping the command", self.stop_reason(leases)));
            }
            Some(GuardianEvent::CannotKill(pid)) => {
                self.note(&format!(
                    "process {pid} belongs to another user and cannot be killed: waiting until it ends"
                ));
            }
            Some(GuardianEvent::Stopping | GuardianEvent::Exited(_) | GuardianEvent::Killed(_)) => {}
        }
        None
    }

    /// Why the lease was not renewed before its deadline came near.
    fn stop_reason(&self, leases: &HeldLeases) -> String {
        match leases.evicted().is_some() {
            true => EndReason::Evicted.to_string(),
            false if self.run.no_renew => "the ttl is over (--no-renew)".to_owned(),
            false => EndReason::Expired.to_string(),
        }
    }

    /// Prints the request of an operator to finish, and sends the signal of `--on-ask`.
    fn forward_request(&self, request: &FinishRequest, guardian: &Guardian) {
        let within = humantime::format_duration(Duration::from_secs(request.within.as_secs()));
        self.note(&format!("{} asks to finish within {within}: {}", request.by, request.why));
        if let Some(signal) = self.run.on_ask {
            guardian.request(GuardianRequest::Signal(signal.as_raw()));
        }
    }

    fn note(&self, text: &str) {
        self.context.output.note(&format!("{}: {text}", self.run.names()));
    }
}

/// A running command: its guardian, its job control, and its times.
struct RunningCommand {
    guardian: Guardian,
    job: JobControl,
    /// The message that the guardian was started with, but for the deadline: renewals move it.
    start: StartMessage,
    /// Set once the lease is lost: the time by which the guardian must have ended everything.
    overdue_at: Option<Timestamp>,
    ready_file: ReadyFile,
}

impl RunningCommand {
    /// Has the guardian stop the command, because the lease has ended for this reason.
    fn stop(&mut self, reason: EndReason) {
        self.ready_file.remove();
        let mode = stop_mode(reason, self.start.deadline.before(self.start.stop_before));
        self.guardian.request(GuardianRequest::Stop(mode));
        self.overdue_at = Some(match mode {
            StopMode::Graceful => self.start.deadline.before(RESERVE),
            StopMode::Immediate => SystemClock.now().after(RESERVE),
        });
    }
}

/// How to stop the command of a lease that has ended for this reason.
///
/// A lease that ends before `stop_at`, and not by a rule of our own (`--max-hold`), was taken from us:
/// another client may hold the resource already, so there is no time for a grace.
fn stop_mode(reason: EndReason, stop_at: Timestamp) -> StopMode {
    let is_early = SystemClock.now().after(EARLY_BY) < stop_at;
    match reason {
        EndReason::MaxHold | EndReason::NoProgress => StopMode::Graceful,
        EndReason::NotOurs => StopMode::Immediate,
        _ if is_early => StopMode::Immediate,
        _ => StopMode::Graceful,
    }
}
