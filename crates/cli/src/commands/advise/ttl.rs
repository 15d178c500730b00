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

use crate::{args, claim::TTL_MIN, exit::Failure, output::Output, screen::Screen, table::Style};

/// With fewer samples, the 99.9th percentile is not reliable.
const SAMPLES_MIN: usize = 1000;

#[derive(Debug, Args)]
#[command(
    after_help = "The ttl is the sum of work, pause and network. A lease is renewed when a third of its ttl has passed, and the work stops when a sixth is left."
)]
pub(super) struct Ttl {
    /// The duration of the work, as its 99.9th percentile
    #[arg(long, value_name = "DURATION", value_parser = args::duration, required_unless_present = "samples")]
    p999: Option<Duration>,
    /// Compute the percentile from this file, with one duration per line; - is stdin
    #[arg(long, value_name = "FILE", conflicts_with = "p999")]
    samples: Option<PathBuf>,
    /// The longest pause of the process that the lease must survive
    #[arg(long, value_name = "DURATION", value_parser = args::duration, default_value = "5s")]
    pause: Duration,
    /// The longest delay of a request by the network
    #[arg(long, value_name = "DURATION", value_parser = args::duration, default_value = "1s")]
    network: Duration,
}

#[derive(Serialize)]
struct TtlAdviceView {
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
            Failure::usage("there are no samples").hint("write one duration per line, such as 420ms or 1.5")
        })?;
        // Rounded up to whole milliseconds, so that the result can be typed.
        let mut advised = advice::ttl(whole_millis(p999), self.pause, self.network);
        let count = samples.map(|samples| samples.len());
        if let Some(few) = count.filter(|count| *count < SAMPLES_MIN) {
            let remark = format!(
                "only {few} samples: at least {SAMPLES_MIN} are needed for the 99.9th percentile, so the longest counts"
            );
            advised.remarks.push(remark);
        }
        let view = TtlAdviceView {
            samples: count,
            p999_ms: crate::view::millis(whole_millis(p999)),
            pause_ms: crate::view::millis(self.pause),
            network_ms: crate::view::millis(self.network),
            ttl_ms: crate::view::millis(advised.ttl),
            renew_every_ms: crate::view::millis(advised.renew_every),
            stop_below_ms: crate::view::millis(advised.stop_below),
            remarks: advised.remarks,
        };
        if output.json {
            return screen.print_json(&view).map(|_| ExitCode::SUCCESS);
        }
        screen.print_lines(&Self::lines(&view, screen)).map(|_| ExitCode::SUCCESS)
    }

    fn lines(view: &TtlAdviceView, screen: Screen) -> Vec<String> {
        let of = view.samples.map_or(String::new(), |samples| format!(", from {samples} samples"));
        let sum = format!(
            "{} of work at p99.9{of} + {} of pause + {} of network",
            duration_text(view.p999_ms),
            duration_text(view.pause_ms),
            duration_text(view.network_ms)
        );
        let bold = |text: &str| Style::Bold.paint(text, screen.colour);
        let mut lines = vec![
            format!("{}  {}  = {sum}", bold("ttl        "), duration_text(view.ttl_ms)),
            format!("{}  {}", bold("renew every"), duration_text(view.renew_every_ms)),
            format!("{}  {}", bold("stop below "), duration_text(view.stop_below_ms)),
        ];
        lines.extend(view.remarks.iter().map(|remark| Style::Warn.paint(remark, screen.colour)));
        lines.push(String::new());
        let command = view.ttl_ms.max(crate::view::millis(TTL_MIN));
        lines.push(format!("    leasehold run --ttl {} …", duration_text(command).replace(' ', "")));
        lines.push(format!("    .ttl(Duration::from_millis({}))", view.ttl_ms));
        lines
    }
}

/// Rounded up to whole milliseconds.
fn whole_millis(duration: Duration) -> Duration {
    Duration::from_millis(crate::view::millis(duration.saturating_add(Duration::from_nanos(999_999))))
}

fn duration_text(millis: u64) -> String {
    humantime::format_duration(Duration::from_millis(millis)).to_string()
}

/// Reads one duration per line. Empty lines and lines with `#` are skipped.
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
        args::duration(line).map_err(|error| {
            Failure::usage(format!("{}, line {number}: not a duration: {error}", path.display()))
        })
    };
    samples.map(parse).collect()
}
