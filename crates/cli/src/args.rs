//! The command line.

use std::{ffi::OsString, path::PathBuf, time::Duration};

use clap::{
    Arg, ArgAction, Args, CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum, parser::ValueSource,
};
use serde::Deserialize;

use crate::{commands, config::Config, help};

/// Leases and locks for shell commands, on one machine or on many
#[derive(Debug, Parser)]
#[command(name = "leasehold", version, propagate_version = true, max_term_width = 100)]
#[command(after_help = help::AFTER_HELP)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) global: Global,
    #[command(subcommand)]
    pub(crate) command: Command,
}

impl Cli {
    /// Parses a command line. The first word is the name of the program.
    pub(crate) fn read(words: impl IntoIterator<Item = impl Into<OsString>>) -> Result<Cli, clap::Error> {
        let words: Vec<OsString> = words.into_iter().map(Into::into).collect();
        if words.iter().any(|word| word == "run")
            && let Ok(RunCli { global, command: OnlyRun::Run(run) }) = parse(&words)
        {
            return Ok(Cli { global, command: Command::Run(run) });
        }
        parse(&words)
    }

    /// The definition of the command line, with the commands of the help in groups.
    pub(crate) fn definition() -> clap::Command {
        help::with_groups(Cli::command())
    }
}

/// The command line of `leasehold run` alone. To define all commands takes longer than everything else that
/// happens before the claim (ADR 0042). Whatever this does not parse is parsed as a [`Cli`].
#[derive(Debug, Parser)]
#[command(name = "leasehold", disable_help_subcommand = true)]
struct RunCli {
    #[command(flatten)]
    global: Global,
    #[command(subcommand)]
    command: OnlyRun,
}

#[derive(Debug, Subcommand)]
enum OnlyRun {
    Run(Box<commands::run::Run>),
}

impl AsMut<Global> for Cli {
    fn as_mut(&mut self) -> &mut Global {
        &mut self.global
    }
}

impl AsMut<Global> for RunCli {
    fn as_mut(&mut self) -> &mut Global {
        &mut self.global
    }
}

fn parse<T: CommandFactory + FromArgMatches + AsMut<Global>>(words: &[OsString]) -> Result<T, clap::Error> {
    let matches = allow_negative_numbers(help::with_groups(T::command())).try_get_matches_from(words)?;
    let mut parsed = T::from_arg_matches(&matches)?;
    let is_typed = |option| matches.value_source(option) == Some(ValueSource::CommandLine);
    parsed.as_mut().typed = Typed {
        store: is_typed("store"),
        namespace: is_typed("namespace"),
        config: is_typed("config"),
        password_file: is_typed("password_file"),
        sensitive: is_typed("sensitive"),
    };
    Ok(parsed)
}

/// Lets options take negative numbers, so that `--ttl -1` is reported as a wrong ttl and not as the unknown
/// option `-1`.
fn allow_negative_numbers(command: clap::Command) -> clap::Command {
    let takes_value = |arg: &Arg| !arg.is_positional() && arg.get_action().takes_values();
    let allow = |arg: Arg| if takes_value(&arg) { arg.allow_negative_numbers(true) } else { arg };
    command.mut_args(allow).mut_subcommands(allow_negative_numbers)
}

/// The options of every command. `settings::settle` fills them from `config.toml`.
#[derive(Debug, Default, Args)]
#[command(next_help_heading = "Global options")]
pub(crate) struct Global {
    /// The URL of the store that keeps the leases [default: from the configuration, else a SQLite file of
    /// this user]
    #[arg(long, global = true, value_name = "URL", env = "LEASEHOLD_STORE", hide_env_values = true)]
    pub(crate) store: Option<String>,

    /// A file with the password of the store
    #[arg(long, global = true, value_name = "FILE", env = "LEASEHOLD_PASSWORD_FILE")]
    pub(crate) password_file: Option<PathBuf>,

    /// Pass the password of the store on to the command of run, cron and elect, for runs within it
    #[arg(long, global = true)]
    pub(crate) pass_secrets: bool,

    /// The namespace of names that have none; lists show only this namespace
    #[arg(long, global = true, value_name = "NAME", env = "LEASEHOLD_NAMESPACE")]
    pub(crate) namespace: Option<String>,

    /// Use no default namespace: names stay as they are, and lists show every namespace
    #[arg(long, global = true, visible_alias = "all-namespaces")]
    pub(crate) no_namespace: bool,

    /// Hash the id of the resource before it reaches the store, the log and the lists
    #[arg(long, global = true)]
    pub(crate) sensitive: bool,

    /// A file with the key of --sensitive, the same on all machines
    #[arg(long, global = true, value_name = "FILE", env = "LEASEHOLD_HASH_KEY_FILE")]
    pub(crate) hash_key_file: Option<PathBuf>,

    /// The configuration file [default: leasehold/config.toml in ~/.config, then in /etc]
    #[arg(long, global = true, value_name = "FILE", env = "LEASEHOLD_CONFIG")]
    pub(crate) config: Option<PathBuf>,

    /// Log to stderr: -v for what happens, -vv for every request
    #[arg(short, long, global = true, action = ArgAction::Count)]
    pub(crate) verbose: u8,

    /// Print only errors on stderr
    #[arg(short, long, global = true, conflicts_with = "verbose")]
    pub(crate) quiet: bool,

    /// Print results and errors as JSON
    #[arg(long, global = true)]
    pub(crate) json: bool,

    /// Colours on stdout [default: auto, only on a terminal]
    #[arg(long, global = true, value_name = "WHEN", env = "LEASEHOLD_COLOR")]
    pub(crate) color: Option<Color>,

    /// The format of the log; turns the log on
    #[arg(long, global = true, value_name = "FORMAT", env = "LEASEHOLD_LOG_FORMAT")]
    pub(crate) log_format: Option<LogFormat>,

    /// Write metrics to this file in the text format of Prometheus, for the textfile collector of a node
    /// exporter
    #[arg(long, global = true, value_name = "FILE", env = "LEASEHOLD_METRICS_FILE")]
    pub(crate) metrics_file: Option<PathBuf>,

    /// Which options were in the command line, and not in a variable.
    #[arg(skip)]
    pub(crate) typed: Typed,

    /// The configuration file.
    #[arg(skip)]
    pub(crate) loaded: Config,
}

/// Which options were in the command line, and not in a variable.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Typed {
    pub(crate) store: bool,
    pub(crate) namespace: bool,
    pub(crate) config: bool,
    pub(crate) password_file: bool,
    pub(crate) sensitive: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum LogFormat {
    Text,
    Json,
}

/// When to use colours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Color {
    Auto,
    Always,
    Never,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Run(Box<commands::run::Run>),
    Acquire(Box<commands::acquire::Acquire>),
    Renew(commands::renew::Renew),
    Release(commands::release::Release),
    /// List the resources that are held, waited for or paused
    Ls(commands::ls::Ls),
    /// Show one resource: holders, queue, tokens, notes, last orders
    Show(commands::show::Show),
    /// Watch resources and print changes
    Watch(commands::watch::Watch),
    /// Explain why a claim waits: who holds the resource, since when, for how long at most, and how it
    /// becomes free
    Why(commands::why::Why),
    /// Ask a holder to finish its work
    Ask(commands::ask::Ask),
    /// Evict a holder: let its lease run out, or end it at once
    Evict(commands::evict::Evict),
    /// Stop granting a resource for a while
    Pause(commands::pause::Pause),
    /// End a pause
    Resume(commands::pause::Resume),
    /// Change the capacity of a semaphore that is in use
    Resize(commands::resize::Resize),
    /// List the orders of operators: who, when, what and why
    Audit(commands::audit::Audit),
    /// Find leases and locks that will not be released
    Leaks(commands::leaks::Leaks),
    /// Advise whether to use a lease or something else, by thirteen questions
    Advise(Box<commands::advise::Advise>),
    Cron(Box<commands::cron::Cron>),
    Elect(Box<commands::elect::Elect>),
    /// Serve the leases of a store over HTTP, for programs of every language
    Serve(commands::serve::Serve),
    /// Make, list and revoke tokens of the server
    #[cfg(feature = "serve")]
    Token(Box<commands::token::Token>),
    /// Set up a set of Redlock servers
    Redlock(commands::redlock::Redlock),
    /// Have a database refuse writes of holders that have lost their lease
    Fence(commands::fence::Fence),
    /// Print the SQL that creates the tables of a store, to run it by hand
    Schema(commands::schema::Schema),
    /// Show the settings and where each of them comes from
    Config(commands::config::ConfigCommand),
    /// Print the names of resources, for the shell completions
    #[command(hide = true)]
    CompleteResources(commands::complete_resources::CompleteResources),
    /// Print shell completions
    Completions(commands::completions::Completions),
    /// Print the manual page of the program or of one command
    Man(commands::man::Man),
}

/// Parses `10`, `1.5` (seconds), `500ms`, `2m`, `1h 30m`.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    if text.contains('M') {
        // humantime reads it as months.
        return Err("write m for minutes; M would mean months".to_owned());
    }
    let seconds = text.parse::<f64>().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    let read = seconds.or_else(|| humantime::parse_duration(text).ok());
    read.ok_or_else(|| "expected seconds or a duration, such as 10, 1.5, 500ms, 2m or 1h30m".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_definition_of_the_command_line_is_consistent() {
        allow_negative_numbers(Cli::command()).debug_assert();
        allow_negative_numbers(RunCli::command()).debug_assert();
    }

    #[test]
    fn a_run_is_parsed_as_among_all_commands() {
        let lines = [
            "leasehold run x/1 -- true",
            "leasehold -v --store sqlite:a run -n --ttl 5s x/1 -- ls -v --json -- run",
            "leasehold run --json x/1 sleep 1 --wait 3",
            "leasehold run -s -w 2m -E 3 x/1 -c ls",
        ];
        for line in lines {
            let words: Vec<OsString> = line.split(' ').map(Into::into).collect();
            let among_all: Cli = parse(&words).unwrap();
            assert!(parse::<RunCli>(&words).is_ok(), "{line}");
            assert_eq!(format!("{:?}", Cli::read(&words).unwrap()), format!("{among_all:?}"), "{line}");
        }
        for line in
            ["leasehold run", "leasehold run --ttl -1 x/1 true", "leasehold run --help", "leasehold help run"]
        {
            let words: Vec<OsString> = line.split(' ').map(Into::into).collect();
            let among_all = parse::<Cli>(&words).unwrap_err().render().to_string();
            assert_eq!(Cli::read(&words).unwrap_err().render().to_string(), among_all, "{line}");
        }
        assert!(matches!(Cli::read(["leasehold", "show", "run/1"]).unwrap().command, Command::Show(_)));
    }

    /// The words of the first command of a shell script: up to the end of its line, a comment, a pipe or the
    /// like.
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

    fn markdown_files(directory: &std::path::Path) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
        let (directories, files): (Vec<_>, Vec<_>) = entries.partition(|path| path.is_dir());
        let mut found: Vec<_> = directories.iter().flat_map(|directory| markdown_files(directory)).collect();
        found.extend(files.into_iter().filter(|path| path.extension().is_some_and(|end| end == "md")));
        found
    }

    #[test]
    fn every_command_in_the_docs_is_valid() {
        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let mut checked = 0;
        for page in markdown_files(&root.join("docs")).into_iter().chain([root.join("README.md")]) {
            let text = std::fs::read_to_string(&page).unwrap();
            let blocks = text.split("\n```").skip(1).step_by(2);
            for block in blocks {
                for (at, _) in block.match_indices("leasehold ") {
                    let prompt = if block.starts_with("sh\n") { "\n" } else { "\n$ " };
                    if !block[..at].ends_with(prompt) {
                        continue;
                    }
                    // The shell replaces `$$` by its process id.
                    let words = words(&block[at..].replace("$$", "1"));
                    let parsed = Cli::read(&words);
                    assert!(parsed.is_ok(), "{}: {words:?}: {}", page.display(), parsed.unwrap_err());
                    checked += 1;
                }
            }
        }
        assert!(checked > 20, "only {checked} commands were found");
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
        for text in ["", "-1", "x", "1x", "inf", "nan", "1e400", "30M", "1h 30M"] {
            assert!(duration(text).is_err(), "{text}");
        }
        assert!(duration("30M").unwrap_err().contains("m for minutes"));
    }
}
