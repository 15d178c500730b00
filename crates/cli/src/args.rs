//! What can be typed.

use std::{ffi::OsString, path::PathBuf, time::Duration};

use clap::{Arg, ArgAction, Args, CommandFactory as _, FromArgMatches as _, Parser, Subcommand, ValueEnum};

use crate::commands;

/// Leases and locks for commands: one at a time, on one machine or on many.
#[derive(Debug, Parser)]
#[command(name = "leasehold", version, propagate_version = true, max_term_width = 100)]
#[command(after_help = "Exit codes of its own: 64 usage, 69 backend unavailable, 70 internal, 75 busy, \
                        77 order refused, 78 configuration, 79 lease lost, 126 cannot run, 127 not found.")]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) global: Global,
    #[command(subcommand)]
    pub(crate) command: Command,
}

impl Cli {
    /// Reads a command line, the program's name first.
    pub(crate) fn read(
        words: impl IntoIterator<Item = impl Into<OsString> + Clone>,
    ) -> Result<Cli, clap::Error> {
        Cli::from_arg_matches(&minding_numbers(Cli::command()).try_get_matches_from(words)?)
    }
}

/// `--ttl -1` is a wrong ttl, and told as such; else it would be an option that there is not.
fn minding_numbers(command: clap::Command) -> clap::Command {
    let takes_value = |arg: &Arg| !arg.is_positional() && arg.get_action().takes_values();
    let mind = |arg: Arg| if takes_value(&arg) { arg.allow_negative_numbers(true) } else { arg };
    command.mut_args(mind).mut_subcommands(minding_numbers)
}

/// What every command takes.
#[derive(Debug, Args)]
#[command(next_help_heading = "Global options")]
pub(crate) struct Global {
    /// Where leases are kept [default: the config file's, else a SQLite file of this user]
    #[arg(long, global = true, value_name = "URL", env = "LEASEHOLD_STORE", hide_env_values = true)]
    pub(crate) store: Option<String>,

    /// A file that holds the password of the store
    #[arg(long, global = true, value_name = "FILE", env = "LEASEHOLD_PASSWORD_FILE")]
    pub(crate) password_file: Option<PathBuf>,

    /// The configuration [default: leasehold/config.toml in the user's, then in the system's directory]
    #[arg(long, global = true, value_name = "FILE", env = "LEASEHOLD_CONFIG")]
    pub(crate) config: Option<PathBuf>,

    /// Say more: once for what happens, twice for every request
    #[arg(short, long, global = true, action = ArgAction::Count)]
    pub(crate) verbose: u8,

    /// Say nothing but errors
    #[arg(short, long, global = true, conflicts_with = "verbose")]
    pub(crate) quiet: bool,

    /// Answers and errors as JSON
    #[arg(long, global = true)]
    pub(crate) json: bool,

    /// How log lines look; turns the log on
    #[arg(long, global = true, value_name = "FORMAT", env = "LEASEHOLD_LOG_FORMAT")]
    pub(crate) log_format: Option<LogFormat>,

    /// Keep metrics in this file, in Prometheus's text format, for a node exporter
    #[arg(long, global = true, value_name = "FILE", env = "LEASEHOLD_METRICS_FILE")]
    pub(crate) metrics_file: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    Text,
    Json,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Run(Box<commands::run::Run>),
    /// List what is held, waited for or paused
    Ls(commands::ls::Ls),
    /// Show one resource: holders, line, token, note, last orders
    Show(commands::show::Show),
    /// Watch what changes, live
    Watch(commands::watch::Watch),
    /// Say why you wait: who holds it, since when, how long at the most, what would free it
    Why(commands::why::Why),
    /// Ask a holder to finish
    Ask(commands::ask::Ask),
    /// End a holder: when its lease runs out, or at once
    Evict(commands::evict::Evict),
    /// Grant nothing for a while
    Pause(commands::pause::Pause),
    /// Grant again
    Resume(commands::pause::Resume),
    /// Change the capacity of what is in use
    Resize(commands::resize::Resize),
    /// List who ordered what, when and why
    Audit(commands::audit::Audit),
    /// Look for leases and locks that nobody will give back
    Leaks(commands::leaks::Leaks),
    /// Say what to use, a lease or something else, and why: ten questions
    Advise(Box<commands::advise::Advise>),
    Cron(Box<commands::cron::Cron>),
    Elect(Box<commands::elect::Elect>),
    /// Refuse whoever comes too late, in a database: install, status, remove, rebase
    Fence(commands::fence::Fence),
    /// Print the tables that a database needs, to create them by hand
    Schema(commands::schema::Schema),
    /// Print completions for a shell
    Completions(commands::completions::Completions),
    /// Print the manual page, of the program or of one command
    Man(commands::man::Man),
}

/// Reads `10`, `1.5` (seconds), `500ms`, `2m`, `1h 30m`.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let seconds = text.parse::<f64>().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    let read = seconds.or_else(|| humantime::parse_duration(text).ok());
    read.ok_or_else(|| "write seconds or a duration, as in 10, 1.5, 500ms, 2m or 1h30m".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_makes_sense() {
        minding_numbers(Cli::command()).debug_assert();
    }

    /// The words of the first command in a piece of shell: up to the end of its line, a comment, a pipe or the like.
    fn words(shell: &str) -> Vec<String> {
        let (mut words, mut word, mut quote) = (Vec::new(), None::<String>, None);
        let mut letters = shell.chars().peekable();
        while let Some(letter) = letters.next() {
            match (quote, letter) {
                (None, '\\') if letters.next_if_eq(&'\n').is_some() => {}
                (None, '\'' | '"') => {
                    quote = Some(letter);
                    word.get_or_insert_default();
                }
                (None, '\n' | '|' | ';' | '>' | '<' | '&') => break,
                (None, '#') if word.is_none() => break,
                (None, ' ') => words.extend(word.take()),
                (Some(open), _) if letter == open => quote = None,
                _ => word.get_or_insert_default().push(letter),
            }
        }
        words.extend(word);
        words
    }

    fn pages(directory: &std::path::Path) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
        let (directories, files): (Vec<_>, Vec<_>) = entries.partition(|path| path.is_dir());
        let mut pages: Vec<_> = directories.iter().flat_map(|directory| pages(directory)).collect();
        pages.extend(files.into_iter().filter(|path| path.extension().is_some_and(|end| end == "md")));
        pages
    }

    #[test]
    fn what_the_pages_show_can_be_typed() {
        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let mut typed = 0;
        for page in pages(&root.join("docs")).into_iter().chain([root.join("README.md")]) {
            let text = std::fs::read_to_string(&page).unwrap();
            let blocks = text.split("\n```").skip(1).step_by(2);
            for block in blocks {
                for (at, _) in block.match_indices("leasehold ") {
                    let prompt = if block.starts_with("sh\n") { "\n" } else { "\n$ " };
                    if !block[..at].ends_with(prompt) {
                        continue;
                    }
                    let words = words(&block[at..]);
                    let read = Cli::read(&words);
                    assert!(read.is_ok(), "{}: {words:?}: {}", page.display(), read.unwrap_err());
                    typed += 1;
                }
            }
        }
        assert!(typed > 20, "only {typed} were found");
    }

    #[test]
    fn durations_are_seconds_or_have_units() {
        let table = [
            ("0", 0),
            ("10", 10_000),
            ("1.5", 1500),
            (".25", 250),
            ("500ms", 500),
            ("2m", 120_000),
            ("1h30m", 5_400_000),
            ("1h 30m", 5_400_000),
        ];
        for (text, millis) in table {
            assert_eq!(duration(text), Ok(Duration::from_millis(millis)), "{text}");
        }
        for text in ["", "-1", "x", "1x", "inf", "nan", "1e400"] {
            assert!(duration(text).is_err(), "{text}");
        }
    }
}
