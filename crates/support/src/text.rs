//! Text for people that others have a part in: names, labels and notes come from other programs.

use std::time::Duration;

/// Whether a terminal would act on this character: control characters, line separators, and characters that
/// reverse or hide text.
pub fn is_unsafe(c: char) -> bool {
    let reverses_or_hides = matches!(c, '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}'
            | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e0fff}');
    c.is_control() || reverses_or_hides
}

/// The text with unsafe characters escaped, as in `\u{202e}`.
pub fn printable(text: &str) -> String {
    let escape = |c: char| if is_unsafe(c) { c.escape_default().to_string() } else { c.to_string() };
    text.chars().map(escape).collect()
}

/// The word quoted for a shell: plain if possible, else in single quotes, and in bash's `$'…'` if it has
/// unsafe characters.
pub fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:@+=,%".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        return word.to_owned();
    }
    if !word.chars().any(is_unsafe) {
        return format!("'{}'", word.replace('\'', r"'\''"));
    }
    let escape = |c: char| match c {
        '\'' | '\\' => format!("\\{c}"),
        c if is_unsafe(c) => format!("\\U{:08x}", u32::from(c)),
        c => c.to_string(),
    };
    format!("$'{}'", word.chars().map(escape).collect::<String>())
}

/// `420ms`, `4.2s`, `12s`, `3m 04s`, `2h 05m`, `3d 04h`.
pub fn span(duration: Duration) -> String {
    let (seconds, millis) = (duration.as_secs(), duration.subsec_millis());
    match seconds {
        0 => format!("{millis}ms"),
        1..10 => format!("{seconds}.{}s", millis / 100),
        10..60 => format!("{seconds}s"),
        60..3600 => format!("{}m {:02}s", seconds / 60, seconds % 60),
        3600..86_400 => format!("{}h {:02}m", seconds / 3600, seconds / 60 % 60),
        _ => format!("{}d {:02}h", seconds / 86_400, seconds / 3600 % 24),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quoted_words_are_read_back_by_a_shell() {
        assert_eq!(quoted("acme:report/42"), "acme:report/42");
        assert_eq!(quoted("report/it's $x"), r"'report/it'\''s $x'");
        assert_eq!(quoted(""), "''");
        assert_eq!(quoted("a/~b"), "'a/~b'");
        assert_eq!(quoted("a/'\\\u{202e}"), r"$'a/\'\\\U0000202e'");
    }

    #[test]
    fn unsafe_characters_are_shown_and_not_acted_on() {
        assert_eq!(printable("a\u{202e}b\x1b[0m"), r"a\u{202e}b\u{1b}[0m");
        assert_eq!(printable("日本語 it's"), "日本語 it's");
    }
}
