//! The help of the whole program: commands in groups, exit codes, and the variables of the environment.

use clap::Command;

/// The groups of commands in the help, in this order. Every visible command is in one of them.
const GROUPS: [(&str, &[&str]); 6] = [
    ("Run a command under a lease", &["run", "cron", "elect"]),
    ("Lease in a script", &["acquire", "renew", "release"]),
    ("Look", &["ls", "show", "why", "watch", "leaks", "audit"]),
    ("Order", &["ask", "evict", "pause", "resume", "resize"]),
    ("Serve", &["serve", "token"]),
    ("More", &["advise", "fence", "redlock", "schema", "config", "completions", "man"]),
];

/// The end of the help.
pub(crate) const AFTER_HELP: &str = "\
Environment, read:
  LEASEHOLD_STORE          the URL of the store (--store)
  LEASEHOLD_DIR            the directory of the default store
  LEASEHOLD_PASSWORD_FILE  a file with the password of the store (--password-file)
  LEASEHOLD_PASSWORD       the password itself; not passed on to the command without --pass-secrets
  LEASEHOLD_NAMESPACE      the namespace of names that have none (--namespace)
  LEASEHOLD_HASH_KEY_FILE  a file with the key of --sensitive (--hash-key-file)
  LEASEHOLD_CONFIG         the configuration file (--config)
  LEASEHOLD_COLOR          when to use colours (--color); NO_COLOR and CLICOLOR_FORCE are read, too
  LEASEHOLD_LOG_FORMAT     the format of the log (--log-format)
  LEASEHOLD_METRICS_FILE   the file for metrics (--metrics-file)
  LEASEHOLD_OWNER          the owner token, of leasehold renew and release
  LEASEHOLD_OPERATOR       your name, for the audit trail (--by-whom)
  LEASEHOLD_DATABASE       the database of leasehold fence (--database)
  LEASEHOLD_TOKENS_FILE    the tokens of leasehold serve and token (--tokens)

Environment, set for the command of run, cron and elect, and by acquire --export:
  LEASEHOLD_RESOURCE       the resource that it holds
  LEASEHOLD_TOKEN          the fencing token
  LEASEHOLD_PASS           the pass for a fence
  LEASEHOLD_RESOURCES      the keys of all resources that it holds
  LEASEHOLD_TOKENS         each key with its fencing token
  LEASEHOLD_PASSES         the passes of all resources
  LEASEHOLD_OWNER          the owner token, a secret
  LEASEHOLD_HELD           what this run and its outer runs hold
  LEASEHOLD_TICK           with cron: the time of the tick

Variables in a lease file of acquire -o, besides RESOURCE, TOKEN, PASS, OWNER and STORE of these:
  LEASEHOLD_STATE          held, released or lost
  LEASEHOLD_DEADLINE       until when it lasts, unless it is renewed
  LEASEHOLD_LEASE          what renew -f and release -f read

Environment, set for the command of cron --on-failure:
  LEASEHOLD_JOB            the job
  LEASEHOLD_OUTCOME        failed or lost
  LEASEHOLD_WHY            what happened
  LEASEHOLD_EXIT_CODE      the exit code of the command
  LEASEHOLD_TOOK_SECONDS   how long it ran

Exit codes of leasehold itself:
  64 usage, 69 store unavailable, 70 internal error, 75 resource is held, 77 order refused, 78 configuration,
  79 lease lost, 126 command cannot be run, 127 command not found";

/// The width of the help of the commands.
const COLUMNS: usize = 100;
/// The columns before the explanation of a command.
const INDENT: usize = 15;

/// Puts the commands of the help into groups.
pub(crate) fn with_groups(command: Command) -> Command {
    let commands = groups(&command);
    if commands.is_empty() {
        return command;
    }
    command.help_template(format!(
        "{{about-with-newline}}\n{{usage-heading}} {{usage}}\n\n{commands}\nGlobal options:\n{{options}}{{after-help}}"
    ))
}

/// The help of a call without any arguments.
pub(crate) fn short(command: &Command) -> String {
    let about = command.get_about().map(ToString::to_string).unwrap_or_default();
    format!(
        "{about}\n\nUsage: leasehold [OPTIONS] <COMMAND>\n\n{}\nleasehold help COMMAND explains a command.\n\
         leasehold --help lists the options, variables and exit codes.\n",
        groups(command)
    )
}

fn groups(command: &Command) -> String {
    let mut text = String::new();
    if command.get_subcommands().nth(1).is_none() {
        return text; // the definition of `leasehold run` alone (ADR 0042)
    }
    for (title, names) in GROUPS {
        // A build may lack some commands.
        let known: Vec<_> = names.iter().filter_map(|name| command.find_subcommand(name)).collect();
        if known.is_empty() {
            continue;
        }
        text.push_str(&format!("{title}:\n"));
        for command in known {
            let about = command.get_about().map(ToString::to_string).unwrap_or_default();
            text.push_str(&entry(command.get_name(), &about));
        }
        text.push('\n');
    }
    text.pop();
    text
}

fn entry(name: &str, about: &str) -> String {
    let mut lines = vec![format!("  {name:<width$}", width = INDENT - 2)];
    for word in about.split_whitespace() {
        let last = lines.last_mut().expect("there is always a line");
        if last.len() + 1 + word.len() > COLUMNS {
            lines.push(format!("{:INDENT$}{word}", ""));
        } else {
            last.push_str(if last.len() > INDENT { " " } else { "" });
            last.push_str(word);
        }
    }
    lines.join("\n") + "\n"
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;
    use crate::args::Cli;

    #[test]
    fn every_command_is_in_one_group() {
        let program = Cli::command();
        let visible = program.get_subcommands().filter(|command| !command.is_hide_set());
        let mut visible: Vec<_> = visible.map(Command::get_name).collect();
        let mut grouped: Vec<_> = GROUPS.iter().flat_map(|(_, names)| names.iter().copied()).collect();
        visible.sort_unstable();
        grouped.sort_unstable();
        assert_eq!(grouped, visible);
    }

    #[test]
    fn the_help_fits_into_its_columns() {
        let text = short(&Cli::command());
        assert!(text.lines().all(|line| line.chars().count() <= COLUMNS), "{text}");
        assert!(text.contains("\nLook:\n  ls "), "{text}");
    }
}
