//! `leasehold cron next SCHEDULE`

use std::process::ExitCode;

use clap::Args;
use leasehold::{Client, Clock as _, SystemClock};
use leasehold_patterns::schedule::{Schedule, TickTime};

use crate::{exit::Failure, output::Output, screen::Screen, text};

#[derive(Debug, Args)]
pub(super) struct Next {
    /// The schedule: five fields, or @hourly and the like
    schedule: String,
    /// How many ticks to show
    #[arg(short, long, default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..=1000))]
    number: u16,
}

impl Next {
    pub(super) fn run(&self, zone: &str, output: Output) -> Result<ExitCode, Failure> {
        let schedule = Schedule::parse(&self.schedule)?.in_zone(zone)?;
        let now = TickTime::of(SystemClock.wall());
        let ticks = std::iter::successors(schedule.next_after(now), |tick| schedule.next_after(*tick));
        let ticks: Vec<_> = ticks.take(usize::from(self.number)).map(|tick| tick.to_string()).collect();
        let screen = Screen::now();
        if output.json {
            let (expression, zone, means) = (schedule.expression(), schedule.zone(), schedule.described());
            let answer =
                serde_json::json!({ "schedule": expression, "zone": zone, "means": means, "next": ticks });
            screen.print_json(&answer)?;
        } else {
            let mut lines = vec![format!("{}, {}", schedule.described(), schedule.zone())];
            lines.extend(ticks);
            screen.print_lines(&lines)?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// The next tick, as text.
pub(super) fn due(schedule: &Schedule, client: &Client) -> String {
    let now = TickTime::of(client.environment().wall());
    let next = schedule.next_after(now);
    next.map_or("no next tick".to_owned(), |next| {
        format!("next at {next} (in {})", text::span(now.until(next)))
    })
}
