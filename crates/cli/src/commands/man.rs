//! `leasehold man [COMMAND…]`

use std::process::ExitCode;

use clap::Args;
use clap_mangen::Man as Page;

use crate::{args::Cli, exit::Failure, output};

#[derive(Debug, Args)]
#[command(
    after_help = "To read it: leasehold man run | man -l -\nOf a command within a command: leasehold man cron ls"
)]
pub(crate) struct Man {
    /// The command, such as `run` or `cron ls` [default: the whole program]
    command: Vec<String>,
}

impl Man {
    pub(crate) fn run(&self) -> Result<ExitCode, Failure> {
        let mut page = Cli::definition();
        page.build(); // copies the global options into the commands, so that their pages have them
        for (at, name) in self.command.iter().enumerate() {
            let inner = page.find_subcommand(name).cloned();
            page = inner.ok_or_else(|| {
                let known = self.command[..at].join(" ");
                let help =
                    if at == 0 { "leasehold --help".to_owned() } else { format!("leasehold {known} --help") };
                Failure::usage(format!("there is no command {:?}", self.command[..=at].join(" ")))
                    .hint(format!("{help} lists the commands"))
            })?;
        }
        if !self.command.is_empty() {
            page = page.display_name(format!("leasehold-{}", self.command.join("-")));
        }
        let mut text = Vec::new();
        Page::new(page).render(&mut text).map_err(|error| Failure::internal(error.to_string()))?;
        output::print(&text).map(|()| ExitCode::SUCCESS)
    }
}
