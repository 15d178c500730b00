//! Medians, ratios, and numbers as text.

use leasehold_bench::{median, median_ratio};

use crate::results::Row;

/// A figure over all repetitions.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Summary {
    /// The value in the middle.
    pub median: f64,
    /// The least.
    pub least: f64,
    /// The greatest.
    pub most: f64,
}

/// Sums up a figure of a row. `None` if it was not measured.
pub fn summary(row: &Row, figure: &str) -> Option<Summary> {
    let values = row.values(figure);
    if values.is_empty() {
        return None;
    }
    let least = values.iter().copied().fold(f64::INFINITY, f64::min);
    let most = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    Some(Summary { median: median(values), least, most })
}

/// Whether less of this figure is better.
pub fn less_is_better(figure: &str) -> bool {
    !matches!(figure, "per_second" | "changes_per_second" | "alive")
}

/// How much of this figure `row` has, with `base` as 1.
///
/// The median of the ratios of each repetition, not the ratio of the medians: the load of the machine changes
/// from one repetition to the next, and hits all peers of a repetition alike.
pub fn ratio(row: &Row, base: &Row, figure: &str) -> Option<f64> {
    let (values, bases) = (row.values(figure), base.values(figure));
    if values.is_empty() || values.len() != bases.len() {
        return None;
    }
    let ratio = median_ratio(&values, &bases);
    (!ratio.is_nan()).then_some(ratio)
}

/// How fast `row` is, with `base` as 1: greater is better, whatever the figure is.
pub fn speed(row: &Row, base: &Row, figure: &str) -> Option<f64> {
    if less_is_better(figure) { ratio(base, row, figure) } else { ratio(row, base, figure) }
}

/// A number with three digits: `0.52`, `17.3`, `463`, `5.13k`, `45.7k`.
pub fn short(value: f64) -> String {
    let digits = |value: f64| match value {
        value if value < 9.995 => format!("{value:.2}"),
        value if value < 99.95 => format!("{value:.1}"),
        value => format!("{value:.0}"),
    };
    match value {
        value if value.is_infinite() => "∞".to_owned(),
        value if value >= 999_500.0 => format!("{}M", digits(value / 1e6)),
        value if value >= 9_995.0 => format!("{}k", digits(value / 1e3)),
        value if value >= 999.5 => format!("{value:.0}"),
        value => digits(value),
    }
}

/// A ratio: `1.00`, `0.05`, `0.003`.
pub fn ratio_text(ratio: f64) -> String {
    if ratio > 0.0 && ratio < 0.095 { format!("{ratio:.3}") } else { short(ratio) }
}

/// The heading of a figure.
pub fn heading(figure: &str) -> &'static str {
    match figure {
        "p50_us" => "p50 µs",
        "p99_us" => "p99 µs",
        "per_second" => "grants/s",
        "changes_per_second" => "changes of holder/s",
        "spread" => "spread",
        "client_cpu_us" => "client CPU µs",
        "server_cpu_us" => "server CPU µs",
        "commands" => "commands",
        "bytes_in" => "bytes in",
        "bytes_out" => "bytes out",
        "client_core_percent" => "client, % of a core",
        "server_core_percent" => "server, % of a core",
        "commands_per_second" => "commands/s",
        "alive" => "alive",
        "errors" => "errors",
        _ => "?",
    }
}

/// The figures in the order of the tables.
pub const FIGURES: &[&str] = &[
    "p50_us",
    "p99_us",
    "changes_per_second",
    "per_second",
    "spread",
    "client_core_percent",
    "server_core_percent",
    "alive",
    "client_cpu_us",
    "server_cpu_us",
    "commands",
    "bytes_in",
    "bytes_out",
    "commands_per_second",
    "errors",
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::tests::sample;

    #[test]
    fn a_summary_has_the_median_and_the_spread() {
        let results = sample();
        let row = results.tables[0].row("leasehold").unwrap();
        let summed = summary(row, "p50_us").unwrap();
        assert_eq!(summed, Summary { median: 100.0, least: 90.0, most: 110.0 });
        assert_eq!(summary(row, "bytes_in"), None);
    }

    #[test]
    fn a_greater_speed_is_better_for_every_figure() {
        let results = sample();
        let (bare, ours) = (&results.tables[0].rows[0], &results.tables[0].rows[1]);
        assert!((speed(ours, bare, "p50_us").unwrap() - 0.8).abs() < 0.01, "the time is longer");
        assert!((speed(ours, bare, "per_second").unwrap() - 0.8).abs() < 0.01, "the rate is lower");
        assert!((ratio(ours, bare, "p50_us").unwrap() - 1.25).abs() < 0.01);
        assert_eq!(speed(ours, &results.tables[0].rows[2], "p50_us"), None, "it was not run");
    }

    #[test]
    fn numbers_are_short() {
        let expected = [
            (0.0, "0.00"),
            (1.0, "1.00"),
            (17.26, "17.3"),
            (99.97, "100"),
            (463.2, "463"),
            (5130.0, "5130"),
            (45_678.0, "45.7k"),
            (2e6, "2.00M"),
            (f64::INFINITY, "∞"),
        ];
        for (value, text) in expected {
            assert_eq!(short(value), text);
        }
        assert_eq!(ratio_text(0.0123), "0.012");
    }
}
