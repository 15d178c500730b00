//! The command and the lease side by side: signals go to the command, deadlines to the guardian, and what happens to
//! either is seen to.

use std::{ffi::OsString, time::Duration};

use leasehold::{Clock as _, EndReason, FinishRequest, Pass, Resource, SystemClock, Timestamp};

use super::{Run, claim::Share, nested, ready::Ready, terms::Terms};
use crate::{
    commands::Context,
    exit::Failure,
    guardian::{self, Begin, Guardian, Manner, News, Wish},
    hold::Hold,
    job::Job,
    signals::Signals,
    terminal,
};

/// How the command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Exited(i32),
    Killed(i32),
    NotStarted(i32),
    /// The lease was lost, and nothing of the command is left.
    Lost,
    /// The guardian died, and nothing of the command is left.
    Unguarded,
}

pub(super) struct Supervision<'a> {
    pub(super) run: &'a Run,
    pub(super) terms: &'a Terms,
    pub(super) context: &'a Context,
}

const METRICS_EVERY: Duration = Duration::from_secs(15);
/// How long before the deadline we do the guardian's work ourselves if it has not: later than its own last moment.
const RESERVE: Duration = Duration::from_millis(100);

/// Resolves then, by the clock that leases run on; never, if there is no such time.
async fn at(moment: Option<Timestamp>) {
    let Some(moment) = moment else { return std::future::pending().await };
    while SystemClock.now() < moment {
        tokio::time::sleep(SystemClock.now().until(moment)).await;
    }
}

impl Supervision<'_> {
    /// Runs the command, and returns when it, and on loss everything that it started, has ended.
    pub(super) async fn keep(
        &self,
        mut hold: Box<dyn Hold>,
        signals: &mut Signals,
    ) -> Result<(Outcome, Box<dyn Hold>), Failure> {
        let Some(deadline) = hold.deadline() else { return Ok((Outcome::Lost, hold)) };
        let terms = if hold.ttl() == self.terms.ttl { *self.terms } else { self.terms.within(hold.ttl()) };
        let job = Job::begin();
        let foreground = job.is_in_front() && terminal::is_all_ours();
        let begin = Begin { deadline, stop_before: terms.stop_before, grace: terms.grace, foreground };
        let environment = self.environment(&*hold);
        let environment = environment.iter().map(|(name, value)| (*name, value.as_os_str()));
        let guardian = Guardian::start(&self.run.argv(), environment, begin).map_err(Failure::host)?;
        let ready = Ready::new(self.run.ready_file.clone());
        let mut watch = Watch { guardian, job, begin, overdue: None, ready };
        let outcome = self.watch(&mut *hold, signals, &mut watch).await;
        watch.job.end(matches!(outcome, Outcome::Exited(_) | Outcome::NotStarted(_)));
        if outcome == Outcome::Unguarded {
            guardian::slay();
        }
        watch.guardian.dismiss();
        Ok((outcome, hold))
    }

    async fn watch(&self, hold: &mut dyn Hold, signals: &mut Signals, watch: &mut Watch) -> Outcome {
        let (mut ended, mut asked, mut is_asked) = (hold.ended(), hold.asked(), false);
        let mut metrics = tokio::time::interval(METRICS_EVERY);
        loop {
            tokio::select! {
                biased;
                news = watch.guardian.next() => {
                    if let Some(outcome) = self.heard(news, &*hold, watch) {
                        return outcome;
                    }
                }
                ending = &mut ended, if watch.overdue.is_none() => {
                    self.say(&format!("{ending}: stopping the command"));
                    watch.stop(ending);
                }
                () = at(watch.overdue) => {
                    guardian::slay(); // the guardian is stopped, or starved: that includes it
                    return Outcome::Lost;
                }
                signal = signals.next() => {
                    watch.job.signalled(signal);
                    watch.guardian.wish(Wish::Signal(signal.as_raw()));
                }
                () = hold.moved() => {
                    if let Some(deadline) = hold.deadline() {
                        watch.begin.deadline = deadline;
                        watch.guardian.wish(Wish::Deadline(deadline));
                    }
                }
                wish = &mut asked, if !is_asked => {
                    is_asked = true;
                    wish.into_iter().for_each(|asked| self.pass_wish_on(&asked, &watch.guardian));
                }
                _ = metrics.tick() => self.context.write_metrics(),
            }
        }
    }

    /// What the guardian told; an outcome if that was the last of it.
    fn heard(&self, news: Option<News>, hold: &dyn Hold, watch: &mut Watch) -> Option<Outcome> {
        let is_lost = watch.overdue.is_some();
        match news {
            None => return Some(Outcome::Unguarded),
            Some(News::NotStarted(errno)) => return Some(Outcome::NotStarted(errno)),
            Some(News::Exited(code)) if !is_lost => return Some(Outcome::Exited(code)),
            Some(News::Killed(signal)) if !is_lost => return Some(Outcome::Killed(signal)),
            Some(News::AllDead) => return Some(Outcome::Lost),
            Some(News::Started(pid)) => {
                watch.job.started(pid);
                if let Err(error) = watch.ready.begin(&self.run.resource, &hold.token()) {
                    self.say(&format!("the ready file cannot be written: {error}"));
                }
            }
            Some(News::Stopped(signal)) => watch.job.stopped(signal, &watch.guardian),
            Some(News::Stopping) if !is_lost => {
                watch.ready.end();
                watch.overdue = Some(watch.begin.deadline.before(RESERVE));
                self.say(&format!("{}: stopping the command", self.why(hold)));
            }
            Some(News::CannotKill(pid)) => {
                self.say(&format!(
                    "process {pid} is another user's and cannot be killed: waiting for its end"
                ));
            }
            Some(News::Stopping | News::Exited(_) | News::Killed(_)) => {}
        }
        None
    }

    /// Why the deadline has come near.
    fn why(&self, hold: &dyn Hold) -> String {
        match hold.is_evicted() {
            true => EndReason::Evicted.to_string(),
            false if self.run.no_renew => "its time is up".to_owned(),
            false => EndReason::Expired.to_string(),
        }
    }

    fn pass_wish_on(&self, asked: &FinishRequest, guardian: &Guardian) {
        let within = humantime::format_duration(Duration::from_secs(asked.within.as_secs()));
        self.say(&format!("{} asks to finish within {within}: {}", asked.by, asked.why));
        if let Some(signal) = self.run.on_ask {
            guardian.wish(Wish::Signal(signal.as_raw()));
        }
    }

    /// What the command finds in its environment: what it holds, and where, without secrets.
    fn environment(&self, hold: &dyn Hold) -> Vec<(&'static str, OsString)> {
        let resource = &self.run.resource;
        let share = Share::of(self.run);
        let entry = nested::Entry {
            share,
            owner: hold.owner(),
            token: hold.token(),
            ttl: hold.ttl(),
            resource: resource.clone(),
            store: self.context.store.shown().to_owned(),
        };
        let mut environment: Vec<(&'static str, OsString)> = vec![
            ("LEASEHOLD_RESOURCE", resource.to_string().into()),
            // Those who are there together are not in any order: their numbers fence nothing.
            ("LEASEHOLD_TOKEN", if share.is_exclusive() { hold.token() } else { String::new() }.into()),
            ("LEASEHOLD_PASS", pass(resource, hold, share).unwrap_or_default().into()),
            ("LEASEHOLD_OWNER", hold.owner().reveal().into()),
            ("LEASEHOLD_STORE", self.context.store.shown().into()),
            (nested::HELD, entry.append().into()),
        ];
        if let Some(file) = self.context.store.password_file() {
            environment.push(("LEASEHOLD_PASSWORD_FILE", file.into()));
        }
        environment
    }

    fn say(&self, what: &str) {
        self.context.output.say(&format!("{}: {what}", self.run.resource));
    }
}

/// What the command shows at a fence, if it is the only holder.
fn pass(resource: &Resource, hold: &dyn Hold, share: Share) -> Option<String> {
    let token = hold.token().parse().ok().filter(|_| share.is_exclusive())?;
    Some(Pass::new(resource.clone(), token).owned_by(hold.owner()).to_string())
}

/// A command that runs.
struct Watch {
    guardian: Guardian,
    job: Job,
    /// As it was at the beginning, but for the deadline, which moves.
    begin: Begin,
    /// Once the lease is lost: until when the guardian must have done its work.
    overdue: Option<Timestamp>,
    ready: Ready,
}

impl Watch {
    /// The lease is over, for this reason.
    fn stop(&mut self, ending: EndReason) {
        self.ready.end();
        let manner = manner(ending, self.begin.deadline.before(self.begin.stop_before));
        self.guardian.wish(Wish::Stop(manner));
        self.overdue = Some(match manner {
            Manner::Gently => self.begin.deadline.before(RESERVE),
            Manner::AtOnce => SystemClock.now().after(RESERVE),
        });
    }
}

/// A lease that ends before its time, other than by our own rules, may be someone else's already.
fn manner(ending: EndReason, stop_at: Timestamp) -> Manner {
    let early = SystemClock.now().after(Duration::from_millis(100)) < stop_at;
    match ending {
        EndReason::MaxHold | EndReason::NoProgress => Manner::Gently,
        EndReason::NotOurs => Manner::AtOnce,
        _ if early => Manner::AtOnce,
        _ => Manner::Gently,
    }
}
