//! Reads the output of a step: test counts, and the part that explains a failure.

use std::fmt;

/// The numbers of tests, summed over all test binaries.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Count {
    passed: u64,
    failed: u64,
    ignored: u64,
}

impl Count {
    /// Adds up the result lines of `cargo test`. `None` if there are none.
    pub(crate) fn of(text: &str) -> Option<Count> {
        let closing = |line: &str| line.trim().strip_prefix("test result: ").map(str::to_owned);
        let mut lines = text.lines().filter_map(closing).peekable();
        lines.peek()?;
        let mut count = Count::default();
        for line in lines {
            let number = |what: &str| {
                let part = line.split([';', '.']).map(str::trim).find_map(|part| part.strip_suffix(what));
                part.and_then(|number| number.trim().parse::<u64>().ok()).unwrap_or(0)
            };
            count.passed += number("passed");
            count.failed += number("failed");
            count.ignored += number("ignored");
        }
        Some(count)
    }
}

impl fmt::Display for Count {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} passed, {} failed, {} skipped", self.passed, self.failed, self.ignored)
    }
}

/// The last line that is not empty, without colours and cut to fit.
pub(crate) fn last_line(text: &[u8]) -> String {
    let text = &text[text.len().saturating_sub(2000)..];
    let text = String::from_utf8_lossy(text);
    let line = text.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or_default();
    let mut plain = String::new();
    let mut chars = line.trim().chars();
    while let Some(c) = chars.next() {
        if c == '\x1b' {
            let _ = chars.by_ref().find(char::is_ascii_alphabetic); // the end of the colour code
        } else if !c.is_control() {
            plain.push(c);
        }
    }
    plain.chars().take(40).collect()
}

/// How many lines of a failed step are shown: from the first error on, and from the end.
const SHOWN: (usize, usize) = (100, 30);

/// How many characters of a line are shown: from its beginning, and from its end. The command of a linker has thousands.
const SHOWN_OF_LINE: (usize, usize) = (300, 200);

/// The part of a long log that explains the failure.
pub(crate) fn excerpt(text: &str) -> String {
    let lines: Vec<String> = long_excerpt(text).lines().map(shortened_line).collect();
    lines.join("\n")
}

fn shortened_line(line: &str) -> String {
    let (start, end) = SHOWN_OF_LINE;
    let count = line.chars().count();
    if count <= start + end {
        return line.to_owned();
    }
    let first: String = line.chars().take(start).collect();
    let last: String = line.chars().skip(count - end).collect();
    format!("{first} … {last}")
}

fn long_excerpt(text: &str) -> String {
    let outputs = outputs(text);
    if !outputs.is_empty() {
        return outputs.join("\n\n");
    }
    let lines: Vec<&str> = text.lines().collect();
    let wrong = |line: &&str| {
        let said = line.trim_start_matches(|c: char| !c.is_ascii_alphabetic());
        said.starts_with("error") || line.contains("panicked at") || line.contains(" FAILED")
    };
    let first = lines.iter().position(wrong).unwrap_or(lines.len());
    let end = lines.len().saturating_sub(SHOWN.1);
    let from = first.saturating_sub(2).min(end);
    let until = (from + SHOWN.0).min(end);
    let gap = if until < end { "\n…\n" } else { "\n" };
    format!("{}{gap}{}", lines[from..until].join("\n"), lines[until.max(end)..].join("\n"))
}

/// The names of all failed tests.
pub(crate) fn failed_tests(text: &str) -> Vec<String> {
    outputs(text)
        .iter()
        .filter_map(|output_of_test| test_of(output_of_test.lines().next()?))
        .map(str::to_owned)
        .collect()
}

/// The output of each failed test, without the backtrace, and shortened.
fn outputs(text: &str) -> Vec<String> {
    let mut outputs: Vec<Vec<&str>> = Vec::new();
    let mut within = false;
    for line in text.lines() {
        if test_of(line).is_some() {
            outputs.push(Vec::new());
            within = true;
        }
        // A test binary lists the names of its failed tests once more after their outputs.
        within &= line != "failures:" && line.trim() != "stack backtrace:";
        if let Some(output_of_test) = outputs.last_mut().filter(|_| within) {
            output_of_test.push(line);
        }
    }
    let shortened = |output_of_test: Vec<&str>| {
        let lines: Vec<&str> = output_of_test.into_iter().filter(|line| !line.trim().is_empty()).collect();
        let each = SHOWN.1;
        if lines.len() <= 2 * each {
            return lines.join("\n");
        }
        format!("{}\n…\n{}", lines[..each].join("\n"), lines[lines.len() - each..].join("\n"))
    };
    outputs.into_iter().map(shortened).collect()
}

/// The name of the test whose output begins with this line.
fn test_of(line: &str) -> Option<&str> {
    let name = line.strip_prefix("---- ")?.strip_suffix(" ----")?;
    Some(name.strip_suffix(" stdout").unwrap_or(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_summed_over_all_test_binaries() {
        let text = "test result: ok. 9 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.00s\n\
                    noise\ntest result: FAILED. 14 passed; 2 failed; 0 ignored; 0 measured\n";
        let count = Count::of(text).expect("two closing lines");
        assert_eq!(count.to_string(), "23 passed, 2 failed, 1 skipped");
        assert_eq!(Count::of("nothing"), None);
    }

    #[test]
    fn the_last_line_has_no_colours_and_is_short() {
        assert_eq!(last_line(b"one\n\x1b[1;32mCompiling\x1b[0m two\n\n"), "Compiling two");
        assert_eq!(last_line(&[b'x'; 500]).len(), 40);
        assert_eq!(last_line(b""), "");
    }

    #[test]
    fn an_excerpt_begins_at_the_first_error() {
        let mut text: String = (0..500).map(|n| format!("test {n} ... ok\n")).collect();
        text.insert_str(text.find("test 50 ").expect("there"), "thread 'x' panicked at y\n");
        let shown = excerpt(&text);
        assert!(shown.starts_with("test 48 ... ok\ntest 49 ... ok\nthread 'x' panicked"), "{shown}");
        assert!(shown.contains("\n…\n") && shown.ends_with("test 499 ... ok"), "{shown}");
        assert_eq!(excerpt("one\ntwo").trim(), "one\ntwo");
    }

    #[test]
    fn a_long_line_does_not_hide_the_reason_behind_it() {
        let text = format!(
            "error: linking failed\n  note: cc {}end\n  note: No space left on device\n",
            "x.rlib ".repeat(5000)
        );
        let shown = excerpt(&text);
        assert!(shown.len() < 1000 && shown.contains("rlib end"), "{shown}");
        assert!(shown.ends_with("No space left on device"), "{shown}");
    }

    #[test]
    fn the_output_of_every_failed_test_is_shown() {
        let text = "test a ... FAILED\n\nfailures:\n\n---- a stdout ----\n\nthread 'a' panicked at x:1:2:\nboom\n\
                    stack backtrace:\n   0: rust_begin_unwind\n\n\nfailures:\n    a\n\ntest result: FAILED. 1 failed\n\
                    test redis::b ... ok\nfailures:\n\n---- redis::c ----\nthey differ\n\n\nfailures:\n    redis::c\n\
                    error: 2 targets failed\n";
        assert_eq!(failed_tests(text), ["a", "redis::c"]);
        let shown = excerpt(text);
        assert_eq!(
            shown,
            "---- a stdout ----\nthread 'a' panicked at x:1:2:\nboom\n\n---- redis::c ----\nthey differ"
        );
        let long: String = (0..500).map(|n| format!("line {n}\n")).collect();
        let shown = excerpt(&format!("---- a ----\n{long}failures:\n"));
        assert!(shown.lines().count() < 70 && shown.ends_with("line 499"), "{shown}");
    }
}
