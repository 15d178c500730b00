//! `leasehold completions SHELL`
//!
//! The scripts of clap complete commands and options. For the names of resources they call
//! `leasehold complete-resources`: in bash by a function around clap's function, in zsh in place of its
//! default for these arguments, in fish by further lines.

use std::process::ExitCode;

use clap::{Args, Command};
use clap_complete::Shell;

use crate::{args::Cli, exit::Failure, output};

#[derive(Debug, Args)]
#[command(
    after_help = "For bash: leasehold completions bash > ~/.local/share/bash-completion/completions/leasehold\nThe names \
                  of resources come from the store that the variables and config.toml name."
)]
pub(crate) struct Completions {
    /// The shell
    shell: Shell,
}

/// The arguments that are the name of a resource, or the start of one.
const NAMES: [&str; 3] = ["resource", "prefix", "scope"];

impl Completions {
    pub(crate) fn run(&self) -> Result<ExitCode, Failure> {
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut Cli::definition(), "leasehold", &mut script);
        let script = String::from_utf8_lossy(&script);
        let script = match self.shell {
            Shell::Bash => for_bash(&script),
            Shell::Zsh => for_zsh(&script),
            Shell::Fish => for_fish(&script),
            _ => script.into_owned(),
        };
        output::print(script.as_bytes()).map(|()| ExitCode::SUCCESS)
    }
}

/// The commands whose first argument is the name of a resource.
fn commands_with_names() -> Vec<Command> {
    let mut program = Cli::definition();
    program.build();
    let takes_name = |command: &&Command| {
        let first = command.get_positionals().next();
        first.is_some_and(|first| NAMES.contains(&first.get_id().as_str()))
    };
    program.get_subcommands().filter(takes_name).cloned().collect()
}

fn names_of(commands: &[Command]) -> Vec<&str> {
    commands.iter().map(Command::get_name).collect()
}

/// The options of these commands that take a value in the next word.
fn options_with_values(commands: &[Command]) -> Vec<String> {
    let mut options = Vec::new();
    for arg in commands.iter().flat_map(Command::get_opts).filter(|arg| arg.get_action().takes_values()) {
        options
            .extend(arg.get_short_and_visible_aliases().unwrap_or_default().iter().map(|c| format!("-{c}")));
        let long = arg.get_long_and_visible_aliases().unwrap_or_default();
        options.extend(long.iter().map(|name| format!("--{name}")));
    }
    options.sort();
    options.dedup();
    options
}

fn for_bash(script: &str) -> String {
    let commands = commands_with_names();
    let function = include_str!("completions/resources.bash")
        .replace("@OPTIONS@", &options_with_values(&commands).join("|"))
        .replace("@COMMANDS@", &names_of(&commands).join("|"));
    format!("{function}\n{}", script.replace("complete -F _leasehold ", "complete -F _leasehold_resources "))
}

fn for_zsh(script: &str) -> String {
    let is_name = |line: &str| {
        let name = line.trim_start_matches(['\'', ':']).split(" -- ").next().unwrap_or("");
        line.starts_with("':") && NAMES.contains(&name)
    };
    let lines = script.lines().map(|line| {
        if is_name(line) { line.replace(":_default'", ":_leasehold_resources'") } else { line.to_owned() }
    });
    let lines: String = lines.map(|line| line + "\n").collect();
    // The first line, `#compdef leasehold`, stays the first.
    let (first, rest) = lines.split_once('\n').unwrap_or((&lines, ""));
    format!("{first}\n\n{}{rest}", include_str!("completions/resources.zsh"))
}

fn for_fish(script: &str) -> String {
    let commands = commands_with_names();
    let names = names_of(&commands).join(" ");
    format!("{script}{}", include_str!("completions/resources.fish").replace("@COMMANDS@", &names))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_commands_with_names_are_found() {
        let commands = commands_with_names();
        let names = names_of(&commands);
        for name in ["run", "elect", "ls", "show", "why", "watch", "evict", "resize", "audit", "leaks"] {
            assert!(names.contains(&name), "{name}: {names:?}");
        }
        assert!(!names.contains(&"cron") && !names.contains(&"man"));
        let options = options_with_values(&commands);
        for option in ["--store", "-w", "--timeout", "--reason"] {
            assert!(options.iter().any(|known| known == option), "{option}: {options:?}");
        }
        assert!(!options.iter().any(|known| known == "-n" || known == "--json"), "{options:?}");
    }

    #[test]
    fn zsh_completes_names_in_place_of_files() {
        let mut script = Vec::new();
        clap_complete::generate(Shell::Zsh, &mut Cli::definition(), "leasehold", &mut script);
        let script = for_zsh(&String::from_utf8(script).unwrap());
        assert!(script.starts_with("#compdef leasehold\n"));
        let names = script.lines().filter(|line| line.ends_with(":_leasehold_resources' \\")).count();
        assert!(names >= commands_with_names().len(), "{names}");
    }
}
