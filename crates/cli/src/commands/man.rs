//! `leasehold man [COMMAND]`

use std::process::ExitCode;

use clap::{Args, CommandFactory as _};
use clap_mangen::Man as Page;

use crate::{args::Cli, exit::Failure, output};

#[derive(Debug, Args)]
#[command(after_help = "To read it: leasehold man run | man -l -")]
pub(crate) struct Man {
    /// The command [default: the whole program]
    command: Option<String>,
}

impl Man {
    pub(crate) fn run(&self) -> Result<ExitCode, Failure> {
        let mut program = Cli::command();
        program.build(); // copies the global options into the commands, so that their pages have them
        let page = match &self.command {
            None => program,
            Some(name) => {
                let command = program.find_subcommand(name).cloned();
                command.ok_or_else(|| {
                    Failure::usage(format!("there is no command {name:?}"))
                        .hint("leasehold --help lists the commands")
                })?
            }
        };
        let mut text = Vec::new();
        Page::new(page).render(&mut text).map_err(|error| Failure::internal(error.to_string()))?;
        output::print(&text).map(|()| ExitCode::SUCCESS)
    }
}
