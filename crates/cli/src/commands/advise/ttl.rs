//! `leasehold advise ttl`

use std::{
    fs,
    io::{self, Read as _},
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

use clap::Args;
use leasehold::advice;
use serde::Serialize;

use crate::{
    args, commands::run::terms::TTL_MIN, exit::Failure, output::Output, screen::Screen, table::Style, view,
};

/// Fewer samples say little about the one in a thousand.
const ENOUGH: usize = 1000;

#[derive(Debug, Args)]
#[command(
    after_help = "The ttl is the sum of the three; it is renewed at a third, and work stops at a sixth."
)]
pub(super) struct Ttl {
    /// How long the work takes, at the 99.9th percentile
    #[arg(long, value_name = "DURATION", value_parser = args::duration, required_unless_present = "samples")]
    p999: Option<Duration>,
    /// Take it from this file: a duration in each line; - is the standard input
    #[arg(long, value_name = "FILE", conflicts_with = "p999")]
    samples: Option<PathBuf>,
    /// The longest pause of a process that the lease outlasts
    #[arg(long, value_name = "DURATION", value_parser = args::duration, default_value = "5s")]
    pause: Duration,
    /// The longest that the network holds a request up
    #[arg(long, value_name = "DURATION", value_parser = args::duration, default_value = "1s")]
    network: Duration,
}

#[derive(Serialize)]
struct Shown {
    samples: Option<usize>,
    p999_ms: u64,
    pause_ms: u64,
    network_ms: u64,
    ttl_ms: u64,
    renew_every_ms: u64,
    stop_below_ms: u64,
    remarks: Vec<String>,
}

impl Ttl {
    pub(super) fn run(&self, output: Output, screen: Screen) -> Result<ExitCode, Failure> {
        let samples = self.samples.as_deref().map(read).transpose()?;
        let measured = samples.as_deref().and_then(advice::p999);
        let p999 = self.p999.or(measured).ok_or_else(|| {
            Failure::usage("there are no samples").hint("write a duration in each line, as in 420ms or 1.5")
        })?;
        // Whole milliseconds: they are what can be typed.
        let mut advised = advice::ttl(whole(p999), self.pause, self.network);
        let count = samples.map(|samples| samples.len());
        if let Some(few) = count.filter(|count| *count < ENOUGH) {
            let remark =
                format!("{few} samples are few: the longest of them counts, and longer ones will come");
            advised.remarks.push(remark);
        }
        let shown = Shown {
            samples: count,
            p999_ms: view::millis(whole(p999)),
            pause_ms: view::millis(self.pause),
            network_ms: view::millis(self.network),
            ttl_ms: view::millis(advised.ttl),
            renew_every_ms: view::millis(advised.renew_every),
            stop_below_ms: view::millis(advised.stop_below),
            remarks: advised.remarks,
        };
        if output.json {
            return screen.print_json(&shown).map(|_| ExitCode::SUCCESS);
        }
        screen.print_lines(&self.lines(&shown, screen)).map(|_| ExitCode::SUCCESS)
    }

    fn lines(&self, shown: &Shown, screen: Screen) -> Vec<String> {
        let of = shown.samples.map_or(String::new(), |samples| format!(", from {samples} samples"));
        let sum = format!(
            "{} of work at p99.9{of} + {} of pause + {} of network",
            spelled(shown.p999_ms),
            spelled(shown.pause_ms),
            spelled(shown.network_ms)
        );
        let bold = |text: &str| Style::Bold.paint(text, screen.colour);
        let mut lines = vec![
            format!("{}  {}  = {sum}", bold("ttl        "), spelled(shown.ttl_ms)),
            format!("{}  {}", bold("renew every"), spelled(shown.renew_every_ms)),
            format!("{}  {}", bold("stop below "), spelled(shown.stop_below_ms)),
        ];
        lines.extend(shown.remarks.iter().map(|remark| Style::Warn.paint(remark, screen.colour)));
        lines.push(String::new());
        let command = shown.ttl_ms.max(view::millis(TTL_MIN));
        lines.push(format!("    leasehold run --ttl {} …", spelled(command).replace(' ', "")));
        lines.push(format!("    .ttl(Duration::from_millis({}))", shown.ttl_ms));
        lines
    }
}

fn whole(duration: Duration) -> Duration {
    Duration::from_millis(view::millis(duration.saturating_add(Duration::from_nanos(999_999))))
}

fn spelled(millis: u64) -> String {
    humantime::format_duration(Duration::from_millis(millis)).to_string()
}

fn read(path: &Path) -> Result<Vec<Duration>, Failure> {
    let cannot = |error: io::Error| Failure::usage(format!("cannot read {}: {error}", path.display()));
    let mut text = String::new();
    if path == Path::new("-") {
        io::stdin().lock().read_to_string(&mut text).map_err(cannot)?;
    } else {
        text = fs::read_to_string(path).map_err(cannot)?;
    }
    let lines = (1..).zip(text.lines().map(str::trim));
    let samples = lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
    let parse = |(number, line): (usize, &str)| {
        args::duration(line).map_err(|error| Failure::usage(format!("line {number} is no duration: {error}")))
    };
    samples.map(parse).collect()
}
