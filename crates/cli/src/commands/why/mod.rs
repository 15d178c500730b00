//! `leasehold why RESOURCE`

mod unblock;
mod wanted;

use std::process::ExitCode;

use clap::Args;
use leasehold::{Clock as _, HeldBy, Resource, Snapshot, SystemClock, WallTime};
use serde::Serialize;

use self::{
    unblock::{Unblock, UnblockOption},
    wanted::{Outlook, Permits, Wanted},
};
use crate::{
    exit::Failure,
    foreign,
    holder_state::HolderState,
    marks::{self, Mark},
    names,
    session::{OperatorSession, PauseInfo},
    table::Style,
    text,
    this_host::ProcessTable,
    view::{self, ResourceView},
};

/// How many holders get a sentence of their own.
const HOLDERS_NAMED: usize = 3;

#[derive(Debug, Args)]
#[command(
    after_help = "The answer is for an exclusive claim, as `leasehold run RESOURCE` makes it, or for the claim that the same \
                  options of `leasehold run` make.\n\nThe latest time is only valid if no holder renews and no waiter ahead \
                  of you takes the resource. A holder at work renews; then there is no latest time."
)]
pub(crate) struct Why {
    /// The resource: kind/id or namespace:kind/id
    #[arg(value_parser = names::resource)]
    pub(crate) resource: Resource,
    /// Answer for a claim that shares the resource, as `leasehold run --shared` makes it
    #[arg(short, long, conflicts_with = "permits")]
    shared: bool,
    /// Answer for a claim for K of N permits of a semaphore
    #[arg(long, value_name = "K/N")]
    permits: Option<Permits>,
}

#[derive(Serialize)]
struct WhyReport {
    #[serde(flatten)]
    resource: ResourceView,
    /// The claim that this is the answer for: `exclusive`, `read` or `permits`.
    wanted: &'static str,
    /// Whether the claim would be granted at once.
    free: bool,
    /// The number of waiters ahead of a new claim.
    ahead: u32,
    /// When a claim is granted at the latest, if no holder renews and no waiter ahead takes the resource.
    at_the_latest_ms: Option<u64>,
    at_the_latest: Option<String>,
    why: Vec<String>,
    frees: Vec<UnblockOption>,
}

/// Why a claim waits: the state of its resource, and what that means for the claim.
struct Explanation<'a> {
    snapshot: &'a Snapshot,
    wanted: Wanted,
    outlook: Outlook,
    pause: Option<PauseInfo>,
    processes: &'a ProcessTable,
    now: WallTime,
}

impl Why {
    pub(crate) async fn run(&self, session: &OperatorSession) -> Result<ExitCode, Failure> {
        let snapshot = session.snapshot(&self.resource).await?;
        let (now, processes) = (SystemClock.wall(), ProcessTable::of_this_host());
        let wanted = self.wanted();
        let outlook = Outlook::of(&snapshot, wanted);
        let pause = session.pause_info(&snapshot).await;
        let explanation =
            Explanation { snapshot: &snapshot, wanted, outlook, pause, processes: &processes, now };
        let why = explanation.sentences();
        let unblock = Unblock { session, snapshot: &snapshot, processes: &processes, now };
        let frees = match outlook {
            Outlook::Free | Outlook::Refused => Vec::new(),
            _ => unblock.options(),
        };
        let screen = session.screen();
        if session.output.json {
            let latest = outlook.latest();
            let answer = WhyReport {
                resource: ResourceView::of(&snapshot, &processes),
                wanted: wanted.as_str(),
                free: outlook == Outlook::Free,
                ahead: snapshot.queue_length,
                at_the_latest_ms: latest.map(view::millis),
                at_the_latest: latest.map(|latest| text::exact_time(now.after(latest))),
                why,
                frees,
            };
            screen.print_json(&answer)?;
            return Ok(ExitCode::SUCCESS);
        }
        let columns = screen.columns();
        let mut lines: Vec<_> = why.iter().flat_map(|sentence| text::wrapped(sentence, columns, 2)).collect();
        if !frees.is_empty() {
            lines.push("It becomes free by:".to_owned());
        }
        for option in frees {
            lines.extend(text::wrapped(&format!("  - {}", option.say), columns, 4));
            lines.extend(
                option.command.map(|line| format!("      {}", Style::Bold.paint(&line, screen.colour))),
            );
        }
        screen.print_lines(&lines)?;
        Ok(ExitCode::SUCCESS)
    }

    fn wanted(&self) -> Wanted {
        match self.permits {
            Some(permits) => Wanted::Permits(permits),
            None if self.shared => Wanted::Read,
            None => Wanted::Exclusive,
        }
    }
}

impl Explanation<'_> {
    fn sentences(&self) -> Vec<String> {
        let (snapshot, name) = (self.snapshot, view::name(&self.snapshot.resource));
        let is_free = self.outlook == Outlook::Free;
        let claim = self.wanted.subject(snapshot.capacity);
        let mut why = Vec::new();
        why.extend(self.pause.as_ref().map(|pause| format!("{name}: {}", pause.sentence(self.now))));
        why.extend(self.holders(&name));
        why.extend(
            snapshot.foreign.iter().map(|lock| {
                format!("{name} is held by {}. It {}.", foreign::name(lock), foreign::expiry(lock))
            }),
        );
        match (snapshot.holder_count == 0 && snapshot.foreign.is_empty(), is_free) {
            (true, true) => why.push(format!("{name} is free: a claim is granted at once.")),
            (true, false) => why.push(format!("Nobody holds {name}.")),
            (false, true) => why.push(format!("There is room: {} is granted at once.", lower(&claim))),
            (false, false) => {}
        }
        why.extend(queue(snapshot));
        match self.outlook {
            Outlook::Free => {}
            Outlook::Refused => {
                let because = self.wanted.weight(snapshot.capacity).err().unwrap_or_default();
                why.push(format!("{claim} {because}."));
            }
            outlook => why.push(self.limit(outlook)),
        }
        why
    }

    fn holders(&self, name: &str) -> Vec<String> {
        let (snapshot, mut sentences) = (self.snapshot, Vec::new());
        if snapshot.capacity > 1 && snapshot.holder_count > 0 {
            let taken: u64 = snapshot.holders.iter().map(|held| u64::from(held.weight)).sum();
            let of = if snapshot.capacity == u32::MAX {
                String::new()
            } else {
                format!(", {taken} of its permits are taken")
            };
            sentences.push(format!("{name} is {}{of}.", view::primitive(snapshot.capacity)));
        }
        let named = snapshot.holders.iter().take(HOLDERS_NAMED);
        sentences.extend(named.map(|held| self.holder(name, held)));
        let more = (snapshot.holder_count as usize).saturating_sub(HOLDERS_NAMED);
        sentences.extend((more > 0).then(|| format!("There are {more} more holders.")));
        sentences
    }

    /// `report/42 is held by 7@host nightly since … (13s), token 17. It renews.`
    fn holder(&self, name: &str, held: &HeldBy) -> String {
        let (holder, since) = (text::holder(&held.holder), text::time(text::before(self.now, held.held_for)));
        let share = view::share(held.weight, self.snapshot.capacity);
        let share = share.map_or(String::new(), |share| format!(" ({share})"));
        let (long, token) = (text::span(held.held_for), held.token);
        if held.kept {
            return format!("{name} was released by {holder}{share} and stays closed, token {token}.");
        }
        let marks = marks::of(held, self.processes);
        let meanings: Vec<_> = marks.iter().map(|mark| mark.meaning(held)).collect();
        let state = match marks::state(held) {
            Some(HolderState::Renewing) if !marks.contains(&Mark::Gone) => vec!["it renews".to_owned()],
            _ => Vec::new(),
        };
        let state =
            state.into_iter().chain(meanings).map(|say| format!(" {}.", upper(&say))).collect::<String>();
        format!("{name} is held by {holder}{share} since {since} ({long}), token {token}.{state}")
    }

    fn limit(&self, outlook: Outlook) -> String {
        let latest = match outlook {
            Outlook::Within(latest) => latest,
            Outlook::NoExpiry if self.snapshot.foreign.is_empty() => {
                return "There is no latest time: the key of the lease in the store has lost its expiry."
                    .to_owned();
            }
            Outlook::NoExpiry => {
                return "There is no latest time: the lock of the other program does not expire.".to_owned();
            }
            _ => {
                return "The latest time cannot be computed: there are more holders or waiters than are listed."
                    .to_owned();
            }
        };
        let (span, at) = (text::span(latest), text::time(self.now.after(latest)));
        let unless = match (self.snapshot.holder_count, self.snapshot.queue_length) {
            _ if !self.snapshot.foreign.is_empty() => "if the other program does not extend its lock",
            (0, 0) => "unless it is paused again",
            (_, 0) if self.snapshot.holders.iter().all(|held| held.kept) => "when it is open again",
            (_, 0) if self.nobody_renews() => "because no holder can renew any more",
            (_, 0) => "if no holder renews; a holder at work does",
            (0, _) => "if no waiter ahead of you takes it first",
            _ => "if no holder renews and no waiter ahead of you takes it; those at work do",
        };
        format!("You get it in {span} at the latest (at {at}), {unless}.")
    }

    /// Whether every holder is known to be dead, or cannot renew.
    fn nobody_renews(&self) -> bool {
        let cannot = |held: &HeldBy| {
            held.kept || held.evicting || marks::of(held, self.processes).contains(&Mark::Gone)
        };
        self.snapshot.holders.iter().all(cannot)
    }
}

fn queue(snapshot: &Snapshot) -> Option<String> {
    let first = snapshot.queue.first()?;
    let waiters = text::count(snapshot.queue_length, "waiter is", "waiters are");
    let waited = if first.foreign { String::new() } else { format!(", for {}", text::span(first.waited)) };
    Some(format!("{waiters} ahead of you; the first is {}{waited}.", view::waiter(first)))
}

fn lower(sentence: &str) -> String {
    let (first, rest) = sentence.split_at(1);
    first.to_lowercase() + rest
}

fn upper(sentence: &str) -> String {
    let (first, rest) = sentence.split_at(1);
    first.to_uppercase() + rest
}
