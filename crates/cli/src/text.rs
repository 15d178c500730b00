//! Formatting text for the terminal. Names, labels and notes come from other programs, so control characters
//! and characters that reverse or hide text are escaped.

use std::{borrow::Cow, time::Duration};

use leasehold::{Holder, WallTime};
pub(crate) use leasehold_support::text::{is_unsafe, quoted, span};
use unicode_width::{UnicodeWidthChar as _, UnicodeWidthStr as _};

/// The text with unsafe characters escaped, as in `\u{202e}`.
pub(crate) fn printable(text: &str) -> Cow<'_, str> {
    if !text.chars().any(is_unsafe) {
        return Cow::Borrowed(text);
    }
    let escape = |c: char| if is_unsafe(c) { c.escape_default().to_string() } else { c.to_string() };
    Cow::Owned(text.chars().map(escape).collect())
}

/// `1234@host label`.
pub(crate) fn holder(holder: &Holder) -> String {
    printable(&holder.to_string()).into_owned()
}

/// A note as text. Notes are bytes: printable text stays as it is, anything else is shown in hex.
pub(crate) fn note(note: &[u8]) -> String {
    match plain_text(note) {
        Some(text) => text.to_owned(),
        None => format!("0x{}", hex(note)),
    }
}

/// The note, if it is printable text.
pub(crate) fn plain_text(note: &[u8]) -> Option<&str> {
    std::str::from_utf8(note).ok().filter(|text| !text.chars().any(is_unsafe))
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |text, byte| text + &format!("{byte:02x}"))
}

/// RFC 3339 in UTC, to the second.
pub(crate) fn time(at: WallTime) -> String {
    humantime::format_rfc3339_seconds(at.min(LAST_TIME).to_system_time()).to_string()
}

/// RFC 3339 in UTC, to the millisecond: for programs.
pub(crate) fn exact_time(at: WallTime) -> String {
    humantime::format_rfc3339_millis(at.min(LAST_TIME).to_system_time()).to_string()
}

/// RFC 3339 ends with the year 9999. A time from a store may be later.
const LAST_TIME: WallTime = WallTime::from_micros(253_402_300_799_000_000);

/// What a pause means, with its operator and reason if they are known: `Paused until T by anna: a deployment; current holders keep
/// it`, without a full stop.
pub(crate) fn paused(until: WallTime, author: Option<(&str, &str)>) -> String {
    let author =
        author.map_or(String::new(), |(by, why)| format!(" by {}: {}", printable(by), printable(why)));
    format!("Paused until {}{author}; current holders keep it", time(until))
}

/// The time `ago` before `now`.
pub(crate) fn before(now: WallTime, ago: Duration) -> WallTime {
    WallTime::from_micros(now.as_micros().saturating_sub(u64::try_from(ago.as_micros()).unwrap_or(u64::MAX)))
}

/// The word in single quotes, for every shell and for [`without_single_quotes`].
pub(crate) fn single_quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// The word that [`single_quoted`] was given.
pub(crate) fn without_single_quotes(quoted: &str) -> Option<String> {
    Some(quoted.strip_prefix('\'')?.strip_suffix('\'')?.replace(r"'\''", "'"))
}

/// The number of columns that the text takes on a terminal.
pub(crate) fn width(text: &str) -> usize {
    text.width()
}

/// The text cut to this many columns. A cut text ends with `…`.
pub(crate) fn cut(text: &str, columns: usize) -> Cow<'_, str> {
    if text.width() <= columns {
        return Cow::Borrowed(text);
    }
    let (mut kept, mut used) = (String::new(), 1);
    for c in text.chars() {
        used += c.width().unwrap_or(0);
        if used > columns {
            break;
        }
        kept.push(c);
    }
    if columns > 0 {
        kept.push('…');
    }
    Cow::Owned(kept)
}

/// The text in lines of at most this many columns, broken at spaces. All lines but the first are indented.
/// Without a width, it is one line.
pub(crate) fn wrapped(text: &str, columns: Option<usize>, indent: usize) -> Vec<String> {
    let Some(columns) = columns.filter(|columns| *columns > indent) else { return vec![text.to_owned()] };
    let mut lines = vec![String::new()];
    // A leading indent of the text itself is kept.
    for (at, word) in text.split(' ').enumerate() {
        let line = lines.last_mut().expect("there is always a line");
        if at > 0 && width(line) + 1 + width(word) > columns && !line.trim().is_empty() {
            lines.push(" ".repeat(indent) + word);
        } else {
            line.push_str(if at > 0 { " " } else { "" });
            line.push_str(word);
        }
    }
    lines
}

/// `1 holder`, `2 holders`.
pub(crate) fn count(number: u32, one: &str, many: &str) -> String {
    if number == 1 { format!("1 {one}") } else { format!("{number} {many}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_short_and_readable() {
        let table = [
            (0, "0ms"),
            (420, "420ms"),
            (4_250, "4.2s"),
            (12_900, "12s"),
            (184_000, "3m 04s"),
            (7_500_000, "2h 05m"),
            (273_600_000, "3d 04h"),
        ];
        for (millis, shown) in table {
            assert_eq!(span(Duration::from_millis(millis)), shown);
        }
    }

    #[test]
    fn unsafe_characters_are_escaped() {
        let hostile = "a\x1b[2J\r\nb\u{202e}c\u{9b}d\u{200b}\u{7f}e";
        assert_eq!(printable(hostile), "a\\u{1b}[2J\\r\\nb\\u{202e}c\\u{9b}d\\u{200b}\\u{7f}e");
        assert_eq!(printable("日本 ok"), "日本 ok");
        assert_eq!(note(b"host-a:80"), "host-a:80");
        assert_eq!(note(b"\x1b[31m"), "0x1b5b33316d");
        assert_eq!(note(&[0xff, 0]), "0xff00");
    }

    #[test]
    fn cutting_counts_columns_and_not_characters() {
        assert_eq!(cut("report/42", 9), "report/42");
        assert_eq!(cut("report/42", 6), "repor…");
        assert_eq!(cut("日本語", 4), "日…");
        assert_eq!(cut("abc", 0), "");
    }

    #[test]
    fn lines_are_broken_at_spaces() {
        assert_eq!(wrapped("one two three", None, 2), ["one two three"]);
        assert_eq!(wrapped("one two three", Some(8), 2), ["one two", "  three"]);
        assert_eq!(wrapped("  one two", Some(6), 4), ["  one", "    two"]);
        assert_eq!(wrapped("onetwothree four", Some(5), 0), ["onetwothree", "four"]);
    }

    #[test]
    fn a_pause_names_its_author_if_the_store_knows_it() {
        let until = WallTime::from_micros(1_785_326_400_123_456);
        assert_eq!(paused(until, None), "Paused until 2026-07-29T12:00:00Z; current holders keep it");
        assert_eq!(
            paused(until, Some(("anna", "a\ndeployment"))),
            "Paused until 2026-07-29T12:00:00Z by anna: a\\ndeployment; current holders keep it"
        );
    }

    #[test]
    fn times_are_utc_and_at_most_the_year_9999() {
        assert_eq!(time(WallTime::from_micros(1_785_326_400_123_456)), "2026-07-29T12:00:00Z");
        assert_eq!(exact_time(WallTime::from_micros(1_785_326_400_123_456)), "2026-07-29T12:00:00.123Z");
        assert_eq!(time(WallTime::from_micros(u64::MAX)), "9999-12-31T23:59:59Z");
        assert_eq!(before(WallTime::from_micros(5), Duration::from_secs(1)), WallTime::default());
    }
}
