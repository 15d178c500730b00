//! The command and the lease side by side: signals go to the command, deadlines to the guardian, and what happens to
//! either is seen to.

use std::{ffi::OsString, time::Duration};

use leasehold::{Asked, Clock as _, Ending, Moment, SystemClock};

use super::{Run, claim::Share, nested, terms::Terms};
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

impl Supervision<'_> {
    /// Runs the command, and returns when it, and on loss everything that it started, has ended.
    pub(super) async fn keep(
        &self,
        mut hold: Box<dyn Hold>,
        signals: &mut Signals,
    ) -> Result<(Outcome, Box<dyn Hold>), Failure> {
        let Some(deadline) = hold.deadline() else { return Ok((Outcome::Lost, hold)) };
        let terms = if hold.ttl() == self.terms.ttl { *self.terms } else { self.terms.within(hold.ttl()) };
        let mut job = Job::begin();
        let foreground = job.is_in_front() && terminal::is_all_ours();
        let begin = Begin { deadline, stop_before: terms.stop_before, grace: terms.grace, foreground };
        let environment = self.environment(&*hold);
        let environment = environment.iter().map(|(name, value)| (*name, value.as_os_str()));
        let guardian = Guardian::start(&self.run.argv(), environment, begin).map_err(Failure::host)?;
        let outcome = self.watch(&mut *hold, &guardian, signals, &mut job, begin).await;
        job.end(matches!(outcome, Outcome::Exited(_) | Outcome::NotStarted(_)));
        if outcome == Outcome::Unguarded {
            guardian::slay();
        }
        guardian.dismiss();
        Ok((outcome, hold))
    }

    async fn watch(
        &self,
        hold: &mut dyn Hold,
        guardian: &Guardian,
        signals: &mut Signals,
        job: &mut Job,
        begin: Begin,
    ) -> Outcome {
        let mut stop_at = begin.deadline.before(begin.stop_before);
        let (mut ended, mut asked) = (hold.ended(), hold.asked());
        let (mut is_lost, mut is_asked) = (false, false);
        let mut metrics = tokio::time::interval(METRICS_EVERY);
        loop {
            tokio::select! {
                biased;
                news = guardian.next() => match news {
                    None => return Outcome::Unguarded,
                    Some(News::Started(pid)) => job.started(pid),
                    Some(News::NotStarted(errno)) => return Outcome::NotStarted(errno),
                    Some(News::Stopped(signal)) => job.stopped(signal, guardian),
                    Some(News::Stopping) if !is_lost => {
                        is_lost = true;
                        self.say(&format!("{}: stopping the command", self.why(&*hold)));
                    }
                    Some(News::Exited(code)) if !is_lost => return Outcome::Exited(code),
                    Some(News::Killed(signal)) if !is_lost => return Outcome::Killed(signal),
                    Some(News::CannotKill(pid)) => {
                        self.say(&format!("process {pid} is another user's and cannot be killed: waiting for its end"));
                    }
                    Some(News::AllDead) => return Outcome::Lost,
                    Some(News::Stopping | News::Exited(_) | News::Killed(_)) => {}
                },
                ending = &mut ended, if !is_lost => {
                    is_lost = true;
                    self.say(&format!("{ending}: stopping the command"));
                    guardian.wish(Wish::Stop(manner(ending, stop_at)));
                }
                signal = signals.next() => {
                    job.signalled(signal);
                    guardian.wish(Wish::Signal(signal.as_raw()));
                }
                () = hold.moved() => {
                    if let Some(deadline) = hold.deadline() {
                        stop_at = deadline.before(begin.stop_before);
                        guardian.wish(Wish::Deadline(deadline));
                    }
                }
                wish = &mut asked, if !is_asked => {
                    is_asked = true;
                    wish.into_iter().for_each(|asked| self.pass_wish_on(&asked, guardian));
                }
                _ = metrics.tick() => self.context.write_metrics(),
            }
        }
    }

    /// Why the deadline has come near.
    fn why(&self, hold: &dyn Hold) -> String {
        match hold.is_evicted() {
            true => Ending::Evicted.to_string(),
            false if self.run.no_renew => "its time is up".to_owned(),
            false => Ending::Expired.to_string(),
        }
    }

    fn pass_wish_on(&self, asked: &Asked, guardian: &Guardian) {
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

/// A lease that ends before its time, other than by our own rules, may be someone else's already.
fn manner(ending: Ending, stop_at: Moment) -> Manner {
    let early = SystemClock.now().after(Duration::from_millis(100)) < stop_at;
    match ending {
        Ending::MaxHold | Ending::NoProgress => Manner::Gently,
        Ending::NotOurs => Manner::AtOnce,
        _ if early => Manner::AtOnce,
        _ => Manner::Gently,
    }
}
